//! Work before a request is queued: rendering and tokenising its prompt, and compiling its
//! constraints. This work takes time and memory, so it waits for a slot. Clients are served round
//! robin, and no client gets all threads. A client that disconnects gives up its slot. Small
//! requests do not wait for large requests.

use crate::caller::Caller;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Maximum bytes of a small body: a page of text and one or two tools.
const SMALL: usize = 64 << 10;
/// Threads for small requests, and as many for large ones. One client gets at most all but one.
pub const PLACES: usize = 2;

/// Requests that wait for a slot, and requests that have one.
#[derive(Default)]
pub struct PreparationQueue {
    lanes: Mutex<[Lane; 2]>,
}

type Client = Option<String>;

/// The requests of one size, small or large.
#[derive(Default)]
struct Lane {
    /// Waiting clients, in round-robin order.
    waiting: VecDeque<(Client, VecDeque<oneshot::Sender<PreparationSlot>>)>,
    /// Number of slots that each client uses.
    taken: HashMap<Client, usize>,
}

/// The right to use a thread, until it is dropped.
pub struct PreparationSlot {
    queue: Arc<PreparationQueue>,
    lane: usize,
    client: Client,
}

impl PreparationQueue {
    /// Number of requests that wait for a slot.
    pub fn waiting(&self) -> usize {
        self.lock().iter().map(Lane::waiting).sum()
    }

    /// Number of requests that wait or have a slot.
    pub fn held(&self) -> usize {
        self.lock().iter().map(|lane| lane.waiting() + lane.taken.values().sum::<usize>()).sum()
    }

    /// Waits for a slot. Dropping the future leaves the queue.
    pub async fn place(self: &Arc<PreparationQueue>, caller: &Caller) -> Option<PreparationSlot> {
        let lane = usize::from(caller.bytes > SMALL);
        let (to, turn) = oneshot::channel();
        if let Some(lane) = self.lock().get_mut(lane) {
            match lane.waiting.iter_mut().find(|(client, _)| *client == caller.client) {
                Some((_, all)) => all.push_back(to),
                None => lane.waiting.push_back((caller.client.clone(), VecDeque::from([to]))),
            }
        }
        self.hand_out(lane);
        turn.await.ok()
    }

    fn lock(&self) -> MutexGuard<'_, [Lane; 2]> {
        // A panic cannot leave this state inconsistent: only whole entries are moved.
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hand_out(self: &Arc<PreparationQueue>, at: usize) {
        loop {
            let next = self.lock().get_mut(at).and_then(Lane::next);
            let Some((client, to)) = next else { return };
            // If the receiver was dropped, the slot is returned. It is dropped outside of the lock.
            drop(to.send(PreparationSlot { queue: Arc::clone(self), lane: at, client }));
        }
    }
}

impl Lane {
    fn waiting(&self) -> usize {
        self.waiting.iter().flat_map(|(_, all)| all).filter(|to| !to.is_closed()).count()
    }

    /// The next request, if a slot is free for it.
    fn next(&mut self) -> Option<(Client, oneshot::Sender<PreparationSlot>)> {
        self.waiting.iter_mut().for_each(|(_, all)| all.retain(|to| !to.is_closed()));
        self.waiting.retain(|(_, all)| !all.is_empty());
        if self.taken.values().sum::<usize>() >= PLACES {
            return None;
        }
        let has = |client: &Client| self.taken.get(client).copied().unwrap_or(0);
        let at = self.waiting.iter().position(|(client, _)| has(client) + 1 < PLACES)?;
        let (client, mut all) = self.waiting.remove(at)?;
        let to = all.pop_front()?;
        if !all.is_empty() {
            self.waiting.push_back((client.clone(), all));
        }
        *self.taken.entry(client.clone()).or_default() += 1;
        Some((client, to))
    }
}

impl Drop for PreparationSlot {
    fn drop(&mut self) {
        if let Some(lane) = self.queue.lock().get_mut(self.lane) {
            let left = lane.taken.get(&self.client).map_or(0, |n| n.saturating_sub(1));
            match left {
                0 => _ = lane.taken.remove(&self.client),
                left => _ = lane.taken.insert(self.client.clone(), left),
            }
        }
        self.queue.hand_out(self.lane);
    }
}

#[cfg(test)]
mod tests {
    use super::{Caller, PreparationQueue, PreparationSlot, SMALL};
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    type Turn<'a> = Pin<Box<dyn Future<Output = Option<PreparationSlot>> + 'a>>;

    fn caller(client: &str, bytes: usize) -> Caller {
        Caller { client: Some(client.to_owned()), bytes, ..Caller::default() }
    }

    /// The slot, if it was given.
    fn look(turn: &mut Turn<'_>) -> Option<PreparationSlot> {
        match turn.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(place) => Some(place.unwrap()),
            Poll::Pending => None,
        }
    }

    #[test]
    fn preparation_is_fair_and_small_requests_bypass_large() {
        let queue = Arc::new(PreparationQueue::default());
        let (many, few, small) =
            (caller("many", SMALL + 1), caller("few", SMALL + 1), caller("many", SMALL));
        let mut turns: Vec<Turn<'_>> =
            (0..10).map(|_| Box::pin(queue.place(&many)) as Turn<'_>).collect();
        let mut places: Vec<Option<PreparationSlot>> = turns.iter_mut().map(look).collect();
        assert_eq!(places.iter().flatten().count(), 1, "one of two");
        assert_eq!(queue.waiting(), 9);
        let mut another: Turn<'_> = Box::pin(queue.place(&few));
        let other = look(&mut another).expect("no other request waits");
        let mut beside: Turn<'_> = Box::pin(queue.place(&small));
        assert!(look(&mut beside).is_some());
        // Clients without a slot come first; within a client, the oldest request.
        let mut third: Turn<'_> = Box::pin(queue.place(&few));
        assert!(look(&mut third).is_none());
        drop(places[0].take());
        places = turns.iter_mut().skip(1).map(look).collect();
        assert!(
            places[0].is_some()
                && places.iter().flatten().count() == 1
                && look(&mut third).is_none()
        );
        drop(other);
        assert!(look(&mut third).is_some(), "the first slot was returned");
        // A request that is dropped leaves the queue or frees its slot.
        turns.truncate(4);
        assert_eq!(queue.waiting(), 2);
        places.clear();
        drop(turns.remove(2));
        let last = look(&mut turns[2]).expect("a cancelled request passed its slot on");
        assert_eq!(queue.waiting(), 0);
        drop(last);
        assert!(queue.lock().iter().all(|lane| lane.taken.is_empty() && lane.waiting.is_empty()));
    }
}
