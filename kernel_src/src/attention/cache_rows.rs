//! Stores rows of new tokens in a cache of one head: `gpu/keep.h`.

use crate::attention::kv::KvLayout;
use crate::vocabulary::arguments::{Declared, arguments, with_table};
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// Stores rows of new tokens in the cache's format, if the attention kernel does not store them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CacheRowsSpec {
    /// Layout of the rows: one head.
    pub kv: KvLayout,
    /// True: successive tokens of one sequence. False: one token of each sequence.
    pub one: bool,
    /// Whether rows are in pages ([`PAGE`](crate::kv::PAGE)).
    pub paged: bool,
}

arguments! {
    /// The arguments of storing rows.
    CacheRowsArgs {
        /// `tokens × head_dim` f32.
        row: Pointer,
        /// A u32 per sequence, its slot; null: sequence `s` has slot `s`.
        slots: Pointer,
        /// A u32 per slot: tokens before the new ones.
        position: Pointer,
        /// Rows in the layout [`KvLayout`], slot `s` at `s · sequence_bytes`.
        rows: Pointer,
        /// Number of new tokens.
        tokens: U32,
        /// Number of positions of a slot.
        capacity: U32,
        /// Distance of slots, in bytes; 0 with pages.
        sequence_bytes: U64,
        /// A u32 for each [`PAGE`](crate::kv::PAGE) positions of a sequence, slot after slot; only
        /// with pages.
        table: Pointer,
    }
}

const NAME: &str = "keep";
const BLOCK: u32 = 256;

impl CacheRowsSpec {
    /// Rows of a block: one for each wave.
    #[must_use]
    pub fn rows(&self, target: &Target) -> u32 {
        BLOCK / target.default_wave()
    }
}

impl Family for CacheRowsSpec {
    const NAME: &'static str = NAME;
    type Args<A> = CacheRowsArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paged = if self.paged { ", paged" } else { "" };
        write!(
            f,
            "{} {:?}{}{paged}",
            self.kv.head_dim,
            self.kv.storage,
            if self.one { ", one sequence" } else { "" }
        )
    }

    fn check(&self, _: &Target, _: &Fixed) -> Result<(), SpecError> {
        let dim = self.kv.head_dim;
        require(self.kv.heads == 1 && dim > 0 && dim.is_multiple_of(16), NAME, || {
            format!(
                "{} heads of {dim} elements: exactly one head, a multiple of 16, is supported",
                self.kv.heads
            )
        })
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        let shape = self.kv.shape().flag("ONE", self.one);
        Ok(of_shape(
            NAME,
            &shape,
            KvLayout::macros(self.paged, Constants::new()),
            block.wave,
            block.threads,
        ))
    }

    fn declared(&self) -> &'static [Declared] {
        with_table::<CacheRowsArgs<()>>(self.paged)
    }

    fn grid(&self, target: &Target, _: &Fixed, _: u32, size: Size) -> Result<Grid, SpecError> {
        let tokens = size.tokens as u32;
        Ok(Grid::of([tokens.div_ceil(self.rows(target)), 1, 1]).number("tokens", tokens))
    }

    fn work(&self, Size { tokens, .. }: Size) -> Work {
        Work::moves(tokens * 4 * self.kv.head_dim + self.kv.bytes(tokens).unwrap_or(0))
    }

    fn timed_at(&self, _: usize) -> Size {
        Size::CHUNK
    }
}
