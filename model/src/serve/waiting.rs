//! The waiting queue: bounded, and fair between clients.

use super::running::ActiveRequest;
use std::collections::{HashMap, VecDeque};

/// Maximum number of requests that may overtake a request that waits for memory. After that, no
/// request is admitted before it.
const PASSED: u32 = 8;

/// Whether a waiting request can be admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AdmitDecision {
    Now,
    /// It can be admitted later: a running prompt is computing its prefix.
    Later,
    /// There is no memory for its tokens, or no place for its adapters, while the running sequences
    /// exist. Other requests overtake it at most [`PASSED`] times.
    NoRoom,
}

/// The name of a client. All requests without a name form one client.
type Client = Option<String>;

/// Waiting requests by client. Clients are served in turns; requests of one client keep their
/// order.
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

    /// All waiting requests.
    pub fn iter(&self) -> impl Iterator<Item = &ActiveRequest> {
        self.clients.iter().flat_map(|(_, jobs)| jobs)
    }

    /// Appends a request to the queue of its client.
    pub fn push(&mut self, job: ActiveRequest) {
        self.len += 1;
        match self.clients.iter_mut().find(|(c, _)| *c == job.client) {
            Some((_, jobs)) => jobs.push_back(job),
            None => self.clients.push_back((job.client.clone(), VecDeque::from([job]))),
        }
    }

    /// Puts a preempted request before all others.
    pub fn push_front(&mut self, job: ActiveRequest) {
        self.len += 1;
        let at = self.clients.iter().position(|(c, _)| *c == job.client);
        let (client, mut jobs) = at.and_then(|at| self.clients.remove(at)).unwrap_or_default();
        let client = client.or_else(|| job.client.clone());
        jobs.push_front(job);
        self.clients.push_front((client, jobs));
    }

    /// Removes the next request. It is from a client with the fewest running requests; among those
    /// clients, from the one whose turn is next. `ready` may skip requests. Returns `None` while a
    /// skipped request has been overtaken too often.
    pub fn pop(
        &mut self,
        running: &HashMap<Client, usize>,
        mut ready: impl FnMut(&ActiveRequest) -> AdmitDecision,
    ) -> Option<ActiveRequest> {
        let of = |c: &Client| running.get(c).copied().unwrap_or(0);
        let heads = self
            .clients
            .iter()
            .enumerate()
            .filter_map(|(i, (c, jobs))| Some((i, of(c), jobs.front()?)));
        let mut heads: Vec<(usize, usize, AdmitDecision)> =
            heads.map(|(i, running, job)| (i, running, ready(job))).collect();
        heads.sort_by_key(|(_, running, _)| *running);
        let &(at, ..) = heads.iter().find(|(.., ready)| *ready == AdmitDecision::Now)?;
        for (i, _, of) in heads {
            let job = self
                .clients
                .get_mut(i)
                .and_then(|(_, jobs)| jobs.front_mut())
                .filter(|_| of == AdmitDecision::NoRoom);
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
