//! The GPU sources, and beside each the Rust that specialises it; and the block formats
//! (of `kjit-formats`, re-exported).
//!
//! This crate is text plus arithmetic: it calls no GPU and opens no file. A *spec* says what is to
//! be computed; from it and a [`Target`](kjit_engine::Target) come a [`Kernel`] (source, constants,
//! entry point, block size, LDS) and the launch.
//!
//! ```
//! use kjit_engine::Target;
//! use kjit_kernels::format::Format;
//! use kjit_kernels::matvec::MatvecSpec;
//! use kjit_kernels::{Family, Size};
//!
//! // A product of one column with a 4096 × 14336 matrix of Q4_K blocks, for a card that need not be here.
//! let q4_k = Format::by_name("Q4_K").expect("a format of the table");
//! let target: Target = "gfx1100".parse()?;
//! let spec = MatvecSpec::new(q4_k, 4096, 14336);
//! let kernel = spec.kernel(&target)?;
//! let launch = spec.launch(&target, 48, Size { tokens: 1, past: 0 })?; // on a card of 48 compute units
//! assert_eq!(launch.geometry.block, [kernel.block, 1, 1]);
//! let job = kernel.job(&target); // what the engine compiles, or finds in its cache
//! assert_eq!(job.source.entries().collect::<Vec<_>>(), [kernel.entry]);
//!
//! // The same description decodes the format on the host: block bytes to f32.
//! let mut values = [f32::NAN; 256];
//! q4_k.decode(&vec![0; q4_k.block_bytes()], &mut values)?;
//! assert_eq!(values, [0.0; 256]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to … | there is |
//! |---|---|
//! | know a block format | [`format::Format`], [`format::ALL`] |
//! | say what a kernel computes | [`spec::Spec`], and the spec of each family beside its source |
//! | get its source, constants and block | [`Kernel`] |
//! | have it launched | the spec's `geometry` and the order of arguments that it states |
//! | draw a token as the device does | [`noise`] |
//! | know what must come out | [`cases`] |
//! | choose among variants | [`tuning`] |
//! | lay weights out as kernels read them | [`layout`] |
//! | have one of each | [`matrix::representative`] |

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

mod attention;
pub mod cases;
mod choice;
pub mod copies;
pub mod issue;
pub mod matrix;
pub mod persistent;
mod products;
mod rows;
pub mod spec;
mod state;
pub mod tuning;
mod vocabulary;

pub use attention::{
    attend, flash, heads, keep, key_scores, kv, latent, latent_flash, rope_kv, top_keys,
};
pub use choice::{adjust, argmax, changes, draw, noise, route};
pub use kjit_formats::{block_format_ids, format, ggml, layout, scattered_format_ids};
pub use products::{batch_gemm, experts, gemm, matvec, segments, small_gemm};
pub use rows::{
    combine, copy, embed, expert_sum, map, moe, norm, quantize, read, reduce, repack, softmax,
    tiles,
};
pub use state::{conv, decay, linear, scan};
pub use vocabulary::family::Family;
pub use vocabulary::kernel::{Kernel, SpecError};
pub use vocabulary::launch::Size;
pub use vocabulary::{activations, arguments, launch, mma, shape, step, variant};

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
