//! Tests the calls of AMD's and NVIDIA's libraries (`engine/sys`): compares their signatures with
//! the vendors' headers, and opens the libraries.

mod check;
mod hip_headers;
mod hip_opening;
mod hiprtc_headers;
mod hiprtc_opening;
mod nccl_headers;
mod nccl_opening;
mod rocblas_headers;
mod rocblas_opening;
