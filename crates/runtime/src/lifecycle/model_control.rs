//! Model control by request: the commands that gateways send to every process, and the store of their results.
//!
//! A gateway sends a command to all processes on one topic of the bus ([`command`]). Each process with a model
//! repository is a [`Participant`]: it carries the command out if the command concerns it, and answers. When no
//! participant failed, the gateway writes the model's wanted state into a store of the bus ([`write_wanted`]), under one key
//! per model. Every process follows the store, so a process that starts knows which models were loaded by request, and a process
//! that missed a command catches up. [`Participation`] does all of that for one process.
//!
//! Of two changes of a model the later one holds, and the store alone decides which one that is: a gateway overwrites
//! only the change that it has read, and gives its own the next number. The number is part of the change because a
//! store that was emptied begins its revisions again. Gateways write changes again that such a store has lost.
//!
//! Not here: how a worker loads models (`models`), and how a gateway loads ensembles.

mod gather;
mod memory;
mod message;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use trireme_bus::{Bucket, Bus, BusError, Change as Stored, TopicMessage, decode_body};
use trireme_tasks::TaskSet;

use super::turns::Turns;
use message::{Command, ControlReply, TOPIC};

pub use gather::{Outcomes, command};
pub use memory::{Memory, write_wanted};
pub use message::{ModelChange, Outcome, Override};

/// Time between two progress answers of a participant that carries out a command.
const PROGRESS: Duration = Duration::from_secs(2);

/// Time between two log lines of a process that waits for the store.
const SAY_AGAIN: Duration = Duration::from_secs(5);

/// Number of commands that a process carries out, or that wait in it.
const MAX_WAITING: usize = 256;

/// A process that carries out commands.
#[async_trait]
pub trait Participant: Send + Sync + 'static {
    /// Loads the model, or loads it again if its files or its override have changed.
    async fn load(&self, model: &str, with: &Override) -> Outcome;

    /// Stops serving the model.
    async fn unload(&self, model: &str) -> Outcome;

    /// The store has a change: all participants have carried out the command, or it was sent while this process did not
    /// listen.
    async fn wanted_changed(&self, model: &str, wanted: Option<&Override>);

    /// Whether this process writes changes again that the store has lost. Gateways do; workers may not write there.
    fn restores(&self) -> bool {
        false
    }
}

/// A process's part in model control.
pub struct Participation {
    name: String,
    bus: Arc<dyn Bus>,
    memory: Memory,
    changes: mpsc::Receiver<Stored>,
    commands: mpsc::Receiver<TopicMessage>,
}

/// The state that is needed to carry out commands and changes.
struct Listener {
    name: String,
    bus: Arc<dyn Bus>,
    memory: Memory,
    participant: Arc<dyn Participant>,
    /// Commands and changes of one model are carried out one after the other.
    turns: Turns,
}

// === impl Participation ===

impl Participation {
    /// Reads the store and begins to listen. Waits if the store cannot be reached. `name` must be unique among
    /// participants.
    pub fn join(bus: Arc<dyn Bus>, name: String) -> BoxFuture<'static, Result<Participation, BusError>> {
        Box::pin(async move {
            let (mut changes, memory) = (bus.watch(Bucket::Models).await?, Memory::default());
            loop {
                match tokio::time::timeout(SAY_AGAIN, changes.recv()).await {
                    Ok(Some(Stored::Put(entry))) => drop(ModelChange::read(&entry).map(|change| memory.keep(change))),
                    Ok(Some(Stored::Deleted { .. })) => {}
                    Ok(Some(Stored::Complete)) => break,
                    Ok(None) => return Err(BusError::Unreachable("the store of models was closed".to_owned())),
                    Err(_) => {
                        tracing::warn!("the store of models that were loaded by request is not there; waiting for it")
                    }
                }
            }
            let commands = bus.subscribe(TOPIC).await?;
            Ok(Participation { name, bus, memory, changes, commands })
        })
    }

    /// The wanted state of each model, kept up to date.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Carries out commands, and changes in the store, for as long as `tasks` runs.
    pub fn serve(self, participant: Arc<dyn Participant>, tasks: &TaskSet) {
        let Participation { name, bus, memory, changes, mut commands } = self;
        tasks.spawn_until_stop("model control", async move {
            let listener = Listener { name, bus, memory, participant, turns: Turns::default() };
            let mut follow = std::pin::pin!(listener.follow(changes));
            // Commands of one model are carried out in the order in which they arrived.
            let mut waiting = FuturesUnordered::new();
            loop {
                tokio::select! {
                    message = commands.recv() => match message {
                        Some(message) if waiting.len() < MAX_WAITING => waiting.push(listener.hear(message)),
                        Some(message) => {
                            listener.report(&message, Outcome::failed("too many commands wait already")).await;
                        }
                        None => return,
                    },
                    Some(()) = waiting.next() => {}
                    () = &mut follow => return,
                }
            }
        });
    }
}

