//! Attention of a prompt's new tokens over the cache: `gpu/flash.h` on every matrix unit,
//! `gpu/flash_wgmma.h` on sm_90a.

use crate::attention::heads::Scores;
use crate::attention::kv::{KvLayout, KvStorage};
use crate::vocabulary::arguments::{Declared, arguments, with_table};
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require, shared_bytes};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::mma::Product;
use crate::vocabulary::variant::{Variant, choice};
use kjit_engine::{MatrixUnit, Target, Vendor};
use std::fmt;

/// Attention of new tokens to all positions of the cache.
///
/// Numerics: queries, keys, values and probabilities are f16 in the products; scores, softmax and
/// sums f32.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlashSpec {
    /// Query heads, a multiple of the key heads.
    pub heads: usize,
    /// Keys and values.
    pub kv: KvLayout,
    /// Factor on scores.
    pub scale: f32,
    /// Options of the scores.
    pub scores: Scores,
    /// Whether keys and values are in pages ([`PAGE`](crate::kv::PAGE)).
    pub paged: bool,
    /// The division of the work; `None`: the default of the target's family.
    pub tuning: Option<FlashTuning>,
}

impl Eq for FlashSpec {}

impl std::hash::Hash for FlashSpec {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.heads, self.kv, self.scale.to_bits(), self.scores, self.paged, self.tuning)
            .hash(state);
    }
}

/// The division of the work among blocks and waves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FlashTuning {
    /// `gpu/flash.h`: each wave has its own tokens.
    Waves {
        /// Lanes in a wave.
        wave: u32,
        /// Waves of a block.
        waves: u32,
        /// Tokens of a wave, in units of sixteen.
        tokens: u32,
        /// Number of keys in a tile.
        keys: u32,
        /// Whether queries stay in registers.
        hold: bool,
        /// Number of tiles of keys and values in shared memory: 1 or 2.
        stages: u32,
        /// Number of blocks that share the columns of a result, if one block has too few registers
        /// for all.
        parts: u32,
    },
    /// `gpu/flash_wgmma.h` (sm_90a, heads of 64, 80, 96, 128 or 256, keys in f16 or bytes): two
    /// groups of four warps with 64 tokens each.
    Groups {
        /// Keys of a tile: 64 or 128; with heads of 256: 32 or 64.
        keys: u32,
    },
}

arguments! {
    /// The arguments of a prompt's attention.
    FlashArgs {
        /// `tokens × heads × head_dim` f32, rotated ([`RopeKvSpec`](crate::rope_kv::RopeKvSpec),
        /// which also writes these tokens' keys and values).
        q: Pointer,
        /// An f32 score for each head, or null.
        sinks: Pointer,
        /// Keys in the layout [`KvLayout`].
        keys: Pointer,
        /// Values, as `keys`.
        values: Pointer,
        /// `tokens × heads · head_dim` f16 in tiles ([`tiled_bytes`](crate::mma::tiled_bytes)).
        y: Pointer,
        /// One u32: the position of the first token.
        position: Pointer,
        /// Number of new tokens.
        tokens: U32,
        /// Number of positions in the cache.
        capacity: U32,
        /// A u32 for each [`PAGE`](crate::kv::PAGE) positions of a sequence; only with pages.
        table: Pointer,
    }
}

const NAME: &str = "flash";
const NAME_GROUPS: &str = "flash_wgmma";

/// `(largest head, waves, tokens, keys, stages, output parts)`.
type Row = (usize, u32, u32, u32, u32, u32);

/// sm_80 and later. H200, heads of 128: 264 TFLOP/s at 8192 tokens, 287 at 16384
/// (`gpu/flash_wgmma.h`: 283 at 2048, 441, 456).
const ROOMY: &[Row] =
    &[(64, 4, 2, 64, 2, 1), (128, 4, 2, 32, 2, 1), (256, 8, 1, 32, 1, 1), (512, 4, 1, 16, 1, 2)];
/// sm_90: more shared memory.
const ROOMIER: &[Row] =
    &[(64, 4, 2, 64, 2, 1), (128, 4, 2, 32, 2, 1), (256, 4, 1, 64, 1, 1), (512, 4, 1, 32, 1, 2)];
