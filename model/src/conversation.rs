//! A chat with history. Each turn renders the whole conversation and feeds only the tokens that are
//! not in the sequence yet.

use crate::session::{SequenceId, Session, SessionError};

pub use crate::chat::history::forget_oldest;

/// The tokens in a sequence. The next prompt is fed from its first difference to these tokens.
#[derive(Debug, Default, Clone)]
pub struct CachedTokens {
    tokens: Vec<u32>,
}

impl CachedTokens {
    /// Truncates the sequence to its common prefix with `prompt`, or further if the state of a
    /// layer cannot be rewound that far. Returns the rest of the prompt, which the caller feeds.
    /// The rest has at least one token, so that there are logits.
    ///
    /// # Errors
    /// See [`Session::truncate`].
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

    /// Adds the tokens that were generated after the prompt. The last one may not have been fed.
    ///
    /// # Errors
    /// See [`Session::len`].
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
