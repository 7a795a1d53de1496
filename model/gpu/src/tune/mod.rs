//! Tuning: what a device says is the best variant of each kernel, kept beside the code objects, and
//! honoured by every later plan.
//!
//! Variants run in a child process: one that faults, hangs or is killed is a line in the record,
//! and the next child goes on with the next variant. A variant is timed only after it has computed
//! what the oracle did, and chosen only if it beats the default by more than the spread of both.
//! All timings are kept, the failures too, by target, driver, source and spec.

mod child;
mod choices;
mod course;
mod parent;
mod protocol;

pub use child::serve;
pub use choices::Kept;
pub use course::Course;
pub use parent::{Candidate, Options, Progress, Tuned, tune};
