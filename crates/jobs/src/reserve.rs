//! Bytes that lie in the store for the time when it is full. A job is cancelled by a write over its record, and a broker whose store is full
//! refuses that too. Then a piece of the reserve is deleted, and the write is tried again.
//!
//! Gateways share the reserve. In one process the bus has a reserve of its own.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use trireme_bus::{Bucket, BusError};

use crate::jobs::Jobs;

/// The pieces and their bytes. Each has room for dozens of records, and a record that is replaced gives its own room back.
const PIECES: u32 = 8;
const PIECE: usize = 128 << 10;

fn key(piece: u32) -> String {
    format!("reserve.{piece}")
}

// === impl Jobs ===

impl Jobs {
    /// Deletes a piece of the reserve. Returns whether there was one.
    pub(crate) async fn use_reserve(&self) -> Result<bool, BusError> {
        if !self.0.bus.is_shared() {
            return Ok(false);
        }
        self.0.reserve_is_short.store(true, Ordering::Relaxed);
        for piece in 0..PIECES {
            if self.0.bus.delete(Bucket::Objects, &key(piece), None).await? {
                tracing::warn!("the store of jobs is full; a piece of its reserve is used");
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Fills the reserve up, if pieces may be missing: after the start, and after one was used.
    pub(crate) async fn fill_reserve(&self) {
        if !self.0.bus.is_shared() || !self.0.reserve_is_short.swap(false, Ordering::Relaxed) {
            return;
        }
        for piece in 0..PIECES {
            let (key, zeros) = (key(piece), Bytes::from(vec![0; PIECE]));
            let put = self.0.bus.put(Bucket::Objects, &key, zeros, Some(0), None);
            match put.await {
                Ok(_) | Err(BusError::Conflict { .. }) => {}
                Err(error) => {
                    tracing::debug!(%error, "the reserve of the store of jobs cannot be filled up yet");
                    return self.0.reserve_is_short.store(true, Ordering::Relaxed);
                }
            }
        }
    }
}
