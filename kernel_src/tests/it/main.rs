//! Integration tests of `kjit-kernels`. Those that need cases or samples are in
//! `kjit-kernel-cases`.

mod persistent;
mod tuning;
