//! Several sequences on a GPU, decoded side by side: every matrix is read once for all of them.
//!
//! Each sequence has a *slot*: a stretch of the caches, a ring of ids in page-locked memory, a position and a choice of options. A step feeds
//! one token of each sequence that is decoded and chooses the next ones on the device; the list of their slots is an argument in memory. So
//! sequences of any lengths go together, one ends while the others go on, and its slot is free for the next. As with one sequence, nothing
//! is copied or waited for between steps: the host watches the rings behind.

mod decode;

use super::open::Statistics;
use super::plan::{Batch, Choice, Now};
use super::resident::{NONE, Resident, Whose};
use crate::exec::{ExecError, ExecOptions};
use crate::graph::Graph;
use crate::sample::Sampler;
use kjit_engine::{Device, DeviceInfo, Graph as Recording, PinnedBuffer};
use std::collections::HashMap;

/// A place for a sequence, as [`GpuBatch::add`] gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(usize);

impl Slot {
    /// Its number, below [`GpuBatch::slots`].
    pub fn index(self) -> usize {
        self.0
    }
}

/// A sequence that is to be decoded.
#[derive(Debug)]
pub struct Start<'a> {
    /// Where it is.
    pub slot: Slot,
    /// Tokens to feed before the first is chosen: a prompt, or the last token handed out. At least one.
    pub tokens: &'a [u32],
    /// How tokens are chosen: greedily, or drawn with numbers of its own. Penalties look at past tokens on the host, and are refused.
    pub sampler: &'a mut Sampler,
}

/// What becomes of a sequence after a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// It goes on.
    Go,
    /// It ends; the others go on.
    End,
    /// All of them stop here, and can be started again with the last token of each.
    Pause,
}

/// Runs several sequences of a model on a GPU.
pub struct GpuBatch {
    resident: Resident,
    graph: Graph,
    context: usize,
    /// Tokens in each slot's sequence; none where no sequence is.
    lens: Vec<Option<usize>>,
    /// The list of slots on its way to the device.
    rows: PinnedBuffer<u32>,
    /// A step's launches for so many sequences, drawn or greedy; recorded when first needed.
    chains: HashMap<(usize, bool), Recording>,
    statistics: Statistics,
}

impl GpuBatch {
    pub(super) fn new(
        resident: Resident,
        graph: Graph,
        options: &ExecOptions,
        statistics: Statistics,
    ) -> Result<GpuBatch, ExecError> {
        let slots = resident.plan.slots;
        let rows = resident.stream.device().pinned(slots)?;
        let lens = vec![None; slots];
        let context = options.context;
        Ok(GpuBatch { resident, graph, context, lens, rows, chains: HashMap::new(), statistics })
    }

    /// Sequences that fit.
    pub fn slots(&self) -> usize {
        self.lens.len()
    }

    /// Tokens of each that fit.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Size of the vocabulary.
    pub fn n_vocab(&self) -> usize {
        self.graph.n_vocab()
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

    /// A free slot, now with an empty sequence.
    ///
    /// # Errors
    /// None is free.
    pub fn add(&mut self) -> Result<Slot, ExecError> {
        let slots = self.slots();
        let free = self.lens.iter_mut().enumerate().find(|(_, len)| len.is_none());
        let (slot, len) = free.ok_or_else(|| {
            ExecError::Device(format!("all {slots} slots have a sequence: remove one, or open with more"))
        })?;
        *len = Some(0);
        Ok(Slot(slot))
    }

    /// Frees a slot; what it held is forgotten.
    ///
    /// # Errors
    /// It has no sequence.
    pub fn remove(&mut self, slot: Slot) -> Result<(), ExecError> {
        self.len(slot)?;
        self.set_len(slot.0, None);
        Ok(())
    }

    /// Tokens in a sequence.
    ///
    /// # Errors
    /// The slot has none.
    pub fn len(&self, slot: Slot) -> Result<usize, ExecError> {
        let len = self.lens.get(slot.0).copied().flatten();
        len.ok_or_else(|| ExecError::Device(format!("slot {} has no sequence", slot.0)))
    }

    /// Whether no slot has a sequence.
    pub fn is_empty(&self) -> bool {
        self.lens.iter().all(Option::is_none)
    }

    /// Forgets all tokens of a sequence from position `len` on.
    ///
    /// # Errors
    /// The slot has none.
    pub fn truncate(&mut self, slot: Slot, len: usize) -> Result<(), ExecError> {
        let now = self.len(slot)?;
        self.set_len(slot.0, Some(now.min(len)));
        Ok(())
    }

    /// Appends tokens to a sequence, which enter its cache only. Nothing is appended on an error.
    ///
    /// # Errors
    /// A slot without a sequence, a token that is none, a context that is full, a device that failed.
    pub fn feed(&mut self, slot: Slot, tokens: &[u32]) -> Result<(), ExecError> {
        let len = self.check(slot, tokens)?;
        self.put(slot.0, len, tokens, false)?;
        self.feed_prompt(slot.0, len, tokens.len())?;
        self.set_len(slot.0, Some(len + tokens.len()));
        Ok(())
    }

    /// Appends tokens to several sequences; the logits after each one's last, `n_vocab` each, in the order given. The last tokens go
    /// through the model together.
    ///
    /// # Errors
    /// As [`GpuBatch::feed`]; a slot named twice, no tokens for one.
    pub fn score(&mut self, work: &[(Slot, &[u32])]) -> Result<Vec<f32>, ExecError> {
        self.check_all(work.iter().map(|w| (w.0, w.1)))?;
        if work.is_empty() {
            return Ok(vec![]);
        }
        for &(slot, tokens) in work {
            self.prepare(slot, tokens, false)?;
        }
        self.set_rows(work.iter().map(|w| w.0.0))?;
        let (r, n) = (&self.resident, work.len());
        let (batch, now) = self.program(n, Choice::Greedy)?;
        r.issue(&batch.program, &batch.program.launches, &now, Whose::All)?;
        let all = r.kept(&batch.program, self.graph.logits)?.cast::<f32>()?;
        let logits = r.stream.read(&all.slice(..n * self.n_vocab())?)?;
        for &(slot, tokens) in work {
            let len = self.len(slot)? + tokens.len();
            self.set_len(slot.0, Some(len));
        }
        Ok(logits)
    }

    fn set_len(&mut self, slot: usize, len: Option<usize>) {
        if let Some(place) = self.lens.get_mut(slot) {
            *place = len;
        }
    }

    /// The length of a sequence to which these tokens can be appended.
    fn check(&self, slot: Slot, tokens: &[u32]) -> Result<usize, ExecError> {
        let (len, n_vocab) = (self.len(slot)?, self.n_vocab());
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= n_vocab) {
            return Err(ExecError::Token { id, n_vocab });
        }
        let all = len.saturating_add(tokens.len());
        if all > self.context {
            return Err(ExecError::Context { tokens: all, context: self.context });
        }
        Ok(len)
    }

