//! Cuts of the candidates in addition to top-k, top-p and min-p: top-nσ, typical, XTC; and the
//! dynamic temperature. Only the CPU supports them.

use super::Candidate;
use std::cmp::Ordering;

/// "Exclude top choices": some of the draws remove all likely candidates except the least likely of
/// them (p-e-w, text-generation-webui #6335).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Xtc {
    /// Probability that a draw is cut. With 0 no draw is cut.
    pub probability: f32,
    /// Candidates with at least this probability are likely. Above 0.5 nothing is removed.
    pub threshold: f32,
}

impl Default for Xtc {
    /// No cuts.
    fn default() -> Xtc {
        Xtc { probability: 0.0, threshold: 0.1 }
    }
}

/// A temperature that follows the entropy of the candidates (kalomaze's dynamic temperature, as in
/// llama.cpp). It is `temperature − range` if one candidate is certain, and `temperature + range`
/// if all are equally likely.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct DynamicTemperature {
    /// Distance of the ends from the temperature. With 0 the temperature is constant.
    pub range: f32,
    /// Exponent of the entropy's share.
    pub exponent: f32,
}

impl Default for DynamicTemperature {
    /// A constant temperature.
    fn default() -> DynamicTemperature {
        DynamicTemperature { range: 0.0, exponent: 1.0 }
    }
}

impl DynamicTemperature {
    /// The temperature for these candidates. `largest` is their largest logit.
    pub(super) fn of(self, temperature: f32, c: &[Candidate], largest: f32) -> f32 {
        if self.range <= 0.0 || c.len() < 2 {
            return temperature;
        }
        let weight = |c: &Candidate| f64::from(c.logit - largest).exp();
        let sum: f64 = c.iter().map(weight).sum();
        let entropy: f64 =
            c.iter().map(|c| weight(c) / sum).filter(|p| *p > 0.0).map(|p| -p * p.ln()).sum();
        let share = (entropy / (c.len() as f64).ln()).clamp(0.0, 1.0);
        let (low, high) = ((temperature - self.range).max(0.0), temperature + self.range);
        low + (high - low) * share.powf(f64::from(self.exponent)) as f32
    }
}

/// Top-nσ (Tang et al. 2024, arXiv 2411.07641): keeps the candidates whose logit is at most `n`
/// standard deviations below the largest. Forbidden candidates (−∞) do not count.
pub(super) fn top_n_sigma(c: &mut Vec<Candidate>, n: f32) {
    let finite = || c.iter().map(|c| f64::from(c.logit)).filter(|x| x.is_finite());
    let count = finite().count() as f64;
    if n <= 0.0 || count == 0.0 {
        return;
    }
    let mean = finite().sum::<f64>() / count;
    let deviation = (finite().map(|x| (x - mean).powi(2)).sum::<f64>() / count).sqrt();
    let largest = finite().fold(f64::NEG_INFINITY, f64::max);
    let least = largest - f64::from(n) * deviation;
    c.retain(|c| f64::from(c.logit) >= least);
}

/// Locally typical sampling (Meister et al. 2022, arXiv 2202.00666): keeps the candidates whose
/// surprise is nearest to the entropy, up to this sum of probabilities. Their weights are set.
pub(super) fn typical(c: &mut Vec<Candidate>, p: f32) {
    let sum: f64 = c.iter().map(|c| c.weight).sum();
    if p >= 1.0 || c.len() < 2 || sum <= 0.0 {
        return;
    }
    let surprise = |c: &Candidate| -(c.weight / sum).ln();
    let entropy: f64 =
        c.iter().filter(|c| c.weight > 0.0).map(|c| c.weight / sum * surprise(c)).sum();
    let far = |c: &Candidate| (surprise(c) - entropy).abs();
    c.sort_by(|a, b| {
        far(a).partial_cmp(&far(b)).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
    });
    let mut so_far = 0.0;
    let kept = c.iter().position(|c| {
        so_far += c.weight;
        so_far >= f64::from(p) * sum
    });
    c.truncate(kept.map_or(c.len(), |k| k + 1));
}

impl Xtc {
    /// Whether some draws are cut.
    pub(super) fn cuts(self) -> bool {
        self.probability > 0.0 && self.threshold <= 0.5
    }

