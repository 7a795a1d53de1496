//! Norms of rows: `gpu/norm_rows.h`.

use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::{Shape, gpu_enum};
use crate::vocabulary::step::{Step, StepContext};
use crate::vocabulary::variant::{Wave, choice_of_wave};
use kjit_engine::{Constants, Target};
use std::fmt;

/// The kind of norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + eps) · weight`.
    Rms,
    /// `(x − mean) / sqrt(var + eps) · weight`, plus an optional bias.
    Layer {
        /// Whether there is a bias.
        bias: bool,
    },
}

gpu_enum!(ENUMS: NormKind { Rms, Layer });

/// Normalises rows of `cols` elements, one block per row. If the weight is narrower than a value,
/// groups are normalised: then a row is one group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NormSpec {
    /// Width of a row, up to 65536.
    pub cols: usize,
    /// The kind of norm.
    pub kind: NormKind,
    /// Number of rows of factors, which the rows use in order and repeat: 1 for all, 0 for none.
    pub weights: usize,
    /// Whether a residual is added.
    pub residual: bool,
    /// Lanes in a wave; `None`: the target's own.
    pub tuning: Option<Wave>,
}

arguments! {
    /// The arguments of a norm.
    NormArgs {
        /// `rows × cols` f32.
        x: Pointer,
        /// `weights × cols` f32, or null.
        weight: Pointer,
        /// `cols` f32, or null.
        bias: Pointer,
        /// `rows × cols` f32, or null.
        residual: Pointer,
        /// `rows × cols` f32; may be `x` or `residual`.
        y: Pointer,
        /// Epsilon, added under the root.
        eps: F32,
    }
}

const NAME: &str = "norm_rows";
/// The most elements of a row: each of 1024 threads has 64 in registers.
pub(crate) const WIDEST: usize = 65536;

/// Number of threads for a row of `cols` elements in registers.
pub(crate) fn threads(cols: usize, wave: u32) -> u32 {
    let threads = (cols as u32).div_ceil(4).next_multiple_of(wave).next_power_of_two();
    threads.clamp(wave, if cols > 16384 { 1024 } else { 512 })
}

impl NormSpec {
    fn shape(&self) -> Shape {
        let shape = Shape::new()
            .number("COLS", self.cols)
            .choice("KIND", &self.kind)
            .number("WEIGHTS", self.weights);
        shape
            .flag("BIAS", self.kind == NormKind::Layer { bias: true })
            .flag("RESIDUAL", self.residual)
    }
}

impl Family for NormSpec {
    const NAME: &'static str = NAME;
    type Args<A> = NormArgs<A>;
    choice_of_wave!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.kind, self.cols)?;
        match self.weights {
            0 => write!(f, ", no factors")?,
            1 => {}
            n => write!(f, ", {n} rows of factors")?,
        }
        write!(f, "{}", if self.residual { ", residual" } else { "" })
    }

    fn check(&self, target: &Target, tuning: &Wave) -> Result<(), SpecError> {
        let fine = (1..=WIDEST).contains(&self.cols);
        require(fine, NAME, || {
            format!("rows of {} elements: 1 to {WIDEST} are supported", self.cols)
        })?;
        tuning.check(NAME, target)
    }

    fn block(&self, _: &Target, &Wave { wave }: &Wave) -> Result<Block, SpecError> {
        Ok(Block::of(wave, threads(self.cols, wave)))
    }

    fn render(&self, _: &Target, _: &Wave, block: Block) -> Result<Kernel, SpecError> {
        Ok(of_shape(NAME, &self.shape(), Constants::new(), block.wave, block.threads))
    }

    fn inside(&self, _: &Target, _: StepContext) -> Result<Step, SpecError> {
        Ok(Step::of(
            "norm_rows.h",
            "NormRowsArgs",
            "Meeting::wait(); NormRows<S>::step(a, share);",
            self.shape(),
        ))
    }

    fn grid(&self, _: &Target, _: &Wave, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([size.tokens as u32, 1, 1]))
    }

    fn work(&self, size: Size) -> Work {
        let rows = if self.residual { 3 } else { 2 };
        Work::moves(4 * self.cols * (rows * size.tokens + 1))
    }
}
