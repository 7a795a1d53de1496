//! Attention of a prompt's new tokens to latents, on matrix units: `gpu/latent_flash.h`.

use crate::attention::kv::{KvLayout, KvStorage};
use crate::attention::latent::{LatentSpec, choosing, lists};
use crate::attention::top_keys::TopKeysSpec;
use crate::cases::paged::Pages;
use crate::cases::{
    Case, CaseArg, FOLLOWS, Random, Storage, Tolerance, floats, input, output, words,
};
use crate::matrix::{CHUNK, Samples};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::arguments::{Declared, with_table};
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require, shared_bytes};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::mma::Product;
use crate::vocabulary::variant::{Variant, choice};
use kjit_engine::{Target, Vendor};
use std::fmt;

/// Attention of one sequence's new tokens to latents ([`LatentSpec`]) that are kept already, theirs
/// included.
///
/// Numerics: queries, rows and shares are halves in the products; scores, softmax and sums f32.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LatentFlashSpec {
    /// Query heads.
    pub heads: usize,
    /// Rows: one head of [`LatentSpec::WIDEST`] elements at most.
    pub kv: KvLayout,
    /// Elements of a row that are the value.
    pub rank: usize,
    /// Rows lie in pages ([`PAGE`](crate::kv::PAGE)).
    pub paged: bool,
    /// A token sees so many positions of a list (`gpu/chosen.h`); `None`: all up to its own.
    pub chosen: Option<usize>,
    /// How the work is cut; `None`: the default of the target's family.
    pub tuning: Option<LatentFlashTuning>,
}

/// How the work is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LatentFlashTuning {
    /// Lanes in a wave.
    pub wave: u32,
    /// Waves with rows of their own.
    pub waves: u32,
    /// Times sixteen rows of a wave.
    pub rows: u32,
    /// Waves that share a result's columns.
    pub columns: u32,
    /// Positions of a tile.
    pub keys: u32,
    /// Tiles in shared memory: 1 or 2.
    pub stages: u32,
}

arguments! {
    /// The arguments.
    LatentFlashArgs {
        /// `tokens × heads × head_dim` f32.
        q: Pointer,
        /// Per [`KvLayout`].
        rows: Pointer,
        /// One u32: the first token's.
        position: Pointer,
        /// `tokens × heads × rank` f32.
        out: Pointer,
        /// Factor on scores.
        scale: F32,
        /// New tokens.
        tokens: U32,
        /// Positions of the cache.
        capacity: U32,
        /// A u32 for each [`PAGE`](crate::kv::PAGE) positions of the sequence, where there are
        /// pages; or where positions are chosen `tokens × chosen` u32, in rising order.
        table: Pointer,
    }
}

const NAME: &str = "latent_flash";

/// `(waves, rows, columns, keys, stages)`, the first that fits is taken. A wave that keeps 32 rows
/// of 128 columns loads a part of a value once for two products; with one tile that took more
/// registers than there are.
const NVIDIA: &[(u32, u32, u32, u32, u32)] =
    &[(2, 2, 4, 64, 2), (2, 1, 4, 64, 1), (2, 1, 4, 32, 1), (1, 1, 4, 32, 1)];
/// Where a block has 64 KB (sm_75).
const SMALL: &[(u32, u32, u32, u32, u32)] =
    &[(2, 1, 4, 64, 1), (2, 1, 4, 32, 1), (1, 1, 4, 32, 1), (1, 1, 8, 32, 1)];
const AMD: &[(u32, u32, u32, u32, u32)] = &[(2, 1, 4, 64, 1), (1, 1, 4, 32, 1), (1, 1, 8, 32, 1)];

impl Variant for LatentFlashTuning {}

impl LatentFlashTuning {
    /// Rows of a block.
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

