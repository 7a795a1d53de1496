//! Pages of keys and values that sequences share.

use super::SessionError;
use kjit_kernels::kv::PAGE;

/// Counts of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageCount {
    /// Number of all pages.
    pub total: usize,
    /// Number of pages in use.
    pub used: usize,
    /// Number of pages with several users.
    pub shared: usize,
}

impl PageCount {
    /// Number of positions in a page.
    pub const POSITIONS: usize = PAGE;

    /// Number of free pages.
    pub fn free(&self) -> usize {
        self.total - self.used
    }
}

/// A runner's pages of keys and values. Its sequences may share them.
pub trait KvPages {
    /// Counts of pages. `None` if each slot has memory for a whole context.
    fn count(&self) -> Option<PageCount>;

    /// The number of pages needed to append positions up to `end` to a slot's first `len` tokens.
    fn needed(&self, slot: usize, len: usize, end: usize) -> usize;

    /// Whether a slot's recurrent states are the states after its first `len` tokens.
    fn reaches(&self, slot: usize, len: usize) -> bool;

    /// The number of references to a page.
    fn users(&self, page: u32) -> usize;

    /// The pages that have a slot's positions, in order.
    fn of(&self, slot: usize) -> &[u32];

    /// Adds a reference to each of these pages.
    fn hold(&mut self, pages: &[u32]);

    /// Drops one reference to each of these pages.
    fn release(&mut self, pages: &[u32]);

    /// Starts an empty slot with `tokens`, whose keys and values are in `pages`. `copy` has the
    /// saved recurrent states, if the model has any.
    ///
    /// # Errors
    /// A device fault.
    fn begin_as(
        &mut self,
        slot: usize,
        tokens: &[u32],
        pages: &[u32],
        copy: Option<usize>,
    ) -> Result<(), SessionError>;

    /// Number of slots for saved recurrent states, in addition to the states of the sequences.
    fn copies(&self) -> usize;

    /// Saves a slot's recurrent states after its first `len` tokens. `false` if the states are at
    /// another position.
    ///
    /// # Errors
    /// A device fault.
    fn keep_states(&mut self, slot: usize, len: usize, copy: usize) -> Result<bool, SessionError>;
}
