//! The thread that writes traces, and the room before it.
//!
//! The traces of one settings object make a [`Stream`]. As in Triton, a stream with a log frequency goes to numbered files of
//! that many traces; one whose number of traces is limited goes to a numbered file when the last of them is there; the rest
//! goes to the file itself. A stream that is replaced, because settings change, is written to its end.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::files::TraceFiles;
use super::trace::Trace;

/// Most traces that wait for the writer.
const MAX_WAITING: usize = 1024;

/// Most bytes of tensors in them.
const MAX_WAITING_BYTES: u64 = 16 << 20;

/// Most bytes of text that are kept for a numbered file; a larger file is written early.
const MAX_KEPT: usize = 16 << 20;

/// The least time between two log lines about dropped traces.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Writes traces to files, in a thread of its own.
#[derive(Debug)]
pub struct Writer {
    sender: SyncSender<Message>,
    room: Arc<Room>,
    thread: Mutex<Option<JoinHandle<()>>>,
    streams: AtomicU64,
}

/// The bytes that wait, and the numbers of traces that are in no file.
#[derive(Debug, Default)]
struct Room {
    bytes: AtomicU64,
    /// The number of traces for which there was no room.
    dropped: AtomicU64,
    /// The number of traces that could not be written.
    failed: AtomicU64,
}

#[derive(Debug)]
enum Message {
    Trace(Box<Trace>, Arc<Stream>),
    /// Nothing more comes from the stream with this number.
    Close(u64),
    Finish,
}

/// The traces that were picked by one settings object.
#[derive(Debug)]
pub struct Stream {
    number: u64,
    log_frequency: u32,
    /// Whether the number of its traces is limited.
    limited: bool,
    /// Whether the last of them has begun.
    used_up: AtomicBool,
    begun: AtomicU64,
    /// The number of its traces that were written or dropped.
    ended: AtomicU64,
    closer: SyncSender<Message>,
}

/// The state of the writing thread.
struct Thread {
    files: TraceFiles,
    kept: HashMap<u64, Kept>,
    next_id: u64,
    room: Arc<Room>,
    /// Whether the last write failed.
    failing: bool,
    /// The number of dropped traces that was last logged, and when.
    logged: (u64, Instant),
}

/// Records of a stream that were not written so far.
#[derive(Default)]
struct Kept {
    records: Vec<u8>,
    traces: u32,
    log_frequency: u32,
}

// === impl Writer ===

impl Writer {
    /// Starts the thread that writes files with this path.
    pub fn start(path: PathBuf) -> std::io::Result<Writer> {
        let (sender, receiver) = sync_channel(MAX_WAITING);
        let room = Arc::new(Room::default());
        let thread = Thread {
            files: TraceFiles::new(path),
            kept: HashMap::new(),
            next_id: 1,
            room: room.clone(),
            failing: false,
            logged: (0, Instant::now()),
        };
        let builder = std::thread::Builder::new().name("traces".to_owned());
        let handle = builder.spawn(move || thread.run(&receiver))?;
        Ok(Writer { sender, room, thread: Mutex::new(Some(handle)), streams: AtomicU64::new(0) })
    }

    /// A new stream, whose traces have this log frequency and are `limited` in number or not.
    pub fn stream(&self, log_frequency: u32, limited: bool) -> Arc<Stream> {
        Arc::new(Stream {
            number: self.streams.fetch_add(1, Ordering::Relaxed),
            log_frequency,
            limited,
            used_up: AtomicBool::new(false),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            closer: self.sender.clone(),
        })
    }

