//! A sequence on a GPU.
//!
//! Ids of all tokens are in page-locked memory, by position: the host writes the prompt's there, the device's sampler the answer's, and the
//! embedding reads both in place. So a token costs no copy in either direction: the host watches the words as they appear while the device
//! goes on. The position is a word on the device; the sampler moves it on.

use super::early::Early;
use super::open::Statistics;
use super::plan::{BufferId, Choice, Now};
use super::resident::{NONE, Resident, Whose};
use crate::exec::{ExecError, ExecOptions, Executor, Want, decode_by_host};
use crate::graph::Graph;
use crate::sample::{SampleOptions, Sampler};
use half::f16;
use kjit_engine::{Device, DeviceInfo, Graph as Recording, PinnedBuffer, Trace};
use kjit_kernels::product::tiled_index;
use std::ops::ControlFlow;

/// The one sequence's slot.
const ONE: Whose = Whose::Slot(0);
/// Tokens that the device may be ahead of the host. What is ahead at an end is thrown away, and must be waited for: with 16, an answer of
/// 128 tokens took 14 % longer. Four tokens are 1.6 ms of the smallest model, in which the host looks a hundred times.
pub(super) const AHEAD: usize = 4;
/// Tokens of a prompt that go one by one before the host looks again whether the kernels for many at once are there. The wait between is some
/// tens of µs; without it all tokens would be on their way before the kernels come.
const LOOK_EVERY: usize = 4;

/// Runs one sequence on a GPU. Decoding replays a captured graph for each token: nothing is allocated, compiled, copied or waited for in
/// between.
pub struct GpuExecutor {
    resident: Resident,
    graph: Graph,
    context: usize,
    len: usize,
    /// Logits on their way out.
    logits: PinnedBuffer<f32>,
    /// The program for prompts that ran last, and its tokens; none for single tokens.
    last: Option<(usize, usize)>,
    /// One token's launches, recorded when first needed.
    step: Option<Recording>,
    /// The same with the choice of the next token behind them, for these options.
    chain: Option<(Choice, Recording)>,
    statistics: Statistics,
    /// How a start without the kernels for prompts goes.
    early: Option<Early>,
    /// Whether the kernels for prompts are there.
    prompts_ready: bool,
}

/// The choice on the device that a sampler's options ask for. Penalties look at past tokens, which is done on the host.
fn choice_of(o: &SampleOptions) -> Option<Choice> {
    if o.repeat_penalty != 1.0 || o.presence_penalty != 0.0 || o.frequency_penalty != 0.0 {
        return None;
    }
    if o.temperature <= 0.0 {
        return Some(Choice::Greedy);
    }
    let top_k = u32::try_from(o.top_k).unwrap_or(u32::MAX);
    Some(Choice::Draw { top_k, temperature: o.temperature, top_p: o.top_p, min_p: o.min_p })
}

impl GpuExecutor {
    pub(super) fn new(
        resident: Resident,
        graph: Graph,
        options: &ExecOptions,
        statistics: Statistics,
        early: Option<Early>,
    ) -> Result<GpuExecutor, ExecError> {
        let logits = resident.stream.device().pinned(graph.n_vocab())?;
        let context = options.context;
        Ok(GpuExecutor {
            resident,
            graph,
            context,
            len: 0,
            logits,
            last: None,
            step: None,
            chain: None,
            statistics,
            prompts_ready: early.is_none(),
            early,
        })
    }

    /// What was still to come when the model was opened, and how that went; none if nothing was.
    pub fn early(&self) -> Option<&Early> {
        self.early.as_ref()
    }

    /// Whether the kernels for prompts are there. If they have just come, they take over here: between two tokens.
    pub(super) fn prompts_ready(&mut self) -> Result<bool, ExecError> {
        if !self.prompts_ready
            && let Some(early) = &self.early
            && let Some(kernels) = early.arrived(self.resident.stream.device(), self.len)?
        {
            for (job, kernel) in kernels {
                if let Some(place) = self.resident.kernels.get_mut(job.0 as usize) {
                    *place = Some(kernel);
                }
            }
            self.prompts_ready = true;
        }
        Ok(self.prompts_ready)
    }

