//! Counters of a device's operations. Tests assert with them that a decoded token needs no
//! allocation, synchronisation or copy of weights.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the device was opened. The difference of two snapshots shows what happened
        /// in between.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The running counters.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub $name: AtomicU64,)*
        }

        impl Counters {
            pub fn now(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl std::ops::Sub for Counts {
            type Output = Counts;
            fn sub(self, earlier: Counts) -> Counts {
                Counts { $($name: self.$name.saturating_sub(earlier.$name),)* }
            }
        }
    };
}

counters! {
    /// Device memory allocations by the driver.
    allocations,
    /// Device memory frees by the driver.
    frees,
    /// Page-locked allocations and registrations.
    pinned,
    /// Waits of the host for the device.
    synchronisations,
    /// Copies from host to device.
    copies_in,
    /// Bytes of these copies.
    bytes_in,
    /// Copies from device to host.
    copies_out,
    /// Bytes of these copies.
    bytes_out,
    /// Copies and fills within the device.
    copies_within,
    /// Kernel launches, including captured ones.
    launches,
    /// Graphs replayed.
    replays,
    /// Graphs captured.
    captures,
    /// Modules loaded.
    modules,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
