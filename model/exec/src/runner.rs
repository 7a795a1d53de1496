//! What a runner does for a session, and for the stage behind it.

use super::{After, Given, KvPages, Late, SessionError, Task};
use kjit_engine::{DeviceBuffer, Stream};
use kjit_graph::Graph;
use std::any::Any;

/// Successive tokens of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// The sequence's slot.
    pub slot: usize,
    /// Position of the first.
    pub first: usize,
    /// The tokens.
    pub tokens: &'a [u32],
}

/// Rows that a stage has made, where they are.
pub enum Made<'a> {
    /// In the host's memory.
    Host(&'a [f32]),
    /// On a device, once all that is in the stream now is done. What comes into that stream
    /// afterwards may write over them.
    Device(&'a Stream, DeviceBuffer<f32>),
}

/// Takes rows: the number of the first among all that were asked for, and the rows.
pub type Sink<'a> = dyn FnMut(usize, Made<'_>) -> Result<(), SessionError> + 'a;

/// Computes all layers of a model, or the layers of one stage: then [`Runner::before`] is the stage
/// whose rows it continues with. A sequence is a *slot* here; the session checks what it hands on.
pub trait Runner: Any + Send {
    /// The graph that is run.
    fn graph(&self) -> &Graph;

    /// The stage before.
    fn before(&self) -> Option<&dyn Runner>;

    /// Makes room for a sequence in this slot, here and in all stages before.
    ///
    /// # Errors
    /// [`SessionError::Memory`].
    fn add(&mut self, slot: usize) -> Result<(), SessionError>;

    /// Forgets a slot's sequence.
    fn remove(&mut self, slot: usize);

    /// Makes a slot begin as the first `len` tokens of another; the number of tokens that it has
    /// then.
    ///
    /// # Errors
    /// What a device may say.
    fn copy(&mut self, from: usize, to: usize, len: usize) -> Result<usize, SessionError>;

    /// Forgets a slot's tokens from position `len` on, of `now`; the number of those that are left,
    /// fewer where a state has no way back to that position.
    fn truncate(&mut self, slot: usize, len: usize, now: usize) -> usize;

    /// After a failed step: back to a slot's first `len` tokens; the number of those that are left.
    fn undo(&mut self, _slot: usize, len: usize) -> usize {
        len
    }

    /// Runs these tokens and hands their rows on, in the order of the pieces, one piece's behind
    /// the other's. What a sequence has from a piece's first position on is forgotten before.
    ///
    /// # Errors
    /// What a device may say.
    fn rows(&mut self, pieces: &[Piece<'_>], sink: &mut Sink<'_>) -> Result<(), SessionError>;

    /// Appends each task's tokens; what was wanted, in the order of the tasks. `late` is called
    /// before the first token is chosen.
    ///
    /// # Errors
    /// What a device may say. The caller takes the sequences back then ([`Runner::undo`]).
    fn step(
        &mut self,
        tasks: &mut [Task<'_>],
        late: Option<Late<'_>>,
    ) -> Result<Vec<Given>, SessionError>;

    /// A text's vector, of a model that makes such.
    ///
    /// # Errors
    /// A model that makes logits, ids outside the vocabulary, more tokens than fit, none at all; a
    /// device that failed.
    fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, SessionError>;

    /// Decoding with the choice of every token on the device; none where the session chooses.
    fn ahead(&mut self) -> Option<&mut dyn Ahead> {
        None
    }

    /// Whether [`Runner::ahead`] is there.
    fn runs_ahead(&self) -> bool {
        false
    }

    /// Pages that sequences may share; none on the CPU.
    fn pages(&self) -> Option<&dyn KvPages> {
        None
    }

    /// The same, to change them.
    fn pages_mut(&mut self) -> Option<&mut dyn KvPages> {
        None
    }

    /// Whether slots beyond those that it was opened with may be added: memory of a sequence is
    /// taken as its tokens come.
    fn grows(&self) -> bool {
        false
    }

    /// Keeps a copy of a slot's states as they are now; whether there is anything to keep.
    fn checkpoint(&mut self, _slot: usize) -> bool {
        false
    }

    /// Adds a line to what there is to say of the device.
    fn remark(&mut self, _line: String) {}
}

/// Chooses tokens on the device, which runs ahead of the host.
pub trait Ahead {
    /// Feeds each task's tokens, then chooses, hands out and feeds token by token. Gives each
    /// sequence's length, whatever happened.
    fn decode(
        &mut self,
        tasks: &mut [Task<'_>],
        sink: &mut dyn FnMut(usize, u32) -> After,
    ) -> (Vec<usize>, Result<(), SessionError>);
}
