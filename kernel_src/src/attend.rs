//! Attention of one new token per sequence, with everything that comes before it in a layer: `gpu/attend.hip`; and the same
//! preparation for a prompt's tokens: `gpu/rope_kv.hip`.

use crate::kernel::{Kernel, SpecError, require, source};
use crate::kv::{KvLayout, KvStorage};
use kjit_engine::{Constants, Geometry, Options, Target};

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
/// Numerics: f32 throughout; queries are not rounded.
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
pub struct AttendTuning {
    /// Lanes in a wave.
    pub wave: u32,
    /// Threads of a block.
    pub block: u32,
    /// Positions that a lane takes at a time; a power of two.
    pub tile: u32,
    /// Blocks launched for each compute unit, over all heads and sequences.
    pub blocks_per_unit: u32,
}

const ATTEND: &str = "attend";

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

    /// The tuning in force.
    ///
    /// # Errors
    /// Sizes that are not covered.
    pub fn tuning(&self, target: &Target) -> Result<AttendTuning, SpecError> {
        self.form.check(ATTEND)?;
        let wave = target.default_wave();
        let most = (self.lanes() / self.group().next_power_of_two()).max(1) as u32;
        // Singles take twice the registers: at a tile of four AMD's 256 do not suffice.
        let tile = if self.form.kv.storage == KvStorage::F32 { (most.min(4) / 2).max(1) } else { most.min(4) };
        let t = self.tuning.unwrap_or(AttendTuning { wave, block: 4 * wave, tile, blocks_per_unit: 2 });
        let fine = target.waves().contains(&t.wave)
            && t.block.is_multiple_of(t.wave)
            && (1..=1024).contains(&t.block)
            && t.tile.is_power_of_two()
            && t.tile <= most
            && (1..=64).contains(&t.blocks_per_unit)
            && self.lanes() <= t.wave as usize
            && self.group().next_power_of_two() <= self.lanes();
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
            .set("KJ_BLOCK", t.block)
            .set("GROUP", self.group() as i64)
            .set("GROUP_P", self.group().next_power_of_two() as i64)
            .set("LANES", self.lanes() as i64)
            .set("TILE", t.tile)
            .set("WINDOW", self.window.unwrap_or(0).min(u32::MAX as usize) as i64)
            .set("SOFT_CAP", self.soft_cap.unwrap_or(0.0));
        Ok(Kernel {
            source: source(ATTEND, "attend.hip").entry(ATTEND),
            constants,
            options: Options::wave(t.wave),
            entry: ATTEND,
            block: t.block,
            shared: 0,
        })
    }

    /// Slices of the context that a launch on `units` compute units has: also the kernel's argument.
    ///
    /// # Errors
    /// As [`AttendSpec::tuning`].
    pub fn splits(&self, target: &Target, units: u32, sequences: u32) -> Result<u32, SpecError> {
        let t = self.tuning(target)?;
        let each = (self.form.heads / self.group()) as u32 * sequences.max(1);
        Ok((units.max(1) * t.blocks_per_unit).div_ceil(each).clamp(1, 256))
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
        self.form.heads * splits as usize * sequences as usize * (self.form.kv.head_dim + 2) * 4
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