// === impl Listener ===

impl Listener {
    /// Carries out the changes in the store, from now on.
    async fn follow(&self, mut changes: mpsc::Receiver<Stored>) {
        // Models whose known change has been in the store's listing since its last `Complete`.
        let mut listed = BTreeSet::new();
        // Changes of one model are carried out in the order in which they arrived.
        let mut taking = FuturesUnordered::new();
        loop {
            let stored = tokio::select! {
                stored = changes.recv() => stored,
                Some(()) = taking.next() => continue,
            };
            let Some(stored) = stored else { break };
            match stored {
                Stored::Put(entry) => {
                    let Some(change) = ModelChange::read(&entry) else { continue };
                    match self.memory.get(&change.model) {
                        Some(known) if known == change => drop(listed.insert(change.model)),
                        _ => taking.push(self.take(change)),
                    }
                }
                Stored::Deleted { .. } => {}
                Stored::Complete => {
                    let listed = std::mem::take(&mut listed);
                    if self.participant.restores() {
                        let lost = self.memory.changes().into_iter().filter(|change| !listed.contains(&change.model));
                        for change in lost {
                            memory::restore(self.bus.as_ref(), &change).await;
                        }
                    }
                }
            }
        }
        while taking.next().await.is_some() {}
    }

    /// Carries out a change, unless the process knows a later one. Usually it has done so already, when the command arrived.
    async fn take(&self, change: ModelChange) {
        let _turn = self.turns.of(&change.model).await;
        // The store may have been rolled back.
        if self.memory.number(&change.model) > change.number {
            return;
        }
        self.participant.wanted_changed(&change.model, change.wanted.as_ref()).await;
        self.memory.keep(change);
    }

    /// Carries out a command. Sends a progress answer at once and then at intervals.
    async fn hear(&self, message: TopicMessage) {
        let command: Command = match decode_body(&message.body) {
            Ok(command) => command,
            Err(error) => return tracing::warn!(%error, "ignored a malformed command"),
        };
        let mut work = std::pin::pin!(self.carry_out(&command));
        let mut progress = tokio::time::interval(PROGRESS);
        let outcome = loop {
            tokio::select! {
                biased;
                outcome = &mut work => break outcome,
                _ = progress.tick() => {
                    let working = ControlReply::Working { participant: self.name.clone() };
                    let _ = message.answer(message::encode(&working)).await;
                }
            }
        };
        self.report(&message, outcome).await;
    }

    async fn carry_out(&self, command: &Command) -> Outcome {
        // A change that was sent before the command must be carried out before it; otherwise it would undo the command
        // for a while.
        self.memory.reach(&command.model, command.after).await;
        let _turn = self.turns.of(&command.model).await;
        match &command.wanted {
            Some(with) => self.participant.load(&command.model, with).await,
            None => self.participant.unload(&command.model).await,
        }
    }

    async fn report(&self, message: &TopicMessage, outcome: Outcome) {
        let answer = ControlReply::Ended { participant: self.name.clone(), outcome };
        if let Err(error) = message.answer(message::encode(&answer)).await {
            tracing::warn!(%error, "a command's outcome could not be sent to its gateway");
        }
    }
}

#[cfg(test)]
mod tests;