/// 8-bit keys and values wait in registers between load and store.
const BYTES: &[Row] =
    &[(64, 4, 2, 64, 2, 1), (128, 8, 1, 32, 2, 1), (256, 4, 1, 32, 1, 1), (512, 4, 1, 16, 1, 4)];
/// sm_75: 64 KB of shared memory, and products that need more registers.
const TURING: &[Row] =
    &[(64, 4, 1, 64, 2, 1), (128, 4, 1, 32, 1, 1), (256, 4, 1, 16, 1, 2), (512, 1, 1, 16, 1, 4)];
/// WMMA: 64 KB of LDS. Blocks share the columns if a lane's 256 registers would spill.
const WMMA: &[Row] = &[(128, 4, 1, 32, 1, 1), (256, 4, 1, 16, 1, 4), (512, 1, 1, 16, 1, 8)];
/// MFMA: twice as many registers.
const MFMA: &[Row] = &[(128, 4, 1, 32, 1, 1), (256, 4, 1, 16, 1, 1), (512, 1, 1, 16, 1, 4)];
/// gfx1250: products have depth 32, so a tile has at least 32 keys; 1024 registers.
const DEEP: &[Row] = &[(128, 4, 1, 32, 1, 1), (256, 4, 1, 32, 1, 1), (512, 2, 1, 32, 1, 2)];
/// Without matrix units: products have 32 columns.
const PLAIN: &[Row] = &[(128, 4, 1, 32, 1, 1), (256, 2, 1, 32, 1, 4)];

impl Variant for FlashTuning {}

impl FlashTuning {
    /// The default of `gpu/flash.h` at a wave width.
    #[must_use]
    pub fn waves(target: &Target, wave: u32, kv: &KvLayout) -> FlashTuning {
        let product = Product::of_attention(target, wave, kv.head_dim);
        let shared = target.arch().shared_per_block;
        let table = match (target.vendor(), product.columns) {
            (Vendor::Nvidia, _) if shared <= 64 << 10 => TURING,
            (Vendor::Nvidia, _) if kv.storage == KvStorage::Q8_0 => BYTES,
            (Vendor::Nvidia, _) if shared > 160 << 10 => ROOMIER,
            (Vendor::Nvidia, _) => ROOMY,
            (Vendor::Amd, 16) if wave == 64 => MFMA,
            (Vendor::Amd, 16) if product.depth == 32 => DEEP,
            (Vendor::Amd, 16) => WMMA,
            (Vendor::Amd, _) => PLAIN,
        };
        let &(_, waves, tokens, keys, stages, parts) =
            table.iter().find(|r| kv.head_dim <= r.0).unwrap_or(&table[table.len() - 1]);
        // A part has whole blocks of 64 columns.
        let parts = (1..=parts)
            .rev()
            .find(|p| *p == 1 || kv.head_dim.is_multiple_of(64 * *p as usize))
            .unwrap_or(1);
        FlashTuning::Waves { wave, waves, tokens, keys, hold: false, stages, parts }
    }

    fn default_for(target: &Target, kv: &KvLayout) -> FlashTuning {
        // Fits the shared memory, and the registers of the threads that fill it.
        let keys = match (kv.head_dim, kv.storage) {
            (0..=128, _) => 128,
            (_, KvStorage::Q8_0) => 32,
            _ => 64,
        };
        let groups = FlashTuning::Groups { keys };
        if groups.fits(target, kv) {
            return groups;
        }
        // 8-bit keys and values wait in registers. For heads of 256 and two waves of 32 that is 64
        // per lane; without matrix units ROCm 5's compiler then spilled 34 (clang 19: 230
        // registers). Waves of 64 have half as many: 142.
        let usual = target.default_wave();
        let plain = Product::of_attention(target, usual, kv.head_dim).columns == 32
            && target.vendor() == Vendor::Amd;
        let many = kv.head_dim > 128 && kv.storage == KvStorage::Q8_0;
        let wide = plain && many && target.waves().contains(&64);
        FlashTuning::waves(target, if wide { 64 } else { usual }, kv)
    }

