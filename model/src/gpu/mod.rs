//! The GPU backend: lowers a graph to launches of kernels, and runs them.
//!
//! `fuse` groups operations. [`plan`](mod@plan) chooses kernels and lays out memory, without a
//! device, so that `kjit warm` can do it on a laptop. `open` compiles and uploads. [`GpuRunner`]
//! launches what a [`Session`](crate::session::Session) requests. Nothing here names a vendor:
//! differences are in the engine and, as a target, in the kernels' specs.

// Hidden modules are for this project's command, tests and benches; they may change at any time.
mod aside;
#[doc(hidden)]
pub mod bundle;
mod early;
mod fit;
#[doc(hidden)]
pub mod fuse;
mod hot;
#[doc(hidden)]
pub mod limit;
#[doc(hidden)]
pub mod measure;
mod meeting;
mod open;
mod ours;
pub mod plan;
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
pub(crate) use open::free_memory;
pub use open::{Statistics, Streamed, jobs_for, plan_for};
pub(crate) use plan::why_no_pages;
pub use resident::Timeline;
pub(crate) use runner::Apart;
pub use runner::{GpuRunner, PageCount};
pub use settle::settled;
pub(crate) use share::{Shared, lacks, shared};
pub use trust::Proven;

use crate::session::SessionError;
use kjit_engine::Error;

impl From<Error> for SessionError {
    fn from(error: Error) -> SessionError {
        match error {
            Error::OutOfMemory { what, asked, free, total, device } => SessionError::Memory {
                what: format!("{what} on {device}"),
                bytes: asked,
                hint: format!("{free} of {total} bytes are free"),
            },
            // A call that the driver refuses leaves the context in an unknown state.
            lost @ (Error::Driver { .. } | Error::DeviceLost { .. }) => {
                SessionError::Lost(lost.to_string())
            }
            other => SessionError::Device(other.to_string()),
        }
    }
}

impl From<plan::PlanError> for SessionError {
    fn from(error: plan::PlanError) -> SessionError {
        SessionError::Device(error.to_string())
    }
}
