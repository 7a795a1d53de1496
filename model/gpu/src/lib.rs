//! The GPU backend: lowers a graph to launches of kernels, and runs them.
//!
//! `fuse` groups operations. [`plan`](mod@plan) chooses kernels and lays out memory. It needs no
//! device, so `kjit warm` can run it on a laptop. `open` compiles and uploads. [`GpuRunner`]
//! launches the work that a session requests. This crate does not depend on a vendor: the
//! differences are in the engine and, as a target, in the kernels' specs.

#![deny(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing
    )
)]
// Hidden modules are for kjit's command, tests and benches. They may change at any time.
mod background;
#[doc(hidden)]
pub mod bandwidth;
#[doc(hidden)]
pub mod bundle;
#[doc(hidden)]
pub mod card;
mod exchange;
mod expert_cache;
mod host_ffn;
mod host_part;
mod launch;
mod loaded_plan;
#[doc(hidden)]
pub mod measure;
mod open;
#[doc(hidden)]
pub mod process;
#[doc(hidden)]
pub mod prove;
#[doc(hidden)]
pub mod prove_plan;
mod runner;
mod source;
mod staging;
mod statistics;
mod streamed;
mod target_probe;
mod trial;
pub mod tune;
mod upload;
#[doc(hidden)]
mod verify;

pub use background::{BackgroundCompiling, BackgroundStatus};
pub use expert_cache::ExpertCacheCounts;
pub use host_ffn::{HostFfn, divide_with_host, lacks};
pub use host_part::PromptCopy;
pub use kjit_exec::PageCount;
pub use kjit_plan as plan;
#[doc(hidden)]
pub use kjit_plan::fuse;
pub use loaded_plan::Timeline;
pub use open::free_memory;
pub use open::{jobs_for, plan_for};
pub use runner::DevicesIncompatible;
pub use runner::{Form, GpuRunner};
pub use source::Source;
pub use statistics::{Statistics, Streamed};
pub use target_probe::settled;
#[doc(hidden)]
pub use trial::trial_plan;
pub use verify::VerifyStatistics;