    /// What opening took and what is held.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// The device.
    pub fn device(&self) -> &DeviceInfo {
        self.resident.stream.device().info()
    }

    /// The same, opened: for its counts of what it was asked to do.
    pub fn opened(&self) -> &Device {
        self.resident.stream.device()
    }

    /// The plan that is run.
    pub fn plan(&self) -> &super::plan::Plan {
        &self.resident.plan
    }

    /// Rows of a kept value for the last tokens fed: of as many as went through together. `None` where a fused step keeps it to itself.
    ///
    /// # Errors
    /// No such value; a device that failed.
    pub fn tap(&self, name: &str) -> Result<Option<Vec<f32>>, ExecError> {
        let id = self.graph.find(name);
        let id = id.ok_or_else(|| ExecError::Device(format!("no value is called '{name}'")))?;
        let r = &self.resident;
        let program = self.last.and_then(|(p, _)| r.plan.prompts.get(p)).unwrap_or(&r.plan.decode);
        let Some(kept) = program.kept.iter().find(|k| k.value == id) else { return Ok(None) };
        let rows = self.last.map_or(1, |(_, rows)| rows);
        let (v, view) = (self.graph.value(id), r.buffer(program, kept.buffer)?);
        let cols = v.slots * v.width;
        if !kept.tiled {
            return Ok(Some(r.stream.read(&view.cast::<f32>()?.slice(..rows * cols)?)?));
        }
        let halves = r.stream.read(&view.cast::<u16>()?)?;
        let at = |i: usize| halves.get(tiled_index(i / cols, i % cols, cols)).copied().unwrap_or(f16::NAN.to_bits());
        Ok(Some((0..rows * cols).map(|i| f16::from_bits(at(i)).to_f32()).collect()))
    }

    /// Fills all memory that launches pass on to each other with NaN, so that what is read before it was written shows: for tests.
    ///
    /// # Errors
    /// A device that failed.
    pub fn poison(&self) -> Result<(), ExecError> {
        let r = &self.resident;
        for program in r.plan.programs() {
            for (i, _) in program.buffers.iter().enumerate().filter(|(_, b)| !b.zeroed) {
                r.stream.fill(&r.buffer(program, BufferId(i as u32))?, 0xff)?;
            }
        }
        Ok(())
    }

    /// What launches for one token are evaluated with.
    fn now(&self, choice: Choice) -> Now {
        Now { units: self.resident.units(), tokens: 1, choice, products: vec![] }
    }

    /// Puts the word of the position to this one, in the order of the stream.
    fn move_to(&self, position: usize) -> Result<(), ExecError> {
        let r = &self.resident;
        let number = r.control.numbers.slice(position..position + 1)?;
        Ok(r.stream.copy_in(&number, &r.control.position)?)
    }

    /// Feeds the token whose id is in place; its logits are on the device afterwards.
    fn feed_one(&mut self) -> Result<(), ExecError> {
        self.move_to(self.len)?;
        let (r, now) = (&self.resident, self.now(Choice::Greedy));
        if self.step.is_none() {
            self.step = Some(r.stream.capture(|| r.issue(&r.plan.decode, &r.plan.decode.launches, &now, ONE))?);
        }
        if let Some(step) = &self.step {
            r.stream.replay(step)?;
        }
        self.len += 1;
        self.last = None;
        Ok(())
    }

    /// Puts ids in place behind the tokens so far. With `clear`, what the device will choose after them can be told from what was there.
    fn put(&self, tokens: &[u32], clear: bool) -> Result<(), ExecError> {
        let end = self.len + tokens.len();
        let place = self.resident.control.tokens.slice(self.len..if clear { self.context + 1 } else { end })?;
        place.write(|to| {
            let (ids, rest) = to.split_at_mut(tokens.len().min(to.len()));
            ids.copy_from_slice(tokens);
            rest.fill(NONE);
        })?;
        Ok(())
    }

