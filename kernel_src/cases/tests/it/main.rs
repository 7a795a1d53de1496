//! Integration tests of the kernels with their cases and samples.

mod compile;
mod device;
mod families;
mod issue;
mod machine_code;
mod sized;
