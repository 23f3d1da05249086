//! Model control by request: what gateways ask of every process, and what they are told.
//!
//! A gateway puts a command to everybody on one topic of the bus ([`command`]). Each process with a model repository is a
//! [`Participant`]: it carries the command out as far as it is concerned and answers. When nobody failed, the gateway says so,
//! and everybody remembers ([`Memory`]) what is wanted of that model now. Who starts later asks a gateway what it remembers:
//! what was loaded by request lives as long as one process that knows it, and needs no store. [`Control`] is all of that
//! for one process.
//!
//! Not here: how a worker loads models (`models`), what a gateway does with ensembles.

mod gather;
mod message;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use trireme_bus::{Bus, BusError, Connection, Question};

use crate::TaskSet;
use message::{Answer, Command, Recall};

pub use gather::{Answers, command};
pub use message::{Change, Order, Outcome, Override};

/// The topic of commands. Only gateways speak there, where the broker knows who is who.
const TOPIC: &str = "models";

/// The topic of those who ask what is remembered. Only gateways answer there, where the broker knows who is who: whoever is
/// believed here decides what everybody loads.
const RECALL_TOPIC: &str = "recall";

/// The topic on which a gateway that finds no other asks what workers remember.
const RECALL_WORKERS_TOPIC: &str = "recall_workers";

/// How often somebody who carries out a command says that it is still at it.
const PROGRESS: Duration = Duration::from_secs(2);

/// How long a process that starts waits for somebody who remembers.
const RECALL: Duration = Duration::from_secs(1);

/// Commands that may wait in a process while it carries out another.
const MAX_WAITING: usize = 64;

/// A process that may be concerned by commands.
#[async_trait]
pub trait Participant: Send + Sync + 'static {
    /// Loads the model, or loads it anew where its files or its replacement have changed.
    async fn load(&self, model: &str, with: &Override) -> Outcome;

    /// Serves the model no longer.
    async fn unload(&self, model: &str) -> Outcome;

    /// A command was carried out by all, or was while this process did not listen.
    async fn settled(&self, model: &str, wanted: Option<&Override>);
}

/// What is wanted of models that commands were about, by name.
#[derive(Debug, Default)]
pub struct Memory(Mutex<BTreeMap<String, Change>>);

/// Whose part in model control a [`Control`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It is believed by all, and believes workers when there is no other gateway.
    Gateway,
    /// It believes gateways.
    Worker,
}

/// A process's part in model control.
pub struct Control {
    name: String,
    role: Role,
    bus: Arc<dyn Bus>,
    memory: Arc<Memory>,
    commands: mpsc::Receiver<Question>,
    recalls: mpsc::Receiver<Question>,
}

// === impl Memory ===

impl Memory {
    /// Remembers a change, unless a newer one is known. Says whether it was news.
    pub fn keep(&self, model: &str, change: &Change) -> bool {
        let mut changes = self.0.lock();
        let news = is_news(&changes, model, change);
        if news {
            changes.insert(model.to_owned(), change.clone());
        }
        news
    }

    fn is_news(&self, model: &str, change: &Change) -> bool {
        is_news(&self.0.lock(), model, change)
    }

    /// All of it.
    pub fn changes(&self) -> BTreeMap<String, Change> {
        self.0.lock().clone()
    }
}

fn is_news(known: &BTreeMap<String, Change>, model: &str, change: &Change) -> bool {
    known.get(model).is_none_or(|known| known.at < change.at)
}

// === impl Role ===

impl Role {
    fn answers_on(self) -> &'static str {
        match self {
            Role::Gateway => RECALL_TOPIC,
            Role::Worker => RECALL_WORKERS_TOPIC,
        }
    }
}

// === impl Control ===

