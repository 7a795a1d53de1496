//! A plan: all work of a GPU for a model, as data (kernels to compile, memory to allocate,
//! launches).
//!
//! A [`Plan`] depends on the graph, the target and the options, not on a device. So it can be
//! printed, tested and compiled (`kjit warm`) on a machine without a GPU, and a device of the same
//! target finds every kernel in the cache. Facts that only a device knows (compute units) enter
//! through a [`Dim`] at launch time.

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
mod chosen;
mod decode;
mod dim;
pub mod divide;
mod error;
pub mod expert_places;
mod fit;
#[doc(hidden)]
pub mod fuse;
mod group;
mod lower;
mod map;
mod model_plan;
mod persistent;
mod print;
mod product;
mod program;
mod prompt;
mod reduce;
mod reproducible;
mod small;
mod states;
mod stream;
mod streaming;
mod whole;

#[doc(hidden)]
pub use arena::{Life, place};
pub use batch::DRAFTED;
pub use persistent::{Instruction, PersistentKernel};
pub use reduce::{RANKS, Room, WORDS};
#[doc(hidden)]
pub use streaming::{SLOTS, StreamedLayer, StreamedMatrix, Streaming, Stretch};
pub use whole::{Request, copies_beside, plan};

pub use bind::{Bind, BufferId, Control, Meeting, PICK};
pub use choice::{Choice, Chosen, Number};
pub use dim::{Dim, GemmPart, GemmUse, Now};
use dim::{ONE, TOKENS};
pub use error::PlanError;
pub use model_plan::{MemoryNeed, Parts, Plan};
pub use program::{Batch, Buffer, HostWork, Job, JobId, Kept, Launch, Pause, Program};
