//! Cases and samples of `expert_sum`.

use crate::case::{Case, floats, optional, output};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{SINGLE, Storage};
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_kernels::expert_sum::{ExpertSumArgs, ExpertSumSpec};
use kjit_kernels::{Family, Size, SpecError};

impl Cases for ExpertSumSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let tokens = size.tokens;
        let x = random.normals(tokens * self.top * self.cols, 1.0);
        let shares = random.normals(tokens * self.top, 1.0);
        let residual = if self.residual { random.normals(tokens * self.cols, 1.0) } else { vec![] };
        let mut want = vec![];
        for t in 0..tokens {
            for c in 0..self.cols {
                let slot = |s: usize| {
                    f64::from(shares[t * self.top + s])
                        * f64::from(x[(t * self.top + s) * self.cols + c])
                };
                let sum: f64 = (0..self.top).map(slot).sum();
                want.push(sum + residual.get(t * self.cols + c).map_or(0.0, |&v| f64::from(v)));
            }
        }
        let name = format!("expert_sum {} × {}, residual {}", self.top, self.cols, self.residual);
        let args = ExpertSumArgs {
            x: floats("x", &x),
            shares: floats("shares", &shares),
            residual: optional("residual", &residual),
            out: output("out", Storage::F32, want, SINGLE),
        };
        Case::of(name, self, target, self.launch(target, units, size)?, args)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        for (cols, top, residual) in [(131, 8, true), (64, 1, false)] {
            let spec = ExpertSumSpec { cols, top, residual };
            into.push(spec.case(target, 2, Size { tokens: 2, past: 0 }, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        list.add(
            "expert_sum".to_owned(),
            ExpertSumSpec { cols: 2048, top: 8, residual: true },
            Size::ONE,
        )
    }
}
