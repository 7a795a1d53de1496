//! Pages that sequences share, for whoever keeps beginnings of texts.

use super::{OpenOptions, SequenceId, Session, SessionError};
use crate::gpu::{GpuRunner, PageCount};
use crate::placement::Stage;

impl Session {
    /// Pages that sequences share; none where each has room for a context.
    pub fn pages(&self) -> Option<PageCount> {
        self.gpu().and_then(GpuRunner::pages)
    }

    /// Pages that it takes to append so many tokens to a sequence.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`].
    pub fn pages_needed(&self, id: SequenceId, tokens: usize) -> Result<usize, SessionError> {
        let len = self.sequence(id)?.len;
        // States that do not reach there are made again from the beginning, and so is what lies in
        // shared pages.
        let from = |gpu: &GpuRunner| if gpu.reaches(id.slot, len) { len } else { 0 };
        Ok(self.gpu().map_or(0, |gpu| gpu.pages_needed(id.slot, from(gpu), len + tokens)))
    }

    /// Whether a sequence's states that do not grow are those of its last token.
    pub(crate) fn reaches(&self, id: SequenceId) -> bool {
        let len = self.sequence(id).map_or(0, |s| s.len);
        self.gpu().is_some_and(|gpu| gpu.reaches(id.slot, len))
    }

    /// Who has a page: sequences and others.
    pub(crate) fn page_users(&self, page: u32) -> usize {
        self.gpu().map_or(0, |gpu| gpu.page_users(page))
    }

    /// The pages that have a sequence's tokens, in order.
    pub(crate) fn pages_of(&self, id: SequenceId) -> &[u32] {
        let there = self.sequence(id).is_ok();
        self.gpu().filter(|_| there).map_or(&[], |gpu| gpu.pages_of(id.slot))
    }

    /// Somebody beside the sequences has these pages: they stay.
    pub(crate) fn hold_pages(&mut self, pages: &[u32]) {
        if let Stage::Gpu(gpu) = &mut self.runner {
            gpu.hold_pages(pages);
        }
    }

    /// He has them no more.
    pub(crate) fn release_pages(&mut self, pages: &[u32]) {
        if let Stage::Gpu(gpu) = &mut self.runner {
            gpu.release_pages(pages);
        }
    }

    /// A sequence without tokens begins with these, which are in these pages: somebody has them.
    /// `copy`: of its states that do not grow, where it has such.
    pub(crate) fn begin_as(
        &mut self,
        id: SequenceId,
        tokens: &[u32],
        pages: &[u32],
        copy: Option<usize>,
    ) -> Result<(), SessionError> {
        self.sequence(id)?;
        if let Stage::Gpu(gpu) = &mut self.runner {
            gpu.begin_as(id.slot, tokens, pages, copy)?;
            self.sequence_mut(id)?.len = tokens.len();
        }
        Ok(())
    }

    /// Copies of states that do not grow which there is room for beside the sequences' own; none
    /// but where sequences share pages.
    pub(crate) fn copies(&self) -> usize {
        self.gpu().filter(|gpu| gpu.pages().is_some()).map_or(0, |gpu| gpu.plan().copies())
    }

    /// Keeps such a copy, of a sequence as it is, in this place. False: its states are not what
    /// they should be.
    pub(crate) fn keep_states(
        &mut self,
        id: SequenceId,
        copy: usize,
    ) -> Result<bool, SessionError> {
        let len = self.sequence(id)?.len;
        match &mut self.runner {
            Stage::Gpu(gpu) => gpu.keep_states(id.slot, len, copy),
            Stage::Host(_) => Ok(false),
        }
    }

    /// Keeps a copy of a sequence's recurrent states as they are now, so that [`Session::truncate`]
    /// and [`Session::fork`] to this position, or soon behind it, run little again. On the CPU,
    /// where a sequence has a few of them; false where there is nothing to keep, and on GPUs.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`].
    pub fn checkpoint(&mut self, id: SequenceId) -> Result<bool, SessionError> {
        self.sequence(id)?;
        Ok(match &mut self.runner {
            Stage::Gpu(_) => false,
            Stage::Host(host) => host.checkpoint(id.slot),
        })
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
