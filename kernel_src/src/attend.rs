//! Attention of one new token per sequence, with everything that comes before it in a layer: `gpu/attend.hip`, on matrix units
//! `gpu/attend_mma.hip`; and the same preparation for a prompt's tokens: `gpu/rope_kv.hip`.

use crate::kernel::{Kernel, SpecError, require, shared_bytes, source};
use crate::kv::{KvLayout, KvStorage};
use crate::product::Product;
use kjit_engine::{Constants, Geometry, MatrixUnit, Options, Target};

/// Which elements of a head turn together, by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RopeForm {
    /// Elements that turn, from the head's start; even, 0 for none.
    pub dims: usize,
    /// Elements `i` and `i + dims/2` turn together; else `2i` and `2i + 1`.
    pub halves: bool,
}

/// The table of rotations that the kernels take: `positions × dims/2` pairs `(cos, sin)` of f32, from angles in f64, as little-endian bytes.
/// `frequencies` are angles per position, `magnitude` a factor on both.
#[must_use]
pub fn angles(frequencies: &[f64], magnitude: f64, positions: usize) -> Vec<f32> {
    let turn = |p: usize, f: f64| {
        let (sin, cos) = (p as f64 * f).sin_cos();
        [(cos * magnitude) as f32, (sin * magnitude) as f32]
    };
    (0..positions).flat_map(|p| frequencies.iter().flat_map(move |&f| turn(p, f))).collect()
}

/// How queries, keys and values of a layer are made ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HeadsForm {
    /// Query heads, a multiple of the key heads.
    pub heads: usize,
    /// Keys and values.
    pub kv: KvLayout,
    /// Heads of queries and keys are RMS-normed first.
    pub qk_norm: bool,
    /// Rotation.
    pub rope: RopeForm,
}

impl HeadsForm {
    fn check(&self, kernel: &'static str) -> Result<(), SpecError> {
        self.kv.check(kernel)?;
        require(self.heads > 0 && self.heads.is_multiple_of(self.kv.heads), kernel, || {
            format!("{} query heads over {} key heads", self.heads, self.kv.heads)
        })?;
        require(self.rope.dims.is_multiple_of(2) && self.rope.dims <= self.kv.head_dim, kernel, || {
            format!("{} of {} elements turn", self.rope.dims, self.kv.head_dim)
        })
    }

    fn constants(&self) -> Constants {
        self.kv
            .constants()
            .set("HEADS", self.heads as i64)
            .set("QK_NORM", i64::from(self.qk_norm))
            .set("ROPE_DIMS", self.rope.dims as i64)
            .set("ROPE_HALVES", i64::from(self.rope.halves))
    }
}

/// Decode attention. Arguments: `q, k, v, q_norm, k_norm, angles, slots, position, keys, values, part, counters, out` (pointers; norms
/// null without), `scale: f32, eps: f32, capacity: u32, splits: u32, sequence_bytes: u64`.
///
/// `q` is `sequences × heads × head_dim` f32 as projected, `k` and `v` `sequences × kv heads × head_dim`; `angles` from [`angles`];
/// `slots` a u32 per sequence, its place (null: sequence `s` has place `s`); `position` a u32 per place (tokens before the new one);
/// `keys`, `values` per [`KvLayout`], place `s` at `s · sequence_bytes`;
/// `part` [`AttendSpec::part_bytes`] of working memory; `counters` [`AttendSpec::counters`] u32, zero before the first launch and after
/// every one; `out` as `q`. The new token's key and value are written to the cache.
///
/// Numerics: f32 throughout; queries are not rounded. On matrix units a query, and a probability, is the sum of two halves: 22 bits of it;
/// with 8-bit keys and values a query is 15 bits of its largest element, a probability times a value's scale a half.
#[derive(Debug, Clone, PartialEq)]
pub struct AttendSpec {
    /// Heads.
    pub form: HeadsForm,
    /// Tokens back that are seen, the new one included; `None`: all.
    pub window: Option<usize>,
    /// `cap · tanh(s / cap)` on scores.
    pub soft_cap: Option<f32>,
    /// How the work is spread; `None`: the default.
    pub tuning: Option<AttendTuning>,
}

impl Eq for AttendSpec {}

impl std::hash::Hash for AttendSpec {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.form, self.window, self.soft_cap.map(f32::to_bits), self.tuning).hash(state);
    }
}

