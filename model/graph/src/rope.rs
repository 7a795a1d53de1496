//! Angles of the rotary position embedding (RoPE).

use crate::weight::WeightId;

/// The pairs of elements that rotate together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// Elements 2i and 2i+1, as in llama's GGUF files.
    Neighbours,
    /// Elements i and i + dims/2, as in GPT-NeoX.
    Halves,
}

/// The scaling of rotations for longer contexts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// Positions divided by this factor.
    Linear(f32),
    /// YaRN (Peng et al. 2023, arXiv 2309.00071): slow rotations are interpolated, fast rotations
    /// are unchanged.
    Yarn {
        /// Scaling factor.
        factor: f32,
        /// Context before scaling, in tokens.
        original_context: usize,
        /// Rotations over the original context above which a frequency is unchanged (32 in the
        /// paper).
        beta_fast: f32,
        /// Rotations over the original context below which a frequency is fully interpolated (1 in
        /// the paper).
        beta_slow: f32,
    },
}

/// Multimodal positions (M-RoPE): time, height, width, and a fourth number. For text, the first
/// three equal the position. The fourth is 0, so its pairs do not rotate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sections {
    /// Number of pairs for each of the four numbers.
    pub sizes: [usize; 4],
    /// Whether the pairs of time, height and width alternate. If false, they are in three
    /// contiguous sections.
    pub interleaved: bool,
}

impl Sections {
    /// Whether a pair rotates for text.
    fn is_rotated(&self, pair: usize) -> bool {
        let all: usize = self.sizes.iter().sum();
        let at = if all == 0 { pair } else { pair % all };
        match self.interleaved {
            true => self.sizes.get(at % 3).is_some_and(|n| at < 3 * n),
            false => at < self.sizes.iter().take(3).sum(),
        }
    }
}

/// A rotation of heads by position.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Number of elements that rotate, from the start of a head; even. The rest is unchanged.
    pub dims: usize,
    /// The pairs of elements.
    pub pairing: Pairing,
    /// Base of the frequencies.
    pub base: f32,
    /// The scaling of positions.
    pub scaling: RopeScaling,
    /// Factor on cosine and sine. It increases the scores of scaled rotations.
    pub magnitude: f32,
    /// The sections of multimodal positions. `None`: all pairs rotate by the text position.
    pub sections: Option<Sections>,
    /// Divisor per frequency (`rope_freqs.weight`), `dims / 2` of them.
    pub factors: Option<WeightId>,
    /// Divisors for contexts longer than this number of tokens (LongRoPE, arXiv 2402.13753).
    pub long: Option<(usize, WeightId)>,
}

impl Rope {
    /// The divisors for a context length.
    pub fn factors_for(&self, context: usize) -> Option<WeightId> {
        self.long.filter(|(n, _)| context > *n).map(|(_, w)| w).or(self.factors)
    }

    /// Angle per position of each of the `dims / 2` pairs, in radians: `base^(−2i/dims)`, divided
    /// by `factors` and scaled. The rotation uses the cosine and sine of `position · frequency`,
    /// times `magnitude`. The angles are f64: in f32 the error at position 100,000 would be 4e-3.
    pub fn frequencies(&self, factors: Option<&[f32]>) -> Vec<f64> {
        let dims = self.dims as f64;
        (0..self.dims / 2)
            .map(|i| {
                let plain = f64::from(self.base).powf(-2.0 * i as f64 / dims);
                let plain = factors.and_then(|f| f.get(i)).map_or(plain, |&f| plain / f64::from(f));
                match self.scaling {
                    _ if self.sections.is_some_and(|s| !s.is_rotated(i)) => 0.0,
                    RopeScaling::None => plain,
                    RopeScaling::Linear(factor) => plain / f64::from(factor),
                    RopeScaling::Yarn { factor, .. } => {
                        let keep = 1.0 - self.yarn_ramp(i as f64);
                        plain / f64::from(factor) * (1.0 - keep) + plain * keep
                    }
                }
            })
            .collect()
    }

    /// YaRN's ramp: 0 for fast frequencies, 1 for slow ones, linear between the two corrections.
    fn yarn_ramp(&self, i: f64) -> f64 {
        let RopeScaling::Yarn { original_context, beta_fast, beta_slow, .. } = self.scaling else {
            return 0.0;
        };
        let dims = self.dims as f64;
        let at = |rotations: f32| {
            let wavelength =
                original_context as f64 / (f64::from(rotations) * 2.0 * std::f64::consts::PI);
            dims * wavelength.ln() / (2.0 * f64::from(self.base).ln())
        };
        let low = at(beta_fast).floor().max(0.0);
        let high = at(beta_slow).ceil().min(dims - 1.0);
        ((i - low) / (high - low).max(0.001)).clamp(0.0, 1.0)
    }
}

/// Index of a [`Rope`] in [`Graph::ropes`](crate::Graph::ropes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RopeId(pub u32);

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> Rope {
        Rope {
            dims: 128,
            pairing: Pairing::Halves,
            base: 1e6,
            scaling,
            magnitude: 1.0,
            sections: None,
            factors: None,
            long: None,
        }
    }

    #[test]
    fn rope_frequencies_are_powers_of_the_base() {
        let f = rope(RopeScaling::None).frequencies(None);
        assert_eq!(f.len(), 64);
        assert_eq!(f[0], 1.0);
        assert!((f[32] - 1e-3).abs() < 1e-12);
    }

    #[test]
    fn rope_factors_divide_frequencies() {
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
        };
        let (plain, stretched) =
            (rope(RopeScaling::None).frequencies(None), rope(yarn).frequencies(None));
        assert_eq!(plain[0], stretched[0]);
        assert!((stretched[63] - plain[63] / 4.0).abs() < 1e-15);
    }

    #[test]
    fn rope_sections_without_text_position_are_not_rotated() {
        let still = |sizes, interleaved| {
            let sections = Some(Sections { sizes, interleaved });
            let f = Rope { dims: 12, sections, ..rope(RopeScaling::None) }.frequencies(None);
            (0..6).filter(|&i| f[i] == 0.0).collect::<Vec<_>>()
        };
        assert!(still([2, 2, 2, 0], false).is_empty());
        assert_eq!(still([2, 1, 1, 2], false), [4, 5]);
        assert!(still([2, 2, 2, 0], true).is_empty());
        assert_eq!(still([4, 1, 1, 0], true), [4, 5]);
    }
}
