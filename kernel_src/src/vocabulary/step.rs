//! A family's work as a step of a kernel of many steps ([`persistent`](crate::persistent)).

use crate::vocabulary::kernel::{SpecError, require};
use crate::vocabulary::shape::Shape;
use kjit_engine::{MatrixUnit, Target};
use kjit_formats::layout::{Groups, Layout};

/// Threads that compute, in a block.
const THREADS: u32 = 256;

/// What a launch has for all of its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inside {
    /// Lanes in a wave.
    pub wave: u32,
    /// Threads of a block that compute.
    pub threads: u32,
    /// Weights come through a ring in shared memory.
    pub streams: bool,
    /// So do chosen experts', and each block chooses for itself.
    pub routed: bool,
    /// Sequences that have a token each.
    pub sequences: usize,
    /// Devices, each of which has such a launch for its share of the model.
    pub ranks: usize,
}

impl Inside {
    /// What suits a target, for a token of each of so many sequences, on so many devices.
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

/// Rows of weights that stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Of a row.
    pub bytes: usize,
    /// Units of a row.
    pub units: usize,
    /// Rows.
    pub rows: usize,
}

/// A family's work inside of a kernel of many steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The file that has it.
    pub header: &'static str,
    /// The struct of its arguments.
    pub args: &'static str,
    /// What is called: `S` is the step's shape, `a` its arguments, `share` the share, `lds` and
    /// `pool` its shared memory.
    pub call: &'static str,
    /// The type of `lds`, if it has one.
    pub lds: Option<&'static str>,
    /// The constants.
    pub shape: Shape,
    /// Bytes of `pool`.
    pub pool: u32,
    /// The first size of the step's grid; none: that of its launch.
    pub shares: Option<u32>,
    /// Its grid's second size, and what its first is spread over, are so many times those of its
    /// launch.
    pub parts: u32,
    /// Each block has one share; an argument `blocks` is how many there are.
    pub of_all_blocks: bool,
    /// Weights that come through the ring.
    pub records: Vec<Record>,
    /// The values that its `x` may be as packets, here and below of all sequences.
    pub takes: Option<usize>,
    /// The argument whose values it can hand over as packets, and how many they are.
    pub hands: Option<(&'static str, usize)>,
    /// The values that it may be handed one by one, as they are: queries, keys and values of
    /// attention, else its `x` or scores.
    pub takes_values: Option<usize>,
    /// The values of all of its results, which it can hand over so.
    pub hands_values: Option<usize>,
    /// What the warp beside does for it, all its lanes: asks for weights.
    pub beside: Option<&'static str>,
    /// It is called as a function of its own: the registers that it alone takes are saved for it,
    /// not for all steps.
    pub apart: bool,
    /// Keys and values lie in pages.
    pub paged: bool,
    /// It is a sum over several devices: each such instruction has a number of its own.
    pub sums: bool,
}

/// Values that their makers hand to their readers one by one, instead of all blocks meeting:
/// `gpu/packets.h`.
pub mod packets {
    /// Values that share a scale.
    pub const GROUP: usize = 16;

    /// Bytes of so many values.
    #[must_use]
    pub const fn bytes(values: usize) -> usize {
        values / GROUP * (3 * 16 + 8)
    }

    /// Bytes of so many that are handed over as they are.
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

/// Weights whose rows such a kernel has: those without a table of vectors, and with scales that
/// `gpu/stream.h` loads.
pub(crate) fn covered(kernel: &'static str, layout: &Layout) -> Result<(), SpecError> {
    let plain =
        [Groups::None, Groups::BytePair, Groups::NibblePair, Groups::Signed16, Groups::Signed32];
    require(layout.vectors.is_none() && plain.contains(&layout.groups), kernel, || {
        format!("{} has no part in a persistent kernel yet", layout.format)
    })
}
