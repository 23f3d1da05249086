//! Any range of a file is that slice of the whole, however its bytes came into the store.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{FutureExt, TryStreamExt};
use proptest::prelude::*;
use trireme_bus::InProcess;

use super::*;
use crate::call::{CallOf, Execute, Executed, JobCall};
use crate::jobs::Options;
use crate::quotas::Quotas;

struct Nobody;

#[async_trait]
impl Execute for Nobody {
    async fn execute(&self, _: JobCall, _: CallOf) -> Executed {
        Executed::Refused
    }

    fn lives(&self, _: &str) -> bool {
        true
    }
}

/// Jobs on a store in memory, which nobody runs.
pub fn jobs() -> Jobs {
    let options = Options {
        max_in_flight: 1,
        time_to_live: Duration::from_secs(600),
        upload_patience: Duration::from_secs(600),
        max_error_bytes: u64::MAX,
        max_bytes: u64::MAX,
        quotas: Quotas::default(),
    };
    Jobs::open(Arc::new(InProcess::default()), "g", Arc::new(Nobody), options).0
}

/// Writes an object, with a checkpoint after each of so many bytes. Returns it and its bytes.
pub async fn written(jobs: &Jobs, name: String, checkpoints: &[usize]) -> (Object, Vec<u8>) {
    let (mut object, mut all) = (Object { name, ..Object::default() }, Vec::new());
    for size in checkpoints {
        let mut bytes = vec![0; *size];
        fastrand::Rng::new().fill(&mut bytes);
        let mut writer = Writer::append(jobs.0.bus.as_ref(), object, None);
        writer.write(&bytes).await.unwrap();
        object = writer.finish().await.unwrap();
        all.extend(bytes);
    }
    (object, all)
}

/// Bytes before a checkpoint: few, or about one part.
pub fn checkpoint() -> impl Strategy<Value = usize> {
    prop_oneof![20 => 0..5000usize, 1 => Just(PART - 1), 1 => Just(PART), 1 => PART..PART + 5000]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// An upload is one object with one checkpoint, a joined upload several of those, the output of a batch one with many checkpoints.
    #[test]
    fn any_range_is_the_slice_of_the_whole(
        objects in prop::collection::vec(prop::collection::vec(checkpoint(), 1..20), 1..4),
        places in prop::collection::vec(0.0..=1.0f64, 4),
    ) {
        let jobs = jobs();
        let reading = async {
            let (mut stored, mut whole) = (Vec::new(), Vec::new());
            for (number, checkpoints) in objects.iter().enumerate() {
                let (object, bytes) = written(&jobs, number.to_string(), checkpoints).await;
                assert_eq!(read_whole(jobs.0.bus.as_ref(), &object).await.unwrap(), bytes);
                stored.push(object);
                whole.extend(bytes);
            }
            for place in places {
                let offset = (place * whole.len() as f64) as usize;
                let read: Vec<Bytes> = jobs.bytes_of(stored.clone(), offset as u64).try_collect().await.unwrap();
                assert!(read.concat() == whole[offset..], "{offset} of {}: {stored:?}", whole.len());
            }
        };
        reading.now_or_never().expect("in memory nothing waits");
    }
}

/// A broker of a cluster may show the value that a part had before: the bytes of a run that ended before its checkpoint.
#[tokio::test(start_paused = true)]
async fn a_part_that_lies_elsewhere_is_not_read() {
    let jobs = jobs();
    let (object, whole) = written(&jobs, "a".to_owned(), &[10, 10, 10]).await;
    let bus = jobs.0.bus.as_ref();
    for (part, place, size) in [(1, 9, 10), (2, 20, 11)] {
        let value = bus.get(Bucket::Objects, &key("a", part)).await.unwrap().unwrap().value;
        bus.put(Bucket::Objects, &key("a", part), Part::encode(place, &vec![0; size]), None, None).await.unwrap();
        let lost = read_whole(bus, &object).await.unwrap_err();
        assert!(lost.to_string().starts_with(&format!("part {part} of 'a' is missing")), "{lost}");
        bus.put(Bucket::Objects, &key("a", part), value, None, None).await.unwrap();
    }
    assert_eq!(read_whole(bus, &object).await.unwrap(), whole);
}