    fn fits(&self, target: &Target, kv: &KvLayout) -> bool {
        match *self {
            FlashTuning::Waves { wave, waves, tokens, keys, stages, parts, .. } => {
                let product = Product::of_attention(target, wave, kv.head_dim);
                target.waves().contains(&wave)
                    && (1..=16).contains(&waves)
                    && waves * wave <= target.arch().max_threads
                    && (1..=2).contains(&tokens)
                    && [16, 32, 64].contains(&keys)
                    && keys.is_multiple_of(product.columns)
                    && keys.is_multiple_of(product.depth)
                    && (1..=2).contains(&stages)
                    && (parts == 1 || parts > 1 && kv.head_dim.is_multiple_of(64 * parts as usize))
            }
            FlashTuning::Groups { keys } => {
                target.arch().matrix == MatrixUnit::Wgmma
                    && [64, 80, 96, 128, 256].contains(&kv.head_dim)
                    && kv.storage != KvStorage::F32
                    && if kv.head_dim > 128 { [32, 64] } else { [64, 128] }.contains(&keys)
                    // 8-bit keys and values wait in the fillers' registers.
                    && (kv.head_dim <= 128 || kv.storage == KvStorage::F16 || keys == 32)
            }
        }
    }

    /// Number of tokens of a block.
    #[must_use]
    pub const fn tokens(&self) -> u32 {
        match *self {
            FlashTuning::Waves { waves, tokens, .. } => waves * tokens * 16,
            FlashTuning::Groups { .. } => 128,
        }
    }

    /// Bytes of dynamic shared memory.
    fn shared(&self, target: &Target, kv: &KvLayout) -> usize {
        let blocks = kv.head_dim.div_ceil(64);
        let tokens = self.tokens() as usize;
        match *self {
            FlashTuning::Waves { wave, keys, stages, .. } => {
                let scores =
                    if Product::of_attention(target, wave, kv.head_dim).stays { 0 } else { tokens };
                (blocks * (tokens + (2 * stages * keys) as usize) + scores) * 128
            }
            FlashTuning::Groups { keys } => 1024 + blocks * (tokens + 4 * keys as usize) * 128,
        }
    }

    /// Candidates of `gpu/flash.h`.
    fn all_waves(target: &Target) -> Vec<FlashTuning> {
        let mut all = vec![];
        for &wave in target.waves() {
            for (waves, tokens) in [(2, 1), (4, 1), (8, 1), (4, 2), (8, 2)] {
                for keys in [16, 32, 64] {
                    for stages in [1, 2] {
                        for hold in [false, true] {
                            all.push(FlashTuning::Waves {
                                wave,
                                waves,
                                tokens,
                                keys,
                                hold,
                                stages,
                                parts: 1,
                            });
                        }
                    }
                }
            }
        }
        all
    }
}

impl FlashSpec {
    /// Number of blocks that share the columns of a result.
    const fn parts(tuning: &FlashTuning) -> u32 {
        if let FlashTuning::Waves { parts, .. } = *tuning { parts } else { 1 }
    }

    /// Number of blocks for a tile of tokens: over the heads, and over the columns of a result.
    ///
    /// # Errors
    /// As [`Family::tuning`].
    pub fn blocks(&self, target: &Target) -> Result<[u32; 2], SpecError> {
        Ok([self.heads as u32, FlashSpec::parts(&self.tuning(target)?)])
    }
}

