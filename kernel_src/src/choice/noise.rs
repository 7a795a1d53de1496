//! The noise of a draw, one number for each token: `gpu/noise.h` computes bit-identical numbers.
//!
//! A token's score is `(logit − largest) / temperature − ln(−ln u)`, and the token with the
//! greatest score is drawn. With `u` uniform in 0..1 that is a draw from the softmax (Gumbel-max
//! trick). `u` is a function of the seed, the position of the token and its id: Philox4x32-10
//! (Salmon et al. 2011). So a draw does not depend on other draws. A small change of the logits
//! rarely changes it: if scores change by `d(i)`, the probability is `½ Σ p(i) p(j) |d(i) − d(j)|`
//! to first order, less than the largest change. A draw by cumulative sums over the vocabulary
//! would depend on every logit before it.

/// The inputs of a draw's noise, except the token's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noise {
    /// Seed of the sequence.
    pub seed: u64,
    /// Number of tokens of the sequence before the drawn one.
    pub position: u32,
}

/// The noise is never above this: −ln of 2^−33 is 22.874.
const MOST: f32 = 22.875;

impl Noise {
    /// Draws one of these tokens, each given with its logit minus the largest logit: the token with
    /// the greatest score, and the lowest id among equals. `None` if all are NaN. In the order of
    /// ids four tokens share their random words.
    #[must_use]
    pub fn draw(self, tokens: impl IntoIterator<Item = (u32, f32)>, inverse: f32) -> Option<u32> {
        let (mut best, mut at, mut words) = (None, u32::MAX, [0; 4]);
        for (id, below) in tokens.into_iter().filter(|(_, below)| !below.is_nan()) {
            let wins = |score: f32| best.is_none_or(|(s, t)| score > s || score == s && id < t);
            // Most scores are too low for any noise.
            if !wins(below * inverse + MOST) {
                continue;
            }
            if at != id / 4 {
                (at, words) = (id / 4, self.words(id / 4));
            }
            let [a, b, c, d] = words;
            let word = match id % 4 {
                0 => a,
                1 => b,
                2 => c,
                _ => d,
            };
            if wins(below * inverse + bound(word)) {
                let score = below.mul_add(inverse, of_word(word));
                if wins(score) {
                    best = Some((score, id));
                }
            }
        }
        best.map(|(_, id)| id)
    }

    /// A number in 0..1 for the whole draw. It depends on seed and position. It is independent of
    /// the noise of tokens.
    #[must_use]
    pub fn chance(self) -> f32 {
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        let [word, ..] = philox([0, self.position, 1, 0], key);
        fraction(word)
    }

    /// The random words of ids from `4 × group` on.
    fn words(self, group: u32) -> [u32; 4] {
        philox([group, self.position, 0, 0], [self.seed as u32, (self.seed >> 32) as u32])
    }
}

/// The factor of logits: 1 / temperature, never infinite or 0. The host computes it also for the
/// device, as compilers there divide differently.
#[must_use]
pub fn inverse(temperature: f32) -> f32 {
    (1.0 / temperature).clamp(1.2e-38, 1e37)
}

fn philox([mut a, mut b, mut c, mut d]: [u32; 4], [mut low, mut high]: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let (x, y) = (0xd251_1f53 * u64::from(a), 0xcd9e_8d57 * u64::from(c));
        (a, b, c, d) =
            ((y >> 32) as u32 ^ b ^ low, y as u32, (x >> 32) as u32 ^ d ^ high, x as u32);
        (low, high) = (low.wrapping_add(0x9e37_79b9), high.wrapping_add(0xbb67_ae85));
    }
    [a, b, c, d]
}

/// The fraction (word + ½) / 2^32.
fn fraction(word: u32) -> f32 {
    (word as f32 + 0.5) * (1.0 / 4_294_967_296.0)
}

/// The noise −ln(−ln(1 − fraction)).
fn of_word(word: u32) -> f32 {
    let ln =
        if word < 0x4000_0000 { ln_of_parts(0.0, -fraction(word)) } else { ln_of(fraction(!word)) };
    -ln_of(-ln)
}