/// How the work is spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttendTuning {
    /// `gpu/attend.hip`, everywhere: a lane has eight elements of a position.
    Lanes {
        /// Lanes in a wave.
        wave: u32,
        /// Threads of a block.
        block: u32,
        /// Positions that a lane takes at a time; a power of two.
        tile: u32,
        /// Blocks launched for each compute unit, over all heads and sequences.
        blocks_per_unit: u32,
    },
    /// `gpu/attend_mma.hip` (sm_80 and later, keys in halves or bytes): sixteen positions at a time through the matrix units.
    Rings {
        /// Waves of a block.
        waves: u32,
        /// Tiles of sixteen positions on their way to each wave.
        stages: u32,
        /// Tiles that are worth a block: shorter contexts have fewer blocks, one where there are less than three times as many.
        least: u32,
        /// Blocks launched for each compute unit, over all heads and sequences.
        blocks_per_unit: u32,
    },
}

const ATTEND: &str = "attend";
const ATTEND_MMA: &str = "attend_mma";

/// `(largest head, waves, stages, least, blocks per unit)`.
type Row = (usize, u32, u32, u32, u32);

/// Halves: measured on an H200 (docs/performance.md).
const RINGS: &[Row] = &[(64, 12, 2, 16, 1), (128, 8, 2, 8, 1), (256, 8, 1, 4, 1)];
/// Bytes: half of the memory, and more work for each byte.
const RINGS_BYTES: &[Row] = &[(64, 12, 2, 16, 1), (128, 8, 2, 8, 1), (256, 8, 1, 4, 1)];
/// What is worth trying: waves, stages, blocks per unit.
const PLACES: [(u32, u32, u32); 10] =
    [(8, 2, 1), (8, 1, 1), (8, 3, 1), (12, 1, 1), (12, 2, 1), (4, 2, 2), (4, 3, 2), (8, 1, 2), (8, 2, 2), (16, 1, 1)];
/// The matrix units' products have sixteen positions.
const POSITIONS: usize = 16;
/// Bytes of shared memory that a kernel declares itself, at most: eight heads of 256 and a rotation in singles, sums.
const FIXED: usize = 14 << 10;

impl AttendTuning {
    /// Blocks launched for each compute unit, over all heads and sequences.
    #[must_use]
    pub const fn blocks_per_unit(&self) -> u32 {
        match *self {
            AttendTuning::Lanes { blocks_per_unit, .. } | AttendTuning::Rings { blocks_per_unit, .. } => {
                blocks_per_unit
            }
        }
    }

    /// What is worth trying on a device; what a shape does not fit is no kernel.
    #[must_use]
    pub fn space(target: &Target) -> Vec<AttendTuning> {
        let mut all = vec![];
        for (waves, stages, blocks_per_unit) in PLACES {
            for least in [4, 8, 16] {
                all.push(AttendTuning::Rings { waves, stages, least, blocks_per_unit });
            }
        }
        for &wave in target.waves() {
            for waves in [2, 4, 8] {
                for tile in [1, 2, 4] {
                    for blocks_per_unit in [1, 2, 3, 4] {
                        // With matrix units the other kernel is twice as fast: one of these shows it.
                        if target.arch().matrix != MatrixUnit::Wgmma || (waves, tile, blocks_per_unit) == (4, 4, 2) {
                            all.push(AttendTuning::Lanes { wave, block: waves * wave, tile, blocks_per_unit });
                        }
                    }
                }
            }
        }
        all
    }

    /// Threads of a block.
    const fn block(&self) -> u32 {
        match *self {
            AttendTuning::Lanes { block, .. } => block,
            AttendTuning::Rings { waves, .. } => 32 * waves,
        }
    }

    /// Bytes of a wave's ring: of tiles of keys and of values.
    fn ring(&self, kv: &KvLayout) -> usize {
        let AttendTuning::Rings { stages, .. } = *self else { return 0 };
        let scales = if kv.storage == KvStorage::Q8_0 { kv.head_dim / kv.group() } else { 0 };
        let side = POSITIONS * kv.row_bytes() + (POSITIONS * scales + scales % 2).div_ceil(2) * 4;
        let side = side.next_multiple_of(128);
        2 * stages as usize * side
    }

    /// Bytes of dynamic shared memory: rings and a tile of queries, from the next multiple of 128 on.
    fn shared(&self, kv: &KvLayout) -> usize {
        let AttendTuning::Rings { waves, .. } = *self else { return 0 };
        128 + waves as usize * self.ring(kv) + kv.head_dim.div_ceil(64) * POSITIONS * 128
    }

