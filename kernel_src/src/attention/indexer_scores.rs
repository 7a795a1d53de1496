//! Scores of cached keys for new tokens: `gpu/indexer_scores.h`.

use crate::attention::kv::KvLayout;
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require, shared_bytes};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// Computes the index score of each cached key for each new token, including the new tokens' keys:
/// `Σ over index heads of w · max(q · key, 0)` (DeepSeek-V3.2-Exp 2025, the "lightning indexer").
///
/// Numerics: f32 throughout, keys as stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IndexerScoresSpec {
    /// Number of query heads.
    pub heads: usize,
    /// Layout of the keys: one head.
    pub kv: KvLayout,
    /// True: successive tokens of one sequence. False: one token of each sequence.
    pub one: bool,
}

arguments! {
    /// The arguments of the index scores.
    IndexerScoresArgs {
        /// `tokens × heads × head_dim` f32.
        q: Pointer,
        /// `tokens × heads` f32: a factor for each head.
        w: Pointer,
        /// A u32 per sequence, its slot; null: sequence `s` has slot `s`.
        slots: Pointer,
        /// A u32 per slot: tokens before the new ones.
        position: Pointer,
        /// Keys in the layout [`KvLayout`], slot `s` at `s · sequence_bytes`.
        rows: Pointer,
        /// Output: one row of `capacity` f32 for each row of the grid; row 0 is for token `first`.
        scores: Pointer,
        /// The token of the first row.
        first: U32,
        /// Number of new tokens.
        tokens: U32,
        /// Number of positions of a slot.
        capacity: U32,
        /// Number of blocks that share a row.
        splits: U32,
        /// Distance of slots, in bytes.
        sequence_bytes: U64,
    }
}

const NAME: &str = "indexer_scores";
const BLOCK: u32 = 256;
/// Number of positions in a tile.
const TILE: usize = 32;
/// Threads that share the heads of a position, and the most heads of each.
const LANES: usize = 16;
const EACH: usize = 4;

impl IndexerScoresSpec {
    /// Blocks per compute unit.
    pub const BLOCKS_PER_UNIT: u32 = 4;

    /// Number of blocks for a row of `positions` positions.
    #[must_use]
    pub const fn blocks(&self, positions: u32) -> u32 {
        positions.div_ceil(TILE as u32)
    }

    /// Bytes of dynamic LDS.
    const fn shared(&self) -> usize {
        let heads = self.heads.div_ceil(LANES);
        let heads = LANES * if heads < EACH { heads } else { EACH };
        4 * ((heads + TILE) * (self.kv.head_dim + 1) + heads)
    }
}

impl Family for IndexerScoresSpec {
    const NAME: &'static str = NAME;
    type Args<A> = IndexerScoresArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = if self.one { ", one sequence" } else { "" };
        write!(f, "{} × {} {:?}{one}", self.heads, self.kv.head_dim, self.kv.storage)
    }

    fn check(&self, _: &Target, _: &Fixed) -> Result<(), SpecError> {
        let dim = self.kv.head_dim;
        require(
            self.kv.heads == 1 && dim > 0 && dim.is_multiple_of(16) && self.heads > 0,
            NAME,
            || {
                format!(
                    "{} heads on {} keys of {dim} elements: exactly one key, a multiple of 16, is supported",
                    self.heads, self.kv.heads
                )
            },
        )
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        let shared = shared_bytes(NAME, target, self.shared(), 0, "shorter keys")?;
        Ok(Block { wave: target.default_wave(), threads: BLOCK, shared })
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        let shape =
            self.kv.shape().number("HEADS", self.heads).number("TILE", TILE).flag("ONE", self.one);
        let kernel = of_shape(NAME, &shape, Constants::new(), block.wave, block.threads);
        Ok(Kernel { shared: block.shared, ..kernel })
    }

    fn grid(&self, _: &Target, _: &Fixed, units: u32, size: Size) -> Result<Grid, SpecError> {
        let tokens = size.tokens.max(1) as u32;
        let most = self.blocks((size.past + size.tokens) as u32).max(1);
        let splits = (units.max(1) * IndexerScoresSpec::BLOCKS_PER_UNIT / tokens).clamp(1, most);
        Ok(Grid::of([splits, tokens, 1]).number("splits", splits).number("tokens", tokens))
    }

    fn work(&self, Size { tokens, past }: Size) -> Work {
        let pairs: usize = (0..tokens).map(|t| past + t + 1).sum();
        let each = 4 * tokens * self.heads * (self.kv.head_dim + 1);
        let sequences = if self.one { 1 } else { tokens };
        let keys = sequences * self.kv.bytes(past + tokens / sequences.max(1)).unwrap_or(0);
        let operations = 2 * pairs * self.heads * (self.kv.head_dim + 1);
        Work { bytes: (keys + each + 4 * pairs) as u64, operations: operations as u64 }
    }
}
