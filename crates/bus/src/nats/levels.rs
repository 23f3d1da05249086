//! Pulling from a queue of several priority levels, each a stream of its own: what waits at a higher level is taken first.
//!
//! While nothing waits, a request for one message is open at each level. It stays open when something comes at another
//! level, for [`EXPIRES`]: so long a worker that has become busy may get one message for each level beyond its room, and
//! execute it before what comes later at higher levels.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::select_all;

use super::puller::NatsPuller;
use crate::{BusError, Delivery, Puller};

/// How soon lower levels are looked at again while there is no room to wait at each of them.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How long a request is open while nothing waits: JetStream has no way to take one back, and what it brings to a worker
/// that is busy by then goes before higher levels.
pub const EXPIRES: Duration = Duration::from_millis(100);

pub struct LevelPuller {
    /// By level, the highest first.
    levels: Vec<(u32, NatsPuller)>,
    /// Taken, and not given out because the caller went away.
    gathered: Vec<Delivery>,
}

// === impl LevelPuller ===

impl LevelPuller {
    pub fn new(levels: Vec<(u32, NatsPuller)>) -> LevelPuller {
        LevelPuller { levels, gathered: Vec::new() }
    }
}

#[async_trait]
impl Puller for LevelPuller {
    async fn next(&mut self, room: usize) -> Result<Vec<Delivery>, BusError> {
        if room == 0 && self.gathered.is_empty() {
            let (deliveries, _, _) = select_all(self.levels.iter_mut().map(|(_, puller)| puller.next(0))).await;
            return deliveries;
        }
        loop {
            for index in 0..self.levels.len() {
                let free = room.saturating_sub(self.gathered.len());
                self.levels[index].1.take_waiting(free, &mut self.gathered).await?;
            }
            if !self.gathered.is_empty() {
                return Ok(std::mem::take(&mut self.gathered));
            }
            if room < self.levels.len() {
                tokio::time::sleep(LOOK_AGAIN).await;
                continue;
            }
            // Nothing waits anywhere: an open request for one message at each level.
            let waiting = self.levels.iter_mut().map(|(_, puller)| puller.next(1));
            let (deliveries, _, _) = select_all(waiting).await;
            return deliveries;
        }
    }

    async fn overdue(&mut self, level: u32, age: Duration) -> Result<Vec<Delivery>, BusError> {
        match self.levels.iter_mut().find(|(of, _)| *of == level) {
            Some((_, puller)) => puller.overdue(level, age).await,
            None => Ok(Vec::new()),
        }
    }

    async fn stop(&mut self) -> Option<Vec<Delivery>> {
        if !self.gathered.is_empty() {
            return Some(std::mem::take(&mut self.gathered));
        }
        // Each waits for the end of its open requests.
        while !self.levels.is_empty() {
            let stopping = self.levels.iter_mut().map(|(_, puller)| puller.stop());
            let (given, puller, _) = select_all(stopping).await;
            match given {
                Some(deliveries) => return Some(deliveries),
                None => drop(self.levels.remove(puller)),
            }
        }
        None
    }
}