    /// The results of `group` heads have room where a wave's ring was: its own, and four elements of a slice for each lane.
    fn results_fit(&self, kv: &KvLayout, group: usize) -> bool {
        group * 4 * kv.head_dim.max(128) <= self.ring(kv)
    }
}

impl AttendSpec {
    /// Query heads that a block computes together: all that share a key head, up to eight.
    fn group(&self) -> usize {
        let all = (self.form.heads / self.form.kv.heads.max(1)).max(1);
        (1..=all.min(8)).rev().find(|g| all.is_multiple_of(*g)).unwrap_or(1)
    }

    /// Lanes that share a position, eight elements each.
    fn lanes(&self) -> usize {
        (self.form.kv.head_dim / 8).next_power_of_two()
    }

    /// The largest tile of `gpu/attend.hip`.
    fn most(&self) -> u32 {
        (self.lanes() / self.group().next_power_of_two()).max(1) as u32
    }

    /// The default of `gpu/attend.hip` at a wave width.
    pub(crate) fn by_lanes(&self, wave: u32) -> AttendTuning {
        let most = self.most().min(4);
        // Singles take twice the registers: at a tile of four AMD's 256 do not suffice.
        let tile = if self.form.kv.storage == KvStorage::F32 { (most / 2).max(1) } else { most };
        AttendTuning::Lanes { wave, block: 4 * wave, tile, blocks_per_unit: 2 }
    }

    /// The default of `gpu/attend_mma.hip`, fitted to the target's shared memory.
    fn by_rings(&self, target: &Target) -> Option<AttendTuning> {
        let table = if self.form.kv.storage == KvStorage::Q8_0 { RINGS_BYTES } else { RINGS };
        let &(_, waves, stages, least, blocks_per_unit) =
            table.iter().find(|r| self.form.kv.head_dim <= r.0).or(table.last())?;
        let fewer = [(waves, stages), (waves.min(4), stages), (waves.min(4), 1), (2, 1)];
        let tries = fewer.map(|(waves, stages)| AttendTuning::Rings { waves, stages, least, blocks_per_unit });
        tries.into_iter().find(|t| self.fits(target, t))
    }

    fn fits(&self, target: &Target, tuning: &AttendTuning) -> bool {
        let block = tuning.block();
        match *tuning {
            AttendTuning::Lanes { wave, block, tile, .. } => {
                target.waves().contains(&wave)
                    && block.is_multiple_of(wave)
                    && (1..=1024).contains(&block)
                    && tile.is_power_of_two()
                    && tile <= self.most()
                    && self.lanes() <= wave as usize
                    && self.group().next_power_of_two() <= self.lanes()
            }
            AttendTuning::Rings { stages, least, .. } => {
                // Asynchronous copies and products of depth sixteen came with sm_80, and more than 64 KB with them.
                let arch = target.arch();
                matches!(arch.matrix, MatrixUnit::MmaSync | MatrixUnit::Wgmma)
                    && arch.shared_per_block > 64 << 10
                    && self.form.kv.storage != KvStorage::F32
                    && block >= (self.form.kv.head_dim / 4) as u32
                    && (32..=512).contains(&block)
                    && (1..=4).contains(&stages)
                    && least > 0
                    && tuning.results_fit(&self.form.kv, self.group())
                    && tuning.shared(&self.form.kv) + FIXED <= arch.shared_per_block as usize
            }
        }
    }

    /// The tuning in force.
    ///
    /// # Errors
    /// Sizes that are not covered.
    pub fn tuning(&self, target: &Target) -> Result<AttendTuning, SpecError> {
        self.form.check(ATTEND)?;
        let t = self.tuning.or_else(|| self.by_rings(target)).unwrap_or_else(|| self.by_lanes(target.default_wave()));
        let fine = self.fits(target, &t) && (1..=64).contains(&t.blocks_per_unit());
        require(fine, ATTEND, || format!("{:?} with {t:?} on {target}", self.form))?;
        Ok(t)
    }

