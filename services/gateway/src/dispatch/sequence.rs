//! A request of a sequence: it waits for those of its sequence before it at this gateway, takes the states that they left
//! with it through the pipeline, and leaves new ones.
//!
//! The states are in the bus's store, written by compare and swap. Of two gateways that have requests of one sequence at the
//! same time, the one that writes first wins, and the other refuses its request: nothing of it has happened to the sequence.
//!
//! Not here: what a request needs of its sequence (`handlers::sequences`).

use std::time::Duration;

use trireme_bus::{Bus, BusError, KeptStates, Reply, SequenceName, SequenceStates, WorkMessage};
use trireme_inference::{Cause, InferError, Tensor, UnixMicros};

use super::exchange::no_answer;
use super::flight::{Outbox, log_failure};
use super::join::exchange;
use super::order::LinePlace;

/// The part of a sequence in one request: its name, its steps, and whether the request begins or ends it.
#[derive(Debug)]
pub struct Turn {
    /// The sequence.
    pub name: SequenceName,
    /// Whether the request begins the sequence: it takes no states.
    pub start: bool,
    /// Whether it ends the sequence: it leaves no states.
    pub end: bool,
    /// How long the sequence may have been without requests.
    pub max_idle: Duration,
    /// How long the states are kept: the longest pause, and the time that the next request may take.
    pub lapse: Duration,
    /// The steps of the request that belong to the sequence, in their order.
    pub steps: Vec<SequenceStep>,
}

/// A step of a request that belongs to a sequence.
#[derive(Debug)]
pub struct SequenceStep {
    /// Its name within the sequence, the same for every request.
    pub name: String,
    /// Its model.
    pub model: String,
    /// Its states.
    pub states: Vec<StateTensor>,
}

/// The tensors of a state on the way of a request.
#[derive(Debug)]
pub struct StateTensor {
    /// The tensor that the step takes; the name under which the state is kept.
    pub taken: String,
    /// The tensor that the step gives.
    pub given: String,
    /// The model's output that it comes from.
    pub output: String,
}

/// Runs a request in its turn, until its deadline.
pub(super) async fn run(
    outbox: Outbox,
    turn: Turn,
    message: WorkMessage,
    place: LinePlace,
) -> Result<Reply, InferError> {
    place.turn().await?;
    let remaining = message.deadline.remaining(UnixMicros::now()).unwrap_or_default();
    let template = WorkMessage { tensors: Vec::new(), ..message.clone() };
    let outcome = tokio::time::timeout(remaining, turn.run(&outbox, message)).await;
    outcome.unwrap_or_else(|_| {
        let error = InferError::unavailable("Request timeout expired");
        log_failure(&template, &error);
        Err(error)
    })
}

// === impl Turn ===

impl Turn {
    /// The line in which requests of the sequence wait at this gateway.
    pub fn line(&self) -> String {
        format!("sequence {:?} of model '{}'", self.name.id, self.name.model)
    }

    async fn run(&self, outbox: &Outbox, mut message: WorkMessage) -> Result<Reply, InferError> {
        let found = match self.start {
            true => None,
            false => {
                let found = self.find(outbox.bus.as_ref(), message.sent_at).await;
                Some(found.map_err(|error| message.route.describe(error))?)
            }
        };
        let revision = found.as_ref().map(|found| found.revision);
        let mut states = found.map(|found| found.states).unwrap_or_default();
        let mine: Vec<Tensor> = states.tensors.extract_if(.., |state| self.takes(state.name())).collect();
        message.tensors.extend(mine);
        states.request = message.request_id.to_string();
        // It has not waited in a queue so far.
        message.sent_at = UnixMicros::now();
        let mut reply = exchange(outbox, message).next().await.unwrap_or_else(|| Err(no_answer()))?;
        if let Ok(output) = &mut reply.outcome {
            self.collect(&mut output.tensors, &mut states)?;
            self.leave(outbox.bus.as_ref(), states, revision).await?;
        }
        Ok(reply)
    }

    fn takes(&self, name: &str) -> bool {
        self.steps.iter().flat_map(|step| &step.states).any(|state| state.taken == name)
    }

    /// The states that the last request has left. Errors if there are none, or if that was too long before `arrived`.
    async fn find(&self, bus: &dyn Bus, arrived: UnixMicros) -> Result<KeptStates, InferError> {
        let found = bus.sequence(&self.name).await.map_err(|error| self.fault("read", &error))?;
        let in_time = found.filter(|found| arrived.since(found.at) <= self.max_idle);
        let missing = self.steps.iter().find(|step| {
            let begun = |found: &KeptStates| found.states.steps.contains(&step.name);
            !in_time.as_ref().is_some_and(begun)
        });
        match (in_time, missing) {
            (Some(found), None) => Ok(found),
            (_, missing) => {
                let model = missing.map_or(self.name.model.name.as_str(), |step| &step.model);
                Err(InferError::invalid_arg(format!(
                    "inference request for sequence {} to model '{model}' must specify the START flag on the first request of \
                     the sequence",
                    self.name.id
                ))
                .because(Cause::Sequence))
            }
        }
    }

    /// Moves the new states from the answer to `states`.
    fn collect(&self, tensors: &mut Vec<Tensor>, states: &mut SequenceStates) -> Result<(), InferError> {
        for step in &self.steps {
            if !states.steps.contains(&step.name) {
                states.steps.push(step.name.clone());
            }
            for StateTensor { taken, given, output } in &step.states {
                let place = tensors.iter().position(|tensor| tensor.name() == given);
                let place = place.ok_or_else(|| {
                    InferError::internal(format!(
                        "model '{}' gave no output '{output}', which is a state of its sequences",
                        step.model
                    ))
                })?;
                states.tensors.push(tensors.remove(place).renamed(taken.as_str()));
            }
        }
        Ok(())
    }

