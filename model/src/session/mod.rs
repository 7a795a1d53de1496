//! A session: any number of sequences in one model, on any device.
//!
//! A [`Session`] owns the weights, and the state of each sequence. [`Session::step`] takes tokens
//! of some sequences (a piece of a prompt, one token, a few drafts), runs them in one pass, and
//! returns logits or chosen tokens. Sequences can be added and removed between steps without an
//! upload. Most callers use the loop [`Session::decode`]: a GPU chooses each token and runs ahead
//! of the host.

pub(crate) mod adapters;
mod ahead;
mod open;
mod pages;

pub use crate::exec::{
    AdapterFile, DecodeControl, HostPrompts, KvType, OpenOptions, Output, Persistence, Probe,
    SessionError, Split, StepOutput, Want, check_scores,
};

pub use adapters::{LoadedAdapter, ScaledAdapter};

use crate::exec::{ImageTable, MaskCallback, Runner, Task};
use crate::gpu::GpuRunner;
use crate::graph::Graph;
use crate::host::HostRunner;
use crate::sample::{SampleOptions, Sampler, SamplerCheckpoint, TokenMask};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The serial number of the next sequence. It is global, so a session rejects the ids of other
/// sessions.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A sequence of a session. Ids of removed sequences are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId {
    slot: usize,
    serial: u64,
}

impl SequenceId {
    /// An id that no session has.
    #[cfg(test)]
    pub(crate) fn for_tests(serial: u64) -> SequenceId {
        SequenceId { slot: 0, serial }
    }

    /// The slot, below [`Session::sequences`].
    pub fn slot(self) -> usize {
        self.slot
    }
}

/// The part of a step for one sequence.
#[derive(Debug, Clone, Copy)]
pub struct Work<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// Tokens to append. They may be empty only with [`Want::Nothing`].
    pub tokens: &'a [u32],
    /// The result to return.
    pub want: Want,
}

/// The runner of some or all layers.
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
    /// The factor of each adapter.
    factors: Vec<f32>,
}

/// A model on a device, and the sequences in it.
pub struct Session {
    /// The last stage's runner. It owns the stages before it.
    runner: Box<dyn Runner>,
    /// The whole model's graph, if several stages compute it.
    whole: Option<Graph>,
    /// Sequences by slot.
    sequences: Vec<Option<Sequence>>,
    context: usize,
    n_vocab: usize,
    /// Maximum number of prompt tokens to feed in one step.
    piece: usize,
    /// The storage type of keys and values.
    kv: KvType,
    /// Tokens that end a sequence.
    end_ids: Vec<u32>,
    /// The error after which the device was lost.
    lost: Option<String>,
    /// The sequences of each launched step that was not collected yet.
    launched: VecDeque<Vec<SequenceId>>,
    /// Places for adapters that are loaded later.
    places: adapters::Places,
    /// Rows of images that prompts may contain.
    images: Option<Arc<ImageTable>>,
}

impl Session {
    /// Adds a warning to the GPU runner's warnings.
    pub(crate) fn remark(&mut self, line: String) {
        self.runner.remark(line);
    }

    /// The number of sequence slots.
    pub fn sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Adds sequence slots if the memory of a sequence grows with its tokens (only on the CPU).
    /// Returns whether slots were added.
    pub fn seat(&mut self, sequences: usize) -> bool {
        let may = self.grows();
        if may && sequences > self.sequences.len() {
            self.sequences.resize_with(sequences, || None);
        }
        may
    }

    /// Maximum number of tokens in a sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Size of the vocabulary: the number of elements in a row of logits.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// Maximum number of prompt tokens to feed in one step. A prompt can be cancelled between such
    /// pieces.
    pub fn piece(&self) -> usize {
        self.piece
    }

    /// The storage type of keys and values.
    pub fn kv(&self) -> KvType {
        self.kv
    }

    /// The tokens that end a sequence in [`Session::decode`]. [`crate::Model`] sets the tokens that
    /// end a message; a session opened without a tokenizer has none.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// Sets [`Session::end_ids`], for example to [`crate::tokenizer::Tokenizer::eog_ids`].
    pub fn set_end_ids(&mut self, ids: Vec<u32>) {
        self.end_ids = ids;
    }

    /// The whole model's graph.
    pub fn graph(&self) -> &Graph {
        self.whole.as_ref().unwrap_or_else(|| self.runner.graph())
    }

    /// The runners in the order of their layers.
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

    /// The CPU's runner, if it computes the last stage.
    pub fn cpu(&self) -> Option<&HostRunner> {
        let any: &dyn Any = &*self.runner;
        any.downcast_ref()
    }

