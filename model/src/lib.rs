//! Runs models from GGUF files. It reads the file with its tokenizer and chat template, builds the
//! graph of the model's operations, and runs the graph in sessions on GPUs or on the CPU. The CPU's
//! results are the reference for GPUs.
//!
//! ```
//! use kjit_model::{Message, Model, OpenOptions, SampleOptions};
//! use std::ops::ControlFlow;
//!
//! # let folder = std::env::var("KJIT_TEST_MODELS").unwrap_or("../.models".to_owned());
//! # let path = std::path::Path::new(&folder).join("SmolLM2-135M-Instruct.Q4_1.gguf");
//! # if !path.exists() {
//! #     eprintln!("SKIPPED: {} is not there (scripts/fetch-test-models)", path.display());
//! #     return Ok(());
//! # }
//! let options = OpenOptions { device: "cpu".parse()?, ..OpenOptions::new(1024) };
//! let mut model = Model::open(&path, &options)?;
//! let prompt = model.chat_prompt(&[Message::new("user", "Name a colour.")])?;
//! let sequence = model.session.add(SampleOptions::default())?; // greedy
//! let answer = model.generate(sequence, &prompt, Some(8), &mut |text| {
//!     eprint!("{text}");
//!     ControlFlow::Continue(())
//! })?;
//! assert!(!answer.text.is_empty() && answer.ids.len() <= 8);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | task | items |
//! |---|---|
//! | open a model on the available devices | [`Model::open`], [`OpenOptions`], [`DeviceChoice`] |
//! | run any number of sequences | [`Session`]: [`Session::step`], [`Session::decode`] |
//! | choose tokens, and generate text | [`sample::Sampler`], [`generate::generate`] |
//! | serve many requests simultaneously | [`serve::Scheduler`] |
//! | constrain answers to a schema or a grammar | [`constrain::Grammars`] |
//! | continue a chat | [`conversation::CachedTokens`], [`conversation::forget_oldest`] |
//! | find reasoning and tool calls in an answer | [`chat::ReplyParser`], [`stop::StopWatcher`] |
//! | render messages as a prompt | [`chat::ChatTemplate`] |
//! | turn text into ids, and ids into text | [`tokenizer::Tokenizer`] |
//! | read a file | [`gguf::Gguf`] |
//! | build a model's [`graph::Graph`] | [`arch::build`] |
//! | plan a GPU's work for a graph, as a [`gpu::plan::Plan`] | [`gpu::plan_for`] |

#![cfg_attr(not(test), deny(unsafe_code))]
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

#[cfg(feature = "constrain")]
pub mod constrain;
pub mod conversation;
pub mod generate;
pub mod images;
pub mod model;
pub mod perplexity;
pub mod placement;
pub mod prompt_lookup;
pub mod serve;
pub mod session;

pub use chat::Message;
pub use kjit_chat::{self as chat, stop};
pub use kjit_cpu as host;
pub use kjit_engine::child_main;
#[doc(hidden)]
pub use kjit_exec::NonExhaustive;
pub use kjit_exec::{self as exec, DeviceChoice, SampleOptions, device, sample};
pub use kjit_gguf::{self as gguf, elide, folder};
pub use kjit_gpu as gpu;
pub use kjit_graph::{self as graph, arch, catalogue};
use kjit_plan as plan;
pub use kjit_ranks as ranks;
pub use kjit_tokenizer::{self as tokenizer, cancel};
pub use model::Model;
pub use session::{OpenOptions, Session};

/// Compiles the README's example as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

// Unit and integration tests are one program. The integration tests use the public API only.
#[cfg(test)]
extern crate self as kjit_model;
#[cfg(test)]
#[path = "../tests/it/main.rs"]
mod it;
