//! The sampler: chooses the next token from logits.

mod cuts;
mod dry;
mod mirostat;
mod options;

pub use cuts::{DynamicTemperature, Xtc};
pub use dry::Dry;
pub use mirostat::{Mirostat, Version as MirostatVersion};
pub use options::SampleOptions;

use dry::History;
use kjit_kernels::changes::Entry;
use kjit_kernels::noise::{Noise, inverse};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// The set of tokens that may be chosen: one bit for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u64>,
}

impl TokenMask {
    /// Allows these tokens of a vocabulary of `n_vocab`. Larger ids are ignored.
    pub fn new(n_vocab: usize, allowed: impl IntoIterator<Item = u32>) -> TokenMask {
        let mut words = vec![0u64; n_vocab.div_ceil(64)];
        for id in allowed.into_iter().filter(|&id| (id as usize) < n_vocab) {
            if let Some(word) = words.get_mut(id as usize / 64) {
                *word |= 1 << (id % 64);
            }
        }
        TokenMask { words }
    }

    /// Allows the tokens whose bits are set. Token 0 is the lowest bit of the first word.
    pub fn of_bits(n_vocab: usize, bits: &[u32]) -> TokenMask {
        let (pairs, rest) = bits.as_chunks::<2>();
        let last = rest.first().map(|low| u64::from(*low));
        let mut words: Vec<u64> = pairs
            .iter()
            .map(|[low, high]| u64::from(*low) | u64::from(*high) << 32)
            .chain(last)
            .collect();
        words.resize(n_vocab.div_ceil(64), 0);
        TokenMask { words }
    }

    /// Allows one more token, if the vocabulary has it.
    pub fn allow(&mut self, id: u32) {
        if let Some(word) = self.words.get_mut(id as usize / 64) {
            *word |= 1 << (id % 64);
        }
    }

    /// Whether a token may be chosen.
    pub fn allows(&self, id: u32) -> bool {
        self.words.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 == 1)
    }
}

/// Chooses tokens. Options, position, logits and history determine the token on every machine.
/// Earlier draws have no influence. A draw adds noise to each token's score and chooses the largest
/// sum. The noise is computed from the seed, the position and the token's id
/// ([`kjit_kernels::noise`]). So scores that differ in their last bits, such as scores after a
/// cached prompt, rarely change a token. With differences up to `d` at temperature 1, less than a
/// fraction `d` of all draws changes.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SampleOptions,
    mask: Option<TokenMask>,
    /// The last `window` tokens as a ring buffer. When it is full, `next` is the oldest token.
    recent: Vec<u32>,
    next: usize,
    /// Scratch memory for candidates.
    candidates: Vec<Candidate>,
    /// Occurrences of each recent token, sorted by token.
    counts: Vec<(u32, u32)>,
    /// The last tokens, including the prompt. Empty without DRY.
    history: History,
    /// Mirostat's current limit of surprise.
    mu: f32,
}

/// A saved state of a sampler's history.
#[derive(Debug, Clone)]
pub struct SamplerCheckpoint {
    recent: Vec<u32>,
    next: usize,
    history: usize,
    mu: f32,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    token: u32,
    logit: f32,
    weight: f64,
}

impl Sampler {
    /// A sampler with no history.
    pub fn new(options: SampleOptions) -> Sampler {
        let mu = options.mirostat.map_or(0.0, Mirostat::begin);
        Sampler {
            options,
            mask: None,
            recent: vec![],
            next: 0,
            candidates: vec![],
            counts: vec![],
            history: History::default(),
            mu,
        }
    }

    /// Adds the tokens before the answer. DRY also finds repetitions of them. Penalties do not
    /// count them.
    pub fn read(&mut self, prompt: &[u32]) {
        let dry = &self.options.dry;
        if dry.penalises() {
            prompt.iter().for_each(|&token| self.history.push(token, dry.window));
        }
    }

    /// The options.
    pub fn options(&self) -> &SampleOptions {
        &self.options
    }

