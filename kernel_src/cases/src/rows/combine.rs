//! Cases and samples of `combine`.

use crate::case::{Case, CaseArg, FOLLOWS, floats, output};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{SINGLE, Storage};
use crate::oracle::{gelu, silu};
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_kernels::combine::{Combine, CombineArgs, CombineSpec, ROW};
use kjit_kernels::launch::Launch;
use kjit_kernels::variant::Fixed;
use kjit_kernels::{Family, Size, SpecError};

impl Cases for CombineSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let n = size.tokens * ROW;
        of(self, target, n, CombineSpec::blocks(n as u64, units), random)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        for op in [Combine::Add, Combine::Silu, Combine::Gelu] {
            into.push(of(&CombineSpec { op }, target, 1009, 2, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        for op in [Combine::Add, Combine::Silu, Combine::Gelu] {
            list.add(format!("combine {op:?}"), CombineSpec { op }, Size::ONE)?;
        }
        Ok(())
    }
}

/// A case of `n` elements with `blocks` blocks.
fn of(
    spec: &CombineSpec,
    target: &Target,
    n: usize,
    blocks: u32,
    random: &mut Random,
) -> Result<Case, SpecError> {
    // Inputs with an activation near zero, inputs near the identity, and infinities that must not
    // become NaN.
    let mut a = random.normals(n, 6.0);
    a[0] = 0.0;
    a[1] = 90.0;
    a[2] = -90.0;
    a[3] = 1e-6;
    let b = random.normals(n, 1.0);
    let want = a.iter().zip(&b).map(|(&a, &b)| {
        let (a, b) = (f64::from(a), f64::from(b));
        match spec.op {
            Combine::Add => a + b,
            Combine::Silu => silu(a) * b,
            Combine::Gelu => gelu(a) * b,
        }
    });
    let args = CombineArgs {
        a: floats("a", &a),
        b: floats("b", &b),
        y: output("y", Storage::F32, want.collect(), SINGLE),
        n: CaseArg::U64(n as u64),
        blocks: FOLLOWS,
    };
    let launch = Launch::of(spec.block(target, &Fixed)?, CombineSpec::grid_of(blocks));
    Case::of(format!("combine {:?} · {n}", spec.op), spec, target, launch, args)
}
