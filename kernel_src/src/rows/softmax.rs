//! Softmax of rows: `gpu/softmax.h`.

use crate::cases::{Case, CaseArg, Random, Storage, Tolerance, floats, output};
use crate::matrix::{ONE, Samples};
use crate::rows::norm::{WIDEST, threads};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Wave, choice_of_wave};
use kjit_engine::{Constants, Target};
use std::fmt;

/// Softmax of rows, a block each.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SoftmaxSpec {
    /// Width of a row, up to 65536.
    pub cols: usize,
    /// Lanes in a wave; `None`: the target's own.
    pub tuning: Option<Wave>,
}

arguments! {
    /// The arguments.
    SoftmaxArgs {
        /// `rows × cols` f32.
        x: Pointer,
        /// As `x`; may be it.
        y: Pointer,
        /// Factor on `x`.
        scale: F32,
    }
}

const NAME: &str = "softmax";

impl Family for SoftmaxSpec {
    const NAME: &'static str = NAME;
    type Args<A> = SoftmaxArgs<A>;
    choice_of_wave!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cols)
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
        let shape = Shape::new().number("COLS", self.cols);
        Ok(of_shape(NAME, &shape, Constants::new(), block.wave, block.threads))
    }

    fn grid(&self, _: &Target, _: &Wave, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([size.tokens as u32, 1, 1]))
    }

    fn work(&self, size: Size) -> Work {
        Work::moves(8 * self.cols * size.tokens)
    }

    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let rows = size.tokens;
        let scale = 0.7f32;
        let x = random.normals(rows * self.cols, 8.0);
        let mut want = vec![];
        for row in x.chunks(self.cols) {
            let most = row.iter().fold(f32::MIN, |a, &b| a.max(b * scale));
            let e: Vec<f64> = row
                .iter()
                .map(|&v| (f64::from(v) * f64::from(scale) - f64::from(most)).exp())
                .collect();
            let sum: f64 = e.iter().sum();
            want.extend(e.iter().map(|e| e / sum));
        }
        let tolerance =
            Tolerance { norm: 5e-6, each: 4e-5, reason: "scores of up to 30 in single precision" };
        let name = format!("softmax · {rows} × {}, wave {}", self.cols, self.tuning(target)?.wave);
        let y = output("y", Storage::F32, want, tolerance);
        let args = SoftmaxArgs { x: floats("x", &x), y, scale: CaseArg::F32(scale) };
        Case::of(name, self, target, self.launch(target, units, size)?, args)
    }

    fn cases(
        target: &Target,
        wave: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        for cols in [33, 2053] {
            let spec = SoftmaxSpec { cols, tuning: Some(Wave { wave }) };
            into.push(spec.case(target, 2, Size { tokens: 2, past: 0 }, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        list.add("softmax 4096".to_owned(), SoftmaxSpec { cols: 4096, tuning: None }, ONE)
    }
}
