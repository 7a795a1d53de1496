//! Tunings of products with vectors, also of those through chosen experts.

use crate::vocabulary::kernel::{SpecError, require};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::Variant;
use kjit_engine::arch::Dot;
use kjit_engine::{Constants, Target, Vendor};

/// The division of the work among lanes and blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatvecTuning {
    /// Lanes in a wave.
    pub wave: u32,
    /// Threads of a block.
    pub block: u32,
    /// Lanes that share a row, a power of two up to `block`.
    pub team: u32,
    /// Rows that a team computes together.
    pub rows: u32,
    /// Units (see [`Layout::unit`](crate::layout::Layout::unit)) of each of those rows that a lane
    /// has in flight.
    pub in_flight: u32,
    /// Blocks launched for each compute unit.
    pub blocks_per_unit: u32,
    /// A block has its compute unit alone: it requests more than half of the LDS. Then blocks of
    /// the next launch, which may start before this one has ended, cannot share the first free
    /// compute units.
    pub alone: bool,
}

impl Variant for MatvecTuning {}

/// The defaults of a vendor's cards, for all sizes.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// Vendor of the cards.
    pub vendor: Vendor,
    /// True: for weights whose unit is little more than the 16 bytes of its codes (plain elements,
    /// 8-bit codes). False: for weights with fewer bits.
    pub wide: bool,
    /// True: for one column and rows that fill the card, on compute units whose SIMDs have a file
    /// of 512 registers, so 1024 threads have 128 each. False: for all other cases.
    pub roomy: bool,
    /// Threads of a block.
    pub block: u32,
    /// Blocks launched for each compute unit.
    pub blocks_per_unit: u32,
    /// Units that a lane has in flight, in total over rows, lists and columns.
    pub in_flight: u32,
    /// Rows that share these units if there are many rows.
    pub rows: u32,
    /// Source of the measurement.
    pub from: &'static str,
}

/// 512 threads on each multiprocessor reached twice the rate of 1024 blocks of 128 on an H200. A
/// second block is faster if a byte needs few instructions, but a fifth slower with 4-bit codes.
/// With 4-bit codes two rows at a time share the reads of the activations. On AMD two units in
/// flight keep a lane below 96 registers on every family, so a SIMD has five waves or more.
///
/// Every block computes the column of activations. On the 304 compute units of an MI300X four
/// blocks of 256 did that 1024 times for 4096 rows: three quarters of all instructions. With a
/// column of 14336 (35 KB of LDS) a compute unit had only one block of four waves. One block of
/// 1024 has as many waves with one column.
pub const STARTS: [Start; 6] = [
    Start {
        vendor: Vendor::Nvidia,
        wide: true,
        roomy: false,
        block: 512,
        blocks_per_unit: 2,
        in_flight: 4,
        rows: 1,
        from: "H200, 2026-11-21",
    },
    Start {
        vendor: Vendor::Nvidia,
        wide: false,
        roomy: false,
        block: 512,
        blocks_per_unit: 1,
        in_flight: 4,
        rows: 2,
        from: "H200, 2026-11-21",
    },
    Start {
        vendor: Vendor::Amd,
        wide: true,
        roomy: false,
        block: 256,
        blocks_per_unit: 4,
        in_flight: 2,
        rows: 1,
        from: "resource counts; not measured on a card",
    },
    Start {
        vendor: Vendor::Amd,
        wide: false,
        roomy: false,
        block: 256,
        blocks_per_unit: 4,
        in_flight: 2,
        rows: 1,
        from: "resource counts; not measured on a card",
    },
    Start {
        vendor: Vendor::Amd,
        wide: true,
        roomy: true,
        block: 1024,
        blocks_per_unit: 1,
        in_flight: 2,
        rows: 1,
        from: "instructions counted on the emulator; not measured on a card",
    },
    Start {
        vendor: Vendor::Amd,
        wide: false,
        roomy: true,
        block: 1024,
        blocks_per_unit: 1,
        in_flight: 2,
        rows: 1,
        from: "instructions counted on the emulator; not measured on a card",
    },
];

/// The start values for a target's cards; `roomy` ones if requested and available.
fn start(target: &Target, wide: bool, roomy: bool) -> &'static Start {
    let [first, ..] = &STARTS;
    let rows = || STARTS.iter().filter(|f| f.vendor == target.vendor() && f.wide == wide);
    let roomy = roomy && takes_1024(target);
    rows().find(|f| f.roomy == roomy).or_else(|| rows().next()).unwrap_or(first)
}

