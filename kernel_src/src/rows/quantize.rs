//! Activations quantised once for all blocks of the products that follow: `gpu/quantize.h`.

use crate::cases::oracle::{EPS, aux, exact, prologues};
use crate::cases::{Case, CaseArg, Expect, Random, Tolerance, floats, optional};
use crate::matrix::{ONE, Samples};
use crate::vocabulary::activations::{Column, First, Form, Prologue};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use kjit_formats::format::Format;
use std::fmt;

/// Columns of activations quantised (for plain weights: put in order) in global memory, where they
/// are too many or too long for each block of a product to do it by itself. One block a column.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QuantizeSpec {
    /// The form.
    pub column: Column,
    /// What happens first.
    pub prologue: Prologue,
}

arguments! {
    /// The arguments.
    QuantizeArgs {
        /// `columns × cols` f32.
        x: Pointer,
        /// The norm's weight (`cols` f32) or the other factor of a gated unit (`columns × cols`
        /// f32); else null.
        aux: Pointer,
        /// [`Column::bytes`] for each column.
        out: Pointer,
        /// The norm's epsilon.
        eps: F32,
    }
}

const NAME: &str = "quantize";
const BLOCK: u32 = 256;

/// How near columns come to these values. Half a step of the largest group is the bound on each: a
/// group with an outlier of 170 among values of 2.6 was 2.6e-3 off, as it must be, and failed a
/// bound that knew the root mean square alone.
fn rounded(column: &Column, want: &[f64]) -> Tolerance {
    let usual = exact(column);
    if !matches!(column.form, Form::Quantised { .. }) {
        return usual;
    }
    let rms = (want.iter().map(|v| v * v).sum::<f64>() / want.len().max(1) as f64).sqrt();
    let step = want.iter().fold(0.0f64, |most, v| most.max(v.abs())) / 32639.0;
    Tolerance { each: usual.each.max(0.51 * step / rms.max(f64::MIN_POSITIVE)), ..usual }
}

impl Family for QuantizeSpec {
    const NAME: &'static str = NAME;
    type Args<A> = QuantizeArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {:?}{}", self.column.cols, self.column.form, First(self.prologue, false))
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        let shape = self.column.shape(self.prologue);
        Ok(of_shape(NAME, &shape, Constants::new(), block.wave, block.threads))
    }

    fn grid(&self, _: &Target, _: &Fixed, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([size.tokens as u32, 1, 1]))
    }

    fn work(&self, size: Size) -> Work {
        Work::moves(size.tokens * (4 * self.column.cols + self.column.bytes()))
    }

    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let (columns, cols) = (size.tokens, self.column.cols);
        let x = random.activations(columns * cols);
        let aux = aux(self.prologue, columns, cols, random);
        let want = prologues(self.prologue, cols, &x, &aux).concat();
        let tolerance = rounded(&self.column, &want);
        let args = QuantizeArgs {
            x: floats("x", &x),
            aux: optional("aux", &aux),
            out: CaseArg::Buffer {
                name: "out",
                before: vec![0xff; columns * self.column.bytes()].into(),
                expect: Expect::Columns { column: self.column, want, tolerance },
            },
            eps: CaseArg::F32(EPS),
        };
        let name =
            format!("quantize {columns} × {cols}, {:?}, {:?}", self.column.form, self.prologue);
        Case::of(name, self, target, self.launch(target, units, size)?, args)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        // Every form; columns of one group, of an odd number of groups, and of more than a block
        // has threads.
        for (name, cols, columns, prologue) in [
            ("Q4_K", 256, 1, Prologue::Norm),
            ("Q8_0", 96, 3, Prologue::None),
            ("Q8_0", 32, 2, Prologue::Silu),
            ("Q5_1", 8224, 2, Prologue::Gelu),
            ("F16", 1001, 2, Prologue::Norm),
            ("F32", 63, 3, Prologue::Silu),
        ] {
            let Some(format) = Format::by_name(name) else { continue };
            let spec = QuantizeSpec { column: Column::shared(&[format], cols)?, prologue };
            into.push(spec.case(target, 2, Size { tokens: columns, past: 0 }, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        for form in [Form::Quantised { split: true }, Form::Plain { unit: 8 }] {
            for prologue in [Prologue::None, Prologue::Norm, Prologue::Silu, Prologue::Gelu] {
                let spec = QuantizeSpec { column: Column { cols: 4096, form }, prologue };
                list.add(format!("quantize {form:?} {prologue:?}"), spec, ONE)?;
            }
        }
        Ok(())
    }
}
