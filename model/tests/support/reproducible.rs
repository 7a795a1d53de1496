//! Tests [`OpenOptions::reproducible`](kjit_model::session::OpenOptions) on any device: the scores
//! after the tokens of a text are bit for bit equal regardless of how the tokens are fed.

use kjit_model::sample::SampleOptions;
use kjit_model::session::{SequenceId, Session, StepOutput, Want, Work};

/// A text, and the bits of the scores after each token when the text is fed token by token as the
/// only sequence.
pub struct Text {
    /// Token ids.
    pub tokens: Vec<u32>,
    scores: Vec<Vec<u32>>,
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

fn add(session: &mut Session) -> SequenceId {
    session.add(SampleOptions::default()).unwrap()
}

fn feed(session: &mut Session, id: SequenceId, tokens: &[u32], want: Want) -> Vec<f32> {
    session.feed(id, tokens, want).unwrap()
}

/// Feeds the next tokens of the sequences in one step. Returns the scores after each token.
fn step(session: &mut Session, all: &[(SequenceId, &[u32])]) -> Vec<Vec<f32>> {
    let work: Vec<Work<'_>> =
        all.iter().map(|&(sequence, tokens)| Work { sequence, tokens, want: Want::Last }).collect();
    let given = session.step(&work).unwrap();
    given
        .into_iter()
        .map(|g| if let StepOutput::Logits(rows) = g { rows } else { panic!("{g:?}") })
        .collect()
}

impl Text {
    /// Makes a text of `tokens` tokens.
    pub fn new(session: &mut Session, tokens: usize) -> Text {
        let vocab = session.n_vocab();
        Text::of(session, (0..tokens).map(|i| ((i * i * 7 + i * 131 + 5) % vocab) as u32).collect())
    }

    /// Makes a text of these tokens.
    pub fn of(session: &mut Session, tokens: Vec<u32>) -> Text {
        let id = add(session);
        let scores = tokens.iter().map(|t| bits(&feed(session, id, &[*t], Want::Last))).collect();
        session.remove(id).unwrap();
        let text = Text { tokens, scores };
        assert!(text.scores.iter().flatten().all(|x| f32::from_bits(*x).is_finite()));
        assert!(
            text.scores.windows(2).all(|two| two[0] != two[1]),
            "scores depend on the tokens before"
        );
        text
    }

    fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Asserts that the scores after this token equal the scores of a sequence that runs alone.
    fn holds(&self, what: &str, at: usize, row: &[f32]) {
        let (got, want) = (bits(row), &self.scores[at]);
        let other = got.iter().zip(want).filter(|(a, b)| a != b).count();
        let off =
            row.iter().zip(want).map(|(a, b)| (a - f32::from_bits(*b)).abs()).fold(0.0, f32::max);
        assert!(
            got.len() == want.len() && other == 0,
            "{what}, token {at}: {other} scores differ, by {off} at most"
        );
    }

    /// Feeds the text whole, in pieces, and again after truncation.
    pub fn in_pieces(&self, session: &mut Session, pieces: &[usize]) {
        let vocab = session.n_vocab();
        for &piece in pieces {
            let id = add(session);
            for (n, tokens) in self.tokens.chunks(piece).enumerate() {
                let rows = feed(session, id, tokens, Want::All);
                for (i, row) in rows.chunks_exact(vocab).enumerate() {
                    self.holds(&format!("pieces of {piece}"), n * piece + i, row);
                }
            }
            let back = self.len() * 2 / 3;
            let kept = session.truncate(id, back).unwrap();
            let row = feed(session, id, &self.tokens[kept..back + 1], Want::Last);
            self.holds(&format!("pieces of {piece}, {kept} of {back} kept"), back, &row);
            session.remove(id).unwrap();
        }
    }

