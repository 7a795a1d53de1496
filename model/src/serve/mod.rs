//! The engine room of a server: many requests, one [`Session`], nothing lost. It knows tokens and
//! nothing of HTTP or text.
//!
//! ```text
//! submit ─→ Waiting (bounded, fair between clients) ─→ Worker, the thread that owns the session ─→ each request's sink
//! ```
//!
//! [`Scheduler::start`] gives the session a thread of its own. [`Scheduler::submit`] puts a
//! [`Request`] into a bounded queue or says why not. The thread composes steps: a token of
//! everybody who is being answered, and pieces of prompts up to a token budget, so that nobody's
//! tokens stop because somebody comes with a long prompt. What comes out goes to the request's sink
//! as [`Event`]s, the last of which is [`Event::Done`] or [`Event::Failed`], exactly once.
//!
//! No lock is held while the session computes. A panic in a sink is the end of that request; a
//! panic or a device's fault in a step fails those that were running, the session is opened again
//! by [`SchedulerOptions::reopen`], and the queue goes on.

mod admit;
mod ahead;
mod borders;
mod choose;
mod compose;
mod kept;
mod masks;
mod memory;
mod paged;
mod prefixes;
mod request;
mod running;
mod scheduler;
mod status;
mod step;
mod waiting;
mod worker;

pub use request::{
    Alternative, Constraint, Event, Failure, Logprobs, Owner, Reason, Refused, Request, Sink, Stop,
    Usage,
};
pub use scheduler::{Answer, Scheduler, SchedulerOptions};
pub use status::{Histogram, State, Status};

use crate::session::Session;

/// Opens the session again after a fault.
pub type Reopen = Box<dyn FnMut() -> Result<Session, String> + Send>;
