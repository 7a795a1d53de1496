//! The waiting queue: bounded, and fair between clients.

use super::running::ActiveRequest;
use std::collections::{HashMap, VecDeque};

/// How often others may overtake a request that waits for room. After that, none is admitted before
/// it.
const PASSED: u32 = 8;

/// Whether a waiting request can be admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ready {
    Now,
    /// Later: a running prompt is computing its prefix.
    Later,
    /// Its tokens do not fit beside the running sequences. Shorter requests overtake it at most
    /// [`PASSED`] times.
    NoRoom,
}

/// A client's name; all requests without one form one client.
type Client = Option<String>;

/// Waiting requests by client. Clients take turns; requests of one client keep their order.
#[derive(Default)]
pub(super) struct Waiting {
    /// Clients that have waiting requests, in the order of their turns.
    clients: VecDeque<(Client, VecDeque<ActiveRequest>)>,
    len: usize,
}

impl Waiting {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Appends to its client's queue.
    pub fn push(&mut self, job: ActiveRequest) {
        self.len += 1;
        match self.clients.iter_mut().find(|(c, _)| *c == job.client) {
            Some((_, jobs)) => jobs.push_back(job),
            None => self.clients.push_back((job.client.clone(), VecDeque::from([job]))),
        }
    }

    /// Puts a preempted request in front of all.
    pub fn push_front(&mut self, job: ActiveRequest) {
        self.len += 1;
        let at = self.clients.iter().position(|(c, _)| *c == job.client);
        let (client, mut jobs) = at.and_then(|at| self.clients.remove(at)).unwrap_or_default();
        let client = client.or_else(|| job.client.clone());
        jobs.push_front(job);
        self.clients.push_front((client, jobs));
    }

    /// Removes the next request: of the clients with the fewest running requests, the one whose
    /// turn is next. `ready` may skip requests; `None` while a skipped request has been overtaken
    /// too often.
    pub fn pop(
        &mut self,
        running: &HashMap<Client, usize>,
        mut ready: impl FnMut(&ActiveRequest) -> Ready,
    ) -> Option<ActiveRequest> {
        let of = |c: &Client| running.get(c).copied().unwrap_or(0);
        let heads = self
            .clients
            .iter()
            .enumerate()
            .filter_map(|(i, (c, jobs))| Some((i, of(c), jobs.front()?)));
        let mut heads: Vec<(usize, usize, Ready)> =
            heads.map(|(i, running, job)| (i, running, ready(job))).collect();
        heads.sort_by_key(|(_, running, _)| *running);
        let &(at, ..) = heads.iter().find(|(.., ready)| *ready == Ready::Now)?;
        for (i, _, of) in heads {
            let job = self
                .clients
                .get_mut(i)
                .and_then(|(_, jobs)| jobs.front_mut())
                .filter(|_| of == Ready::NoRoom);
            if let Some(job) = job {
                if job.passed >= PASSED {
                    return None;
                }
                job.passed += 1;
            }
        }
        let (client, mut jobs) = self.clients.remove(at)?;
        let job = jobs.pop_front();
        if !jobs.is_empty() {
            self.clients.push_back((client, jobs));
        }
        self.len = self.len.saturating_sub(usize::from(job.is_some()));
        job
    }

    /// Removes all requests that `gone` selects.
    pub fn drain(&mut self, mut gone: impl FnMut(&ActiveRequest) -> bool) -> Vec<ActiveRequest> {
        let mut out = vec![];
        for (_, jobs) in &mut self.clients {
            let (left, kept): (Vec<ActiveRequest>, Vec<ActiveRequest>) =
                std::mem::take(jobs).into_iter().partition(&mut gone);
            out.extend(left);
            jobs.extend(kept);
        }
        self.clients.retain(|(_, jobs)| !jobs.is_empty());
        self.len -= out.len().min(self.len);
        out
    }
}
