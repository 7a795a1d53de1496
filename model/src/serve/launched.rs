//! Runs a GPU one step ahead of the host: a step is launched while the previous one runs. The host
//! passes on the previous step's tokens while the device computes. A sequence can continue without
//! a known token, because the device has the token that it chose. Where an answer ends at a token
//! that only its request knows (a stop token, a client that left), the launched step has computed
//! one token more. This token is dropped when the step is collected; until then the sequence has
//! its slot.
//!
//! Requests whose tokens need the host (constraints, log probabilities, penalties, biases) stop
//! this for all: then each step waits for the previous one.

use super::deliver_tokens::hand_out;
use super::device_decode::MAX_AHEAD_ANSWERS;
use super::request::{Failure, Owner, Refused};
use super::running::{End, Running, guarded};
use super::status::State;
use super::worker::Worker;
use crate::exec::CHOSEN;
use crate::sample::Sampler;
use crate::session::{SequenceId, SessionError, Want, Work};
use std::collections::HashMap;
use std::time::Instant;

/// A step that the device computes.
pub(super) struct LaunchedStep {
    /// The number of tokens in each sequence after the step.
    fed: HashMap<SequenceId, usize>,
    /// Number of prompt tokens.
    prompts: usize,
    /// Whether any answer continues in this step.
    decodes: bool,
    at: Instant,
}

impl LaunchedStep {
    /// Whether a sequence takes part.
    pub fn has(&self, id: SequenceId) -> bool {
        self.fed.contains_key(&id)
    }
}

/// A sequence whose request has ended.
pub(super) struct Leaving {
    pub id: SequenceId,
    pub owner: Owner,
    /// The tokens to retain, if any.
    pub tokens: Option<Vec<u32>>,
}

impl Worker {
    /// Whether the next step can be launched before the results of the last one are known.
    pub(super) fn can_launch(&mut self) -> bool {
        let Some(session) = self.session.as_mut().filter(|s| s.steps_ahead()) else { return false };
        let mut plain = |r: &Running| {
            r.job.logprobs.is_none()
                && r.job.constraint.is_none()
                && session.sampler(r.id).is_ok_and(|s| Sampler::takes_logits_as_they_are(s))
        };
        self.running.len() > MAX_AHEAD_ANSWERS
            && self.held_tokens == usize::MAX
            && self.seen.state != State::Short
            && self.running.iter().all(&mut plain)
    }

    /// Launches the next step, then collects the one before. If no work can be done, returns the
    /// reason.
    pub(super) fn launch_step(&mut self) -> Option<Refused> {
        match self.launch() {
            Ok(next) => {
                let before = std::mem::replace(&mut self.launched, next);
                before.and_then(|step| self.collect(step))
            }
            // The step was not launched. A step that can preempt, and that finds the sequence at
            // fault, follows.
            Err(SessionError::Lost(why)) => self.fault(Failure::Device(why)),
            Err(_) => {
                let lost = self.collect_step();
                if lost.is_some() || self.running.is_empty() { lost } else { self.step_together() }
            }
        }
    }

    /// Collects the launched step, if there is one.
    pub(super) fn collect_step(&mut self) -> Option<Refused> {
        let step = self.launched.take()?;
        self.collect(step)
    }

