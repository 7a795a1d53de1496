//! Norms of rows: `gpu/norm_rows.h`.

use crate::cases::oracle::EPS;
use crate::cases::{Case, CaseArg, Random, SINGLE, Storage, floats, optional, output};
use crate::matrix::{ONE, Samples};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::{Shape, gpu_enum};
use crate::vocabulary::step::{Inside, Step};
use crate::vocabulary::variant::{Wave, choice_of_wave};
use kjit_engine::{Constants, Target};
use std::fmt;

/// Which norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + eps) · weight`.
    Rms,
    /// `(x − mean) / sqrt(var + eps) · weight`, and a bias.
    Layer {
        /// With a bias.
        bias: bool,
    },
}

gpu_enum!(ENUMS: NormKind { Rms, Layer });

/// Norms rows of `cols`, a block each. A weight narrower than a value norms groups: a row is then a
/// group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NormSpec {
    /// Width of a row, up to 65536.
    pub cols: usize,
    /// Which norm.
    pub kind: NormKind,
    /// Rows of factors, which the rows take in turn: 1 for all, 0 for none.
    pub weights: usize,
    /// A residual is added.
    pub residual: bool,
    /// Lanes in a wave; `None`: the target's own.
    pub tuning: Option<Wave>,
}

arguments! {
    /// The arguments.
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
        /// Added to what the root is taken of.
        eps: F32,
    }
}

const NAME: &str = "norm_rows";
/// Elements of a row at most: of a block of 1024 threads, each keeps 64 in registers.
pub(crate) const WIDEST: usize = 65536;

/// Threads for a row of `cols` elements that stay in registers.
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
        require(fine, NAME, || format!("rows of {}: 1 to {WIDEST} are covered", self.cols))?;
        tuning.check(NAME, target)
    }

    fn block(&self, _: &Target, &Wave { wave }: &Wave) -> Result<Block, SpecError> {
        Ok(Block::of(wave, threads(self.cols, wave)))
    }

    fn render(&self, _: &Target, _: &Wave, block: Block) -> Result<Kernel, SpecError> {
        Ok(of_shape(NAME, &self.shape(), Constants::new(), block.wave, block.threads))
    }

    fn inside(&self, _: &Target, _: Inside) -> Result<Step, SpecError> {
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

    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let rows = size.tokens;
        let cols = self.cols;
        let x: Vec<f32> = random.activations(rows * cols).iter().map(|v| v + 0.3).collect();
        let (weight, bias) = (random.normals(self.weights * cols, 1.0), random.normals(cols, 1.0));
        let residual = if self.residual { random.normals(rows * cols, 1.0) } else { vec![] };
        let mut want = vec![];
        for (r, row) in x.chunks(cols).enumerate() {
            let n = cols as f64;
            let mean = if self.kind == NormKind::Rms {
                0.0
            } else {
                row.iter().map(|&v| f64::from(v)).sum::<f64>() / n
            };
            let var = row.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
            let scale = 1.0 / (var + f64::from(EPS)).sqrt();
            for (c, &v) in row.iter().enumerate() {
                let factor =
                    weight.get(r % self.weights.max(1) * cols + c).map_or(1.0, |&w| f64::from(w));
                let mut y = (f64::from(v) - mean) * scale * factor;
                if self.kind == (NormKind::Layer { bias: true }) {
                    y += f64::from(bias[c]);
                }
                want.push(y + residual.get(r * cols + c).map_or(0.0, |&v| f64::from(v)));
            }
        }
        let wave = self.tuning(target)?.wave;
        let bias = if self.kind == (NormKind::Layer { bias: true }) { bias } else { vec![] };
        let args = NormArgs {
            x: floats("x", &x),
            weight: optional("weight", &weight),
            bias: optional("bias", &bias),
            residual: optional("residual", &residual),
            y: output("y", Storage::F32, want, SINGLE),
            eps: CaseArg::F32(EPS),
        };
        let (kind, weights, residual) = (self.kind, self.weights, self.residual);
        let name = format!(
            "norm_rows {kind:?} · {rows} × {cols}, factors {weights}, residual {residual}, \
             wave {wave}"
        );
        Case::of(name, self, target, self.launch(target, units, size)?, args)
    }

    fn cases(
        target: &Target,
        wave: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        for (cols, kind, weights, residual) in [
            (1, NormKind::Rms, 1, false),
            (63, NormKind::Rms, 1, true),
            (576, NormKind::Rms, 1, false),
            (4099, NormKind::Rms, 1, true),
            (65, NormKind::Layer { bias: true }, 1, false),
            (1021, NormKind::Layer { bias: false }, 1, true),
            (131, NormKind::Layer { bias: false }, 0, false),
            (67, NormKind::Layer { bias: false }, 2, true),
            (33, NormKind::Rms, 0, true),
            (35, NormKind::Rms, 2, false),
        ] {
            let spec = NormSpec { cols, kind, weights, residual, tuning: Some(Wave { wave }) };
            into.push(spec.case(target, 2, Size { tokens: 3, past: 0 }, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        for (cols, kind) in
            [(4096, NormKind::Rms), (16384, NormKind::Rms), (4096, NormKind::Layer { bias: true })]
        {
            let spec = NormSpec { cols, kind, weights: 1, residual: true, tuning: None };
            list.add(format!("norm_rows {kind:?} {cols}"), spec, ONE)?;
        }
        for wave in list.other_waves() {
            let spec = NormSpec {
                cols: 4096,
                kind: NormKind::Rms,
                weights: 1,
                residual: true,
                tuning: Some(Wave { wave }),
            };
            list.add(format!("norm_rows Rms 4096 @ wave {wave}"), spec, ONE)?;
        }
        Ok(())
    }
}
