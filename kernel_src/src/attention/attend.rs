//! Attention of one new token per sequence, including normalisation, rotation and the cache:
//! `gpu/attend.h`, on matrix units `gpu/attend_mma.h`.

mod tuning;

pub use tuning::AttendTuning;
use tuning::{RINGS, RINGS_BYTES};

use crate::attention::heads::{HeadsForm, Scores};
use crate::attention::kv::{KvLayout, KvStorage};
use crate::vocabulary::arguments::{Declared, arguments, with_table};
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require, shared_bytes};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::mma::Product;
use crate::vocabulary::shape::Shape;
use crate::vocabulary::step::{Step, StepContext, packets};
use crate::vocabulary::variant::choice;
use kjit_engine::{Constants, MatrixUnit, Target, Vendor};
use std::fmt;

/// Decode attention: normalises and rotates heads, writes the new token's key and value to the
/// cache, and attends to the cache.
///
/// Numerics: f32 throughout; queries are not rounded. On matrix units a query, and a probability,
/// is the sum of two f16, so 22 bits of it count. With 8-bit keys and values a query has 15 bits
/// relative to its largest element, and a probability times a value's scale is f16.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AttendSpec {
    /// Layout, norms and rotation of the heads.
    pub form: HeadsForm,
    /// Options of the scores.
    pub scores: Scores,
    /// The division of the work; `None`: the default.
    pub tuning: Option<AttendTuning>,
}

arguments! {
    /// The arguments of decode attention.
    AttendArgs {
        /// `sequences × heads × head_dim` f32, as projected.
        q: Pointer,
        /// `sequences × kv heads × head_dim` f32; null, like `v`, if they are already in the cache.
        k: Pointer,
        /// As `k`.
        v: Pointer,
        /// `head_dim` f32, or null.
        q_norm: Pointer,
        /// As `q_norm`.
        k_norm: Pointer,
        /// An f32 score for each head, or null.
        sinks: Pointer,
        /// Cosines and sines from [`angles`](crate::heads::angles).
        angles: Pointer,
        /// A u32 per sequence, its slot; null: sequence `s` has slot `s`.
        slots: Pointer,
        /// A u32 per slot: tokens before the new one.
        position: Pointer,
        /// Keys in the layout [`KvLayout`], slot `s` at `s · sequence_bytes`.
        keys: Pointer,
        /// Values, as `keys`.
        values: Pointer,
        /// [`AttendSpec::part_bytes`] of working memory.
        part: Pointer,
        /// [`AttendSpec::counters`] u32, zero before the first launch and after each launch.
        counters: Pointer,
        /// As `q`.
        out: Pointer,
        /// Factor on scores.
        scale: F32,
        /// Epsilon of the norms.
        eps: F32,
        /// Number of positions of a slot.
        capacity: U32,
        /// Number of slices of the context.
        splits: U32,
        /// Distance of slots in `keys` and `values`, in bytes; 0 with pages.
        sequence_bytes: U64,
        /// A u32 for each [`PAGE`](crate::kv::PAGE) positions of a sequence, slot after slot; only
        /// with pages.
        table: Pointer,
    }
}

const NAME: &str = "attend";
const MMA: &str = "attend_mma";
const WIDE: &str = "attend_wide";

/// Most bytes of static shared memory: eight heads of 256 and a rotation in f32, sums.
const FIXED: usize = 14 << 10;
/// Largest head whose results fit in the registers of the other two kernels.
const NARROW: usize = 256;
/// Most bytes of tiles and queries in a persistent kernel with streamed weights: they reduce the
/// ring of weights.
const BESIDE_WEIGHTS: usize = 72 << 10;

impl AttendSpec {
    /// Query heads that a block computes together: all heads that share a key head, up to eight; up
    /// to four if heads are wide.
    fn group(&self) -> usize {
        let all = (self.form.heads / self.form.kv.heads.max(1)).max(1);
        (1..=all.min(if self.wide() { 4 } else { 8 }))
            .rev()
            .find(|g| all.is_multiple_of(*g))
            .unwrap_or(1)
    }

