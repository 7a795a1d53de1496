//! Lowers a graph to launches of GPU kernels, and runs them.
//!
//! Decide, hold and launch stay apart: `fuse` says which operations belong together,
//! [`plan`](mod@plan) chooses kernels and lays memory out (no device is asked: `kjit warm` does as
//! much on a laptop), `open` uploads and compiles, [`GpuRunner`] launches what a
//! `Session` asks for. No vendor is named here: what depends on one is
//! in the engine and, as a target, in the kernels' specs.

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

// What is hidden is for this project's command, tests and benches: no promise is made of it.
mod aside;
#[doc(hidden)]
pub mod bundle;
mod early;
mod hot;
#[doc(hidden)]
pub mod limit;
#[doc(hidden)]
pub mod measure;
mod meeting;
mod open;
mod ours;
mod process;
#[doc(hidden)]
pub mod prove;
mod resident;
mod ring;
mod runner;
mod settle;
mod share;
mod stock;
#[doc(hidden)]
mod trust;
pub mod tune;
mod upload;

pub use aside::Copied;
pub use early::{Early, EarlyStatus};
pub use hot::HotCounts;
pub use kjit_exec::PageCount;
pub use kjit_plan as plan;
#[doc(hidden)]
pub use kjit_plan::fuse;
pub use open::free_memory;
pub use open::{Source, Statistics, Streamed, jobs_for, plan_for};
pub use resident::Timeline;
pub use runner::Apart;
pub use runner::GpuRunner;
pub use settle::settled;
pub use share::{Shared, lacks, shared};
pub use trust::Proven;
