//! The states of sequences, kept between their requests. A gateway reads them before a request and writes them after it, if
//! no other gateway has written them meanwhile. So a sequence outlives workers and gateways.
//!
//! Not here: which tensors are states, and when a sequence is over (`gateway`).

use std::time::Duration;

use bytes::Bytes;
use trireme_inference::{CorrelationId, ModelKey, UnixMicros};

use crate::envelope::{decode_states, encode_states};
use crate::{Bucket, Bus, BusError, SequenceStates, escape_token};

/// The name of a sequence: the model version that its client requests, and its correlation id.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trireme_bus::BusError> {
/// # let model = trireme_inference::ModelKey { name: "encoder".into(), version: 1 };
/// # use std::time::Duration;
/// # use trireme_inference::CorrelationId;
/// use trireme_bus::{Bus, InProcess, SequenceName, SequenceStates};
///
/// let bus: &dyn Bus = &InProcess::default();
/// let name = SequenceName { model, id: CorrelationId::Number(42) };
/// let states = SequenceStates { request: "request-1".to_owned(), ..SequenceStates::default() };
/// let revision = bus.keep_sequence(&name, &states, Some(0), Duration::from_secs(60)).await?;
/// assert!(bus.sequence(&name).await?.is_some_and(|kept| kept.states == states));
///
/// bus.end_sequence(&name, Some(revision)).await?;
/// assert!(bus.sequence(&name).await?.is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceName {
    /// The model version.
    pub model: ModelKey,
    /// The correlation id.
    pub id: CorrelationId,
}

/// The states of a sequence in their store.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptStates {
    /// The states.
    pub states: SequenceStates,
    /// Their revision.
    pub revision: u64,
    /// When they were written, by the clock of the bus.
    pub at: UnixMicros,
}

// === impl SequenceName ===

impl SequenceName {
    fn key(&self) -> String {
        let id = match &self.id {
            CorrelationId::Number(id) => id.to_string(),
            // A text of digits is no number.
            CorrelationId::Text(id) => format!("_{}", escape_token(id)),
        };
        format!("{}.{}.{id}", escape_token(&self.model.name), self.model.version)
    }
}

impl dyn Bus + '_ {
    /// The states of a sequence. `None` if the sequence has not begun, has ended, or has lapsed.
    pub async fn sequence(&self, name: &SequenceName) -> Result<Option<KeptStates>, BusError> {
        let Some(entry) = self.get(Bucket::Sequences, &name.key()).await? else { return Ok(None) };
        let states = decode_states(&entry.value)?;
        Ok(Some(KeptStates { states, revision: entry.revision, at: entry.at }))
    }

    /// Keeps the states of a sequence for `lapse`. With `expect` it keeps them only if the present ones have that revision,
    /// and otherwise returns [`BusError::Conflict`].
    pub async fn keep_sequence(
        &self,
        name: &SequenceName,
        states: &SequenceStates,
        expect: Option<u64>,
        lapse: Duration,
    ) -> Result<u64, BusError> {
        let value: Bytes = encode_states(states)?;
        self.put(Bucket::Sequences, &name.key(), value, expect, Some(lapse)).await
    }

    /// Removes the states of a sequence that has ended, with `expect` as in `keep_sequence`: if another request
    /// has ended the sequence meanwhile, that is [`BusError::Conflict`], too.
    pub async fn end_sequence(&self, name: &SequenceName, expect: Option<u64>) -> Result<(), BusError> {
        let key = name.key();
        match self.delete(Bucket::Sequences, &key, expect).await? {
            false if expect.is_some() => Err(BusError::Conflict { key }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use trireme_inference::Tensor;

    use super::*;
    use crate::{InProcess, QueueOptions};

    #[tokio::test]
    async fn states_are_kept_by_model_version_and_id() {
        let bus = InProcess::new(&QueueOptions::default());
        let bus: &dyn Bus = &bus;
        let name = |model: &str, version, id: CorrelationId| SequenceName {
            model: ModelKey { name: model.into(), version },
            id,
        };
        let (number, text) = (CorrelationId::Number(5), CorrelationId::Text("5".to_owned()));
        let names = [
            name("m", 1, number.clone()),
            name("m", 1, text),
            name("m", 2, number.clone()),
            name("m.1", 1, number),
            name("m", 1, CorrelationId::Text("a.b *".to_owned())),
        ];
        for (index, name) in names.iter().enumerate() {
            let tensor = Tensor::from_values("state", [1], vec![index as i64]).unwrap();
            let states =
                SequenceStates { request: "r".to_owned(), steps: vec![index.to_string()], tensors: vec![tensor] };
            bus.keep_sequence(name, &states, Some(0), Duration::from_secs(60)).await.unwrap();
        }
        for (index, name) in names.iter().enumerate() {
            let kept = bus.sequence(name).await.unwrap().unwrap();
            assert_eq!((kept.states.request.as_str(), &*kept.states.steps), ("r", &[index.to_string()][..]));
            assert_eq!(*kept.states.tensors[0].values::<i64>().unwrap(), [index as i64]);
            bus.end_sequence(name, Some(kept.revision)).await.unwrap();
            assert_eq!(bus.sequence(name).await.unwrap(), None);
            let second = bus.end_sequence(name, Some(kept.revision)).await;
            assert!(matches!(second, Err(BusError::Conflict { .. })), "{second:?}");
            bus.end_sequence(name, None).await.unwrap();
        }
    }
}
