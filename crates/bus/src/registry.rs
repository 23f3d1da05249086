//! Which worker hosts which model version, and which processes are alive.
//!
//! A worker writes an entry for each model version it hosts, when that entry changes. Separately, each process sends a
//! heartbeat on a topic every [`Heartbeat::PERIOD`], for all its entries together. An entry counts for as long as
//! heartbeats of its worker arrive; the reader of the entries decides that (the gateway's `registry`).
//!
//! A heartbeat has the number of the process's entries and the sum of their `since`. A reader with another number or
//! sum asks the process to write its entries again. This repairs a store that was emptied or rolled back.

use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use trireme_inference::{Equivalence, ModelKey, UnixMicros};

use crate::envelope::MAX_NAME;
use crate::{Bucket, Bus, BusError, Change, Entry, TopicMessage, TopicValues, escape_token};

/// The topic of heartbeats.
const HEARTBEAT: &str = "heartbeat";

/// The topic that asks a process to write its entries again.
const ANNOUNCE: &str = "announce";

/// The topic of workers' questions whether they may serve their content; gateways share them.
const CONTENT: &str = "content";

/// The topic on which gateways say which content is chosen.
const CHOSEN: &str = "content_chosen";

/// The last token of the key of a choice. No name is escaped to it.
const CHOICE: &str = "=content";

/// How long a worker waits for a gateway's verdict.
const VERDICT_LIMIT: Duration = Duration::from_secs(5);

/// One worker's entry for one model version it hosts. It is JSON in the bucket, so that people can read it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trireme_bus::BusError> {
/// use trireme_bus::{Bus, InProcess, ModelState, RegistryEvent, WorkerEntry};
/// use trireme_inference::{ModelKey, UnixMicros};
///
/// let entry = WorkerEntry {
///     worker: "model-1".to_owned(), service: "model".to_owned(), host: "host-a".to_owned(),
///     model: ModelKey { name: "encoder".into(), version: 1 }, state: ModelState::Ready,
///     config: "{}".to_owned(), capacity: 64, bulk: false, content: None, since: UnixMicros::now(),
/// };
/// let bus: &dyn Bus = &InProcess::default();
/// let mut events = bus.watch_registry().await?;
/// assert_eq!(events.recv().await, Some(RegistryEvent::Complete));
/// bus.announce(&entry).await?;
/// assert!(matches!(events.recv().await, Some(RegistryEvent::Put(announced, _)) if announced == entry));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerEntry {
    /// The worker: unique among all processes.
    pub worker: String,
    /// The name of its service: `tokenizer`, `model`, `postprocess`.
    pub service: String,
    /// The host it runs on.
    pub host: String,
    /// The model version.
    pub model: ModelKey,
    /// Whether it takes work.
    pub state: ModelState,
    /// The model's configuration after auto-completion, as protobuf JSON.
    pub config: String,
    /// Requests that it accepts at a time; with a queue policy, as many as the limits of the policy allow for.
    pub capacity: usize,
    /// Whether it takes requests of the bulk lane.
    #[serde(default)]
    pub bulk: bool,
    /// The content that it serves, once that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// When the entry's content changed last. Of two entries with the same key, the later one counts.
    pub since: UnixMicros,
}

/// The content of a model version at a worker, from which its answers come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// The unit that changes as a whole: the model's own name, or the name of its model folder.
    pub of: String,
    /// A digest of the files.
    pub digest: String,
    /// The space of the version's answers: a digest of what decides each row, whatever the form of the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<Box<str>>,
    /// The spaces that the whole answers of the version's model folder were measured to equal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub equivalences: Vec<Equivalence>,
    /// When the newest of the files was changed, in seconds since 1970, as the worker's host has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_at: Option<u64>,
    /// The number of the choice for another content to which the worker has yielded: it has no requests of the version any
    /// more, and takes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub yields_to: Option<u64>,
}

/// The content that is served of a version, where workers have several. It is in the registry, beside their entries.
///
/// Of two gateways that choose at the same time, one succeeds:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trireme_bus::BusError> {
/// # use trireme_bus::{Bus, BusError, ContentChoice, InProcess};
/// let bus: &dyn Bus = &InProcess::default();
/// let choice = ContentChoice { of: "encoder".to_owned(), version: 1, digest: "5f0c".to_owned(), number: 1 };
/// bus.choose_content(&choice, 0).await?;
/// let other = ContentChoice { digest: "a1b2".to_owned(), ..choice };
/// assert!(matches!(bus.choose_content(&other, 0).await, Err(BusError::Conflict { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentChoice {
    /// As in [`Content`].
    pub of: String,
    /// The version.
    pub version: i64,
    /// The digest of the content that is served.
    pub digest: String,
    /// Grows with each choice.
    pub number: u64,
}

