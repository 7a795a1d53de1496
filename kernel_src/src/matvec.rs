//! Matrix × vector: one to three weights with a common input, for one or a few columns of activations. `gpu/matvec.hip`.

use crate::activations::{Column, Prologue};
use crate::format::Format;
use crate::kernel::{Kernel, SpecError, require, shared_bytes, source};
use crate::layout::Layout;
use crate::segments::{Finish, Segment, Segments};
use crate::tuning::families::{self, LANES_WANTED};
use crate::tuning::shipped;
use kjit_engine::arch::Dot;
use kjit_engine::{Constants, Geometry, Options, Target, Vendor};

/// A matrix–vector product. Arguments of the kernel, in order:
/// `x, aux, residual, w0, b0, y0, w1, b1, y1, w2, b2, y2` (pointers, null where there is none), `eps: f32`, `blocks: u32` (the grid's
/// size).
///
/// `x` is `columns × cols` f32 (or prepared columns, [`MatvecSpec::prepared`]); `aux` the norm's weight (`cols` f32) or the GLU's other
/// factor (`columns × cols` f32); weights are row records of [`Layout`]; `b` is f32 per row; `y` and `residual` are `columns × rows`
/// f32.
///
/// Numerics: quantised weights meet 16-bit integer activations (a scale for each 32, error 2⁻¹⁶ of the group's largest) in exact integer
/// dot products; plain weights meet f32 activations. Sums across groups are f32.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MatvecSpec {
    /// Length of a row.
    pub cols: usize,
    /// Columns of activations: 1 to 8.
    pub columns: usize,
    /// What happens to them first.
    pub prologue: Prologue,
    /// `x` has prepared columns (made by [`PrepareSpec`](crate::prepare::PrepareSpec)) instead of f32; then no prologue.
    pub prepared: bool,
    /// The weights.
    pub segments: Vec<Segment>,
    /// The end.
    pub finish: Finish,
    /// How the work is spread; `None`: the default of the target's family.
    pub tuning: Option<MatvecTuning>,
}

/// How the work is spread.
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
    /// Units (see [`Layout::unit`]) of each of those rows that a lane has in flight.
    pub batch: u32,
    /// Blocks launched for each compute unit.
    pub blocks_per_unit: u32,
    /// A block keeps its compute unit to itself, by asking for more than half of the LDS: blocks of the next launch, which may come before
    /// this one has ended, then cannot meet in pairs on the first units that are free.
    pub alone: bool,
}

/// A wave for a row, or half of one where more than four lanes of ten would idle. Wider teams, of up to a block for the few rows of a
/// small model, were 30 to 40 % behind on an H200.
fn nvidia_team(units: usize, wave: u32) -> u32 {
    let team = (units.next_power_of_two() as u32).clamp(1, wave);
    let busy = units as f64 / (units.div_ceil(team as usize) * team as usize) as f64;
    if team > 16 && busy < 0.6 { team / 2 } else { team }
}