    /// Allows only these tokens from now on; `None` allows all.
    pub fn set_mask(&mut self, mask: Option<TokenMask>) {
        self.mask = mask;
    }

    /// Whether the choice depends on the logits only through temperature, top-k, top-p and min-p
    /// (no penalties, biases, mask, or options that only the CPU supports).
    pub fn takes_logits_as_they_are(&self) -> bool {
        let o = &self.options;
        !o.penalises() && o.bias.is_empty() && self.mask.is_none() && !o.needs_host()
    }

    /// Penalties and biases as a list for the device, each token below `n_vocab` once. `None` if
    /// the list may exceed `most` tokens, or if an option needs the CPU. The host then adjusts the
    /// logits.
    pub fn adjustments(&self, n_vocab: usize, most: usize) -> Option<Vec<Entry>> {
        let o = &self.options;
        let recent: &[u32] = if o.penalises() { &self.recent } else { &[] };
        if !self.is_adjustable(most) {
            return None;
        }
        let mut entries: BTreeMap<u32, (f32, u32)> = BTreeMap::new();
        o.bias.iter().for_each(|(id, bias)| entries.entry(*id).or_default().0 += bias);
        recent.iter().for_each(|id| entries.entry(*id).or_default().1 += 1);
        let known = entries.into_iter().filter(|(id, _)| (*id as usize) < n_vocab);
        let entry = |(id, (bias, count)): (u32, (f32, u32))| {
            let minus = if count > 0 {
                o.presence_penalty + o.frequency_penalty * count as f32
            } else {
                0.0
            };
            Entry { id, bias, minus, repeated: count > 0 }
        };
        Some(known.map(entry).collect())
    }

    /// Whether a device can choose: no option needs the CPU, and [`Sampler::adjustments`] fits in
    /// `most` entries.
    pub fn is_adjustable(&self, most: usize) -> bool {
        if self.options.needs_host() {
            return false;
        }
        let recent = if self.options.penalises() { self.recent.len() } else { 0 };
        self.options.bias.len() + recent <= most
    }

    /// The mask's words.
    pub fn mask_words(&self) -> Option<&[u64]> {
        self.mask.as_ref().map(|mask| mask.words.as_slice())
    }

    /// Whether biases and the mask allow a token.
    pub fn may_choose(&self, token: u32) -> bool {
        let forbidden = |(id, bias): &(u32, f32)| *id == token && *bias == f32::NEG_INFINITY;
        self.mask.as_ref().is_none_or(|mask| mask.allows(token))
            && !self.options.bias.iter().any(forbidden)
    }

    /// The current history, for [`Sampler::back_to`].
    pub fn mark(&self) -> SamplerCheckpoint {
        let (history, mu) = (self.history.len(), self.mu);
        SamplerCheckpoint { recent: self.recent.clone(), next: self.next, history, mu }
    }

    /// Returns to a mark: tokens that were accepted after it are removed from the history.
    pub fn back_to(&mut self, mark: SamplerCheckpoint) {
        (self.recent, self.next, self.mu) = (mark.recent, mark.next, mark.mu);
        self.history.back_to(mark.history);
    }

    /// Returns to a mark, then accepts the tokens `chosen` again. They are the first tokens that
    /// were accepted after the mark.
    pub fn back_to_after(&mut self, mark: SamplerCheckpoint, chosen: &[u32]) {
        self.back_to(mark);
        chosen.iter().for_each(|&id| self.accept(id));
    }

    /// Applies biases and the mask. Returns whether any token may be chosen.
    pub fn restrict(&self, logits: &mut [f32]) -> bool {
        for &(token, bias) in &self.options.bias {
            if let Some(x) = logits.get_mut(token as usize) {
                *x += bias;
            }
        }
        if let Some(mask) = &self.mask {
            for (id, x) in (0..).zip(logits.iter_mut()) {
                if !mask.allows(id) {
                    *x = f32::NEG_INFINITY;
                }
            }
        }
        logits.iter().any(|x| *x > f32::NEG_INFINITY)
    }

