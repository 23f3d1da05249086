//! Lines on standard output that no request waits for: a thread writes them, and a line that finds too many before it is left out.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Most lines that wait to be written.
const WAITING: usize = 16 << 10;

/// Takes lines. Clones go to the same thread.
#[derive(Clone)]
pub struct LogWriter {
    lines: SyncSender<String>,
    left_out: Arc<AtomicU64>,
}

/// The thread that writes; waiting for it ends when no [`LogWriter`] is left.
pub struct LogThread(JoinHandle<()>);

// === impl LogWriter ===

impl LogWriter {
    /// A writer to `out`, with the thread that writes.
    pub fn to(mut out: impl Write + Send + 'static) -> std::io::Result<(LogWriter, LogThread)> {
        let (lines, waiting) = sync_channel(WAITING);
        let left_out = Arc::new(AtomicU64::new(0));
        let missing = left_out.clone();
        let thread = std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || write(&waiting, &missing, &mut out))?;
        Ok((LogWriter { lines, left_out }, LogThread(thread)))
    }

    /// Has a line written, unless too many wait.
    pub fn line(&self, line: String) {
        if self.lines.try_send(line).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// === impl LogThread ===

impl LogThread {
    /// Waits until all lines are written.
    pub fn join(self) {
        // A thread that panicked has nothing more to write.
        let _ = self.0.join();
    }
}

fn write(waiting: &Receiver<String>, left_out: &AtomicU64, out: &mut impl Write) {
    while let Ok(line) = waiting.recv() {
        let missing = left_out.swap(0, Ordering::Relaxed);
        if missing > 0 {
            tracing::warn!(
                lines = missing,
                "lines of the access log are left out: standard output takes them too slowly"
            );
        }
        let _ = out.write_all(line.as_bytes());
        // Lines are whole when nobody is waiting for the next one.
        let _ = out.flush();
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// Takes nothing while its lock is held.
    #[derive(Clone, Default)]
    struct Gate(Arc<Mutex<Vec<u8>>>);

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn requests_do_not_wait_for_a_reader_of_lines() {
        let gate = Gate::default();
        let (writer, thread) = LogWriter::to(gate.clone()).unwrap();
        let closed = gate.0.lock();
        for number in 0..3 * WAITING {
            writer.line(format!("{number}\n"));
        }
        drop(closed);
        drop(writer);
        thread.join();
        let text = String::from_utf8(gate.0.lock().clone()).unwrap();
        // The thread holds one line more.
        assert!((WAITING..=WAITING + 1).contains(&text.lines().count()), "{} lines", text.lines().count());
        assert!(text.starts_with("0\n1\n"));
    }
}
