//! The two lanes in which requests wait: live requests go first in every queue.

use serde::{Deserialize, Serialize};

/// The level of a queue at which bulk requests wait. No priority level has a number this high.
const BULK_LEVEL: u32 = 10_000;

/// The lane of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Lane {
    /// A client waits for the answer.
    #[default]
    Live,
    /// The request takes the time that live requests leave.
    Bulk,
}

// === impl Lane ===

impl Lane {
    /// Both lanes with their labels, in the order in which they are served.
    pub const ALL: [(Lane, &'static str); 2] = [(Lane::Live, "live"), (Lane::Bulk, "bulk")];

    /// The level at which a request of this lane waits, if `priority` is the level of a live one. Bulk requests have one level.
    pub fn level(self, priority: u32) -> u32 {
        match self {
            Lane::Live => priority,
            Lane::Bulk => BULK_LEVEL,
        }
    }

    /// The lane of a queue's level.
    pub fn of_level(level: u32) -> Lane {
        if level == BULK_LEVEL { Lane::Bulk } else { Lane::Live }
    }

    /// The lane that the value of an HTTP header `Priority` asks for (RFC 9218): urgency 7, the lowest one, is for work that no
    /// user waits for.
    pub fn of_header(value: &str) -> Lane {
        let mut urgency =
            value.split(',').filter_map(|member| member.trim().split_once('=')).filter(|(key, _)| *key == "u");
        let urgency = urgency.next_back().map(|(_, value)| value.split(';').next().unwrap_or_default().trim());
        if urgency == Some("7") { Lane::Bulk } else { Lane::Live }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_urgency_is_the_bulk_lane() {
        for value in ["u=7", "i, u=7", "u=3, u=7", "u=7;x=1, i", " u=7 "] {
            assert_eq!(Lane::of_header(value), Lane::Bulk, "{value}");
        }
        for value in ["", "u=6", "u=7, u=1", "U=7", "u", "u=70", "v=7", "u=\"7\""] {
            assert_eq!(Lane::of_header(value), Lane::Live, "{value}");
        }
    }

    #[test]
    fn a_level_tells_its_lane() {
        for (lane, _) in Lane::ALL {
            assert_eq!(Lane::of_level(lane.level(3)), lane);
        }
        assert_eq!((Lane::Live.level(3), Lane::of_level(0)), (3, Lane::Live));
    }
}
