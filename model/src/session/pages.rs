//! Pages that sequences share: forwarded to the runner by slot, for the scheduler's prefixes.

use super::{OpenOptions, SequenceId, Session, SessionError};
use crate::exec::{KvPages, PageCount};

impl Session {
    /// Pages that sequences share; none where each has room for a context.
    pub fn pages(&self) -> Option<PageCount> {
        self.runner.pages().and_then(KvPages::count)
    }

    /// Pages that it takes to append so many tokens to a sequence.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`].
    pub fn pages_needed(&self, id: SequenceId, tokens: usize) -> Result<usize, SessionError> {
        let len = self.sequence(id)?.len;
        Ok(self.runner.pages().map_or(0, |pages| pages.needed(id.slot, len, len + tokens)))
    }

    /// Whether a sequence's states that do not grow are those of its last token.
    pub(crate) fn reaches(&self, id: SequenceId) -> bool {
        let len = self.sequence(id).map_or(0, |s| s.len);
        self.runner.pages().is_some_and(|pages| pages.reaches(id.slot, len))
    }

    /// Sequences and holders that have a page.
    pub(crate) fn page_users(&self, page: u32) -> usize {
        self.runner.pages().map_or(0, |pages| pages.users(page))
    }

    /// The pages that have a sequence's tokens, in order.
    pub(crate) fn pages_of(&self, id: SequenceId) -> &[u32] {
        let there = self.sequence(id).is_ok();
        self.runner.pages().filter(|_| there).map_or(&[], |pages| pages.of(id.slot))
    }

    /// Adds a reference to each of these pages.
    pub(crate) fn hold_pages(&mut self, held: &[u32]) {
        if let Some(pages) = self.runner.pages_mut() {
            pages.hold(held);
        }
    }

    /// Drops one reference to each of these pages.
    pub(crate) fn release_pages(&mut self, held: &[u32]) {
        if let Some(pages) = self.runner.pages_mut() {
            pages.release(held);
        }
    }

    /// A sequence without tokens begins with these, which are in these pages. `copy`: of its states
    /// that do not grow, where it has such.
    pub(crate) fn begin_as(
        &mut self,
        id: SequenceId,
        tokens: &[u32],
        held: &[u32],
        copy: Option<usize>,
    ) -> Result<(), SessionError> {
        self.sequence(id)?;
        if let Some(pages) = self.runner.pages_mut() {
            pages.begin_as(id.slot, tokens, held, copy)?;
            self.sequence_mut(id)?.len = tokens.len();
        }
        Ok(())
    }

    /// Copies of states that do not grow which there is room for beside the sequences' own; none
    /// but where sequences share pages.
    pub(crate) fn copies(&self) -> usize {
        self.runner.pages().filter(|pages| pages.count().is_some()).map_or(0, KvPages::copies)
    }

    /// Keeps such a copy, of a sequence as it is, in this place. False: its states are not what
    /// they should be.
    pub(crate) fn keep_states(
        &mut self,
        id: SequenceId,
        copy: usize,
    ) -> Result<bool, SessionError> {
        let len = self.sequence(id)?.len;
        self.runner.pages_mut().map_or(Ok(false), |pages| pages.keep_states(id.slot, len, copy))
    }

    /// Keeps a copy of a sequence's recurrent states as they are now, so that [`Session::truncate`]
    /// and [`Session::fork`] to this position, or soon behind it, run little again. On the CPU,
    /// where a sequence has a few of them; false where there is nothing to keep, and on GPUs.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`].
    pub fn checkpoint(&mut self, id: SequenceId) -> Result<bool, SessionError> {
        self.sequence(id)?;
        Ok(self.runner.checkpoint(id.slot))
    }
}

/// What a whole model on one device promises is not shown for others yet.
pub(super) fn not_reproducible(options: &OpenOptions, what: &str) -> Result<(), SessionError> {
    match options.reproducible {
        false => Ok(()),
        true => {
            Err(SessionError::Device(format!("--reproducible: {what} is not reproducible yet")))
        }
    }
}

/// Pages are one GPU's.
pub(super) fn one_gpu(options: &OpenOptions) -> Result<(), SessionError> {
    match options.paged {
        None => Ok(()),
        Some(_) => Err(SessionError::Device(
            "keys and values in pages are one GPU's: give one device".to_owned(),
        )),
    }
}