/// A worker's question whether it may serve the content in its entry.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trireme_bus::BusError> {
/// # use trireme_bus::{Bus, ContentQuestion, InProcess, Verdict};
/// # use trireme_inference::UnixMicros;
/// let bus: &dyn Bus = &InProcess::default();
/// let mut questions = bus.content_questions().await?;
/// let question = ContentQuestion { key: "encoder.1.model-1".to_owned(), since: UnixMicros::now(), switch: false };
/// let gateway = async {
///     let asked = questions.recv().await.expect("the worker asks");
///     assert_eq!(asked.about_content(), Some(question.clone()));
///     asked.pass_verdict(Some(&Verdict::Serve)).await
/// };
/// let (verdict, passed) = tokio::join!(bus.ask_verdict(&question), gateway);
/// assert_eq!((verdict?, passed?), (Some(Verdict::Serve), ()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentQuestion {
    /// The key of the entry.
    pub key: String,
    /// The entry's `since`.
    pub since: UnixMicros,
    /// Whether its content is to be chosen although live workers have the one that is served.
    pub switch: bool,
}

/// A gateway's answer to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE", tag = "verdict")]
pub enum Verdict {
    /// The worker serves the version.
    Serve,
    /// The worker's content is chosen, but others have not finished yet.
    Wait {
        /// The workers that have not finished.
        reason: String,
    },
    /// Another content is served: the worker finishes its requests and takes no more.
    Yield {
        /// The number of the choice.
        number: u64,
        /// Which content, and who serves it.
        reason: String,
    },
}

/// The state of a model version at a worker, with Triton's names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE", tag = "state", content = "reason")]
pub enum ModelState {
    /// Takes work.
    Ready,
    /// The worker loads the model for the first time; the text names the present part of the load. Short loads are not announced.
    Loading(String),
    /// Takes none just now, and why, but will again: requests wait.
    Recovering(String),
    /// Draining: takes no more work.
    Unloading,
    /// The model could not be loaded, with the reason.
    Unavailable(String),
}

/// Reports that a process is alive.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trireme_bus::BusError> {
/// # use trireme_bus::{Bus, Heartbeat, InProcess};
/// # use trireme_inference::UnixMicros;
/// let bus: &dyn Bus = &InProcess::default();
/// let mut heartbeats = bus.heartbeats().await?;
/// let (process, started) = ("gateway-1".to_owned(), UnixMicros::now());
/// let heartbeat =
///     Heartbeat { process, started, number: 1, entries: 0, since_sum: 0, in_flight: Some(3), clock_offset_us: 0 };
/// bus.beat(&heartbeat).await?;
/// assert_eq!(heartbeats.recv().await, Some(heartbeat));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The process: a worker's or gateway's name.
    pub process: String,
    /// When the process started. A process that starts again under the same name has another time.
    pub started: UnixMicros,
    /// Grows with each heartbeat of the process.
    pub number: u64,
    /// How many entries the process has in the registry.
    pub entries: u32,
    /// The sum of their `since`, wrapping around. A reader with another sum has other entries.
    pub since_sum: u64,
    /// Requests in flight, if a gateway is in the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// Microseconds by which the process's own clock is behind the broker's; negative if it is ahead.
    pub clock_offset_us: i64,
}

/// A change of the registry.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "nearly every event is an entry, and none is kept")]
pub enum RegistryEvent {
    /// An entry was written, or existed when the watch began; with its revision in the store.
    Put(WorkerEntry, u64),
    /// A content was chosen, or had been when the watch began; with the choice's revision in the store.
    Chosen(ContentChoice, u64),
    /// The entry under this key was deleted.
    Delete(String),
    /// All entries that existed when the watch began have been sent.
    Complete,
}

/// The changes of the registry from now on, after the entries that it has.
pub struct RegistryEvents(mpsc::Receiver<Change>);

// === impl Heartbeat ===

impl Heartbeat {
    /// How often a process sends a heartbeat.
    pub const PERIOD: Duration = Duration::from_secs(3);

    /// A process without a heartbeat for this time is gone or unreachable.
    pub const TIME_TO_LIVE: Duration = Duration::from_secs(8);
}

// === impl WorkerEntry ===

impl WorkerEntry {
    /// The entry's name in the registry.
    pub fn key(&self) -> String {
        format!("{}.{}.{}", escape_token(&self.model.name), self.model.version, escape_token(&self.worker))
    }

