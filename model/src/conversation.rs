//! A chat with history: renders the whole conversation at each turn, and feeds only what the
//! sequence has not seen.

use crate::session::{SequenceId, Session, SessionError};

pub use crate::chat::history::forget_oldest;

/// Tokens that a sequence holds, so that the next prompt can go on where they agree.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    tokens: Vec<u32>,
}

impl Seen {
    /// Makes the sequence hold just the common beginning of what it has seen and `prompt`, as far
    /// as there is a way back to it, and gives the rest, which is to be fed: at least one token, so
    /// that there are logits.
    ///
    /// # Errors
    /// As [`Session::truncate`].
    pub fn rest<'p>(
        &mut self,
        session: &mut Session,
        sequence: SequenceId,
        prompt: &'p [u32],
    ) -> Result<&'p [u32], SessionError> {
        self.tokens.truncate(session.len(sequence)?);
        let common = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let kept = session.truncate(sequence, common.min(prompt.len().saturating_sub(1)))?;
        self.tokens.clear();
        self.tokens.extend_from_slice(prompt);
        Ok(prompt.get(kept..).unwrap_or_default())
    }

    /// Notes the tokens that were generated after the prompt; the last may not have been fed.
    ///
    /// # Errors
    /// As [`Session::len`].
    pub fn generated(
        &mut self,
        session: &Session,
        sequence: SequenceId,
        ids: &[u32],
    ) -> Result<(), SessionError> {
        self.tokens.extend_from_slice(ids);
        self.tokens.truncate(session.len(sequence)?);
        Ok(())
    }
}
