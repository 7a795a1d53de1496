//! Compile, load, launch: kernels compiled at run time for exactly one target, kept on disk, launched on a device.
//!
//! The engine knows [`Target`]s, [`Source`]s and launches; it has never heard of models and has no kernel of its own.

pub mod arch;
pub mod code_object;
pub mod error;
mod geometry;
pub mod source;

pub use arch::{Arch, Dot, Limit, MatrixUnit, Occupancy, Target, Vendor};
pub use code_object::{ArgInfo, ArgKind, KernelInfo};
pub use error::{Error, Result};
pub use geometry::Geometry;
pub use source::{Constants, Options, Source, Value};