    /// Gives a trace to the thread, or drops it where there is no room.
    pub fn write(&self, trace: Box<Trace>, stream: Arc<Stream>) {
        let bytes = trace.bytes();
        let waiting = self.room.bytes.fetch_add(bytes, Ordering::Relaxed);
        let sent = match waiting.saturating_add(bytes) > MAX_WAITING_BYTES {
            true => Err(TrySendError::Full(Message::Trace(trace, stream))),
            false => self.sender.try_send(Message::Trace(trace, stream)),
        };
        if let Err(TrySendError::Full(message) | TrySendError::Disconnected(message)) = sent {
            self.room.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.room.dropped.fetch_add(1, Ordering::Relaxed);
            if let Message::Trace(_, stream) = message {
                stream.ended.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// How many traces were not written: there was no room, or writing failed.
    pub fn dropped(&self) -> u64 {
        self.room.dropped.load(Ordering::Relaxed) + self.room.failed.load(Ordering::Relaxed)
    }

    /// Writes everything that waits and ends the thread. Blocks until that is done.
    pub fn finish(&self) {
        let Some(thread) = self.thread.lock().take() else { return };
        // An error means that the thread has ended.
        let _ = self.sender.send(Message::Finish);
        if thread.join().is_err() {
            tracing::error!("the thread that writes traces panicked");
        }
    }
}

// === impl Stream ===

impl Stream {
    /// A trace begins. `last`: no further one will.
    pub fn begin(&self, last: bool) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        if last {
            self.use_up();
        }
    }

    /// No further trace will begin.
    pub fn use_up(&self) {
        self.used_up.store(true, Ordering::Relaxed);
    }

    /// Whether all its traces have ended and there will be no more.
    fn is_complete(&self) -> bool {
        let (begun, ended) = (self.begun.load(Ordering::Relaxed), self.ended.load(Ordering::Relaxed));
        self.used_up.load(Ordering::Relaxed) && ended >= begun
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Where there is no room its records are written when the thread ends.
        let _ = self.closer.try_send(Message::Close(self.number));
    }
}

// === impl Thread ===

impl Thread {
    fn run(mut self, messages: &Receiver<Message>) {
        while let Ok(message) = messages.recv() {
            match message {
                Message::Trace(trace, stream) => {
                    self.take(*trace, &stream);
                    if let Some(ended) = Arc::into_inner(stream) {
                        self.close(ended.number);
                    }
                }
                Message::Close(number) => self.close(number),
                Message::Finish => break,
            }
            self.log_dropped(LOG_INTERVAL);
        }
        let streams: Vec<u64> = self.kept.keys().copied().collect();
        streams.into_iter().for_each(|number| self.close(number));
        self.log_dropped(Duration::ZERO);
    }

    fn take(&mut self, trace: Trace, stream: &Stream) {
        self.room.bytes.fetch_sub(trace.bytes(), Ordering::Relaxed);
        stream.ended.fetch_add(1, Ordering::Relaxed);
        let id = self.next_id;
        self.next_id += trace.count();
        let kept = self.kept.entry(stream.number).or_default();
        kept.log_frequency = stream.log_frequency;
        if kept.traces > 0 {
            kept.records.push(b',');
        }
        kept.records.extend_from_slice(&trace.records(id));
        kept.traces += 1;
        let is_full = kept.log_frequency > 0 && kept.traces >= kept.log_frequency;
        if is_full || stream.is_complete() {
            let full = std::mem::take(kept);
            self.write(&full, TraceFiles::number);
        } else if !(stream.limited || kept.log_frequency > 0) || kept.records.len() > MAX_KEPT {
            self.close(stream.number);
        }
    }

    /// Writes the rest of a stream.
    fn close(&mut self, number: u64) {
        let Some(kept) = self.kept.remove(&number).filter(|kept| kept.traces > 0) else { return };
        self.write(&kept, if kept.log_frequency > 0 { TraceFiles::number } else { TraceFiles::append });
    }

    fn write(&mut self, kept: &Kept, write: fn(&mut TraceFiles, &[u8]) -> std::io::Result<()>) {
        let written = write(&mut self.files, &kept.records);
        let file = self.files.path().display();
        match &written {
            Err(error) if !self.failing => tracing::error!(%file, %error, "traces cannot be written; they are dropped"),
            Ok(()) if self.failing => tracing::info!(%file, "traces are written again"),
            _ => {}
        }
        if written.is_err() {
            self.room.failed.fetch_add(u64::from(kept.traces), Ordering::Relaxed);
        }
        self.failing = written.is_err();
    }

    /// Logs how many traces were dropped, if there were more and the last line is that old.
    fn log_dropped(&mut self, interval: Duration) {
        let dropped = self.room.dropped.load(Ordering::Relaxed);
        let (before, at) = self.logged;
        if dropped > before && (before == 0 || at.elapsed() >= interval) {
            tracing::warn!(dropped, "traces were dropped: more came than could be written");
            self.logged = (dropped, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use trireme_inference::ModelKey;
    use trireme_protocol::tracing::TraceLevel;

    use trireme_server::{Port, RequestTimes};

    use super::super::OpenTrace;
    use super::*;

    /// The numbers of traces in a file, in their order; `None` where there is no file.
    fn ids(path: &std::path::Path) -> Option<Vec<u64>> {
        let text = std::fs::read(path).ok()?;
        let records: Vec<serde_json::Value> = serde_json::from_slice(&text).unwrap();
        Some(records.iter().filter(|r| r.get("model_name").is_some()).map(|r| r["id"].as_u64().unwrap()).collect())
    }

    fn trace(writer: &Arc<Writer>, stream: &Arc<Stream>, last: bool) -> OpenTrace {
        stream.begin(last);
        let model = ModelKey { name: "m".into(), version: 1 };
        let level = TraceLevel { timestamps: true, tensors: false };
        let times = RequestTimes::begin();
        OpenTrace::begin(writer.clone(), stream.clone(), level, Port::Http, model, String::new(), times)
    }

    #[test]
    fn traces_go_to_the_files_that_their_settings_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        let numbered = |number: u64| folder.path().join(format!("t.{number}"));
        let writer = Arc::new(Writer::start(path.clone()).unwrap());

        // Two at a time, and the rest when the settings are replaced.
        let pairs = writer.stream(2, false);
        (0..3).for_each(|_| drop(trace(&writer, &pairs, false)));
        drop(pairs);
        // A limited number: all of them when the last one ends, whichever that is.
        let limited = writer.stream(0, true);
        let (first, second) = (trace(&writer, &limited, false), trace(&writer, &limited, true));
        drop(second);
        drop(first);
        // The file itself.
        let endless = writer.stream(0, false);
        (0..2).for_each(|_| drop(trace(&writer, &endless, false)));
        // A limit that is not reached.
        let unfinished = writer.stream(0, true);
        drop(trace(&writer, &unfinished, false));
        writer.finish();

        assert_eq!(ids(&numbered(0)), Some(vec![1, 2]));
        assert_eq!(ids(&numbered(1)), Some(vec![3]));
        assert_eq!(ids(&numbered(2)), Some(vec![4, 5]));
        assert_eq!(ids(&numbered(3)), None);
        assert_eq!(ids(&path), Some(vec![6, 7, 8]));
    }

    #[test]
    fn traces_without_room_are_dropped_and_nobody_waits() {
        let (sender, receiver) = sync_channel(1);
        let writer = Writer { sender, room: Arc::default(), thread: Mutex::new(None), streams: AtomicU64::new(0) };
        let writer = Arc::new(writer);
        let stream = writer.stream(0, false);
        (0..3).for_each(|_| drop(trace(&writer, &stream, false)));
        assert_eq!(writer.room.dropped.load(Ordering::Relaxed), 2);
        assert_eq!(stream.ended.load(Ordering::Relaxed), 2, "the one that waits has not ended");
        assert_eq!(writer.dropped(), 2);
        drop(receiver);
    }

    #[test]
    fn traces_that_cannot_be_written_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let writer = Arc::new(Writer::start(folder.path().join("no-folder/t")).unwrap());
        let (endless, pairs) = (writer.stream(0, false), writer.stream(2, false));
        (0..3).for_each(|_| drop(trace(&writer, &endless, false)));
        (0..2).for_each(|_| drop(trace(&writer, &pairs, false)));
        writer.finish();
        assert_eq!(writer.dropped(), 5);
    }
}
