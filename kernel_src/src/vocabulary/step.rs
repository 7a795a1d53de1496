//! A family's work as a step of a kernel of many steps ([`persistent`](crate::persistent)).

use crate::vocabulary::kernel::{SpecError, require};
use crate::vocabulary::shape::Shape;
use kjit_engine::{MatrixUnit, Target};
use kjit_formats::layout::{Groups, Layout};

/// Computing threads of a block.
const THREADS: u32 = 256;

/// Properties of a launch, for all of its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepContext {
    /// Lanes in a wave.
    pub wave: u32,
    /// Threads of a block that compute.
    pub threads: u32,
    /// Whether weights are streamed through a ring in shared memory.
    pub streams: bool,
    /// Whether weights of chosen experts are also streamed through the ring. Then each block
    /// chooses the experts.
    pub routed: bool,
    /// Number of sequences, with one token each.
    pub sequences: usize,
    /// Number of devices. Each one has such a launch for its shard of the model.
    pub ranks: usize,
}

impl StepContext {
    /// The default of a target, for one token of each of `sequences` sequences, on `ranks` devices.
    #[must_use]
    pub fn of(target: &Target, sequences: usize, ranks: usize) -> StepContext {
        let streams = target.arch().matrix == MatrixUnit::Wgmma;
        StepContext {
            wave: target.default_wave(),
            threads: THREADS,
            streams,
            routed: false,
            sequences,
            ranks,
        }
    }
}

/// Rows of streamed weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Bytes of a row.
    pub bytes: usize,
    /// Units of a row.
    pub units: usize,
    /// Number of rows.
    pub rows: usize,
}

/// A family's work in a kernel of many steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Header of the family.
    pub header: &'static str,
    /// Struct of the arguments.
    pub args: &'static str,
    /// The call. `S` is the step's shape, `a` its arguments, `share` the share, `lds` and `pool`
    /// its shared memory.
    pub call: &'static str,
    /// The type of `lds`, if it has one.
    pub lds: Option<&'static str>,
    /// The constants.
    pub shape: Shape,
    /// Bytes of `pool`.
    pub pool: u32,
    /// First size of the step's grid; `None`: as in its launch.
    pub shares: Option<u32>,
    /// The grid's second size, and the range of its first size, are multiplied by this.
    pub parts: u32,
    /// Whether each block has one share; the argument `blocks` is their number.
    pub of_all_blocks: bool,
    /// Rows of weights that are streamed through the ring.
    pub records: Vec<Record>,
    /// Number of values of `x`, if it may arrive as packets. Here and below for all sequences.
    pub takes: Option<usize>,
    /// The argument whose values it can send as packets, and their number.
    pub hands: Option<(&'static str, usize)>,
    /// Number of values that it may receive one by one: queries, keys and values of attention; for
    /// other steps its `x` or scores.
    pub takes_values: Option<usize>,
    /// Number of its results, if it can send them one by one.
    pub hands_values: Option<usize>,
    /// Code of the extra warp for this step, in all its lanes: loads weights.
    pub beside: Option<&'static str>,
    /// Whether it is a separate function: then only its call saves the extra registers, not all
    /// steps.
    pub apart: bool,
    /// Whether keys and values are in pages.
    pub paged: bool,
    /// Whether it is a sum over several devices: each such instruction has its own number.
    pub sums: bool,
}

/// Values sent from makers to readers as packets, instead of a grid barrier: `gpu/packets.h`.
pub mod packets {
    /// Values that share a scale.
    pub const GROUP: usize = 16;

    /// Bytes of `values` values as packets.
    #[must_use]
    pub const fn bytes(values: usize) -> usize {
        values / GROUP * (3 * 16 + 8)
    }

    /// Bytes of `values` values that are sent one by one.
    #[must_use]
    pub const fn values_bytes(values: usize) -> usize {
        values * 8
    }
}

impl Step {
    pub(crate) fn of(
        header: &'static str,
        args: &'static str,
        call: &'static str,
        shape: Shape,
    ) -> Step {
        let (lds, pool, shares, of_all_blocks, records) = (None, 0, None, false, vec![]);
        let (takes, hands, takes_values, hands_values, beside, apart) =
            (None, None, None, None, None, false);
        Step {
            header,
            args,
            call,
            lds,
            shape,
            pool,
            shares,
            parts: 1,
            of_all_blocks,
            records,
            takes,
            hands,
            takes_values,
            hands_values,
            beside,
            apart,
            paged: false,
            sums: false,
        }
    }
}

/// Whether such a kernel supports these weights: no codebook, and scales that `gpu/stream.h` loads.
pub(crate) fn covered(kernel: &'static str, layout: &Layout) -> Result<(), SpecError> {
    let plain =
        [Groups::None, Groups::BytePair, Groups::NibblePair, Groups::Signed16, Groups::Signed32];
    require(layout.vectors.is_none() && plain.contains(&layout.groups), kernel, || {
        format!("{} has no part in a persistent kernel yet", layout.format)
    })
}
