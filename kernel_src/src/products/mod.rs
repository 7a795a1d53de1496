//! Families that multiply: matrices with vectors, with a few rows, with many, through experts.

pub mod batch_gemm;
pub mod experts;
pub mod gemm;
pub mod matvec;
pub mod segments;
pub mod small_gemm;
