//! Cancellation of long work: the work polls a flag that its client sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that tells work to stop. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Sets the flag.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the flag is set.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
