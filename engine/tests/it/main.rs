//! Tests of the engine, one module for each part. Some set variables or run a copy of this program,
//! so each test needs its own process (as with nextest).

mod amd_compile;
mod amd_driver;
mod bindings;
mod common;
mod compile;
mod drivers;
mod fake_nvrtc;
mod gpu_device;
