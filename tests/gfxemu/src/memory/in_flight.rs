//! Loads and stores in flight.

use crate::atomic::AtomicUpdate;
use crate::random::Random;
use std::collections::HashMap;

/// A store in flight.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) wave: u32,
    pub(super) block: u32,
    /// The number of the store, in the wave and in the launch.
    pub(super) store: u32,
    pub(super) turn: u64,
    pub(super) address: u64,
    pub(super) bytes: [u8; 16],
    pub(super) len: usize,
    /// Whether it bypasses the caches.
    pub(super) through: bool,
    /// The time when it reached the cache of its block; 0 before that.
    pub(super) arrived: u64,
}

impl Pending {
    pub(super) fn meets(&self, address: u64, len: usize) -> bool {
        self.address < address + len as u64 && address < self.address + self.len as u64
    }
    /// Copies the overlap with a range of addresses into `out`.
    pub(super) fn lay_over(&self, address: u64, out: &mut [u8]) {
        for (k, byte) in out.iter_mut().enumerate() {
            let at = (address + k as u64).checked_sub(self.address).map(|at| at as usize);
            if let Some(at) = at.filter(|&at| at < self.len) {
                *byte = self.bytes[at];
            }
        }
    }
}

/// The old value of a byte that was overwritten.
#[derive(Clone, Copy, Debug)]
pub(super) struct OverwrittenByte {
    /// The times from which other blocks, and the own block, may see the new byte.
    pub(super) time: u64,
    pub(super) arrived: u64,
    pub(super) wave: u32,
    pub(super) block: u32,
    pub(super) byte: u8,
}

/// Stores in flight, and old bytes that caches may still contain.
#[derive(Debug)]
pub(super) struct StoresInFlight {
    pub(super) random: Random,
    pub(super) turns: u64,
    /// Stores before the caches, and stores in the caches of the blocks.
    pub(super) front: Vec<Pending>,
    pub(super) cached: Vec<Pending>,
    pub(super) old: HashMap<u64, Vec<OverwrittenByte>>,
}

/// An atomic in flight.
#[derive(Debug)]
pub(super) struct PendingAtomic {
    pub wave: u32,
    pub store: u32,
    pub address: u64,
    pub size: usize,
    pub change: AtomicUpdate,
    pub by: u128,
}
