//! Cases and samples of `norm`.

use crate::case::{Case, CaseArg, floats, optional, output};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{SINGLE, Storage};
use crate::oracle::EPS;
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_kernels::norm::{NormArgs, NormKind, NormSpec};
use kjit_kernels::variant::Wave;
use kjit_kernels::{Family, Size, SpecError};

impl Cases for NormSpec {
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
            "norm_rows {kind:?} · {rows} × {cols}, factors {weights}, residual {residual}, wave {wave}"
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
            list.add(format!("norm_rows {kind:?} {cols}"), spec, Size::ONE)?;
        }
        for wave in list.other_waves() {
            let spec = NormSpec {
                cols: 4096,
                kind: NormKind::Rms,
                weights: 1,
                residual: true,
                tuning: Some(Wave { wave }),
            };
            list.add(format!("norm_rows Rms 4096 @ wave {wave}"), spec, Size::ONE)?;
        }
        Ok(())
    }
}
