//! A sequence on a GPU.
//!
//! Ids of all tokens are in page-locked memory, by position: the host writes the prompt's there, the device's sampler the answer's, and the
//! embedding reads both in place. So a token costs no copy in either direction: the host watches the words as they appear while the device
//! goes on. The position is a word on the device; the sampler moves it on.

use super::open::Statistics;
use super::plan::{Choice, Now, Program};
use super::resident::Resident;
use crate::exec::{ExecError, ExecOptions, Executor, Want};
use crate::graph::{Graph, ValueId};
use crate::sample::{SampleOptions, Sampler};
use kjit_engine::{Counts, DeviceInfo, Graph as Recording, PinnedBuffer};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// An id that no vocabulary has: the word of a token that is not there yet.
const NONE: u32 = u32::MAX;
/// Tokens that the device may be ahead of the host: enough that it never waits (a token takes 0.1 ms at the least, the host is away for
/// tens of them at most when the system schedules something else), few enough that what is thrown away at an end is small.
const AHEAD: usize = 16;

/// Runs one sequence on a GPU. Decoding replays a captured graph for each token: nothing is allocated, compiled, copied or waited for in
/// between.
pub struct GpuExecutor {
    resident: Resident,
    graph: Graph,
    context: usize,
    len: usize,
    /// Logits on their way out.
    logits: PinnedBuffer<f32>,
    /// One token's launches, recorded when first needed.
    step: Option<Recording>,
    /// The same with the choice of the next token behind them, for these options.
    chain: Option<(Choice, Recording)>,
    statistics: Statistics,
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
    ) -> Result<GpuExecutor, ExecError> {
        let logits = resident.stream.device().pinned(graph.n_vocab())?;
        let context = options.context;
        Ok(GpuExecutor { resident, graph, context, len: 0, logits, step: None, chain: None, statistics })
    }

    /// What opening took and what is held.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// The device.
    pub fn device(&self) -> &DeviceInfo {
        self.resident.stream.device().info()
    }

    /// What the device was asked to do so far.
    pub fn counts(&self) -> Counts {
        self.resident.stream.device().counts()
    }

    /// The plan that is run.
    pub fn plan(&self) -> &super::plan::Plan {
        &self.resident.plan
    }

    /// Rows of a kept value, for the tokens that the last launches had at hand.
    ///
    /// # Errors
    /// A value that was not kept; a device that failed.
    pub fn tap(&self, name: &str) -> Result<Vec<f32>, ExecError> {
        let id = self.graph.find(name);
        let id = id.ok_or_else(|| ExecError::Device(format!("no value is called '{name}'")))?;
        self.kept(&self.resident.plan.decode, id)
    }

    fn kept(&self, program: &Program, id: ValueId) -> Result<Vec<f32>, ExecError> {
        let view = self.resident.kept(program, id)?;
        Ok(self.resident.stream.read(&view.cast::<f32>()?)?)
    }

    fn now(&self, tokens: u32) -> Now {
        Now { units: self.resident.units(), tokens, choice: Choice::Greedy }
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
        let (r, now) = (&self.resident, self.now(1));
        if self.step.is_none() {
            self.step = Some(r.stream.capture(|| r.issue(&r.plan.decode, &r.plan.decode.launches, &now))?);
        }
        if let Some(step) = &self.step {
            r.stream.replay(step)?;
        }
        self.len += 1;
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

    /// Feeds tokens whose ids are in place; the last one's logits are on the device afterwards, the wanted rows are in `rows`.
    fn feed_all(&mut self, tokens: &[u32], want: Want, rows: &mut Vec<f32>) -> Result<(), ExecError> {
        for i in 0..tokens.len() {
            self.feed_one()?;
            if want == Want::All || want == Want::Last && i + 1 == tokens.len() {
                self.read_logits(rows)?;
            }
        }
        Ok(())
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

    /// Feeds, and forgets again what was fed when something fails.
    fn feed_or_forget(&mut self, tokens: &[u32], want: Want, clear: bool) -> Result<Vec<f32>, ExecError> {
        self.check(tokens)?;
        self.put(tokens, clear)?;
        let before = self.len;
        let mut rows = vec![];
        match self.feed_all(tokens, want, &mut rows) {
            Ok(()) => Ok(rows),
            Err(error) => {
                self.len = before;
                Err(error)
            }
        }
    }

    /// Decoding with the choice on the host: each token's logits come over.
    fn decode_by_host(
        &mut self,
        first: &[u32],
        sampler: &mut Sampler,
        sink: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<(), ExecError> {
        let mut logits = self.feed(first, Want::Last)?;
        loop {
            let token = sampler.sample(&mut logits);
            if sink(token).is_break() || self.len == self.context {
                return Ok(());
            }
            logits = self.feed(&[token], Want::Last)?;
        }
    }

    /// Records one token's launches with the choice behind them, unless that was done.
    fn record_chain(&mut self, choice: Choice) -> Result<(), ExecError> {
        if self.chain.as_ref().is_some_and(|(c, _)| *c == choice) {
            return Ok(());
        }
        let r = &self.resident;
        let now = Now { choice, ..self.now(1) };
        let recording = r.stream.capture(|| {
            r.issue(&r.plan.decode, &r.plan.decode.launches, &now)?;
            r.choose(&now)
        })?;
        self.chain = Some((choice, recording));
        Ok(())
    }

    /// The id at a position, as soon as the device has put it there.
    fn wait_for(&self, position: usize) -> Result<u32, ExecError> {
        let r = &self.resident;
        let start = Instant::now();
        let mut spins = 0u32;
        loop {
            let id = r.control.tokens.peek(position)?;
            if id != NONE {
                return Ok(id);
            }
            spins += 1;
            match spins {
                // Some tens of µs: as long as the fastest token takes.
                0..2000 => std::hint::spin_loop(),
                _ => {
                    std::thread::yield_now();
                    // A device that stopped will never write; what it says is the error.
                    if spins.is_multiple_of(1024) && r.stream.is_idle()? && r.control.tokens.peek(position)? == NONE {
                        return Err(ExecError::Device(format!("no token came for position {position}")));
                    }
                    if start.elapsed() > Duration::from_millis(5) {
                        std::thread::sleep(Duration::from_micros(50));
                    }
                }
            }
        }
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
        self.resident.choose(&Now { choice, ..self.now(1) })?;
        // Tokens chosen are at start, start + 1 … ; of those, the ones up to `fed` have been fed, or are about to be.
        let mut fed = start;
        let (mut taken, mut result) = (0, Ok(()));
        loop {
            let at = start + taken;
            while fed < self.context && fed < at + AHEAD {
                if let Some((_, chain)) = &self.chain {
                    self.resident.stream.replay(chain)?;
                }
                fed += 1;
            }
            let token = match self.wait_for(at) {
                Ok(token) => token,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            };
            taken += 1;
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
        let Some(choice) = choice_of(sampler.options()) else { return self.decode_by_host(first, sampler, sink) };
        self.feed_or_forget(first, Want::Nothing, true)?;
        if self.len == 0 {
            return Err(ExecError::Device("nothing was fed before decoding".to_owned()));
        }
        self.decode_by_device(choice, sampler, sink)
    }
}
