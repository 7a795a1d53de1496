//! The runner as the stage of a session ([`Runner`]) and as the host part of a GPU ([`HostOps`]).

use super::HostRunner;
use crate::simd::Isa;
use kjit_exec::{
    HiddenStatesSink, HostOps, ImageTable, MaskCallback, OpenOptions, PageCount, Runner,
    SessionError, StepOutput, Task, TokenSpan as Tokens,
};
use kjit_gguf::Gguf;
use kjit_graph::{Graph, StateKind};
use std::sync::Arc;

impl Runner for HostRunner {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn before(&self) -> Option<&dyn Runner> {
        self.before.as_deref()
    }

    fn add(&mut self, slot: usize) -> Result<(), SessionError> {
        HostRunner::add(self, slot)
    }

    fn adapt(&mut self, slot: usize, factors: &[f32]) -> Result<(), SessionError> {
        HostRunner::adapt(self, slot, factors)
    }

    fn write_tensor(&mut self, tensor: &str, bytes: &[u8]) -> Result<(), SessionError> {
        HostRunner::write_tensor(self, tensor, bytes)
    }

    fn page_format(&self) -> Option<String> {
        let here = |s: &kjit_graph::State| match s.kind {
            StateKind::Kv(_) | StateKind::Latent { .. } => true,
            StateKind::Recurrent { .. } | StateKind::Remote => false,
        };
        let all = self.before.is_none() && self.graph.states.iter().all(here);
        let kinds: Vec<&StateKind> = self.graph.states.iter().map(|s| &s.kind).collect();
        all.then(|| {
            format!(
                "cpu {:?} {} precise={} reproducible={} copies={} {kinds:?}",
                self.kv,
                self.isa.name(),
                self.precise,
                self.reproducible,
                self.weights.laid_out() > 0
            )
        })
    }

    fn read_page(&mut self, slot: usize, at: usize) -> Result<Vec<u8>, SessionError> {
        let (state, page) = (self.states.get_mut(slot), PageCount::POSITIONS);
        let bytes = state.and_then(Option::as_mut).and_then(|state| state.save(at * page, page));
        bytes.ok_or(SessionError::NoTokens)
    }

    fn write_page(
        &mut self,
        slot: usize,
        at: usize,
        tokens: &[u32],
        bytes: &[u8],
    ) -> Result<bool, SessionError> {
        let Some(Some(state)) = self.states.get_mut(slot) else { return Ok(false) };
        Ok(state.position() == at * PageCount::POSITIONS && state.load(tokens, bytes))
    }

    fn remove(&mut self, slot: usize) {
        HostRunner::remove(self, slot);
    }

    fn copy(&mut self, from: usize, to: usize, len: usize) -> Result<usize, SessionError> {
        HostRunner::copy(self, from, to, len)
    }

    fn truncate(&mut self, slot: usize, len: usize, now: usize) -> usize {
        if len < now { HostRunner::truncate(self, slot, len) } else { now }
    }

    fn undo(&mut self, slot: usize, len: usize) -> usize {
        HostRunner::truncate(self, slot, len)
    }

    fn rows(
        &mut self,
        pieces: &[Tokens<'_>],
        sink: &mut HiddenStatesSink<'_>,
    ) -> Result<(), SessionError> {
        HostRunner::rows(self, pieces, sink)
    }

    fn step(
        &mut self,
        tasks: &mut [Task<'_>],
        late: Option<MaskCallback<'_>>,
    ) -> Result<Vec<StepOutput>, SessionError> {
        if let Some(late) = late {
            late(tasks);
        }
        HostRunner::step(self, tasks)
    }

    fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, SessionError> {
        HostRunner::embed(self, tokens)
    }

    fn set_images(&mut self, table: &Arc<ImageTable>) -> Result<(), SessionError> {
        HostRunner::set_images(self, table)
    }

    fn grows(&self) -> bool {
        self.before.is_none()
    }

    fn checkpoint(&mut self, slot: usize) -> bool {
        HostRunner::checkpoint(self, slot)
    }
}

/// The only sequence of the runner that [`open_ops`] creates. The operations store no state in it.
const SLOT: usize = 0;

/// Prepares the CPU for the operations of a graph that a GPU does not compute.
///
/// # Errors
/// See [`HostRunner::new`].
pub fn open_ops(
    file: Arc<Gguf>,
    graph: Graph,
    options: &OpenOptions,
) -> Result<Box<dyn HostOps>, SessionError> {
    let mut host = HostRunner::new(file, graph, options, Isa::best())?;
    host.add(SLOT)?;
    // A layer of the GPU takes tens of µs, about as long as threads wait before they sleep. Waking
    // them takes longer.
    host.spin_longer();
    Ok(Box::new(host))
}

impl HostOps for HostRunner {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn context(&self) -> usize {
        self.context
    }

    fn run_op(
        &mut self,
        op: usize,
        first: usize,
        tokens: &[u32],
        inputs: &[&[f32]],
    ) -> Result<Vec<Vec<f32>>, SessionError> {
        HostRunner::run_op(self, SLOT, op, first, tokens, inputs)
    }
}
