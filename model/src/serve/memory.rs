//! Handles a lack of memory for sequences that allocate while they grow. Retained sequences are
//! removed first, then the newest sequence is preempted. If a sequence is alone and still lacks
//! memory, it fails, and its client may retry. The status is [`State::Short`] until that amount of
//! memory can be allocated. The scheduler tries this while it is idle.

use super::request::Failure;
use super::running::{ActiveRequest, End, Running};
use super::status::State;
use super::worker::Worker;
use crate::sample::SampleOptions;
use crate::session::{SessionError, Want};

impl Worker {
    /// Removes the least recently used retained sequence. Returns `false` if there is none.
    pub(super) fn forget_oldest(&mut self) -> bool {
        let oldest = self.kept.oldest(None);
        if let (Some(oldest), Some(session)) = (oldest, &mut self.session) {
            // There is a retained sequence, so this cannot fail.
            let _ = session.remove(oldest);
        }
        oldest.is_some()
    }

    /// Preempts a sequence of the client that has the newest one: its newest sequence with the
    /// highest priority value. A priority has no effect on the sequences of other clients. The
    /// sequence returns to the queue and is recomputed later. Returns `false` if there is only the
    /// oldest sequence, which always runs.
    pub(super) fn preempt_newest(&mut self) -> bool {
        let client = self.running.last().map(|r| r.job.client.clone());
        let newer = self.running.iter().enumerate().skip(1);
        let of_client = newer.filter(|(_, r)| Some(&r.job.client) == client.as_ref());
        let Some((at, _)) = of_client.max_by_key(|(_, r)| r.job.priority) else { return false };
        let Running { id, mut job, fed, .. } = self.running.remove(at);
        job.sampler = self.session.as_mut().and_then(|session| session.sampler(id).ok()).cloned();
        if self.session.as_ref().is_some_and(|session| session.pages().is_some()) {
            // The prefix is retained while the pages are not needed.
            let tokens = job.tokens.get(..fed).unwrap_or_default().to_vec();
            self.keep(job.owner, id, &tokens);
        }
        if let Some(session) = &mut self.session {
            let _ = session.remove(id);
        }
        self.seen.preempted += 1;
        self.shared.lock().waiting.push_front(job);
        true
    }

    /// Frees memory for the next step after a step that lacked memory.
    pub(super) fn make_way(&mut self) {
        if !self.forget_oldest() {
            // No request is admitted until a sequence has ended. A request that is admitted earlier
            // would be preempted again.
            self.crowded = self.preempt_newest();
        }
    }

    /// There is not enough memory for this request. It waits for running sequences, and fails if
    /// there are none.
    pub(super) fn lacks_memory(&mut self, job: ActiveRequest, error: &SessionError) {
        if self.running.is_empty() {
            let failure = self.short(error, 0);
            return self.end(job, End::Failed(failure));
        }
        self.crowded = true;
        self.shared.lock().waiting.push_front(job);
    }

    /// The failure of a sequence that is alone and lacks memory for `tokens` tokens.
    pub(super) fn short(&mut self, error: &SessionError, tokens: usize) -> Failure {
        self.lacked = tokens;
        self.seen.state = State::Short;
        Failure::Memory(error.to_string())
    }

    /// A step succeeded, so the state is no longer [`State::Short`].
    pub(super) fn has_memory(&mut self) {
        if self.seen.state == State::Short {
            self.seen.state = State::Ready;
        }
    }

    /// While idle, tries to allocate the amount that was lacking.
    pub(super) fn try_memory(&mut self) {
        let Some(session) = &mut self.session else { return };
        let Ok(id) = session.add(SampleOptions::default()) else { return };
        let tokens = vec![0; self.lacked];
        let had = session.feed(id, &tokens, Want::Nothing).is_ok();
        let _ = session.remove(id);
        if had {
            self.has_memory();
        }
    }
}