    /// The specialised kernel.
    ///
    /// # Errors
    /// Sizes that are not covered.
    pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        let t = self.tuning(target)?;
        let constants = self
            .form
            .constants()
            .set("KJ_BLOCK", t.block())
            .set("GROUP", self.group() as i64)
            .set("WINDOW", self.window.unwrap_or(0).min(u32::MAX as usize) as i64)
            .set("SOFT_CAP", self.soft_cap.unwrap_or(0.0));
        let (entry, file, wave, constants) = match t {
            AttendTuning::Lanes { wave, tile, .. } => {
                let constants = constants
                    .set("GROUP_P", self.group().next_power_of_two() as i64)
                    .set("LANES", self.lanes() as i64)
                    .set("TILE", tile);
                (ATTEND, "attend.hip", wave, constants)
            }
            AttendTuning::Rings { stages, least, .. } => {
                let constants = Product::of(target, 32).constants(constants).set("STAGES", stages).set("LEAST", least);
                // At more than 128 the queries' registers would be those of the result.
                let constants = constants.set("HOLD_Q", i64::from(self.form.kv.head_dim <= 128));
                // Said, lest the compiler stop at 128 registers and spill one: what must run together has those, at least.
                let together = t.blocks_per_unit().min(512 / t.block()).max(1);
                (ATTEND_MMA, "attend_mma.hip", 32, constants.set("KJ_MIN_BLOCKS", together))
            }
        };
        let hint = "a tuning with fewer waves or stages";
        let shared = shared_bytes(entry, target, t.shared(&self.form.kv), FIXED, hint)?;
        Ok(Kernel {
            source: source(entry, file).entry(entry),
            constants,
            options: Options::wave(wave),
            entry,
            block: t.block(),
            shared,
        })
    }

    /// Slices of the context that a launch on `units` compute units has: also the kernel's argument. As many as all units hold at once: one
    /// block more would have them all wait for it.
    ///
    /// # Errors
    /// As [`AttendSpec::tuning`].
    pub fn splits(&self, target: &Target, units: u32, sequences: u32) -> Result<u32, SpecError> {
        let t = self.tuning(target)?;
        let each = (self.form.heads / self.group()) as u32 * sequences.max(1);
        Ok((units.max(1) * t.blocks_per_unit() / each).clamp(1, 256))
    }

    /// The launch.
    ///
    /// # Errors
    /// As [`AttendSpec::kernel`].
    pub fn geometry(&self, target: &Target, splits: u32, sequences: u32) -> Result<Geometry, SpecError> {
        let mut g = self.kernel(target)?.launch(1);
        g.grid = [splits.max(1), (self.form.heads / self.group()) as u32, sequences.max(1)];
        Ok(g)
    }

    /// Bytes of the working memory.
    #[must_use]
    pub fn part_bytes(&self, splits: u32, sequences: u32) -> usize {
        self.form.heads * splits as usize * sequences as usize * (self.form.kv.head_dim + 4) * 4
    }

    /// Counters (u32).
    #[must_use]
    pub fn counters(&self, sequences: u32) -> usize {
        self.form.heads / self.group() * sequences as usize
    }
}

/// Heads of a prompt's tokens made ready, keys and values written. Arguments: `q, k, v, q_norm, k_norm, angles, position, keys, values,
/// turned` (pointers), `eps: f32, capacity: u32`. `position` is one u32, the first token's; `turned` gets the queries, `tokens × heads ×
/// head_dim`, f32 or f16 (f32 may be `q` itself); all else as for [`AttendSpec`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RopeKvSpec {
    /// Heads.
    pub form: HeadsForm,
    /// Queries come out as halves.
    pub half: bool,
}

const ROPE_KV: &str = "rope_kv";

impl RopeKvSpec {
    const WAVES: u32 = 4;

    /// The specialised kernel.
    ///
    /// # Errors
    /// Sizes that are not covered.
    pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        self.kernel_at(target, target.default_wave())
    }

    pub(crate) fn kernel_at(&self, target: &Target, wave: u32) -> Result<Kernel, SpecError> {
        self.form.check(ROPE_KV)?;
        require(target.waves().contains(&wave), ROPE_KV, || format!("wave {wave} on {target}"))?;
        let block = Self::WAVES * wave;
        Ok(Kernel {
            source: source(ROPE_KV, "rope_kv.hip").entry(ROPE_KV),
            constants: self.form.constants().set("KJ_BLOCK", block).set("Q_HALF", i64::from(self.half)),
            options: Options::wave(wave),
            entry: ROPE_KV,
            block,
            shared: 0,
        })
    }

    /// The launch.
    ///
    /// # Errors
    /// As [`RopeKvSpec::kernel`].
    pub fn geometry(&self, target: &Target, tokens: u32) -> Result<Geometry, SpecError> {
        let mut g = self.kernel(target)?.launch(1);
        g.grid = [tokens.max(1), ((self.form.heads + 2 * self.form.kv.heads) as u32).div_ceil(Self::WAVES), 1];
        Ok(g)
    }
}
