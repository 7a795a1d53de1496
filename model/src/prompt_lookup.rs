//! Drafts of the next tokens from repetitions in the text (prompt lookup decoding, Saxena 2023;
//! Yang et al. 2023, arXiv 2304.04487). If the last few tokens occurred before, the tokens that
//! followed them are the draft. Drafted tokens are verified in one step with the current token.
//! Only tokens that the sampler chooses too are accepted, so the text is the same up to near-ties.

use crate::exec::FIRST_IMAGE_ID;
use crate::session::{DecodeControl, SequenceId, Session, SessionError, StepOutput, Want, Work};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Lengths of a match in tokens, in the order of the search. Drafts of longer matches are accepted
/// more often.
const LENGTHS: [usize; 3] = [4, 3, 2];
/// Maximum number of drafted tokens of a step.
pub const MAX_DRAFTS: usize = crate::exec::DRAFTS;

/// An index of the n-grams of a text.
#[derive(Debug, Clone, Default)]
pub struct Lookup {
    /// Key: the tokens of an n-gram, padded with zeros, and its length. Value: the position after
    /// its last occurrence.
    positions: HashMap<([u32; 4], u8), u32>,
    /// Number of indexed tokens: n-grams that end here or earlier are in `positions`.
    indexed: usize,
}

/// The index key of an n-gram.
fn key(piece: &[u32]) -> ([u32; 4], u8) {
    let mut tokens = [0; 4];
    tokens.iter_mut().zip(piece).for_each(|(to, from)| *to = *from);
    (tokens, piece.len() as u8)
}

impl Lookup {
    /// Drafts up to `most` tokens that may follow `tokens`; usually none. `tokens` is the whole
    /// text: the text of the previous call with tokens appended.
    pub fn draft(&mut self, tokens: &[u32], most: usize) -> Vec<u32> {
        // N-grams that end with the last token are not indexed yet, because no token follows them.
        for end in self.indexed + 1..tokens.len() {
            for n in LENGTHS {
                if let Some(piece) = end.checked_sub(n).and_then(|start| tokens.get(start..end)) {
                    self.positions.insert(key(piece), end as u32);
                }
            }
            self.indexed = end;
        }
        let last = |n: &usize| tokens.len().checked_sub(*n).and_then(|start| tokens.get(start..));
        let found =
            LENGTHS.iter().filter_map(last).find_map(|piece| self.positions.get(&key(piece)));
        let mut draft = vec![];
        if let Some(&at) = found {
            // If the match is near the end of the text, the draft repeats its own tokens.
            for from in at as usize..at as usize + most.min(MAX_DRAFTS) {
                let beyond = from.checked_sub(tokens.len()).and_then(|i| draft.get(i));
                let next = tokens.get(from).or(beyond).copied();
                draft.extend(next);
            }
        }
        // No model chooses a row of an image.
        let image = draft.iter().position(|id| *id >= FIRST_IMAGE_ID);
        draft.truncate(image.unwrap_or(draft.len()));
        draft
    }
}

/// Decides from measured step times whether drafts are faster. A drafted step takes longer and
/// gives more tokens.
#[derive(Debug, Clone, Copy, Default)]
pub struct DraftPolicy {
    /// Mean seconds of a plain step and of a drafted step, and the mean number of accepted tokens
    /// of a draft. Zero means not measured.
    plain: f64,
    drafted: f64,
    gained: f64,
    /// Steps since the last trial.
    since: u32,
    /// Steps to wait before the next trial, in addition to [`RETRY_STEPS`]. After a trial that was
    /// slower, it is doubled and increased by [`RETRY_STEPS`].
    patience: u32,
    /// Whether [`DraftPolicy::would`] was called: acceptance is also counted for drafts that were
    /// not run.
    counted: bool,
    /// Drafted steps of the current trial; `None` outside a trial. The first step of a trial has
    /// one-off costs (the device stops running ahead, graphs are recorded), so a few accepted
    /// drafts are judged together.
    trying: Option<u32>,
}

