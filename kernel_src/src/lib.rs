//! GPU kernels of language models as source, and for each family the Rust that specialises it.
//!
//! The crate has sources and arithmetic only: it calls no GPU and opens no file. A *spec* describes
//! a computation and its sizes. A spec and a [`Target`](kjit_engine::Target) give a [`Kernel`]
//! (source, constants, entry point, block size, LDS) and a launch.
//!
//! The modules are in folders: `vocabulary` (shared by all families), then the families `products`,
//! `attention`, `rows`, `state` and `choice`, and the registry [`spec`]. Cases with expected
//! results are in `kjit-kernel-cases`. Block formats are re-exported from `kjit-formats`.
//!
//! ```
//! use kjit_engine::Target;
//! use kjit_kernels::format::Format;
//! use kjit_kernels::matvec::MatvecSpec;
//! use kjit_kernels::{Family, Size};
//!
//! // A 4096 × 14336 matrix of Q4_K blocks times one column, for a card that is not present.
//! let q4_k = Format::by_name("Q4_K").expect("a format of the table");
//! let target: Target = "gfx1100".parse()?;
//! let spec = MatvecSpec::new(q4_k, 4096, 14336);
//! let kernel = spec.kernel(&target)?;
//! let launch = spec.launch(&target, 48, Size::ONE)?; // on a card of 48 compute units
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
//! | topic | item |
//! |---|---|
//! | a computation as data | [`spec::Spec`], and the spec of each family |
//! | its source, constants and block | [`Kernel`] |
//! | its launch | [`Family::launch`], [`Family::Args`] |
//! | the choice among variants | [`tuning`] |
//! | a whole token as one kernel | [`persistent`] |
//! | the device's random numbers | [`noise`] |
//! | block formats, and the layout of weights | [`format`](mod@format), [`layout`] |

#![cfg_attr(not(test), forbid(unsafe_code))]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]

pub mod agpr_copy_check;
mod attention;
pub mod card;
mod choice;
pub mod issue;
pub mod persistent;
mod products;
mod rows;
pub mod spec;
mod state;
pub mod tuning;
mod vocabulary;

/// `kjit.h`: the vocabulary of kernels, for kernels of other crates.
pub const DIALECT: &str = include_str!("../gpu/kjit.h");
/// `mma.h`: products of tiles on matrix units, in the dialect. Its macros are
/// [`matrix_constants`].
pub const MATRICES: &str = include_str!("../gpu/mma.h");
/// `hopper.h`: barriers, bulk copies and products of four warps of sm_90a.
pub const HOPPER: &str = include_str!("../gpu/hopper.h");

pub use attention::{
    attend, cache_rows, flash, heads, indexer_scores, kv, latent, latent_flash, rope_kv, top_keys,
};
pub use choice::{adjust, argmax, changes, draw, noise, route};
pub use kjit_formats::{block_format_ids, format, ggml, layout, scattered_format_ids};
pub use products::{batch_gemm, experts, gemm, matvec, segments, small_gemm};
pub use rows::{
    combine, copy_rows, embed, expert_sum, map, moe, norm, quantize, read, reduce, repack, softmax,
    tiles,
};
pub use state::{conv, decay, linear, scan};
pub use vocabulary::family::Family;
pub use vocabulary::kernel::{Kernel, SpecError};
pub use vocabulary::launch::Size;
pub use vocabulary::mma::matrix_constants;
pub use vocabulary::{activations, arguments, kernel, launch, mma, shape, step, variant};

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

// Unit and integration tests are one program. Integration tests use only the public API.
#[cfg(test)]
extern crate self as kjit_kernels;
#[cfg(test)]
#[path = "../tests/it/main.rs"]
mod it;