    /// Like [`Session::cpu`], but mutable: to read intermediate values and run single operations.
    pub fn cpu_mut(&mut self) -> Option<&mut HostRunner> {
        let any: &mut dyn Any = &mut *self.runner;
        any.downcast_mut()
    }

    /// The GPU's runner, if it computes the last stage.
    pub fn gpu(&self) -> Option<&GpuRunner> {
        let any: &dyn Any = &*self.runner;
        any.downcast_ref()
    }

    /// Like [`Session::gpu`], but mutable: to switch the form of its tokens
    /// ([`GpuRunner::set_form`]).
    pub fn gpu_mut(&mut self) -> Option<&mut GpuRunner> {
        let any: &mut dyn Any = &mut *self.runner;
        any.downcast_mut()
    }

    /// Whether [`Session::seat`] may add sequences.
    pub(crate) fn grows(&self) -> bool {
        self.runner.grows()
    }

    /// Whether [`Session::decode`] runs ahead of the host: the device chooses each token.
    pub(crate) fn runs_ahead(&self) -> bool {
        self.runner.runs_ahead()
    }

    /// Allows ids of rows of this table in tokens. The rows replace the embeddings of tokens.
    ///
    /// # Errors
    /// [`SessionError::Images`] if the device or the model has no place for them.
    pub fn set_images(&mut self, table: &Arc<ImageTable>) -> Result<(), SessionError> {
        self.runner.set_images(table)?;
        self.images = Some(Arc::clone(table));
        Ok(())
    }

    /// Whether steps must not end within an image, because its rows attend to each other.
    pub(crate) fn has_whole_images(&self) -> bool {
        self.images.as_ref().is_some_and(|images| images.is_bidirectional())
    }

