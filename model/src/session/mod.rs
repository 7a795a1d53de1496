//! Any number of sequences in one model, whatever runs it.
//!
//! A [`Session`] owns the weights once and the state of each sequence. [`Session::step`] takes some
//! tokens of some sequences (a piece of a prompt, one token, a few drafted ones), runs them in one
//! go, and gives rows of logits or chosen tokens. Sequences join and leave between steps; nothing
//! is uploaded for a newcomer. [`Session::decode`] is the loop that most callers want: on a GPU the
//! device chooses each token and goes on while the host watches behind.

mod open;
mod pages;

pub use crate::exec::{
    After, Given, HostPrompts, KvType, OpenOptions, Output, Persistence, Probe, SessionError,
    Split, Want, check_scores,
};

use crate::exec::{Late, Runner, Task};
use crate::gpu::GpuRunner;
use crate::graph::Graph;
use crate::host::HostRunner;
use crate::sample::{Mark, SampleOptions, Sampler, TokenMask};
use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};

/// The next sequence's number, whichever session's: so that no session takes another's for its own.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A sequence of a session. One that was removed has an id that is never given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId {
    slot: usize,
    serial: u64,
}

impl SequenceId {
    /// Its place among those that fit, below [`Session::sequences`].
    pub fn slot(self) -> usize {
        self.slot
    }
}

/// What a step does for a sequence.
#[derive(Debug, Clone, Copy)]
pub struct Work<'a> {
    /// Which.
    pub sequence: SequenceId,
    /// Tokens to append. At least one, but where nothing is wanted.
    pub tokens: &'a [u32],
    /// What for.
    pub want: Want,
}