/// As many lanes as the matrix gives work for: wider than a wave only when rows are few; narrower, so that fewer idle, when they are plenty.
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
    /// The default for `rows` rows of `units` units of `unit` weights.
    #[must_use]
    pub fn default_for(
        target: &Target,
        columns: usize,
        lists: usize,
        (unit, units): (usize, usize),
        rows: usize,
    ) -> MatvecTuning {
        let (vendor, wide) = (target.vendor(), unit <= 16);
        let family = families::matvec(vendor, wide);
        let wave = target.default_wave();
        let team = match vendor {
            Vendor::Nvidia => nvidia_team(units, wave),
            Vendor::Amd => amd_team(units, rows, wave, family.block),
        };
        let steps = (units as u32).div_ceil(team).max(1);
        let plenty = 4 * rows * team as usize / family.rows as usize >= 3 * LANES_WANTED;
        let shared = if plenty && columns == 1 && lists == 1 { family.rows } else { 1 };
        // Every column takes registers of its own: with four in flight, two columns of Q6_K spilled at 128 registers.
        let batch = (family.flight / (lists * columns) as u32 / shared).clamp(1, steps);
        let (block, blocks_per_unit) = match columns {
            1 => (family.block, family.blocks_per_unit),
            // 64 registers, which a second block of 512 threads leaves each, do not hold several columns,
            2..=4 if vendor == Vendor::Nvidia => (family.block, 1),
            2..=4 => (family.block, family.blocks_per_unit),
            // and 128 not eight of them.
            _ if vendor == Vendor::Nvidia => (256, 2),
            _ => (256, 2 * family.blocks_per_unit),
        };
        MatvecTuning { wave, block, team, rows: shared, batch, blocks_per_unit, alone: false }
    }

    /// Dynamic LDS to ask for where a block uses `bytes` of it.
    pub(crate) fn shared(&self, target: &Target, bytes: usize) -> usize {
        if self.alone { bytes.max(target.arch().unit.shared as usize / 2) } else { bytes }
    }

    pub(crate) fn check(&self, kernel: &'static str, target: &Target) -> Result<(), SpecError> {
        let fine = target.waves().contains(&self.wave)
            && self.team.is_power_of_two()
            && self.team <= self.block
            && self.block.is_multiple_of(self.wave)
            && (self.team <= self.wave || self.block.is_multiple_of(self.team))
            && (1..=1024).contains(&self.block)
            && (1..=8).contains(&self.rows)
            && (1..=8).contains(&self.batch)
            && (1..=64).contains(&self.blocks_per_unit)
            && (!self.alone || self.blocks_per_unit == 1);
        require(fine, kernel, || format!("{self:?} on {target}"))
    }

    /// What `gpu/matvec.h` takes of it and of the target, for so many columns.
    pub(crate) fn constants(&self, target: &Target, columns: usize, constants: Constants) -> Constants {
        let dot4 = match target.arch().dot {
            Dot::None | Dot::Dp4a => 0,
            Dot::Sdot4 => 1,
            Dot::Sudot4 => 2,
        };
        constants
            .set("KJ_BLOCK", self.block)
            .set("KJ_MIN_BLOCKS", self.min_blocks(target, columns))
            .set("KJ_DOT4", dot4)
            .set("COLUMNS", columns as i64)
            .set("TEAM", self.team)
            .set("ROWS", self.rows)
            .set("BATCH", self.batch)
    }

    /// Blocks that must fit a unit together. Told nothing, nvrtc kept 512 threads to 64 registers and spilled for it.
    fn min_blocks(&self, target: &Target, columns: usize) -> u32 {
        // AMD's compiler finds its own balance: four blocks of 256 on a CU would leave a lane 64 registers, and most spill.
        if columns > 4 || target.vendor() == Vendor::Amd {
            return 1;
        }
        self.blocks_per_unit.min((1024 / self.block).max(1)).min(target.arch().unit.waves_per_simd)
    }

    /// Blocks for weights of these numbers of rows, `times` over.
    pub(crate) fn blocks(&self, units: u32, rows: impl IntoIterator<Item = usize>, times: usize) -> u32 {
        let worker = if self.team <= self.wave { self.wave } else { self.block };
        let tile = (worker / self.team * self.rows) as usize;
        let tiles: usize = rows.into_iter().map(|r| r.div_ceil(tile)).sum::<usize>() * times;
        let most = tiles.div_ceil((self.block / worker) as usize).min(1 << 20) as u32;
        most.min(units.max(1).saturating_mul(self.blocks_per_unit)).max(1)
    }
}

const NAME: &str = "matvec";

impl MatvecSpec {
    /// A plain product of one matrix with one column.
    #[must_use]
    pub fn new(format: &'static Format, rows: usize, cols: usize) -> MatvecSpec {
        MatvecSpec {
            cols,
            columns: 1,
            prologue: Prologue::None,
            prepared: false,
            segments: vec![Segment { format, rows, bias: false }],
            finish: Finish::Store,
            tuning: None,
        }
    }

