//! Experts: routing (`gpu/route.hip`), their matrices (`gpu/experts.hip`), the weighted sum (`gpu/expert_sum.hip`).

use crate::activations::{Column, Prologue};
use crate::format::Format;
use crate::kernel::{Kernel, SpecError, require, shared_bytes, source};
use crate::layout::Layout;
use crate::matvec::MatvecTuning;
use crate::render::weights_struct;
use crate::tuning::shipped;
use kjit_engine::{Constants, Geometry, Options, Target};

/// Chooses experts. Arguments: `scores, experts, shares` (pointers), `scale: f32`. `scores` is `tokens × experts` f32; out come `experts`,
/// `tokens × top` u32 in falling order of score (the lower index first among equals), and `shares`, their softmax, f32, times `scale`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RouteSpec {
    /// Experts there are, up to 1024.
    pub experts: usize,
    /// Experts chosen, up to 32.
    pub top: usize,
    /// Shares of the chosen sum to one before `scale`.
    pub renormalise: bool,
}

impl RouteSpec {
    /// The specialised kernel.
    ///
    /// # Errors
    /// Counts that are not covered.
    pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        self.kernel_at(target, target.default_wave())
    }

    pub(crate) fn kernel_at(&self, target: &Target, wave: u32) -> Result<Kernel, SpecError> {
        let fine = (1..=1024).contains(&self.experts) && (1..=self.experts.min(32)).contains(&self.top);
        require(fine && target.waves().contains(&wave), "route", || {
            format!("{} of {} experts at wave {wave}: up to 32 of 1024 are covered", self.top, self.experts)
        })?;
        Ok(Kernel {
            source: source("route", "route.hip").entry("route"),
            constants: Constants::new()
                .set("KJ_BLOCK", wave)
                .set("EXPERTS", self.experts as i64)
                .set("TOP", self.top as i64)
                .set("RENORMALISE", i64::from(self.renormalise)),
            options: Options::wave(wave),
            entry: "route",
            block: wave,
            shared: 0,
        })
    }

    /// The launch.
    ///
    /// # Errors
    /// As [`RouteSpec::kernel`].
    pub fn geometry(&self, target: &Target, tokens: u32) -> Result<Geometry, SpecError> {
        Ok(self.kernel(target)?.launch(tokens))
    }
}

/// `out = residual + Σ shares · x` over slots. Arguments: `x, shares, residual, out` (pointers). `x` is `tokens × top × cols` f32, `shares`
/// `tokens × top`, `residual` and `out` `tokens × cols` (may be the same).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExpertSumSpec {
    /// Width of a row.
    pub cols: usize,
    /// Slots.
    pub top: usize,
    /// A residual is added.
    pub residual: bool,
}

impl ExpertSumSpec {
    const BLOCK: u32 = 128;

    /// The specialised kernel.
    ///
    /// # Errors
    /// None at present; the signature is that of all families.
    pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        Ok(Kernel {
            source: source("expert_sum", "expert_sum.hip").entry("expert_sum"),
            constants: Constants::new()
                .set("KJ_BLOCK", Self::BLOCK)
                .set("COLS", self.cols as i64)
                .set("TOP", self.top as i64)
                .set("RESIDUAL", i64::from(self.residual)),
            options: Options::wave(target.default_wave()),
            entry: "expert_sum",
            block: Self::BLOCK,
            shared: 0,
        })
    }

    /// The launch.
    ///
    /// # Errors
    /// As [`ExpertSumSpec::kernel`].
    pub fn geometry(&self, target: &Target, tokens: u32) -> Result<Geometry, SpecError> {
        let mut g = self.kernel(target)?.launch((self.cols as u32).div_ceil(Self::BLOCK));
        g.grid[1] = tokens.max(1);
        Ok(g)
    }
}

/// What happens to the rows' results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExpertFinish {
    /// `y[t, slot]`.
    Store,
    /// `silu(first matrix) · second`, per slot.
    Silu,
    /// `gelu(first matrix) · second`, per slot.
    Gelu,
    /// `y[t] = Σ shares · rows` over slots, plus a residual.
    Sum {
        /// With a residual.
        residual: bool,
    },
}

/// Matrix × vector through chosen experts. Arguments: `x, aux, experts, shares, residual, w0, w1, y` (pointers, null where there is
/// none), `eps: f32, blocks: u32` (the grid's size). See `gpu/experts.hip` for their shapes. All experts' matrices have one format and
/// size; numerics as for [`MatvecSpec`](crate::matvec::MatvecSpec).
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertsSpec {
    /// Format of the matrices.
    pub format: &'static Format,
    /// Rows of one matrix.
    pub rows: usize,
    /// Length of a row.
    pub cols: usize,
    /// Tokens: 1 to 32.
    pub tokens: usize,
    /// Chosen experts of each.
    pub top: usize,
    /// `x` has a row for each slot, not one for each token.
    pub per_slot: bool,
    /// What happens to activations first.
    pub prologue: Prologue,
    /// `x` has prepared columns; then no prologue.
    pub prepared: bool,
    /// The end.
    pub finish: ExpertFinish,
    /// How the work is spread; `None`: the default.
    pub tuning: Option<MatvecTuning>,
}

