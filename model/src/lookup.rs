//! Drafts of the next tokens from what a text repeats: after the same few tokens, what came the
//! last time may come again (prompt lookup decoding, Saxena 2023; Yang et al. 2023, arXiv
//! 2304.04487). Drafted tokens are run together with the one at hand, and those are kept that would
//! have been chosen anyway: the text is the same, but for near-ties.

use crate::session::{After, Given, SequenceId, Session, SessionError, Want, Work};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Tokens that must agree, the most first: long agreements are right more often.
const LENGTHS: [usize; 3] = [4, 3, 2];
/// Tokens drafted at most.
pub const MOST: usize = crate::exec::DRAFTS;

/// The places of a text's short pieces.
#[derive(Debug, Clone, Default)]
pub struct Lookup {
    /// By a piece's tokens, the unused ones zero, and their number: the position behind its last
    /// place.
    places: HashMap<([u32; 4], u8), u32>,
    /// Tokens whose pieces are entered: those that end before the last token.
    entered: usize,
}

/// A piece as it is looked for.
fn key(piece: &[u32]) -> ([u32; 4], u8) {
    let mut tokens = [0; 4];
    tokens.iter_mut().zip(piece).for_each(|(to, from)| *to = *from);
    (tokens, piece.len() as u8)
}

impl Lookup {
    /// What may come after these tokens, up to so many; mostly nothing. `tokens` is the whole text:
    /// what it was the last time, and more.
    pub fn draft(&mut self, tokens: &[u32], most: usize) -> Vec<u32> {
        // Pieces that end with the last token are looked for, not found.
        for end in self.entered + 1..tokens.len() {
            for n in LENGTHS {
                if let Some(piece) = end.checked_sub(n).and_then(|start| tokens.get(start..end)) {
                    self.places.insert(key(piece), end as u32);
                }
            }
            self.entered = end;
        }
        let last = |n: &usize| tokens.len().checked_sub(*n).and_then(|start| tokens.get(start..));
        let found = LENGTHS.iter().filter_map(last).find_map(|piece| self.places.get(&key(piece)));
        let mut draft = vec![];
        if let Some(&at) = found {
            // Where the place is so near that the text ends first, what is drafted goes on
            // repeating itself.
            for from in at as usize..at as usize + most.min(MOST) {
                let beyond = from.checked_sub(tokens.len()).and_then(|i| draft.get(i));
                let next = tokens.get(from).or(beyond).copied();
                draft.extend(next);
            }
        }
        draft
    }
}

/// Whether drafts pay, by what steps took: a step with drafted tokens takes longer and gives more.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pays {
    /// Mean seconds of a step without drafts, of one with, and tokens that such a one gave beyond
    /// what it gives without; zero: none was seen.
    plain: f64,
    drafted: f64,
    gained: f64,
    /// Steps since the last one of the other kind.
    since: u32,
    /// Steps until the other way is tried again, beyond [`AGAIN`]: after each try that shows
    /// nothing new twice as many.
    patience: u32,
    /// What drafts give is counted without running them, too.
    counted: bool,
    /// Steps with drafts of the try at hand, where there is one: what the first costs (the way from
    /// a device that runs ahead, what is recorded) is none of the others', so a few that were right
    /// are judged together.
    trying: Option<u32>,
}

/// Steps without drafts that are watched before the first one with.
const WATCHED: u32 = 3;
/// After so many steps it is tried the other way: texts change, and so does the number of those
/// that share a step.
const AGAIN: u32 = 48;
/// Steps of a try, as long as drafts are right.
const TRY: u32 = 4;
/// The most of [`Pays::patience`].
const PATIENCE: u32 = 15 * AGAIN;
/// Tokens that a step with drafts must give beyond a plain one's to be worth a try, where that can
/// be counted before.
const WORTH: f64 = 1.0;

impl Pays {
    /// Whether the next step may have drafts, of so many sequences in it.
    pub fn go(&self, sequences: usize) -> bool {
        let worth = !self.counted || self.gained >= WORTH;
        if self.trying.is_some() {
            return true;
        }
        if self.plain == 0.0 || self.drafted == 0.0 {
            return self.since >= WATCHED && worth;
        }
        // The other way once in a while.
        match (self.pays(sequences), self.since >= AGAIN + self.patience) {
            (true, again) => !again,
            (false, again) => again && worth,
        }
    }

