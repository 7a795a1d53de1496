//! Activation functions of single elements.

/// A function of an element, alone or as the gate of another element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// `x · sigmoid(x)` (Elfwing et al. 2017, arXiv 1702.03118).
    Silu,
    /// The tanh variant of GELU (Hendrycks & Gimpel 2016, arXiv 1606.08415).
    GeluTanh,
    /// `x`. As a gate it is a plain factor.
    Identity,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²` (So et al. 2021, arXiv 2109.08668).
    ReluSquared,
    /// `1 / (1 + e^−x)`.
    Sigmoid,
    /// `tanh(x)`.
    Tanh,
    /// `e^x`.
    Exp,
    /// `√x`.
    Sqrt,
    /// `max(x − c, 0)`, with the constant c.
    Above(f32),
    /// `ln(1 + e^x)`.
    Softplus,
    /// `x` limited to ±c, with the constant c.
    Clamp(f32),
    /// `c · tanh(x / c)`, with the constant c.
    SoftCap(f32),
    /// gpt-oss (arXiv 2508.10925): `g · sigmoid(1.702 g) · (u + 1)`, with `g` limited to at most c
    /// and `u` to ±c.
    ClampedSilu(f32),
    /// xIELU (Huang & Schlag 2024, arXiv 2411.13010): a parabola above zero, an exponential below.
    Xielu {
        /// Coefficient of the parabola above zero.
        positive: f32,
        /// Coefficient of the exponential below zero.
        negative: f32,
        /// Slope at zero.
        beta: f32,
        /// Upper bound of the exponential's argument, just below zero.
        eps: f32,
    },
}

impl Activation {
    /// Computes the function at `x`.
    #[inline]
    pub fn of(self, x: f32) -> f32 {
        let e = f64::from(x);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let y = match self {
            Activation::Silu => e * sigmoid(e),
            Activation::GeluTanh => {
                0.5 * e
                    * (1.0
                        + ((2.0 / std::f64::consts::PI).sqrt() * (e + 0.044715 * e * e * e)).tanh())
            }
            Activation::Identity => e,
            Activation::Relu => e.max(0.0),
            Activation::ReluSquared => e.max(0.0).powi(2),
            Activation::Sigmoid => sigmoid(e),
            Activation::Tanh => e.tanh(),
            Activation::Exp => e.exp(),
            Activation::Sqrt => e.sqrt(),
            Activation::Above(least) => (e - f64::from(least)).max(0.0),
            // If x is above 20, the 1 is less than half a unit in the last place.
            Activation::Softplus => {
                if e > 20.0 {
                    e
                } else {
                    e.exp().ln_1p()
                }
            }
            Activation::Clamp(limit) => e.clamp(-f64::from(limit.abs()), f64::from(limit.abs())),
            Activation::SoftCap(cap) => f64::from(cap) * (e / f64::from(cap)).tanh(),
            Activation::ClampedSilu(limit) => {
                let g = e.min(f64::from(limit));
                g * sigmoid(1.702 * g)
            }
            Activation::Xielu { positive, negative, beta, eps } => {
                let (p, n, b) = (f64::from(positive), f64::from(negative), f64::from(beta));
                if e > 0.0 {
                    p * e * e + b * e
                } else {
                    (e.min(f64::from(eps)).exp_m1() - e) * n + b * e
                }
            }
        };
        // `clamp` and `min` would return the bound for NaN and hide it.
        if x.is_nan() { x } else { y as f32 }
    }

    /// Computes the function at `gate`, times `up`.
    #[inline]
    pub fn gate(self, gate: f32, up: f32) -> f32 {
        match self {
            Activation::ClampedSilu(limit) => {
                self.of(gate) * (Activation::Clamp(limit).of(up) + 1.0)
            }
            Activation::Identity => gate * up,
            _ => self.of(gate) * up,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_match_formulas_and_propagate_nan() {
        use Activation::*;
        let xielu = Xielu { positive: 0.9, negative: 0.6, beta: 0.5, eps: -1e-6 };
        let all = [
            (Silu, 0.731_058_6),
            (GeluTanh, 0.841_192),
            (Identity, 1.0),
            (Relu, 1.0),
            (ReluSquared, 1.0),
            (Sigmoid, 0.731_058_6),
            (Tanh, 0.761_594_2),
            (Exp, 2.718_281_7),
            (Sqrt, 1.0),
            (Above(0.25), 0.75),
            (Softplus, 1.313_261_7),
            (Clamp(0.5), 0.5),
            (SoftCap(2.0), 0.924_234_3),
            (ClampedSilu(7.0), 0.845_795_5),
            (xielu, 1.4),
        ];
        for (act, at_one) in all {
            assert!(act.of(f32::NAN).is_nan(), "{act:?}");
            assert!((act.of(1.0) - at_one).abs() < 1e-6, "{act:?} {}", act.of(1.0));
        }
        assert!((xielu.of(-1.0) - ((-1f32).exp_m1() + 1.0) * 0.6 + 0.5).abs() < 1e-6);
        assert!((ClampedSilu(7.0).gate(1.0, 9.0) - 8.0 * 0.845_795_5).abs() < 1e-5);
    }
}
