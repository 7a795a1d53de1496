//! HTTP in front of models: the APIs of OpenAI and Ollama, a chat page, metrics, and the worker of
//! a fleet. [`serve`] runs it all. [`kjit_model::serve::Scheduler`] answers requests and knows no
//! HTTP.
//!
//! | file | idea |
//! |---|---|
//! | `options`, `listen`, `tls` | how it is set up; sockets and signals; certificates |
//! | `places`, `doing`, `connection` | how many connections there may be; what each does; how long it may wait |
//! | `head`, `bodies` | what contradicts itself; how much there may be |
//! | `routes`, `keys` | what every request goes through, and where to; who is let in |
//! | `fields`, `refusal` | fields, each honoured or refused by name; how a refusal is said |
//! | `service`, `models`, `loaded` | what requests share; which models are loaded; a model, opened and opened again |
//! | `conversation`, `sampling`, `constrain` | messages to a prompt; how tokens are chosen; answers by a schema |
//! | `generation`, `streamed` | one answer, from tokens to pieces of text; pieces to a body |
//! | `openai`, `ollama`, `fleet` | the dialects |
//! | `hive` | what a worker of a fleet tells of itself |
//! | `metrics`, `status`, `page` | what it does, for machines and for people |
//! | `running` | the servers of a user, for `kjit ps` |
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

mod base64;
mod bodies;
mod caller;
mod connection;
mod constrain;
mod conversation;
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
mod loaded;
mod metrics;
mod models;
mod ollama;
mod openai;
mod options;
mod page;
mod places;
mod refusal;
mod routes;
mod running;
mod sampling;
mod service;
mod status;
mod streamed;
mod tls;

pub use hive::Hive;
pub use inside::Inside;
pub use keys::{Keys, Origins, origin};
pub use listen::{End, ServeError, serve};
pub use options::{Limits, Options, Served, Worker};
pub use running::{Running, running};
pub use tls::Tls;