impl Control {
    /// Learns what the others remember, and begins to listen. `name` is that of no other participant.
    pub async fn join(bus: Arc<dyn Bus>, name: String, role: Role) -> Result<Control, BusError> {
        let memory = Arc::new(Memory::default());
        for (model, change) in recall(bus.as_ref(), &name, role, &memory).await? {
            memory.keep(&model, &change);
        }
        let commands = bus.questions(TOPIC).await?;
        let recalls = bus.questions(role.answers_on()).await?;
        Ok(Control { name, role, bus, memory, commands, recalls })
    }

    /// What was wanted when the process began to listen, and is later.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Carries out commands for as long as `tasks` runs.
    pub fn serve(self, participant: Arc<dyn Participant>, tasks: &TaskSet) {
        let Control { name, role, bus, memory, mut commands, recalls } = self;
        // One change at a time.
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        let listener = Arc::new(Listener { name, memory, participant, turn });
        tasks.spawn("model control answers", answer(recalls, listener.clone(), tasks.stopping().clone()));
        tasks.spawn("model control recall", catch_up(bus, listener.clone(), role, tasks.stopping().clone()));
        let waiting = Arc::new(Semaphore::new(MAX_WAITING));
        let set = tasks.clone();
        tasks.spawn("model control", async move {
            // Closed when the command before has ended.
            let mut last = oneshot::channel().1;
            loop {
                let question = tokio::select! {
                    question = commands.recv() => question,
                    () = set.stopping().cancelled() => return,
                };
                let Some(question) = question else { return };
                let command = match Command::decode(&question.body) {
                    Ok(command) => command,
                    Err(error) => {
                        tracing::warn!(%error, "ignored a malformed command");
                        continue;
                    }
                };
                let Ok(place) = waiting.clone().try_acquire_owned() else {
                    listener.say(&question, Outcome::failed("too many commands wait already")).await;
                    continue;
                };
                let (listener, stopping) = (listener.clone(), set.stopping().clone());
                let (ended, next) = oneshot::channel::<()>();
                let before = std::mem::replace(&mut last, next);
                set.spawn("model command", async move {
                    let _held = (place, ended);
                    tokio::select! {
                        () = listener.hear(question, command, before) => {}
                        () = stopping.cancelled() => {}
                    }
                });
            }
        });
    }
}

/// Tells who asks what is remembered.
async fn answer(mut recalls: mpsc::Receiver<Question>, listener: Arc<Listener>, stopping: CancellationToken) {
    loop {
        let question = tokio::select! {
            question = recalls.recv() => question,
            () = stopping.cancelled() => return,
        };
        let Some(question) = question else { return };
        match Recall::decode(&question.body) {
            // One's own question.
            Ok(recall) if recall.asked_by == listener.name => continue,
            Ok(_) => listener.tell(&question).await,
            Err(error) => tracing::warn!(%error, "ignored a malformed question"),
        }
    }
}

/// Asks for what was missed: between recalling and listening, and whenever the connection was lost.
async fn catch_up(bus: Arc<dyn Bus>, listener: Arc<Listener>, role: Role, stopping: CancellationToken) {
    let mut connection = bus.connection();
    loop {
        let up = matches!(*connection.borrow_and_update(), Connection::Up(_));
        let missed = match up {
            true => recall(bus.as_ref(), &listener.name, role, &listener.memory).await.unwrap_or_default(),
            false => Vec::new(),
        };
        for (model, change) in missed {
            listener.take(&model, &change).await;
        }
        tokio::select! {
            changed = connection.changed() => if changed.is_err() { return },
            () = stopping.cancelled() => return,
        }
    }
}

/// What hearing a command takes.
struct Listener {
    name: String,
    memory: Arc<Memory>,
    participant: Arc<dyn Participant>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

// === impl Listener ===

impl Listener {
    /// A change that was carried out by all.
    async fn take(&self, model: &str, change: &Change) {
        let _turn = self.turn.lock().await;
        if self.memory.keep(model, change) {
            self.participant.settled(model, change.wanted.as_ref()).await;
        }
    }

