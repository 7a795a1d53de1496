//! Matrix × vector through chosen experts: `gpu/experts.h`.

use crate::products::matvec::MatvecTuning;
use crate::products::segments::Gate;
use crate::vocabulary::activations::{Column, Form, Prologue, PrologueLabel};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require, shared_bytes};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::step;
use crate::vocabulary::step::{Record, Step, StepContext, packets};
use crate::vocabulary::variant::choice;
use crate::vocabulary::weights;
use kjit_engine::Target;
use kjit_formats::format::Format;
use kjit_formats::layout::Layout;
use std::fmt;

/// The epilogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExpertFinish {
    /// `y[t, slot]`.
    Store,
    /// `silu(first matrix) · second`, per slot.
    Silu,
    /// `gelu(first matrix) · second`, per slot.
    Gelu,
    /// gpt-oss's gated unit, bounded by the argument `limit`, per slot.
    ClampedSilu,
    /// `y[t] = Σ shares · rows` over slots, plus an optional residual.
    Sum {
        /// Whether a residual is added.
        residual: bool,
    },
}

/// Matrix × vector through chosen experts. All experts' matrices have one format and size; numerics
/// as for [`MatvecSpec`](crate::matvec::MatvecSpec).
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertsSpec {
    /// Format of the matrices.
    pub format: &'static Format,
    /// Rows of one matrix.
    pub rows: usize,
    /// Length of a row.
    pub cols: usize,
    /// Largest number of tokens: 1 to 64; with `all` any number.
    pub tokens: usize,
    /// Number of chosen experts per token.
    pub top: usize,
    /// Whether `x` has a row for each slot instead of one for each token.
    pub per_slot: bool,
    /// Transformation of the activations before the product.
    pub prologue: Prologue,
    /// Whether `x` has quantised columns; then there is no prologue.
    pub quantized: bool,
    /// Whether all matrices take part: slot `s` has matrix `s`, without a choice.
    pub all: bool,
    /// Whether each expert has offsets for its rows.
    pub bias: bool,
    /// The epilogue.
    pub finish: ExpertFinish,
    /// The division of the work; `None`: the default.
    pub tuning: Option<MatvecTuning>,
}

impl Eq for ExpertsSpec {}

impl std::hash::Hash for ExpertsSpec {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.format.ggml_id, self.rows, self.cols, self.tokens, self.top, self.per_slot)
            .hash(state);
        (self.prologue, self.quantized, self.all, self.bias, self.finish, self.tuning).hash(state);
    }
}

arguments! {
    /// The arguments. Weights are the matrices of all experts, contiguous.
    ExpertsArgs {
        /// A row of f32 for each token or slot, or columns written by
        /// [`QuantizeSpec`](crate::quantize::QuantizeSpec).
        x: Pointer,
        /// The norm's weight (`cols` f32) or the other factor of a gated unit (as `x`); null
        /// without either.
        aux: Pointer,
        /// `tokens × top` u32, or null with `all`.
        chosen: Pointer,
        /// `tokens × top` f32, or null without a sum.
        shares: Pointer,
        /// `tokens × rows` f32, or null.
        residual: Pointer,
        /// Row records of the first matrix.
        w0: Pointer,
        /// Row records of a gated unit's second matrix, or null.
        w1: Pointer,
        /// An f32 for each row of all experts, or null.
        b0: Pointer,
        /// As `b0` for the second matrix, or null.
        b1: Pointer,
        /// `tokens × top × rows` f32; if summed, `tokens × rows`.
        y: Pointer,
        /// Epsilon of the norm.
        eps: F32,
        /// The bound of a clamped unit.
        limit: F32,
        /// Number of rows in use: choices of other rows are not read.
        tokens: U32,
        /// Number of blocks in the grid.
        blocks: U32,
    }
}

const NAME: &str = "experts";

impl ExpertsSpec {
    /// Whether two matrices of an expert make one result.
    #[must_use]
    pub fn gated(&self) -> bool {
        matches!(self.finish, ExpertFinish::Silu | ExpertFinish::Gelu | ExpertFinish::ClampedSilu)
    }

    fn sums(&self) -> bool {
        matches!(self.finish, ExpertFinish::Sum { .. })
    }

    /// The form of the activations.
    ///
    /// # Errors
    /// Unsupported sizes.
    pub fn column(&self) -> Result<Column, SpecError> {
        Column::shared(&[self.format], self.cols)
    }