/// A cheap upper bound of the noise: −ln t > −ln(−ln(1 − t)), from the exponent of t.
fn bound(word: u32) -> f32 {
    -0.6932 * ((fraction(word).to_bits() >> 23) as i32 - 127) as f32
}

/// ln(2^e × (1 + f)) for f from −0.29 to 0.42 (the polynomial of Cephes' logf).
fn ln_of_parts(e: f32, f: f32) -> f32 {
    const P: [f32; 9] = [
        7.037_683_6e-2,
        -1.151_461e-1,
        1.167_699_87e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_4e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ];
    let p = P.iter().skip(1).fold(P[0], |p, c| p.mul_add(f, *c));
    let p = f.mul_add(p, -0.5);
    e.mul_add(std::f32::consts::LN_2, (f * f).mul_add(p, f))
}

/// ln of a positive normal number.
fn ln_of(x: f32) -> f32 {
    // The exponent changes at √½.
    let bits = x.to_bits().wrapping_sub(0x3f35_04f3);
    let m = f32::from_bits((bits & 0x007f_ffff) + 0x3f35_04f3);
    ln_of_parts((bits as i32 >> 23) as f32, m - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_is_philox_as_published() {
        // Known answers of Random123.
        let all = u32::MAX;
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([all; 4], [all; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(
            philox(pi, [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn gumbel_noise_matches_double_logarithm_below_bound() {
        let edges = [
            0,
            1,
            2,
            3,
            0x3fff_ffff,
            0x4000_0000,
            0x7fff_ffff,
            0x8000_0000,
            u32::MAX - 1,
            u32::MAX,
        ];
        let spread = (0..100_000u32).map(|i| i.wrapping_mul(2_654_435_761));
        let small = (0..32).flat_map(|bit| [1 << bit, (1u32 << bit).wrapping_sub(1), !(1 << bit)]);
        for word in edges.into_iter().chain(spread).chain(small) {
            let t = (f64::from(word) + 0.5) / 4_294_967_296.0;
            let want = -(-(-t).ln_1p()).ln();
            let got = f64::from(of_word(word));
            // Four units in the last place of a number up to 23; both sides are small near ln 1.
            assert!((got - want).abs() < 4e-7 * (1.0 + want.abs()), "{word:#x}: {got} for {want}");
            assert!(of_word(word) < bound(word) && of_word(word) < MOST, "{word:#x}");
        }
    }

    /// The draw of all tokens, without the shortcuts.
    fn plain(noise: Noise, logits: &[f32], inverse: f32) -> u32 {
        let largest = logits.iter().copied().fold(f32::MIN, f32::max);
        let score = |(id, x): (u32, &f32)| {
            (id, (x - largest).mul_add(inverse, of_word(noise.words(id / 4)[id as usize % 4])))
        };
        let better = |a: (u32, f32), b: (u32, f32)| if b.1 > a.1 { b } else { a };
        (0..).zip(logits).map(score).reduce(better).unwrap().0
    }

    #[test]
    fn shortcuts_do_not_change_draws() {
        // Random words directly from the generator, with another key.
        let words = |i: u32, n: u32| philox([n / 4, i, 0, 0], [36, 36])[n as usize % 4];
        for position in 0..300 {
            // Differences of two noises: as large as normal numbers with deviation 4.
            let logit =
                |n| 2.5 * (of_word(words(position, 2 * n)) - of_word(words(position, 2 * n + 1)));
            let logits: Vec<f32> = (0..1 + position * 7 % 1000).map(logit).collect();
            let unit = words(position, u32::MAX) as f32 / u32::MAX as f32;
            let seed = u64::from(words(position, u32::MAX - 1)) << 32 | u64::from(position);
            let (noise, inverse) = (Noise { seed, position }, 0.25 + 2.0 * unit);
            let largest = logits.iter().copied().fold(f32::MIN, f32::max);
            let mut tokens: Vec<(u32, f32)> =
                (0..).zip(logits.iter().map(|x| x - largest)).collect();
            assert_eq!(
                noise.draw(tokens.iter().copied(), inverse),
                Some(plain(noise, &logits, inverse))
            );
            tokens.reverse();
            assert_eq!(
                noise.draw(tokens, inverse),
                Some(plain(noise, &logits, inverse)),
                "in another order"
            );
        }
    }
}