    /// Removes the likely candidates except the least likely of them. Their weights are set.
    pub(super) fn cut(self, c: &mut Vec<Candidate>) {
        let sum: f64 = c.iter().map(|c| c.weight).sum();
        let likely = |c: &Candidate| c.weight >= f64::from(self.threshold) * sum;
        let order = |a: &&Candidate, b: &&Candidate| {
            a.weight.total_cmp(&b.weight).then(b.token.cmp(&a.token))
        };
        let Some(last) = c.iter().filter(|c| likely(c)).min_by(order).map(|c| c.token) else {
            return;
        };
        c.retain(|c| !likely(c) || c.token == last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Candidates with these probabilities.
    fn of(all: &[f64]) -> Vec<Candidate> {
        let one =
            |(i, p): (usize, &f64)| Candidate { token: i as u32, logit: p.ln() as f32, weight: *p };
        all.iter().enumerate().map(one).collect()
    }

    fn tokens(mut c: Vec<Candidate>) -> Vec<u32> {
        c.sort_unstable_by_key(|c| c.token);
        c.into_iter().map(|c| c.token).collect()
    }

    #[test]
    fn xtc_keeps_least_likely_token_above_threshold() {
        let cut = |threshold, all: &[f64]| {
            let mut c = of(all);
            Xtc { probability: 1.0, threshold }.cut(&mut c);
            tokens(c)
        };
        // Computed by hand.
        assert_eq!(cut(0.09, &[0.4, 0.3, 0.2, 0.1]), [3]);
        assert_eq!(cut(0.19, &[0.4, 0.3, 0.2, 0.1]), [2, 3]);
        assert_eq!(cut(0.29, &[0.4, 0.3, 0.2, 0.1]), [1, 2, 3]);
        assert_eq!(cut(0.39, &[0.4, 0.3, 0.2, 0.1]), [0, 1, 2, 3]);
        // Only one candidate is likely, so nothing is removed.
        assert_eq!(cut(0.5, &[0.4, 0.3, 0.2, 0.1]), [0, 1, 2, 3]);
    }

    #[test]
    fn typical_keeps_tokens_near_expected_surprise() {
        let cut = |p, all: &[f64]| {
            let mut c = of(all);
            typical(&mut c, p);
            tokens(c)
        };
        // Computed by hand.
        assert_eq!(cut(0.5, &[0.97, 0.01, 0.01, 0.01]), [0]);
        assert_eq!(cut(0.5, &[0.4, 0.2, 0.2, 0.2]), [1, 2, 3]);
        assert_eq!(cut(1.0, &[0.4, 0.2, 0.2, 0.2]), [0, 1, 2, 3]);
    }

    #[test]
    fn top_n_sigma_keeps_scores_near_maximum() {
        let cut = |n, all: &[f64]| {
            let mut c = of(all);
            c.push(Candidate { token: 99, logit: f32::NEG_INFINITY, weight: 0.0 });
            top_n_sigma(&mut c, n);
            tokens(c)
        };
        // The logits deviate by 0.52.
        assert_eq!(cut(1.0, &[0.1, 0.2, 0.3, 0.4]), [2, 3]);
        assert_eq!(cut(3.0, &[0.1, 0.2, 0.3, 0.4]), [0, 1, 2, 3]);
        assert_eq!(cut(0.0, &[0.1, 0.2]), [0, 1, 99]);
    }

    #[test]
    fn dynamic_temperature_follows_entropy() {
        let dynamic = DynamicTemperature { range: 0.5, exponent: 1.0 };
        let at = |all: &[f64]| {
            let c = of(all);
            let largest = c.iter().map(|c| c.logit).fold(f32::MIN, f32::max);
            dynamic.of(1.0, &c, largest)
        };
        assert!((at(&[0.25; 4]) - 1.5).abs() < 1e-6);
        assert!((at(&[1.0, 1e-12, 1e-12, 1e-12]) - 0.5).abs() < 1e-6);
        // Entropy of a half, a fourth and two eighths: 1.75 bits of 2.
        assert!((at(&[0.5, 0.25, 0.125, 0.125]) - (0.5 + 0.875)).abs() < 1e-6);
        assert_eq!(DynamicTemperature::default().of(0.7, &of(&[0.5, 0.5]), 0.0), 0.7);
    }
}
