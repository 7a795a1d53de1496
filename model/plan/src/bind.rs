//! Arguments of launches.

use crate::choice::SamplingArg;
use crate::dim::Dim;
use kjit_graph::{RopeId, StateId, WeightId};

/// Index of a [`Buffer`](crate::Buffer) in [`Program::buffers`](crate::Program::buffers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(hidden)]
pub struct BufferId(pub u32);

/// Control words in device memory that drive sequences. The host writes them at the start of a
/// call, and the sampler writes them for each token. Each slot has its own control words. Programs
/// for one sequence get the words of one slot, and batches get the words of all slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Control {
    /// `u32`s: token ids by position.
    Tokens,
    /// `u32`s 0, 1, 2 …, one for each position of a context. All slots share them.
    Numbers,
    /// `u32`: the position of the first current token.
    Position,
    /// `u64`: the seed of draws.
    Seed,
    /// Top-k as `u32`, 1 / temperature, top-p, min-p as `f32`.
    Options,
    /// `u32`s: adjustments of the logits before the next choice (`kjit_kernels::changes`).
    Adjustments,
    /// `u32`s: the slot of each decoded sequence, in the order of a batch's rows. All slots share
    /// them.
    Slots,
    /// `u32`s: the page table: the page of each range of positions.
    Pages,
    /// `u32`s: the position of each drafted token's row. All slots share them.
    Places,
    /// `u32`s: the position of each prompt token, if attention is computed separately for each. All
    /// slots share them.
    Each,
    /// `u32`s, initially zero: counters for choices after drafts. All slots share them.
    Turns,
    /// `u32`s: [`PICK`] for each row of drafted tokens; the second word gets the chosen token. All
    /// slots share them.
    Picks,
    /// `f32`s: the factor of each adapter.
    Adapters,
}

/// Words of [`Control::Picks`] in a row: for the previous turn and for the first turn.
pub const PICK: usize = 2;

/// An argument of a reduction over devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum AllReduceArg {
    /// `u32`s: the number of exchanges so far, and related counters.
    Words,
    /// `u32` in host memory: set if a device waited too long.
    Late,
    /// This device's inbox.
    Inbox,
    /// The inbox of the device `1 + n` ranks after this one, cyclically.
    To(u32),
    /// `u64`: packets of an inbox for each device.
    Room,
    /// All parts, gathered by a library.
    Gathered,
    /// This device's inbox for rows of a prompt.
    Rows,
    /// The inbox for rows of the device `1 + n` ranks after this one, cyclically.
    RowsTo(u32),
    /// `u64`: values of that inbox for each device.
    RowsRoom,
    /// `u64`: the time limit in nanoseconds.
    Limit,
}

/// An argument of a launch.
#[derive(Debug, Clone, Copy, PartialEq)]
#[doc(hidden)]
pub enum Bind {
    /// A buffer of the program.
    Buffer(BufferId),
    /// A matrix in the device's layout.
    Matrix(WeightId),
    /// A vector of f32.
    Vector(WeightId),
    /// The table of a rotation: cosines and sines.
    Rope(RopeId),
    /// A cache's keys, or the whole of another state.
    Keys(StateId),
    /// Values of a cache.
    Values(StateId),
    /// A control word.
    Control(Control),
    /// No buffer.
    Null,
    /// A size, as `u32`.
    Dim(Dim),
    /// A `u32`.
    U32(u32),
    /// A `u64`.
    U64(u64),
    /// An `f32`.
    F32(f32),
    /// This number of elements for each token, as `u64`.
    Elements(u64),
    /// An argument of the choice.
    Chosen(SamplingArg),
    /// An argument of a reduction over devices.
    Meeting(AllReduceArg),
    /// Rows that the CPU computed, in host memory.
    HostParts,
}
