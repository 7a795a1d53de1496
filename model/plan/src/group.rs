//! Tokens grouped by expert.

use crate::Bind;
use kjit_kernels::moe::MoeSpec;

/// Tokens grouped by expert.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    pub spec: MoeSpec,
    /// A product whose launch has the group's number of tiles.
    pub product: u32,
    pub tile_expert: Bind,
    pub source: Bind,
    /// The row of each (token, expert) pair.
    pub(super) row: Bind,
}
