//! Wrong clocks: each of the system's processes may have a clock that is off by a fixed time. The brokers' clocks are
//! right.
//!
//! libfaketime (Debian: `libfaketime`) is loaded into a process and changes its time of day. The monotonic clock, which
//! processes use for waiting, stays as it is.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Folders in which distributions install the library.
const FOLDERS: [&str; 4] = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib"];

/// The library for programs with threads, from one of the folders or one within it.
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// How much each process's clock is off.
#[derive(Clone, Debug)]
pub(super) struct Clocks {
    library: PathBuf,
    seed: u64,
    spread: Duration,
}

/// The clock of one process. When it is dropped, it removes the process's shared memory of the library: a process that
/// is killed does not remove it.
#[derive(Debug)]
pub(super) struct Clock(Option<u32>);

// === impl Clocks ===

impl Clocks {
    /// Clocks that are off by at most `spread` in either direction; `None` if there is no libfaketime.
    pub fn find(seed: u64, spread: Duration) -> Option<Clocks> {
        let folders = FOLDERS.iter().map(PathBuf::from).flat_map(|folder| {
            let within = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
            std::iter::once(folder).chain(within).collect::<Vec<_>>()
        });
        let library = folders.map(|folder| folder.join(LIBRARY)).find(|path| path.is_file())?;
        Some(Clocks { library, seed, spread })
    }

    /// By how many milliseconds the clock at this place is ahead; a replacement gets the same clock.
    pub fn ahead(&self, place: usize) -> i64 {
        let spread = i64::try_from(self.spread.as_millis()).expect("clocks are wrong by less than ages");
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut offsets = std::iter::repeat_with(|| random.i64(-spread..=spread));
        offsets.nth(place).expect("it goes on for ever")
    }

    /// Makes a command run with the clock of this place.
    pub fn set(&self, place: usize, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library);
        command.env("FAKETIME", format!("{:+.3}s", self.ahead(place) as f64 / 1e3));
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("NO_FAKE_STAT", "1");
    }
}

// === impl Clock ===

impl Clock {
    /// The clock of a process that was started with one of [`Clocks`].
    pub fn wrong(process: u32) -> Clock {
        Clock(Some(process))
    }

    /// The clock of any other process.
    pub fn right() -> Clock {
        Clock(None)
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        for name in self.0.iter().flat_map(|id| [format!("faketime_shm_{id}"), format!("sem.faketime_sem_{id}")]) {
            let _ = fs::remove_file(PathBuf::from("/dev/shm").join(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_process_has_the_clock_of_its_place() {
        let Some(clocks) = Clocks::find(1, Duration::from_secs(60)) else {
            return println!("not run: libfaketime is missing");
        };
        let offsets: Vec<i64> = (0..9).map(|place| clocks.ahead(place)).collect();
        assert!(offsets.iter().all(|offset| offset.abs() <= 60_000), "{offsets:?}");
        assert!(offsets.iter().any(|offset| *offset > 5_000), "{offsets:?}");
        assert!(offsets.iter().any(|offset| *offset < -5_000), "{offsets:?}");
        for place in 0..9 {
            let mut command = Command::new("date");
            clocks.set(place, command.arg("+%s"));
            let said = command.output().expect("date runs").stdout;
            let said: i64 = String::from_utf8_lossy(&said).trim().parse().expect("date gives seconds");
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_millis() as i64;
            let ahead = said * 1000 - now;
            assert!((ahead - clocks.ahead(place)).abs() < 2000, "{ahead} instead of {}", clocks.ahead(place));
        }
    }
}