    /// All that fit a target at a wave width, the first the default; `looked_up`: where a position
    /// lies is in a list or a table.
    fn all(
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
        // Bytes wait in registers between memory and a tile: with two tiles through the products,
        // for which there is no room; and 128 threads of gfx11 had none for a share of them (31
        // spills), nor for the places of chosen positions (41) or of pages (38); on sm_75 bytes in
        // pages spill one.
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

    /// So many tokens take so many blocks.
    ///
    /// # Errors
    /// As [`Family::tuning`].
    pub fn blocks(&self, target: &Target) -> Result<[u32; 2], SpecError> {
        let (rows, heads) = (self.tuning(target)?.block_rows(), self.heads as u32);
        if self.chosen.is_some() {
            return Ok([1, heads.div_ceil(rows)]);
        }
        // The first whole number of blocks that ends where a token does.
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
            why: format!("rows of {} on {target}", self.kv.head_dim),
        })
    }

    fn check(&self, target: &Target, t: &LatentFlashTuning) -> Result<(), SpecError> {
        require(!self.paged || self.chosen.is_none(), NAME, || {
            "chosen positions in pages".to_owned()
        })?;
        let (dim, rank, one) = (self.kv.head_dim, self.rank, self.kv.heads == 1);
        let whole = dim.is_multiple_of(16) && rank.is_multiple_of(16) && dim <= LatentSpec::WIDEST;
        require(one && whole && (1..=dim).contains(&rank) && self.heads > 0, NAME, || {
            format!("{} heads, {rank} of rows of {dim}: multiples of 16 are covered", self.heads)
        })?;
        let product = Product::of_attention(target, t.wave, dim);
        require(product.columns == 16, NAME, || {
            format!("no matrix units for rows of {dim} on {target}")
        })?;
        let fine = self.all(target, t.wave).any(|other| other == *t)
            && target.waves().contains(&t.wave)
            && t.keys.is_multiple_of(product.depth);
        require(fine, NAME, || format!("{t:?} with rows of {dim} on {target}"))
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
        CHUNK
    }

    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let Size { tokens, past } = size;
        let (dim, heads, kv) = (self.kv.head_dim, self.heads, self.kv);
        let (capacity, scale) = (past + tokens + 3, 1.0 / (dim as f32).sqrt());
        let q = random.normals(tokens * heads * dim, 1.0);
        let mut cache = vec![0xff; kv.bytes(capacity).unwrap_or(0)]; // NaN where no token has been
        let mut rows = vec![];
        for position in 0..past + tokens {
            kv.write_row(&mut cache, capacity, 0, position, &random.normals(dim, 1.0));
            rows.push(kv.read_row(&cache, capacity, 0, position));
        }
        let all =
            self.chosen.map_or(vec![], |n| lists(n, (0..tokens).map(|t| past + t + 1), random));
        let mut want = vec![];
        // Of many tokens the oracle has time for some.
        let step = if tokens > 128 { 61 } else { 1 };
        for t in 0..tokens {
            if t % step > 0 && t + 1 < tokens {
                want.resize(want.len() + heads * self.rank, f64::INFINITY);
                continue;
            }
            let seen: Vec<&Vec<f32>> = match self.chosen {
                Some(n) => {
                    let list = all[t * n..][..n].iter().filter(|p| **p != TopKeysSpec::NONE);
                    list.map(|p| &rows[*p as usize]).collect()
                }
                None => rows[..=past + t].iter().collect(),
            };
            for q in q[t * heads * dim..][..heads * dim].chunks(dim) {
                let dot = |row: &Vec<f32>| {
                    q.iter().zip(row).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>()
                };
                let scores: Vec<f64> = seen.iter().map(|row| f64::from(scale) * dot(row)).collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let shares: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
                let sum: f64 = shares.iter().sum();
                let mix = |c: usize| {
                    seen.iter()
                        .zip(&shares)
                        .map(|(row, p)| p / sum * f64::from(row[c]))
                        .sum::<f64>()
                };
                want.extend((0..self.rank).map(mix));
            }
        }
        let reason = "queries, rows and shares are halves";
        let tolerance = Tolerance { norm: 1.5e-3, each: 1.5e-2, reason };
        let pages = self.paged.then(|| Pages::new(&[past + tokens], capacity, random));
        let cache =
            pages.as_ref().map_or_else(|| cache.clone(), |pages| pages.pool(&kv, &cache, capacity));
        let name = format!(
            "latent_flash {heads} heads of {dim}, values of {}, {:?}, {tokens} tokens after \
             {past}, {:?}{}, {:?} chosen",
            self.rank,
            kv.storage,
            self.tuning(target)?,
            if self.paged { ", paged" } else { "" },
            self.chosen
        );
        let args = LatentFlashArgs {
            q: floats("q", &q),
            rows: input("rows", cache),
            position: input("position", (past as u32).to_le_bytes().to_vec()),
            out: output("out", Storage::F32, want, tolerance),
            scale: CaseArg::F32(scale),
            tokens: FOLLOWS,
            capacity: CaseArg::U32(capacity as u32),
            table: pages
                .map_or_else(|| words("chosen", &all), |pages| words("table", &pages.table)),
        };
        Case::of(name, self, target, self.launch(target, units, size)?, args)
    }

    fn cases(
        target: &Target,
        wave: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        use KvStorage::{F16, F32, Q8_0};
        // Heads that divide a block's rows and that do not, ranks that all waves share evenly and
        // that they do not, one token and many, a past that is no multiple of a tile; in pages, one
        // that ends with one and before.
        for (heads, head_dim, rank, storage, tokens, past, paged, chosen) in [
            (16, 576, 512, F16, 9, 70, false, None),
            (3, 96, 80, F16, 47, 5, false, None),
            (5, 160, 128, Q8_0, 13, 33, false, None),
            (4, 64, 48, F32, 1, 0, false, None),
            (16, 320, 256, F16, 5, 131, false, None),
            (6, 576, 512, Q8_0, 7, 64, false, None),
            (16, 576, 512, F16, 9, 120, true, None),
            (5, 160, 128, Q8_0, 13, 256, true, None),
            // Chosen ones: fewer than there are, as many, more; of one sequence, its own new tokens
            // among them.
            (128, 320, 256, F16, 2, 150, false, Some(100)),
            (5, 96, 80, F16, 20, 4, false, Some(12)),
            (3, 160, 128, Q8_0, 6, 70, false, Some(33)),
            (4, 64, 48, F32, 3, 9, false, Some(11)),
        ] {
            let kv = KvLayout { heads: 1, head_dim, storage };
            // Where a row lies is the same affair in all.
            let all = if paged { 1 } else { usize::MAX };
            for tuning in
                LatentFlashTuning::all(target, wave, &kv, paged || chosen.is_some()).take(all)
            {
                let spec = LatentFlashSpec { heads, kv, rank, paged, chosen, tuning: Some(tuning) };
                if spec.covered(target) {
                    into.push(spec.case(target, 1, Size { tokens, past }, random)?);
                }
            }
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        for storage in [KvStorage::F16, KvStorage::Q8_0] {
            let kv = KvLayout { heads: 1, head_dim: 576, storage };
            let spec = LatentFlashSpec {
                heads: 16,
                kv,
                rank: 512,
                paged: false,
                chosen: None,
                tuning: None,
            };
            if spec.covered(list.target) {
                let paged = LatentFlashSpec { paged: true, ..spec.clone() };
                list.add(format!("latent_flash 16 × 512 + 64 {storage:?}"), spec, CHUNK)?;
                list.add(format!("latent_flash 16 × 512 + 64 {storage:?} in pages"), paged, CHUNK)?;
            }
        }
        let kv = KvLayout { heads: 1, head_dim: 576, storage: KvStorage::F16 };
        let spec = LatentFlashSpec {
            heads: 128,
            kv,
            rank: 512,
            paged: false,
            chosen: Some(2048),
            tuning: None,
        };
        if spec.covered(list.target) {
            list.add("latent_flash 128 × 512 + 64 F16 2048 chosen".to_owned(), spec, CHUNK)?;
        }
        Ok(())
    }
}