    /// Adds a token to the history that penalties use. [`Sampler::sample`] does this with its
    /// choice.
    pub fn accept(&mut self, token: u32) {
        if self.options.dry.penalises() {
            self.history.push(token, self.options.dry.window);
        }
        if self.options.window == 0 {
            return;
        }
        if self.recent.len() < self.options.window {
            self.recent.push(token);
        } else {
            if let Some(oldest) = self.recent.get_mut(self.next) {
                *oldest = token;
            }
            self.next = (self.next + 1) % self.options.window;
        }
    }

    /// Clears the history.
    pub fn forget(&mut self) {
        self.recent.clear();
        self.next = 0;
        self.history.clear();
        self.mu = self.options.mirostat.map_or(0.0, Mirostat::begin);
    }

    /// Chooses a token and accepts it. `position` is the number of tokens before it in the
    /// sequence. `logits` has one element for each token of the vocabulary; biases, mask and
    /// penalties change it. Among equal logits the lowest id is chosen; NaN is never chosen. The
    /// result is 0 if all logits are NaN or no token is allowed.
    pub fn sample(&mut self, position: usize, logits: &mut [f32]) -> u32 {
        self.restrict(logits);
        self.choose(position, logits)
    }

    /// [`Sampler::sample`] for logits that [`Sampler::restrict`] has processed.
    pub fn choose(&mut self, position: usize, logits: &mut [f32]) -> u32 {
        self.penalise(logits);
        if self.options.dry.penalises() {
            self.options.dry.penalise(&self.history, logits);
        }
        let token = if self.options.temperature > 0.0 {
            self.draw(position, logits)
        } else {
            greedy(logits)
        };
        self.accept(token);
        token
    }

    fn penalise(&mut self, logits: &mut [f32]) {
        let o = &self.options;
        if !o.penalises() {
            return;
        }
        self.counts.clear();
        self.counts.extend(self.recent.iter().map(|&t| (t, 1)));
        self.counts.sort_unstable();
        self.counts.dedup_by(|later, first| {
            let same = later.0 == first.0;
            first.1 += u32::from(same);
            same
        });
        for &(token, count) in &self.counts {
            let Some(x) = logits.get_mut(token as usize) else { continue };
            *x = if *x > 0.0 { *x / o.repeat_penalty } else { *x * o.repeat_penalty };
            *x -= o.presence_penalty + o.frequency_penalty * count as f32;
        }
    }

