//! The end of a rank's runner.

use crate::exchange::Exchange;
use kjit_engine::Stream;
use std::time::{Duration, Instant};

/// The time limit for a device to become idle after an abort. The library's kernels poll for the
/// abort, and ending the library's group may take seconds. After the limit the device is abandoned.
pub(super) const ABORT_TIMEOUT: Duration = Duration::from_secs(8);

/// Shuts down a rank's runner. All ranks launch the same steps after the last token, except a rank
/// that was interrupted one token earlier. In that case the device would wait for a sum that never
/// completes, and freeing memory would also wait.
pub(super) struct RankShutdown(pub(super) Exchange, pub(super) Stream);

impl Drop for RankShutdown {
    fn drop(&mut self) {
        let RankShutdown(meeting, stream) = self;
        // The watchdog aborts the sum: 2 s after the end of another rank, or after 10 s if the
        // other rank hangs.
        let _waiting = meeting.waiting();
        let mut over = None;
        // A failed device has no work in flight.
        while matches!(stream.is_idle(), Ok(false)) {
            if over.is_none() && meeting.is_over() {
                over = Some(Instant::now());
            }
            if over.is_some_and(|since: Instant| since.elapsed() > ABORT_TIMEOUT) {
                return stream.device().leave();
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        // Captured work of the library would be returned to a group that no longer exists.
        if meeting.is_over() {
            stream.device().leave();
        }
    }
}
