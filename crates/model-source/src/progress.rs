//! The progress of a download: a bar at a terminal, otherwise a line in the log every few seconds.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The model, a bar, the bytes, the speed, the time that is left, and the file.
const BAR: &str =
    "{prefix} [{bar:30}] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec}, {eta} left: {msg}";

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
    /// Where a person watches.
    bar: Option<ProgressBar>,
}

// === impl Progress ===

impl Progress {
    pub(crate) fn new(word: &str) -> Progress {
        let target = std::io::stderr().is_terminal().then(ProgressDrawTarget::stderr);
        Progress::shown(word, target)
    }

    fn shown(word: &str, target: Option<ProgressDrawTarget>) -> Progress {
        let bar = target.map(|target| {
            let style = ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::with_draw_target(Some(0), target).with_style(style).with_prefix(word.to_owned())
        });
        let now = Instant::now();
        Progress { word: word.to_owned(), received: 0, total: 0, files: 0, started: now, said: now, bar }
    }

    /// Another file is needed; of some its size is known.
    pub(crate) fn expect(&mut self, size: Option<u64>) {
        self.files += 1;
        self.total += size.unwrap_or(0);
        if let Some(bar) = &self.bar {
            bar.inc_length(size.unwrap_or(0));
        }
    }

    /// Bytes of `file` arrived.
    pub(crate) fn add(&mut self, file: &str, bytes: usize) {
        self.received += bytes as u64;
        if let Some(bar) = &self.bar {
            bar.set_message(file.to_owned());
            bar.inc(bytes as u64);
        } else if self.said.elapsed() >= EVERY {
            self.said = Instant::now();
            tracing::info!(model = self.word, file, "downloading: {}", self.state());
        }
    }

    /// All files are there.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_follows_the_bytes_of_all_files() {
        let mut progress = Progress::shown("hf://org/name", Some(ProgressDrawTarget::hidden()));
        progress.expect(Some(1000));
        progress.add("config.json", 1000);
        progress.expect(Some(3000));
        progress.add("onnx/model.onnx", 500);
        let bar = progress.bar.clone().unwrap();
        assert_eq!((bar.position(), bar.length(), bar.message()), (1500, Some(4000), "onnx/model.onnx".to_owned()));
        assert!(progress.state().starts_with("0.0 of 0.0 MB at "), "{}", progress.state());
        progress.finish();
        assert!(bar.is_finished());
        // The template is one that the crate takes.
        assert!(ProgressStyle::with_template(BAR).is_ok());
    }
}