    /// Launches a step of all sequences that can continue. `None` if there is none.
    fn launch(&mut self) -> Result<Option<LaunchedStep>, SessionError> {
        let start = Instant::now();
        let take = self.compose();
        let enough = self.free_pages(&take);
        let Some(session) = &mut self.session else { return Ok(None) };
        if !enough {
            let free = session.pages().map_or(0, |pages| pages.free());
            return Err(SessionError::Pages { needed: free + 1, free });
        }
        let context = session.context();
        let mut work: Vec<Work<'_>> = vec![];
        for (r, &n) in self.running.iter().zip(&take).filter(|(_, n)| **n > 0) {
            let tokens = match r.pending {
                0 => r.rest().get(..n).unwrap_or_default(),
                _ => &[CHOSEN],
            };
            let want = if n == r.next(context) { Want::Choose } else { Want::Nothing };
            work.push(Work { sequence: r.id, tokens, want });
        }
        if work.is_empty() {
            return Ok(None);
        }
        let prepared = Instant::now();
        let launched = guarded(|| session.launch(&work));
        launched.unwrap_or_else(|failure| Err(SessionError::Lost(failure.to_string())))?;
        let counts = &mut self.seen.ahead;
        counts.steps += 1;
        counts.prepare += (prepared - start).as_secs_f64();
        counts.issue += prepared.elapsed().as_secs_f64();
        let pieces = work.iter().filter(|w| w.tokens.len() > 1).count();
        counts.pieces += pieces as u64;
        counts.rows += (work.len() - pieces) as u64;
        let prompts = work.iter().filter(|w| w.tokens.len() > 1).map(|w| w.tokens.len()).sum();
        let decodes = work.iter().any(|w| w.want == Want::Choose && w.tokens.len() == 1);
        let chooses: Vec<bool> = work.iter().map(|w| w.want == Want::Choose).collect();
        let mut fed = HashMap::new();
        let parts = self.running.iter_mut().zip(&take).filter(|(_, n)| **n > 0);
        for ((r, &n), chooses) in parts.zip(chooses) {
            self.seen.prompt_tokens += n.min(r.job.prompt.saturating_sub(r.fed)) as u64;
            r.forget_dry();
            r.fed += n;
            r.pending += usize::from(chooses);
            fed.insert(r.id, r.fed);
        }
        Ok(Some(LaunchedStep { fed, prompts, decodes, at: Instant::now() }))
    }

    /// Waits for a launched step and passes on its tokens. If no work can be done, returns the
    /// reason.
    fn collect(&mut self, step: LaunchedStep) -> Option<Refused> {
        let session = self.session.as_mut()?;
        let asked = Instant::now();
        let given = match guarded(|| session.collect()) {
            Ok(Ok(given)) => given,
            Ok(Err(SessionError::Lost(why))) => return self.fault(Failure::Device(why)),
            Ok(Err(error)) => return self.fault(Failure::Device(error.to_string())),
            Err(failure) => return self.fault(failure),
        };
        let context = session.context();
        let now = Instant::now();
        // The device began with it when the step before had ended.
        let took = now - step.at.max(self.collected);
        (self.collected, self.step_time) = (now, took);
        self.seen.ahead.wait += (now - asked).as_secs_f64();
        if step.decodes {
            self.pace.saw(step.prompts, took);
        }
        self.seen.busy += took.as_secs_f64();
        self.seen.steps += 1;
        // Sequences that ended before this step did.
        let in_next = |id| self.launched.as_ref().is_some_and(|step| step.has(id));
        let (stay, gone): (Vec<Leaving>, Vec<Leaving>) =
            std::mem::take(&mut self.leaving).into_iter().partition(|one| in_next(one.id));
        self.leaving = stay;
        let tokens: HashMap<SequenceId, u32> =
            given.into_iter().filter_map(|(id, token)| Some((id, token?))).collect();
        let mut ends: Vec<(usize, End)> = vec![];
        for (at, r) in self.running.iter_mut().enumerate() {
            let Some(&token) = tokens.get(&r.id) else { continue };
            r.pending -= r.pending.min(1);
            let full = step.fed.get(&r.id).is_some_and(|fed| *fed >= context);
            ends.extend(hand_out(&mut self.seen, r, token, None, full).map(|end| (at, end)));
        }
        gone.into_iter().for_each(|one| self.release(one));
        // Starts from the last index, so that the other indices stay valid.
        for (at, end) in ends.into_iter().rev() {
            let r = self.running.remove(at);
            self.finish(r, end);
        }
        self.seen.ahead.deliver += now.elapsed().as_secs_f64();
        None
    }
}
