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
//! | `converse`, `steered` | what all chat dialects share; forced tokens |
//! | `generation`, `streamed` | one answer, from tokens to text; streams |
//! | `openai`, `anthropic`, `ollama`, `llama`, `fleet` | dialects |
//! | `probes` | routes of SGLang's and vLLM's monitors |
//! | `hive` | announcements of a fleet's worker |
//! | `metrics`, `status`, `page` | metrics, state, the chat page |
//! | `running` | the servers of a user, for `kjit ps` |
//! | `inside` | a server without sockets, for tests |

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
mod refusal;
mod routes;
mod running;
mod sampling;
mod service;
mod status;
mod steered;
mod streamed;
mod tls;

pub use hive::Hive;
pub use inside::Inside;
pub use keys::{Keys, Origins, origin};
pub use listen::{End, ServeError, serve};
pub use options::{Limits, Options, Served, Worker};
pub use running::{Running, running};
pub use tls::Tls;

// Unit and integration tests are one program. The latter see the crate as its users do.
#[cfg(test)]
extern crate self as kjit_server;
#[cfg(test)]
#[path = "../tests/it/main.rs"]
mod it;
