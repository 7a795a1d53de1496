//! Pages of keys and values that sequences share.

use super::SessionError;
use kjit_kernels::kv::PAGE;

/// How many pages there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageCount {
    /// All of them.
    pub total: usize,
    /// Those that somebody has.
    pub used: usize,
    /// Those that several have.
    pub shared: usize,
}

impl PageCount {
    /// Positions of a page.
    pub const POSITIONS: usize = PAGE;

    /// Those that nobody has.
    pub fn free(&self) -> usize {
        self.total - self.used
    }
}

/// Pages of keys and values of a runner whose sequences may share them.
pub trait KvPages {
    /// The pages; none where each slot has room of its own for a context.
    fn count(&self) -> Option<PageCount>;

    /// Pages that it takes to append positions up to before `end` to a slot's first `len` tokens.
    fn needed(&self, slot: usize, len: usize, end: usize) -> usize;

    /// Whether a slot's states that do not grow hold its first `len` tokens and no more.
    fn reaches(&self, slot: usize, len: usize) -> bool;

    /// Sequences and holders that have a page.
    fn users(&self, page: u32) -> usize;

    /// The pages that have a slot's positions, in order.
    fn of(&self, slot: usize) -> &[u32];

    /// Adds a reference to each of these pages.
    fn hold(&mut self, pages: &[u32]);

    /// Drops one reference to each of these pages.
    fn release(&mut self, pages: &[u32]);

    /// A slot without tokens begins with these tokens, which are in these pages. `copy`: the copy
    /// of states that do not grow that belongs to them.
    ///
    /// # Errors
    /// A device that failed.
    fn begin_as(
        &mut self,
        slot: usize,
        tokens: &[u32],
        pages: &[u32],
        copy: Option<usize>,
    ) -> Result<(), SessionError>;

    /// Copies of states that do not grow that there is room for beside the slots' own.
    fn copies(&self) -> usize;

    /// Copies a slot's states that do not grow to this place, as they are behind its first `len`
    /// tokens. False where they are not.
    ///
    /// # Errors
    /// A device that failed.
    fn keep_states(&mut self, slot: usize, len: usize, copy: usize) -> Result<bool, SessionError>;
}
