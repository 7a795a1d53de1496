//! Requests and results of a step, and the choice of tokens from rows of logits.

use super::{Sampler, SessionError, check_scores};

/// The result that a step returns for a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// No result. The tokens are only added to the state.
    Nothing,
    /// The logits after the last token.
    Last,
    /// The logits after every token, in order.
    All,
    /// The sequence's [`Sampler`] chooses the next token. The token is not appended; the next step
    /// may append it.
    Choose,
    /// The last N tokens are drafts. A token is chosen after the token before them and after each
    /// draft, until a choice differs from its draft. Rejected drafts are removed; the session's
    /// `len` is the new length.
    Drafted(usize),
}

/// The result of a step for a sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum StepOutput {
    /// No result was requested.
    Nothing,
    /// Rows of logits, `n_vocab` each.
    Logits(Vec<f32>),
    /// The chosen token.
    Token(u32),
    /// The chosen tokens, at least one. All except the last are accepted drafts, which are already
    /// in the sequence.
    Tokens(Vec<u32>),
}

/// The token of a task that continues a sequence with the token that the device chose in the
/// launched step before ([`super::StepAhead`]). No vocabulary has this id.
pub const CHOSEN: u32 = u32::MAX;

/// The sink's decision after a token of a session's `decode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeControl {
    /// The sequence continues.
    Go,
    /// The sequence ends; the others continue.
    End,
    /// All sequences stop. They can continue later with the last token of each.
    Pause,
}

/// A sequence's part of a step after the checks, as runners receive it.
pub struct Task<'a> {
    /// The sequence's slot.
    pub slot: usize,
    /// Tokens already in the sequence.
    pub first: usize,
    /// Tokens to append.
    pub tokens: &'a [u32],
    /// The result that is requested.
    pub want: Want,
    /// Chooses the sequence's tokens.
    pub sampler: &'a mut Sampler,
}

impl Task<'_> {
    /// The position after the last token.
    pub fn next(&self) -> usize {
        self.first + self.tokens.len()
    }
}

/// Sets masks that become known while the step runs.
pub type MaskCallback<'a> = &'a mut dyn FnMut(&mut [Task<'_>]);

/// Verifies drafts: chooses from the rows of logits (after the token before the drafts, then after
/// each draft) up to the first choice that differs from its draft.
///
/// # Errors
/// Logits that are not finite; a mask that allows no token; no row.
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

/// Chooses a token from each row of logits. All rows are checked before any sampler advances. So no
/// sampler has advanced after an error.
///
/// # Errors
/// Logits that are not finite; a mask that allows no token.
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