/// Whether 128 registers per lane are enough for a product with one column, and a SIMD has four
/// such waves. Without a byte dot product (if that of the card is wrong) 30 more registers spilled.
pub fn takes_1024(target: &Target) -> bool {
    target.arch().one_register_file() && target.arch().dot == Dot::Sdot4
}

/// Lanes that must work on a matrix to keep the memory system busy (132 SMs × 512).
const LANES_WANTED: usize = 65536;

/// Candidate blocks: threads, blocks per compute unit, alone.
const BLOCKS: [(u32, u32, bool); 6] = [
    (256, 2, false),
    (256, 4, false),
    (512, 1, false),
    (512, 1, true),
    (512, 2, false),
    (1024, 1, false),
];

/// Candidate rows and units in flight.
const LOADS: [(u32, u32); 8] = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (2, 4), (4, 2)];

/// A wave for a row, or half a wave if more than four lanes of ten would idle. Wider teams, up to a
/// block for the few rows of a small model, were 30 to 40 % slower on an H200.
fn nvidia_team(units: usize, wave: u32) -> u32 {
    let team = (units.next_power_of_two() as u32).clamp(1, wave);
    let busy = units as f64 / (units.div_ceil(team as usize) * team as usize) as f64;
    if team > 16 && busy < 0.6 { team / 2 } else { team }
}

/// Number of lanes with work. Teams are wider than a wave only for few rows; for many rows they are
/// narrower, so that fewer lanes idle.
fn amd_team(units: usize, rows: usize, wave: u32, block: u32) -> u32 {
    let widest = (units.next_power_of_two() as u32).clamp(1, block);
    let mut team = widest.min(wave);
    while team < widest && (rows * team as usize) < LANES_WANTED {
        team *= 2;
    }
    let busy = |t: u32| units as f64 / (units.div_ceil(t as usize) * t as usize) as f64;
    while team > 4 && busy(team) < 0.8 && rows * team as usize / 2 >= LANES_WANTED {
        team /= 2;
    }
    team.min(block)
}

impl MatvecTuning {
    /// The default for `rows` rows of `units` units of `unit` weights. `lean`: a lane never has
    /// more than `in_flight` units in flight.
    #[must_use]
    pub fn usual(
        target: &Target,
        columns: usize,
        lists: usize,
        (unit, units): (usize, usize),
        rows: usize,
        lean: bool,
    ) -> MatvecTuning {
        let (vendor, wide) = (target.vendor(), unit <= 16);
        let family = start(target, wide, false);
        let wave = target.default_wave();
        let team = match vendor {
            Vendor::Nvidia => nvidia_team(units, wave),
            Vendor::Amd => amd_team(units, rows, wave, family.block),
        };
        let steps = (units as u32).div_ceil(team).max(1);
        let fills = rows * team as usize >= 2 * LANES_WANTED && team <= wave;
        let family = start(target, wide, lean && columns == 1 && fills);
        let plenty = 4 * rows * team as usize / family.rows as usize >= 3 * LANES_WANTED;
        let shared = if plenty && columns == 1 && lists == 1 { family.rows } else { 1 };
        // Every column needs registers: with four units in flight, two columns of Q6_K spilled at
        // 128 registers.
        let in_flight = (family.in_flight / (lists * columns) as u32 / shared).clamp(1, steps);
        let (block, blocks_per_unit) = match columns {
            1 => (family.block, family.blocks_per_unit),
            // 64 registers (with a second block of 512 threads) are too few for several columns,
            2..=4 if vendor == Vendor::Nvidia => (family.block, 1),
            2..=4 => (family.block, family.blocks_per_unit),
            // and 128 too few for eight.
            _ if vendor == Vendor::Nvidia => (256, 2),
            _ => (256, 2 * family.blocks_per_unit),
        };
        MatvecTuning { wave, block, team, rows: shared, in_flight, blocks_per_unit, alone: false }
    }

    /// Dynamic LDS to request if a block uses `bytes` of it.
    pub(crate) fn shared(&self, target: &Target, bytes: usize) -> usize {
        if self.alone { bytes.max(target.arch().unit.shared as usize / 2) } else { bytes }
    }