/// Number of plain steps that are measured before the first drafted step.
const MEASURED_PLAIN_STEPS: u32 = 3;
/// Number of steps until the other mode is tried again: the text and the number of sequences in a
/// step change.
const RETRY_STEPS: u32 = 48;
/// Drafted steps of a trial while drafts are accepted.
const TRIAL_STEPS: u32 = 4;
/// Maximum of [`DraftPolicy::patience`].
const MAX_PATIENCE: u32 = 15 * RETRY_STEPS;
/// Accepted tokens per draft that are needed for a trial, counted without running the drafts.
const MIN_ACCEPTED: f64 = 1.0;

impl DraftPolicy {
    /// Whether the next step, with `sequences` sequences, may have drafts.
    pub fn go(&self, sequences: usize) -> bool {
        let worth = !self.counted || self.gained >= MIN_ACCEPTED;
        if self.trying.is_some() {
            return true;
        }
        if self.plain == 0.0 || self.drafted == 0.0 {
            return self.since >= MEASURED_PLAIN_STEPS && worth;
        }
        // The other mode is tried from time to time.
        match (self.pays(sequences), self.since >= RETRY_STEPS + self.patience) {
            (true, again) => !again,
            (false, again) => again && worth,
        }
    }

    fn pays(&self, sequences: usize) -> bool {
        let n = sequences.max(1) as f64;
        (n + self.gained) * self.plain > n * self.drafted
    }

    /// Counts a draft that was not run: `right` of its tokens were chosen anyway.
    pub fn would(&mut self, right: usize) {
        // The first count weighs 1/8. A trial starts only if most of a full draft is right, not
        // after one draft that is right by chance.
        let share = if std::mem::replace(&mut self.counted, true) { 8.0 } else { 4.0 };
        self.gained += (right as f64 - self.gained) / share;
    }

    /// Adds a step: its time, and the number of accepted tokens if it had drafts.
    pub fn saw(&mut self, took: Duration, accepted: Option<usize>) {
        let mean = |old: f64, new: f64| if old == 0.0 { new } else { old + (new - old) / 8.0 };
        let took = took.as_secs_f64().max(1e-9);
        let before = (self.drafted > 0.0, self.since);
        match accepted {
            None => self.plain = mean(self.plain, took),
            Some(n) => {
                let right = n as f64;
                // A trial that starts well replaces the earlier measurements.
                let tried = self.trying.or((!before.0 || n > 0 && !self.pays(1)).then_some(0));
                let share = tried.map_or(8.0, |tried| f64::from(tried + 1));
                self.drafted += (took - self.drafted) / share;
                self.gained += (right - self.gained) / share;
                self.trying = tried
                    .map(|tried| tried + 1)
                    .filter(|tried| *tried < TRIAL_STEPS && right > MIN_ACCEPTED);
            }
        }
        self.since = self.since.saturating_add(1);
        let tried = before.1 >= RETRY_STEPS + self.patience;
        if accepted.is_some() && !before.0 || tried {
            self.since = 0;
        }
        if tried && accepted.is_some() {
            self.patience = if self.trying.is_some() || self.pays(1) {
                0
            } else {
                (2 * self.patience + RETRY_STEPS).min(MAX_PATIENCE)
            };
        }
    }
}

/// Counts of drafted and accepted tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Drafts {
    /// Tokens drafted.
    pub drafted: usize,
    /// Drafted tokens that were accepted.
    pub accepted: usize,
}

