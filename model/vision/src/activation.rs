//! Activations.

use crate::settings::Activation;

pub fn activated(x: f32, activation: Activation) -> f32 {
    match activation {
        Activation::Gelu => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::ExactGelu => exact_gelu(x),
        Activation::QuickGelu => x / (1.0 + (-1.702 * x).exp()),
        Activation::Silu => x / (1.0 + (-x).exp()),
    }
}

/// GELU with the error function.
pub fn exact_gelu(x: f32) -> f32 {
    (0.5 * f64::from(x) * (1.0 + erf(f64::from(x) * std::f64::consts::FRAC_1_SQRT_2))) as f32
}

/// The error function, to 1.5e-7 (Abramowitz and Stegun, 7.1.26).
fn erf(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let poly = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    let sum = poly.iter().fold(0.0, |sum, c| (sum + c) * t);
    (1.0 - sum * (-x * x).exp()).copysign(x)
}
