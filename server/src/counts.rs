//! Counters of the server.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

/// Counters of the server. The scheduler has other counters.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Number of open connections.
    pub connections: AtomicU64,
    /// Number of answers by route and status. Keys are patterns of the router, so there are few.
    pub(super) answers: Mutex<BTreeMap<(&'static str, u16), u64>>,
}

impl Metrics {
    /// Counts an answer that has started.
    pub fn answered(&self, route: &'static str, status: u16) {
        *self
            .answers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry((route, status))
            .or_default() += 1;
    }
}
