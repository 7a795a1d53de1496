//! The GPU sources, and beside each the Rust that specialises it; and the block formats, described once for host and GPU.
//!
//! This crate is text plus arithmetic: it calls no GPU and opens no file. A *spec* says what is to be computed; from it and a
//! [`Target`](kjit_engine::Target) come a [`Kernel`] (source, constants, entry point, block size, LDS) and the launch.
//!
//! ```
//! use kjit_engine::Target;
//! use kjit_kernels::format::Format;
//! use kjit_kernels::matvec::MatvecSpec;
//!
//! // A product of one column with a 4096 × 14336 matrix of Q4_K blocks, for a card that need not be here.
//! let q4_k = Format::by_name("Q4_K").expect("a format of the table");
//! let target: Target = "gfx1100".parse()?;
//! let spec = MatvecSpec::new(q4_k, 4096, 14336);
//! let kernel = spec.kernel(&target)?;
//! let launch = spec.geometry(&target, 48)?; // on a card of 48 compute units
//! assert_eq!(launch.block, [kernel.block, 1, 1]);
//! let job = kernel.job(&target); // what the engine compiles, or finds in its cache
//! assert_eq!(job.source.entries().collect::<Vec<_>>(), [kernel.entry]);
//!
//! // The same description decodes the format on the host: block bytes to f32.
//! let mut values = [f32::NAN; 256];
//! q4_k.decode(&vec![0; q4_k.block_bytes()], &mut values)?;
//! assert_eq!(values, [0.0; 256]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable))]

pub mod activations;
pub mod attend;
pub mod cases;
pub mod elementwise;
pub mod embed;
pub mod experts;
pub mod flash;
pub mod format;
pub mod gemm;
pub mod ggml;
pub mod kernel;
pub mod kv;
pub mod layout;
pub mod matrix;
pub mod matvec;
pub mod moe;
pub mod norm;
pub mod prepare;
pub mod product;
pub mod read;
pub mod render;
pub mod repack;
pub mod sample;
pub mod segments;
pub mod spec;
pub mod strips;
pub mod tiles;
pub mod tuning;

pub use kernel::{Kernel, SpecError};
