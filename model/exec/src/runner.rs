//! A runner's interface to a session, and to the next stage.

use super::{DecodeControl, ImageTable, KvPages, MaskCallback, SessionError, StepOutput, Task};
use kjit_engine::{DeviceBuffer, Stream};
use kjit_graph::Graph;
use std::any::Any;
use std::sync::Arc;

/// Consecutive tokens of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct TokenSpan<'a> {
    /// The sequence's slot.
    pub slot: usize,
    /// The first token's position.
    pub first: usize,
    /// Token ids.
    pub tokens: &'a [u32],
}

/// Hidden states that a stage computed.
pub enum HiddenStates<'a> {
    /// Hidden states in host memory.
    Host(&'a [f32]),
    /// Hidden states on a device. They are valid after all work that is in the stream now. Later
    /// work in that stream may overwrite them.
    Device(&'a Stream, DeviceBuffer<f32>),
}

/// Receives hidden states, with the index of the first one among all requested states.
pub type HiddenStatesSink<'a> = dyn FnMut(usize, HiddenStates<'_>) -> Result<(), SessionError> + 'a;

/// Computes all layers of a model, or the layers of one stage. The hidden states of the stage
/// [`Runner::before`] are then its input. A sequence is a *slot* here. The session checks all
/// arguments.
pub trait Runner: Any + Send {
    /// The graph that is run.
    fn graph(&self) -> &Graph;

    /// The previous stage.
    fn before(&self) -> Option<&dyn Runner>;

    /// Allocates a sequence's state in this slot, here and in all previous stages.
    ///
    /// # Errors
    /// [`SessionError::Memory`] if there is not enough memory.
    fn add(&mut self, slot: usize) -> Result<(), SessionError>;

    /// Sets the factor of each adapter of [`Graph::adapters`] for the sequence in a slot, here and
    /// in all previous stages. Rows that are computed already do not change. [`Runner::add`] sets
    /// the graph's factors.
    ///
    /// # Errors
    /// A device fault.
    fn adapt(&mut self, slot: usize, factors: &[f32]) -> Result<(), SessionError>;

    /// Replaces the elements of a tensor of stacked adapters ([`Graph::adapter_slots`]), here and
    /// in all previous stages. `bytes` are the whole tensor in its format, row by row. Later steps
    /// use them. Stages without the tensor ignore it.
    ///
    /// # Errors
    /// `bytes` is not the tensor's size, the tensor is streamed, or a device fault.
    fn write_tensor(&mut self, tensor: &str, bytes: &[u8]) -> Result<(), SessionError>;

    /// Removes a slot's sequence.
    fn remove(&mut self, slot: usize);

    /// Copies the first `len` tokens of a slot's state to another. Returns the number of tokens
    /// copied.
    ///
    /// # Errors
    /// A device fault.
    fn copy(&mut self, from: usize, to: usize, len: usize) -> Result<usize, SessionError>;

    /// Removes a slot's tokens from position `len` on. The slot has `now` tokens. Returns the
    /// number of remaining tokens: fewer than `len` if a state cannot be rewound to that position.
    fn truncate(&mut self, slot: usize, len: usize, now: usize) -> usize;

    /// After a failed step: restores a slot's first `len` tokens. Returns the number of remaining
    /// tokens.
    fn undo(&mut self, _slot: usize, len: usize) -> usize {
        len
    }

