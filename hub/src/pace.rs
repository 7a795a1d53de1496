//! Whether a host sends fast enough to be waited for.

use std::time::{Duration, Instant};

/// What a host must send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Least {
    /// Bytes a second; 0: nothing.
    pub rate: u64,
    /// Over so long.
    pub window: Duration,
}

impl Least {
    /// The bytes of one window.
    pub fn of_window(&self) -> u64 {
        // Far below 2^53 for any rate that is one.
        (self.rate as f64 * self.window.as_secs_f64()) as u64
    }
}

/// One answer's bytes against the clock.
pub(crate) struct Pace {
    least: Least,
    since: Instant,
    came: u64,
}

impl Pace {
    pub fn new(least: Least) -> Pace {
        Pace { least, since: Instant::now(), came: 0 }
    }

    /// So many bytes more have come.
    ///
    /// # Errors
    /// The bytes a second of a window that has ended, where they are too few.
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
