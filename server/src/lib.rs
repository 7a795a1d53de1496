//! HTTP in front of models: the APIs of OpenAI, Anthropic, Ollama and llama.cpp, a chat page,
//! metrics, and the worker of a fleet. [`serve`] runs it all. [`kjit_model::serve::Scheduler`]
//! answers requests and knows no HTTP.
//!
//! | file | subject |
//! |---|---|
//! | `options`, `listen`, `tls` | options; sockets and signals; certificates |
//! | `places`, `doing`, `connection` | number of connections; state of each; time limits |
//! | `head`, `bodies` | contradictory heads; limits of bodies |
//! | `routes`, `keys` | routes and the checks before them; access |
//! | `fields`, `refusal` | fields of requests, each supported or refused by name; refusals |
//! | `neutral`, `caller` | fields without a counterpart; the caller's turn and prefixes |
//! | `desk` | work before a request is queued, in turns by caller |
//! | `service`, `models`, `loaded` | shared state; loading and unloading; a loaded model |
//! | `conversation`, `sampling`, `constrain` | messages to a prompt; sampling options; constraints |
//! | `choice`, `offer` | `tool_choice`; tools of other formats |
//! | `converse`, `steered`, `thought` | what all chat dialects share; forced tokens; length of a thought |
//! | `samplers`, `ranking` | further samplers; rerank and score |
//! | `generation`, `streamed` | one answer, from tokens to text; streams |
//! | `openai`, `anthropic`, `ollama`, `llama`, `fleet` | dialects |
//! | `probes` | routes of SGLang's and vLLM's monitors |
//! | `hive` | announcements of a fleet's worker |
//! | `metrics`, `vllm_metrics`, `process` | metrics: kjit's, under vLLM's names, of the process |
//! | `status`, `page`, `health` | state, the chat page, readiness and draining |
//! | `running` | the servers of a user, for `kjit ps` |
//! | `inside` | a server without sockets, for tests |

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

mod anthropic;
mod base64;
mod bodies;
mod caller;
mod choice;
mod connection;
mod constrain;
mod conversation;
mod converse;
mod desk;
mod doing;
mod fields;
mod fleet;
mod generation;
mod head;
mod health;
mod hive;
mod inside;
mod keys;
mod listen;
mod llama;
mod loaded;
mod metrics;
mod models;
mod neutral;
mod offer;
mod ollama;
mod openai;
mod options;
mod page;
mod places;
mod probes;
mod process;
mod ranking;
mod refusal;
mod routes;
mod running;
mod samplers;
mod sampling;
mod service;
mod status;
mod steered;
mod streamed;
mod thought;
mod tls;
mod vllm_metrics;

pub use hive::Hive;
pub use inside::Inside;
pub use keys::{Keys, Origins, origin};
pub use listen::{End, ServeError, serve};
pub use options::{Limits, Options, Served, Worker};
pub use running::{Running, running};
pub use tls::Tls;
