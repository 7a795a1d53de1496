//! The GPU sources, and beside each the Rust that specialises it; and the block formats, described once for host and GPU.
//!
//! This crate is text plus arithmetic: it calls no GPU and opens no file. A *spec* says what is to be computed; from it and a
//! [`Target`](kjit_engine::Target) come a [`Kernel`](kernel::Kernel) (source, constants, entry point, block size, LDS) and the launch.

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
pub mod render;
pub mod repack;
pub mod sample;
pub mod spec;
pub mod tiles;
pub mod tuning;

pub use kernel::{Kernel, SpecError};
