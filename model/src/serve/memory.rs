//! Memory that cannot be had where sequences take it as they come: what is only kept goes first,
//! then the youngest sequence is put back into the queue. One that is alone and has too little all
//! the same fails, and may be asked again. From then on, until as much can be had, [`State::Short`]
//! is shown: it is tried again while nobody is there.

use super::request::Failure;
use super::running::{End, Job, Running};
use super::status::State;
use super::worker::Worker;
use crate::sample::SampleOptions;
use crate::session::{SessionError, Want};

impl Worker {
    /// Forgets the kept sequence that was of no use for longest. False: there is none.
    pub(super) fn forget_oldest(&mut self) -> bool {
        let oldest = self.kept.oldest(None);
        if let (Some(oldest), Some(session)) = (oldest, &mut self.session) {
            // It was kept, so it is there.
            let _ = session.remove(oldest);
        }
        oldest.is_some()
    }

    /// Puts the youngest sequence back into the queue, to be computed again when there is room.
    /// False: it would be the only one, which always goes on.
    pub(super) fn put_back_youngest(&mut self) -> bool {
        if self.running.len() < 2 {
            return false;
        }
        let Some(Running { id, mut job, fed, .. }) = self.running.pop() else { return false };
        job.sampler = self.session.as_mut().and_then(|session| session.sampler(id).ok()).cloned();
        if self.session.as_ref().is_some_and(|session| session.pages().is_some()) {
            // What it had is kept while nobody needs it.
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

    /// After a step for which memory could not be had: there may be more for the next one.
    pub(super) fn make_way(&mut self) {
        if !self.forget_oldest() {
            // Nobody is let in until one of the others has ended: it would be the same again.
            self.crowded = self.put_back_youngest();
        }
    }

    /// There is no memory for this request: it waits for those that run. Where nobody does, it
    /// fails.
    pub(super) fn lacks_memory(&mut self, job: Job, error: &SessionError) {
        if self.running.is_empty() {
            let failure = self.short(error, 0);
            return self.end(job, End::Failed(failure));
        }
        self.crowded = true;
        self.shared.lock().waiting.push_front(job);
    }

    /// What becomes of one that is alone and lacks memory for so many tokens.
    pub(super) fn short(&mut self, error: &SessionError, tokens: usize) -> Failure {
        self.lacked = tokens;
        self.seen.state = State::Short;
        Failure::Memory(error.to_string())
    }

    /// A step was done.
    pub(super) fn has_memory(&mut self) {
        if self.seen.state == State::Short {
            self.seen.state = State::Ready;
        }
    }

    /// Nobody is there: whether what was lacked can be had now.
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
