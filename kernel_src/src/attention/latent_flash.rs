//! Attention of a prompt's new tokens to latents, on matrix units: `gpu/latent_flash.h`.

use crate::attention::kv::{KvLayout, KvStorage};
use crate::attention::latent::{LatentSpec, choosing};
use crate::vocabulary::arguments::{Declared, arguments, with_table};
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require, shared_bytes};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::mma::Product;
use crate::vocabulary::variant::{Variant, choice};
use kjit_engine::{Target, Vendor};
use std::fmt;

/// Attention of one sequence's new tokens to latents ([`LatentSpec`]) in the cache, including those
/// of the new tokens.
///
/// Numerics: queries, rows and probabilities are f16 in the products; scores, softmax and sums f32.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LatentFlashSpec {
    /// Query heads.
    pub heads: usize,
    /// Layout of the rows: one head of at most [`LatentSpec::WIDEST`] elements.
    pub kv: KvLayout,
    /// Number of elements of a row that are the value.
    pub rank: usize,
    /// Whether rows are in pages ([`PAGE`](crate::kv::PAGE)).
    pub paged: bool,
    /// Number of positions that a token sees, from a list (`gpu/chosen.h`); `None`: all up to its
    /// own.
    pub chosen: Option<usize>,
    /// The division of the work; `None`: the default of the target's family.
    pub tuning: Option<LatentFlashTuning>,
}

/// The division of the work among waves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LatentFlashTuning {
    /// Lanes in a wave.
    pub wave: u32,
    /// Number of waves with different rows.
    pub waves: u32,
    /// Rows of a wave, in units of sixteen.
    pub rows: u32,
    /// Number of waves that share the columns of a result.
    pub columns: u32,
    /// Number of positions in a tile.
    pub keys: u32,
    /// Number of tiles in shared memory: 1 or 2.
    pub stages: u32,
}

arguments! {
    /// The arguments of attention to latents.
    LatentFlashArgs {
        /// `tokens × heads × head_dim` f32.
        q: Pointer,
        /// Rows in the layout [`KvLayout`].
        rows: Pointer,
        /// One u32: the position of the first token.
        position: Pointer,
        /// `tokens × heads × rank` f32.
        out: Pointer,
        /// Factor on scores.
        scale: F32,
        /// Number of new tokens.
        tokens: U32,
        /// Number of positions in the cache.
        capacity: U32,
        /// With pages: a u32 for each [`PAGE`](crate::kv::PAGE) positions of the sequence. With
        /// chosen positions: `tokens × chosen` u32, in rising order.
        table: Pointer,
    }
}

const NAME: &str = "latent_flash";

/// `(waves, rows, columns, keys, stages)`; the first that fits is used. A wave with 32 rows of 128
/// columns loads a part of a value once for two products; with one tile that exceeded the number of
/// registers.
const NVIDIA: &[(u32, u32, u32, u32, u32)] =
    &[(2, 2, 4, 64, 2), (2, 1, 4, 64, 1), (2, 1, 4, 32, 1), (1, 1, 4, 32, 1)];
/// For blocks of 64 KB (sm_75).
const SMALL: &[(u32, u32, u32, u32, u32)] =
    &[(2, 1, 4, 64, 1), (2, 1, 4, 32, 1), (1, 1, 4, 32, 1), (1, 1, 8, 32, 1)];
const AMD: &[(u32, u32, u32, u32, u32)] = &[(2, 1, 4, 64, 1), (1, 1, 4, 32, 1), (1, 1, 8, 32, 1)];

impl Variant for LatentFlashTuning {}

impl LatentFlashTuning {
    /// Number of rows of a block.
    #[must_use]
    pub const fn block_rows(&self) -> u32 {
        self.waves * self.rows * 16
    }

    /// Bytes of dynamic shared memory.
    const fn shared(&self, kv: &KvLayout) -> usize {
        let (rows, keys) = (self.block_rows() as usize, self.keys as usize);
        let tiles = (kv.head_dim.div_ceil(64) + keys.div_ceil(64)) * rows
            + self.stages as usize * kv.head_dim.div_ceil(64) * keys;
        tiles * 128 + (self.columns as usize) * rows * 4
    }

    /// All tunings that fit a target at a wave width; the first is the default. `looked_up`:
    /// positions are read from a list or a table.
    pub fn all(
        target: &Target,
        wave: u32,
        kv: &KvLayout,
        looked_up: bool,
    ) -> impl Iterator<Item = LatentFlashTuning> {
        let have = target.arch().shared_per_block as usize;
        let small = target.vendor() == Vendor::Nvidia && have <= 64 << 10;
        let list = match target.vendor() {
            Vendor::Nvidia if small => SMALL,
            Vendor::Nvidia => NVIDIA,
            Vendor::Amd => AMD,
        };
        let of = move |&(waves, rows, columns, keys, stages)| LatentFlashTuning {
            wave,
            waves,
            rows,
            columns,
            keys,
            stages,
        };
        let kv = *kv;
        // 8-bit rows wait in registers between memory and a tile. With two tiles they would wait
        // during the products, and registers do not suffice. With 128 threads gfx11 has too few
        // registers for a thread's share of 8-bit rows (31 spills), of chosen positions (41) or of
        // pages (38). On sm_75 8-bit rows in pages spill one.
        let (bytes, amd) = (kv.storage == KvStorage::Q8_0, target.vendor() == Vendor::Amd);
        let few = move |t: &LatentFlashTuning| match amd {
            true => bytes || looked_up && t.wave == 32,
            false => small && bytes && looked_up,
        };
        let held = move |t: &LatentFlashTuning| {
            !(bytes && t.stages == 2 || t.waves * t.columns == 4 && few(t))
        };
        list.iter().map(of).filter(move |t| t.shared(&kv) <= have && held(t))
    }
}

