//! A runner as one of several stages. It gets hidden states from the previous stage and passes its
//! own hidden states to the next stage.
//!
//! Between two devices of one vendor, hidden states are copied from device to device without a wait
//! on the host, if a test pattern arrived in this way at the start. Otherwise they are copied
//! through page-locked memory of both devices.

use super::stage_link::{PreviousStage, STAGING, StageLink};
use super::{GpuRunner, LastProgram};
use kjit_engine::{CopyEvents, Stream};
use kjit_exec::{
    DecodeControl, DeviceDecode, HiddenStates, HiddenStatesSink, ImageTable, KvPages, MaskCallback,
    Runner, SessionError, StepAhead, StepOutput, Task, TokenSpan,
};
use kjit_graph::{Graph, WeightId};
use kjit_plan::{BufferId, JobId, Program};
use std::any::Any;
use std::sync::Arc;

/// Words of the test pattern.
const PATTERN: usize = 64 << 10;
impl PreviousStage {
    /// Sets up the link from a stage to a stream. The text is the reason why a direct link between
    /// two devices is not used.
    pub(super) fn new(
        stage: Box<dyn Runner>,
        to: &Stream,
    ) -> Result<(PreviousStage, Option<String>), SessionError> {
        let width = stage.graph().value(stage.graph().logits).width;
        let room = STAGING.next_multiple_of(width.max(1));
        let (mut way, mut there, mut said) = (StageLink::Host, None, None);
        let any: &dyn Any = &*stage;
        if let Some(gpu) = any.downcast_ref::<GpuRunner>() {
            let from = &gpu.loaded.stream;
            match peer(from, to) {
                Ok(Some(crossing)) => way = StageLink::Peer(crossing),
                Ok(None) => {}
                Err(lost @ SessionError::Lost(_))
                    if from.device().memory().is_err() || to.device().memory().is_err() =>
                {
                    return Err(lost);
                }
                Err(why) => {
                    let (from, to) = (from.device().label(), to.device().label());
                    said = Some(format!("copies from {from} to {to} go through the host: {why}"));
                }
            }
            if matches!(way, StageLink::Host) {
                there = Some(from.device().pinned(room)?);
            }
        }
        let here = to.device().pinned(if matches!(way, StageLink::Host) { room } else { 1 })?;
        Ok((PreviousStage { stage, way, width, here, there }, said))
    }
}

/// Tests the vendor's copies between two devices with two patterns. `None` for devices of different
/// vendors.
fn peer(from: &Stream, to: &Stream) -> Result<Option<CopyEvents>, SessionError> {
    if from.device().target().vendor() != to.device().target().vendor() {
        return Ok(None);
    }
    // Without peer access the vendor's runtime chooses the path of the copies.
    to.device().reach(from.device())?;
    from.device().reach(to.device())?;
    let crossing = to.copy_events(from)?;
    for seed in [1u32, 2] {
        let pattern: Vec<u32> =
            (0..PATTERN as u32).map(|i| i.wrapping_mul(2_654_435_761).rotate_left(seed)).collect();
        let (sent, came) = (from.upload(&pattern)?, to.upload(&vec![0u32; PATTERN])?);
        to.copy_between(from, &sent, &came, &crossing)?;
        let came = to.read(&came)?;
        if let Some(at) = came.iter().zip(&pattern).position(|(came, sent)| came != sent) {
            return Err(SessionError::Device(format!("word {at} of a pattern did not arrive")));
        }
    }
    Ok(Some(crossing))
}

impl GpuRunner {
    /// Places this runner after the stage `before`.
    pub fn behind(mut self, before: Option<Box<dyn Runner>>) -> Result<GpuRunner, SessionError> {
        if let Some(stage) = before {
            let (before, said) = PreviousStage::new(stage, &self.loaded.stream)?;
            self.remarks.extend(said);
            self.before = Some(before);
        }
        Ok(self)
    }

