//! Faults of the brokers' data, while all brokers run: they hit the stream with the most work, under load.
//!
//! The system has to survive that messages of work are lost or redelivered, because no such message is the only state
//! of a request.

use std::time::Duration;

use super::admin::{Admin, Copy};

/// How many streams a fault without duration hits, one after the other.
const TIMES: usize = 3;

/// How long consumers of a stream are paused before it is hit: without undelivered work the fault would have no effect.
const HELD: Duration = Duration::from_millis(400);

/// Number of messages that are deleted from the end of a stream.
const NEWEST: u64 = 20;

/// A fault of a stream of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Harm {
    /// It is emptied, several times, each time the stream with the most work.
    Empty,
    /// It is deleted, and only the system creates it again.
    Delete,
    /// It is deleted, and after a while created again with its consumers.
    Remake,
    /// Its newest messages are deleted.
    LoseNewest,
    /// It is restored to an earlier state: finished work is there again, newer work is missing, and sequence numbers
    /// are used a second time.
    RollBack,
}

// === impl Harm ===

impl Harm {
    pub(super) fn verb(self) -> &'static str {
        match self {
            Harm::Empty => "empty work",
            Harm::Delete => "delete stream",
            Harm::Remake => "delete and remake stream",
            Harm::LoseNewest => "lose newest work",
            Harm::RollBack => "roll back stream",
        }
    }

    /// Injects the fault. Returns the copy that [`Harm::end`] needs, and how many messages waited in the stream.
    pub(super) fn begin(self, admin: &mut Admin) -> (Option<Copy>, u64) {
        let times = if matches!(self, Harm::Empty | Harm::LoseNewest) { TIMES } else { 1 };
        let (mut copy, mut waiting) = (None, 0);
        for _ in 0..times {
            let Some(stream) = admin.busiest() else { continue };
            let held = admin.hold(&stream);
            std::thread::sleep(HELD);
            waiting += admin.messages(&stream);
            match self {
                Harm::Empty => admin.purge(&stream),
                Harm::LoseNewest => admin.delete_newest(&stream, NEWEST),
                Harm::Delete => admin.delete(&stream),
                Harm::Remake => {
                    copy = admin.copy(&stream);
                    admin.delete(&stream);
                }
                Harm::RollBack => copy = admin.copy_with_messages(&stream),
            }
            admin.release(&stream, &held);
        }
        (copy, waiting)
    }

    /// Restores the stream.
    pub(super) fn end(admin: &mut Admin, copy: &Copy) {
        admin.restore(copy);
    }
}