    /// Answers with everything that is remembered.
    async fn tell(&self, question: &Question) {
        for (model, change) in self.memory.changes() {
            let _ = question.answer(Answer::Remembered { model, change }.encode()).await;
        }
        let _ = question.answer(Answer::NothingMore.encode()).await;
    }

    /// Carries out a command when the one `before` has ended.
    async fn hear(&self, question: Question, command: Command, before: oneshot::Receiver<()>) {
        let outcome = match &command {
            Command::Settled { model, change } => {
                let _ = before.await;
                self.take(model, change).await;
                return;
            }
            Command::Load { model, with } => {
                let loading = async {
                    let _ = before.await;
                    let _turn = self.turn.lock().await;
                    self.participant.load(model, with).await
                };
                self.meanwhile(&question, loading).await
            }
            Command::Unload { model } => {
                let unloading = async {
                    let _ = before.await;
                    let _turn = self.turn.lock().await;
                    self.participant.unload(model).await
                };
                self.meanwhile(&question, unloading).await
            }
        };
        self.say(&question, outcome).await;
    }

    /// Waits for the outcome and says now and then that it does, beginning at once.
    async fn meanwhile(&self, question: &Question, work: impl Future<Output = Outcome>) -> Outcome {
        let mut work = std::pin::pin!(work);
        loop {
            let working = Answer::Working { participant: self.name.clone() };
            let _ = question.answer(working.encode()).await;
            if let Ok(outcome) = tokio::time::timeout(PROGRESS, &mut work).await {
                return outcome;
            }
        }
    }

    async fn say(&self, question: &Question, outcome: Outcome) {
        let answer = Answer::Ended { participant: self.name.clone(), outcome };
        if let Err(error) = question.answer(answer.encode()).await {
            tracing::warn!(%error, "a command's outcome could not be sent to its gateway");
        }
    }
}

/// Tells everybody that a command was carried out, and what is wanted of the model now.
pub async fn settle(bus: &dyn Bus, model: &str, change: &Change) -> Result<(), BusError> {
    // There is no answer to wait for: who misses it asks.
    bus.ask(TOPIC, Command::Settled { model: model.to_owned(), change: change.clone() }.encode()).await.map(drop)
}

/// What the others remember; nothing where there are none. What a gateway has from workers it tells everybody: those who
/// started while there was no gateway know nothing of it.
async fn recall(bus: &dyn Bus, asked_by: &str, role: Role, memory: &Memory) -> Result<Vec<(String, Change)>, BusError> {
    if let Some(remembered) = ask(bus, RECALL_TOPIC, asked_by, false).await? {
        return Ok(remembered);
    }
    if role == Role::Worker {
        return Ok(Vec::new());
    }
    let remembered = ask(bus, RECALL_WORKERS_TOPIC, asked_by, true).await?.unwrap_or_default();
    for (model, change) in remembered.iter().filter(|(model, change)| memory.is_news(model, change)) {
        settle(bus, model, change).await?;
    }
    Ok(remembered)
}

/// What those who answer on a topic remember: `all` of them, or the first. `None`: nobody answers.
async fn ask(bus: &dyn Bus, topic: &str, asked_by: &str, all: bool) -> Result<Option<Vec<(String, Change)>>, BusError> {
    let mut answers = bus.ask(topic, Recall { asked_by: asked_by.to_owned() }.encode()).await?;
    let (mut remembered, mut answered) = (Vec::new(), false);
    let until = tokio::time::Instant::now() + RECALL;
    while let Ok(Some(answer)) = tokio::time::timeout_at(until, answers.recv()).await {
        match Answer::decode(&answer) {
            Ok(Answer::Remembered { model, change }) => remembered.push((model, change)),
            Ok(Answer::NothingMore) => {
                answered = true;
                if !all {
                    break;
                }
            }
            Ok(Answer::Working { .. } | Answer::Ended { .. }) => {}
            Err(error) => tracing::warn!(%error, "ignored a malformed answer"),
        }
    }
    // One that has not said everything is believed what it said.
    Ok((answered || !remembered.is_empty()).then_some(remembered))
}
