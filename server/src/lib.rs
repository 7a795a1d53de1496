//! An HTTP server for models: the APIs of OpenAI, Anthropic, Ollama and llama.cpp, a chat page,
//! metrics, and fleet workers. [`serve`] runs the server. [`kjit_model::serve::Scheduler`] computes
//! the answers and does not depend on HTTP.
//!
//! | file | subject |
//! |---|---|
//! | `options`, `listen`, `tls` | options; sockets and signals; certificates |
//! | `connection_limit`, `connection_state`, `connection` | their limit; state; time limits |
//! | `head`, `bodies` | contradictory heads; limits of bodies |
//! | `routes`, `keys` | routes and the checks before them; access |
//! | `fields`, `refusal` | fields of requests, each supported or refused by name; refusals |
//! | `neutral`, `caller` | fields that kjit does not have; the caller's place in the queue, its prefixes |
//! | `preparation` | work before a request is queued, round robin by caller |
//! | `service`, `models`, `loaded` | shared state; loading and unloading; a loaded model |
//! | `conversation`, `prompt` | messages to a prompt |
//! | `sampling`, `samplers`, `constrain` | sampling options; further samplers; constraints |
//! | `choice`, `tool`, `tool_list` | `tool_choice`; a tool; tools of other formats |
//! | `converse`, `forced`, `thought` | chat dialects' common code; forced tokens; reasoning limit |
//! | `ranking` | rerank and score |
//! | `generation`, `streamed` | one answer, from tokens to text; streams |
//! | `openai`, `anthropic`, `ollama`, `llama`, `sglang`, `fleet` | dialects |
//! | `probes` | routes of SGLang's and vLLM's monitors |
//! | `hive`, `announce` | a hive's URL; announcements of a fleet's worker |
//! | `counts`, `metrics`, `vllm_metrics`, `process` | counters; metrics: kjit's, vLLM's, process |
//! | `status`, `page`, `health` | state, the chat page, readiness and draining |
//! | `traces` | OpenTelemetry spans of answers |
//! | `running` | the servers of a user, for `kjit ps` |
//! | `kv_events` | cached blocks, published over ZeroMQ for routers |
//! | `in_process` | a server without sockets, for tests |

#![cfg_attr(not(test), forbid(unsafe_code))]
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

mod adapters;
mod announce;
mod anthropic;
mod base64;
mod body_budget;
mod caller;
mod choice;
mod clock;
mod connection;
mod connection_limit;
mod connection_state;
mod constrain;
mod conversation;
mod conversation_request;
mod counts;
mod fetch;
mod fields;
mod fleet;
mod forced;
mod generation;
mod head;
mod health;
mod hive;
mod images;
mod in_process;
mod keys;
mod kv_events;
mod listen;
mod llama;
mod loaded;
mod metrics;
mod models;
mod ollama;
mod openai;
mod options;
mod page;
mod percent;
mod preparation;
mod probes;
mod process;
mod prompt;
mod ranking;
mod reasoning_limit;
mod refusal;
mod routes;
mod running;
mod samplers;
mod sampling;
mod service;
mod sglang;
mod status;
mod streamed;
mod tls;
mod tool;
mod tool_list;
mod traces;
mod unsupported_fields;
mod vllm_metrics;

pub use hive::Hive;
pub use in_process::InProcessServer;
pub use keys::{Keys, Origins, origin};
pub use kv_events::{Endpoint, KvEvents};
pub use listen::{End, ServeError, serve};
pub use options::{Limits, Options, Served, Worker};
pub use running::{Running, running};
pub use tls::Tls;
pub use traces::TraceExport;

// Unit and integration tests are one program. Integration tests use only the public API of the
// crate.
#[cfg(test)]
extern crate self as kjit_server;
#[cfg(test)]
#[path = "../tests/it/main.rs"]
mod it;
