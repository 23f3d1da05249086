//! Many faults as one line that a person can read.

use std::fmt::Display;

/// The most bytes of faults that are listed, unless a single fault is longer.
const MOST: usize = 1500;

/// The faults, as many of them as a line takes, and how many more there are.
pub fn list<T: Display>(faults: impl IntoIterator<Item = T>) -> String {
    let mut faults = faults.into_iter();
    let mut line = faults.next().map(|fault| fault.to_string()).unwrap_or_default();
    let mut more = 0;
    for fault in faults {
        let fault = fault.to_string();
        match more == 0 && line.len() + fault.len() <= MOST {
            true => line.extend(["; ", &fault]),
            false => more += 1,
        }
    }
    match more {
        0 => line,
        _ => format!("{line}; and {more} more, which `trireme validate` names, too"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_great_many_faults_are_counted() {
        assert_eq!(list(["a"]), "a");
        assert_eq!(list(["a", "b"]), "a; b");
        assert_eq!(list([] as [&str; 0]), "");
        let many = list((0..30).map(|number| format!("{number} {}", "x".repeat(200))));
        assert!(many.len() < MOST + 100, "{}", many.len());
        assert!(many.ends_with("; and 23 more, which `trireme validate` names, too"), "{many}");
        // A single long fault is listed whole.
        assert_eq!(list(["y".repeat(3000)]).len(), 3000);
    }
}
