//! Compiles GPU kernels at run time for one exact target, caches them on disk, and launches them.
//!
//! Building needs no SDK, and starting needs no library: drivers and compilers are opened when they
//! are used. If one is missing, the error names it, the searched paths and the package to install.
//!
//! ```no_run
//! use kjit_engine::{Config, Constants, Engine, Geometry, Job, Options, Source, args};
//!
//! kjit_engine::child_main(); // compilers run in a child process of this program
//! let engine = Engine::new(Config::new());
//! let device = engine.device("auto")?;
//! let text = r#"
//! #include "words.h"
//! extern "C" __global__ void __launch_bounds__(BLOCK) twice(float* x, unsigned n) {
//!     unsigned i = blockIdx.x * BLOCK + threadIdx.x;
//!     if (i < n) x[i] *= 2;
//! }"#;
//! let source = Source::new("twice", "twice.cu", text).words().entry("twice");
//! let options = Options::wave(device.target().default_wave());
//! let job = Job::new(source, Constants::new().set("BLOCK", 256), options, device.target().clone());
//! let twice = engine.load(&device, &job)?.kernel("twice")?; // compiled once, then cached
//! let stream = device.stream()?;
//! let x = stream.upload(&[1.0f32; 1000])?;
//! // SAFETY: x has 1000 values, and the kernel accesses only these.
//! unsafe { stream.launch(&twice, &Geometry::new(4, 256), &args![&x, 1000u32])? };
//! assert_eq!(stream.read(&x)?, [2.0; 1000]);
//! # Ok::<(), kjit_engine::Error>(())
//! ```
//!
//! Everything except the launch works without hardware, because a target can be a string:
//!
//! ```
//! use kjit_engine::Target;
//! let card: Target = "gfx90a:sramecc+:xnack-".parse()?;
//! assert_eq!((card.waves(), card.default_wave()), (&[64][..], 64));
//! // Waves per unit of a kernel with 128 registers and 16 KiB of LDS, and the maximum.
//! let occupancy = card.occupancy(256, 128, 16 << 10, 64);
//! assert_eq!((occupancy.waves, occupancy.max_waves), (16, 32));
//! # Ok::<(), kjit_engine::Error>(())
//! ```
//!
//! | Purpose | Items |
//! |---|---|
//! | start | [`Engine`] with a [`Config`]: cache, limits, compiler |
//! | run compilers in child processes of this program | [`child_main`], first in `main` |
//! | name a card | [`Target`]: from text such as `gfx1100`, or from a [`Device`] |
//! | describe a kernel | [`Source`], [`Constants`] and [`Options`], which make a [`Job`] |
//! | compile, or find in the cache | [`Engine::compile_all`], [`Engine::load`] |
//! | launch | [`Stream::launch`] of a [`Kernel`] with a [`Geometry`] and [`args!`] |
//! | move data | [`DeviceBuffer`], [`PinnedBuffer`], [`Pool`] |
//! | replay many launches as one | [`Graph`] |
//! | react to a failure | [`Error`]: each variant states what can be done |
//!
//! Modules:
//!
//! | module | contents |
//! |---|---|
//! | [`arch`] | targets: the table of architectures, parsing, occupancy |
//! | [`source`] | source, constants and options of a kernel |
//! | [`code_object`] | machine code, and the properties of its kernels |
//! | `key`, `service`, `engine` | cache keys; lookup and parallel compiles; all parts together |
//! | `gate`, `behind` | the limit of parallel compiles; background compiles |
//! | `compiler` | the vendors' compilers, their discovery and their child processes |
//! | `tuning` | measurements of a kernel's variants, and the variant in use |
//! | `driver` | the vendors' runtimes: devices, memory, streams, events, graphs, modules |
//!
//! Invariants:
//!
//! - Only `compiler`, `driver` and the rows of [`arch::ARCHS`] distinguish vendors.
//! - Unsafe code is only in `driver` and in the calls of the compilers.
//! - No function waits for the device, allocates on it or compiles unless its documentation says
//!   so; [`Counts`] and [`CompileCounts`] count these operations.
//! - The engine has no kernels and does not depend on models.

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

pub mod amd_system;
pub mod amd_traps;
pub mod arch;
mod args;
mod background;
pub mod code_object;
#[allow(unsafe_code, reason = "calls of the compilers' libraries, and of their process")]
mod compiler;
mod config;
mod device_clock;
#[allow(unsafe_code, reason = "calls of the vendors' libraries, and owners of their handles")]
mod driver;
mod engine;
pub mod error;
mod forms;
mod gate;
mod geometry;
mod key;
mod lock;
mod non_exhaustive;
mod packs;
mod proof;
mod runtime_probe;
pub mod sensors;
mod service;
pub mod source;
mod trace;
mod tuning;

pub use arch::{Arch, Dot, Limit, MatrixUnit, Occupancy, Target, Vendor};
pub use args::Arg;
pub use background::BackgroundCompiles;
pub use code_object::{ArgInfo, ArgKind, CodeObject, KernelInfo, KernelReport, Origin};
pub use compiler::child::{child_main, kjit_cc};
pub use compiler::discover::SearchedPath;
pub use compiler::info::CompilerInfo;
pub use compiler::worker::Isolation;
pub use config::Config;
pub use device_clock::DeviceClock;
pub use driver::{
    Arena, Blas, COLLECTIVE_ID, CheckedKernel, Collective, CollectiveLibrary, CopyEvents, Counts,
    Device, DeviceBuffer, DeviceInfo, Event, Graph, HostArg, HostMap, Inventory, Kernel, Matrices,
    Memory, Module, PinnedBuffer, Pool, PoolStats, Stream, TensorMap, exit_if_abandoned,
};
pub use engine::{CompileCounts, CompilerChoice, CompilerReport, Engine};
pub use error::{Error, Result};
pub use geometry::Geometry;
pub use key::{Job, KERNEL_ABI};
pub use kjit_cache::Digest;
#[doc(hidden)]
pub use non_exhaustive::NonExhaustive;
pub use packs::PACK_ARCHS;
pub use proof::{ProofSubject, Verdicts};
pub use service::OnDone;
pub use source::{Constants, Options, Source, Value};
pub use trace::{Span, Trace};
pub use tuning::{TuningSubject, tuned_arch};

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
