//! Quantises language models.
//!
//! | to … | there is |
//! |---|---|
//! | quantise a model | [`Plan::of`], [`Plan::write`] |
//! | quantise rows of f32 | [`quantize_rows`] |
//! | read and write importance matrices | [`Imatrix::read`], [`write_imatrix`] |

#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)
)]
#![expect(
    clippy::indexing_slicing,
    reason = "loops over blocks and rows whose lengths are checked once"
)]

mod error;
mod imatrix;
mod metadata;
mod mixture;
mod names;
mod plan;
mod rows;
mod write;

pub use error::QuantizeError;
pub use imatrix::{ColumnSums, Imatrix, ImatrixError, write_imatrix};
pub use mixture::{MIXTURES, Mixture};
pub use plan::{Keep, Options, Plan, PlannedTensor};
pub use write::Progress;

pub use rows::{RowError, is_writable, quantize_rows};

// Unit and integration tests are one program. Integration tests use only the public API.
#[cfg(test)]
extern crate self as kjit_quantize;
#[cfg(test)]
#[path = "../tests/it/main.rs"]
mod it;
