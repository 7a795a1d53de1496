//! DRY ("don't repeat yourself", p-e-w, text-generation-webui #5677): the logit of a token that
//! would continue a repetition is reduced by `multiplier × base^(length − allowed)`. The history
//! includes the prompt.

/// Options of DRY. Off by default.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Dry {
    /// Factor of the penalty. With 0 there is no penalty.
    pub multiplier: f32,
    /// Base of the penalty's exponential.
    pub base: f32,
    /// Repetitions shorter than this have no penalty.
    pub allowed_length: usize,
    /// The number of last tokens that are searched for repetitions.
    pub window: usize,
    /// Tokens that end a repetition, ascending.
    pub breakers: Vec<u32>,
}

impl Dry {
    /// llama.cpp's default texts at which a repetition ends. [`Dry::breakers`] has the ids of all
    /// tokens that contain one of them.
    pub const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];
}

impl Default for Dry {
    /// DRY is off; the other values are those of llama.cpp.
    fn default() -> Dry {
        Dry { multiplier: 0.0, base: 1.75, allowed_length: 2, window: 1 << 16, breakers: vec![] }
    }
}

/// Longest repetition that is counted. Its penalty is much larger than any logit.
const MAX_REPETITION: usize = 512;

/// The last tokens of a sequence.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    tokens: Vec<u32>,
    /// Number of earlier tokens that were dropped.
    dropped: usize,
}

/// Number of tokens that are stored in addition to the window, so that drafts can be removed.
const DRAFT_RESERVE: usize = 64;

impl History {
    /// Adds a token. At least the last `window` tokens are stored.
    pub fn push(&mut self, token: u32, window: usize) {
        self.tokens.push(token);
        let most = window.saturating_add(DRAFT_RESERVE);
        if self.tokens.len() > most.saturating_mul(2) {
            let more = self.tokens.len() - most;
            self.tokens.drain(..more);
            self.dropped += more;
        }
    }

    /// Number of tokens so far.
    pub fn len(&self) -> usize {
        self.dropped + self.tokens.len()
    }

    /// Returns to this number of tokens.
    pub fn back_to(&mut self, len: usize) {
        self.tokens.truncate(len.saturating_sub(self.dropped));
    }

    pub fn clear(&mut self) {
        *self = History::default();
    }
}

impl Dry {
    /// Whether tokens are penalised.
    pub fn penalises(&self) -> bool {
        self.multiplier > 0.0
    }

    /// Subtracts the penalties.
    pub(super) fn penalise(&self, history: &History, logits: &mut [f32]) {
        let from = history.tokens.len().saturating_sub(self.window);
        let recent = history.tokens.get(from..).unwrap_or_default();
        for (token, length) in repeated(recent, &self.breakers) {
            if length < self.allowed_length.max(1) {
                continue;
            }
            let Some(x) = logits.get_mut(token as usize) else { continue };
            // The penalty may be infinite. The token is then forbidden.
            let power = f64::from(self.base).powf((length - self.allowed_length) as f64);
            *x -= (f64::from(self.multiplier) * power).min(f64::from(f32::MAX)) as f32;
        }
    }
}

