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

/// Waiting requests by client. Clients are served in turns, by their weights. Requests of one
/// client run by priority, and in the order of their arrival if that is equal.
#[derive(Default)]
pub(super) struct Waiting {
    /// Clients that have waiting requests, in round-robin order.
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

    /// Puts a request into the queue of its client, after all of the same priority.
    pub fn push(&mut self, job: ActiveRequest) {
        self.len += 1;
        match self.clients.iter_mut().find(|(c, _)| *c == job.client) {
            Some((_, jobs)) => {
                let at = jobs.partition_point(|one| one.priority <= job.priority);
                jobs.insert(at, job);
            }
            None => self.clients.push_back((job.client.clone(), VecDeque::from([job]))),
        }
    }

    /// Puts a preempted request before all others of its priority. Its client's turn is next.
    pub fn push_front(&mut self, job: ActiveRequest) {
        self.len += 1;
        let at = self.clients.iter().position(|(c, _)| *c == job.client);
        let (client, mut jobs) = at.and_then(|at| self.clients.remove(at)).unwrap_or_default();
        let client = client.or_else(|| job.client.clone());
        let at = jobs.partition_point(|one| one.priority < job.priority);
        jobs.insert(at, job);
        self.clients.push_front((client, jobs));
    }

    /// Removes the next request. It is from a client with the fewest running requests for its
    /// weight; among those clients, from the one whose turn is next. `ready` may skip requests.
    /// Returns `None` while a skipped request has been overtaken too often.
    pub fn pop(
        &mut self,
        running: &HashMap<Client, usize>,
        mut ready: impl FnMut(&ActiveRequest) -> AdmitDecision,
    ) -> Option<ActiveRequest> {
        let of = |c: &Client| running.get(c).copied().unwrap_or(0);
        let share = |c: &Client, job: &ActiveRequest| of(c) as f64 / f64::from(job.weight.max(1));
        let heads = self
            .clients
            .iter()
            .enumerate()
            .filter_map(|(i, (c, jobs))| jobs.front().map(|job| (i, share(c, job), job)));
        let mut heads: Vec<(usize, f64, AdmitDecision)> =
            heads.map(|(i, share, job)| (i, share, ready(job))).collect();
        heads.sort_by(|(_, a, _), (_, b, _)| a.total_cmp(b));
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

#[cfg(test)]
mod tests {
    use super::super::request::Request;
    use super::*;
    use std::hash::{BuildHasher, RandomState};
    use std::ops::ControlFlow;
    use std::sync::Arc;
    use std::time::Duration;

    /// A request whose number of tokens is its name.
    fn job(client: &str, name: usize, weight: u32, priority: i32) -> ActiveRequest {
        let request = Request {
            client: Some(client.to_owned()),
            weight,
            priority,
            ..Request::new(vec![1; name], Box::new(|_| ControlFlow::Continue(())))
        };
        ActiveRequest::new(request, &[], Duration::from_secs(1), Arc::default())
    }

    fn random(upper: usize) -> usize {
        RandomState::new().hash_one(0) as usize % upper
    }

    #[test]
    fn priority_orders_requests_of_a_client_and_equal_ones_keep_their_order() {
        let mut waiting = Waiting::default();
        let mut want: Vec<(i32, usize)> = vec![];
        for name in 1..=1 + random(40) {
            let priority = random(5) as i32 - 2;
            waiting.push(job("a", name, 1, priority));
            want.push((priority, name));
        }
        want.sort_by_key(|(priority, _)| *priority);
        // A preempted request comes back before those of its priority.
        let (none, now) = (HashMap::new(), |_: &ActiveRequest| AdmitDecision::Now);
        let first = waiting.pop(&none, now).unwrap();
        waiting.push_front(first);
        let mut got = vec![];
        while let Some(job) = waiting.pop(&none, now) {
            got.push((job.priority, job.prompt));
        }
        assert_eq!(got, want);
        assert_eq!(waiting.len(), 0);
    }

    #[test]
    fn running_requests_are_shared_by_weight() {
        let weights = [1 + random(9) as u32, 1 + random(9) as u32, 1];
        let rounds = 7;
        let mut waiting = Waiting::default();
        for _ in 0..rounds * 9 {
            for (i, weight) in weights.iter().enumerate() {
                waiting.push(job(&i.to_string(), 1, *weight, 0));
            }
        }
        let mut running: HashMap<Client, usize> = HashMap::new();
        for _ in 0..rounds * weights.iter().sum::<u32>() {
            let job = waiting.pop(&running, |_| AdmitDecision::Now).unwrap();
            *running.entry(job.client.clone()).or_default() += 1;
        }
        for (i, weight) in weights.iter().enumerate() {
            let got = running[&Some(i.to_string())] as i64;
            let want = i64::from(rounds * weight);
            assert!((got - want).abs() <= 1, "{weights:?}: {running:?}");
        }
    }
}
