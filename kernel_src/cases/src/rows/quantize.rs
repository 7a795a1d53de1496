//! Cases and samples of `quantize`.

use crate::case::{Case, CaseArg, floats, optional};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{Expect, Tolerance};
use crate::oracle::{EPS, aux, exact, prologues};
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_formats::format::Format;
use kjit_kernels::activations::{Column, Form, Prologue};
use kjit_kernels::quantize::{QuantizeArgs, QuantizeSpec};
use kjit_kernels::{Family, Size, SpecError};

impl Cases for QuantizeSpec {
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
                list.add(format!("quantize {form:?} {prologue:?}"), spec, Size::ONE)?;
            }
        }
        Ok(())
    }
}

/// The tolerance for columns of these values. The bound on each element is half a step of the
/// largest group. A bound by the root mean square alone is too strict: a group with an outlier of
/// 170 among values of 2.6 had the expected error of 2.6e-3 and failed it.
fn rounded(column: &Column, want: &[f64]) -> Tolerance {
    let usual = exact(column);
    if !matches!(column.form, Form::Quantised { .. }) {
        return usual;
    }
    let rms = (want.iter().map(|v| v * v).sum::<f64>() / want.len().max(1) as f64).sqrt();
    let step = want.iter().fold(0.0f64, |most, v| most.max(v.abs())) / 32639.0;
    Tolerance { each: usual.each.max(0.51 * step / rms.max(f64::MIN_POSITIVE)), ..usual }
}
