//! Test cases of every kernel family as data: a kernel, its launch, its arguments and the expected
//! results. The cases run on the simulated device, on a real one (`doctor --run`) and as proof
//! bundles.
//!
//! Inputs are random but seeded. Outputs start poisoned with NaN. Expected values are computed here
//! in f64. A buffer without expectation must not change.

#![cfg_attr(not(test), forbid(unsafe_code))]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod attention;
mod case;
mod cases;
mod choice;
mod content;
mod data;
mod expect;
pub mod matrix;
mod oracle;
mod paged;
mod products;
mod registry;
mod rows;
mod samples;
mod shared;
mod state;
mod tiled;

pub use case::{Case, CaseArg};
pub use cases::Cases;
pub use content::Content;
pub use data::Random;
pub use expect::{Expect, HALF, QUANTISED, SINGLE, Storage, Tolerance};
pub use registry::{all, case};
pub use samples::Samples;
pub use shared::SharedData;

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

// Unit and integration tests are one program. Integration tests use only the public API.
#[cfg(test)]
extern crate self as kjit_kernel_cases;
#[cfg(test)]
#[path = "../tests/it/main.rs"]
mod it;
