//! The C library: opaque tensors, status codes, the message of the last error of a thread. Panics
//! do not cross into C. cbindgen generates `kjit_ops.h` from this crate.

#![allow(unsafe_code, reason = "pointers of C")]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing
    )
)]

mod fault;
mod make;
mod operate;
mod read;

pub use fault::*;
pub use make::*;
pub use operate::*;
pub use read::*;

/// A tensor: immutable, on a device, computed when its elements are read.
pub struct KjitTensor(kjit_ops::Tensor);
