//! Runs a graph on the CPU: the everyday device without a GPU, and the oracle that every other
//! device is held against.
//!
//! [`HostRunner`] takes the graph as it stands, operation by operation, weights straight from the
//! mapped file, but for copies of a small model's matrices that are laid out for single tokens
//! (`beside`). Any value can be tapped by name ([`HostRunner::tap`]), and any operation run by
//! itself on given inputs ([`HostRunner::run_op`]).
//!
//! One precision runs through: activations and sums are f32 in both modes. What
//! [`OpenOptions::precise`](kjit_exec::OpenOptions::precise) adds is that keys and values stay
//! in f32 and that all products are of f32. By default activations are rounded to 16 bits per block
//! of 32 where they are multiplied with integer codes: in decoding, and in prompts, but for a
//! mixture's experts, where the processor has an instruction for such integers. Where it has tiles
//! (AMX), a prompt's activations and weights, but for those of f32 and a mixture's experts, are
//! each the sum of two of bf16, which is as near; and so are what its attention multiplies, from 32
//! tokens on.

#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]
#![expect(
    clippy::indexing_slicing,
    reason = "inner loops over shapes that the plan checked once against the weights' bytes and \
        the scratch it sized"
)]

mod attend_tiles;
mod attention;
mod beside;
mod byte_tiles;
mod cpu;
mod dot;
mod elementwise;
mod gemm;
mod groups;
mod kv;
mod limit;
mod matvec;
mod multiply;
mod op;
mod plan;
mod pool;
mod product;
mod quantise;
mod rates;
mod rope;
mod run;
mod runner;
mod scattered;
mod scratch;
mod share;
mod simd;
mod state;
#[cfg(test)]
mod testing;
mod tiles;
mod unpack;
mod weights;
mod words;

pub use cpu::{Cpu, peak_memory};
pub use kjit_exec::default_threads;
pub use limit::read_bandwidth;
pub use rates::{ProductRate, StepRate};
pub use simd::Isa;

use run::Run;
pub use runner::{HostRunner, Tap, open_ops};