    /// Columns of activations.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.tokens * if self.per_slot { self.top } else { 1 }
    }

    /// Results of a launch: rows that are summed count as one.
    fn results(&self) -> usize {
        self.tokens * if self.sums() { 1 } else { self.top }
    }

    fn lists(&self) -> usize {
        if self.gated() { 2 } else { 1 }
    }

    /// Number of blocks to launch on a device of `units` compute units; also the kernel's last
    /// argument.
    ///
    /// # Errors
    /// As [`Family::tuning`].
    pub fn blocks(&self, target: &Target, units: u32) -> Result<u32, SpecError> {
        Ok(self.blocks_by(target, &self.tuning(target)?, units))
    }

    fn blocks_by(&self, target: &Target, tuning: &MatvecTuning, units: u32) -> u32 {
        tuning.blocks(target, units, [self.rows], self.results())
    }

    /// The step for a kernel whose blocks choose the experts: `gpu/stream_experts.h`.
    fn streamed(&self, shape: Shape, pool: u32) -> Result<Step, SpecError> {
        let layout = Layout::new(self.format, self.cols)?;
        let quantised = matches!(self.column()?.form, Form::Quantised { .. });
        let end =
            !self.bias && self.finish != ExpertFinish::ClampedSilu && self.per_slot == self.sums();
        let alone =
            self.prologue == Prologue::None || self.prologue == Prologue::Norm && !self.sums();
        let whole = self.rows.is_multiple_of(packets::GROUP)
            && (self.rows * layout.row_bytes).is_multiple_of(128);
        require(quantised && end && alone && whole && !self.all && self.top <= 16, NAME, || {
            "rows of experts cannot be streamed through a ring of weights".to_owned()
        })?;
        let call = "StreamExperts<S, Weights>::step(a, block_id(), blocks, links, ring, memory, \
            at, pool, lds);";
        let step = Step::of("stream_experts.h", "ExpertsArgs", call, shape);
        let feed = "StreamExperts<S, Weights>::await_choice(); \
                    if (lane_id() == 0) \
                    StreamExperts<S, Weights>::feed(a, block_id(), blocks, ring, memory, at);";
        let records =
            vec![Record { bytes: layout.row_bytes, units: layout.units(), rows: self.rows }];
        Ok(Step {
            lds: Some("StreamExperts<S, Weights>::Shared"),
            pool,
            of_all_blocks: true,
            records,
            takes: Some(self.columns() * self.cols),
            hands: Some(("y", self.results() * self.rows)),
            beside: Some(feed),
            ..step
        })
    }

    /// The constants.
    fn shape(&self, t: &MatvecTuning) -> Result<Shape, SpecError> {
        let gate = match self.finish {
            ExpertFinish::Silu | ExpertFinish::ClampedSilu => Gate::Silu,
            ExpertFinish::Gelu => Gate::Gelu,
            ExpertFinish::Store | ExpertFinish::Sum { .. } => Gate::None,
        };
        let shape = self
            .column()?
            .shape(self.prologue)
            .and(t.shape(1))
            .number("TOKENS", self.tokens)
            .number("TOP", self.top)
            .number("ROWS_0", self.rows)
            .inner("Run0", weights::records(&Layout::new(self.format, self.cols)?))
            .flag("X_PER_SLOT", self.per_slot)
            .flag("X_GLOBAL", self.quantized)
            .choice("GATE", &gate)
            .flag("CLAMPED", self.finish == ExpertFinish::ClampedSilu)
            .flag("BIAS", self.bias)
            .flag("ALL", self.all)
            .flag("SUM", self.sums());
        Ok(shape.flag("RESIDUAL", self.finish == ExpertFinish::Sum { residual: true }))
    }
}

