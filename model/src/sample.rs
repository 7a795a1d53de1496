//! Choosing the next token.

use kjit_kernels::changes::Entry;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// What a sampler does with the logits, in this order: biases and the mask, penalties, then (unless greedy)
/// top-k, temperature, top-p, min-p, and a draw.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct SampleOptions {
    /// Divides logits before the softmax; 0 is greedy.
    pub temperature: f32,
    /// Only the most likely `top_k` tokens; 0 for all.
    pub top_k: usize,
    /// Only the most likely tokens whose probabilities first reach this sum; 1 for all.
    pub top_p: f32,
    /// Only tokens at least this times as likely as the most likely one; 0 for all.
    pub min_p: f32,
    /// Logits of recent tokens are divided by this if positive, multiplied if negative (Keskar et al. 2019,
    /// arXiv 1909.05858); 1 for none.
    pub repeat_penalty: f32,
    /// Subtracted once from logits of recent tokens.
    pub presence_penalty: f32,
    /// Subtracted from logits of recent tokens for each time they were seen.
    pub frequency_penalty: f32,
    /// Tokens back that count as recent.
    pub window: usize,
    /// Start of the random numbers.
    pub seed: u64,
    /// Added to the logits of these tokens, before anything else; −∞ forbids one.
    pub bias: Vec<(u32, f32)>,
}

impl SampleOptions {
    /// Whether logits are changed by tokens that were chosen before.
    pub fn penalises(&self) -> bool {
        self.repeat_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// The tokens that may be chosen: a bit for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u64>,
}

impl TokenMask {
    /// Lets these tokens through, of a vocabulary of so many; ids beyond it are passed over.
    pub fn new(n_vocab: usize, allowed: impl IntoIterator<Item = u32>) -> TokenMask {
        let mut words = vec![0u64; n_vocab.div_ceil(64)];
        for id in allowed.into_iter().filter(|&id| (id as usize) < n_vocab) {
            if let Some(word) = words.get_mut(id as usize / 64) {
                *word |= 1 << (id % 64);
            }
        }
        TokenMask { words }
    }

    /// Lets those through whose bits are set, the first token's the lowest of the first word.
    pub fn of_bits(n_vocab: usize, bits: &[u32]) -> TokenMask {
        let (pairs, rest) = bits.as_chunks::<2>();
        let last = rest.first().map(|low| u64::from(*low));
        let mut words: Vec<u64> =
            pairs.iter().map(|[low, high]| u64::from(*low) | u64::from(*high) << 32).chain(last).collect();
        words.resize(n_vocab.div_ceil(64), 0);
        TokenMask { words }
    }

    /// Lets this token through, too, if the vocabulary has it.
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

impl Default for SampleOptions {
    /// Greedy, nothing penalised.
    fn default() -> Self {
        SampleOptions {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            window: 64,
            seed: 0,
            bias: vec![],
        }
    }
}

/// Chooses tokens. The same options, logits and history give the same tokens on every machine: the random
/// numbers are xoshiro256++ (Blackman & Vigna 2018, arXiv 1805.01407) seeded through splitmix64, one number
/// for each draw, its top 53 bits taken as a fraction.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: SampleOptions,
    mask: Option<TokenMask>,
    state: [u64; 4],
    /// The last `window` tokens, a ring; `next` is the oldest once it is full.
    recent: Vec<u32>,
    next: usize,
    /// Candidates, kept for their memory.
    candidates: Vec<Candidate>,
    /// How often each recent token was seen, sorted by token.
    counts: Vec<(u32, u32)>,
}

/// Where a sampler was.
#[derive(Debug, Clone)]
pub(crate) struct Mark {
    state: [u64; 4],
    recent: Vec<u32>,
    next: usize,
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
        let mut seed = options.seed;
        let state = std::array::from_fn(|_| splitmix64(&mut seed));
        Sampler { options, mask: None, state, recent: vec![], next: 0, candidates: vec![], counts: vec![] }
    }

