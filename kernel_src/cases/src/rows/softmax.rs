//! Cases and samples of `softmax`.

use crate::case::{Case, CaseArg, floats, output};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{Storage, Tolerance};
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_kernels::softmax::{SoftmaxArgs, SoftmaxSpec};
use kjit_kernels::variant::Wave;
use kjit_kernels::{Family, Size, SpecError};

impl Cases for SoftmaxSpec {
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
        list.add("softmax 4096".to_owned(), SoftmaxSpec { cols: 4096, tuning: None }, Size::ONE)
    }
}
