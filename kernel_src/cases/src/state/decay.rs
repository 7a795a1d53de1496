//! Cases and samples of `decay`.

use crate::case::{Case, CaseArg, floats, optional, output};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{SINGLE, Storage};
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_kernels::decay::{DecayArgs, DecaySpec};
use kjit_kernels::map::Function;
use kjit_kernels::{Family, Size, SpecError};

impl Cases for DecaySpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let rows = size.tokens.max(1);
        // Decay from none to complete, and much larger inputs on both sides.
        let mut x = random.normals(rows * self.cols, 2.0);
        for (v, edge) in x.iter_mut().zip([0.0, 40.0, -80.0, 1e-6]) {
            *v = edge;
        }
        let p = -0.6f32;
        let a: Vec<f32> = random.normals(self.factors, 1.0).iter().map(|v| v.abs()).collect();
        let b = if self.offsets { random.normals(self.cols, 1.0) } else { vec![] };
        let f = |x: f64| match self.function {
            Function::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
            Function::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            _ => x,
        };
        if self.function == Function::Identity {
            x.iter_mut().for_each(|v| *v = v.max(-4.0));
        }
        let of = |v: &[f32], i: usize, none: f64| v.get(i).map_or(none, |&v| f64::from(v));
        let want = (0..rows * self.cols).map(|i| {
            let c = i % self.cols;
            let factor = of(&a, (c / self.each).checked_rem(self.factors).unwrap_or(0), 1.0);
            (f64::from(p) * factor * f(f64::from(x[i]) + of(&b, c, 0.0))).exp()
        });
        let args = DecayArgs {
            x: floats("x", &x),
            a: optional("a", &a),
            b: optional("b", &b),
            y: output("y", Storage::F32, want.collect(), SINGLE),
            p: CaseArg::F32(p),
        };
        let launch = self.launch(target, units, Size { tokens: rows, past: 0 })?;
        Case::of(format!("{self:?} · {rows}"), self, target, launch, args)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        use Function::{Identity, Sigmoid, Softplus};
        for (cols, function, factors, each, offsets, tokens) in [
            (301, Identity, 0, 1, false, 2),
            (64, Identity, 0, 1, true, 3),
            (257, Sigmoid, 0, 1, true, 2),
            (32, Softplus, 32, 1, true, 5),
            (96, Softplus, 6, 16, true, 3),
            (520, Softplus, 13, 1, false, 1),
        ] {
            let spec = DecaySpec { cols, function, factors, each, offsets };
            into.push(spec.case(target, 2, Size { tokens, past: 0 }, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let spec = DecaySpec {
            cols: 4096,
            function: Function::Softplus,
            factors: 32,
            each: 128,
            offsets: true,
        };
        list.add("decay 4096 Softplus".to_owned(), spec, Size::CHUNK)
    }
}