    /// Runs these tokens and passes on their hidden states, in the order of the spans. Before that,
    /// the sequence's tokens from a span's first position on are removed.
    ///
    /// # Errors
    /// A device fault.
    fn rows(
        &mut self,
        pieces: &[TokenSpan<'_>],
        sink: &mut HiddenStatesSink<'_>,
    ) -> Result<(), SessionError>;

    /// Appends each task's tokens. Returns the requested results in the order of the tasks. `late`
    /// is called before the first token is chosen.
    ///
    /// # Errors
    /// A device fault. The caller then restores the sequences ([`Runner::undo`]).
    fn step(
        &mut self,
        tasks: &mut [Task<'_>],
        late: Option<MaskCallback<'_>>,
    ) -> Result<Vec<StepOutput>, SessionError>;

    /// Computes a text's vector. The model must be an encoder.
    ///
    /// # Errors
    /// The model computes logits; there are no tokens, too many tokens, or ids outside the
    /// vocabulary; a device fault.
    fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, SessionError>;

    /// Decoding with the choice of every token on the device. `None` if the session chooses tokens.
    fn ahead(&mut self) -> Option<&mut dyn DeviceDecode> {
        None
    }

    /// Whether [`Runner::ahead`] is `Some`.
    fn runs_ahead(&self) -> bool {
        false
    }

    /// Steps that are launched before the results of the step before are known. `None` if the
    /// runner returns from a step with its results.
    fn step_ahead(&mut self) -> Option<&mut dyn StepAhead> {
        None
    }

    /// Whether [`Runner::step_ahead`] is `Some`.
    fn steps_ahead(&self) -> bool {
        false
    }

    /// Pages that sequences may share. `None` on the CPU.
    fn pages(&self) -> Option<&dyn KvPages> {
        None
    }

    /// Mutable access to the pages.
    fn pages_mut(&mut self) -> Option<&mut dyn KvPages> {
        None
    }

    /// Whether more slots can be added than the model was opened with. This is possible if memory
    /// of a sequence is allocated when its tokens arrive.
    fn grows(&self) -> bool {
        false
    }

    /// Saves a slot's recurrent states. Returns whether the model has any.
    fn checkpoint(&mut self, _slot: usize) -> bool {
        false
    }

    /// The layout of [`Runner::read_page`], and what computes its elements. `None`: there are no
    /// such pages, because of recurrent states, other stages, or slots without pages on a GPU.
    fn page_format(&self) -> Option<String> {
        None
    }

    /// Keys and values of a slot's positions from `at` times [`PageCount::POSITIONS`] on, which
    /// are computed.
    ///
    /// # Errors
    /// There are no such pages, or a device fault.
    ///
    /// [`PageCount::POSITIONS`]: crate::PageCount::POSITIONS
    fn read_page(&mut self, _slot: usize, _at: usize) -> Result<Vec<u8>, SessionError> {
        Err(SessionError::Device("there are no pages of keys and values".to_owned()))
    }

    /// Sets what [`Runner::read_page`] returns, after the slot's first `at` pages. `tokens` are the
    /// tokens of the page. Returns `false`, without any change, if `bytes` has a different size or
    /// there is no room.
    ///
    /// # Errors
    /// A device fault.
    fn write_page(
        &mut self,
        _slot: usize,
        _at: usize,
        _tokens: &[u32],
        _bytes: &[u8],
    ) -> Result<bool, SessionError> {
        Ok(false)
    }

    /// Takes rows of images in place of embeddings of tokens, by their ids in this table.
    ///
    /// # Errors
    /// [`SessionError::Images`] if the device or the model has no place for them.
    fn set_images(&mut self, _table: &Arc<ImageTable>) -> Result<(), SessionError> {
        let why = "this device has no place for rows of images: give --device cpu";
        Err(SessionError::Images(why.to_owned()))
    }

    /// Adds a warning to the device's warnings.
    fn remark(&mut self, _line: String) {}
}

/// Launches steps while the step before runs, and collects their tokens later. Meanwhile the caller
/// may add and remove sequences, but the slots of a launched step only after it was collected.
pub trait StepAhead {
    /// Launches a step. Each task wants [`Want::Nothing`](super::Want) or
    /// [`Want::Choose`](super::Want), and its sampler does not change logits. A task whose only
    /// token is [`CHOSEN`](super::CHOSEN) continues with the token that the last launched step
    /// chooses for its sequence.
    ///
    /// # Errors
    /// A device fault; [`SessionError::Pages`]. Steps that were launched before can still be
    /// collected.
    fn launch(&mut self, tasks: &mut [Task<'_>]) -> Result<(), SessionError>;

    /// Waits for the oldest launched step. Returns the chosen token of each task, `None` for
    /// [`Want::Nothing`](super::Want); no tokens if no step was launched.
    ///
    /// # Errors
    /// A device fault.
    fn collect(&mut self) -> Result<Vec<Option<u32>>, SessionError>;
}

/// Chooses tokens on the device, which runs ahead of the host.
pub trait DeviceDecode {
    /// Computes each task's tokens, then repeats: choose a token, pass it to `sink`, compute it.
    /// Returns each sequence's length, also after an error.
    fn decode(
        &mut self,
        tasks: &mut [Task<'_>],
        sink: &mut dyn FnMut(usize, u32) -> DecodeControl,
    ) -> (Vec<usize>, Result<(), SessionError>);
}
