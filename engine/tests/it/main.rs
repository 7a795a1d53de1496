//! Tests of the engine, one module for each part. Some set variables or run a copy
//! of this program: nextest runs each test in a process of its own.

mod amd_compile;
mod amd_driver;
mod bindings;
mod common;
mod compile;
mod drivers;
mod fake_nvrtc;
mod gpu_device;
