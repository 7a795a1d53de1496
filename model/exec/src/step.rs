//! What a step is asked for, what it gives, and how tokens are chosen from rows of logits.

use super::{Sampler, SessionError, check_scores};

/// What a step is to give for a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Nothing: the tokens only enter the state.
    Nothing,
    /// The logits after the last token.
    Last,
    /// The logits after every token, in order.
    All,
    /// A token chosen after the last one, by the sequence's [`Sampler`]. It is not fed: the next
    /// step may.
    Choose,
    /// So many of the tokens, the last ones, are drafts: a token chosen after the one before them
    /// and after each draft, as long as drafts are what was chosen. Those that are not are
    /// forgotten: after the step [`Session::len`] says where the sequence is.
    Drafted(usize),
}

/// What a step gave for a sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum Given {
    /// Nothing was wanted.
    Nothing,
    /// Rows of logits, `n_vocab` each.
    Logits(Vec<f32>),
    /// The token that was chosen.
    Token(u32),
    /// The tokens that were chosen, at least one: all but the last are drafts that were right, and
    /// are fed.
    Tokens(Vec<u32>),
}

/// What becomes of a sequence after a token of [`Session::decode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// It goes on.
    Go,
    /// It ends; the others go on.
    End,
    /// All of them stop here, and can be started again with the last token of each.
    Pause,
}

/// A sequence's part of a step, as runners see it: checked.
pub struct Task<'a> {
    /// The sequence's slot.
    pub slot: usize,
    /// Tokens that are there already.
    pub first: usize,
    /// Tokens to append.
    pub tokens: &'a [u32],
    /// Rows of logits or tokens that the step gives for them.
    pub want: Want,
    /// Chooses the sequence's tokens.
    pub sampler: &'a mut Sampler,
}

impl Task<'_> {
    /// Position of the token behind its last.
    pub fn next(&self) -> usize {
        self.first + self.tokens.len()
    }
}

/// Tells the samplers what was not known before.
pub type Late<'a> = &'a mut dyn FnMut(&mut [Task<'_>]);

/// Holds drafts against what is chosen from these rows of logits, one of the token before them and
/// one of each: what was chosen, up to the first that was not drafted.
pub fn follow(
    task: &mut Task<'_>,
    rows: &[f32],
    n_vocab: usize,
    drafts: &[u32],
) -> Result<Vec<u32>, SessionError> {
    let (mut chosen, first) = (vec![], task.next().saturating_sub(drafts.len()));
    for (i, row) in rows.chunks_exact(n_vocab).enumerate() {
        check_scores(row)?;
        let mut row = row.to_vec();
        if !task.sampler.restrict(&mut row) {
            return Err(SessionError::NothingAllowed);
        }
        let id = task.sampler.choose(first + i, &mut row);
        chosen.push(id);
        if drafts.get(i) != Some(&id) {
            break;
        }
    }
    if chosen.is_empty() { Err(SessionError::NoTokens) } else { Ok(chosen) }
}

/// Chooses from rows of logits, all of which are looked at before any sampler is moved on: on an
/// error none is.
pub fn choose<'a, 'b: 'a>(
    rows: impl IntoIterator<Item = (&'a mut Task<'b>, Vec<f32>)>,
) -> Result<Vec<u32>, SessionError> {
    let mut rows: Vec<_> = rows.into_iter().collect();
    for (task, row) in &mut rows {
        check_scores(row)?;
        if !task.sampler.restrict(row) {
            return Err(SessionError::NothingAllowed);
        }
    }
    Ok(rows.into_iter().map(|(task, mut row)| task.sampler.choose(task.next(), &mut row)).collect())
}
