use trireme_bus::{Entry, InProcess, escape_token};
use trireme_inference::UnixMicros;

use super::*;

const MODEL: &str = "a.model";

/// Keeps the last change that `wanted_changed` was called with.
struct Keeper {
    last: parking_lot::Mutex<Option<Option<Override>>>,
    restores: bool,
}

#[async_trait]
impl Participant for Keeper {
    async fn load(&self, _: &str, _: &Override) -> Outcome {
        Outcome::NotMine
    }

    async fn unload(&self, _: &str) -> Outcome {
        Outcome::NotMine
    }

    async fn wanted_changed(&self, _: &str, wanted: Option<&Override>) {
        *self.last.lock() = Some(wanted.cloned());
    }

    fn restores(&self) -> bool {
        self.restores
    }
}

fn change(config: &str, number: u64) -> ModelChange {
    let wanted = Some(Override { config: Some(config.to_owned()), ..Override::default() });
    ModelChange { model: MODEL.to_owned(), wanted, implied: false, number }
}

fn entry(change: &ModelChange, revision: u64) -> Entry {
    Entry { key: escape_token(MODEL), value: message::encode(change), revision, at: UnixMicros(1) }
}

/// Lets a process that knows `known` read the store again, which lists `listed`. `meanwhile` is written by another
/// gateway. Returns the change in the store, and the change that `wanted_changed` was called with.
async fn read_again(
    known: &ModelChange,
    listed: Option<&ModelChange>,
    meanwhile: Option<&ModelChange>,
    restores: bool,
) -> (Option<ModelChange>, Option<Option<Override>>) {
    let bus = Arc::new(InProcess::default());
    for change in listed.into_iter().chain(meanwhile) {
        bus.put(Bucket::Models, &escape_token(MODEL), message::encode(change), None, None).await.expect("written");
    }
    let keeper = Arc::new(Keeper { last: parking_lot::Mutex::default(), restores });
    let memory = Memory::default();
    memory.keep(known.clone());
    let (participant, turns) = (keeper.clone(), Turns::default());
    let listener = Listener { name: "follower".to_owned(), bus: bus.clone(), memory, participant, turns };
    let (sender, changes) = mpsc::channel(2);
    for stored in listed.map(|listed| Stored::Put(entry(listed, 1))).into_iter().chain([Stored::Complete]) {
        sender.try_send(stored).expect("there is room");
    }
    drop(sender);
    listener.follow(changes).await;
    let there = bus.get(Bucket::Models, &escape_token(MODEL)).await.expect("in process nothing refuses");
    let told = keeper.last.lock().clone();
    (there.and_then(|entry| ModelChange::read(&entry)), told)
}

#[tokio::test]
async fn a_gateway_writes_again_what_an_emptied_store_has_lost() {
    let known = change("known", 5);
    assert_eq!(read_again(&known, None, None, true).await, (Some(known.clone()), None));
    assert_eq!(read_again(&known, None, None, false).await, (None, None), "a worker does not write");
}

#[tokio::test]
async fn a_gateway_writes_again_what_a_store_that_was_rolled_back_has_lost() {
    let (known, old) = (change("known", 5), change("old", 4));
    assert_eq!(read_again(&known, Some(&old), None, true).await, (Some(known.clone()), None));
    assert_eq!(read_again(&known, Some(&old), None, false).await, (Some(old), None), "a worker stays as it is");
}

#[tokio::test]
async fn a_later_change_is_not_written_over() {
    // A store that was created again begins its revisions again, so only the numbers count here.
    let (known, later) = (change("known", 5), change("later", 6));
    let wanted = Some(later.wanted.clone());
    assert_eq!(read_again(&known, Some(&later), None, true).await, (Some(later.clone()), wanted));
    assert_eq!(read_again(&known, None, Some(&later), true).await, (Some(later), None), "its watch brings it next");
    assert_eq!(read_again(&known, Some(&known), None, true).await, (Some(known.clone()), None), "nothing was lost");
}

#[tokio::test]
async fn of_two_changes_with_one_number_the_store_s_holds() {
    let (known, other) = (change("known", 5), change("other", 5));
    let wanted = Some(other.wanted.clone());
    assert_eq!(read_again(&known, Some(&other), None, true).await, (Some(other), wanted));
}
