//! Single flight in a process: of the threads that request the same key, one creates the artefact
//! and the others wait.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::entry::Entry;
use crate::key::Digest;

/// The result of a flight: an entry, the error of the maker, or a panic of its thread.
#[derive(Clone)]
pub(crate) enum FlightResult {
    Entry(Entry),
    Failed(Arc<dyn Any + Send + Sync>),
    Abandoned,
}

#[derive(Default)]
struct Flight {
    landing: Mutex<Option<FlightResult>>,
    landed: Condvar,
}

/// The keys that this process is making.
#[derive(Default)]
pub(crate) struct FlightGroup {
    open: Mutex<HashMap<Digest, Arc<Flight>>>,
}

/// The task of a thread that requests a key.
pub(crate) enum Role<'a> {
    /// The thread creates the artefact and finishes the flight.
    Lead(Leader<'a>),
    /// Another thread has created the artefact.
    Landed(FlightResult),
    /// The thread that creates the artefact takes too long.
    TimedOut,
}

/// The guard of a flight, which its thread must land. If it is dropped without landing, the waiters
/// get no result.
pub(crate) struct Leader<'a> {
    flights: &'a FlightGroup,
    key: Digest,
    flight: Arc<Flight>,
}

impl FlightGroup {
    /// Joins the flight of `key`, or starts one. Waits at most until `deadline`.
    pub(crate) fn board(&self, key: Digest, deadline: Instant) -> Role<'_> {
        let flight = {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            match open.get(&key) {
                Some(flight) => flight.clone(),
                None => {
                    let flight = Arc::new(Flight::default());
                    open.insert(key, flight.clone());
                    return Role::Lead(Leader { flights: self, key, flight });
                }
            }
        };
        let mut landing = flight.landing.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(landing) = landing.as_ref() {
                return Role::Landed(landing.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Role::TimedOut;
            }
            landing =
                flight.landed.wait_timeout(landing, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Leader<'_> {
    pub(crate) fn land(self, landing: FlightResult) {
        self.finish(landing);
    }

    fn finish(&self, landing: FlightResult) {
        let mut open = self.flights.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.get(&self.key).is_some_and(|flight| Arc::ptr_eq(flight, &self.flight)) {
            open.remove(&self.key);
        }
        drop(open);
        let mut slot = self.flight.landing.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            *slot = Some(landing);
        }
        self.flight.landed.notify_all();
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.finish(FlightResult::Abandoned);
    }
}