    /// Feeds the text as `n` sequences, each at another token, and one sequence of another text:
    /// first prompts together with single tokens, then one token of each.
    pub fn side_by_side(&self, session: &mut Session, n: usize) {
        let (half, what) = (self.len() / 2, format!("{n} sequences"));
        let ids: Vec<SequenceId> = (0..n).map(|_| add(session)).collect();
        let at: Vec<usize> = (0..n).map(|i| 1 + i * 5 % half).collect();
        let first: Vec<(SequenceId, &[u32])> =
            ids.iter().zip(&at).map(|(id, at)| (*id, &self.tokens[..*at])).collect();
        for (row, at) in step(session, &first).iter().zip(&at) {
            self.holds(&format!("{what}, prompts"), at - 1, row);
        }
        for ahead in 0..3 {
            let next: Vec<(SequenceId, &[u32])> = ids
                .iter()
                .zip(&at)
                // From here on the last sequence contains another text.
                .map(|(id, at)| {
                    (
                        *id,
                        if n > 1 && *id == ids[n - 1] {
                            &self.tokens[..1]
                        } else {
                            &self.tokens[at + ahead..][..1]
                        },
                    )
                })
                .collect();
            let rows = step(session, &next);
            for (row, at) in rows.iter().zip(&at).take(n - usize::from(n > 1)) {
                self.holds(&format!("{what}, {ahead} on"), at + ahead, row);
            }
        }
        ids.iter().for_each(|id| session.remove(*id).unwrap());
    }

    /// Feeds the text after a prefix that another sequence has computed.
    pub fn forked(&self, session: &mut Session, at: &[usize]) {
        let (first, half) = (add(session), self.len() * 2 / 3);
        feed(session, first, &self.tokens[..half], Want::Nothing);
        session.checkpoint(first).unwrap();
        for &len in at.iter().filter(|len| **len <= half) {
            let id = session.fork(first, len, SampleOptions::default()).unwrap();
            let kept = session.len(id).unwrap();
            let row = feed(session, id, &self.tokens[kept..len + 1], Want::Last);
            self.holds(&format!("a fork, {kept} of {len} kept"), len, &row);
            session.remove(id).unwrap();
        }
        let row = feed(session, first, &self.tokens[half..half + 1], Want::Last);
        self.holds("the original of the fork", half, &row);
        session.remove(first).unwrap();
    }

    /// The most likely token after this one.
    fn likeliest(&self, at: usize) -> u32 {
        let row = &self.scores[at];
        let best = row.iter().map(|x| f32::from_bits(*x)).fold(f32::MIN, f32::max);
        row.iter().position(|x| f32::from_bits(*x) == best).unwrap() as u32
    }

    /// Feeds steps of `drafts` correct drafts, each with one wrong draft after them. The text must
    /// be greedy from `from` on.
    pub fn drafted(&self, session: &mut Session, from: usize, drafts: &[usize]) {
        for &n in drafts {
            let id = add(session);
            feed(session, id, &self.tokens[..from], Want::Nothing);
            let mut at = from;
            while at + n + 1 < self.len() {
                let mut tokens = self.tokens[at..at + n + 1].to_vec();
                let wrong = (at - from) % 3 == 1;
                if wrong {
                    tokens[n] = (tokens[n] + 1) % session.n_vocab() as u32;
                }
                let given = session
                    .step(&[Work { sequence: id, tokens: &tokens, want: Want::Drafted(n) }])
                    .unwrap();
                let [StepOutput::Tokens(chosen)] = &given[..] else { panic!("{given:?}") };
                let right = n + 1 - usize::from(wrong);
                let want: Vec<u32> = (at..at + right).map(|i| self.likeliest(i)).collect();
                assert_eq!(chosen, &want, "{n} drafts at {at}");
                at += right;
                assert_eq!(session.len(id).unwrap(), at);
            }
            let row = feed(session, id, &self.tokens[at..at + 1], Want::Last);
            self.holds(&format!("after {n} drafts at a time"), at, &row);
            session.remove(id).unwrap();
        }
    }

    /// Makes a text that is greedy from token `from` on.
    pub fn greedy(session: &mut Session, from: usize, tokens: usize) -> Text {
        let vocab = session.n_vocab();
        let mut all: Vec<u32> =
            (0..from).map(|i| ((i * i * 7 + i * 131 + 5) % vocab) as u32).collect();
        let id = add(session);
        let mut fed = 0;
        while all.len() < tokens {
            let row = feed(session, id, &all[fed..], Want::Last);
            fed = all.len();
            let best = row.iter().copied().fold(f32::MIN, f32::max);
            all.push(row.iter().position(|x| *x == best).unwrap() as u32);
        }
        session.remove(id).unwrap();
        Text::of(session, all)
    }
}