    /// Whether heads are too wide for registers.
    const fn wide(&self) -> bool {
        self.form.kv.head_dim > NARROW
    }

    /// Lanes that share a position, eight elements each.
    fn lanes(&self) -> usize {
        (self.form.kv.head_dim / 8).next_power_of_two()
    }

    /// The largest tile of `gpu/attend.h`.
    fn most(&self) -> u32 {
        (self.lanes() / self.group().next_power_of_two()).max(1) as u32
    }

    /// The default of `gpu/attend.h` at a wave width.
    #[must_use]
    pub fn by_lanes(&self, wave: u32) -> AttendTuning {
        let most = self.most().min(4);
        // f32 takes twice as many registers: AMD's 256 are too few for a tile of four.
        let tile = if self.form.kv.storage == KvStorage::F32 { (most / 2).max(1) } else { most };
        AttendTuning::Lanes { wave, block: 4 * wave, tile, blocks_per_unit: 2 }
    }

    /// The default of `gpu/attend_mma.h`, fitted to the target's shared memory.
    fn ring_default(&self, target: &Target) -> Option<AttendTuning> {
        let table = if self.form.kv.storage == KvStorage::Q8_0 { RINGS_BYTES } else { RINGS };
        let &(_, waves, stages, least, blocks_per_unit) =
            table.iter().find(|r| self.form.kv.head_dim <= r.0).or(table.last())?;
        let fewer = [(waves, stages), (waves.min(4), stages), (waves.min(4), 1), (2, 1)];
        let tries = fewer.map(|(waves, stages)| AttendTuning::Rings {
            waves,
            stages,
            least,
            blocks_per_unit,
        });
        tries.into_iter().find(|t| self.fits(target, t))
    }

    fn fits(&self, target: &Target, tuning: &AttendTuning) -> bool {
        let block = tuning.block();
        if self.wide() != matches!(tuning, AttendTuning::Wide { .. }) {
            return false;
        }
        match *tuning {
            AttendTuning::Wide { wave, .. } => target.waves().contains(&wave),
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
                // sm_80 has asynchronous copies, products of depth sixteen, and more than 64 KB of
                // shared memory.
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

    /// Blocks that share the work of one launch block if all steps of a token are one kernel with a
    /// ring of weights. Each has some of the heads, so the next step waits less (an H100, 8b
    /// Q4_K_M: 534 tokens/s with one, 543 with two, 544 with four). At long contexts each block has
    /// all heads; split heads would read keys several times (16,384 positions: 358, 360, and 315
    /// with split heads).
    fn parts(&self) -> usize {
        let (group, dim) = (self.group(), self.form.kv.head_dim);
        let fits = |n: &usize| {
            group.is_multiple_of(*n) && (group / n * dim).is_multiple_of(packets::GROUP)
        };
        [4, 2].into_iter().find(fits).unwrap_or(1)
    }

    /// Number of blocks that share the heads of a sequence.
    #[must_use]
    pub fn groups(&self) -> u32 {
        (self.form.heads / self.group()) as u32
    }

    /// Slices of the context on `units` compute units: as many as can be resident together, because
    /// one more block would delay the launch.
    fn splits(&self, tuning: &AttendTuning, units: u32, sequences: u32) -> u32 {
        (units.max(1) * tuning.blocks_per_unit() / (self.groups() * sequences.max(1))).clamp(1, 256)
    }

    /// `hold`: queries of small heads stay in registers. `blocks`: number of blocks that share a
    /// group of heads.
    fn shape(&self, tuning: &AttendTuning, hold: bool, blocks: usize) -> Shape {
        let shape = self.scores.shape(self.form.shape().number("GROUP", self.group()));
        match *tuning {
            AttendTuning::Lanes { tile, .. } => {
                let shape = shape.number("GROUP_P", self.group().next_power_of_two());
                shape.number("LANES", self.lanes()).number("TILE", tile)
            }
            AttendTuning::Rings { stages, least, .. } => {
                // Above 128 the queries would need the registers of the result.
                let hold = hold && self.form.kv.head_dim <= 128;
                let shape =
                    shape.number("STAGES", stages).number("LEAST", least).flag("HOLD_Q", hold);
                shape.number("BLOCKS", blocks)
            }
            AttendTuning::Wide { .. } => shape,
        }
    }

    /// Bytes of the working memory.
    #[must_use]
    pub fn part_bytes(&self, splits: u32, sequences: u32) -> usize {
        self.form.heads * splits as usize * sequences as usize * (self.form.kv.head_dim + 4) * 4
    }

    /// Number of counters (u32): one for each block of heads, for any number of heads in a block.
    #[must_use]
    pub fn counters(&self, sequences: u32) -> usize {
        self.form.heads * sequences as usize
    }
}

impl Family for AttendSpec {
    const NAME: &'static str = NAME;
    type Args<A> = AttendArgs<A>;
    choice!(AttendTuning);

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.form, self.scores)
    }