    fn draw(&mut self, position: usize, logits: &[f32]) -> u32 {
        let o = &self.options;
        let c = &mut self.candidates;
        c.clear();
        c.extend(
            logits.iter().enumerate().filter(|(_, x)| !x.is_nan()).map(|(i, &logit)| Candidate {
                token: i as u32,
                logit,
                weight: 0.0,
            }),
        );
        // −0 equals 0, as in the greedy choice and on a GPU. NaN does not occur here.
        let likeliest_first = |a: &Candidate, b: &Candidate| {
            b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
        };
        if o.needs_host() {
            // Forbidden tokens do not count in the entropy or the deviation.
            c.retain(|c| c.logit > f32::NEG_INFINITY);
        }
        if o.mirostat.is_none() {
            cuts::top_n_sigma(c, o.top_n_sigma);
        }
        if o.mirostat.is_none() && o.top_k > 0 && o.top_k < c.len() {
            // Only the remaining tokens are sorted. Sorting a vocabulary of 128k would take 10 ms.
            c.select_nth_unstable_by(o.top_k - 1, likeliest_first);
            c.truncate(o.top_k);
        }
        let Some(largest) = c.iter().map(|c| c.logit).max_by(f32::total_cmp) else {
            return greedy(logits);
        };
        if largest.is_infinite() {
            return greedy(logits);
        }
        let temperature = o.dynamic_temperature.of(o.temperature, c, largest);
        if temperature <= 0.0 {
            return greedy(logits);
        }
        let noise = Noise { seed: o.seed, position: u32::try_from(position).unwrap_or(u32::MAX) };
        let cut_by_xtc = o.xtc.cuts() && noise.chance() < o.xtc.probability;
        let weighed = o.top_p < 1.0 || o.min_p > 0.0 || o.typical_p < 1.0 || cut_by_xtc;
        if weighed || o.mirostat.is_some() {
            for c in c.iter_mut() {
                c.weight = (f64::from(c.logit - largest) / f64::from(temperature)).exp();
            }
        }
        if let Some(mirostat) = o.mirostat {
            mirostat.cut(c, self.mu);
        } else if weighed {
            // Top-p is first because its sum is over all candidates. The most likely token has
            // weight 1; min-p compares with it.
            let sum: f64 = c.iter().map(|c| c.weight).sum();
            keep_top_p(c, f64::from(o.top_p), sum, likeliest_first);
            c.retain(|c| c.weight >= f64::from(o.min_p));
            cuts::typical(c, o.typical_p);
            if cut_by_xtc {
                o.xtc.cut(c);
            }
        }
        let drawn =
            noise.draw(c.iter().map(|c| (c.token, c.logit - largest)), inverse(temperature));
        let token = drawn.unwrap_or_else(|| greedy(logits));
        if let Some(mirostat) = o.mirostat {
            self.mu = mirostat.after(self.mu, c, token);
        }
        token
    }
}

fn keep_top_p(
    c: &mut Vec<Candidate>,
    top_p: f64,
    sum: f64,
    likeliest_first: impl Fn(&Candidate, &Candidate) -> std::cmp::Ordering,
) {
    if top_p >= 1.0 {
        return;
    }
    c.sort_unstable_by(likeliest_first);
    let mut so_far = 0.0;
    let kept = c.iter().position(|c| {
        so_far += c.weight;
        so_far >= top_p * sum
    });
    c.truncate(kept.map_or(c.len(), |k| k + 1));
}

