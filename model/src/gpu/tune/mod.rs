//! Tuning: what a device says is the best variant of each kernel, kept beside the code objects, and honoured by every later plan.

mod choices;

pub use choices::Kept;
