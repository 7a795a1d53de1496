//! Submits requests to a scheduler and collects their events. Tests of other crates use this module
//! as well.

use kjit_model::serve::{Answer, Event, Failure, Reason, Request, Scheduler, Usage};
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Maximum time of a request. A request that takes longer is considered to hang.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);

/// A submitted request.
pub struct SubmittedRequest {
    /// Cancels the request when it is dropped.
    pub answer: Option<Answer>,
    /// The request's events.
    pub events: Receiver<Event>,
    /// Tokens that `tokens` has already read.
    pub seen: RefCell<Vec<u32>>,
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Got {
    /// The answer's tokens.
    pub ids: Vec<u32>,
    /// All events.
    pub events: Vec<Event>,
    /// The end of the request.
    pub end: Result<(Reason, Usage), Failure>,
}

impl Got {
    /// Number of prompt tokens that were cached.
    pub fn cached(&self) -> usize {
        self.end.as_ref().unwrap().1.cached_tokens
    }

    /// The reason of the end.
    pub fn reason(&self) -> Reason {
        self.end.as_ref().unwrap().0
    }
}

/// Submits a greedy request for `n` tokens. `change` may modify it first.
pub fn ask(
    scheduler: &Scheduler,
    tokens: &[u32],
    n: usize,
    change: impl FnOnce(&mut Request),
) -> SubmittedRequest {
    let (tell, events) = channel();
    let sink = Box::new(move |event| {
        // The test may have dropped the receiver.
        let _ = tell.send(event);
        ControlFlow::Continue(())
    });
    let mut request = Request { max_tokens: Some(n), ..Request::new(tokens.to_vec(), sink) };
    change(&mut request);
    SubmittedRequest {
        answer: Some(scheduler.submit(request).unwrap()),
        events,
        seen: RefCell::default(),
    }
}

impl SubmittedRequest {
    /// Waits for `n` more tokens.
    pub fn tokens(&self, n: usize) -> Vec<u32> {
        let mut ids = vec![];
        while ids.len() < n {
            match self.events.recv_timeout(REQUEST_TIMEOUT).unwrap() {
                Event::Token { id, .. } => ids.push(id),
                Event::Started { .. } => {}
                end => panic!("{end:?} after {ids:?}"),
            }
        }
        self.seen.borrow_mut().extend(&ids);
        ids
    }

    /// Waits for the end. No event may follow it.
    pub fn got(self) -> Got {
        let (mut ids, mut events, mut end) = (self.seen.take(), vec![], None);
        loop {
            match self.events.recv_timeout(REQUEST_TIMEOUT) {
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("no end after {events:?}"),
                Ok(event) => {
                    assert!(end.is_none(), "{event:?} after the end {end:?}");
                    events.push(event.clone());
                    match event {
                        Event::Token { id, .. } => ids.push(id),
                        Event::Started { .. } => {}
                        Event::Done { reason, usage } => end = Some(Ok((reason, usage))),
                        Event::Failed(failure) => end = Some(Err(failure)),
                    }
                }
            }
        }
        let end = end.unwrap_or_else(|| panic!("the sink went without an end: {events:?}"));
        if let Ok((_, usage)) = &end {
            assert_eq!(usage.generated_tokens, ids.len());
        }
        Got { ids, events, end }
    }
}