impl Eq for ExpertsSpec {}

impl std::hash::Hash for ExpertsSpec {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.format.ggml_id, self.rows, self.cols, self.tokens, self.top, self.per_slot).hash(state);
        (self.prologue, self.prepared, self.finish, self.tuning).hash(state);
    }
}

const NAME: &str = "experts";

impl ExpertsSpec {
    fn gated(&self) -> bool {
        matches!(self.finish, ExpertFinish::Silu | ExpertFinish::Gelu)
    }

    fn sums(&self) -> bool {
        matches!(self.finish, ExpertFinish::Sum { .. })
    }

    /// The form of the activations.
    ///
    /// # Errors
    /// Sizes that are not covered.
    pub fn column(&self) -> Result<Column, SpecError> {
        Column::shared(&[self.format], self.cols)
    }

    /// Columns of activations.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.tokens * if self.per_slot { self.top } else { 1 }
    }

    /// The tuning in force.
    ///
    /// # Errors
    /// Sizes that are not covered, a tuning that the target cannot run.
    pub fn tuning(&self, target: &Target) -> Result<MatvecTuning, SpecError> {
        let fine = (1..=32).contains(&self.tokens) && (1..=32).contains(&self.top) && (1..1 << 24).contains(&self.rows);
        require(fine, NAME, || format!("{} tokens × {} experts of {} rows", self.tokens, self.top, self.rows))?;
        require(!self.prepared || self.prologue == Prologue::None, NAME, || {
            "prepared columns with a prologue".to_owned()
        })?;
        let layout = Layout::new(self.format, self.cols)?;
        let lists = if self.gated() { 2 } else { 1 };
        let rows = self.rows * self.tokens * if self.sums() { 1 } else { self.top };
        let units = (layout.unit(), layout.units());
        let default = || MatvecTuning::default_for(target, 1, lists, units, rows);
        let t = self.tuning.or_else(|| shipped::choice(self, target)).unwrap_or_else(default);
        t.check(NAME, target)?;
        Ok(t)
    }

    /// The specialised kernel.
    ///
    /// # Errors
    /// A combination that is not covered; activations that do not fit the block's LDS (prepare them instead).
    pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        let t = self.tuning(target)?;
        let column = self.column()?;
        let constants = t
            .constants(target, 1, column.constants(self.prologue))
            .set("TOKENS", self.tokens as i64)
            .set("TOP", self.top as i64)
            .set("ROWS_0", self.rows as i64)
            .set("X_PER_SLOT", i64::from(self.per_slot))
            .set("X_GLOBAL", i64::from(self.prepared))
            .set(
                "GLU",
                match self.finish {
                    ExpertFinish::Silu => 1,
                    ExpertFinish::Gelu => 2,
                    ExpertFinish::Store | ExpertFinish::Sum { .. } => 0,
                },
            )
            .set("SUM", i64::from(self.sums()))
            .set("RESIDUAL", i64::from(self.finish == ExpertFinish::Sum { residual: true }));
        let dynamic = t.shared(target, if self.prepared { 0 } else { self.columns() * column.bytes() });
        let fixed = (t.block / t.wave * t.rows) as usize * 8 + 1024;
        let shared = shared_bytes(NAME, target, dynamic, fixed, "prepare the columns in a launch of their own")?;
        let header = weights_struct("Run0", &Layout::new(self.format, self.cols)?);
        Ok(Kernel {
            source: source(NAME, "experts.hip").file("weights_gen.h", header).entry(NAME),
            constants,
            options: Options::wave(t.wave),
            entry: NAME,
            block: t.block,
            shared,
        })
    }

    /// Blocks to launch on a device of `units` compute units: also the kernel's last argument.
    ///
    /// # Errors
    /// As [`ExpertsSpec::tuning`].
    pub fn blocks(&self, target: &Target, units: u32) -> Result<u32, SpecError> {
        let slots = if self.sums() { 1 } else { self.top };
        Ok(self.tuning(target)?.blocks(units, [self.rows], self.tokens * slots))
    }

    /// The launch on a device of `units` compute units.
    ///
    /// # Errors
    /// As [`ExpertsSpec::kernel`].
    pub fn geometry(&self, target: &Target, units: u32) -> Result<Geometry, SpecError> {
        Ok(self.kernel(target)?.launch(self.blocks(target, units)?))
    }
}