    /// Feeds tokens whose ids are in place. The wanted rows of logits are in `rows`; with `ready` the last one's are on the device, too.
    fn feed_all(&mut self, tokens: usize, want: Want, ready: bool, rows: &mut Vec<f32>) -> Result<(), ExecError> {
        let end = self.len + tokens;
        while self.len < end {
            let left = end - self.len;
            let many = left > 1 && self.prompts_ready()?;
            let prompts = &self.resident.plan.prompts;
            let fits = prompts.iter().position(|p| p.tokens as usize >= left).or(prompts.len().checked_sub(1));
            let Some(program) = fits.filter(|_| many) else {
                self.feed_one()?;
                if let Some(early) = self.early.as_ref().filter(|_| left > 1 && !self.prompts_ready) {
                    early.count_single();
                    if left.is_multiple_of(LOOK_EVERY) {
                        self.resident.stream.synchronize()?;
                    }
                }
                if want == Want::All || want == Want::Last && self.len == end {
                    self.read_logits(rows)?;
                }
                continue;
            };
            let fed = self.feed_many(program, left)?;
            let last = fed - 1;
            let heads = match want {
                Want::All => 0..fed,
                _ if self.len == end && (ready || want == Want::Last) => last..fed,
                _ => 0..0,
            };
            for row in heads {
                self.head_of(program, row)?;
                if want != Want::Nothing {
                    self.read_logits(rows)?;
                }
            }
        }
        Ok(())
    }

    /// Feeds as many tokens as a program takes, up to `left`; their number. No logits are made.
    fn feed_many(&mut self, index: usize, left: usize) -> Result<usize, ExecError> {
        self.move_to(self.len)?;
        let r = &self.resident;
        let program = r.plan.prompts.get(index).ok_or_else(|| ExecError::Device("no program for prompts".into()))?;
        let tokens = left.min(program.tokens as usize);
        let span = r.stream.device().trace().map(|t| t.span("compute", format!("prompt of {tokens} tokens")));
        let now = program.now(&r.plan.target, r.units(), tokens as u32, Choice::Greedy);
        let now = now.map_err(|e| ExecError::Device(e.to_string()))?;
        r.issue(program, &program.launches, &now, ONE)?;
        if span.is_some() {
            // Who traces wants to see how long it took, not how long it took to ask for it.
            r.stream.synchronize()?;
        }
        self.len += tokens;
        self.last = Some((index, tokens));
        Ok(tokens)
    }

    /// Makes the logits of a row of the prompt just fed, where decoding leaves them.
    fn head_of(&self, program: usize, row: usize) -> Result<(), ExecError> {
        let r = &self.resident;
        let lost = || ExecError::Device("no program for prompts".to_owned());
        let prompt = r.plan.prompts.get(program).ok_or_else(lost)?;
        let to = r.buffer(&r.plan.decode, r.plan.decode.head)?;
        let from = r.buffer(prompt, prompt.head)?.slice(row * to.len()..(row + 1) * to.len())?;
        r.stream.copy(&from, &to)?;
        let last = r.plan.decode.launches.last().map_or(0, |l| l.step);
        let head = r.plan.decode.launches.iter().position(|l| l.step == last).unwrap_or(0);
        let launches = r.plan.decode.launches.get(head..).unwrap_or_default();
        Ok(r.issue(&r.plan.decode, launches, &self.now(Choice::Greedy), ONE)?)
    }

    /// The logits of the last token fed.
    fn read_logits(&self, rows: &mut Vec<f32>) -> Result<(), ExecError> {
        let r = &self.resident;
        let view = r.kept(&r.plan.decode, self.graph.logits)?.cast::<f32>()?;
        r.stream.copy_out(&view, &self.logits)?;
        self.logits.read(|row| rows.extend_from_slice(row))?;
        Ok(())
    }

