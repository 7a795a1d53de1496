//! Counts of the server.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

/// Counts of the server. The scheduler has its own.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Number of open connections.
    pub connections: AtomicU64,
    /// Answers by route and status. Routes are the router's, so they are few.
    pub(super) answers: Mutex<BTreeMap<(&'static str, u16), u64>>,
}

impl Metrics {
    /// Counts an answer that has begun.
    pub fn answered(&self, route: &'static str, status: u16) {
        *self
            .answers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry((route, status))
            .or_default() += 1;
    }
}
