//! Lowers a graph to launches of GPU kernels, and runs them.
//!
//! Decide, hold and launch stay apart: [`fuse`] says which operations belong together, [`plan`](mod@plan) chooses kernels and lays memory out
//! (no device is asked: `kjit warm` does as much on a laptop), [`open`] uploads and compiles, [`GpuExecutor`] launches for
//! one sequence, [`GpuBatch`] for several side by side. No vendor is
//! named here: what depends on one is in the engine and, as a target, in the kernels' specs.

mod batch;
pub mod bundle;
mod early;
mod executor;
pub mod fuse;
pub mod limit;
pub mod measure;
mod open;
pub mod plan;
pub mod prove;
mod resident;
pub mod tune;
mod upload;

pub use batch::{After, GpuBatch, Slot, Start};
pub use early::{Early, EarlyStatus};
pub use executor::GpuExecutor;
pub use open::{Statistics, jobs_for, jobs_for_batch, open, open_batch, open_early, open_on, plan_for, plan_for_batch};

use crate::exec::ExecError;
use kjit_engine::Error;

impl From<Error> for ExecError {
    fn from(error: Error) -> ExecError {
        match error {
            Error::OutOfMemory { what, asked, free, total, device } => ExecError::Memory {
                what: format!("{what} on {device}"),
                bytes: asked,
                hint: format!("{} of {} bytes are free: give a smaller -c, or a smaller model", free, total),
            },
            other => ExecError::Device(other.to_string()),
        }
    }
}

impl From<plan::PlanError> for ExecError {
    fn from(error: plan::PlanError) -> ExecError {
        ExecError::Device(error.to_string())
    }
}
