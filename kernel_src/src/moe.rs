//! Tokens of a prompt grouped by expert, on the device: `gpu/moe.hip`.

use crate::kernel::{Kernel, SpecError, require, source};
use kjit_engine::{Constants, Geometry, Options, Target};

/// The three kernels around products with experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MoeStep {
    /// Arguments: `experts` (u32, `tokens × top`), `counts` (u32 an expert, written), `pairs: u32` = tokens · top.
    Count,
    /// Arguments: `experts, counts, tile_expert` (u32 a tile), `source` (u32 a row), `place` (u32 a pair), `pairs: u32, tiles: u32`.
    /// Writes the last three: the expert of each tile or `u32::MAX`; the token of each row or `u32::MAX`; the row of each pair.
    Place,
    /// Arguments: `y` (rows × cols f32), `place, shares` (f32 a pair), `residual` (tokens × cols f32, or null), `out` (may be `residual`):
    /// `out[t] = residual[t] + Σ shares[t, s] · y[place[t, s]]`.
    Sum,
}

/// Experts of a layer, for prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MoeSpec {
    /// Experts.
    pub experts: usize,
    /// Experts that a token has.
    pub top: usize,
    /// Tokens of a tile: [`GemmTuning::tokens`](crate::gemm::GemmTuning::tokens) of the products.
    pub tile: usize,
    /// Length of the rows that are summed.
    pub cols: usize,
}

const NAME: &str = "moe";
const BLOCK: u32 = 256;

impl MoeSpec {
    /// Tiles that `tokens` tokens need at most: every expert may leave one not full.
    #[must_use]
    pub const fn tiles(&self, tokens: usize) -> usize {
        let pairs = tokens * self.top;
        let spread = (pairs + self.experts * (self.tile - 1)) / self.tile;
        if pairs < spread { pairs } else { spread }
    }

    /// Rows of the gathered activations.
    #[must_use]
    pub const fn rows(&self, tokens: usize) -> usize {
        self.tiles(tokens) * self.tile
    }

    /// A specialised kernel.
    ///
    /// # Errors
    /// Sizes that are not covered.
    pub fn kernel(&self, step: MoeStep, target: &Target) -> Result<Kernel, SpecError> {
        self.kernel_at(step, target, target.default_wave())
    }

    pub(crate) fn kernel_at(&self, step: MoeStep, target: &Target, wave: u32) -> Result<Kernel, SpecError> {
        let fine = (1..=4096).contains(&self.experts)
            && (1..=self.experts.min(64)).contains(&self.top)
            && self.tile > 0
            && self.cols > 0
            && target.waves().contains(&wave);
        require(fine, NAME, || format!("{self:?} at wave {wave} on {target}"))?;
        let entry = match step {
            MoeStep::Count => "moe_count",
            MoeStep::Place => "moe_place",
            MoeStep::Sum => "moe_sum",
        };
        let constants = Constants::new()
            .set("KJ_BLOCK", BLOCK)
            .set("EXPERTS", self.experts as i64)
            .set("TOP", self.top as i64)
            .set("BM", self.tile as i64)
            .set("COLS", self.cols as i64);
        Ok(Kernel {
            source: source(NAME, "moe.hip").entry("moe_count").entry("moe_place").entry("moe_sum"),
            constants,
            options: Options::wave(wave),
            entry,
            block: BLOCK,
            shared: 0,
        })
    }

    /// The launch.
    ///
    /// # Errors
    /// As [`MoeSpec::kernel`].
    pub fn geometry(&self, step: MoeStep, target: &Target, tokens: u32) -> Result<Geometry, SpecError> {
        let blocks = if step == MoeStep::Sum { tokens } else { self.experts as u32 };
        Ok(self.kernel(step, target)?.launch(blocks))
    }
}
