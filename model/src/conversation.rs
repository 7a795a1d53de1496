//! A chat with history: renders the whole conversation at each turn, and feeds only what the
//! sequence has not seen.

use crate::chat::Message;
use crate::session::{SequenceId, Session, SessionError};

/// Takes the oldest turns out of a conversation that no longer fits: if what `length` says of it is
/// above `full`, turns go until it is at most `keep`, or the newest message is all that is left.
/// The first `fixed` messages (a system message) stay. `full` leaves room for an answer; `keep` is
/// far below, or every turn from then on would be the one too many, and all that is kept would be
/// fed again each time.
///
/// Gives the number of messages that went.
///
/// # Errors
/// Those of `length`.
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
        // A question goes with its answer: templates want them by turns.
        let turn =
            history.iter().skip(fixed + 1).position(|m| m.role == "user").map_or(1, |n| n + 1);
        history.drain(fixed..(fixed + turn).min(history.len() - 1));
    }
    Ok(before - history.len())
}

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

    /// Each message counts 10.
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
        // Nothing is short enough: the question that was just asked is not thrown away.
        assert_eq!(forget_oldest(&mut history, 1, 5, 1, tens), Ok(4));
        assert_eq!(history.len(), 2);
        assert_eq!(forget_oldest(&mut history, 1, 5, 1, tens), Ok(0));
        let mut bare = turns(3).split_off(1);
        assert_eq!(forget_oldest(&mut bare, 0, 15, 10, tens), Ok(4));
        assert_eq!(bare.len(), 1);
    }
}
