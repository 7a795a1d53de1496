//! HTTP in front of models: OpenAI's, Anthropic's and Ollama's words, a page, metrics, the worker of a fleet.
//! [`serve`] is all of it; what answers is [`kjit_model::serve::Scheduler`], which knows no HTTP.
//!
//! | file | idea |
//! |---|---|
//! | `options`, `listen`, `tls` | how it is set up; sockets and signals; certificates |
//! | `places`, `doing`, `connection` | how many connections there may be; what each does; how long it may wait |
//! | `head`, `bodies` | what contradicts itself; how much there may be |
//! | `routes`, `keys` | what every request goes through, and where to; who is let in |
//! | `fields`, `refusal` | fields, each honoured or refused by name; how a refusal is said |
//! | `service`, `models`, `loaded` | what requests share; which models are loaded; a model, opened and opened again |
//! | `conversation`, `sampling`, `neutral`, `constrain`, `choice`, `offer` | messages to a prompt; how tokens are chosen; fields that ask for nothing; answers by a schema; which tools are called; tools of other dialects |
//! | `converse`, `steered`, `generation`, `streamed` | messages to answers; answers that begin as given; one answer, from tokens to pieces of text; pieces to a body |
//! | `openai`, `anthropic`, `ollama`, `llama`, `fleet` | the dialects |
//! | `hive` | what a worker of a fleet tells of itself |
//! | `metrics`, `status`, `probes`, `page` | what it does, for machines and for people |
//! | `inside` | the same without sockets, for tests |

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
pub use tls::Tls;
