//! Attention of new tokens to latents: `gpu/latent.h`.

use crate::attention::kv::KvLayout;
use crate::vocabulary::arguments::{Declared, arguments, with_table};
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target, Vendor};
use std::fmt;

/// Attention with one row per position: the key of all heads, whose first elements are their value
/// (DeepSeek-V2, arXiv 2405.04434). The kernel also stores the new tokens' rows. Queries and rows
/// need no further preparation.
///
/// Numerics: f32 throughout, rows as stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LatentSpec {
    /// Number of query heads.
    pub heads: usize,
    /// Layout of the rows: one head of at most [`LatentSpec::WIDEST`] elements.
    pub kv: KvLayout,
    /// Number of elements of a row that are the value.
    pub rank: usize,
    /// True: successive tokens of one sequence. False: one token of each sequence.
    pub one: bool,
    /// Whether rows are in pages ([`PAGE`](crate::kv::PAGE)).
    pub paged: bool,
    /// Number of positions that a token sees, from a list (`gpu/chosen.h`); `None`: all up to its
    /// own.
    pub chosen: Option<usize>,
}

arguments! {
    /// The arguments of attention to latents.
    LatentArgs {
        /// `tokens × heads × head_dim` f32.
        q: Pointer,
        /// `tokens × head_dim` f32.
        row: Pointer,
        /// A u32 per sequence, its slot; null: sequence `s` has slot `s`.
        slots: Pointer,
        /// A u32 per slot: tokens before the new ones.
        position: Pointer,
        /// Rows in the layout [`KvLayout`], slot `s` at `s · sequence_bytes`.
        rows: Pointer,
        /// [`LatentSpec::part_bytes`] of working memory.
        part: Pointer,
        /// [`LatentSpec::counters`] u32, zero before the first launch and after each launch.
        counters: Pointer,
        /// `tokens × heads × rank` f32.
        out: Pointer,
        /// Factor on scores.
        scale: F32,
        /// Number of positions of a slot.
        capacity: U32,
        /// Number of slices of the context.
        splits: U32,
        /// Distance of slots, in bytes; 0 with pages.
        sequence_bytes: U64,
        /// With pages: a u32 for each [`PAGE`](crate::kv::PAGE) positions of a sequence, slot after
        /// slot. With chosen positions: `tokens × chosen` u32, in rising order
        /// ([`TopKeysSpec`](crate::top_keys::TopKeysSpec)).
        table: Pointer,
    }
}

const NAME: &str = "latent";
const BLOCK: u32 = 256;

/// The macro of `gpu/chosen.h`.
pub(crate) fn choosing(chosen: Option<usize>, macros: Constants) -> Constants {
    match chosen {
        Some(n) => macros.set("KJ_CHOSEN", n as u32),
        None => macros,
    }
}

impl LatentSpec {
    /// The most elements of a row: the queries of four heads and a value of each wave are in shared
    /// memory.
    pub const WIDEST: usize = 640;
    /// Blocks per compute unit.
    pub const BLOCKS_PER_UNIT: u32 = 1;

    /// Query heads that a block computes together.
    ///
    /// Four: a lane has 16 columns of each head in registers. With eight, the block that combines
    /// the slices would have twice as many results to combine.
    fn group(&self) -> usize {
        (1..=4).rev().find(|g| self.heads.is_multiple_of(*g)).unwrap_or(1)
    }

    /// Number of blocks that share the heads of a sequence.
    #[must_use]
    pub fn groups(&self) -> u32 {
        (self.heads / self.group()) as u32
    }

    /// Bytes of the working memory.
    #[must_use]
    pub fn part_bytes(&self, splits: u32, sequences: u32) -> usize {
        self.heads * splits as usize * sequences as usize * (self.rank + 2).next_multiple_of(4) * 4
    }

    /// Number of counters (u32).
    #[must_use]
    pub fn counters(&self, sequences: u32) -> usize {
        (self.groups() * sequences) as usize
    }
}

impl Family for LatentSpec {
    const NAME: &'static str = NAME;
    type Args<A> = LatentArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (one, paged) =
            (if self.one { ", one sequence" } else { "" }, if self.paged { ", paged" } else { "" });
        let (kv, rank) = (self.kv, self.rank);
        write!(
            f,
            "{} × {} {:?}, values of {rank}{one}{paged}",
            self.heads, kv.head_dim, kv.storage
        )?;
        self.chosen.map_or(Ok(()), |n| write!(f, ", {n} chosen"))
    }

    fn check(&self, _: &Target, _: &Fixed) -> Result<(), SpecError> {
        require(!self.paged || self.chosen.is_none(), NAME, || {
            "chosen positions cannot be combined with pages".to_owned()
        })?;
        let (dim, one) = (self.kv.head_dim, self.kv.heads == 1);
        let fine = one
            && dim.is_multiple_of(16)
            && (1..=dim).contains(&self.rank)
            && dim <= LatentSpec::WIDEST;
        require(fine && self.heads > 0, NAME, || {
            format!(
                "{} heads on rows of {dim}: row sizes must be multiples of 16 up to {}",
                self.heads,
                LatentSpec::WIDEST
            )
        })
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, target: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        let shape = self
            .kv
            .shape()
            .number("HEADS", self.heads)
            .number("GROUP", self.group())
            .number("RANK", self.rank)
            .flag("ONE", self.one);
        // Explicit, since otherwise nvrtc uses fewer registers than a block of 256 threads may
        // have, and spills.
        let bounded = match target.vendor() {
            Vendor::Nvidia => Constants::new().set("KJ_MIN_BLOCKS", 1),
            Vendor::Amd => Constants::new(),
        };
        let macros = choosing(self.chosen, KvLayout::macros(self.paged, bounded));
        Ok(of_shape(NAME, &shape, macros, block.wave, block.threads))
    }

    fn declared(&self) -> &'static [Declared] {
        with_table::<LatentArgs<()>>(self.paged || self.chosen.is_some())
    }

    fn grid(&self, _: &Target, _: &Fixed, units: u32, size: Size) -> Result<Grid, SpecError> {
        let sequences = size.tokens.max(1) as u32;
        let splits = (units.max(1) * LatentSpec::BLOCKS_PER_UNIT / (self.groups() * sequences))
            .clamp(1, 256);
        let grid = Grid::of([splits, self.groups(), sequences]).number("splits", splits);
        Ok(grid
            .memory("part", self.part_bytes(splits, sequences))
            .counters("counters", self.counters(sequences)))
    }

    fn work(&self, Size { tokens, past }: Size) -> Work {
        let ends = 4 * (self.kv.head_dim * (self.heads + 1) + self.rank * self.heads);
        let seen = (past + 1).min(self.chosen.unwrap_or(usize::MAX));
        let operations = 2 * seen * self.heads * (self.kv.head_dim + self.rank);
        let bytes = self.kv.bytes(seen).unwrap_or(0) + ends;
        Work { bytes: (tokens * bytes) as u64, operations: (tokens * operations) as u64 }
    }
}