/// The token with the largest logit, the lowest id among equals.
fn greedy(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    let mut any = false;
    for (i, &x) in logits.iter().enumerate() {
        if x > best.1 || !any && !x.is_nan() {
            best = (i, x);
            any = true;
        }
    }
    best.0 as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(change: impl FnOnce(&mut SampleOptions)) -> Sampler {
        let mut options = SampleOptions { temperature: 1.0, seed: 7, ..SampleOptions::default() };
        change(&mut options);
        Sampler::new(options)
    }

    /// The number of draws of each token among 20000.
    fn counts(mut s: Sampler, logits: &[f32]) -> Vec<usize> {
        let mut counts = vec![0; logits.len()];
        (0..20_000).for_each(|at| counts[s.sample(at, &mut logits.to_vec()) as usize] += 1);
        counts
    }

    #[test]
    fn greedy_takes_lowest_id_of_equals_and_never_nan() {
        let mut s = Sampler::new(SampleOptions::default());
        assert_eq!(s.sample(0, &mut [f32::NAN, 1.0, 3.0, 3.0, f32::NAN]), 2);
        assert_eq!(s.sample(0, &mut [f32::NAN, f32::NEG_INFINITY, f32::NEG_INFINITY]), 1);
        assert_eq!(s.sample(0, &mut [f32::NAN]), 0);
    }

    #[test]
    fn draws_follow_softmax_at_temperature() {
        for temperature in [0.5f32, 1.0, 2.0] {
            let logits = [0.0, 1.0, f32::NAN, -1.0, 0.5];
            let found = counts(sampler(|o| o.temperature = temperature), &logits);
            let weight = |x: f32| if x.is_nan() { 0.0 } else { (x / temperature).exp() };
            let sum: f32 = logits.iter().map(|&x| weight(x)).sum();
            for (n, &x) in found.iter().zip(&logits) {
                // Four standard deviations of 20000 draws are at most 0.015.
                assert!(
                    (*n as f32 / 20_000.0 - weight(x) / sum).abs() < 0.015,
                    "{temperature}: {found:?}"
                );
            }
        }
    }

    #[test]
    fn cuts_keep_exactly_the_named_tokens() {
        let logits = [0.4f32, 0.3, 0.2, 0.1].map(f32::ln);
        let drawn = |s| counts(s, &logits).iter().map(|&n| n > 0).collect::<Vec<_>>();
        assert_eq!(drawn(sampler(|o| o.top_k = 2)), [true, true, false, false]);
        assert_eq!(drawn(sampler(|o| o.top_p = 0.65)), [true, true, false, false]);
        assert_eq!(drawn(sampler(|o| o.top_p = 0.75)), [true, true, true, false]);
        assert_eq!(drawn(sampler(|o| o.min_p = 0.4)), [true, true, true, false]);
        assert_eq!(drawn(sampler(|o| o.top_k = 1)), [true, false, false, false]);
    }

    #[test]
    fn draws_repeat_only_with_the_same_seed() {
        let draw = |seed| {
            let mut s = sampler(|o| o.seed = seed);
            (0..50).map(|at| s.sample(at, &mut [0.0; 100])).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    /// Compares draws over many seeds at one position with draws over many positions with one seed.
    #[test]
    fn draws_pass_chi_square_test_after_cuts() {
        let logits: Vec<f32> =
            (0..60u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 4e6).collect();
        type Cut = fn(&mut SampleOptions);
        let cuts: [Cut; 5] = [
            |_| {},
            |o| o.top_k = 9,
            |o| o.top_p = 0.8,
            |o| o.min_p = 0.1,
            |o| (o.top_k, o.top_p, o.min_p) = (30, 0.9, 0.05),
        ];
        const DRAWS: usize = 20_000;
        for (cut, by_seed) in cuts.into_iter().flat_map(|cut| [(cut, true), (cut, false)]) {
            let mut found = vec![0usize; logits.len()];
            for i in 0..DRAWS {
                let (seed, position) = if by_seed { (i as u64, 5) } else { (5, i) };
                let mut s = sampler(|o| (o.temperature, o.seed) = (0.8, seed));
                cut(&mut s.options);
                found[s.sample(position, &mut logits.clone()) as usize] += 1;
            }
            let mut options = SampleOptions::default();
            cut(&mut options);
            let weight = |x: f32| (f64::from(x) / 0.8).exp();
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
            order.truncate(if options.top_k > 0 { options.top_k } else { logits.len() });
            let sum: f64 = order.iter().map(|&i| weight(logits[i])).sum();
            let mut so_far = 0.0;
            let reached = |&i: &usize| {
                so_far += weight(logits[i]) / sum;
                so_far >= f64::from(options.top_p)
            };
            let kept = order.iter().position(reached).map_or(order.len(), |at| at + 1);
            order.truncate(if options.top_p < 1.0 { kept } else { order.len() });
            let least = f64::from(options.min_p) * weight(logits[order[0]]);
            order.retain(|&i| weight(logits[i]) >= least);
            let sum: f64 = order.iter().map(|&i| weight(logits[i])).sum();
            assert_eq!(
                order.iter().map(|&i| found[i]).sum::<usize>(),
                DRAWS,
                "other tokens are drawn"
            );
            // Tokens with few expected draws are counted together.
            let (mut chi, mut cells, mut rest) = (0.0, 0, (0.0, 0.0));
            for &i in &order {
                let want = weight(logits[i]) / sum * DRAWS as f64;
                let got = found[i] as f64;
                if want < 10.0 {
                    rest = (rest.0 + want, rest.1 + got);
                } else {
                    (chi, cells) = (chi + (got - want).powi(2) / want, cells + 1);
                }
            }
            if rest.0 > 0.0 {
                (chi, cells) = (chi + (rest.1 - rest.0).powi(2) / rest.0, cells + 1);
            }
            // The limit: the mean of chi-square with this number of degrees of freedom plus four
            // standard deviations.
            let freedom = f64::from(cells - 1).max(1.0);
            assert!(
                chi < freedom + 4.0 * (2.0 * freedom).sqrt(),
                "{chi} of {freedom}, by seed {by_seed}"
            );
        }
    }

    /// Scores after a cached prompt differ from recomputed scores by about 1e-3. To first order a
    /// draw changes with probability ½ Σ p(i) p(j) |d(i) − d(j)|. This is at most σ / √π for
    /// differences d with standard deviation σ.
    #[test]
    fn small_score_changes_rarely_change_draws() {
        const DRAWS: usize = 30_000;
        let mut state = 36u64;
        let mut normal = || {
            let mut sum = 0.0;
            for _ in 0..12 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                sum += (state >> 40) as f32 / (1 << 24) as f32;
            }
            sum - 6.0
        };
        let logits: Vec<f32> = (0..300).map(|_| 2.0 * normal()).collect();
        let mut s = sampler(|o| o.seed = 3);
        let mut differ = 0;
        for at in 0..DRAWS {
            let mut moved: Vec<f32> = logits.clone();
            moved.iter_mut().for_each(|x| *x += 1e-3 * normal());
            differ += usize::from(s.sample(at, &mut logits.clone()) != s.sample(at, &mut moved));
        }
        // Expected: 0.56e-3 of 30000, which is 17. Sampling by a cumulative sum over the vocabulary
        // would change many more draws, because a draw could cross any border of the sum.
        assert!((1..30).contains(&differ), "{differ} of {DRAWS}");
    }

    #[test]
    fn draw_is_independent_of_earlier_draws() {
        let logits: Vec<f32> = (0..100u8).map(|i| f32::from(i % 7)).collect();
        let mut all = sampler(|_| {});
        let drawn: Vec<u32> = (0..40).map(|at| all.sample(at, &mut logits.clone())).collect();
        for at in [39, 7, 20] {
            assert_eq!(sampler(|_| {}).sample(at, &mut logits.clone()), drawn[at]);
        }
    }

    #[test]
    fn biases_and_masks_apply_and_empty_choice_is_reported() {
        let mut s = Sampler::new(SampleOptions {
            bias: vec![(2, f32::NEG_INFINITY), (0, 2.0)],
            ..SampleOptions::default()
        });
        assert_eq!(s.sample(0, &mut [0.5, 1.0, 9.0, 2.0]), 0);
        assert!(!s.takes_logits_as_they_are());
        s.set_mask(Some(TokenMask::new(4, [1, 2, 77])));
        assert_eq!(s.sample(0, &mut [0.5, 1.0, 9.0, 2.0]), 1);
        assert!(!s.restrict(&mut [1.0]) && s.restrict(&mut [0.0, 1.0]));
        // Draws respect the mask at any temperature.
        let mut warm = sampler(|o| o.temperature = 100.0);
        warm.set_mask(Some(TokenMask::new(100, [63, 64])));
        let drawn: std::collections::BTreeSet<u32> =
            (0..200).map(|at| warm.sample(at, &mut [1.0; 100])).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [63, 64]);
    }

    #[test]
    fn penalties_count_only_the_window() {
        let mut s = Sampler::new(SampleOptions {
            repeat_penalty: 2.0,
            presence_penalty: 0.25,
            frequency_penalty: 0.5,
            window: 3,
            ..SampleOptions::default()
        });
        [4, 0, 1, 1].into_iter().for_each(|t| s.accept(t)); // 4 is no longer in the window
        let mut logits = [2.0, -2.0, 0.0, 0.0, 0.25];
        assert_eq!(s.sample(0, &mut logits), 0);
        assert_eq!(logits, [2.0 / 2.0 - 0.25 - 0.5, -2.0 * 2.0 - 0.25 - 1.0, 0.0, 0.0, 0.25]);
    }
}
