//! Attention of a prompt's new tokens over the cache: `gpu/flash.hip` on every matrix unit, `gpu/flash_wgmma.hip` on sm_90a.

use crate::kernel::{Kernel, SpecError, require, shared_bytes, source};
use crate::kv::{KvLayout, KvStorage};
use crate::product::Product;
use kjit_engine::{Geometry, MatrixUnit, Options, Target, Vendor};

/// Arguments: `q, keys, values, y, position` (pointers), `tokens: u32, capacity: u32`. `q` is `tokens × heads × head_dim` f32, rotated
/// ([`RopeKvSpec`](crate::attend::RopeKvSpec), which also writes these tokens' keys and values); `keys`, `values` per [`KvLayout`];
/// `position` one u32, the first token's; `y` is `tokens × heads · head_dim` halves in tiles
/// ([`tiled_bytes`](crate::product::tiled_bytes)).
///
/// Numerics: queries, keys, values and probabilities are halves in the products; scores, softmax and sums f32.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlashSpec {
    /// Query heads, a multiple of the key heads.
    pub heads: usize,
    /// Keys and values.
    pub kv: KvLayout,
    /// Factor on scores.
    pub scale: f32,
    /// Tokens back that are seen, the own one included; `None`: all.
    pub window: Option<usize>,
    /// `cap · tanh(s / cap)` on scores.
    pub soft_cap: Option<f32>,
    /// How the work is cut; `None`: the default of the target's family.
    pub tuning: Option<FlashTuning>,
}

impl Eq for FlashSpec {}

impl std::hash::Hash for FlashSpec {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        let floats = (self.scale.to_bits(), self.soft_cap.map(f32::to_bits));
        (self.heads, self.kv, floats, self.window, self.tuning).hash(state);
    }
}

/// How the work is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FlashTuning {
    /// `gpu/flash.hip`: every wave has tokens of its own.
    Waves {
        /// Lanes in a wave.
        wave: u32,
        /// Waves of a block.
        waves: u32,
        /// Times sixteen tokens of a wave.
        tokens: u32,
        /// Keys of a tile.
        keys: u32,
        /// Queries stay in registers.
        hold: bool,
        /// Tiles of keys and values in shared memory: 1 or 2.
        stages: u32,
        /// Blocks that share a result's columns, where one has not the registers for all.
        parts: u32,
    },
    /// `gpu/flash_wgmma.hip` (sm_90a, heads of 64, 80, 96, 128 or 256, keys in halves or bytes): two groups of four warps with 64 tokens
    /// each.
    Groups {
        /// Keys of a tile: 64 or 128; with heads of 256 half of that.
        keys: u32,
    },
}

const NAME: &str = "flash";
const NAME_GROUPS: &str = "flash_wgmma";

/// `(largest head, waves, tokens, keys, stages, parts)`.
type Row = (usize, u32, u32, u32, u32, u32);

/// sm_80 and later. H200, heads of 128: 264 TFLOP/s at 8192 tokens, 287 at 16384 (`gpu/flash_wgmma.hip`: 283 at 2048, 441, 456).
const ROOMY: &[Row] = &[(64, 4, 2, 64, 2, 1), (128, 4, 2, 32, 2, 1), (256, 8, 1, 32, 1, 1)];
/// sm_90: more shared memory.
const ROOMIER: &[Row] = &[(64, 4, 2, 64, 2, 1), (128, 4, 2, 32, 2, 1), (256, 4, 1, 64, 1, 1)];
/// Bytes wait in registers between fetch and store.
const BYTES: &[Row] = &[(64, 4, 2, 64, 2, 1), (128, 8, 1, 32, 2, 1), (256, 4, 1, 32, 1, 1)];
/// sm_75: 64 KB, and products that take more registers.
const TURING: &[Row] = &[(64, 4, 1, 64, 2, 1), (128, 4, 1, 32, 1, 1), (256, 4, 1, 16, 1, 2)];
/// WMMA: 64 KB of LDS; columns are shared where a lane's 256 registers would spill.
const WMMA: &[Row] = &[(128, 4, 1, 32, 1, 1), (256, 4, 1, 16, 1, 4)];
/// MFMA: twice the registers.
const MFMA: &[Row] = &[(128, 4, 1, 32, 1, 1), (256, 4, 1, 16, 1, 1)];
/// Without matrix units: products 32 wide.
const PLAIN: &[Row] = &[(128, 4, 1, 32, 1, 1), (256, 2, 1, 32, 1, 4)];

