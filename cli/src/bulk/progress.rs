//! How far a run is, for the terminal.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use super::rows::{Facts, Totals};

/// Time between two lines about the progress, on a terminal and elsewhere.
const TOLD: Duration = Duration::from_millis(500);
const TOLD_IN_LOGS: Duration = Duration::from_secs(30);

/// How far the run is, for the terminal.
pub struct Progress {
    /// Rows of the input, where that is known.
    total: Option<u64>,
    /// Rows that an earlier run has written.
    before: u64,
    done: u64,
    /// The counts of all rows, those of earlier runs too. Their time is that of earlier runs.
    pub totals: Totals,
    began: Instant,
    told: Instant,
    is_terminal: bool,
}

// === impl Progress ===

impl Progress {
    /// `totals` are those of the rows that earlier runs have written.
    pub fn new(total: Option<u64>, before: u64, totals: Totals) -> Progress {
        let (now, is_terminal) = (Instant::now(), std::io::stderr().is_terminal());
        if before > 0 {
            let total = total.map(|total| format!(" of {total}")).unwrap_or_default();
            eprintln!("goes on behind line {before}{total}");
        }
        Progress { total, before, done: 0, totals, began: now, told: now, is_terminal }
    }

    /// Rows are answered.
    pub fn answered(&mut self, rows: u64, errors: u64, facts: Facts) {
        self.done += rows;
        self.totals.errors += errors;
        self.totals.facts += facts;
        self.print(false);
    }

    /// Rows of all runs.
    pub fn rows(&self) -> u64 {
        self.before + self.done
    }

    /// The time that all runs have taken.
    pub fn took(&self) -> Duration {
        self.totals.took + self.began.elapsed()
    }

    pub fn print(&mut self, is_last: bool) {
        let every = if self.is_terminal { TOLD } else { TOLD_IN_LOGS };
        if !is_last && self.told.elapsed() < every {
            return;
        }
        self.told = Instant::now();
        let line = self.line(self.began.elapsed(), is_last);
        match (self.is_terminal, is_last) {
            (true, false) => eprint!("\r\x1b[K{line}"),
            (true, true) => eprintln!("\r\x1b[K{line}"),
            (false, _) => eprintln!("{line}"),
        }
    }

    fn line(&self, took: Duration, is_last: bool) -> String {
        let rate = self.done as f64 / took.as_secs_f64().max(1e-3);
        let all = self.rows();
        let total = if is_last { Some(all) } else { self.total };
        let of = total.map(|total| format!(" of {total}")).unwrap_or_default();
        let left = total.map(|total| total.saturating_sub(all) as f64 / rate.max(1e-3));
        let left = match left {
            _ if is_last => ", done".to_owned(),
            None => String::new(),
            Some(left) if left < 120.0 => format!(", {left:.0} s left"),
            Some(left) if left < 7200.0 => format!(", {:.0} min left", left / 60.0),
            Some(left) => format!(", {:.1} h left", left / 3600.0),
        };
        format!("{all}{of} texts, {rate:.0} texts/s, {} errors{left}", self.totals.errors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_names_the_rate_of_this_run() {
        let now = Instant::now();
        let totals = Totals { errors: 2, ..Totals::default() };
        let of = |total| Progress { total, before: 400, done: 100, totals, began: now, told: now, is_terminal: false };
        let line = |total, is_last| of(total).line(Duration::from_secs(10), is_last);
        assert_eq!(line(Some(1000), false), "500 of 1000 texts, 10 texts/s, 2 errors, 50 s left");
        assert_eq!(line(None, false), "500 texts, 10 texts/s, 2 errors");
        assert_eq!(line(None, true), "500 of 500 texts, 10 texts/s, 2 errors, done");
    }
}