impl Family for FlashSpec {
    const NAME: &'static str = NAME;
    type Args<A> = FlashArgs<A>;
    choice!(FlashTuning);

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kv, seen) = (self.kv, self.scores);
        write!(
            f,
            "{}/{} × {} {:?}, scale {}{seen}",
            self.heads, kv.heads, kv.head_dim, kv.storage, self.scale
        )?;
        f.write_str(if self.paged { ", paged" } else { "" })
    }

    fn usual(&self, target: &Target) -> Result<FlashTuning, SpecError> {
        Ok(match self.scores.around {
            // The kernel with warp groups is always causal.
            Some(_) => FlashTuning::waves(target, target.default_wave(), &self.kv),
            None => FlashTuning::default_for(target, &self.kv),
        })
    }

    fn check(&self, target: &Target, t: &FlashTuning) -> Result<(), SpecError> {
        self.kv.check(NAME)?;
        self.scores.check(NAME)?;
        require(self.heads > 0 && self.heads.is_multiple_of(self.kv.heads), NAME, || {
            format!("{} query heads are not a multiple of {} key heads", self.heads, self.kv.heads)
        })?;
        let groups = matches!(t, FlashTuning::Groups { .. });
        require(!groups || self.scores.around.is_none(), NAME, || {
            "warp groups support causal attention only".to_owned()
        })?;
        require(t.fits(target, &self.kv), NAME, || {
            format!("tuning {t:?} with heads of {} is not supported on {target}", self.kv.head_dim)
        })
    }

    fn candidates(&self, target: &Target) -> Vec<FlashTuning> {
        let groups = [32, 64, 128].map(|keys| FlashTuning::Groups { keys });
        // For heads that warp groups support, the other kernel was much slower.
        let waves = if target.arch().matrix == MatrixUnit::Wgmma {
            vec![]
        } else {
            FlashTuning::all_waves(target)
        };
        groups.into_iter().chain(waves).collect()
    }

    fn block(&self, target: &Target, t: &FlashTuning) -> Result<Block, SpecError> {
        let shared = shared_bytes(
            NAME,
            target,
            t.shared(target, &self.kv),
            64,
            "use a tuning with fewer keys or waves",
        )?;
        Ok(match *t {
            FlashTuning::Waves { wave, waves, .. } => Block { wave, threads: waves * wave, shared },
            FlashTuning::Groups { .. } => Block { wave: 32, threads: 384, shared },
        })
    }

    fn render(&self, target: &Target, t: &FlashTuning, block: Block) -> Result<Kernel, SpecError> {
        let entry = if let FlashTuning::Groups { .. } = t { NAME_GROUPS } else { NAME };
        let shape = self.kv.shape().number("HEADS", self.heads).real("SCALE", self.scale);
        let shape = self.scores.shape(shape);
        let macros = Product::of_attention(target, block.wave, self.kv.head_dim).macros();
        let macros = match self.scores.around {
            Some(n) => macros.set("KJ_AROUND", n.min(Scores::ALL) as i64),
            None => macros,
        };
        let (shape, macros) = match *t {
            FlashTuning::Waves { tokens, keys, hold, stages, parts, .. } => {
                let s = shape.number("MI", tokens).number("BK", keys).flag("HOLD_Q", hold);
                (s.number("KV_STAGES", stages).number("OUT_PARTS", parts), macros)
            }
            FlashTuning::Groups { keys } => {
                // Registers of each role, 65536 in total. 8-bit keys and values wait in the
                // fillers' registers.
                let (fill, multiply) = match (self.kv.storage, keys) {
                    (KvStorage::Q8_0, 128) => (136, 184),
                    (KvStorage::Q8_0, _) => (88, 208),
                    // The chunks of a row are then divided by ten or twelve.
                    _ if !self.kv.head_dim.is_power_of_two() => (56, 224),
                    _ => (40, 232),
                };
                let s = shape
                    .number("BK", keys)
                    .number("FILL_REGS", fill)
                    .number("MULTIPLY_REGS", multiply);
                (s, macros.set("KJ_MIN_BLOCKS", 1))
            }
        };
        let macros = KvLayout::macros(self.paged, macros);
        let kernel = of_shape(entry, &shape, macros, block.wave, block.threads);
        let options = kernel.options.clone().arch_specific(entry == NAME_GROUPS);
        Ok(Kernel { shared: block.shared, options, ..kernel })
    }

    fn declared(&self) -> &'static [Declared] {
        with_table::<FlashArgs<()>>(self.paged)
    }

    fn grid(&self, _: &Target, t: &FlashTuning, _: u32, size: Size) -> Result<Grid, SpecError> {
        let tokens = size.tokens as u32;
        let tiles = tokens.div_ceil(t.tokens());
        Ok(Grid::of([tiles, self.heads as u32, FlashSpec::parts(t)]).number("tokens", tokens))
    }

    fn work(&self, Size { tokens, past }: Size) -> Work {
        let (all, width) = (past + tokens, self.heads * self.kv.head_dim);
        let seen = |t: usize| self.scores.seen_to(past + t, all) - self.scores.seen_from(past + t);
        let pairs: usize = (0..tokens).map(seen).sum();
        // Queries are f32, results f16.
        let kv = 2 * self.kv.bytes(all - self.scores.seen_from(past)).unwrap_or(0);
        Work { bytes: (kv + 6 * tokens * width) as u64, operations: (4 * pairs * width) as u64 }
    }

    fn timed_at(&self, _: usize) -> Size {
        Size::CHUNK
    }
}