impl FlashTuning {
    /// The default of `gpu/flash.hip` at a wave width.
    #[must_use]
    pub fn waves(target: &Target, wave: u32, kv: &KvLayout) -> FlashTuning {
        let product = Product::of(target, wave);
        let shared = target.arch().shared_per_block;
        let table = match (target.vendor(), product.columns) {
            (Vendor::Nvidia, _) if shared <= 64 << 10 => TURING,
            (Vendor::Nvidia, _) if kv.storage == KvStorage::Q8_0 => BYTES,
            (Vendor::Nvidia, _) if shared > 160 << 10 => ROOMIER,
            (Vendor::Nvidia, _) => ROOMY,
            (Vendor::Amd, 16) if wave == 64 => MFMA,
            (Vendor::Amd, 16) => WMMA,
            (Vendor::Amd, _) => PLAIN,
        };
        let &(_, waves, tokens, keys, stages, parts) =
            table.iter().find(|r| kv.head_dim <= r.0).unwrap_or(&table[table.len() - 1]);
        // A part has whole blocks of 64 columns.
        let parts = (1..=parts).rev().find(|p| *p == 1 || kv.head_dim.is_multiple_of(64 * *p as usize)).unwrap_or(1);
        FlashTuning::Waves { wave, waves, tokens, keys, hold: false, stages, parts }
    }

    fn default_for(target: &Target, kv: &KvLayout) -> FlashTuning {
        // What fits shared memory, and the registers of those who fill it.
        let keys = match (kv.head_dim, kv.storage) {
            (0..=128, _) => 128,
            (_, KvStorage::Q8_0) => 32,
            _ => 64,
        };
        let groups = FlashTuning::Groups { keys };
        if groups.fits(target, kv) {
            return groups;
        }
        // Bytes of keys and values wait in registers: for heads of 256 and two waves of 32 that is 64 a lane, and without matrix units ROCm 5's
        // compiler then spilled 34 (clang 19: 230 registers). Waves of 64 have half as many: 142.
        let usual = target.default_wave();
        let plain = target.arch().matrix == MatrixUnit::None && target.vendor() == Vendor::Amd;
        let many = kv.head_dim > 128 && kv.storage == KvStorage::Q8_0;
        let wide = plain && many && target.waves().contains(&64);
        FlashTuning::waves(target, if wide { 64 } else { usual }, kv)
    }

    fn fits(&self, target: &Target, kv: &KvLayout) -> bool {
        match *self {
            FlashTuning::Waves { wave, waves, tokens, keys, stages, parts, .. } => {
                target.waves().contains(&wave)
                    && (1..=16).contains(&waves)
                    && waves * wave <= target.arch().max_threads
                    && (1..=2).contains(&tokens)
                    && [16, 32, 64].contains(&keys)
                    && keys.is_multiple_of(Product::of(target, wave).columns)
                    && (1..=2).contains(&stages)
                    && (parts == 1 || parts > 1 && kv.head_dim.is_multiple_of(64 * parts as usize))
            }
            FlashTuning::Groups { keys } => {
                target.arch().matrix == MatrixUnit::Wgmma
                    && [64, 80, 96, 128, 256].contains(&kv.head_dim)
                    && kv.storage != KvStorage::F32
                    && if kv.head_dim > 128 { [32, 64] } else { [64, 128] }.contains(&keys)
                    // Bytes wait in the fillers' registers.
                    && (kv.head_dim <= 128 || kv.storage == KvStorage::F16 || keys == 32)
            }
        }
    }

