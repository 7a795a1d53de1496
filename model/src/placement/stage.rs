//! What a stage does for the one behind it.

use crate::gpu::GpuRunner;
use crate::graph::Graph;
use crate::host::HostRunner;
use crate::session::SessionError;
use kjit_engine::{Device, DeviceBuffer, Stream};

/// Where a stage is.
#[derive(Debug, Clone)]
pub enum Place {
    /// On the CPU.
    Cpu,
    /// On this device.
    Gpu(Device),
}

/// A runner, whose own `before` is the stage before it.
pub(crate) enum Stage {
    /// On the CPU.
    Host(Box<HostRunner>),
    /// On a GPU.
    Gpu(Box<GpuRunner>),
}

/// Successive tokens of one sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub slot: usize,
    /// Position of the first.
    pub first: usize,
    pub tokens: &'a [u32],
}

/// Rows that a stage has made, where they are.
pub(crate) enum Made<'a> {
    /// In the host's memory.
    Host(&'a [f32]),
    /// On a device, once all that is in the stream now is done. What comes into that stream
    /// afterwards may write over them.
    Device(&'a Stream, DeviceBuffer<f32>),
}

/// Takes rows: the number of the first among all that were asked for, and the rows.
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

    /// Room for a sequence in this slot, here and in all stages before.
    pub(crate) fn add(&mut self, slot: usize) -> Result<(), SessionError> {
        match self {
            Stage::Host(host) => host.add(slot),
            Stage::Gpu(gpu) => gpu.add(slot),
        }
    }

    /// Forgets a slot's sequence.
    pub(crate) fn remove(&mut self, slot: usize) {
        match self {
            Stage::Host(host) => host.remove(slot),
            Stage::Gpu(gpu) => gpu.remove(slot),
        }
    }

    /// Makes a slot begin as the first `len` tokens of another; the number of tokens that it has
    /// then.
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

    /// Runs these tokens and hands their rows on, in the order of the pieces, one piece's behind
    /// the other's. What a sequence has from a piece's first position on is forgotten before.
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