impl Family for ExpertsSpec {
    const NAME: &'static str = NAME;
    type Args<A> = ExpertsArgs<A>;
    choice!(MatvecTuning);

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = if self.per_slot { ", a column for each" } else { "" };
        let bias = if self.bias { " + offsets" } else { "" };
        let bias = if self.all { " of all" } else { bias };
        write!(f, "{} {} × {}{bias}, {:?}", self.format, self.rows, self.cols, self.finish)?;
        write!(
            f,
            "{}, {} tokens × {}{slots}",
            PrologueLabel(self.prologue, self.quantized),
            self.tokens,
            self.top
        )
    }

    fn usual(&self, target: &Target) -> Result<MatvecTuning, SpecError> {
        let layout = Layout::new(self.format, self.cols)?;
        let units = (layout.unit(), layout.units());
        // A sum has the weights of up to four slots in flight: 148 registers for Q6_K.
        let lean = !self.sums();
        Ok(MatvecTuning::usual(target, 1, self.lists(), units, self.rows * self.results(), lean))
    }

    fn check(&self, target: &Target, tuning: &MatvecTuning) -> Result<(), SpecError> {
        let (most, rows) = if self.all { (256, 1 << 16) } else { (32, 64) };
        let fine = (1..=rows).contains(&self.tokens)
            && (1..=most).contains(&self.top)
            && (1..1 << 24).contains(&self.rows);
        require(fine, NAME, || {
            format!(
                "{} tokens × {} experts of {} rows are not \
            supported",
                self.tokens, self.top, self.rows
            )
        })?;
        require(!self.quantized || self.prologue == Prologue::None, NAME, || {
            "quantised columns cannot have a prologue".to_owned()
        })?;
        tuning.check(NAME, target)
    }

    fn candidates(&self, target: &Target) -> Vec<MatvecTuning> {
        let units = Layout::new(self.format, self.cols).map_or(1, |l| l.units());
        MatvecTuning::candidates(target, units, self.lists())
    }

    fn block(&self, target: &Target, t: &MatvecTuning) -> Result<Block, SpecError> {
        let columns = if self.quantized { 0 } else { self.columns() * self.column()?.bytes() };
        let fixed = (t.block / t.wave * t.rows) as usize * 8 + 1024;
        let hint = "quantise the columns in a launch of their own";
        let shared = shared_bytes(NAME, target, t.shared(target, columns), fixed, hint)?;
        Ok(Block { wave: t.wave, threads: t.block, shared })
    }

    fn render(&self, target: &Target, t: &MatvecTuning, block: Block) -> Result<Kernel, SpecError> {
        let macros = t.macros(target, 1);
        Ok(Kernel {
            shared: block.shared,
            ..of_shape(NAME, &self.shape(t)?, macros, block.wave, block.threads)
        })
    }

    fn inside(&self, target: &Target, inside: StepContext) -> Result<Step, SpecError> {
        let StepContext { wave, threads, streams, sequences, .. } = inside;
        require(self.tokens == sequences, NAME, || {
            format!("{} tokens do not match {sequences} sequences", self.tokens)
        })?;
        require(!self.quantized, NAME, || {
            "rows are too long to be quantised in each \
        block"
                .to_owned()
        })?;
        // Not implemented.
        require(sequences == 1 || !streams, NAME, || {
            "experts of several sequences cannot be streamed through a ring".to_owned()
        })?;
        step::covered(NAME, &Layout::new(self.format, self.cols)?)?;
        let usual = self.usual(target)?;
        let tuning = MatvecTuning { wave, block: threads, team: usual.team.min(threads), ..usual };
        let pool = (self.columns() * self.column()?.bytes()) as u32;
        if inside.routed {
            return self.streamed(self.shape(&tuning)?, pool);
        }
        let call = "Experts<S>::template step<MetBefore>(a, share, pool, lds);";
        let step = Step::of("experts.h", "ExpertsArgs", call, self.shape(&tuning)?);
        // The rows to read are known only after the choice, so they are not streamed through the
        // ring.
        Ok(Step {
            lds: Some("Experts<S>::Shared"),
            pool,
            of_all_blocks: true,
            apart: streams,
            ..step
        })
    }

    fn grid(
        &self,
        target: &Target,
        tuning: &MatvecTuning,
        units: u32,
        size: Size,
    ) -> Result<Grid, SpecError> {
        let blocks = self.blocks_by(target, tuning, units);
        let tokens = size.tokens.min(self.tokens) as u32;
        Ok(Grid::of([blocks, 1, 1]).number("tokens", tokens).number("blocks", blocks))
    }

    fn work(&self, _: Size) -> Work {
        // Each slot may have a different expert.
        let slots = self.tokens * self.top;
        let matrix =
            Layout::new(self.format, self.cols).and_then(|l| l.bytes(self.rows, 1)).unwrap_or(0);
        let ends = 4 * (self.columns() * self.cols + self.results() * self.rows);
        Work {
            bytes: (slots * self.lists() * matrix + ends) as u64,
            operations: (2 * slots * self.lists() * self.rows * self.cols) as u64,
        }
    }
}
