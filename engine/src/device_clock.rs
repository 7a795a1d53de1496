//! Converts the clock of a device to the clock of a trace.

use crate::driver::{Event, Stream};
use crate::error::Result;
use crate::trace::Trace;

/// The clock of a device in a trace.
pub struct DeviceClock {
    pub(super) trace: Trace,
    pub(super) zero: Event,
    pub(super) at_us: f64,
    pub(super) track: String,
}

impl DeviceClock {
    /// The clock for a second row of the trace, whose name is the device's name and `name`.
    #[must_use]
    pub fn row(&self, name: &str) -> DeviceClock {
        let DeviceClock { trace, zero, at_us, track } = self;
        DeviceClock {
            trace: trace.clone(),
            zero: zero.clone(),
            at_us: *at_us,
            track: format!("{track} {name}"),
        }
    }

    /// Adds the span between two timed events that have completed.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if an event was not recorded or has not completed.
    pub fn span(&self, name: impl Into<String>, from: &Event, to: &Event) -> Result<()> {
        let at = self.at_us + f64::from(from.milliseconds_since(&self.zero)?) * 1e3;
        self.trace.add(
            self.track.as_str(),
            name,
            at,
            f64::from(to.milliseconds_since(from)?) * 1e3,
        );
        Ok(())
    }
}

impl Trace {
    /// Relates the clock of a device to the clock of the trace. It waits until the stream is idle,
    /// so use it during setup only.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver).
    pub fn device_clock(&self, stream: &Stream) -> Result<DeviceClock> {
        let zero = stream.device().timed_event()?;
        stream.synchronize()?;
        stream.record(&zero)?;
        zero.synchronize()?;
        // The host sees the event some microseconds late, so the rows of devices are drawn that
        // much later.
        Ok(DeviceClock {
            trace: self.clone(),
            zero,
            at_us: self.now_us(),
            track: stream.device().label().to_owned(),
        })
    }
}
