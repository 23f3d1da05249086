//! Waiting rooms before full queues.
//!
//! Of the messages of a process that wait for room in a queue, only the first looks for it. If all looked, each after a pause of its
//! own, a message that has waited for long would lose the room to one that has just come, again and again.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use trireme_inference::ModelKey;

use crate::WorkMessage;

/// The waiting rooms of a process: one for each level of a queue that was full.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trireme_bus::BusError> {
/// # let model = trireme_inference::ModelKey { name: "encoder".into(), version: 1 };
/// use trireme_bus::fixtures::message;
/// use trireme_bus::WaitingRooms;
///
/// let (rooms, message) = (WaitingRooms::default(), message(&model, 7));
/// let first = rooms.enter(&message).await;
/// assert!(rooms.is_occupied(&message));
/// drop(first);
/// assert!(!rooms.is_occupied(&message));
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct WaitingRooms(Mutex<Vec<WaitingRoom>>);

/// The first place in a waiting room. The next message gets it when it is dropped.
pub type First = OwnedMutexGuard<()>;

struct WaitingRoom {
    queue: Option<ModelKey>,
    level: u32,
    /// Tokio's mutex lets tasks in in the order in which they came.
    first: Arc<tokio::sync::Mutex<()>>,
}

// === impl WaitingRooms ===

impl WaitingRooms {
    /// Whether messages wait for room in the queue that a message goes to.
    pub fn is_occupied(&self, message: &WorkMessage) -> bool {
        self.0.lock().iter().any(|room| room.is_for(message) && room.first.try_lock().is_err())
    }

    /// Enters the waiting room of a message's queue. Ends when all messages that have entered before have left it.
    pub fn enter(&self, message: &WorkMessage) -> impl Future<Output = First> + Send + use<> {
        let first = {
            let mut rooms = self.0.lock();
            if let Some(room) = rooms.iter().find(|room| room.is_for(message)) {
                room.first.clone()
            } else {
                // A process serves for years, and models come and go.
                rooms.retain(|room| Arc::strong_count(&room.first) > 1);
                let room =
                    WaitingRoom { queue: message.queue().cloned(), level: message.level(), first: Arc::default() };
                let first = room.first.clone();
                rooms.push(room);
                first
            }
        };
        first.lock_owned()
    }
}

// === impl WaitingRoom ===

impl WaitingRoom {
    fn is_for(&self, message: &WorkMessage) -> bool {
        message.queue() == self.queue.as_ref() && message.level() == self.level
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::fixtures::{message, message_at};

    #[tokio::test]
    async fn messages_leave_in_the_order_in_which_they_came() {
        let (rooms, model) = (WaitingRooms::default(), ModelKey { name: "m".into(), version: 1 });
        let work = message(&model, 1);
        let first = rooms.enter(&work).await;
        assert!(rooms.is_occupied(&work));
        let (mut second, mut third) = (Box::pin(rooms.enter(&work)), Box::pin(rooms.enter(&work)));
        assert!((&mut second).now_or_never().is_none() && (&mut third).now_or_never().is_none());
        drop(first);
        assert!((&mut third).now_or_never().is_none(), "it came later");
        drop((&mut second).now_or_never().expect("it is the first now"));
        drop(third.now_or_never().expect("it is the first now"));
        assert!(!rooms.is_occupied(&work));
    }

    #[tokio::test]
    async fn each_level_of_a_queue_has_a_room_for_as_long_as_messages_wait() {
        let (rooms, model) = (WaitingRooms::default(), ModelKey { name: "m".into(), version: 1 });
        let first = rooms.enter(&message_at(&model, 1, 1)).await;
        assert!(!rooms.is_occupied(&message_at(&model, 2, 2)), "another level");
        let other = ModelKey { name: "other".into(), version: 1 };
        assert!(!rooms.is_occupied(&message_at(&other, 1, 3)), "another queue");
        drop(first);
        drop(rooms.enter(&message_at(&model, 2, 4)).await);
        assert_eq!(rooms.0.lock().len(), 1, "the first room is gone");
    }
}
