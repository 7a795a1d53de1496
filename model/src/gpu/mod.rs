//! Lowers a graph to launches of GPU kernels, and runs them.

pub mod fuse;
