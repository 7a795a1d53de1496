//! The scheduler: runs many requests in one [`Session`]. It processes tokens, and does not depend
//! on HTTP or text.
//!
//! ```text
//! submit ─→ Waiting (bounded, fair between clients) ─→ Worker, the thread that owns the session ─→ each request's sink
//! ```
//!
//! [`Scheduler::start`] moves the session to a separate thread. [`Scheduler::submit`] puts a
//! [`Request`] into a bounded queue, or returns the reason of the refusal. The thread composes
//! steps: one token of every running answer, and pieces of prompts up to a token budget, so that a
//! long prompt does not stall the answers. Results are sent to the sink of the request as
//! [`Event`]s. The last event is [`Event::Done`] or [`Event::Failed`], exactly once.
//!
//! No lock is held while the session computes. A panic in a sink ends that request. A panic or a
//! device fault in a step fails the running requests; then [`SchedulerOptions::reopen`] opens the
//! session again and the queue continues.

mod adapters;
mod admit;
mod batching;
mod block_events;
mod checkpoints;
mod constrained;
mod deliver_tokens;
mod device_decode;
mod held_tokens;
mod host_sampling;
mod launched;
mod masks;
mod memory;
mod pace;
mod paged;
mod prefixes;
mod request;
mod retained;
mod running;
mod saved_pages;
mod scheduler;
mod shared;
mod status;
mod step;
mod waiting;
mod worker;

pub use block_events::{BlockEvent, BlockHash, BlockSink};
pub use request::{
    Alternative, Constraint, Event, EventSink, Failure, Interrupt, Logprobs, Owner, Reason,
    Refused, Request, Stop, Usage,
};
pub use saved_pages::SavedPages;
pub use scheduler::{Answer, Scheduler};
pub use shared::SchedulerOptions;
pub use status::{AheadCounts, Histogram, State, Status};

use crate::session::Session;

/// Reopens the session after a fault.
pub type Reopen = Box<dyn FnMut() -> Result<Session, String> + Send>;
