//! A stage and its interface to the next one: hidden states of pieces of sequences.

use crate::gpu::GpuRunner;
use crate::graph::Graph;
use crate::host::HostRunner;
use crate::session::SessionError;
use kjit_engine::{Device, DeviceBuffer, Stream};

/// The place of a stage.
#[derive(Debug, Clone)]
pub enum Place {
    /// The CPU.
    Cpu,
    /// This device.
    Gpu(Device),
}

/// The runner of a stage. Its `before` is the stage before it.
pub(crate) enum Stage {
    /// The CPU's runner.
    Host(Box<HostRunner>),
    /// A GPU's runner.
    Gpu(Box<GpuRunner>),
}

/// Consecutive tokens of one sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub slot: usize,
    /// The first token's position.
    pub first: usize,
    pub tokens: &'a [u32],
}

/// Hidden states that a stage computed.
pub(crate) enum Made<'a> {
    /// In host memory.
    Host(&'a [f32]),
    /// On a device, valid after all work that is in the stream now. Later work in that stream may
    /// overwrite them.
    Device(&'a Stream, DeviceBuffer<f32>),
}

/// Receives hidden states with the number of the first one among all requested.
pub(crate) type Sink<'a> = dyn FnMut(usize, Made<'_>) -> Result<(), SessionError> + 'a;

impl Stage {
    pub(crate) fn graph(&self) -> &Graph {
        match self {
            Stage::Host(host) => host.graph(),
            Stage::Gpu(gpu) => gpu.graph(),
        }
    }

    pub(crate) fn before(&self) -> Option<&Stage> {
        match self {
            Stage::Host(host) => host.before(),
            Stage::Gpu(gpu) => gpu.before(),
        }
    }

    /// Allocates a sequence's state in this slot, here and in all stages before.
    pub(crate) fn add(&mut self, slot: usize) -> Result<(), SessionError> {
        match self {
            Stage::Host(host) => host.add(slot),
            Stage::Gpu(gpu) => gpu.add(slot),
        }
    }

    /// Removes a slot's sequence.
    pub(crate) fn remove(&mut self, slot: usize) {
        match self {
            Stage::Host(host) => host.remove(slot),
            Stage::Gpu(gpu) => gpu.remove(slot),
        }
    }

    /// Copies the first `len` tokens of a slot's state to another. Returns the number of tokens
    /// copied.
    pub(crate) fn copy(
        &mut self,
        from: usize,
        to: usize,
        len: usize,
    ) -> Result<usize, SessionError> {
        match self {
            Stage::Host(host) => host.copy(from, to, len),
            Stage::Gpu(gpu) => gpu.copy(from, to, len),
        }
    }

    /// Runs these tokens and passes their hidden states on in the order of the pieces. The
    /// sequence's tokens from a piece's first position on are removed before.
    pub(crate) fn rows(
        &mut self,
        pieces: &[Piece<'_>],
        sink: &mut Sink<'_>,
    ) -> Result<(), SessionError> {
        match self {
            Stage::Host(host) => host.rows(pieces, sink),
            Stage::Gpu(gpu) => gpu.rows(pieces, sink),
        }
    }
}