/// Like [`Session::decode`] of one sequence, with drafts if they are faster. `text` is the known
/// text; its last `start` tokens are fed first. A model with a recurrent state is decoded without
/// drafts: recomputing after a rejection takes longer than accepted drafts save.
///
/// # Errors
/// See [`Session::decode`].
pub fn decode(
    session: &mut Session,
    sequence: SequenceId,
    mut text: Vec<u32>,
    start: usize,
    sink: &mut dyn FnMut(u32) -> DecodeControl,
) -> Result<Drafts, SessionError> {
    let (mut lookup, mut pays, mut drafts) =
        (Lookup::default(), DraftPolicy::default(), Drafts::default());
    let (context, recurrent) = (session.context(), session.graph().is_recurrent());
    let mut tokens = text.get(text.len().saturating_sub(start)..).unwrap_or_default().to_vec();
    // A GPU that chooses tokens runs ahead of the host. It stops for a draft only if counted drafts
    // were accepted.
    let runs_ahead = session.runs_ahead();
    let mut after_drafts = false;
    loop {
        let (len, fed) = (session.len(sequence)?, tokens.len());
        let room = context.saturating_sub(len + fed);
        // The step of the prompt is not representative.
        let may = fed == 1 && !recurrent && pays.go(1);
        let draft = if may { lookup.draft(&text, room) } else { vec![] };
        let begun = Instant::now();
        let (mut ended, mut right) = (false, 0);
        if draft.is_empty() && runs_ahead {
            let mut stretch = DeviceRun {
                last: begun,
                came: 0,
                after_drafts: std::mem::take(&mut after_drafts),
                dry: vec![],
                right: 0,
            };
            session.decode_past_ends(&[(sequence, &tokens)], &mut |_, id| {
                text.push(id);
                ended = sink(id) != DecodeControl::Go;
                let leave = !recurrent && stretch.token(&mut lookup, &mut pays, &text, context);
                if ended || leave { DecodeControl::Pause } else { DecodeControl::Go }
            })?;
        } else {
            tokens.extend(&draft);
            let want = if draft.is_empty() { Want::Choose } else { Want::Drafted(draft.len()) };
            let mark = session.sampler(sequence)?.mark();
            let ids = match session.step(&[Work { sequence, tokens: &tokens, want }])?.pop() {
                Some(StepOutput::Tokens(ids)) => ids,
                Some(StepOutput::Token(id)) => vec![id],
                Some(StepOutput::Nothing | StepOutput::Logits(_)) | None => {
                    return Err(SessionError::NoTokens);
                }
            };
            for (i, &id) in ids.iter().enumerate() {
                text.push(id);
                (ended, right) = (sink(id) != DecodeControl::Go, i);
                if ended {
                    // Tokens after the end are dropped, and the sampler is reset to its state at
                    // that token.
                    session.truncate(sequence, len + fed + i)?;
                    session
                        .sampler(sequence)?
                        .back_to_after(mark, ids.get(..=i).unwrap_or_default());
                    break;
                }
            }
            if fed == 1 {
                pays.saw(begun.elapsed(), (!draft.is_empty()).then_some(right));
            }
            after_drafts = !draft.is_empty();
        }
        drafts.drafted += draft.len();
        drafts.accepted += right;
        if ended || session.len(sequence)? >= context {
            return Ok(drafts);
        }
        tokens.clear();
        tokens.extend(text.last());
    }
}

/// Plain decoding while a device runs ahead. Drafts are compared with the chosen tokens, but not
/// run.
struct DeviceRun {
    /// The time of the last token, and the number of tokens.
    last: Instant,
    came: u32,
    /// The previous step had drafts, so the device is not running ahead yet.
    after_drafts: bool,
    /// A draft that is only compared, and the number of its tokens that were chosen so far.
    dry: Vec<u32>,
    right: usize,
}

impl DeviceRun {
    /// Adds the text's last token. Returns whether to run drafts from here on.
    fn token(
        &mut self,
        lookup: &mut Lookup,
        pays: &mut DraftPolicy,
        text: &[u32],
        context: usize,
    ) -> bool {
        let now = Instant::now();
        let took = now - std::mem::replace(&mut self.last, now);
        self.came += 1;
        match self.came {
            // The first token after drafts waits until the device runs ahead again. This cost
            // belongs to drafting.
            1 if self.after_drafts => pays.saw(took, Some(0)),
            1 | 2 => {}
            _ => pays.saw(took, None),
        }
        let right = text.last().is_some_and(|id| self.dry.get(self.right) == Some(id));
        self.right += usize::from(right);
        if right && self.right < self.dry.len() {
            return false;
        }
        if !self.dry.is_empty() {
            pays.would(self.right);
        }
        (self.dry, self.right) = (lookup.draft(text, context.saturating_sub(text.len())), 0);
        !self.dry.is_empty() && pays.go(1)
    }
}

#[cfg(test)]
mod tests {
    use super::{DraftPolicy, Lookup, MAX_DRAFTS};
    use std::time::Duration;

