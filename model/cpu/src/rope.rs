//! Rotary position embedding on the CPU.

use kjit_graph::{Pairing, Rope};

/// Cosines and sines of some positions.
pub struct RopeTable {
    rope: Rope,
    frequencies: Vec<f64>,
    /// Cosine and sine of each pair, a row of `dims / 2` per token.
    turns: Vec<(f32, f32)>,
    /// Ranges of positions: the first position, and the number of positions.
    filled: Vec<(usize, usize)>,
}

impl RopeTable {
    /// A table for a rotation with these frequency factors.
    pub fn new(rope: &Rope, factors: Option<&[f32]>) -> RopeTable {
        RopeTable {
            rope: rope.clone(),
            frequencies: rope.frequencies(factors),
            turns: vec![],
            filled: vec![],
        }
    }

    /// Computes the angles of ranges of positions (first, number) in f64, which takes 40 ns per
    /// pair.
    pub fn fill(&mut self, runs: impl Iterator<Item = (usize, usize)> + Clone) {
        if runs.clone().eq(self.filled.iter().copied()) {
            return;
        }
        let magnitude = f64::from(self.rope.magnitude);
        self.turns.clear();
        self.filled.clear();
        for (first, n) in runs {
            for position in first..first + n {
                self.turns.extend(self.frequencies.iter().map(|f| {
                    let (sin, cos) = (position as f64 * f).sin_cos();
                    ((cos * magnitude) as f32, (sin * magnitude) as f32)
                }));
            }
            self.filled.push((first, n));
        }
    }

    /// Rotates a row of heads in place. `token` counts from the first position, over all ranges.
    pub fn rotate(&self, token: usize, head_dim: usize, row: &mut [f32]) {
        let half = self.rope.dims / 2;
        let turns = &self.turns[token * half..][..half];
        for head in row.chunks_exact_mut(head_dim) {
            match self.rope.pairing {
                Pairing::Neighbours => {
                    for (x, &(cos, sin)) in head.as_chunks_mut::<2>().0.iter_mut().zip(turns) {
                        let [a, b] = *x;
                        *x = [a * cos - b * sin, a * sin + b * cos];
                    }
                }
                Pairing::Halves => {
                    let (low, high) = head.split_at_mut(half);
                    for ((x, y), &(cos, sin)) in low.iter_mut().zip(high).zip(turns) {
                        (*x, *y) = (*x * cos - *y * sin, *x * sin + *y * cos);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kjit_graph::RopeScaling;

    #[test]
    fn rope_matches_f64_at_far_positions() {
        for pairing in [Pairing::Neighbours, Pairing::Halves] {
            let rope = Rope {
                dims: 6,
                pairing,
                base: 10000.0,
                scaling: RopeScaling::None,
                magnitude: 1.0,
                sections: None,
                factors: None,
                long: None,
            };
            let mut table = RopeTable::new(&rope, None);
            let first = 123_456;
            table.fill([(7, 1), (first, 2)].into_iter());
            let x: Vec<f32> = (0..16).map(|i| i as f32 - 7.5).collect();
            for token in 0..2 {
                let mut y = x.clone();
                table.rotate(1 + token, 8, &mut y);
                for (i, frequency) in rope.frequencies(None).into_iter().enumerate() {
                    let (a, b) =
                        if pairing == Pairing::Halves { (i, i + 3) } else { (2 * i, 2 * i + 1) };
                    let (sin, cos) = ((first + token) as f64 * frequency).sin_cos();
                    for head in [0, 8] {
                        let (p, q) = (f64::from(x[head + a]), f64::from(x[head + b]));
                        assert!(
                            (f64::from(y[head + a]) - (p * cos - q * sin)).abs() < 1e-5,
                            "{pairing:?}"
                        );
                        assert!(
                            (f64::from(y[head + b]) - (p * sin + q * cos)).abs() < 1e-5,
                            "{pairing:?}"
                        );
                        assert_eq!(y[head + 6..head + 8], x[head + 6..head + 8]);
                    }
                }
            }
        }
    }
}