    /// The same for sequences that take a step together.
    fn check_all<'a>(&self, all: impl Iterator<Item = (Slot, &'a [u32])>) -> Result<(), ExecError> {
        let mut seen = vec![];
        for (slot, tokens) in all {
            self.check(slot, tokens)?;
            if tokens.is_empty() {
                return Err(ExecError::Device(format!("slot {}: no token to start from", slot.0)));
            }
            if seen.contains(&slot) {
                return Err(ExecError::Device(format!("slot {} is named twice", slot.0)));
            }
            seen.push(slot);
        }
        Ok(())
    }

    /// Puts ids in place behind a sequence's tokens. With `clear`, what the device will choose after them can be told from what was there.
    fn put(&self, slot: usize, len: usize, tokens: &[u32], clear: bool) -> Result<(), ExecError> {
        let first = slot * (self.context + 1);
        let end = if clear { self.context + 1 } else { len + tokens.len() };
        let place = self.resident.control.tokens.slice(first + len..first + end)?;
        place.write(|to| {
            let (ids, rest) = to.split_at_mut(tokens.len().min(to.len()));
            ids.copy_from_slice(tokens);
            rest.fill(NONE);
        })?;
        Ok(())
    }

    /// Puts a sequence's position to this one, in the order of the stream.
    fn move_to(&self, slot: usize, position: usize) -> Result<(), ExecError> {
        let r = &self.resident;
        let number = r.control.numbers.slice(position..position + 1)?;
        Ok(r.stream.copy_in(&number, &r.control.position.slice(slot..slot + 1)?)?)
    }

    /// Says which slots the next steps are for, in the order of the stream.
    fn set_rows(&self, slots: impl Iterator<Item = usize>) -> Result<(), ExecError> {
        let n = self.rows.write(|to| to.iter_mut().zip(slots).map(|(row, slot)| *row = slot as u32).count())?;
        let to = self.resident.control.slots.slice(..n)?;
        Ok(self.resident.stream.copy_in(&self.rows.slice(..n)?, &to)?)
    }

    /// Puts tokens in place and feeds all but the last, at which the position then is.
    fn prepare(&self, slot: Slot, tokens: &[u32], clear: bool) -> Result<(), ExecError> {
        let (len, before) = (self.len(slot)?, tokens.len().saturating_sub(1));
        self.put(slot.0, len, tokens, clear)?;
        self.feed_prompt(slot.0, len, before)?;
        self.move_to(slot.0, len + before)
    }

    /// Feeds tokens of one sequence whose ids are in place; no logits are made.
    fn feed_prompt(&self, slot: usize, mut at: usize, tokens: usize) -> Result<(), ExecError> {
        let (r, end) = (&self.resident, at + tokens);
        while at < end {
            self.move_to(slot, at)?;
            let left = end - at;
            let prompts = &r.plan.prompts;
            let fits = prompts.iter().find(|p| p.tokens as usize >= left).or(prompts.last());
            at += match fits {
                Some(program) => {
                    let n = left.min(program.tokens as usize);
                    let now = program.now(&r.plan.target, r.units(), n as u32, Choice::Greedy);
                    let now = now.map_err(|e| ExecError::Device(e.to_string()))?;
                    r.issue(program, &program.launches, &now, Whose::Slot(slot))?;
                    n
                }
                // A model whose prompts the kernels do not cover goes token by token.
                None => {
                    self.set_rows(std::iter::once(slot))?;
                    let (batch, now) = self.program(1, Choice::Greedy)?;
                    r.issue(&batch.program, &batch.program.launches, &now, Whose::All)?;
                    1
                }
            };
        }
        Ok(())
    }

    /// The program for so many sequences, and what its launches are evaluated with.
    fn program(&self, n: usize, choice: Choice) -> Result<(&Batch, Now), ExecError> {
        let r = &self.resident;
        let found = r.plan.batches.iter().find(|b| b.program.tokens as usize >= n);
        let batch = found.ok_or_else(|| ExecError::Device(format!("no program for {n} sequences")))?;
        let now = batch.program.now(&r.plan.target, r.units(), n as u32, choice);
        Ok((batch, now.map_err(|e| ExecError::Device(e.to_string()))?))
    }
}