    /// The link from the previous stage: `device to device` or `through the host`.
    pub fn link(&self) -> Option<&'static str> {
        self.before.as_ref().map(|b| match b.way {
            StageLink::Peer(_) => "device to device",
            StageLink::Host => "through the host",
        })
    }

    fn try_rows(
        &mut self,
        pieces: &[TokenSpan<'_>],
        sink: &mut HiddenStatesSink<'_>,
    ) -> Result<(), SessionError> {
        for p in pieces {
            self.put(p.slot, p.first, p.tokens)?;
        }
        let (mut made, mut rest) = (0, pieces);
        while let Some(p) = rest.first() {
            // Single tokens of several sequences run together.
            let singles = rest.iter().take_while(|p| p.tokens.len() == 1).count();
            let (now, later) = rest.split_at(singles.max(1));
            if singles > 0 {
                let at: Vec<(usize, usize)> = now.iter().map(|p| (p.slot, p.first)).collect();
                self.run_rows(&at, None)?;
                made += self.hand_on(made, sink)?;
            } else {
                let (mut at, end) = (p.first, p.first + p.tokens.len());
                while at < end {
                    at += self.feed_some(p.slot, at, end - at)?;
                    made += self.hand_on(made, sink)?;
                }
            }
            rest = later;
        }
        Ok(())
    }

    /// Passes on the hidden states of the last program; `first` is the number of the first row.
    /// Returns the number of rows.
    fn hand_on(
        &self,
        first: usize,
        sink: &mut HiddenStatesSink<'_>,
    ) -> Result<usize, SessionError> {
        let (program, rows) = match self.last {
            LastProgram::Prompt(index, rows) => (self.prompt(index)?, rows),
            LastProgram::Rows(rows) => (self.rows_of(rows)?.program, rows),
        };
        let width = self.graph.value(self.graph.logits).width;
        let made =
            self.loaded.buffer(program, program.head)?.cast::<f32>()?.slice(..rows * width)?;
        sink(first, HiddenStates::Device(&self.loaded.stream, made))?;
        Ok(rows)
    }

    /// Fetches a program's input from the previous stage, for tokens `(slot, first position,
    /// count)` whose ids are in the ring.
    pub(super) fn take_rows(
        &mut self,
        program: impl Fn(&GpuRunner) -> Result<&Program, SessionError>,
        tokens: &[(usize, usize, usize)],
    ) -> Result<(), SessionError> {
        let Some(mut before) = self.before.take() else { return Ok(()) };
        let done = self.take_from(&mut before, program, tokens);
        self.before = Some(before);
        done
    }

    fn take_from(
        &self,
        before: &mut PreviousStage,
        program: impl Fn(&GpuRunner) -> Result<&Program, SessionError>,
        tokens: &[(usize, usize, usize)],
    ) -> Result<(), SessionError> {
        let (r, program) = (&self.loaded, program(self)?);
        let given = |id: BufferId| r.buffer(program, id)?.cast::<f32>();
        let given = program.given.map(given).transpose()?;
        let given =
            given.ok_or_else(|| SessionError::Device("a program takes no rows".to_owned()))?;
        let mut ids: Vec<Vec<u32>> = vec![];
        for &(slot, first, n) in tokens {
            let ring = slot * (self.context + 1);
            ids.push(
                (first..first + n)
                    .map(|at| r.control.tokens.peek(ring + at))
                    .collect::<Result<_, _>>()?,
            );
        }
        let pieces: Vec<TokenSpan<'_>> = tokens
            .iter()
            .zip(&ids)
            .map(|(&(slot, first, _), tokens)| TokenSpan { slot, first, tokens })
            .collect();
        before.rows(&pieces, &r.stream, &given)
    }
}

impl Runner for GpuRunner {
    fn graph(&self) -> &Graph {
        GpuRunner::graph(self)
    }

    fn before(&self) -> Option<&dyn Runner> {
        self.before.as_ref().map(|b| &*b.stage)
    }

    /// This stage has memory for all slots; previous stages may have to allocate it.
    fn add(&mut self, slot: usize) -> Result<(), SessionError> {
        let factors = self.graph.adapter_factors();
        self.put_factors(slot, &factors)?;
        self.before.as_mut().map_or(Ok(()), |b| b.stage.add(slot))
    }

    fn adapt(&mut self, slot: usize, factors: &[f32]) -> Result<(), SessionError> {
        self.put_factors(slot, factors)?;
        self.before.as_mut().map_or(Ok(()), |b| b.stage.adapt(slot, factors))
    }