impl LatentFlashSpec {
    fn all(&self, target: &Target, wave: u32) -> impl Iterator<Item = LatentFlashTuning> {
        LatentFlashTuning::all(target, wave, &self.kv, self.paged || self.chosen.is_some())
    }

    /// `[tokens, blocks]`: number of blocks for this number of tokens.
    ///
    /// # Errors
    /// As [`Family::tuning`].
    pub fn blocks(&self, target: &Target) -> Result<[u32; 2], SpecError> {
        let (rows, heads) = (self.tuning(target)?.block_rows(), self.heads as u32);
        if self.chosen.is_some() {
            return Ok([1, heads.div_ceil(rows)]);
        }
        // The smallest whole number of blocks that ends at the end of a token.
        let tokens = (1..=rows).find(|t| (t * heads).is_multiple_of(rows)).unwrap_or(rows);
        Ok([tokens, tokens * heads / rows])
    }
}

impl Family for LatentFlashSpec {
    const NAME: &'static str = NAME;
    type Args<A> = LatentFlashArgs<A>;
    choice!(LatentFlashTuning);

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} × {} {:?}, values of {}",
            self.heads, self.kv.head_dim, self.kv.storage, self.rank
        )?;
        f.write_str(if self.paged { ", paged" } else { "" })?;
        self.chosen.map_or(Ok(()), |n| write!(f, ", {n} chosen"))
    }

    fn usual(&self, target: &Target) -> Result<LatentFlashTuning, SpecError> {
        self.all(target, target.default_wave()).next().ok_or_else(|| SpecError::Unsupported {
            kernel: NAME,
            why: format!("rows of {} are not supported on {target}", self.kv.head_dim),
        })
    }

    fn check(&self, target: &Target, t: &LatentFlashTuning) -> Result<(), SpecError> {
        require(!self.paged || self.chosen.is_none(), NAME, || {
            "chosen positions cannot be combined with pages".to_owned()
        })?;
        let (dim, rank, one) = (self.kv.head_dim, self.rank, self.kv.heads == 1);
        let whole = dim.is_multiple_of(16) && rank.is_multiple_of(16) && dim <= LatentSpec::WIDEST;
        require(one && whole && (1..=dim).contains(&rank) && self.heads > 0, NAME, || {
            format!(
                "{} heads, values of {rank} in rows of {dim}: sizes must be multiples of 16",
                self.heads
            )
        })?;
        let product = Product::of_attention(target, t.wave, dim);
        require(product.columns == 16, NAME, || {
            format!("{target} has no matrix units for rows of {dim}")
        })?;
        let fine = self.all(target, t.wave).any(|other| other == *t)
            && target.waves().contains(&t.wave)
            && t.keys.is_multiple_of(product.depth);
        require(fine, NAME, || {
            format!("tuning {t:?} with rows of {dim} is not supported on {target}")
        })
    }

    fn candidates(&self, target: &Target) -> Vec<LatentFlashTuning> {
        target.waves().iter().flat_map(|&wave| self.all(target, wave)).collect()
    }

    fn block(&self, target: &Target, t: &LatentFlashTuning) -> Result<Block, SpecError> {
        let shared = shared_bytes(NAME, target, t.shared(&self.kv), 0, "shorter rows")?;
        Ok(Block { wave: t.wave, threads: t.waves * t.columns * t.wave, shared })
    }

    fn render(
        &self,
        target: &Target,
        t: &LatentFlashTuning,
        block: Block,
    ) -> Result<Kernel, SpecError> {
        let shape = self.kv.shape().number("HEADS", self.heads).number("RANK", self.rank);
        let shape = shape.number("MI", t.rows).number("BK", t.keys).number("WAVES_N", t.columns);
        let macros = Product::of_attention(target, block.wave, self.kv.head_dim).macros();
        let macros = choosing(self.chosen, KvLayout::macros(self.paged, macros));
        let kernel =
            of_shape(NAME, &shape.number("STAGES", t.stages), macros, block.wave, block.threads);
        Ok(Kernel { shared: block.shared, ..kernel })
    }

    fn declared(&self) -> &'static [Declared] {
        with_table::<LatentFlashArgs<()>>(self.paged || self.chosen.is_some())
    }

    fn grid(
        &self,
        _: &Target,
        t: &LatentFlashTuning,
        _: u32,
        size: Size,
    ) -> Result<Grid, SpecError> {
        let tokens = size.tokens as u32;
        let (rows, heads) = (t.block_rows(), self.heads as u32);
        let blocks = match self.chosen {
            Some(_) => tokens * heads.div_ceil(rows),
            None => (tokens * heads).div_ceil(rows),
        };
        Ok(Grid::of([blocks, 1, 1]).number("tokens", tokens))
    }

    fn work(&self, Size { tokens, past }: Size) -> Work {
        let most = self.chosen.unwrap_or(usize::MAX);
        let pairs: usize = (0..tokens).map(|t| (past + t + 1).min(most)).sum();
        let ends = 4 * tokens * self.heads * (self.kv.head_dim + self.rank);
        let bytes = self.kv.bytes(past + tokens).unwrap_or(0) + ends;
        let operations = 2 * pairs * self.heads * (self.kv.head_dim + self.rank);
        Work { bytes: bytes as u64, operations: operations as u64 }
    }

    fn timed_at(&self, _: usize) -> Size {
        Size::CHUNK
    }
}