    #[test]
    fn draft_follows_last_match_of_longest_ngram() {
        let mut lookup = Lookup::default();
        let text = [1, 2, 3, 4, 5, 9, 2, 3, 4, 6, 7, 8, 3, 4];
        assert_eq!(lookup.draft(&text, 3), [6, 7, 8], "the last occurrence of 3 4");
        let mut longer = text.to_vec();
        longer.truncate(12);
        longer.extend([1, 2, 3, 4]);
        assert_eq!(Lookup::default().draft(&longer, 2), [5, 9], "1 2 3 4 is longer than 2 3 4");
        assert_eq!(Lookup::default().draft(&[5, 6, 7], 9), [0u32; 0]);
        assert_eq!(Lookup::default().draft(&[], 9), [0u32; 0]);
        assert_eq!(
            Lookup::default().draft(&[1, 5, 6, 5, 6, 5, 6], 5),
            [5, 6, 5, 6, 5],
            "a repeated text continues"
        );
        // Token-by-token indexing gives the same drafts as indexing in one call, within the limits.
        let text: Vec<u32> = (0..400u32).map(|i| i * i * 7 % 11).collect();
        let mut lookup = Lookup::default();
        for n in 0..text.len() {
            let seen = lookup.draft(&text[..n], 5);
            assert_eq!(seen, Lookup::default().draft(&text[..n], 5), "{n} tokens");
            assert!(seen.len() <= 5);
        }
        assert!(lookup.draft(&text, 100).len() <= MAX_DRAFTS);
    }

    #[test]
    fn drafting_stops_when_slow_and_is_retried() {
        let steps = |drafted: Duration, right: usize| {
            let (mut pays, mut with) = (DraftPolicy::default(), 0);
            for _ in 0..490 {
                let go = pays.go(1);
                with += usize::from(go);
                if go {
                    pays.saw(drafted, Some(right))
                } else {
                    pays.saw(Duration::from_millis(10), None)
                }
            }
            with
        };
        let good = steps(Duration::from_millis(18), 4);
        assert!(
            (460..487).contains(&good),
            "{good} of 490 steps, which give 5 tokens in the time of 1.8"
        );
        let bad = steps(Duration::from_millis(18), 0);
        assert!((3..9).contains(&bad), "{bad} of 490 steps, which give nothing");
    }

    /// Simulates a device that runs ahead: 10 ms per token, 15 ms per drafted step, 30 ms to stop
    /// running ahead. Each draft has `right` accepted tokens. Returns the number of drafted steps
    /// in 2000 tokens and the total time.
    fn ahead(right: usize) -> (usize, Duration) {
        let (mut pays, mut took, mut tokens, mut with) =
            (DraftPolicy::default(), Duration::ZERO, 0, 0);
        let (token, drafted, leave) = (10, 15, 30);
        let (mut is_ahead, mut dry) = (true, 0);
        while tokens < 2000 {
            let go = pays.go(1);
            let (step, gives) = match go {
                true => {
                    (Duration::from_millis(drafted + if is_ahead { leave } else { 0 }), 1 + right)
                }
                false => (Duration::from_millis(token), 1),
            };
            pays.saw(step, go.then_some(right));
            dry += usize::from(!go);
            if !go && dry > right {
                pays.would(right);
                dry = 0;
            }
            (is_ahead, took, tokens, with) =
                (!go, took + step, tokens + gives, with + usize::from(go));
        }
        (with, took)
    }

    #[test]
    fn drafting_on_pipelined_device_needs_counted_gain() {
        let plain = Duration::from_secs(20);
        let (with, took) = ahead(0);
        assert!(
            with == 0 && took == plain,
            "{with} steps in {took:?}: drafts without accepted tokens are not tried"
        );
        let (with, took) = ahead(6);
        assert!(with > 200 && took < plain / 3, "{with} steps in {took:?}");
        // A text that keeps repeating pays the cost of stopping once: drafts give three tokens in
        // the time of one and a half.
        let (with, took) = ahead(2);
        assert!(with > 400 && took < plain * 2 / 3, "{with} steps in {took:?}");
        // Two tokens in the time of one and a half are not enough to stop running ahead and start
        // again.
        let (_, took) = ahead(1);
        assert!(took < plain + plain / 25, "{took:?}");
    }
}
