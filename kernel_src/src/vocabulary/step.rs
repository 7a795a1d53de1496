//! A family's work as a step of a kernel of many steps ([`persistent`](crate::persistent)).

use crate::vocabulary::kernel::{SpecError, require};
use crate::vocabulary::shape::Shape;
use kjit_engine::{MatrixUnit, Target};
use kjit_formats::layout::{Groups, Layout};

/// Computing threads of a block.
const THREADS: u32 = 256;

/// Properties of a launch, for all of its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inside {
    /// Lanes in a wave.
    pub wave: u32,
    /// Threads of a block that compute.
    pub threads: u32,
    /// Weights come through a ring in shared memory.
    pub streams: bool,
    /// Chosen experts' weights also do, and each block makes the choice.
    pub routed: bool,
    /// Sequences, with a token each.
    pub sequences: usize,
    /// Devices, each of which has such a launch for its share of the model.
    pub ranks: usize,
}

impl Inside {
    /// The default of a target, for a token of each of `sequences` sequences, on `ranks` devices.
    #[must_use]
    pub fn of(target: &Target, sequences: usize, ranks: usize) -> Inside {
        let streams = target.arch().matrix == MatrixUnit::Wgmma;
        Inside {
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
    /// Rows.
    pub rows: usize,
}

/// A family's work in a kernel of many steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Its header.
    pub header: &'static str,
    /// The struct of its arguments.
    pub args: &'static str,
    /// The call: `S` is the step's shape, `a` its arguments, `share` the share, `lds` and `pool`
    /// its shared memory.
    pub call: &'static str,
    /// The type of `lds`, if it has one.
    pub lds: Option<&'static str>,
    /// The constants.
    pub shape: Shape,
    /// Bytes of `pool`.
    pub pool: u32,
    /// The first size of the step's grid; `None`: that of its launch.
    pub shares: Option<u32>,
    /// The grid's second size, and the range of its first size, are multiplied by this.
    pub parts: u32,
    /// Each block has one share; the argument `blocks` is their number.
    pub of_all_blocks: bool,
    /// Weights that come through the ring.
    pub records: Vec<Record>,
    /// Values of `x`, if it may come as packets; here and below for all sequences.
    pub takes: Option<usize>,
    /// The argument whose values it can hand over as packets, and their number.
    pub hands: Option<(&'static str, usize)>,
    /// Values that it may receive one by one: queries, keys and values of attention, else its `x`
    /// or scores.
    pub takes_values: Option<usize>,
    /// Values of all of its results, which it can hand over one by one.
    pub hands_values: Option<usize>,
    /// The extra warp's code for it, all its lanes: loads weights.
    pub beside: Option<&'static str>,
    /// It is a function of its own: only its call saves the extra registers, not all steps.
    pub apart: bool,
    /// Keys and values are in pages.
    pub paged: bool,
    /// It is a sum over several devices: each such instruction has a number of its own.
    pub sums: bool,
}

/// Values handed from makers to readers one by one, instead of a meeting of all blocks:
/// `gpu/packets.h`.
pub mod packets {
    /// Values that share a scale.
    pub const GROUP: usize = 16;

    /// Bytes of `values` values as packets.
    #[must_use]
    pub const fn bytes(values: usize) -> usize {
        values / GROUP * (3 * 16 + 8)
    }

    /// Bytes of `values` values one by one.
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

/// Whether such a kernel covers these weights: no codebook, and scales that `gpu/stream.h` loads.
pub(crate) fn covered(kernel: &'static str, layout: &Layout) -> Result<(), SpecError> {
    let plain =
        [Groups::None, Groups::BytePair, Groups::NibblePair, Groups::Signed16, Groups::Signed32];
    require(layout.vectors.is_none() && plain.contains(&layout.groups), kernel, || {
        format!("{} has no part in a persistent kernel yet", layout.format)
    })
}
