//! Pictures for language models.
//!
//! [`VisionEncoder::open`] reads an `mmproj` file of llama.cpp's form. [`VisionEncoder::prepare`]
//! decodes a PNG, JPEG or WebP file and makes the pixels that the encoder reads, as transformers
//! does. [`VisionEncoder::encode`] computes the rows of embeddings that stand in the prompt, in
//! f32. [`Prepared::layout`] says which text stands around them.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]
#![expect(
    clippy::indexing_slicing,
    reason = "inner loops over sizes \
        that `Settings` and the shapes of tensors were checked against when the file was opened"
)]

mod activation;
mod attention;
mod blocks;
mod encoder;
mod error;
mod file;
mod layout;
mod mmproj;
mod preprocess;
mod project;
mod resize;
mod settings;
mod soft;

pub use encoder::VisionEncoder;
pub use error::VisionError;
pub use file::{MAX_PIXELS, Picture};
pub use layout::Piece;
pub use preprocess::Prepared;
pub use resize::{Filter, resize};

// Unit and integration tests are one program. The integration tests use the public API only.
#[cfg(test)]
extern crate self as kjit_vision;
#[cfg(test)]
#[path = "../tests/it/main.rs"]
mod it;
