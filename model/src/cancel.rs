//! Work that somebody may stop waiting for: it looks now and then whether he has.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Says to work that nobody waits for it any more. Copies say the same.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Nobody waits any more.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether that was said.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
