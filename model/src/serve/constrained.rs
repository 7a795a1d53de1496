//! The constraint of a request, and its masks in the scheduler's steps. The session feeds a chosen
//! token while a thread adds the token to the constraint and computes the next mask. If the logits
//! are ready before the mask, the row of logits waits for it. The sequence then skips the next
//! steps, and the other sequences continue.

use super::deliver_tokens::hand_out;
use super::host_sampling::choose;
use super::masks::{Boxed, Job, Masks, Progress, Reply};
use super::request::{Failure, Interrupt, Reason};
use super::running::End;
use super::worker::Worker;
use crate::sample::TokenMask;
use crate::session::SessionError;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A constraint that takes longer than this for a token does not delay a step, and it has separate
/// threads.
const SLOW_MASK: Duration = Duration::from_millis(20);
/// Maximum time that an iteration waits for the result whether constraints are complete. It usually
/// takes some tens of µs. A sequence with a complete constraint is not part of the step.
const MAX_COMPLETION_WAIT: Duration = Duration::from_millis(2);

/// A constraint of a request.
pub(super) struct Constrained {
    /// `None` while a thread works on it.
    here: Option<Boxed>,
    asked: Option<Asked>,
    /// The mask of the next token.
    mask: Option<TokenMask>,
    /// A token that was chosen but not added yet.
    token: Option<u32>,
    /// The end of the answer after `token`, unless the constraint is complete with it.
    ending: Option<Reason>,
    /// Whether the last mask took longer than [`SLOW_MASK`].
    slow: bool,
    longest: Duration,
    interrupt: Option<Interrupt>,
    /// The end of the answer that its constraint caused.
    over: Option<End>,
}

/// Work of a thread for a request. If it is dropped, the thread stops early.
struct Asked {
    replies: Receiver<Reply>,
    progress: Arc<Progress>,
    interrupt: Option<Interrupt>,
    /// Whether the token was added.
    accepted: bool,
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.progress.gone.store(true, Ordering::Relaxed);
        self.interrupt.iter().for_each(|interrupt| interrupt());
    }
}

impl Constrained {
    pub fn new(constraint: Boxed, longest: Duration) -> Constrained {
        let interrupt = constraint.interrupt();
        Constrained {
            here: Some(constraint),
            asked: None,
            mask: None,
            token: None,
            ending: None,
            slow: false,
            longest,
            interrupt,
            over: None,
        }
    }

    /// Adds a chosen token. `ending`: the answer ends here in any case.
    pub fn accept(&mut self, token: u32, ending: Option<Reason>) {
        (self.token, self.ending) = (Some(token), ending);
    }

    /// Whether the answer ends as soon as its last token was added.
    pub fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Takes the mask of the next token, if it is known.
    pub fn take_mask(&mut self) -> Option<TokenMask> {
        self.mask.take()
    }

    /// Gives the constraint to a thread, unless the mask is known or a thread has it.
    fn ask(&mut self, masks: &mut Masks) -> Result<(), Failure> {
        let needed = self.mask.is_none() || self.token.is_some();
        let Some(constraint) = self.here.take_if(|_| needed) else { return Ok(()) };
        let ((replying, replies), progress) = (channel(), Arc::new(Progress::default()));
        self.asked = Some(Asked {
            replies,
            progress: Arc::clone(&progress),
            interrupt: self.interrupt.clone(),
            accepted: self.token.is_none(),
        });
        let (token, last, slow) = (self.token.take(), self.is_ending(), self.slow);
        self.mask = None;
        masks.ask(Job { constraint, token, last, slow, replies: replying, progress })
    }

    /// The mask of the next token. Waits for it until `until`, unless the constraint is slow.
    pub fn mask_by(&mut self, until: Instant) -> Option<&TokenMask> {
        let until = if self.slow { Instant::now() } else { until };
        while self.mask.is_none() && self.hear(until) {}
        self.mask.as_ref()
    }

    /// Waits until `until` for the result whether the constraint is complete.
    fn settle(&mut self, until: Instant) {
        while self.asked.as_ref().is_some_and(|asked| !asked.accepted) && self.hear(until) {}
    }