/// What computes some of the layers, or all.
#[derive(Clone, Copy)]
pub enum StageRunner<'a> {
    /// The CPU.
    Cpu(&'a HostRunner),
    /// A GPU.
    Gpu(&'a GpuRunner),
}

struct Sequence {
    serial: u64,
    len: usize,
    sampler: Sampler,
}

/// A model on a device, and the sequences in it.
pub struct Session {
    /// What computes: the last stage, which has those before it.
    runner: Box<dyn Runner>,
    /// What the model computes, where that is several stages' work.
    whole: Option<Graph>,
    /// By slot.
    sequences: Vec<Option<Sequence>>,
    context: usize,
    n_vocab: usize,
    /// Tokens of a prompt that may as well be fed in a step of their own.
    piece: usize,
    /// How keys and values are stored.
    kv: KvType,
    /// Tokens after which a sequence ends.
    end_ids: Vec<u32>,
    /// What was said when the device was lost.
    lost: Option<String>,
}

impl Session {
    /// Adds a line to what the device's runner says.
    pub(crate) fn remark(&mut self, line: String) {
        self.runner.remark(line);
    }

    /// Sequences that fit.
    pub fn sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Has more sequences fit, where each takes memory as its tokens come: on the CPU alone. Else
    /// nothing changes.
    pub fn seat(&mut self, sequences: usize) -> bool {
        let may = self.grows();
        if may && sequences > self.sequences.len() {
            self.sequences.resize_with(sequences, || None);
        }
        may
    }

    /// Tokens that fit in each.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Size of the vocabulary: elements of a row of logits.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// Tokens of a prompt that may as well be fed in a step of their own: between such pieces
    /// somebody may change his mind.
    pub fn piece(&self) -> usize {
        self.piece
    }

    /// How keys and values are stored.
    pub fn kv(&self) -> KvType {
        self.kv
    }

    /// The tokens after which [`Session::decode`] ends a sequence. [`crate::Model`] sets those that
    /// end a turn; a session that was opened without a tokenizer has none.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// Sets them: [`crate::tokenizer::Tokenizer::eog_ids`], say.
    pub fn set_end_ids(&mut self, ids: Vec<u32>) {
        self.end_ids = ids;
    }

    /// What the model computes.
    pub fn graph(&self) -> &Graph {
        self.whole.as_ref().unwrap_or_else(|| self.runner.graph())
    }

    /// What computes, the first layers' runner first.
    pub fn stages(&self) -> Vec<StageRunner<'_>> {
        let mut all = vec![];
        let mut at = Some(&*self.runner);
        while let Some(runner) = at {
            let any: &dyn Any = runner;
            all.extend(any.downcast_ref().map(StageRunner::Cpu));
            all.extend(any.downcast_ref().map(StageRunner::Gpu));
            at = runner.before();
        }
        all.reverse();
        all
    }

    /// What is particular to the CPU, if that computes: of several stages the last.
    pub fn cpu(&self) -> Option<&HostRunner> {
        let any: &dyn Any = &*self.runner;
        any.downcast_ref()
    }

    /// The same, to tap values and run operations by themselves.
    pub fn cpu_mut(&mut self) -> Option<&mut HostRunner> {
        let any: &mut dyn Any = &mut *self.runner;
        any.downcast_mut()
    }

    /// What is particular to a GPU, if one computes: of several stages the last.
    pub fn gpu(&self) -> Option<&GpuRunner> {
        let any: &dyn Any = &*self.runner;
        any.downcast_ref()
    }

    /// Whether [`Session::seat`] may add sequences.
    pub(crate) fn grows(&self) -> bool {
        self.runner.grows()
    }

    /// Whether [`Session::decode`] runs ahead of the host: the device chooses each token.
    pub(crate) fn runs_ahead(&self) -> bool {
        self.runner.runs_ahead()
    }

    /// A new sequence without tokens, whose tokens are chosen so.
    ///
    /// # Errors
    /// [`SessionError::Full`]; on the CPU [`SessionError::Memory`] for its state.
    pub fn add(&mut self, options: SampleOptions) -> Result<SequenceId, SessionError> {
        self.not_lost()?;
        let sequences = self.sequences.len();
        let free = self.sequences.iter().position(Option::is_none);
        let slot = free.ok_or(SessionError::Full { sequences })?;
        self.runner.add(slot)?;
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        if let Some(place) = self.sequences.get_mut(slot) {
            *place = Some(Sequence { serial, len: 0, sampler: Sampler::new(options) });
        }
        Ok(SequenceId { slot, serial })
    }

    /// A new sequence that begins with the first `len` tokens of another, whose state is copied:
    /// nothing is computed. What it has is what [`Session::len`] says: fewer tokens where a layer's
    /// state has no way back to that position; the caller feeds the others.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`], [`SessionError::Full`]; [`SessionError::Memory`] on the CPU;
    /// what a device may say.
    pub fn fork(
        &mut self,
        of: SequenceId,
        len: usize,
        options: SampleOptions,
    ) -> Result<SequenceId, SessionError> {
        let len = len.min(self.sequence(of)?.len);
        let id = self.add(options)?;
        match self.runner.copy(of.slot, id.slot, len) {
            Ok(kept) => self.sequence_mut(id)?.len = kept,
            Err(error) => {
                self.remove(id)?;
                return Err(self.undo(&[], error));
            }
        }
        Ok(id)
    }

    /// Forgets a sequence; its place is free for another.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`].
    pub fn remove(&mut self, id: SequenceId) -> Result<(), SessionError> {
        self.sequence(id)?;
        if let Some(place) = self.sequences.get_mut(id.slot) {
            *place = None;
        }
        self.runner.remove(id.slot);
        Ok(())
    }

    /// A text's vector, of a model that makes such.
    ///
    /// # Errors
    /// A model that makes logits, ids outside the vocabulary, more tokens than fit, none at all; a
    /// device that failed.
    pub fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, SessionError> {
        self.not_lost()?;
        let made = self.runner.embed(tokens);
        if let Err(SessionError::Lost(why)) = &made {
            self.lost = Some(why.clone());
        }
        made
    }

    /// Tokens in a sequence.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`].
    pub fn len(&self, id: SequenceId) -> Result<usize, SessionError> {
        self.sequence(id).map(|s| s.len)
    }

    /// Whether there is no sequence.
    pub fn is_empty(&self) -> bool {
        self.sequences.iter().all(Option::is_none)
    }

    /// How a sequence's tokens are chosen: to change it, or to look at it. It has seen the tokens
    /// that were chosen, and no prompt's.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`].
    pub fn sampler(&mut self, id: SequenceId) -> Result<&mut Sampler, SessionError> {
        self.sequence_mut(id).map(|s| &mut s.sampler)
    }

    /// Forgets a sequence's tokens from position `len` on. Gives the tokens that are left: fewer
    /// than asked where a layer's state has no way back to that position, as a recurrent one's; the
    /// caller feeds them again.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`].
    pub fn truncate(&mut self, id: SequenceId, len: usize) -> Result<usize, SessionError> {
        let now = self.sequence(id)?.len;
        let kept = self.runner.truncate(id.slot, len.min(now), now);
        self.sequence_mut(id)?.len = kept;
        Ok(kept)
    }

    /// Whether a step could take this work, by itself.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`], [`SessionError::Token`], [`SessionError::Context`],
    /// [`SessionError::NoTokens`].
    pub fn check(&self, work: &Work<'_>) -> Result<(), SessionError> {
        let (len, n_vocab) = (self.sequence(work.sequence)?.len, self.n_vocab);
        if let Some(&id) = work.tokens.iter().find(|&&id| id as usize >= n_vocab) {
            return Err(SessionError::Token { id, n_vocab });
        }
        let tokens = len.saturating_add(work.tokens.len());
        if tokens > self.context {
            return Err(SessionError::Context { tokens, context: self.context });
        }
        let drafted = if let Want::Drafted(n) = work.want { n } else { 0 };
        if work.tokens.len() <= drafted && work.want != Want::Nothing {
            return Err(SessionError::NoTokens);
        }
        Ok(())
    }

    /// Appends tokens to sequences, all in one go; what was wanted, in the order of the work.
    ///
    /// # Errors
    /// Those of [`Session::check`] for any of the work, [`SessionError::Twice`], and what a device
    /// may say. No sequence has more tokens then.
    pub fn step(&mut self, work: &[Work<'_>]) -> Result<Vec<Given>, SessionError> {
        self.step_by(work, None)
    }

    /// The same, where it is not known yet which tokens some of them may choose: `masks` says so,
    /// once what comes before the choice is on its way to the device.
    ///
    /// # Errors
    /// As [`Session::step`].
    pub fn step_masked(
        &mut self,
        work: &[Work<'_>],
        masks: &mut dyn FnMut() -> Vec<(SequenceId, TokenMask)>,
    ) -> Result<Vec<Given>, SessionError> {
        let mut set = |tasks: &mut [Task<'_>]| {
            for (id, mask) in masks() {
                if let Some(task) = tasks.iter_mut().find(|t| t.slot == id.slot) {
                    task.sampler.set_mask(Some(mask));
                }
            }
        };
        self.step_by(work, Some(&mut set))
    }

    fn step_by(
        &mut self,
        work: &[Work<'_>],
        late: Option<Late<'_>>,
    ) -> Result<Vec<Given>, SessionError> {
        self.check_all(work)?;
        let (mut tasks, runner) = tasks(&mut self.sequences, &mut self.runner, work);
        // Who gives no tokens has no part in it.
        let idle: Vec<bool> = work.iter().map(|w| w.tokens.is_empty()).collect();
        tasks.retain(|t| !t.tokens.is_empty());
        // Drafts are held against what is chosen one after the other, and somebody else may fail
        // behind them: then nobody has drawn anything.
        let drafts = tasks.iter().any(|t| matches!(t.want, Want::Drafted(_)));
        let marks: Vec<Mark> = tasks.iter().filter(|_| drafts).map(|t| t.sampler.mark()).collect();
        let done = if tasks.is_empty() { Ok(vec![]) } else { runner.step(&mut tasks, late) };
        let given = match done {
            Ok(given) => given,
            Err(error) => {
                tasks.iter_mut().zip(marks).for_each(|(t, mark)| t.sampler.back_to(mark));
                let slots: Vec<(usize, usize)> = tasks.iter().map(|t| (t.slot, t.first)).collect();
                return Err(self.undo(&slots, error));
            }
        };
        for w in work {
            self.sequence_mut(w.sequence)?.len += w.tokens.len();
        }
        let with = work.iter().filter(|w| !w.tokens.is_empty()).zip(&given);
        for (w, right) in with.filter_map(|(w, given)| {
            if let Given::Tokens(ids) = given { Some((w, ids.len())) } else { None }
        }) {
            if let Want::Drafted(n) = w.want {
                let wrong = (n + 1).saturating_sub(right);
                self.truncate(w.sequence, self.len(w.sequence)?.saturating_sub(wrong))?;
            }
        }
        let mut given = given.into_iter();
        Ok(idle
            .into_iter()
            .map(|idle| if idle { None } else { given.next() }.unwrap_or(Given::Nothing))
            .collect())
    }

    /// A step of one sequence that gives rows of logits, `n_vocab` each; none where nothing, or a
    /// token, is wanted.
    ///
    /// # Errors
    /// As [`Session::step`].
    pub fn feed(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        want: Want,
    ) -> Result<Vec<f32>, SessionError> {
        match self.step(&[Work { sequence, tokens, want }])?.pop() {
            Some(Given::Logits(rows)) => Ok(rows),
            _ => Ok(vec![]),
        }
    }

    /// Appends each sequence's tokens, then chooses, hands each token to `sink` and appends it,
    /// until a token of [`Session::end_ids`] or the sink ends every sequence, the sink pauses, or
    /// their contexts are full; the sink gets the token that ends, too. The token after which a
    /// sequence ends or pauses is not appended: to go on, start again with it.
    ///
    /// On a GPU the device chooses and runs ahead of the sink; what it appended too much is
    /// forgotten. Where a sequence has penalties, biases or a mask, all are decoded step by step
    /// instead. Where the pages that sequences share run out, all of them pause. Where states
    /// cannot go back the sink has each one's token of a step before all pause.
    ///
    /// # Errors
    /// As [`Session::step`] with [`Want::Choose`]; tokens that the sink had until then are good.
    pub fn decode(
        &mut self,
        starts: &[(SequenceId, &[u32])],
        sink: &mut dyn FnMut(SequenceId, u32) -> After,
    ) -> Result<(), SessionError> {
        let ends = self.end_ids.clone();
        self.decode_past_ends(starts, &mut |id, token| match sink(id, token) {
            After::Go if ends.contains(&token) => After::End,
            after => after,
        })
    }

    /// The same, where only the sink and the context end a sequence: past the end of a turn.
    ///
    /// # Errors
    /// As [`Session::decode`].
    pub fn decode_past_ends(
        &mut self,
        starts: &[(SequenceId, &[u32])],
        sink: &mut dyn FnMut(SequenceId, u32) -> After,
    ) -> Result<(), SessionError> {
        let work: Vec<Work<'_>> = starts
            .iter()
            .map(|&(sequence, tokens)| Work { sequence, tokens, want: Want::Choose })
            .collect();
        self.check_all(&work)?;
        let mut samplers =
            starts.iter().filter_map(|(id, _)| self.sequence(*id).ok()).map(|s| &s.sampler);
        let plain = !starts.is_empty() && samplers.all(Sampler::takes_logits_as_they_are);
        let (mut tasks, runner) = tasks(&mut self.sequences, &mut self.runner, &work);
        let Some(ahead) = runner.ahead().filter(|_| plain) else {
            return self.decode_by_steps(starts, sink);
        };
        let mut handed = |index: usize, token| {
            starts.get(index).map_or(After::Pause, |(id, _)| sink(*id, token))
        };
        let (lens, done) = ahead.decode(&mut tasks, &mut handed);
        for ((id, _), len) in starts.iter().zip(lens) {
            self.sequence_mut(*id)?.len = len;
        }
        done.map_err(|error| self.undo(&[], error))
    }

    fn decode_by_steps(
        &mut self,
        starts: &[(SequenceId, &[u32])],
        sink: &mut dyn FnMut(SequenceId, u32) -> After,
    ) -> Result<(), SessionError> {
        let mut going: Vec<(SequenceId, Vec<u32>)> =
            starts.iter().map(|(id, tokens)| (*id, tokens.to_vec())).collect();
        while !going.is_empty() {
            let work =
                going.iter().map(|(id, tokens)| Work { sequence: *id, tokens, want: Want::Choose });
            let work: Vec<Work<'_>> = work.collect();
            // Where somebody may pause before the others have had their tokens.
            let marks: Vec<Option<Mark>> = match going.len() {
                1 => vec![None],
                _ => going
                    .iter()
                    .map(|(id, _)| self.sequence(*id).ok().map(|s| s.sampler.mark()))
                    .collect(),
            };
            let given = self.step(&work)?;
            let (mut next, mut paused) = (vec![], false);
            for (((id, mut tokens), mark), given) in going.into_iter().zip(marks).zip(given) {
                if paused {
                    // Nobody has seen its token: it is as before the step.
                    let before = self.len(id)?.saturating_sub(tokens.len());
                    self.truncate(id, before)?;
                    if let Some(mark) = mark {
                        self.sampler(id)?.back_to(mark);
                    }
                    continue;
                }
                let Given::Token(token) = given else { continue };
                match sink(id, token) {
                    After::Go if self.len(id)? < self.context => {
                        tokens.clear();
                        tokens.push(token);
                        next.push((id, tokens));
                    }
                    After::Go | After::End => {}
                    After::Pause => paused = true,
                }
            }
            if paused {
                return Ok(());
            }
            going = next;
        }
        Ok(())
    }

    /// The same as [`Session::check`] for work that is done together.
    fn check_all(&self, work: &[Work<'_>]) -> Result<(), SessionError> {
        self.not_lost()?;
        let mut seen = vec![false; self.sequences.len()];
        for w in work {
            self.check(w)?;
            match seen.get_mut(w.sequence.slot) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err(SessionError::Twice),
            }
        }
        Ok(())
    }

    fn not_lost(&self) -> Result<(), SessionError> {
        self.lost.as_ref().map_or(Ok(()), |why| Err(SessionError::Lost(why.clone())))
    }

    /// After a failed step: back to so many tokens in each slot, as far as there is a way.
    fn undo(&mut self, slots: &[(usize, usize)], error: SessionError) -> SessionError {
        for &(slot, len) in slots {
            let kept = self.runner.undo(slot, len);
            if let Some(Some(sequence)) = self.sequences.get_mut(slot) {
                sequence.len = kept;
            }
        }
        if let SessionError::Lost(why) = &error {
            self.lost = Some(why.clone());
        }
        error
    }

    fn sequence(&self, id: SequenceId) -> Result<&Sequence, SessionError> {
        let found =
            self.sequences.get(id.slot).and_then(Option::as_ref).filter(|s| s.serial == id.serial);
        found.ok_or(SessionError::NoSequence)
    }

    fn sequence_mut(&mut self, id: SequenceId) -> Result<&mut Sequence, SessionError> {
        let found = self
            .sequences
            .get_mut(id.slot)
            .and_then(Option::as_mut)
            .filter(|s| s.serial == id.serial);
        found.ok_or(SessionError::NoSequence)
    }
}

/// Checked work as tasks, beside what does them.
fn tasks<'s, 'w: 's>(
    sequences: &'s mut [Option<Sequence>],
    runner: &'s mut Box<dyn Runner>,
    work: &[Work<'w>],
) -> (Vec<Task<'s>>, &'s mut dyn Runner) {
    let mut by_slot: Vec<Option<&mut Sequence>> =
        sequences.iter_mut().map(Option::as_mut).collect();
    let task = |w: &Work<'w>| {
        let s = by_slot.get_mut(w.sequence.slot).and_then(Option::take)?;
        Some(Task {
            slot: w.sequence.slot,
            first: s.len,
            tokens: w.tokens,
            want: w.want,
            sampler: &mut s.sampler,
        })
    };
    (work.iter().filter_map(task).collect(), &mut **runner)
}
