//! Compile, load, launch: kernels compiled at run time for exactly one target, kept on disk, launched on a device.
//!
//! The engine knows [`Target`]s, [`Source`]s and launches; it has never heard of models and has no kernel of its own.

pub mod arch;
mod args;
pub mod code_object;
mod compiler;
mod config;
mod driver;
mod engine;
pub mod error;
mod geometry;
mod key;
mod service;
pub mod source;
mod trace;

pub use arch::{Arch, Dot, Limit, MatrixUnit, Occupancy, Target, Vendor};
pub use args::Arg;
pub use code_object::{ArgInfo, ArgKind, CodeObject, KernelInfo, Origin};
pub use compiler::child::{child_main, kjit_cc};
pub use compiler::discover::Tried;
pub use compiler::worker::Isolation;
pub use config::Config;
pub use driver::{
    Arena, Counts, Device, DeviceBuffer, DeviceInfo, Event, Graph, HostMap, Inventory, Kernel, Memory, Module,
    PinnedBuffer, Pool, PoolStats, Stream,
};
pub use engine::{CompileCounts, CompilerInfo, CompilerReport, Engine};
pub use error::{Error, Result};
pub use geometry::Geometry;
pub use key::{Job, KERNEL_ABI};
pub use service::OnDone;
pub use source::{Constants, Options, Source, Value};
pub use trace::{DeviceClock, Span, Trace};
