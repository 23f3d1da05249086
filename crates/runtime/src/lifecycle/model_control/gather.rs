//! Sends a command to all participants and gathers their answers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;
use trireme_bus::{Bus, BusError, decode_body};

use super::memory::Memory;
use super::message::{self, Command, ControlReply, Outcome, Override, TOPIC};

/// How long to wait for the first answer of workers that the registry does not name.
const MUSTER: Duration = Duration::from_millis(300);

/// The same for a load that concerns no participant yet: a worker that hosts nothing yet may be busy.
const LAST_CALL: Duration = Duration::from_secs(2);

/// How long a participant may be silent before it counts as gone: three times the interval of progress answers.
const SILENCE: Duration = Duration::from_secs(6);

/// How a command ended for each participant that answered, by its name.
pub type Outcomes = BTreeMap<String, Outcome>;

/// Tells all participants to load the model as `wanted`, or to unload it. Waits for the participants in `expected`, and
/// for others that answer. A participant that falls silent has failed if it had begun; otherwise it is left out. A working one is waited for:
/// its loads have a limit.
pub fn command<'a>(
    bus: &'a dyn Bus,
    memory: &'a Memory,
    model: &'a str,
    wanted: Option<&'a Override>,
    expected: &'a BTreeSet<String>,
) -> BoxFuture<'a, Result<Outcomes, BusError>> {
    Box::pin(async move {
        let command = Command { model: model.to_owned(), wanted: wanted.cloned(), after: memory.number(model) };
        let mut answers = bus.request(TOPIC, message::encode(&command)).await?;
        let last_call = if wanted.is_some() { LAST_CALL } else { MUSTER };
        let mut roll = Roll::new(expected, last_call, Instant::now());
        while let Some(until) = roll.wait_until() {
            match tokio::time::timeout_at(until, answers.recv()).await {
                Ok(Some(answer)) => match decode_body(&answer) {
                    Ok(ControlReply::Working { participant }) => roll.working(participant, Instant::now()),
                    Ok(ControlReply::Ended { participant, outcome }) => roll.ended(participant, outcome),
                    Err(error) => tracing::warn!(%error, "ignored a malformed answer"),
                },
                // All participants that got the command have answered, or there is no participant.
                Ok(None) => break,
                Err(_) => roll.expire(Instant::now()),
            }
        }
        Ok(roll.close())
    })
}

/// The participants' answers so far. Pure: time is passed in.
struct Roll {
    begun: Instant,
    /// How long unexpected participants may take while the command concerns no participant.
    last_call: Duration,
    mustered: bool,
    /// Participants that have not ended: since when they are silent, and whether they have begun.
    open: BTreeMap<String, (Instant, bool)>,
    ended: Outcomes,
}

// === impl Roll ===

impl Roll {
    fn new(expected: &BTreeSet<String>, last_call: Duration, now: Instant) -> Roll {
        let open = expected.iter().map(|name| (name.clone(), (now, false))).collect();
        Roll { begun: now, last_call, mustered: false, open, ended: Outcomes::new() }
    }

    /// Until when to wait for the next answer; `None`: no longer.
    fn wait_until(&self) -> Option<Instant> {
        let silence = self.open.values().map(|(since, _)| *since + SILENCE).min();
        let muster = (!self.mustered).then_some(self.begun + self.muster());
        silence.into_iter().chain(muster).min()
    }

    fn muster(&self) -> Duration {
        match self.ended.values().all(|outcome| *outcome == Outcome::NotMine) {
            true => self.last_call,
            false => MUSTER,
        }
    }

    fn working(&mut self, participant: String, now: Instant) {
        if !self.ended.contains_key(&participant) {
            self.open.insert(participant, (now, true));
        }
    }

    fn ended(&mut self, participant: String, outcome: Outcome) {
        self.open.remove(&participant);
        self.ended.insert(participant, outcome);
    }

    /// Applies the limits that have passed.
    fn expire(&mut self, now: Instant) {
        self.mustered |= now >= self.begun + self.muster();
        let (gone, open) =
            std::mem::take(&mut self.open).into_iter().partition(|(_, (since, _))| now >= *since + SILENCE);
        self.open = open;
        let gone: BTreeMap<String, (Instant, bool)> = gone;
        for (participant, (_, begun)) in gone {
            match begun {
                true => drop(self.ended.insert(participant.clone(), lost(&participant))),
                false => {
                    tracing::warn!(participant, "a worker did not hear a command; it reads the store when it is back")
                }
            }
        }
    }

    /// The answers so far. Participants that had begun and can no longer answer have failed.
    fn close(mut self) -> Outcomes {
        for (participant, (_, begun)) in std::mem::take(&mut self.open) {
            if begun {
                self.ended.insert(participant.clone(), lost(&participant));
            }
        }
        self.ended
    }
}

fn lost(participant: &str) -> Outcome {
    Outcome::failed(format!("'{participant}' stopped answering"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn those_who_are_expected_are_waited_for() {
        let start = Instant::now();
        let mut roll = Roll::new(&names(&["a", "b"]), LAST_CALL, start);
        roll.ended("a".to_owned(), Outcome::Done(Vec::new()));
        roll.expire(start + MUSTER);
        assert_eq!(roll.wait_until(), Some(start + SILENCE), "b is missing");
        roll.ended("b".to_owned(), Outcome::NotMine);
        assert_eq!(roll.wait_until(), None);
        assert_eq!(
            roll.close(),
            Outcomes::from([("a".to_owned(), Outcome::Done(Vec::new())), ("b".to_owned(), Outcome::NotMine)])
        );
    }

    #[test]
    fn strangers_have_time_to_say_that_they_are_there() {
        let start = Instant::now();
        let mut roll = Roll::new(&names(&[]), MUSTER, start);
        assert_eq!(roll.wait_until(), Some(start + MUSTER));
        roll.working("stranger".to_owned(), start);
        roll.expire(start + MUSTER);
        assert_eq!(roll.wait_until(), Some(start + SILENCE));
        roll.working("stranger".to_owned(), start + SILENCE);
        assert_eq!(roll.wait_until(), Some(start + SILENCE * 2));
    }

    #[test]
    fn a_load_that_concerns_nobody_waits_longer_for_strangers() {
        let start = Instant::now();
        let mut roll = Roll::new(&names(&["a"]), LAST_CALL, start);
        roll.ended("a".to_owned(), Outcome::NotMine);
        roll.expire(start + MUSTER);
        assert_eq!(roll.wait_until(), Some(start + LAST_CALL));
        roll.ended("stranger".to_owned(), Outcome::Done(Vec::new()));
        assert_eq!(roll.wait_until(), Some(start + MUSTER), "others have had their time");
        roll.expire(start + MUSTER);
        assert_eq!(roll.wait_until(), None);
    }

    #[test]
    fn who_falls_silent_has_failed_and_who_never_spoke_is_left_out() {
        let start = Instant::now();
        let mut roll = Roll::new(&names(&["dead", "deaf"]), MUSTER, start);
        roll.working("dead".to_owned(), start);
        roll.expire(start + SILENCE);
        assert_eq!(roll.wait_until(), None);
        let answers = roll.close();
        assert_eq!(answers.keys().collect::<Vec<_>>(), ["dead"]);
        assert!(matches!(&answers["dead"], Outcome::Failed { why, .. } if why.contains("stopped answering")));
    }
}