    /// Reads the entry under a key. The entry has to match the key, because the broker's permissions limit which keys a
    /// stage may write, not which entries.
    fn read(Entry { key, value, .. }: &Entry) -> Result<WorkerEntry, String> {
        let entry: WorkerEntry = serde_json::from_slice(value).map_err(|error| error.to_string())?;
        if entry.key() != *key {
            return Err(format!("it is of model '{}' and worker '{}'", entry.model, entry.worker));
        }
        let longest = [entry.model.name.len(), entry.worker.len()].into_iter().max().unwrap_or_default();
        if longest > MAX_NAME {
            return Err(format!("it holds a name of {longest} bytes, expected {MAX_NAME} at most"));
        }
        Ok(entry)
    }
}

// === impl RegistryEvent ===

impl RegistryEvent {
    fn read(entry: &Entry) -> Result<RegistryEvent, String> {
        match entry.key.rsplit_once('.') {
            Some((_, CHOICE)) => Ok(RegistryEvent::Chosen(ContentChoice::read(entry)?, entry.revision)),
            _ => Ok(RegistryEvent::Put(WorkerEntry::read(entry)?, entry.revision)),
        }
    }
}

// === impl RegistryEvents ===

impl RegistryEvents {
    /// The next event; `None` when the bus is closed. Malformed entries are logged and ignored. Cancel safe.
    pub async fn recv(&mut self) -> Option<RegistryEvent> {
        loop {
            match self.0.recv().await? {
                Change::Put(entry) => match RegistryEvent::read(&entry) {
                    Ok(event) => return Some(event),
                    Err(error) => tracing::warn!(key = entry.key, error, "ignored a malformed registry entry"),
                },
                Change::Deleted { key, .. } => return Some(RegistryEvent::Delete(key)),
                Change::Complete => return Some(RegistryEvent::Complete),
            }
        }
    }
}

// === impl TopicMessage ===

impl TopicMessage {
    /// Reads a worker's question about its content.
    pub fn about_content(&self) -> Option<ContentQuestion> {
        serde_json::from_slice(&self.body).ok()
    }

    /// Answers it; `None`: it cannot be said yet.
    pub async fn pass_verdict(&self, verdict: Option<&Verdict>) -> Result<(), BusError> {
        self.answer(to_json(&verdict)).await
    }
}

// === impl ContentChoice ===

impl ContentChoice {
    fn key(&self) -> String {
        format!("{}.{}.{CHOICE}", escape_token(&self.of), self.version)
    }

    fn read(Entry { key, value, .. }: &Entry) -> Result<ContentChoice, String> {
        let choice: ContentChoice = serde_json::from_slice(value).map_err(|error| error.to_string())?;
        match choice.key() == *key && choice.of.len() <= MAX_NAME {
            true => Ok(choice),
            false => Err(format!("it is of '{}' version {}", choice.of, choice.version)),
        }
    }
}