    fn pays(&self, sequences: usize) -> bool {
        let n = sequences.max(1) as f64;
        (n + self.gained) * self.plain > n * self.drafted
    }

    /// Counts a draft that was not run: so many of its tokens came after all.
    pub fn would(&mut self, right: usize) {
        // One that was right by chance is no reason yet: to be tried, the first must have been
        // right in most of it.
        let share = if std::mem::replace(&mut self.counted, true) { 8.0 } else { 4.0 };
        self.gained += (right as f64 - self.gained) / share;
    }

    /// Enters a step: how long it took, and the drafted tokens that were right where there were
    /// any.
    pub fn saw(&mut self, took: Duration, accepted: Option<usize>) {
        let mean = |old: f64, new: f64| if old == 0.0 { new } else { old + (new - old) / 8.0 };
        let took = took.as_secs_f64().max(1e-9);
        let before = (self.drafted > 0.0, self.since);
        match accepted {
            None => self.plain = mean(self.plain, took),
            Some(n) => {
                let right = n as f64;
                // A try that begins well begins anew: what was before did not pay.
                let tried = self.trying.or((!before.0 || n > 0 && !self.pays(1)).then_some(0));
                let share = tried.map_or(8.0, |tried| f64::from(tried + 1));
                self.drafted += (took - self.drafted) / share;
                self.gained += (right - self.gained) / share;
                self.trying =
                    tried.map(|tried| tried + 1).filter(|tried| *tried < TRY && right > WORTH);
            }
        }
        self.since = self.since.saturating_add(1);
        let tried = before.1 >= AGAIN + self.patience;
        if accepted.is_some() && !before.0 || tried {
            self.since = 0;
        }
        if tried && accepted.is_some() {
            self.patience = if self.trying.is_some() || self.pays(1) {
                0
            } else {
                (2 * self.patience + AGAIN).min(PATIENCE)
            };
        }
    }
}

/// Tokens that were drafted, and those of them that were right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Drafts {
    /// Drafted.
    pub drafted: usize,
    /// Right.
    pub accepted: usize,
}

