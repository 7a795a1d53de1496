//! What the CPU computes in the midst of a pass: rows come from the device, and go back to it.
//!
//! The device waits meanwhile, and the host waits for the device before: two waits for each layer.

use super::plan::{Pause, Plan, Program};
use crate::gguf::Gguf;
use crate::graph::{Graph, Op, State, StateKind};
use crate::host::{HostRunner, Isa};
use crate::session::{OpenOptions, SessionError};
use kjit_engine::{Device, DeviceBuffer, Error, PinnedBuffer, Result, Stream};
use std::sync::{Arc, Mutex, PoisonError};

/// The CPU's part of a model whose other parts are on a device.
pub(super) struct Aside {
    host: Mutex<HostRunner>,
    rows: PinnedBuffer<f32>,
    /// Rows that the CPU takes at once.
    chunk: usize,
}

impl Aside {
    /// For a graph's operations that are elsewhere; none where there are none.
    pub fn new(
        device: &Device,
        gguf: &Arc<Gguf>,
        graph: &Graph,
        plan: &Plan,
        options: &OpenOptions,
    ) -> std::result::Result<Option<Aside>, SessionError> {
        let ops: Vec<Op> = graph.ops.iter().filter(|op| matches!(op, Op::Elsewhere(_))).cloned().collect();
        let widths = ops.iter().flat_map(|op| [op.reads(), op.writes()]).flatten();
        let Some(width) = widths.map(|v| graph.value(v).width).max() else { return Ok(None) };
        let tokens = plan.programs().iter().map(|p| p.tokens as usize).max().unwrap_or(1);
        let states = graph.states.iter().map(|s| State { kind: StateKind::Elsewhere, ..s.clone() }).collect();
        let part = Graph { ops, states, ropes: vec![], hands_on: true, ..graph.clone() };
        // As many positions as a piece has rows: an operation without a state knows no other.
        let options = OpenOptions { context: Some(tokens), ..options.clone() };
        let mut host = HostRunner::new(Arc::clone(gguf), part, &options, Isa::best())?;
        host.add(SLOT)?;
        let (rows, chunk) = (device.pinned(tokens * width)?, options.chunk_on_cpu());
        Ok(Some(Aside { host: Mutex::new(host), rows, chunk }))
    }

    /// Computes what comes at a pause, for so many rows.
    pub fn compute(
        &self,
        stream: &Stream,
        pause: &Pause,
        rows: usize,
        (from, to): (&DeviceBuffer<f32>, &DeviceBuffer<f32>),
    ) -> Result<()> {
        let here = self.rows.slice(..from.len())?;
        stream.copy_out(from, &here)?;
        stream.synchronize()?;
        let mut host = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        let ids = vec![0; self.chunk.min(rows)];
        let (x, mut made) = (here.read(<[f32]>::to_vec)?, vec![]);
        for part in x.chunks((from.len() / rows.max(1) * self.chunk).max(1)) {
            let tokens = part.len() * rows / from.len().max(1);
            let out = host.run_op(SLOT, pause.op, 0, ids.get(..tokens).unwrap_or_default(), &[part]);
            made.extend(out.map_err(|e| Error::Buffer(e.to_string()))?.into_iter().flatten());
        }
        let here = self.rows.slice(..to.len())?;
        here.write(|there| there.iter_mut().zip(&made).for_each(|(there, x)| *there = *x))?;
        stream.copy_in(&here, to)
    }
}

/// The sequence that the host's operations are given; they keep nothing of it.
const SLOT: usize = 0;

/// Elements of a buffer's rows of singles, of which a program has so many.
pub(super) fn rows_of(program: &Program, buffer: &DeviceBuffer<f32>, rows: usize) -> Result<DeviceBuffer<f32>> {
    buffer.slice(..buffer.len() / (program.tokens as usize).max(1) * rows)
}
