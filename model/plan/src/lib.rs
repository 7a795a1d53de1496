//! A plan: all work of a GPU for a model, as data (kernels to compile, memory to allocate,
//! launches).
//!
//! A [`Plan`] depends on the graph, the target and the options, but not on a device. So it can be
//! printed, tested and compiled (`kjit warm`) on a machine without a GPU, and a device of this
//! target finds every kernel in the cache. Properties of a device (the number of compute units) are
//! inserted by a [`Dim`] at launch time.

#![forbid(unsafe_code)]
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

mod arena;
mod batch;
mod bind;
mod build;
mod choice;
mod decode;
mod dim;
pub mod divide;
mod error;
pub mod expert_cache;
mod fit;
#[doc(hidden)]
pub mod fuse;
mod group;
mod lower;
mod lower_common;
mod map;
mod model_plan;
mod persistent;
mod planner;
mod print;
mod product;
mod program;
mod prompt;
mod reduce;
mod reproducible;
mod residency;
mod sparse_attention;
mod states;
mod streaming;

#[doc(hidden)]
pub use arena::{Lifetime, place};
pub use batch::DRAFTED;
pub use persistent::{Instruction, PersistentKernel};
pub use planner::{Request, copies_beside, plan};
pub use reduce::{ExchangeSizes, RANKS, WORDS};
#[doc(hidden)]
pub use streaming::{LayerLaunches, SLOTS, StreamedLayer, StreamedMatrix, Streaming};

pub use bind::{AllReduceArg, Bind, BufferId, Control, PICK};
pub use choice::{Choice, Number, SamplingArg};
pub use dim::{Dim, GemmPart, GemmUse, LaunchParams};
use dim::{ONE, TOKENS};
pub use error::PlanError;
pub use model_plan::{MemoryNeed, Parts, Plan};
pub use program::{Batch, Buffer, HostWork, Job, JobId, KeptValue, Launch, Pause, Program};
