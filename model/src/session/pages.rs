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
        Ok(self.gpu().map_or(0, |gpu| gpu.pages_needed(id.slot, len, len + tokens)))
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

    /// A sequence without tokens begins with `len` tokens, which are in these pages: somebody has them.
    pub(crate) fn begin_with(&mut self, id: SequenceId, pages: &[u32], len: usize) -> Result<(), SessionError> {
        self.sequence(id)?;
        if let Stage::Gpu(gpu) = &mut self.runner {
            gpu.begin_with(id.slot, pages)?;
            self.sequence_mut(id)?.len = len;
        }
        Ok(())
    }
}

/// Pages are one GPU's.
pub(super) fn one_gpu(options: &OpenOptions) -> Result<(), SessionError> {
    match options.paged {
        None => Ok(()),
        Some(_) => Err(SessionError::Device("keys and values in pages are one GPU's: give one device".to_owned())),
    }
}