    /// Adds an empty sequence that is sampled with `options`.
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
        let factors = self.graph().adapter_factors();
        if let Some(place) = self.sequences.get_mut(slot) {
            *place = Some(Sequence { serial, len: 0, sampler: Sampler::new(options), factors });
        }
        Ok(SequenceId { slot, serial })
    }

    /// Sets the scale of each adapter of the graph for an empty sequence. A new sequence has the
    /// scales that the adapters were opened with.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`]; [`SessionError::Adapters`] if the sequence has tokens or the
    /// number of scales is not that of the adapters; errors of the device.
    pub fn set_adapters(&mut self, id: SequenceId, scales: &[f32]) -> Result<(), SessionError> {
        let (len, adapters) = (self.sequence(id)?.len, &self.graph().adapters);
        if len > 0 || scales.len() != adapters.len() {
            return Err(SessionError::Adapters {
                given: scales.len(),
                adapters: adapters.len(),
                tokens: len,
            });
        }
        let factors: Vec<f32> = adapters.iter().zip(scales).map(|(a, s)| a.unit * s).collect();
        self.runner.adapt(id.slot, &factors)?;
        if let Some(Some(sequence)) = self.sequences.get_mut(id.slot) {
            sequence.factors = factors;
        }
        Ok(())
    }

    /// Adds a sequence that begins with the first `len` tokens of another sequence, with the same
    /// scales of adapters. The state is copied, and nothing is computed. [`Session::len`] is its
    /// number of tokens. It is less than `len` if the state of a layer cannot be rewound to that
    /// position. The caller feeds the missing tokens.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`], [`SessionError::Full`], [`SessionError::Memory`] on the CPU,
    /// and errors of the device.
    pub fn fork(
        &mut self,
        of: SequenceId,
        len: usize,
        options: SampleOptions,
    ) -> Result<SequenceId, SessionError> {
        let len = len.min(self.sequence(of)?.len);
        let factors = self.sequence(of)?.factors.clone();
        let id = self.add(options)?;
        let copied = self
            .runner
            .adapt(id.slot, &factors)
            .and_then(|()| self.runner.copy(of.slot, id.slot, len));
        self.sequence_mut(id)?.factors = factors;
        match copied {
            Ok(kept) => self.sequence_mut(id)?.len = kept,
            Err(error) => {
                self.remove(id)?;
                return Err(self.undo(&[], error));
            }
        }
        Ok(id)
    }

    /// Removes a sequence and frees its slot.
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

    /// Computes the vector of a text. The model must be an encoder.
    ///
    /// # Errors
    /// The model computes logits; there are no tokens, too many, or ids outside the vocabulary; the
    /// device failed.
    pub fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, SessionError> {
        self.not_lost()?;
        let made = self.runner.embed(tokens);
        if let Err(SessionError::Lost(why)) = &made {
            self.lost = Some(why.clone());
        }
        made
    }

    /// The number of tokens in a sequence.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`].
    pub fn len(&self, id: SequenceId) -> Result<usize, SessionError> {
        self.sequence(id).map(|s| s.len)
    }

    /// Whether the session has no sequence.
    pub fn is_empty(&self) -> bool {
        self.sequences.iter().all(Option::is_none)
    }

    /// The sampler of the sequence. Its history has the chosen tokens, but not the tokens of the
    /// prompt.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`].
    pub fn sampler(&mut self, id: SequenceId) -> Result<&mut Sampler, SessionError> {
        self.sequence_mut(id).map(|s| &mut s.sampler)
    }

    /// Removes a sequence's tokens from position `len` on. Returns the number of remaining tokens.
    /// It is less than `len` if a layer's state (such as a recurrent state) cannot be rewound to
    /// that position. The caller feeds the missing tokens again.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`].
    pub fn truncate(&mut self, id: SequenceId, len: usize) -> Result<usize, SessionError> {
        let now = self.sequence(id)?.len;
        let kept = self.runner.truncate(id.slot, len.min(now), now);
        self.sequence_mut(id)?.len = kept;
        Ok(kept)
    }

    /// Checks one part of a step, independent of the other parts.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`], [`SessionError::Token`], [`SessionError::Context`],
    /// [`SessionError::NoTokens`].
    pub fn check(&self, work: &Work<'_>) -> Result<(), SessionError> {
        let (len, n_vocab) = (self.sequence(work.sequence)?.len, self.n_vocab);
        let shown = |id: u32| self.images.as_ref().is_some_and(|all| all.find(id).is_some());
        if let Some(&id) = work.tokens.iter().find(|&&id| id as usize >= n_vocab && !shown(id)) {
            return Err(SessionError::Token { id, n_vocab });
        }
        if let Some(images) = self.images.as_ref().filter(|all| all.is_bidirectional())
            && let Some(&last) = work.tokens.last()
            && images.find(last).is_some_and(|image| image.row(last.wrapping_add(1)).is_some())
        {
            let why = "a step ends within an image whose rows attend to each other";
            return Err(SessionError::Images(why.to_owned()));
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

    /// Appends tokens to sequences in one pass. Returns the requested results in the order of
    /// `work`.
    ///
    /// # Errors
    /// Errors of [`Session::check`] for any part of the work, [`SessionError::Twice`], errors of
    /// the device. All sequences are then unchanged or shorter.
    pub fn step(&mut self, work: &[Work<'_>]) -> Result<Vec<StepOutput>, SessionError> {
        self.step_by(work, None)
    }

    /// Like [`Session::step`], for masks that are not known yet. `masks` is called after the work
    /// before the choice was launched, and returns the masks. `None`: the mask is still not known;
    /// [`Want::Choose`] then returns the logits of this sequence, as [`Want::Last`] does.
    ///
    /// # Errors
    /// See [`Session::step`].
    pub fn step_masked(
        &mut self,
        work: &[Work<'_>],
        masks: &mut dyn FnMut() -> Vec<(SequenceId, Option<TokenMask>)>,
    ) -> Result<Vec<StepOutput>, SessionError> {
        let mut set = |tasks: &mut [Task<'_>]| {
            for (id, mask) in masks() {
                let Some(task) = tasks.iter_mut().find(|t| t.slot == id.slot) else { continue };
                match mask {
                    Some(mask) => task.sampler.set_mask(Some(mask)),
                    None if task.want == Want::Choose => task.want = Want::Last,
                    None => {}
                }
            }
        };
        self.step_by(work, Some(&mut set))
    }

    fn step_by(
        &mut self,
        work: &[Work<'_>],
        late: Option<MaskCallback<'_>>,
    ) -> Result<Vec<StepOutput>, SessionError> {
        self.check_all(work)?;
        let (mut tasks, runner) = tasks(&mut self.sequences, &mut self.runner, work);
        // Parts without tokens are not in the step.
        let idle: Vec<bool> = work.iter().map(|w| w.tokens.is_empty()).collect();
        tasks.retain(|t| !t.tokens.is_empty());
        // Drafts advance samplers one token at a time. If another sequence fails afterwards, all
        // samplers return to their marks.
        let drafts = tasks.iter().any(|t| matches!(t.want, Want::Drafted(_)));
        let marks: Vec<SamplerCheckpoint> =
            tasks.iter().filter(|_| drafts).map(|t| t.sampler.mark()).collect();
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
            if let StepOutput::Tokens(ids) = given { Some((w, ids.len())) } else { None }
        }) {
            if let Want::Drafted(n) = w.want {
                let wrong = (n + 1).saturating_sub(right);
                self.truncate(w.sequence, self.len(w.sequence)?.saturating_sub(wrong))?;
            }
        }
        let mut given = given.into_iter();
        Ok(idle
            .into_iter()
            .map(|idle| if idle { None } else { given.next() }.unwrap_or(StepOutput::Nothing))
            .collect())
    }

    /// A step of one sequence that returns rows of logits, `n_vocab` elements each. Empty if no
    /// logits are requested.
    ///
    /// # Errors
    /// See [`Session::step`].
    pub fn feed(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        want: Want,
    ) -> Result<Vec<f32>, SessionError> {
        match self.step(&[Work { sequence, tokens, want }])?.pop() {
            Some(StepOutput::Logits(rows)) => Ok(rows),
            _ => Ok(vec![]),
        }
    }

    /// Appends the tokens of each sequence, then repeats: choose a token, pass it to `sink`, append
    /// it. A sequence ends at a token of [`Session::end_ids`], if the sink ends it, or when its
    /// context is full; the sink can pause all. The sink also gets the token that ends a sequence.
    /// The token at which a sequence ends or pauses is not appended: to continue, start with it.
    ///
    /// On a GPU the device chooses tokens and runs ahead of the sink; excess tokens are removed. If
    /// any sequence has penalties, biases or a mask, all sequences are decoded step by step. All
    /// sequences pause when no shared pages are free. If states cannot be rewound, the sink gets
    /// the token of every sequence in the step before all pause.
    ///
    /// # Errors
    /// See [`Session::step`] with [`Want::Choose`]. Tokens that the sink got before are valid.
    pub fn decode(
        &mut self,
        starts: &[(SequenceId, &[u32])],
        sink: &mut dyn FnMut(SequenceId, u32) -> DecodeControl,
    ) -> Result<(), SessionError> {
        let ends = self.end_ids.clone();
        self.decode_past_ends(starts, &mut |id, token| match sink(id, token) {
            DecodeControl::Go if ends.contains(&token) => DecodeControl::End,
            after => after,
        })
    }

    /// Like [`Session::decode`], but tokens of [`Session::end_ids`] do not end a sequence.
    ///
    /// # Errors
    /// See [`Session::decode`].
    pub fn decode_past_ends(
        &mut self,
        starts: &[(SequenceId, &[u32])],
        sink: &mut dyn FnMut(SequenceId, u32) -> DecodeControl,
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
            starts.get(index).map_or(DecodeControl::Pause, |(id, _)| sink(*id, token))
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
        sink: &mut dyn FnMut(SequenceId, u32) -> DecodeControl,
    ) -> Result<(), SessionError> {
        let mut going: Vec<(SequenceId, Vec<u32>)> =
            starts.iter().map(|(id, tokens)| (*id, tokens.to_vec())).collect();
        while !going.is_empty() {
            let work =
                going.iter().map(|(id, tokens)| Work { sequence: *id, tokens, want: Want::Choose });
            let work: Vec<Work<'_>> = work.collect();
            // With several sequences, the sink may pause before it has received the tokens of all
            // sequences.
            let marks: Vec<Option<SamplerCheckpoint>> = match going.len() {
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
                    // The sink has not received this token, so the sequence returns to its length
                    // before the step.
                    let before = self.len(id)?.saturating_sub(tokens.len());
                    self.truncate(id, before)?;
                    if let Some(mark) = mark {
                        self.sampler(id)?.back_to(mark);
                    }
                    continue;
                }
                let StepOutput::Token(token) = given else { continue };
                match sink(id, token) {
                    DecodeControl::Go if self.len(id)? < self.context => {
                        tokens.clear();
                        tokens.push(token);
                        next.push((id, tokens));
                    }
                    DecodeControl::Go | DecodeControl::End => {}
                    DecodeControl::Pause => paused = true,
                }
            }
            if paused {
                return Ok(());
            }
            going = next;
        }
        Ok(())
    }

    /// Checks each part of a step ([`Session::check`]), and that each sequence is named only once.
    fn check_all(&self, work: &[Work<'_>]) -> Result<(), SessionError> {
        self.not_lost()?;
        if !self.launched.is_empty() {
            return Err(SessionError::Device("a launched step was not collected".to_owned()));
        }
        work.iter().try_for_each(|w| self.check(w))?;
        self.check_once(work)
    }

    /// Checks that each sequence is named only once.
    fn check_once(&self, work: &[Work<'_>]) -> Result<(), SessionError> {
        let mut seen = vec![false; self.sequences.len()];
        for w in work {
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

    /// Resets each `(slot, length)` to its length after a failed step, if its state can be rewound
    /// that far.
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

/// Converts checked work to tasks. Returns them with the runner.
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