/// As [`Session::decode`] of one sequence, with drafts where they pay. `text` is what is known of
/// the whole text; it ends with `start`, the tokens that are fed first. A model with a recurrent
/// state is decoded without drafts: what was wrong costs it more than what was right.
///
/// # Errors
/// As [`Session::decode`].
pub fn decode(
    session: &mut Session,
    sequence: SequenceId,
    mut text: Vec<u32>,
    start: usize,
    sink: &mut dyn FnMut(u32) -> After,
) -> Result<Drafts, SessionError> {
    let (mut lookup, mut pays, mut drafts) =
        (Lookup::default(), Pays::default(), Drafts::default());
    let (context, recurrent) = (session.context(), session.graph().is_recurrent());
    let mut tokens = text.get(text.len().saturating_sub(start)..).unwrap_or_default().to_vec();
    // A GPU chooses token after token and runs ahead meanwhile: there a draft is run for what was
    // counted before.
    let runs_ahead = session.runs_ahead();
    let mut after_drafts = false;
    loop {
        let (len, fed) = (session.len(sequence)?, tokens.len());
        let room = context.saturating_sub(len + fed);
        // The prompt's own step says nothing of the others'.
        let may = fed == 1 && !recurrent && pays.go(1);
        let draft = if may { lookup.draft(&text, room) } else { vec![] };
        let begun = Instant::now();
        let (mut ended, mut right) = (false, 0);
        if draft.is_empty() && runs_ahead {
            let mut stretch = Stretch {
                last: begun,
                came: 0,
                after_drafts: std::mem::take(&mut after_drafts),
                dry: vec![],
                right: 0,
            };
            session.decode_past_ends(&[(sequence, &tokens)], &mut |_, id| {
                text.push(id);
                ended = sink(id) != After::Go;
                let leave = !recurrent && stretch.token(&mut lookup, &mut pays, &text, context);
                if ended || leave { After::Pause } else { After::Go }
            })?;
        } else {
            tokens.extend(&draft);
            let want = if draft.is_empty() { Want::Choose } else { Want::Drafted(draft.len()) };
            let mark = session.sampler(sequence)?.mark();
            let ids = match session.step(&[Work { sequence, tokens: &tokens, want }])?.pop() {
                Some(Given::Tokens(ids)) => ids,
                Some(Given::Token(id)) => vec![id],
                Some(Given::Nothing | Given::Logits(_)) | None => {
                    return Err(SessionError::NoTokens);
                }
            };
            for (i, &id) in ids.iter().enumerate() {
                text.push(id);
                (ended, right) = (sink(id) != After::Go, i);
                if ended {
                    // Tokens behind it are nobody's, nor is what was drawn for them.
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

/// Tokens that come without drafts while a device runs ahead: what drafts would have given is
/// counted.
struct Stretch {
    /// When the last token came, and how many did.
    last: Instant,
    came: u32,
    /// There were drafts just before: the device was not ahead.
    after_drafts: bool,
    /// A draft that is not run, and how much of it came.
    dry: Vec<u32>,
    right: usize,
}

impl Stretch {
    /// Enters the last token of the text; whether drafts are to be run from here on.
    fn token(
        &mut self,
        lookup: &mut Lookup,
        pays: &mut Pays,
        text: &[u32],
        context: usize,
    ) -> bool {
        let now = Instant::now();
        let took = now - std::mem::replace(&mut self.last, now);
        self.came += 1;
        match self.came {
            // The first token after drafts waits for a device that is not ahead: that is theirs,
            // too.
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
    use super::{Lookup, MOST, Pays};
    use std::time::Duration;

    #[test]
    fn the_last_place_of_the_longest_piece_says_what_may_come() {
        let mut lookup = Lookup::default();
        let text = [1, 2, 3, 4, 5, 9, 2, 3, 4, 6, 7, 8, 3, 4];
        assert_eq!(lookup.draft(&text, 3), [6, 7, 8], "the last place of 3 4");
        let mut longer = text.to_vec();
        longer.truncate(12);
        longer.extend([1, 2, 3, 4]);
        assert_eq!(Lookup::default().draft(&longer, 2), [5, 9], "1 2 3 4 is longer than 2 3 4");
        assert_eq!(Lookup::default().draft(&[5, 6, 7], 9), [0u32; 0]);
        assert_eq!(Lookup::default().draft(&[], 9), [0u32; 0]);
        assert_eq!(
            Lookup::default().draft(&[1, 5, 6, 5, 6, 5, 6], 5),
            [5, 6, 5, 6, 5],
            "what goes round goes on"
        );
        // Fed token by token as all at once, and never more than is there or asked for.
        let text: Vec<u32> = (0..400u32).map(|i| i * i * 7 % 11).collect();
        let mut lookup = Lookup::default();
        for n in 0..text.len() {
            let seen = lookup.draft(&text[..n], 5);
            assert_eq!(seen, Lookup::default().draft(&text[..n], 5), "{n} tokens");
            assert!(seen.len() <= 5);
        }
        assert!(lookup.draft(&text, 100).len() <= MOST);
    }

    #[test]
    fn drafts_are_made_where_they_pay_and_tried_again_where_they_do_not() {
        let steps = |drafted: Duration, right: usize| {
            let (mut pays, mut with) = (Pays::default(), 0);
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

    /// A device that runs ahead: 10 ms a token; a step with drafts 15, and 30 more to leave what is
    /// ahead and come back. Texts of which a draft gives so many tokens; steps with drafts of 2000
    /// tokens, and how long all took.
    fn ahead(right: usize) -> (usize, Duration) {
        let (mut pays, mut took, mut tokens, mut with) = (Pays::default(), Duration::ZERO, 0, 0);
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
    fn a_device_that_runs_ahead_is_left_only_for_what_was_counted_before() {
        let plain = Duration::from_secs(20);
        let (with, took) = ahead(0);
        assert!(
            with == 0 && took == plain,
            "{with} steps in {took:?}: what gives nothing is not tried"
        );
        let (with, took) = ahead(6);
        assert!(with > 200 && took < plain / 3, "{with} steps in {took:?}");
        // What leaving costs is not held against a text that goes on copying itself: three tokens
        // in the time of one and a half.
        let (with, took) = ahead(2);
        assert!(with > 400 && took < plain * 2 / 3, "{with} steps in {took:?}");
        // Two tokens in the time of one and a half are none for what it costs to come and go.
        let (_, took) = ahead(1);
        assert!(took < plain + plain / 25, "{took:?}");
    }
}
