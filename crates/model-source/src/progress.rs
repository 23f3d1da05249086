//! Log lines of a long download: how much of how much, and how fast.

use std::time::{Duration, Instant};

/// How often a line is written.
const EVERY: Duration = Duration::from_secs(5);

/// One model's download.
pub(crate) struct Progress {
    word: String,
    received: u64,
    total: u64,
    files: usize,
    started: Instant,
    said: Instant,
}

// === impl Progress ===

impl Progress {
    pub(crate) fn new(word: &str) -> Progress {
        let now = Instant::now();
        Progress { word: word.to_owned(), received: 0, total: 0, files: 0, started: now, said: now }
    }

    /// Another file is needed; of some its size is known.
    pub(crate) fn expect(&mut self, size: Option<u64>) {
        self.files += 1;
        self.total += size.unwrap_or(0);
    }

    /// Bytes of `file` arrived.
    pub(crate) fn add(&mut self, file: &str, bytes: usize) {
        self.received += bytes as u64;
        if self.said.elapsed() >= EVERY {
            self.said = Instant::now();
            tracing::info!(model = self.word, file, "downloading: {}", self.state());
        }
    }

    /// All files are there.
    pub(crate) fn finish(&self) {
        if self.files > 0 {
            tracing::info!(model = self.word, files = self.files, "downloaded: {}", self.state());
        }
    }

    fn state(&self) -> String {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let speed = megabytes(self.received) / self.started.elapsed().as_secs_f64().max(1e-3);
        let (received, total) = (megabytes(self.received), megabytes(self.total.max(self.received)));
        format!("{received:.1} of {total:.1} MB at {speed:.1} MB/s")
    }
}