    /// Receives a reply until `until`. Returns whether a reply arrived.
    fn hear(&mut self, until: Instant) -> bool {
        let Some(asked) = &mut self.asked else { return false };
        let left = until.saturating_duration_since(Instant::now());
        match asked.replies.recv_timeout(left) {
            Ok(Reply::Accepted(Ok(false))) if self.ending.is_none() => asked.accepted = true,
            Ok(Reply::Accepted(accepted)) => {
                self.asked = None;
                self.over = Some(match accepted {
                    Ok(complete) => {
                        let reason = self.ending.filter(|_| !complete);
                        End::Done(reason.unwrap_or(Reason::Constraint))
                    }
                    Err(failure) => End::Failed(failure),
                });
            }
            Ok(Reply::Mask { constraint, mask, took }) => {
                // The work is done, so there is nothing to interrupt.
                asked.interrupt = None;
                self.asked = None;
                self.slow = took > SLOW_MASK;
                self.here = Some(constraint);
                match mask {
                    Ok(mask) => self.mask = Some(mask),
                    Err(failure) => self.over = Some(End::Failed(failure)),
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                self.asked = None;
                self.over = Some(End::Failed(lost_constraint()));
            }
            Err(RecvTimeoutError::Timeout) => {
                let since = asked.progress.started.get();
                if since.is_some_and(|start| start.elapsed() > self.longest) {
                    self.asked = None;
                    self.over = Some(self.ending.map_or_else(|| too_slow(self.longest), End::Done));
                }
                return false;
            }
        }
        true
    }
}

pub(super) fn lost_constraint() -> Failure {
    Failure::Panic("a constraint was lost".to_owned())
}

fn too_slow(longest: Duration) -> End {
    End::Failed(Failure::Constraint(format!(
        "it took more than {} s for one token: give a smaller or less ambiguous grammar or schema",
        longest.as_secs_f32()
    )))
}

impl Worker {
    /// Chooses tokens from rows whose masks are now known, ends answers by their constraints, and
    /// gives constraints to threads. Returns whether any answer ended or continued.
    pub(super) fn follow_constraints(&mut self) -> bool {
        let until = Instant::now() + MAX_COMPLETION_WAIT;
        let (mut ends, mut went_on) = (vec![], false);
        for at in 0..self.running.len() {
            match self.follow(at) {
                Ok((moved, None)) => went_on |= moved,
                Ok((_, Some(end))) => ends.push((at, end)),
                Err(failure) => ends.push((at, End::Failed(failure))),
            }
        }
        for (at, r) in self.running.iter_mut().enumerate() {
            let Some(c) = &mut r.job.constraint else { continue };
            c.settle(if c.slow { Instant::now() } else { until });
            if let Some(end) = c.over.take() {
                ends.push((at, end));
            }
        }
        let ended = !ends.is_empty();
        ends.sort_by_key(|(at, _)| *at);
        ends.dedup_by_key(|(at, _)| *at);
        // Starts from the last index, so that the other indices stay valid.
        for (at, end) in ends.into_iter().rev() {
            let r = self.running.remove(at);
            self.finish(r, end);
        }
        ended || went_on
    }

    /// Follows the constraint of one sequence. Returns whether it got a token, and the end if the
    /// answer ends here.
    fn follow(&mut self, at: usize) -> Result<(bool, Option<End>), Failure> {
        let refused = |e: SessionError| Failure::Request(e.to_string());
        let Worker { session, running, seen, masks, shared, .. } = self;
        let (Some(session), Some(r)) = (session, running.get_mut(at)) else {
            return Ok((false, None));
        };
        let Some(c) = &mut r.job.constraint else { return Ok((false, None)) };
        while c.over.is_none() && c.hear(Instant::now()) {}
        if let Some(end) = c.over.take() {
            return Ok((false, Some(end)));
        }
        let mut moved = false;
        if c.mask.is_some()
            && let Some(row) = r.row.take()
        {
            let mask = c.take_mask();
            let context = session.context();
            let sampler = session.sampler(r.id).map_err(refused)?;
            let (id, logprobs) = choose(&r.job, sampler, r.fed, mask, row)?;
            let end = hand_out(seen, r, id, logprobs, r.fed >= context);
            if end.is_some() {
                return Ok((true, end));
            }
            moved = true;
        }
        if let Some(c) = &mut r.job.constraint {
            c.ask(masks.get_or_insert_with(|| Masks::new(Arc::clone(shared))))?;
        }
        Ok((moved, None))
    }
}

/// Maximum time that a step waits for masks of quick constraints: `launched` while a device
/// computes the step, otherwise after it. The other sequences lose at most half of a step's time.
pub(super) fn patience(step: Duration, launched: bool) -> Duration {
    let most = if launched { step + step / 2 } else { step / 2 };
    most.clamp(Duration::from_millis(2), Duration::from_millis(if launched { 50 } else { 20 }))
}