    /// Candidates for rows of `units` units; a lane has `times` lists or columns in flight.
    pub(crate) fn candidates(target: &Target, units: usize, times: usize) -> Vec<MatvecTuning> {
        let mut all = vec![];
        for &wave in target.waves() {
            for (block, blocks_per_unit, alone) in BLOCKS {
                if alone && target.vendor() == Vendor::Amd {
                    continue;
                }
                // Narrower teams for rows too short for a wave; wider ones were 30 to 40 % slower
                // on an H200.
                for team in [wave / 4, wave / 2, wave] {
                    let steps = units.div_ceil(team as usize) as u32;
                    if team < wave / 2 && units > wave as usize || team as usize / 2 >= units {
                        continue;
                    }
                    for (rows, in_flight) in LOADS {
                        // At most the units of a row in flight, and at most eight: more was never
                        // best.
                        if in_flight > steps.next_power_of_two()
                            || (rows * in_flight) as usize * times > 8
                        {
                            continue;
                        }
                        let t = MatvecTuning {
                            wave,
                            block,
                            team,
                            rows,
                            in_flight,
                            blocks_per_unit,
                            alone,
                        };
                        all.push(t);
                    }
                }
            }
        }
        all
    }

    pub(crate) fn check(&self, kernel: &'static str, target: &Target) -> Result<(), SpecError> {
        let fine = target.waves().contains(&self.wave)
            && self.team.is_power_of_two()
            && self.team <= self.block
            && self.block.is_multiple_of(self.wave)
            && (self.team <= self.wave || self.block.is_multiple_of(self.team))
            && (1..=1024).contains(&self.block)
            && (1..=8).contains(&self.rows)
            && (1..=8).contains(&self.in_flight)
            && (1..=64).contains(&self.blocks_per_unit)
            && (!self.alone || self.blocks_per_unit == 1);
        require(fine, kernel, || format!("tuning {self:?} is not supported on {target}"))
    }

    /// The constants of `gpu/matvec.h` for `columns` columns.
    pub(crate) fn shape(&self, columns: usize) -> Shape {
        let shape = Shape::new().number("COLUMNS", columns).number("TEAM", self.team);
        shape.number("ROWS", self.rows).number("IN_FLIGHT", self.in_flight)
    }

    /// The macros of the compilation.
    pub(crate) fn macros(&self, target: &Target, columns: usize) -> Constants {
        let dot4 = match target.arch().dot {
            Dot::None | Dot::Dp4a => 0,
            Dot::Sdot4 => 1,
            Dot::Sudot4 => 2,
        };
        Constants::new().set("KJ_MIN_BLOCKS", self.min_blocks(target, columns)).set("KJ_DOT4", dot4)
    }

    /// Blocks that must fit in a compute unit together. Without this bound nvrtc limited 512
    /// threads to 64 registers and spilled.
    fn min_blocks(&self, target: &Target, columns: usize) -> u32 {
        // AMD's compiler decides: with four blocks of 256 on a compute unit a lane has 64
        // registers, and most spill.
        if columns > 4 || target.vendor() == Vendor::Amd {
            return 1;
        }
        self.blocks_per_unit.min((1024 / self.block).max(1)).min(target.arch().unit.waves_per_simd)
    }

    /// Number of blocks for weights with these numbers of rows, `times` times.
    pub(crate) fn blocks(
        &self,
        target: &Target,
        units: u32,
        rows: impl IntoIterator<Item = usize>,
        times: usize,
    ) -> u32 {
        let worker = if self.team <= self.wave { self.wave } else { self.block };
        let tile = (worker / self.team * self.rows) as usize;
        let tiles: usize = rows.into_iter().map(|r| r.div_ceil(tile)).sum::<usize>() * times;
        let full = tiles.div_ceil((self.block / worker) as usize);
        // One block for each compute unit, even if some of its waves have no tile: 4096 rows are 14
        // on each of 304 units, or 16 on 256 of them while the others idle.
        let spread = target.vendor() == Vendor::Amd && self.blocks_per_unit == 1;
        let most =
            if spread { full.max(tiles.min(units as usize)) } else { full }.min(1 << 20) as u32;
        most.min(units.max(1).saturating_mul(self.blocks_per_unit)).max(1)
    }
}
