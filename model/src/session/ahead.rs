//! Steps that are launched while the step before runs, and collected later.

use super::{SequenceId, Session, SessionError, Work, tasks};
use crate::exec::CHOSEN;

impl Session {
    /// Whether the device takes steps before the results of the step before are known.
    pub(crate) fn steps_ahead(&self) -> bool {
        self.runner.steps_ahead()
    }

    /// Appends tokens to sequences, as [`Session::step`], and returns before they are computed.
    /// [`Session::collect`] returns the tokens of the oldest launched step. The work wants nothing
    /// or a chosen token, and the samplers do not change logits. The single token [`CHOSEN`] is a
    /// placeholder for the token that the last launched step chooses for its sequence. A sequence
    /// may be removed only after its launched steps were collected.
    ///
    /// # Errors
    /// As [`Session::step`]; the device takes no steps ahead. Nothing was launched then.
    pub(crate) fn launch(&mut self, work: &[Work<'_>]) -> Result<(), SessionError> {
        self.not_lost()?;
        self.check_once(work)?;
        for w in work {
            let plain: &[u32] = if w.tokens == [CHOSEN] { &[0] } else { w.tokens };
            if plain.is_empty() {
                return Err(SessionError::NoTokens);
            }
            self.check(&Work { tokens: plain, ..*w })?;
        }
        let (mut tasks, runner) = tasks(&mut self.sequences, &mut self.runner, work);
        let slots: Vec<(usize, usize)> = tasks.iter().map(|t| (t.slot, t.first)).collect();
        let none = || SessionError::Device("this device takes no steps ahead".to_owned());
        let made = runner.step_ahead().ok_or_else(none).and_then(|ahead| ahead.launch(&mut tasks));
        if let Err(error) = made {
            return Err(self.undo(&slots, error));
        }
        for w in work {
            self.sequence_mut(w.sequence)?.len += w.tokens.len();
        }
        self.launched.push_back(work.iter().map(|w| w.sequence).collect());
        Ok(())
    }

    /// Waits for the oldest launched step, and returns the chosen token of each part of its work.
    ///
    /// # Errors
    /// A device fault.
    pub(crate) fn collect(&mut self) -> Result<Vec<(SequenceId, Option<u32>)>, SessionError> {
        let Some(ids) = self.launched.pop_front() else { return Ok(vec![]) };
        let tokens = match self.runner.step_ahead() {
            Some(ahead) => ahead.collect(),
            None => Err(SessionError::Device("this device takes no steps ahead".to_owned())),
        };
        let tokens = tokens.map_err(|error| self.undo(&[], error))?;
        let given: Vec<(SequenceId, Option<u32>)> = ids.into_iter().zip(tokens).collect();
        for &(id, token) in &given {
            if let (Some(token), Ok(sequence)) = (token, self.sequence_mut(id)) {
                sequence.sampler.accept(token);
            }
        }
        Ok(given)
    }
}