    fn check(&self, tokens: &[u32]) -> Result<(), ExecError> {
        let n_vocab = self.n_vocab();
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= n_vocab) {
            return Err(ExecError::Token { id, n_vocab });
        }
        let all = self.len.saturating_add(tokens.len());
        if all > self.context {
            return Err(ExecError::Context { tokens: all, context: self.context });
        }
        Ok(())
    }

    /// Feeds, and forgets again what was fed when something fails. With `clear`, the device is going to choose the token after them.
    fn feed_or_forget(&mut self, tokens: &[u32], want: Want, clear: bool) -> Result<Vec<f32>, ExecError> {
        self.check(tokens)?;
        self.put(tokens, clear)?;
        let before = self.len;
        let mut rows = vec![];
        match self.feed_all(tokens.len(), want, clear, &mut rows) {
            Ok(()) => Ok(rows),
            Err(error) => {
                self.len = before;
                Err(error)
            }
        }
    }

    /// Records one token's launches with the choice behind them, unless that was done.
    fn record_chain(&mut self, choice: Choice) -> Result<(), ExecError> {
        if self.chain.as_ref().is_some_and(|(c, _)| *c == choice) {
            return Ok(());
        }
        let r = &self.resident;
        let now = self.now(choice);
        let recording = r.stream.capture(|| {
            r.issue(&r.plan.decode, &r.plan.decode.launches, &now, ONE)?;
            r.choose(&now)
        })?;
        self.chain = Some((choice, recording));
        Ok(())
    }

    /// Decoding with the choice on the device.
    fn decode_by_device(
        &mut self,
        choice: Choice,
        sampler: &mut Sampler,
        sink: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<(), ExecError> {
        let start = self.len;
        self.record_chain(choice)?;
        if let Choice::Draw { .. } = choice {
            // The random number for the draw at each position from the last token's on.
            let numbers = sampler.fractions(self.context - start + 1);
            let place = self.resident.control.fractions.slice(start - 1..self.context)?;
            self.resident.stream.write(&place, &numbers)?;
        }
        self.move_to(start - 1)?;
        self.resident.choose(&self.now(choice))?;
        // Tokens chosen are at start, start + 1 … ; of those, the ones up to `fed` have been fed, or are about to be.
        let mut fed = start;
        let (mut taken, mut result) = (0, Ok(()));
        let mut came = self.resident.stream.device().trace().map_or(0.0, Trace::now_us);
        loop {
            let at = start + taken;
            while fed < self.context && fed < at + AHEAD {
                if let Some((_, chain)) = &self.chain {
                    self.resident.stream.replay(chain)?;
                }
                fed += 1;
            }
            let token = match self.resident.wait_for(at) {
                Ok(token) => token,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            };
            taken += 1;
            if let Some(trace) = self.resident.stream.device().trace() {
                let now = trace.now_us();
                trace.add("compute", format!("token {at}"), came, now - came);
                came = now;
            }
            sampler.accept(token);
            if sink(token).is_break() || at == self.context {
                self.len = at;
                break;
            }
            self.len = at + 1;
        }
        if let Choice::Draw { .. } = choice {
            sampler.skip(taken);
        }
        result
    }
}

impl Executor for GpuExecutor {
    fn len(&self) -> usize {
        self.len
    }

    fn context(&self) -> usize {
        self.context
    }

    fn n_vocab(&self) -> usize {
        self.graph.n_vocab()
    }

    fn feed(&mut self, tokens: &[u32], want: Want) -> Result<Vec<f32>, ExecError> {
        self.feed_or_forget(tokens, want, false)
    }

    fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    fn decode(
        &mut self,
        first: &[u32],
        sampler: &mut Sampler,
        sink: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<(), ExecError> {
        let Some(choice) = choice_of(sampler.options()) else { return decode_by_host(self, first, sampler, sink) };
        self.feed_or_forget(first, Want::Nothing, true)?;
        if self.len == 0 {
            return Err(ExecError::Device("nothing was fed before decoding".to_owned()));
        }
        self.decode_by_device(choice, sampler, sink)
    }
}