    fn weights(&self) -> Segments<'_> {
        Segments { cols: self.cols, all: &self.segments, finish: self.finish }
    }

    fn check(&self) -> Result<(), SpecError> {
        require((1..=8).contains(&self.columns), NAME, || format!("{} columns, it takes 1 to 8", self.columns))?;
        require(!self.prepared || self.prologue == Prologue::None, NAME, || {
            "prepared columns with a prologue".to_owned()
        })?;
        self.weights().check(NAME, 1)
    }

    /// The form that the activations take: of `prepared` columns, and of those made in the block.
    ///
    /// # Errors
    /// Weights that cannot share one.
    pub fn column(&self) -> Result<Column, SpecError> {
        Column::shared(&self.segments.iter().map(|s| s.format).collect::<Vec<_>>(), self.cols)
    }

    /// The tuning in force.
    ///
    /// # Errors
    /// A weight that cannot be laid out, a tuning that the target cannot run.
    pub fn tuning(&self, target: &Target) -> Result<MatvecTuning, SpecError> {
        self.check()?;
        let (mut units, mut rows) = ((0, 0), 0);
        for s in &self.segments {
            let layout = Layout::new(s.format, self.cols)?;
            // The largest unit decides: it takes the most registers.
            units = (layout.unit().max(units.0), layout.units().max(units.1));
            rows += s.rows;
        }
        let lists = self.weights().lists();
        let default = || MatvecTuning::default_for(target, self.columns, lists, units, rows);
        let t = self.tuning.or_else(|| shipped::choice(self, target)).unwrap_or_else(default);
        t.check(NAME, target)?;
        Ok(t)
    }

    /// The specialised kernel.
    ///
    /// # Errors
    /// A combination that is not covered; activations that do not fit the block's LDS (prepare them instead).
    pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        let tuning = self.tuning(target)?;
        let column = self.column()?;
        let constants = column.constants(self.prologue).set("X_GLOBAL", i64::from(self.prepared));
        let constants = tuning.constants(target, self.columns, constants);
        let (header, constants) = self.weights().render(constants)?;
        let dynamic = tuning.shared(target, if self.prepared { 0 } else { self.columns * column.bytes() });
        let parts = (tuning.block / tuning.wave * tuning.rows) as usize * self.columns * self.weights().lists() * 4;
        let shared = shared_bytes(NAME, target, dynamic, parts + 1024, "prepare the columns in a launch of their own")?;
        Ok(Kernel {
            source: source(NAME, "matvec.hip").file("weights_gen.h", header).entry(NAME),
            constants,
            options: Options::wave(tuning.wave),
            entry: NAME,
            block: tuning.block,
            shared,
        })
    }

    /// Blocks to launch on a device of `units` compute units: also the kernel's last argument.
    ///
    /// # Errors
    /// As [`MatvecSpec::tuning`].
    pub fn blocks(&self, target: &Target, units: u32) -> Result<u32, SpecError> {
        let weights = self.weights();
        Ok(self.tuning(target)?.blocks(units, weights.results().iter().map(|s| s.rows), 1))
    }

    /// The launch on a device of `units` compute units.
    ///
    /// # Errors
    /// As [`MatvecSpec::kernel`].
    pub fn geometry(&self, target: &Target, units: u32) -> Result<Geometry, SpecError> {
        Ok(self.kernel(target)?.launch(self.blocks(target, units)?))
    }

    /// Bytes of weights that it reads.
    ///
    /// # Errors
    /// A weight that cannot be laid out.
    pub fn weight_bytes(&self) -> Result<usize, SpecError> {
        self.weights().bytes(1)
    }

    /// Whether the activations fit the block's LDS, or have to be prepared.
    #[must_use]
    pub fn fits(&self, target: &Target) -> bool {
        self.kernel(target).is_ok()
    }
}
