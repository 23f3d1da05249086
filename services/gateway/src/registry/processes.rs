//! Which processes are alive, by their heartbeats. Pure: time is passed in.
//!
//! A process is silent when it had no heartbeat for [`Heartbeat::TIME_TO_LIVE`]. If this process could not receive
//! heartbeats for a while, because the connection was lost or because it stood still, that time starts again for all
//! processes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use trireme_bus::Heartbeat;
use trireme_inference::UnixMicros;

/// Most processes that are remembered: more than any deployment has, so that forged heartbeats cannot use up the
/// memory.
const MAX_PROCESSES: usize = 10_000;

/// A process whose heartbeats do not match its known entries is asked for its entries only after this time and this
/// number of heartbeats in a row: an entry may still be on its way.
const DIFFERS_FOR: Duration = Duration::from_secs(3);
const DIFFERS_TIMES: u32 = 2;

/// Shortest time between two such questions to a process, and the most that is added to it.
const ASK_PERIOD: Duration = Duration::from_secs(5);
const ASK_JITTER: Duration = Duration::from_secs(2);

/// A gateway without its own heartbeats for this long does not receive those of others either.
const DEAF_AFTER: Duration = Duration::from_secs(5);

/// A process whose heartbeats arrive.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    /// Its name.
    pub name: String,
    /// When it started.
    pub started: UnixMicros,
    /// Requests in flight, if a gateway is in it.
    pub in_flight: Option<u64>,
    /// Microseconds by which its clock is behind the broker's; negative if it is ahead.
    pub clock_offset_us: i64,
}

/// The last heartbeat of each process, and when it arrived.
pub struct Processes {
    /// The name of this process.
    own: String,
    heard: HashMap<String, Heard>,
    /// At this time all processes count as heard.
    fresh: Instant,
}

struct Heard {
    at: Instant,
    /// `None` if an entry of it was read but no heartbeat has arrived yet.
    last: Option<Heartbeat>,
    /// Since when, and for how many heartbeats, they have not matched its known entries.
    differs: Option<(Instant, u32)>,
    /// When it was first asked for its entries, since they do not match.
    asked: Option<Instant>,
    /// It is not asked again before this time.
    ask_after: Instant,
}

/// The consequence of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// Whether the process has to be asked for its entries.
    pub ask: bool,
    /// When it was first asked, since they do not match.
    pub asked: Option<Instant>,
}

// === impl Processes ===

impl Processes {
    pub fn new(own: &str, now: Instant) -> Processes {
        Processes { own: own.to_owned(), heard: HashMap::new(), fresh: now }
    }

    /// Takes in a heartbeat. Returns `false` for one that is older than the last one, or from a new process when too
    /// many are remembered; those are ignored.
    pub fn hear(&mut self, heartbeat: Heartbeat, now: Instant) -> bool {
        if let Some(Heard { last: Some(last), at, .. }) = self.heard.get(&heartbeat.process) {
            let is_older = (heartbeat.started, heartbeat.number) <= (last.started, last.number);
            if is_older && now.saturating_duration_since(*at) < Heartbeat::TIME_TO_LIVE {
                return false;
            }
        }
        let (is_own, was_deaf) = (heartbeat.process == self.own, !self.hears_itself(now));
        self.see(&heartbeat.process, now);
        if is_own && was_deaf {
            // Heartbeats of the time meanwhile may still be on their way.
            self.refresh(now);
        }
        let Some(heard) = self.heard.get_mut(&heartbeat.process) else { return false };
        heard.last = Some(heartbeat);
        true
    }

    /// Takes in that a process was alive, because an entry that it wrote was read.
    pub fn see(&mut self, name: &str, now: Instant) {
        let has_room = self.heard.len() < MAX_PROCESSES;
        match self.heard.get_mut(name) {
            Some(heard) => heard.at = now,
            None if has_room => {
                let heard = Heard { at: now, last: None, differs: None, asked: None, ask_after: now };
                self.heard.insert(name.to_owned(), heard);
            }
            None => {}
        }
    }

    /// Starts the time to live again for all processes.
    pub fn refresh(&mut self, now: Instant) {
        self.fresh = now;
    }

    /// Whether this process receives heartbeats at all: its own take the same way as those of others.
    pub fn hears_itself(&self, now: Instant) -> bool {
        self.heard
            .get(&self.own)
            .is_some_and(|own| own.last.is_some() && now.saturating_duration_since(own.at) < DEAF_AFTER)
    }

    /// When a process was last heard, as far as known.
    pub fn heard_at(&self, name: &str) -> Instant {
        self.heard.get(name).map_or(self.fresh, |heard| heard.at)
    }

    pub fn is_silent(&self, name: &str, now: Instant) -> bool {
        let heard = self.heard_at(name).max(self.fresh);
        now.saturating_duration_since(heard) > Heartbeat::TIME_TO_LIVE
    }

    /// Compares the last heartbeat of a process with its known entries: their number and the sum of their `since`.
    pub fn compare(&mut self, name: &str, known: (u32, u64), now: Instant) -> Verdict {
        let fine = Verdict { ask: false, asked: None };
        let Some(heard) = self.heard.get_mut(name) else { return fine };
        let Some(last) = &heard.last else { return fine };
        if (last.entries, last.since_sum) == known {
            (heard.differs, heard.asked) = (None, None);
            return fine;
        }
        let (since, times) = heard.differs.map_or((now, 1), |(since, times)| (since, times.saturating_add(1)));
        heard.differs = Some((since, times));
        let ask =
            times >= DIFFERS_TIMES && now.saturating_duration_since(since) > DIFFERS_FOR && now >= heard.ask_after;
        let asked = heard.asked;
        if ask {
            heard.ask_after = now + ASK_PERIOD + ASK_JITTER.mul_f64(fastrand::f64());
            heard.asked.get_or_insert(now);
        }
        Verdict { ask, asked }
    }