    fn write_tensor(&mut self, tensor: &str, bytes: &[u8]) -> Result<(), SessionError> {
        if let Some(before) = &mut self.before {
            before.stage.write_tensor(tensor, bytes)?;
        }
        let r = &self.loaded;
        for (w, id) in self.graph.weights.iter().zip(0..).filter(|(w, _)| w.tensor == tensor) {
            let Some(to) = r.matrices.get(&WeightId(id)) else { continue };
            let from = w.bytes_of(w.at);
            let part = bytes.get(from..from.saturating_add(w.bytes()));
            let here = |(of, job): &(WeightId, Option<JobId>)| of.0 == id && job.is_none();
            let streamed = r.plan.streaming.as_ref();
            let streamed = streamed.is_some_and(|s| s.layer_of.contains_key(&WeightId(id)));
            match part.filter(|part| part.len() == to.len() && !streamed) {
                Some(part) if r.plan.matrices.iter().any(here) => {
                    r.stream.write(to, part)?;
                }
                _ => {
                    return Err(SessionError::Device(format!(
                        "tensor '{}' cannot be replaced on {}",
                        w.name,
                        self.loaded.stream.device().label()
                    )));
                }
            }
        }
        Ok(())
    }

    fn page_format(&self) -> Option<String> {
        GpuRunner::page_format(self)
    }

    fn read_page(&mut self, slot: usize, at: usize) -> Result<Vec<u8>, SessionError> {
        GpuRunner::read_page(self, slot, at)
    }

    fn write_page(
        &mut self,
        slot: usize,
        at: usize,
        _tokens: &[u32],
        bytes: &[u8],
    ) -> Result<bool, SessionError> {
        GpuRunner::write_page(self, slot, at, bytes)
    }

    fn remove(&mut self, slot: usize) {
        if let Some(before) = &mut self.before {
            before.stage.remove(slot);
        }
        self.keep_pages(slot, 0);
    }

    fn copy(&mut self, from: usize, to: usize, len: usize) -> Result<usize, SessionError> {
        GpuRunner::copy(self, from, to, len)
    }

    fn truncate(&mut self, slot: usize, len: usize, now: usize) -> usize {
        self.keep_pages(slot, len.min(now));
        len.min(now)
    }

    fn rows(
        &mut self,
        pieces: &[TokenSpan<'_>],
        sink: &mut HiddenStatesSink<'_>,
    ) -> Result<(), SessionError> {
        let done = self.try_rows(pieces, sink);
        if done.is_err() {
            let slots: Vec<usize> = pieces.iter().map(|p| p.slot).collect();
            self.doubt(&slots);
        }
        done
    }

    fn step(
        &mut self,
        tasks: &mut [Task<'_>],
        late: Option<MaskCallback<'_>>,
    ) -> Result<Vec<StepOutput>, SessionError> {
        GpuRunner::step(self, tasks, late)
    }

    fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, SessionError> {
        GpuRunner::embed(self, tokens)
    }

    /// With previous stages, the first stage needs a token before it can compute the next one.
    fn ahead(&mut self) -> Option<&mut dyn DeviceDecode> {
        if self.before.is_none() { Some(self) } else { None }
    }

    fn runs_ahead(&self) -> bool {
        self.before.is_none()
    }

    fn step_ahead(&mut self) -> Option<&mut dyn StepAhead> {
        if self.may_launch_ahead() { Some(self) } else { None }
    }

    fn steps_ahead(&self) -> bool {
        self.may_launch_ahead()
    }

    fn pages(&self) -> Option<&dyn KvPages> {
        Some(self)
    }

    fn pages_mut(&mut self) -> Option<&mut dyn KvPages> {
        Some(self)
    }

    fn set_images(&mut self, table: &Arc<ImageTable>) -> Result<(), SessionError> {
        GpuRunner::set_images(self, table)
    }

    fn remark(&mut self, line: String) {
        GpuRunner::remark(self, vec![line]);
    }
}

impl DeviceDecode for GpuRunner {
    fn decode(
        &mut self,
        tasks: &mut [Task<'_>],
        sink: &mut dyn FnMut(usize, u32) -> DecodeControl,
    ) -> (Vec<usize>, Result<(), SessionError>) {
        GpuRunner::decode(self, tasks, sink)
    }
}
