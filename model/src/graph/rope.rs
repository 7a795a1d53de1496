//! Angles of the rotary position embedding.

use super::WeightId;

/// Which two elements of a head turn together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// Elements 2i and 2i+1 (the order in llama's GGUF files).
    Neighbours,
    /// Elements i and i + dims/2 (GPT-NeoX's order).
    Halves,
}

/// How a model stretches its rotations to a longer context.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Positions divided by this.
    Linear(f32),
    /// Not at all, but what turns is multiplied by this (LongRoPE, arXiv 2402.13753, beside factors of single
    /// frequencies).
    Magnitude(f32),
    /// YaRN (Peng et al. 2023, arXiv 2309.00071): slow rotations interpolated, fast ones kept, scores
    /// sharpened.
    Yarn {
        /// Stretch.
        factor: f32,
        /// Context before stretching, in tokens.
        original_context: usize,
        /// Rotations over the original context above which a frequency is kept (32 in the paper).
        beta_fast: f32,
        /// Rotations below which it is fully interpolated (1 in the paper).
        beta_slow: f32,
        /// Further factor on the rotated elements, 1 if the file has none.
        attention_factor: f32,
        /// Whether the rotated elements grow by `1 + 0.1 · ln(factor)`; where not, the scores do, elsewhere.
        sharpen: bool,
    },
}

/// A rotation of heads by position.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Elements of a head that turn, from its start; even. The rest pass unchanged.
    pub dims: usize,
    /// Which elements pair up.
    pub pairing: Pairing,
    /// Base of the frequencies.
    pub base: f32,
    /// Stretching.
    pub scaling: RopeScaling,
    /// Divisor per frequency (`rope_freqs.weight`), `dims / 2` of them.
    pub factors: Option<WeightId>,
    /// Other divisors where the context at hand is longer than so many tokens (LongRoPE, arXiv 2402.13753).
    pub long: Option<(usize, WeightId)>,
}

impl Rope {
    /// The divisors for a context of so many tokens.
    pub fn factors_for(&self, context: usize) -> Option<WeightId> {
        self.long.filter(|(n, _)| context > *n).map(|(_, w)| w).or(self.factors)
    }

    /// Angle per position of each of the `dims / 2` pairs, in radians: `base^(−2i/dims)`, divided by
    /// `factors` and stretched. The cosine and sine of `position · frequency` times [`Rope::magnitude`] are
    /// the rotation. In f64: at position 100,000 an f32 angle would be off by 4e-3.
    pub fn frequencies(&self, factors: Option<&[f32]>) -> Vec<f64> {
        let dims = self.dims as f64;
        (0..self.dims / 2)
            .map(|i| {
                let plain = f64::from(self.base).powf(-2.0 * i as f64 / dims);
                let plain = factors.and_then(|f| f.get(i)).map_or(plain, |&f| plain / f64::from(f));
                match self.scaling {
                    RopeScaling::None | RopeScaling::Magnitude(_) => plain,
                    RopeScaling::Linear(factor) => plain / f64::from(factor),
                    RopeScaling::Yarn { factor, .. } => {
                        let keep = 1.0 - self.yarn_ramp(i as f64);
                        plain / f64::from(factor) * (1.0 - keep) + plain * keep
                    }
                }
            })
            .collect()
    }

    /// Factor on cosine and sine: 1, or YaRN's sharpening `1 + 0.1 · ln(factor)` times the file's own.
    pub fn magnitude(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { factor, attention_factor, sharpen, .. } => {
                f64::from(attention_factor) * if sharpen { 1.0 + 0.1 * f64::from(factor).ln() } else { 1.0 }
            }
            RopeScaling::Magnitude(magnitude) => f64::from(magnitude),
            _ => 1.0,
        }
    }

    /// 0 for fast frequencies, 1 for slow ones, linear between the two corrections of YaRN.
    fn yarn_ramp(&self, i: f64) -> f64 {
        let RopeScaling::Yarn { original_context, beta_fast, beta_slow, .. } = self.scaling else { return 0.0 };
        let dims = self.dims as f64;
        let at = |rotations: f32| {
            let wavelength = original_context as f64 / (f64::from(rotations) * 2.0 * std::f64::consts::PI);
            dims * wavelength.ln() / (2.0 * f64::from(self.base).ln())
        };
        let low = at(beta_fast).floor().max(0.0);
        let high = at(beta_slow).ceil().min(dims - 1.0);
        ((i - low) / (high - low).max(0.001)).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> Rope {
        Rope { dims: 128, pairing: Pairing::Halves, base: 1e6, scaling, factors: None, long: None }
    }

    #[test]
    fn frequencies_fall_from_one_by_powers_of_the_base() {
        let f = rope(RopeScaling::None).frequencies(None);
        assert_eq!(f.len(), 64);
        assert_eq!(f[0], 1.0);
        assert!((f[32] - 1e-3).abs() < 1e-12);
    }

    #[test]
    fn factors_divide_frequencies() {
        let factors = vec![4.0f32; 64];
        assert_eq!(rope(RopeScaling::None).frequencies(Some(&factors))[0], 0.25);
    }

    #[test]
    fn yarn_keeps_fast_rotations_and_divides_slow_ones() {
        let yarn = RopeScaling::Yarn {
            factor: 4.0,
            original_context: 32768,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.0,
            sharpen: true,
        };
        let (plain, stretched) = (rope(RopeScaling::None).frequencies(None), rope(yarn).frequencies(None));
        assert_eq!(plain[0], stretched[0]);
        assert!((stretched[63] - plain[63] / 4.0).abs() < 1e-15);
        assert!((rope(yarn).magnitude() - 1.1386).abs() < 1e-4);
    }
}
