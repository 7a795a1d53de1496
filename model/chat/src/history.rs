//! Drops messages of a conversation that exceeds its context.

use crate::Message;

/// Drops the oldest messages of a conversation that no longer fits. If `length` exceeds `full`,
/// messages are dropped until the length is at most `keep` or only the newest message is left. The
/// first `fixed` messages (a system message) are not dropped. `full` must leave space for an
/// answer. `keep` must be much smaller than `full`: otherwise every later message drops messages
/// again, and the rest of the prompt is computed again each time.
///
/// Returns the number of dropped messages.
///
/// # Errors
/// An error of `length`.
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
        // A question is dropped with its answer: templates require alternating roles.
        let turn =
            history.iter().skip(fixed + 1).position(|m| m.role == "user").map_or(1, |n| n + 1);
        history.drain(fixed..(fixed + turn).min(history.len() - 1));
    }
    Ok(before - history.len())
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

    /// A length of 10 for each message.
    fn tens(history: &[Message]) -> Result<usize, Infallible> {
        Ok(history.len() * 10)
    }

    #[test]
    fn oldest_turns_are_dropped_until_history_fits() {
        let mut history = turns(6);
        assert_eq!(forget_oldest(&mut history, 1, 120, 60, tens), Ok(0));
        assert_eq!(forget_oldest(&mut history, 1, 119, 60, tens), Ok(6));
        let left: Vec<_> = history.iter().map(|m| format!("{} {}", m.role, m.content)).collect();
        assert_eq!(left, ["system s", "user 3", "assistant 3", "user 4", "assistant 4", "user 5"]);
        // No shorter conversation fits. The newest question is kept anyway.
        assert_eq!(forget_oldest(&mut history, 1, 5, 1, tens), Ok(4));
        assert_eq!(history.len(), 2);
        assert_eq!(forget_oldest(&mut history, 1, 5, 1, tens), Ok(0));
        let mut bare = turns(3).split_off(1);
        assert_eq!(forget_oldest(&mut bare, 0, 15, 10, tens), Ok(4));
        assert_eq!(bare.len(), 1);
    }
}