/// The tokens that would continue a repetition, each once, with the length of the longest
/// repetition. A repetition means that the end of `tokens` equals the tokens before an earlier
/// occurrence of this token. A repetition does not contain a breaker.
fn repeated(tokens: &[u32], breakers: &[u32]) -> Vec<(u32, usize)> {
    let breaks = |token: &u32| breakers.binary_search(token).is_ok();
    let most = tokens.iter().rev().take(MAX_REPETITION).take_while(|t| !breaks(t)).count();
    if most == 0 {
        return vec![];
    }
    // The Z function of the reversed tokens (Gusfield 1997). lengths[i] is the number of tokens
    // ending i before the end that equal the tokens at the end. The time is linear.
    let reversed: Vec<u32> = tokens.iter().rev().copied().collect();
    let n = reversed.len();
    let at = |i: usize| reversed.get(i).copied();
    let mut lengths = vec![0usize; n];
    let (mut left, mut right) = (0, 0);
    let mut longest: std::collections::BTreeMap<u32, usize> = std::collections::BTreeMap::new();
    for i in 1..n {
        let known = if i < right {
            (right - i).min(lengths.get(i - left).copied().unwrap_or(0))
        } else {
            0
        };
        let mut length = known;
        while i + length < n && at(length) == at(i + length) {
            length += 1;
        }
        if let Some(slot) = lengths.get_mut(i) {
            *slot = length;
        }
        if i + length > right {
            (left, right) = (i, i + length);
        }
        // The token at i − 1 in the reversed order follows this position.
        if length > 0
            && let Some(next) = at(i - 1).filter(|next| !breaks(next))
        {
            let slot = longest.entry(next).or_default();
            *slot = (*slot).max(length.min(most));
        }
    }
    longest.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, computed in quadratic time.
    fn slowly(tokens: &[u32], breakers: &[u32]) -> Vec<(u32, usize)> {
        let mut longest = std::collections::BTreeMap::new();
        let n = tokens.len();
        for place in 0..n.saturating_sub(1) {
            let mut length = 0;
            while length <= place
                && tokens[place - length] == tokens[n - 1 - length]
                && !breakers.contains(&tokens[n - 1 - length])
            {
                length += 1;
            }
            let next = tokens[place + 1];
            if length > 0 && !breakers.contains(&next) {
                let slot: &mut usize = longest.entry(next).or_default();
                *slot = (*slot).max(length);
            }
        }
        longest.into_iter().collect()
    }

    #[test]
    fn dry_repetitions_match_the_definition() {
        let mut state = 5u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..300 {
            let (n, kinds) = (next(60), 1 + next(4));
            let tokens: Vec<u32> = (0..n).map(|_| next(kinds) as u32).collect();
            let breakers: Vec<u32> = (0..4).filter(|_| next(4) == 0).collect();
            assert_eq!(repeated(&tokens, &breakers), slowly(&tokens, &breakers), "{tokens:?}");
        }
    }

    #[test]
    fn dry_penalty_grows_with_repetition_and_ignores_truncated_tokens() {
        let dry = Dry { multiplier: 0.5, base: 2.0, allowed_length: 2, ..Dry::default() };
        let mut history = History::default();
        // 1 2 3 occurred before, and 1 2 again: 3 would continue a repetition of two.
        [1, 2, 3, 9, 1, 2].into_iter().for_each(|t| history.push(t, dry.window));
        let mut logits = [0.0f32; 10];
        dry.penalise(&history, &mut logits);
        assert_eq!(logits, [0.0, 0.0, 0.0, -0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        // After 3 it is a repetition of three: 0.5 × 2^1 for 9.
        let len = history.len();
        history.push(3, dry.window);
        let mut logits = [0.0f32; 10];
        dry.penalise(&history, &mut logits);
        assert_eq!(logits[9], -1.0);
        history.back_to(len);
        history.push(7, dry.window);
        let mut logits = [0.0f32; 10];
        dry.penalise(&history, &mut logits);
        assert_eq!(logits, [0.0; 10]);
    }

    #[test]
    fn dry_window_limits_history_and_endless_repetition_is_forbidden() {
        let dry = Dry { multiplier: 1.0, window: 4, ..Dry::default() };
        let mut history = History::default();
        for _ in 0..10_000 {
            history.push(3, dry.window);
        }
        assert_eq!(history.len(), 10_000);
        assert!(history.tokens.len() <= 2 * (4 + DRAFT_RESERVE));
        let dry = Dry { window: 1 << 20, ..dry };
        let mut history = History::default();
        for _ in 0..10_000 {
            history.push(3, dry.window);
        }
        let mut logits = [0.0f32; 5];
        dry.penalise(&history, &mut logits);
        assert!(logits[3] < -1e30 && logits[2] == 0.0, "{logits:?}");
    }
}
