//! The minimum rate of a transfer.

use std::time::{Duration, Instant};

/// The minimum rate of a transfer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MinRate {
    /// Minimum bytes per second; 0: no minimum.
    pub rate: u64,
    /// Time over which the rate is measured.
    pub window: Duration,
}

impl MinRate {
    /// Minimum bytes in a window.
    pub fn of_window(&self) -> u64 {
        // Realistic rates are far below 2^53, so the product is exact.
        (self.rate as f64 * self.window.as_secs_f64()) as u64
    }
}

/// Measures the rate of one transfer.
pub(crate) struct RateMeter {
    least: MinRate,
    since: Instant,
    came: u64,
}

impl RateMeter {
    pub fn new(least: MinRate) -> RateMeter {
        RateMeter { least, since: Instant::now(), came: 0 }
    }

    /// Adds received bytes.
    ///
    /// # Errors
    /// A window ended with too few bytes. The error is the rate in bytes per second.
    pub fn came(&mut self, bytes: usize) -> Result<(), u64> {
        self.came += bytes as u64;
        let took = self.since.elapsed();
        if took < self.least.window {
            return Ok(());
        }
        let rate = (self.came as f64 / took.as_secs_f64().max(1e-9)) as u64;
        (self.since, self.came) = (Instant::now(), 0);
        if rate < self.least.rate { Err(rate) } else { Ok(()) }
    }
}