    /// The number of entries in a process's last heartbeat, and the sum of their `since`.
    pub fn says(&self, name: &str) -> Option<(u32, u64)> {
        let last = self.heard.get(name)?.last.as_ref()?;
        Some((last.entries, last.since_sum))
    }

    /// Forgets processes that have been silent for long, except those for which `keep` is true.
    pub fn forget(&mut self, now: Instant, keep: impl Fn(&str) -> bool) {
        self.heard
            .retain(|name, heard| now.saturating_duration_since(heard.at) < 8 * Heartbeat::TIME_TO_LIVE || keep(name));
    }

    /// The processes whose heartbeats arrive, in order of name.
    pub fn there(&self, now: Instant) -> Vec<Process> {
        let there = self.heard.iter().filter(|(name, _)| !self.is_silent(name, now));
        let mut there: Vec<_> = there
            .filter_map(|(name, heard)| {
                let last = heard.last.as_ref()?;
                Some(Process {
                    name: name.clone(),
                    started: last.started,
                    in_flight: last.in_flight,
                    clock_offset_us: last.clock_offset_us,
                })
            })
            .collect();
        there.sort_by(|left, right| left.name.cmp(&right.name));
        there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn beat(process: &str, number: u64, entries: u32) -> Heartbeat {
        Heartbeat {
            process: process.to_owned(),
            started: UnixMicros(1),
            number,
            entries,
            since_sum: u64::from(entries),
            in_flight: None,
            clock_offset_us: 0,
        }
    }

    #[test]
    fn who_is_silent_lapses_and_who_could_not_be_heard_does_not() {
        let start = Instant::now();
        let mut processes = Processes::new("g", start);
        assert!(processes.hear(beat("w", 1, 0), start));
        let late = start + Heartbeat::TIME_TO_LIVE + SECOND;
        assert!(processes.is_silent("w", late) && !processes.is_silent("w", start + Heartbeat::TIME_TO_LIVE));
        assert!(!processes.hears_itself(late), "nothing is heard at all");
        processes.hear(beat("g", 1, 0), late);
        assert!(processes.hears_itself(late));
        assert!(!processes.is_silent("w", late), "what it said meanwhile may be on its way");
        processes.hear(beat("g", 2, 0), late + 4 * SECOND);
        assert!(processes.is_silent("w", late + Heartbeat::TIME_TO_LIVE + SECOND));
        let late = late + Heartbeat::TIME_TO_LIVE + SECOND;
        processes.refresh(late);
        assert!(!processes.is_silent("w", late + Heartbeat::TIME_TO_LIVE), "the connection was lost");
        assert!(processes.is_silent("w", late + Heartbeat::TIME_TO_LIVE + SECOND));
    }

    #[test]
    fn older_words_change_nothing() {
        let start = Instant::now();
        let mut processes = Processes::new("g", start);
        assert!(processes.hear(beat("w", 5, 3), start));
        assert!(!processes.hear(beat("w", 4, 2), start) && !processes.hear(beat("w", 5, 2), start));
        assert_eq!(processes.says("w"), Some((3, 3)));
        let again = Heartbeat { started: UnixMicros(2), ..beat("w", 0, 1) };
        assert!(processes.hear(again, start), "it has started again");
        assert_eq!(processes.says("w"), Some((1, 1)));
    }

    #[test]
    fn who_has_other_entries_for_a_while_is_asked_now_and_then() {
        let start = Instant::now();
        let mut processes = Processes::new("g", start);
        let mut asked = Vec::new();
        for number in 0..30 {
            let now = start + 2 * SECOND * number;
            processes.hear(beat("w", u64::from(number), 3), now);
            if processes.compare("w", (2, 2), now).ask {
                asked.push(now - start);
            }
        }
        assert_eq!(asked[0], 4 * SECOND, "two heartbeats in a row, and three seconds");
        assert!(asked.windows(2).all(|pair| pair[1] - pair[0] >= ASK_PERIOD), "{asked:?}");
        assert!(asked.len() >= 7, "{asked:?}");
        let later = start + 60 * SECOND;
        processes.hear(beat("w", 30, 3), later);
        assert_eq!(processes.compare("w", (3, 3), later), Verdict { ask: false, asked: None });
        processes.hear(beat("w", 31, 3), later + 2 * SECOND);
        assert!(!processes.compare("w", (2, 2), later + 2 * SECOND).ask, "once only");
    }

    #[test]
    fn memory_is_bounded() {
        let start = Instant::now();
        let mut processes = Processes::new("g", start);
        for number in 0..MAX_PROCESSES {
            assert!(processes.hear(beat(&number.to_string(), 0, 0), start));
        }
        assert!(!processes.hear(beat("one more", 0, 0), start));
        processes.forget(start + 100 * SECOND, |name| name == "7");
        assert!(processes.says("7").is_some());
        assert!(processes.hear(beat("one more", 0, 0), start));
    }
}
