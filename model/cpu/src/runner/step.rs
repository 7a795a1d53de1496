//! Runs steps of tasks: passes of tokens, and within a pass the steps of the plan.

use super::HostRunner;
use super::pass::{PassSpan, StepPass, memory_hint};
use crate::op::run_together;
use crate::run::{Run, StepTokens};
use crate::state::State;
use kjit_exec::{
    FIRST_IMAGE_ID, HiddenStates, HiddenStatesSink, ImageTable, SessionError, StepOutput, Task,
    TokenSpan as Tokens, Want, choose, follow, uncut_images,
};
use kjit_graph::{Op, ValueId};
use std::sync::Arc;

impl HostRunner {
    /// Runs all tasks. After an error the caller rolls the sequences back.
    pub(super) fn step(&mut self, tasks: &mut [Task<'_>]) -> Result<Vec<StepOutput>, SessionError> {
        if self.graph.pooling.is_some() {
            return Err(SessionError::Encoder { arch: self.graph.arch.clone() });
        }
        for t in tasks.iter() {
            self.mark(t.slot, t.first, t.tokens.len());
        }
        let n_vocab = self.graph.n_vocab();
        let mut logits = vec![];
        for t in tasks.iter() {
            let rows = match t.want {
                Want::Nothing => 0,
                Want::Last | Want::Choose => 1,
                Want::All => t.tokens.len(),
                Want::Drafted(n) => n + 1,
            };
            let mut room = vec![];
            room.try_reserve_exact(rows * n_vocab).map_err(|_| SessionError::Memory {
                what: format!("the logits of {rows} tokens"),
                bytes: 4 * (rows as u64).saturating_mul(n_vocab as u64),
                hint: "feed fewer tokens at once".into(),
            })?;
            logits.push((rows, room));
        }
        let mut fed = vec![0; tasks.len()];
        loop {
            let (mut pass, mut of) = (StepPass::default(), vec![]);
            for (i, t) in tasks.iter().enumerate() {
                let rest = &t.tokens[fed[i]..];
                let now = rest.len().min(self.chunk.saturating_sub(pass.tokens.len()));
                let now = self.piece(rest, now);
                if now > 0 {
                    // The requested rows are the last ones of the task's tokens.
                    let (rows, later) = (logits[i].0, rest.len() - now);
                    pass.add(
                        t.slot,
                        t.first + fed[i],
                        &rest[..now],
                        rows.saturating_sub(later).min(now),
                    );
                    fed[i] += now;
                    of.push(i);
                }
            }
            if pass.parts.is_empty() {
                break;
            }
            self.pass(&pass)?;
            let mut rows =
                self.buffers[self.plan.place[self.graph.logits.0 as usize]].chunks_exact(n_vocab);
            for (part, i) in pass.parts.iter().zip(of) {
                rows.by_ref().take(part.wanted).for_each(|row| logits[i].1.extend_from_slice(row));
            }
        }
        let mut logits: Vec<Vec<f32>> = logits.into_iter().map(|(_, rows)| rows).collect();
        let choosing = tasks.iter_mut().zip(&mut logits).filter(|(t, _)| t.want == Want::Choose);
        let mut tokens = choose(choosing.map(|(t, row)| (t, std::mem::take(row))))?.into_iter();
        let given = tasks.iter_mut().zip(logits).map(|(t, rows)| match t.want {
            Want::Nothing => Ok(StepOutput::Nothing),
            Want::Last | Want::All => Ok(StepOutput::Logits(rows)),
            Want::Choose => Ok(tokens.next().map_or(StepOutput::Nothing, StepOutput::Token)),
            Want::Drafted(n) => {
                let drafts = t.tokens.get(t.tokens.len() - n..).unwrap_or_default();
                follow(t, &rows, n_vocab, drafts).map(StepOutput::Tokens)
            }
        });
        given.collect()
    }

    /// Runs tokens and sends their rows to the next stage.
    pub(super) fn rows(
        &mut self,
        pieces: &[Tokens<'_>],
        sink: &mut HiddenStatesSink<'_>,
    ) -> Result<(), SessionError> {
        for p in pieces {
            // The sequence may have been truncated since the last call, or a step failed in a later
            // stage.
            if self.truncate(p.slot, p.first) != p.first {
                return Err(SessionError::Device(format!(
                    "the previous stage has fewer than {} tokens of the sequence",
                    p.first
                )));
            }
            self.mark(p.slot, p.first, p.tokens.len());
        }
        let mut done = 0;
        let mut pieces = pieces.iter().copied().filter(|p| !p.tokens.is_empty()).peekable();
        while pieces.peek().is_some() {
            let mut pass = StepPass::default();
            while let Some(p) = pieces.peek_mut() {
                let now = p.tokens.len().min(self.chunk.saturating_sub(pass.tokens.len()));
                let now = self.piece(p.tokens, now);
                if now == 0 {
                    break;
                }
                pass.add(p.slot, p.first, &p.tokens[..now], 0);
                (p.first, p.tokens) = (p.first + now, &p.tokens[now..]);
                if p.tokens.is_empty() {
                    pieces.next();
                }
            }
            self.pass(&pass)?;
            let (result, rows) = (self.graph.logits, pass.tokens.len());
            let width = self.graph.value(result).width;
            sink(
                done,
                HiddenStates::Host(
                    &self.buffers[self.plan.place[result.0 as usize]][..rows * width],
                ),
            )?;
            done += rows;
        }
        Ok(())
    }

    /// Saves a checkpoint of recurrent states before several tokens run in one pass, and every 256
    /// tokens.
    fn mark(&mut self, slot: usize, first: usize, tokens: usize) {
        if (tokens > 1 || first.is_multiple_of(256))
            && let Some(Some(state)) = self.states.get_mut(slot)
        {
            state.mark();
        }
    }

    /// Requests the rows of a pass from the previous stage.
    fn fetch_previous_rows(&mut self, pass: &StepPass) -> Result<(), SessionError> {
        let Some(before) = &mut self.before else { return Ok(()) };
        let width = before.graph().value(before.graph().logits).width;
        let (given, elems) = (&mut self.given, pass.tokens.len() * width);
        if given.len() < elems {
            given.try_reserve_exact(elems - given.len()).map_err(|_| SessionError::Memory {
                what: format!("the rows of {} tokens", pass.tokens.len()),
                bytes: 4 * elems as u64,
                hint: memory_hint(pass, width),
            })?;
        }
        given.resize(elems, 0.0);
        let piece = |p: &PassSpan| Tokens {
            slot: p.slot,
            first: p.first,
            tokens: &pass.tokens[p.start..p.start + p.tokens],
        };
        let pieces: Vec<Tokens<'_>> = pass.parts.iter().map(piece).collect();
        before.rows(&pieces, &mut |first, made| match made {
            HiddenStates::Host(rows) => {
                given[first * width..][..rows.len()].copy_from_slice(rows);
                Ok(())
            }
            HiddenStates::Device(stream, rows) => {
                given[first * width..][..rows.len()].copy_from_slice(&stream.read(&rows)?);
                Ok(())
            }
        })
    }

    /// Finds the images that have rows in a pass.
    fn show(&mut self, pass: &StepPass) -> Result<(), SessionError> {
        self.shown.clear();
        let (Some(table), true) = (&self.images, self.before.is_none()) else { return Ok(()) };
        for &id in pass.tokens.iter().filter(|id| **id >= FIRST_IMAGE_ID) {
            if self.shown.last().is_none_or(|image| image.row(id).is_none()) {
                let n_vocab = self.graph.n_vocab();
                self.shown.push(table.find(id).ok_or(SessionError::Token { id, n_vocab })?);
            }
        }
        Ok(())
    }

    /// The number of tokens for a pass that has room for `n` of these: more, if an image would be
    /// cut.
    pub(super) fn piece(&self, tokens: &[u32], n: usize) -> usize {
        if self.bidirectional { uncut_images(tokens, n) } else { n }
    }

    /// See [`Runner::set_images`].
    pub(super) fn set_images(&mut self, table: &Arc<ImageTable>) -> Result<(), SessionError> {
        if let Some(before) = &mut self.before {
            before.set_images(table)?;
            self.bidirectional = table.is_bidirectional();
            return Ok(());
        }
        table.check(&self.graph)?;
        self.images = Some(Arc::clone(table));
        self.bidirectional = table.is_bidirectional();
        Ok(())
    }

    /// Runs the graph for one pass. The requested logits are then in their buffer.
    pub(super) fn pass(&mut self, pass: &StepPass) -> Result<(), SessionError> {
        self.reserve(pass)?;
        self.show(pass)?;
        self.fetch_previous_rows(pass)?;
        for s in 0..self.plan.steps.len() {
            self.run_step(s, pass);
            self.record(s, pass);
        }
        for p in &pass.parts {
            if let Some(Some(state)) = self.states.get_mut(p.slot) {
                state.advance(&pass.tokens[p.start..p.start + p.tokens]);
            }
        }
        Ok(())
    }

    /// Grows every buffer to the size of a pass.
    fn reserve(&mut self, pass: &StepPass) -> Result<(), SessionError> {
        for (v, &place) in self.plan.place.iter().enumerate().filter(|(_, p)| **p != usize::MAX) {
            let value = &self.graph.values[v];
            let rows = pass.rows(self.plan.full[v]);
            let elems = rows * value.slots * value.width;
            let buffer = &mut self.buffers[place];
            if buffer.len() < elems {
                buffer.try_reserve_exact(elems - buffer.len()).map_err(|_| {
                    SessionError::Memory {
                        what: format!("'{}' of {rows} tokens", value.name),
                        bytes: 4 * elems as u64,
                        hint: memory_hint(pass, value.slots * value.width),
                    }
                })?;
                buffer.resize(elems, 0.0);
            }
        }
        Ok(())
    }

    /// Runs one step. During the step, the buffers of its results are taken out of the list: an
    /// operation does not write a value that it reads.
    fn run_step(&mut self, step: usize, pass: &StepPass) {
        let step = &self.plan.steps[step];
        let rows = pass.rows(step.full);
        if rows == 0 {
            return;
        }
        let ops = &self.graph.ops[step.first..step.first + step.count];
        let written: Vec<ValueId> = ops.iter().flat_map(Op::writes).collect();
        let mut outs: Vec<Vec<f32>> = written
            .iter()
            .map(|v| std::mem::take(&mut self.buffers[self.plan.place[v.0 as usize]]))
            .collect();
        let (graph, plan, buffers) = (&self.graph, &self.plan, &self.buffers);
        let width = |v: ValueId| graph.value(v).slots * graph.value(v).width;
        let held = |v: ValueId| {
            &buffers[plan.place[v.0 as usize]][..pass.rows(plan.full[v.0 as usize]) * width(v)]
        };
        // A step for the requested rows may read a value with all rows. If the requested rows are
        // not contiguous, they are gathered first.
        let (parted, begin) = (!step.full, pass.contiguous_start());
        let apart = |v: ValueId| parted && plan.full[v.0 as usize];
        let mut gathered: Vec<(ValueId, Vec<f32>)> = vec![];
        if parted && begin.is_none() {
            for v in ops.iter().flat_map(Op::reads).filter(|v| apart(*v)) {
                if gathered.iter().all(|(g, _)| *g != v) {
                    gathered.push((v, pass.requested_rows(held(v), width(v))));
                }
            }
        }
        let input = |v: ValueId| match (apart(v), begin) {
            (false, _) => held(v),
            (true, Some(begin)) => &held(v)[begin * width(v)..][..rows * width(v)],
            (true, None) => gathered.iter().find(|(g, _)| *g == v).map_or(&[][..], |(_, x)| x),
        };
        let tokens =
            if parted { pass.requested_rows(&pass.tokens, 1) } else { pass.tokens.clone() };
        let mut results: Vec<&mut [f32]> =
            written.iter().zip(&mut outs).map(|(v, out)| &mut out[..rows * width(*v)]).collect();
        let mut states: Vec<Option<&mut State>> =
            self.states.iter_mut().map(Option::as_mut).collect();
        let piece = |p: &PassSpan| {
            let rows = if parted { p.wanted } else { p.tokens };
            let state = states.get_mut(p.slot).filter(|_| rows > 0)?.take()?;
            Some(StepTokens { state, first: p.first + p.tokens - rows, rows })
        };
        let mut run = Run {
            graph,
            weights: &self.weights,
            ropes: &mut self.ropes,
            pool: &mut self.pool,
            isa: self.isa,
            rounded: (!self.precise).then_some(&mut self.rounded),
            reproducible: self.reproducible,
            given: &self.given,
            images: &self.shown,
            bidirectional: self.bidirectional,
            tokens: &tokens,
            rows,
            pieces: pass.parts.iter().filter_map(piece).collect(),
            inputs: &input,
        };
        if let Some(observed) = &mut self.observed {
            observed.add(graph, ops, &input);
        }
        run_together(ops, &mut run, &mut results);
        for (v, out) in written.iter().zip(outs) {
            self.buffers[self.plan.place[v.0 as usize]] = out;
        }
    }

    /// Copies the rows of tapped values.
    fn record(&mut self, step: usize, pass: &StepPass) {
        if self.taps.is_empty() {
            return;
        }
        let step = &self.plan.steps[step];
        for id in
            self.graph.ops[step.first..step.first + step.count].iter().flat_map(|op| op.writes())
        {
            if let Some(tap) = self.taps.get_mut(&id) {
                let rows = pass.rows(self.plan.full[id.0 as usize]);
                tap.data.extend_from_slice(
                    &self.buffers[self.plan.place[id.0 as usize]][..rows * tap.width],
                );
            }
        }
    }
}
