//! The contract of a runner. A runner computes a model's layers on a device. The contract has the
//! requests and results of a step ([`Want`], [`StepOutput`]), the options of opening a model
//! ([`OpenOptions`]), errors ([`SessionError`]), and the choice of tokens ([`sample::Sampler`]). A
//! session uses its device only through [`Runner`].

#![forbid(unsafe_code)]
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

pub mod device;
mod embed;
mod error;
mod host_ops;
mod images;
mod options;
mod pages;
mod runner;
pub mod sample;
mod step;

pub use device::DeviceChoice;
pub use embed::embeds;
pub use error::{SessionError, check_scores};
pub use host_ops::{HostOps, OpenHostOps};
pub use images::{FIRST_IMAGE_ID, ImageRows, ImageTable, ImageTableError, image_end, uncut_images};
#[doc(hidden)]
pub use kjit_engine::NonExhaustive;
pub use options::{
    AdapterFile, DRAFTS, HostPrompts, KvType, OpenOptions, Output, Persistence, Probe, Split,
    default_threads, why_no_pages,
};
pub use pages::{KvPages, PageCount};
pub use runner::{DeviceDecode, HiddenStates, HiddenStatesSink, Runner, StepAhead, TokenSpan};
pub use sample::{SampleOptions, Sampler};
pub use step::{CHOSEN, DecodeControl, MaskCallback, StepOutput, Task, Want, choose, follow};