    /// Leaves the states for the next request, if they are still those that this request took.
    async fn leave(&self, bus: &dyn Bus, states: SequenceStates, expect: Option<u64>) -> Result<(), InferError> {
        let left = match self.end {
            true => bus.end_sequence(&self.name, expect).await,
            false => bus.keep_sequence(&self.name, &states, expect, self.lapse).await.map(drop),
        };
        left.map_err(|error| self.fault("kept", &error))
    }

    fn fault(&self, action: &str, error: &BusError) -> InferError {
        let SequenceName { model, id } = &self.name;
        match error {
            BusError::Conflict { .. } => InferError::unavailable(format!(
                "another request has changed sequence {id} of model '{model}' while this one ran, and this one has changed \
                 nothing: send the next request of a sequence when the last one is answered, or through the same gateway"
            )),
            _ => {
                let text = format!("states of sequence {id} of model '{model}' cannot be {action}: {error}");
                InferError::new(error.code(), text)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use trireme_bus::{InProcess, QueueOptions};
    use trireme_inference::{CorrelationId, ErrorCode, ModelKey};

    use super::*;

    fn turn(end: bool) -> Turn {
        let state = StateTensor { taken: "old".to_owned(), given: "new".to_owned(), output: "OUT".to_owned() };
        let model = ModelKey { name: "m".into(), version: 1 };
        Turn {
            name: SequenceName { model, id: CorrelationId::Number(5) },
            start: false,
            end,
            max_idle: Duration::from_secs(60),
            lapse: Duration::from_secs(120),
            steps: vec![SequenceStep { name: "0/m:1".to_owned(), model: "m".to_owned(), states: vec![state] }],
        }
    }

    fn tensor(name: &str, value: i64) -> Tensor {
        Tensor::from_values(name, [1], vec![value]).unwrap()
    }

    fn states(value: i64) -> SequenceStates {
        SequenceStates { request: "r".to_owned(), steps: vec!["0/m:1".to_owned()], tensors: vec![tensor("old", value)] }
    }

    #[tokio::test]
    async fn states_are_for_requests_that_come_in_time() {
        let (bus, turn) = (InProcess::new(&QueueOptions::default()), turn(false));
        let bus: &dyn Bus = &bus;
        let describe = |error: InferError| (error.code, error.message);
        let missing = "inference request for sequence 5 to model 'm' must specify the START flag on the first request of the \
                       sequence";
        let none = turn.find(bus, UnixMicros::now()).await.unwrap_err();
        assert_eq!(describe(none), (ErrorCode::InvalidArg, missing.to_owned()));
        turn.leave(bus, states(7), None).await.unwrap();
        let found = turn.find(bus, UnixMicros::now()).await.unwrap();
        assert_eq!(found.states, states(7));
        let late = turn.find(bus, found.at.after(Duration::from_secs(61))).await.unwrap_err();
        assert_eq!(describe(late).1, missing);
        // A step that no request of the sequence has run so far.
        let mut other = super::tests::turn(false);
        other.steps[0].name = "1/m:1".to_owned();
        assert_eq!(describe(other.find(bus, UnixMicros::now()).await.unwrap_err()).1, missing);
    }

    #[tokio::test]
    async fn of_two_requests_at_a_time_the_first_one_counts() {
        let bus = InProcess::new(&QueueOptions::default());
        let bus: &dyn Bus = &bus;
        let turn = turn(false);
        turn.leave(bus, states(1), None).await.unwrap();
        let now = UnixMicros::now;
        let revision = Some(turn.find(bus, now()).await.unwrap().revision);
        turn.leave(bus, states(2), revision).await.unwrap();
        for late in [&turn, &super::tests::turn(true)] {
            let error = late.leave(bus, states(3), revision).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::Unavailable);
            assert!(error.message.starts_with("another request has changed sequence 5 of model 'm:1'"), "{error}");
        }
        let kept = turn.find(bus, now()).await.unwrap();
        assert_eq!(kept.states, states(2));
        super::tests::turn(true).leave(bus, states(3), Some(kept.revision)).await.unwrap();
        assert!(turn.find(bus, now()).await.is_err(), "it has ended");
        let second = super::tests::turn(true).leave(bus, states(4), Some(kept.revision)).await.unwrap_err();
        assert!(second.message.starts_with("another request has changed sequence 5"), "{second}");
    }

    #[test]
    fn new_states_leave_the_answer_under_the_names_of_the_old_ones() {
        let mut answer = vec![tensor("new", 1), tensor("OUTPUT", 2)];
        let mut kept = SequenceStates { steps: vec!["9/x:1".to_owned()], ..states(3) };
        kept.tensors = vec![tensor("other", 3)];
        turn(false).collect(&mut answer, &mut kept).unwrap();
        assert_eq!(answer, [tensor("OUTPUT", 2)]);
        assert_eq!(
            (kept.steps.as_slice(), kept.tensors.as_slice()),
            (&["9/x:1".to_owned(), "0/m:1".to_owned()][..], &[tensor("other", 3), tensor("old", 1)][..])
        );
        let error = turn(false).collect(&mut answer, &mut kept).unwrap_err();
        assert_eq!(error.message, "model 'm' gave no output 'OUT', which is a state of its sequences");
    }
}
