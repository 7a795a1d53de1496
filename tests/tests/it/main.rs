//! Tests that cross crates, one module for each part. Most run on simulated devices. A process
//! opens its HIP runtime only once, so each of these tests starts a new process.

mod benches;
mod common;
mod embedded;
mod emulated_kernels;
mod emulated_model;
mod gfxemu;
mod issue_counts;
mod same_sources;
mod simulated_archs;
mod simulated_batch;
mod simulated_bundle;
mod simulated_cache;
mod simulated_devices;
mod simulated_drafts;
mod simulated_early;
mod simulated_engine;
mod simulated_experts;
mod simulated_faults;
mod simulated_ffn;
mod simulated_kernels;
mod simulated_memory;
mod simulated_model;
mod simulated_ops;
mod simulated_order;
mod simulated_packed;
mod simulated_pages;
mod simulated_persistent;
mod simulated_products;
mod simulated_serve;
mod simulated_stages;
mod simulated_steps;
mod simulated_stream;
mod simulated_tensor;
mod simulated_trust;
mod simulated_tuning;