    /// Tokens of a block.
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
                let scores = if Product::of(target, wave).stays { 0 } else { tokens };
                (blocks * (tokens + (2 * stages * keys) as usize) + scores) * 128
            }
            FlashTuning::Groups { keys } => 1024 + blocks * (tokens + 4 * keys as usize) * 128,
        }
    }

    /// What is worth trying on a device.
    #[must_use]
    pub fn space(target: &Target) -> Vec<FlashTuning> {
        let mut all = vec![];
        for &wave in target.waves() {
            for (waves, tokens) in [(2, 1), (4, 1), (8, 1), (4, 2), (8, 2)] {
                for keys in [16, 32, 64] {
                    for stages in [1, 2] {
                        for hold in [false, true] {
                            all.push(FlashTuning::Waves { wave, waves, tokens, keys, hold, stages, parts: 1 });
                        }
                    }
                }
            }
        }
        all
    }
}

impl FlashSpec {
    /// The tuning in force.
    ///
    /// # Errors
    /// Sizes that are not covered, a tuning that the target cannot run.
    pub fn tuning(&self, target: &Target) -> Result<FlashTuning, SpecError> {
        self.kv.check(NAME)?;
        require(self.heads > 0 && self.heads.is_multiple_of(self.kv.heads), NAME, || {
            format!("{} query heads over {} key heads", self.heads, self.kv.heads)
        })?;
        let t = self.tuning.unwrap_or_else(|| FlashTuning::default_for(target, &self.kv));
        require(t.fits(target, &self.kv), NAME, || format!("{t:?} with heads of {} on {target}", self.kv.head_dim))?;
        Ok(t)
    }

    /// The specialised kernel.
    ///
    /// # Errors
    /// Sizes that are not covered.
    pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        let t = self.tuning(target)?;
        let (entry, file, wave, block) = match t {
            FlashTuning::Waves { wave, waves, .. } => (NAME, "flash.hip", wave, waves * wave),
            FlashTuning::Groups { .. } => (NAME_GROUPS, "flash_wgmma.hip", 32, 384),
        };
        let constants = Product::of(target, wave)
            .constants(self.kv.constants())
            .set("KJ_BLOCK", block)
            .set("HEADS", self.heads as i64)
            .set("SCALE", self.scale)
            .set("SOFT_CAP", self.soft_cap.unwrap_or(0.0))
            .set("WINDOW", self.window.unwrap_or(0).min(1 << 30) as i64);
        let constants = match t {
            FlashTuning::Waves { tokens, keys, hold, stages, parts, .. } => constants
                .set("MI", tokens)
                .set("BK", keys)
                .set("HOLD_Q", i64::from(hold))
                .set("KV_STAGES", stages)
                .set("OUT_PARTS", parts),
            FlashTuning::Groups { keys } => {
                // What 65536 registers leave for each role; bytes wait in the fillers' registers.
                let (fill, multiply) = match (self.kv.storage, keys) {
                    (KvStorage::Q8_0, 128) => (136, 184),
                    (KvStorage::Q8_0, _) => (88, 208),
                    // Chunks of a row are then divided by ten or twelve.
                    _ if !self.kv.head_dim.is_power_of_two() => (56, 224),
                    _ => (40, 232),
                };
                let c = constants.set("BK", keys).set("FILL_REGS", fill).set("MULTIPLY_REGS", multiply);
                c.set("KJ_MIN_BLOCKS", 1)
            }
        };
        let shared = shared_bytes(NAME, target, t.shared(target, &self.kv), 64, "a tuning with fewer keys or waves")?;
        Ok(Kernel {
            source: source(entry, file).entry(entry),
            constants,
            options: Options::wave(wave).arch_specific(entry == NAME_GROUPS),
            entry,
            block,
            shared,
        })
    }

    /// The launch for so many new tokens.
    ///
    /// # Errors
    /// As [`FlashSpec::kernel`].
    pub fn geometry(&self, target: &Target, tokens: u32) -> Result<Geometry, SpecError> {
        let t = self.tuning(target)?;
        let mut g = self.kernel(target)?.launch(1);
        let parts = if let FlashTuning::Waves { parts, .. } = t { parts } else { 1 };
        g.grid = [tokens.div_ceil(t.tokens()).max(1), self.heads as u32, parts];
        Ok(g)
    }
}
