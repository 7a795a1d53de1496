//! The CPU executor: used if there is no GPU, and as the oracle for every other device.
//!
//! [`HostRunner`] runs the graph operation by operation, with weights read from the mapped file.
//! Small models also have interleaved copies of their matrices for decoding (`interleaved`). Any
//! value can be recorded by name ([`HostRunner::tap`]), and any single operation can be run on
//! given inputs ([`HostRunner::run_op`]).
//!
//! Activations and sums are f32 in both modes. With
//! [`OpenOptions::precise`](kjit_exec::OpenOptions::precise), keys, values and all products are f32
//! as well.
//!
//! By default activations are rounded to 16 bits per block of 32 for products with integer codes.
//! This applies to decoding and, if the CPU has an instruction for such integers, to prompts (not
//! to experts). On CPUs with tiles (AMX), activations and weights of a prompt are each the sum of
//! two bf16 numbers, which is as accurate; f32 weights and experts are exceptions. Attention uses
//! the same tiles from 32 tokens on.

#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]
#![expect(
    clippy::indexing_slicing,
    reason = "inner loops over shapes \
        that the plan checked once against the weights' bytes and the scratch it sized"
)]

mod attend;
mod attend_tiles;
mod attention;
mod bandwidth;
mod byte_tiles;
mod cpu;
mod dense;
mod dot;
mod elementwise;
mod format_type;
mod gemm;
mod groups;
mod int16_products;
mod interleaved;
mod kv;
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
mod shared_mut;
mod simd;
mod squares;
mod state;
#[cfg(test)]
mod testing;
mod tiles;
mod unpack;
mod weights;

pub use bandwidth::read_bandwidth;
pub use cpu::{Cpu, peak_memory};
pub use dense::{Dense, DenseMatrix};
pub use kjit_exec::default_threads;
pub use rates::{ProductRate, StepRate};
pub use simd::Isa;
pub use squares::InputSquares;

use run::Run;
pub use runner::{HostRunner, ValueTap, open_ops};
