//! Mirostat (Basu et al. 2021, arXiv 2007.14966): keeps the surprise of an answer's tokens near a
//! target. It replaces all other cuts.

use super::Candidate;

/// Options of mirostat.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Mirostat {
    /// The algorithm of the paper, or its simpler second version, which does not estimate an
    /// exponent.
    pub version: Version,
    /// The target: surprise of a token in bits.
    pub tau: f32,
    /// Learning rate of the limit.
    pub eta: f32,
}

/// The version of mirostat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Version {
    /// Top-k, where k depends on an estimate of Zipf's exponent.
    One,
    /// Removes candidates whose surprise is above the limit.
    Two,
}

/// Number of most likely candidates from which the exponent is estimated.
const ESTIMATED: usize = 100;

impl Mirostat {
    /// The limit before the first token.
    pub(super) fn begin(self) -> f32 {
        2.0 * self.tau
    }

    /// Cuts candidates, whose weights are set, at the limit `mu`. At least one remains.
    pub(super) fn cut(self, c: &mut Vec<Candidate>, mu: f32) {
        c.sort_unstable_by(|a, b| b.weight.total_cmp(&a.weight).then(a.token.cmp(&b.token)));
        let sum: f64 = c.iter().map(|c| c.weight).sum();
        let kept = match self.version {
            Version::Two => {
                c.iter().take_while(|c| -(c.weight / sum).log2() <= f64::from(mu)).count()
            }
            Version::One => top(c, f64::from(mu)),
        };
        c.truncate(kept.max(1));
    }

    /// The limit after a token that was drawn from the candidates.
    pub(super) fn after(self, mu: f32, c: &[Candidate], token: u32) -> f32 {
        let sum: f64 = c.iter().map(|c| c.weight).sum();
        let weight = c.iter().find(|c| c.token == token).map_or(sum, |c| c.weight);
        let surprise = -(weight / sum).log2() as f32;
        if surprise.is_finite() { mu - self.eta * (surprise - self.tau) } else { mu }
    }
}

/// The k of version one: equations 30 and 31 of the paper.
fn top(c: &[Candidate], mu: f64) -> usize {
    let ranks = (1..).zip(c).take(ESTIMATED.min(c.len().saturating_sub(1)));
    let (mut both, mut squares) = (0.0, 0.0);
    for (i, one) in ranks {
        let Some(next) = c.get(i) else { continue };
        if next.weight <= 0.0 {
            continue;
        }
        let t = ((i + 1) as f64 / i as f64).ln();
        both += t * (one.weight / next.weight).ln();
        squares += t * t;
    }
    if squares <= 0.0 {
        return c.len();
    }
    let (s, n) = (both / squares, c.len() as f64);
    let epsilon = s - 1.0;
    let k = match epsilon.abs() < 1e-9 {
        // The limit of the expression below for ε → 0.
        true => 2f64.powf(mu) / n.ln(),
        false => epsilon * 2f64.powf(mu) / (1.0 - n.powf(-epsilon)),
    };
    let k = k.powf(1.0 / s).round();
    if k.is_finite() { (k as usize).clamp(1, c.len()) } else { c.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Candidates whose probabilities follow Zipf's law, in mixed order.
    fn zipf(n: u32, s: f64) -> Vec<Candidate> {
        let one = |i: u32| {
            let rank = f64::from(i * 7919 % n + 1);
            Candidate { token: i, logit: (-s * rank.ln()) as f32, weight: rank.powf(-s) }
        };
        (0..n).map(one).collect()
    }

    #[test]
    fn mirostat_2_keeps_tokens_below_surprise_limit() {
        let mirostat = Mirostat { version: Version::Two, tau: 3.0, eta: 0.1 };
        assert_eq!(mirostat.begin(), 6.0);
        let all = zipf(1000, 1.1);
        let sum: f64 = all.iter().map(|c| c.weight).sum();
        let want = all.iter().filter(|c| -(c.weight / sum).log2() <= 4.0).count();
        let mut c = all.clone();
        mirostat.cut(&mut c, 4.0);
        assert_eq!(c.len(), want);
        assert!(want > 1 && want < 100);
        let mut c = all;
        mirostat.cut(&mut c, -5.0);
        assert_eq!(c.len(), 1);
        assert_eq!(c[0].weight, 1.0);
    }

    #[test]
    fn mirostat_1_estimates_zipf_exponent() {
        let mirostat = Mirostat { version: Version::One, tau: 3.0, eta: 0.1 };
        for s in [1.1f64, 1.5, 2.0] {
            let mut c = zipf(2003, s);
            mirostat.cut(&mut c, 6.0);
            let epsilon = s - 1.0;
            let k = (epsilon * 64.0 / (1.0 - 2003f64.powf(-epsilon))).powf(1.0 / s).round();
            assert_eq!(c.len(), k as usize, "{s}");
        }
    }

    #[test]
    fn mirostat_limit_follows_surprise() {
        let mirostat = Mirostat { version: Version::Two, tau: 2.0, eta: 0.5 };
        let c: Vec<Candidate> = [0.5, 0.25, 0.25]
            .iter()
            .zip(0..)
            .map(|(&weight, token)| Candidate { token, logit: 0.0, weight })
            .collect();
        // One bit is below the target, so the limit rises.
        assert_eq!(mirostat.after(4.0, &c, 0), 4.5);
        assert_eq!(mirostat.after(4.0, &c, 1), 4.0);
    }
}