    fn usual(&self, target: &Target) -> Result<AttendTuning, SpecError> {
        self.form.check(NAME)?;
        if self.wide() {
            return Ok(AttendTuning::Wide { wave: target.default_wave(), blocks_per_unit: 1 });
        }
        Ok(self.ring_default(target).unwrap_or_else(|| self.by_lanes(target.default_wave())))
    }

    fn check(&self, target: &Target, t: &AttendTuning) -> Result<(), SpecError> {
        self.form.check(NAME)?;
        self.scores.check(NAME)?;
        let fine = self.fits(target, t) && (1..=64).contains(&t.blocks_per_unit());
        require(fine, NAME, || {
            format!("{:?} with tuning {t:?} is not supported on {target}", self.form)
        })
    }

    fn candidates(&self, target: &Target) -> Vec<AttendTuning> {
        AttendTuning::all(target)
    }

    fn block(&self, target: &Target, t: &AttendTuning) -> Result<Block, SpecError> {
        let wave = match *t {
            AttendTuning::Lanes { wave, .. } | AttendTuning::Wide { wave, .. } => wave,
            AttendTuning::Rings { .. } => 32,
        };
        let hint = "use a tuning with fewer waves or stages";
        let shared = shared_bytes(NAME, target, t.shared(&self.form.kv), FIXED, hint)?;
        Ok(Block { wave, threads: t.block(), shared })
    }

    fn render(&self, target: &Target, t: &AttendTuning, block: Block) -> Result<Kernel, SpecError> {
        let shape = self.shape(t, true, 1);
        let (entry, macros) = match *t {
            AttendTuning::Lanes { .. } => (NAME, Constants::new()),
            // Explicit, since otherwise nvrtc stops at 128 registers: two spilled on sm_90.
            AttendTuning::Wide { .. } if target.vendor() == Vendor::Nvidia => {
                (WIDE, Constants::new().set("KJ_MIN_BLOCKS", 1))
            }
            AttendTuning::Wide { .. } => (WIDE, Constants::new()),
            AttendTuning::Rings { .. } => {
                // Explicit, since otherwise the compiler stops at 128 registers and spills one.
                // Minimum of concurrent blocks.
                let together = t.blocks_per_unit().min(512 / block.threads).max(1);
                (MMA, Product::of(target, 32).macros().set("KJ_MIN_BLOCKS", together))
            }
        };
        let macros = KvLayout::macros(self.form.paged, macros);
        Ok(Kernel {
            shared: block.shared,
            ..of_shape(entry, &shape, macros, block.wave, block.threads)
        })
    }

