//! The shared pages of keys and values, for a prefix cache. Calls are forwarded to the runner by
//! slot.

use super::{OpenOptions, SequenceId, Session, SessionError};
use crate::exec::{KvPages, PageCount};

impl Session {
    /// The shared pages; `None` if each sequence has its own full context.
    pub fn pages(&self) -> Option<PageCount> {
        self.runner.pages().and_then(KvPages::count)
    }

    /// Number of pages needed to append `tokens` tokens to a sequence.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`].
    pub fn pages_needed(&self, id: SequenceId, tokens: usize) -> Result<usize, SessionError> {
        let len = self.sequence(id)?.len;
        Ok(self.runner.pages().map_or(0, |pages| pages.needed(id.slot, len, len + tokens)))
    }

    /// Whether the recurrent states of a sequence are the states after its last token.
    pub(crate) fn reaches(&self, id: SequenceId) -> bool {
        let len = self.sequence(id).map_or(0, |s| s.len);
        self.runner.pages().is_some_and(|pages| pages.reaches(id.slot, len))
    }

    /// The number of references to a page from sequences and from the prefix cache.
    pub(crate) fn page_users(&self, page: u32) -> usize {
        self.runner.pages().map_or(0, |pages| pages.users(page))
    }

    /// The pages of a sequence in order.
    pub(crate) fn pages_of(&self, id: SequenceId) -> &[u32] {
        let there = self.sequence(id).is_ok();
        self.runner.pages().filter(|_| there).map_or(&[], |pages| pages.of(id.slot))
    }

    /// Adds one reference to each page.
    pub(crate) fn hold_pages(&mut self, held: &[u32]) {
        if let Some(pages) = self.runner.pages_mut() {
            pages.hold(held);
        }
    }

    /// Drops one reference to each page.
    pub(crate) fn release_pages(&mut self, held: &[u32]) {
        if let Some(pages) = self.runner.pages_mut() {
            pages.release(held);
        }
    }

    /// Starts an empty sequence with `tokens`, whose keys and values are in the pages `held`. The
    /// caller holds references to these pages. `copy` names the saved recurrent states, if the
    /// model has any.
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

    /// Number of slots for saved recurrent states, in addition to the states of the sequences; 0
    /// without pages.
    pub(crate) fn copies(&self) -> usize {
        self.runner.pages().filter(|pages| pages.count().is_some()).map_or(0, KvPages::copies)
    }

    /// Saves the recurrent states of a sequence into slot `copy`. Returns `false` if they are not
    /// the states after its last token.
    pub(crate) fn keep_states(
        &mut self,
        id: SequenceId,
        copy: usize,
    ) -> Result<bool, SessionError> {
        let len = self.sequence(id)?.len;
        self.runner.pages_mut().map_or(Ok(false), |pages| pages.keep_states(id.slot, len, copy))
    }

    /// Names the layout of [`Session::read_page`], and what computed the page. Pages of equal names
    /// are interchangeable among sessions of one model. `None`: the model or its devices have no
    /// such pages.
    pub fn page_format(&self) -> Option<String> {
        self.runner.page_format().filter(|_| self.whole.is_none())
    }

    /// The keys and values of page `at` of a sequence: positions from `at` times
    /// [`PageCount::POSITIONS`] on. The sequence must have all tokens of the page.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`]; there is no such page; a device fault.
    pub fn read_page(&mut self, id: SequenceId, at: usize) -> Result<Vec<u8>, SessionError> {
        let len = self.sequence(id)?.len;
        match (at + 1).checked_mul(PageCount::POSITIONS).is_some_and(|end| end <= len) {
            true => self.runner.read_page(id.slot, at),
            false => Err(SessionError::NoTokens),
        }
    }

    /// Appends a page of [`Session::read_page`] to a sequence that ends with a page. `tokens` are
    /// its [`PageCount::POSITIONS`] tokens. Returns `false`, without any change, if the page has a
    /// different size or there is no room.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`]; a device fault.
    pub fn write_page(
        &mut self,
        id: SequenceId,
        tokens: &[u32],
        bytes: &[u8],
    ) -> Result<bool, SessionError> {
        let (len, page) = (self.sequence(id)?.len, PageCount::POSITIONS);
        let fits = len.is_multiple_of(page) && tokens.len() == page && len + page <= self.context;
        if !fits || !self.runner.write_page(id.slot, len / page, tokens, bytes)? {
            return Ok(false);
        }
        self.sequence_mut(id)?.len = len + page;
        Ok(true)
    }

    /// Saves the recurrent states of a sequence on the CPU. Then [`Session::truncate`] and
    /// [`Session::fork`] to this position or a later one recompute few tokens. A sequence has a few
    /// such checkpoints. Returns `false` on GPUs and for models without recurrent states.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`].
    pub fn checkpoint(&mut self, id: SequenceId) -> Result<bool, SessionError> {
        self.sequence(id)?;
        Ok(self.runner.checkpoint(id.slot))
    }
}

/// Rejects `reproducible` for configurations that do not support it yet.
pub(super) fn not_reproducible(options: &OpenOptions, what: &str) -> Result<(), SessionError> {
    match options.reproducible {
        false => Ok(()),
        true => Err(SessionError::Device(format!("--reproducible is not supported for {what}"))),
    }
}

/// Rejects pages for more than one device.
pub(super) fn one_gpu(options: &OpenOptions) -> Result<(), SessionError> {
    match options.paged {
        None => Ok(()),
        Some(_) => Err(SessionError::Device(
            "KV pages need exactly one GPU and no layers on the CPU: use one device".to_owned(),
        )),
    }
}
