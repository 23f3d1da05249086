//! Which waiting requests run together: the pure part of batching.
//!
//! A [`BatchPolicy`] sees what waits and what time it is and decides; the queue and the instance threads around it live
//! in `queue`. [`OneAtATime`] is the policy of stages that gain nothing from batches; `services/model` has the dynamic
//! batcher.

use std::time::Instant;

/// What a policy knows of a waiting request.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// When it entered this worker's queue.
    pub arrived: Instant,
    /// Rows it brings: its batch dimension, 1 for models without one.
    pub rows: u32,
    /// Requests with equal signatures have inputs of equal names, datatypes and shapes (batch dimension aside).
    pub signature: u64,
    /// Priority level, 1 highest.
    pub priority: u32,
}

/// What an idle instance shall do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Execute these, by index into the queue; never empty, each index at most once.
    Run(Vec<usize>),
    /// Ask again when something arrives, and no later than this.
    WaitUntil(Instant),
    /// Ask again when something arrives.
    Wait,
}

/// Chooses the next batch. Pure: the same queue at the same time gives the same decision.
pub trait BatchPolicy: Send + Sync {
    /// What an idle instance shall do about `waiting`, which is in arrival order.
    fn decide(&self, waiting: &[Candidate], now: Instant) -> Decision;

    /// The most rows that one execution takes: what the worker keeps at hand follows from it.
    fn max_rows(&self) -> u32;
}

/// Every request runs alone, oldest first.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneAtATime;

impl BatchPolicy for OneAtATime {
    fn decide(&self, waiting: &[Candidate], _now: Instant) -> Decision {
        match waiting.is_empty() {
            true => Decision::Wait,
            false => Decision::Run(vec![0]),
        }
    }

    fn max_rows(&self) -> u32 {
        1
    }
}
