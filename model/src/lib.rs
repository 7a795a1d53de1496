//! GGUF in, tokens out: the file, its tokenizer and chat template, the graph of what it computes, and two executors of that graph, one
//! on the CPU (also the oracle) and one on GPUs.
//!
//! ```
//! use kjit_model::chat::{ChatTemplate, Message};
//! use kjit_model::exec::ExecOptions;
//! use kjit_model::generate::{Request, generate};
//! use kjit_model::gguf::Gguf;
//! use kjit_model::host::HostExecutor;
//! use kjit_model::sample::{SampleOptions, Sampler};
//! use kjit_model::tokenizer::Tokenizer;
//! use std::{ops::ControlFlow, sync::Arc};
//!
//! # let folder = std::env::var("KJIT_TEST_MODELS").unwrap_or("../.models".to_owned());
//! # let path = std::path::Path::new(&folder).join("SmolLM2-135M-Instruct.Q4_1.gguf");
//! # if !path.exists() {
//! #     eprintln!("SKIPPED: {} is not there (scripts/fetch-test-models)", path.display());
//! #     return Ok(());
//! # }
//! let gguf = Arc::new(Gguf::open(&path)?); // everything that will be indexed is checked here, nothing is copied
//! let tokenizer = Tokenizer::from_gguf(&gguf)?;
//! let template = ChatTemplate::from_gguf(&gguf, &tokenizer)?;
//! let graph = kjit_model::arch::build(&gguf)?;
//! let mut exec = HostExecutor::new(gguf, graph, ExecOptions::new(1024))?; // gpu::open gives one on a GPU
//!
//! let prompt = template.render([Message::new("user", "Name a colour.")], true)?;
//! let request = Request { prompt: &tokenizer.encode_chat(&prompt), max_tokens: Some(8), stop: &[] };
//! let mut sampler = Sampler::new(SampleOptions::default()); // greedy
//! let mut show = |text: &str| {
//!     eprint!("{text}");
//!     ControlFlow::Continue(())
//! };
//! let answer = generate(&mut exec, &tokenizer, &mut sampler, &request, &mut show, &|| false)?;
//! assert!(!answer.text.is_empty() && answer.ids.len() <= 8);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::indexing_slicing)
)]

pub mod arch;
pub mod catalogue;
pub mod chat;
pub mod conversation;
pub mod exec;
pub mod generate;
pub mod gguf;
pub mod gpu;
pub mod graph;
#[allow(unsafe_code, reason = "vector instructions, and threads that write parts of one result")]
pub mod host;
pub mod perplexity;
pub mod sample;
pub mod tokenizer;
