//! RDNA: the history of a wave.

use crate::facts::{Facts, Unit};
use crate::operand::SCALARS;

/// gfx12's cached copy of a scalar register.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CachedScalar {
    /// Whether vector arithmetic has read the register or its pair, so its value may be cached.
    pub(super) read: bool,
    /// Set when scalar arithmetic has written the register since then: the number of other scalar
    /// instructions after that write.
    pub(super) changed: Option<u32>,
}

/// The history of a wave.
#[derive(Clone, Debug)]
pub struct WaveHistory {
    /// gfx10.1: scalar registers that accesses, or scalar loads, may still be reading.
    pub(super) accessed: [bool; SCALARS],
    pub(super) loading: [bool; SCALARS],
    /// Whether an instruction other than vector arithmetic has read EXEC.
    pub(super) exec_read: bool,
    /// The last access since the last wait for stores, and whether a branch followed it.
    pub(super) access: Option<(Unit, bool)>,
    /// Whether a comparison wrote EXEC and no vector arithmetic followed.
    pub(super) exec_compared: bool,
    /// gfx11: number of vector instructions so far, of transcendental instructions, and of vector
    /// instructions that are certainly complete.
    pub(super) vector: u64,
    pub(super) slow: u64,
    pub(super) done: u64,
    /// The count of vector instructions at each write of EXEC by scalar arithmetic, in order.
    pub(super) exec: Vec<u64>,
    /// Scalar registers that were used as masks, and those of them that scalar arithmetic wrote
    /// after that.
    pub(super) masks: [bool; SCALARS],
    pub(super) late: [bool; SCALARS],
    /// The result registers of the last matrix instruction, if no vector arithmetic followed.
    pub(super) matrix: Option<(u16, u16)>,
    /// gfx12: the cache state of each scalar register.
    pub(super) kept: [CachedScalar; SCALARS],
    /// gfx1250: the last matrix instructions in order, each with the number of vector instructions
    /// after it.
    pub(super) deep: Vec<(Facts, u32)>,
}

impl Default for WaveHistory {
    fn default() -> WaveHistory {
        WaveHistory {
            accessed: [false; SCALARS],
            loading: [false; SCALARS],
            exec_read: false,
            access: None,
            exec_compared: false,
            vector: 0,
            slow: 0,
            done: 0,
            exec: Vec::new(),
            masks: [false; SCALARS],
            late: [false; SCALARS],
            matrix: None,
            kept: [CachedScalar::default(); SCALARS],
            deep: Vec::new(),
        }
    }
}