impl dyn Bus + '_ {
    /// Chooses a content over the choice with this revision; 0 is none. It is [`BusError::Conflict`] if there is another.
    pub async fn choose_content(&self, choice: &ContentChoice, revision: u64) -> Result<u64, BusError> {
        self.put(Bucket::Registry, &choice.key(), to_json(choice), Some(revision), None).await
    }

    /// The choice that the store has in place of `choice`, with its revision.
    pub async fn stored_choice(&self, choice: &ContentChoice) -> Result<Option<(ContentChoice, u64)>, BusError> {
        let stored = self.get(Bucket::Registry, &choice.key()).await?;
        Ok(stored.and_then(|stored| Some((ContentChoice::read(&stored).ok()?, stored.revision))))
    }

    /// Asks the gateways whether a worker may serve its content. `None`: no gateway listens to such questions.
    pub async fn ask_verdict(&self, question: &ContentQuestion) -> Result<Option<Verdict>, BusError> {
        let mut answers = self.request(CONTENT, to_json(question)).await?;
        match tokio::time::timeout(VERDICT_LIMIT, answers.recv()).await {
            Ok(None) => Ok(None),
            Ok(Some(answer)) => serde_json::from_slice(&answer)
                .map(Some)
                .map_err(|_| BusError::Unreachable("a gateway cannot say yet which content is served".to_owned())),
            Err(_) => {
                let reason = format!("no gateway has answered on topic '{CONTENT}' whether these files are served");
                Err(BusError::Unreachable(reason))
            }
        }
    }

    /// The questions of workers, which gateways share.
    pub async fn content_questions(&self) -> Result<mpsc::Receiver<TopicMessage>, BusError> {
        self.queue_subscribe(CONTENT).await
    }

    /// Says to all workers which content is chosen. Best effort.
    pub async fn say_chosen(&self, choice: &ContentChoice) -> Result<(), BusError> {
        self.publish_to(CHOSEN, to_json(choice)).await
    }

    /// The choices of contents that gateways announce.
    pub async fn chosen_contents(&self) -> Result<TopicValues<ContentChoice>, BusError> {
        Ok(TopicValues::new(self.subscribe(CHOSEN).await?, "choice of a content", |body| {
            from_json(body).filter(|choice: &ContentChoice| choice.of.len() <= MAX_NAME)
        }))
    }

    /// Writes a worker's entry.
    pub async fn announce(&self, entry: &WorkerEntry) -> Result<(), BusError> {
        let value = serde_json::to_vec(entry)
            .map_err(|error| BusError::Refused { action: "announcing a worker", reason: error.to_string() })?;
        self.put(Bucket::Registry, &entry.key(), value.into(), None, None).await.map(drop)
    }

    /// Deletes the entry under a key.
    pub async fn withdraw(&self, key: &str) -> Result<(), BusError> {
        self.delete(Bucket::Registry, key, None).await.map(drop)
    }

    /// Deletes the entry of a worker that is gone, if its revision is `revision`, or any revision if `revision` is
    /// `None`. If there is another entry now, returns it and its revision.
    pub async fn withdraw_for(&self, key: &str, revision: Option<u64>) -> Result<Option<(WorkerEntry, u64)>, BusError> {
        let revision = match revision {
            Some(revision) => revision,
            None => match self.get(Bucket::Registry, key).await? {
                Some(entry) => entry.revision,
                None => return Ok(None),
            },
        };
        match self.delete(Bucket::Registry, key, Some(revision)).await {
            Ok(_) => Ok(None),
            Err(conflict @ BusError::Conflict { .. }) => match self.get(Bucket::Registry, key).await? {
                Some(entry) => {
                    WorkerEntry::read(&entry).map(|worker| Some((worker, entry.revision))).map_err(|_| conflict)
                }
                None => Ok(None),
            },
            Err(error) => Err(error),
        }
    }

    /// Watches the registry: all its entries, then [`RegistryEvent::Complete`], then every change. Entries may come
    /// again after the connection to the bus was lost.
    pub async fn watch_registry(&self) -> Result<RegistryEvents, BusError> {
        Ok(RegistryEvents(self.watch(Bucket::Registry).await?))
    }

    /// Sends a heartbeat. Best effort: the next one follows soon.
    pub async fn beat(&self, heartbeat: &Heartbeat) -> Result<(), BusError> {
        self.publish_to(HEARTBEAT, to_json(heartbeat)).await
    }

    /// The heartbeats of all processes, this one included.
    pub async fn heartbeats(&self) -> Result<TopicValues<Heartbeat>, BusError> {
        Ok(TopicValues::new(self.subscribe(HEARTBEAT).await?, "heartbeat", |body| {
            from_json(body).filter(|heartbeat: &Heartbeat| heartbeat.process.len() <= MAX_NAME)
        }))
    }

    /// Asks a process to write its registry entries again. Best effort.
    pub async fn ask_to_announce(&self, process: &str) -> Result<(), BusError> {
        self.publish_to(ANNOUNCE, to_json(&process)).await
    }

    /// The names of processes that are to write their entries again.
    pub async fn asked_to_announce(&self) -> Result<TopicValues<String>, BusError> {
        Ok(TopicValues::new(self.subscribe(ANNOUNCE).await?, "request to announce", |body| {
            from_json(body).filter(|process: &String| process.len() <= MAX_NAME)
        }))
    }
}

fn to_json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("numbers and texts become JSON").into()
}

fn from_json<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    serde_json::from_slice(body).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_what_its_key_says() {
        let entry = |name: &str, worker: &str| WorkerEntry {
            worker: worker.to_owned(),
            service: "model".to_owned(),
            host: "h".to_owned(),
            model: ModelKey { name: name.into(), version: 1 },
            state: ModelState::Ready,
            config: String::new(),
            capacity: 1,
            bulk: true,
            content: None,
            since: UnixMicros(1),
        };
        let read = |key: &str, entry: &WorkerEntry| {
            let value = serde_json::to_vec(entry).unwrap().into();
            WorkerEntry::read(&Entry { key: key.to_owned(), value, revision: 1, at: UnixMicros(1) })
        };
        let honest = entry("a.b", "w");
        assert_eq!(read("a=2Eb.1.w", &honest), Ok(honest.clone()));
        assert_eq!(read("other.1.w", &honest).unwrap_err(), "it is of model 'a.b:1' and worker 'w'");
        assert!(read("a=2Eb.2.w", &honest).is_err());
        assert!(read("a=2Eb.1.v", &honest).is_err());
        for long in [entry(&"m".repeat(257), "w"), entry("m", &"w".repeat(257))] {
            let error = read(&long.key(), &long).unwrap_err();
            assert_eq!(error, "it holds a name of 257 bytes, expected 256 at most");
        }
    }
}