    /// What it does.
    pub fn options(&self) -> &SampleOptions {
        &self.options
    }

    /// Lets only these tokens through from now on; none: all.
    pub fn set_mask(&mut self, mask: Option<TokenMask>) {
        self.mask = mask;
    }

    /// Whether the choice follows from the logits as they are, by the options' temperature and cuts alone:
    /// then a device can make it.
    pub fn takes_logits_as_they_are(&self) -> bool {
        !self.options.penalises() && self.options.bias.is_empty() && self.mask.is_none()
    }

    /// What it does to the logits before the choice, beside the mask, as a list with each token once, ids up to
    /// `n_vocab`: for a device that does it. None where that may be more than `most` tokens: then the host does.
    pub(crate) fn adjustments(&self, n_vocab: usize, most: usize) -> Option<Vec<Entry>> {
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
            let minus = if count > 0 { o.presence_penalty + o.frequency_penalty * count as f32 } else { 0.0 };
            Entry { id, bias, minus, repeated: count > 0 }
        };
        Some(known.map(entry).collect())
    }

    /// Whether [`Sampler::adjustments`] has a list of so many tokens.
    pub(crate) fn is_adjustable(&self, most: usize) -> bool {
        let recent = if self.options.penalises() { self.recent.len() } else { 0 };
        self.options.bias.len() + recent <= most
    }

    /// The mask's words, if there is one.
    pub(crate) fn mask_words(&self) -> Option<&[u64]> {
        self.mask.as_ref().map(|mask| mask.words.as_slice())
    }

    /// Whether biases and the mask let a token through.
    pub(crate) fn may_choose(&self, token: u32) -> bool {
        let forbidden = |(id, bias): &(u32, f32)| *id == token && *bias == f32::NEG_INFINITY;
        self.mask.as_ref().is_none_or(|mask| mask.allows(token)) && !self.options.bias.iter().any(forbidden)
    }

    /// Where it is, to come back to.
    pub(crate) fn mark(&self) -> Mark {
        Mark { state: self.state, recent: self.recent.clone(), next: self.next }
    }

    /// Goes back: what was chosen since was not.
    pub(crate) fn back_to(&mut self, mark: Mark) {
        (self.state, self.recent, self.next) = (mark.state, mark.recent, mark.next);
    }

    /// Goes back, and takes in these tokens of those that were chosen since, the first ones: the others were not.
    pub(crate) fn back_to_after(&mut self, mark: Mark, chosen: &[u32]) {
        self.back_to(mark);
        if self.options.temperature > 0.0 {
            self.skip(chosen.len());
        }
        chosen.iter().for_each(|&id| self.accept(id));
    }

    /// The state of the random numbers.
    pub(crate) fn random_state(&self) -> [u64; 4] {
        self.state
    }

    /// Applies biases and the mask; whether a token is left that may be chosen.
    pub(crate) fn restrict(&self, logits: &mut [f32]) -> bool {
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

    /// Enters a token into the history that penalties look at; [`Sampler::sample`] does this with what it
    /// chooses.
    pub fn accept(&mut self, token: u32) {
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

    /// Forgets the history; the random numbers go on.
    pub fn forget(&mut self) {
        self.recent.clear();
        self.next = 0;
    }

    /// The random numbers of the next draws, without taking them: for a device that draws by itself.
    /// [`Sampler::skip`] then takes those that were used.
    pub fn fractions(&self, draws: usize) -> Vec<f32> {
        let mut state = self.state;
        // Rounding to a single may reach one, which no draw may see.
        (0..draws).map(|_| (fraction(&mut state) as f32).min(1.0 - f32::EPSILON / 2.0)).collect()
    }

    /// Takes the random numbers of so many draws.
    pub fn skip(&mut self, draws: usize) {
        (0..draws).for_each(|_| _ = fraction(&mut self.state));
    }

    /// Chooses a token and accepts it. `logits` has one for each token of the vocabulary and is changed by
    /// biases, the mask and penalties. Among equals the lowest id wins; NaN is never chosen. If no logit is a
    /// number, or no token is allowed, the result is 0.
    pub fn sample(&mut self, logits: &mut [f32]) -> u32 {
        self.restrict(logits);
        self.choose(logits)
    }

    /// The same of logits that [`Sampler::restrict`] has seen.
    pub(crate) fn choose(&mut self, logits: &mut [f32]) -> u32 {
        self.penalise(logits);
        let token = if self.options.temperature > 0.0 { self.draw(logits) } else { greedy(logits) };
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

    fn draw(&mut self, logits: &[f32]) -> u32 {
        let o = &self.options;
        let c = &mut self.candidates;
        c.clear();
        c.extend(logits.iter().enumerate().filter(|(_, x)| !x.is_nan()).map(|(i, &logit)| Candidate {
            token: i as u32,
            logit,
            weight: 0.0,
        }));
        // −0 equals 0, as for the greedy choice and on a GPU; NaN is not among them.
        let likeliest_first = |a: &Candidate, b: &Candidate| {
            b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
        };
        if o.top_k > 0 && o.top_k < c.len() {
            // Only the chosen are sorted: sorting a vocabulary of 128k takes 10 ms.
            c.select_nth_unstable_by(o.top_k - 1, likeliest_first);
            c.truncate(o.top_k);
        }
        let Some(largest) = c.iter().map(|c| c.logit).max_by(f32::total_cmp) else { return 0 };
        if largest.is_infinite() {
            return greedy(logits);
        }
        for c in c.iter_mut() {
            c.weight = (f64::from(c.logit - largest) / f64::from(o.temperature)).exp();
        }
        if o.min_p > 0.0 {
            // The likeliest has weight 1. Whatever top-p keeps besides is less likely than what it keeps, so
            // the two commute but for its sum: top-p's share is of the whole, and is taken first.
            let sum: f64 = c.iter().map(|c| c.weight).sum();
            keep_top_p(c, f64::from(o.top_p), sum, likeliest_first);
            c.retain(|c| c.weight >= f64::from(o.min_p));
        } else {
            let sum: f64 = c.iter().map(|c| c.weight).sum();
            keep_top_p(c, f64::from(o.top_p), sum, likeliest_first);
        }
        // In the order of ids, so that the draw does not depend on how the selection left them.
        c.sort_unstable_by_key(|c| c.token);
        let sum: f64 = c.iter().map(|c| c.weight).sum();
        let mut at = fraction(&mut self.state) * sum;
        for c in c.iter() {
            at -= c.weight;
            if at < 0.0 {
                return c.token;
            }
        }
        c.iter().rev().find(|c| c.weight > 0.0).map_or(0, |c| c.token)
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

/// The largest logit's token, the lowest among equals.
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

fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The next number of xoshiro256++ as a fraction in 0..1.
fn fraction(s: &mut [u64; 4]) -> f64 {
    let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
    let t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = s[3].rotate_left(45);
    (result >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(change: impl FnOnce(&mut SampleOptions)) -> Sampler {
        let mut options = SampleOptions { temperature: 1.0, seed: 7, ..SampleOptions::default() };
        change(&mut options);
        Sampler::new(options)
    }

    /// How often each of the logits' tokens is drawn of 20000.
    fn counts(mut s: Sampler, logits: &[f32]) -> Vec<usize> {
        let mut counts = vec![0; logits.len()];
        for _ in 0..20_000 {
            counts[s.sample(&mut logits.to_vec()) as usize] += 1;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_lowest_id_among_equals_and_never_nan() {
        let mut s = Sampler::new(SampleOptions::default());
        assert_eq!(s.sample(&mut [f32::NAN, 1.0, 3.0, 3.0, f32::NAN]), 2);
        assert_eq!(s.sample(&mut [f32::NAN, f32::NEG_INFINITY, f32::NEG_INFINITY]), 1);
        assert_eq!(s.sample(&mut [f32::NAN]), 0);
    }

    #[test]
    fn draws_follow_the_softmax_at_the_temperature() {
        for temperature in [0.5f32, 1.0, 2.0] {
            let logits = [0.0, 1.0, f32::NAN, -1.0, 0.5];
            let found = counts(sampler(|o| o.temperature = temperature), &logits);
            let weight = |x: f32| if x.is_nan() { 0.0 } else { (x / temperature).exp() };
            let sum: f32 = logits.iter().map(|&x| weight(x)).sum();
            for (n, &x) in found.iter().zip(&logits) {
                // Four standard deviations of 20000 draws are at most 0.015.
                assert!((*n as f32 / 20_000.0 - weight(x) / sum).abs() < 0.015, "{temperature}: {found:?}");
            }
        }
    }

    #[test]
    fn cuts_leave_exactly_the_tokens_they_name() {
        let logits = [0.4f32, 0.3, 0.2, 0.1].map(f32::ln);
        let drawn = |s| counts(s, &logits).iter().map(|&n| n > 0).collect::<Vec<_>>();
        assert_eq!(drawn(sampler(|o| o.top_k = 2)), [true, true, false, false]);
        assert_eq!(drawn(sampler(|o| o.top_p = 0.65)), [true, true, false, false]);
        assert_eq!(drawn(sampler(|o| o.top_p = 0.75)), [true, true, true, false]);
        assert_eq!(drawn(sampler(|o| o.min_p = 0.4)), [true, true, true, false]);
        assert_eq!(drawn(sampler(|o| o.top_k = 1)), [true, false, false, false]);
    }

    #[test]
    fn the_same_seed_draws_the_same_and_another_does_not() {
        let draw = |seed| {
            let mut s = sampler(|o| o.seed = seed);
            (0..50).map(|_| s.sample(&mut [0.0; 100])).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn biases_and_masks_forbid_and_favour_and_an_empty_choice_is_told() {
        let mut s =
            Sampler::new(SampleOptions { bias: vec![(2, f32::NEG_INFINITY), (0, 2.0)], ..SampleOptions::default() });
        assert_eq!(s.sample(&mut [0.5, 1.0, 9.0, 2.0]), 0);
        assert!(!s.takes_logits_as_they_are());
        s.set_mask(Some(TokenMask::new(4, [1, 2, 77])));
        assert_eq!(s.sample(&mut [0.5, 1.0, 9.0, 2.0]), 1);
        assert!(!s.restrict(&mut [1.0]) && s.restrict(&mut [0.0, 1.0]));
        // Drawn, too: nothing that is forbidden, however warm.
        let mut warm = sampler(|o| o.temperature = 100.0);
        warm.set_mask(Some(TokenMask::new(100, [63, 64])));
        let drawn: std::collections::BTreeSet<u32> = (0..200).map(|_| warm.sample(&mut [1.0; 100])).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [63, 64]);
    }

    #[test]
    fn penalties_count_the_window_and_only_the_window() {
        let mut s = Sampler::new(SampleOptions {
            repeat_penalty: 2.0,
            presence_penalty: 0.25,
            frequency_penalty: 0.5,
            window: 3,
            ..SampleOptions::default()
        });
        [4, 0, 1, 1].into_iter().for_each(|t| s.accept(t)); // 4 has left the window
        let mut logits = [2.0, -2.0, 0.0, 0.0, 0.25];
        assert_eq!(s.sample(&mut logits), 0);
        assert_eq!(logits, [2.0 / 2.0 - 0.25 - 0.5, -2.0 * 2.0 - 0.25 - 1.0, 0.0, 0.0, 0.25]);
    }
}