    fn declared(&self) -> &'static [Declared] {
        with_table::<AttendArgs<()>>(self.form.paged)
    }

    fn inside(&self, target: &Target, inside: StepContext) -> Result<Step, SpecError> {
        let StepContext { wave, threads, streams, sequences, .. } = inside;
        let usual = self.usual(target)?;
        let tries: Vec<AttendTuning> = match usual {
            // Next to the ring of weights only a few tiles fit.
            AttendTuning::Rings { least, stages, .. } => (1..=stages)
                .rev()
                .map(|stages| AttendTuning::Rings {
                    waves: threads / 32,
                    stages,
                    least,
                    blocks_per_unit: 1,
                })
                .filter(|t| !streams || t.shared(&self.form.kv) <= BESIDE_WEIGHTS)
                .collect(),
            // A tile of four needs all registers of a lane on gfx1100.
            AttendTuning::Lanes { .. } => [2, 4]
                .map(|part| AttendTuning::Lanes {
                    wave,
                    block: threads,
                    tile: (self.most().min(4) / part).max(1),
                    blocks_per_unit: 1,
                })
                .to_vec(),
            AttendTuning::Wide { .. } => vec![],
        };
        let fitting = tries.into_iter().find(|t| self.fits(target, t));
        let none = || SpecError::Unsupported {
            kernel: NAME,
            why: format!(
                "heads of {} and the weights of a persistent kernel do not fit in shared memory",
                self.form.kv.head_dim
            ),
        };
        let t = fitting.ok_or_else(none)?;
        let (header, lds, call) = match t {
            AttendTuning::Wide { .. } => return Err(none()),
            AttendTuning::Lanes { .. } => (
                "attend.h",
                "Attend<S>::Shared",
                "Meeting::wait(); Attend<S>::step(a, share, lds);",
            ),
            AttendTuning::Rings { .. } => {
                let call = "AttendMma<S>::step(a, share, pool, lds, HandedBefore<S>{links});";
                ("attend_mma.h", "AttendMma<S>::Shared", call)
            }
        };
        let parts = match t {
            AttendTuning::Rings { .. } if streams => self.parts(),
            _ => 1,
        };
        // With queries in registers the kernel of many steps spilled on sm_90.
        let shape = self.shape(&t, false, parts).number("SEQUENCES", sequences);
        let step = Step::of(header, "AttendArgs", call, shape);
        let values = self.form.heads * self.form.kv.head_dim;
        let hands = (streams && values.is_multiple_of(packets::GROUP))
            .then_some(("out", values * sequences));
        let rings = matches!(t, AttendTuning::Rings { .. });
        let all = (self.form.heads + 2 * self.form.kv.heads) * self.form.kv.head_dim * sequences;
        let takes_values = (streams && rings && !self.form.kept_before).then_some(all);
        Ok(Step {
            lds: Some(lds),
            pool: t.shared(&self.form.kv) as u32,
            hands,
            takes_values,
            parts: parts as u32,
            apart: streams && self.form.qk_norm,
            paged: self.form.paged,
            ..step
        })
    }

    fn grid(
        &self,
        _: &Target,
        t: &AttendTuning,
        units: u32,
        size: Size,
    ) -> Result<Grid, SpecError> {
        let sequences = size.tokens.max(1) as u32;
        let splits = self.splits(t, units, sequences);
        let grid = Grid::of([splits, self.groups(), sequences]).number("splits", splits);
        Ok(grid
            .memory("part", self.part_bytes(splits, sequences))
            .counters("counters", self.counters(sequences)))
    }

    fn work(&self, Size { tokens, past }: Size) -> Work {
        let seen = past + 1 - self.scores.seen_from(past);
        let HeadsForm { heads, kv, .. } = self.form;
        // Inputs and results of the new tokens are f32.
        let ends = 4 * kv.head_dim * (2 * heads + 2 * kv.heads);
        let cached = 2 * kv.bytes(seen).unwrap_or(0);
        let operations = 4 * seen * heads * kv.head_dim;
        Work { bytes: (tokens * (cached + ends)) as u64, operations: (tokens * operations) as u64 }
    }
}
