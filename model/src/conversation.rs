//! A chat with history. Each turn renders the whole conversation and feeds only the tokens that the
//! sequence does not hold yet.

use crate::chat::Message;
use crate::session::{SequenceId, Session, SessionError};

/// Drops the oldest turns of a conversation that no longer fits. If `length` exceeds `full`, turns
/// are dropped until it is at most `keep`, or only the newest message is left. The first `fixed`
/// messages (a system message) stay. `full` leaves room for an answer. `keep` must be far below
/// `full`: otherwise every later turn drops one more and refeeds all the rest.
///
/// Returns the number of dropped messages.
///
/// # Errors
/// Errors of `length`.
pub fn forget_oldest<E>(
    history: &mut Vec<Message>,
    fixed: usize,
    full: usize,
    keep: usize,
    mut length: impl FnMut(&[Message]) -> Result<usize, E>,
) -> Result<usize, E> {
    let before = history.len();
    if length(history)? <= full {
        return Ok(0);
    }
    while history.len() > fixed.saturating_add(1) && length(history)? > keep {
        // A question is dropped with its answer: templates require alternating turns.
        let turn =
            history.iter().skip(fixed + 1).position(|m| m.role == "user").map_or(1, |n| n + 1);
        history.drain(fixed..(fixed + turn).min(history.len() - 1));
    }
    Ok(before - history.len())
}

/// The tokens that a sequence holds, so that the next prompt is fed from the first difference.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    tokens: Vec<u32>,
}

impl Seen {
    /// Truncates the sequence to its common prefix with `prompt`, or further if a layer's state
    /// cannot go back that far. Returns the rest of the prompt, which the caller feeds: at least
    /// one token, so that there are logits.
    ///
    /// # Errors
    /// Those of [`Session::truncate`].
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
    /// Those of [`Session::len`].
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

#[cfg(test)]
mod tests {
    use super::{Message, forget_oldest};
    use std::convert::Infallible;

    fn turns(n: usize) -> Vec<Message> {
        let system = std::iter::once(Message::new("system", "s"));
        let turns = (0..n).flat_map(|i| {
            [Message::new("user", i.to_string()), Message::new("assistant", i.to_string())]
        });
        let mut all: Vec<Message> = system.chain(turns).collect();
        all.pop();
        all
    }

    /// Length of a history: 10 for each message.
    fn tens(history: &[Message]) -> Result<usize, Infallible> {
        Ok(history.len() * 10)
    }

    #[test]
    fn whole_turns_go_from_the_oldest_on_until_it_fits_and_the_system_message_and_the_newest_stay()
    {
        let mut history = turns(6);
        assert_eq!(forget_oldest(&mut history, 1, 120, 60, tens), Ok(0));
        assert_eq!(forget_oldest(&mut history, 1, 119, 60, tens), Ok(6));
        let left: Vec<_> = history.iter().map(|m| format!("{} {}", m.role, m.content)).collect();
        assert_eq!(left, ["system s", "user 3", "assistant 3", "user 4", "assistant 4", "user 5"]);
        // Nothing is short enough: the question just asked stays.
        assert_eq!(forget_oldest(&mut history, 1, 5, 1, tens), Ok(4));
        assert_eq!(history.len(), 2);
        assert_eq!(forget_oldest(&mut history, 1, 5, 1, tens), Ok(0));
        let mut bare = turns(3).split_off(1);
        assert_eq!(forget_oldest(&mut bare, 0, 15, 10, tens), Ok(4));
        assert_eq!(bare.len(), 1);
    }
}
