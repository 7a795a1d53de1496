//! Tuning: measures the best variant of each kernel on a device, and saves the choices in the cache
//! for all later plans.
//!
//! Variants run in a child process. If a variant faults, hangs or is killed, this is recorded, and
//! the next child continues with the next variant. A variant is timed only if its results match the
//! oracle. It is chosen only if it is faster than the default by more than the spread of both. All
//! timings and failures are saved, by target, driver, source and spec.

mod child;
mod choices;
mod course;
mod parent;
mod protocol;

pub use child::serve;
pub use choices::StoredTunings;
pub use course::TuningSet;
pub use parent::{Candidate, Options, Progress, Tuned, tune};
