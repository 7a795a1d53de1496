//! Requests and answers between `kjit doctor --run MODEL` and its child process, which has the
//! model open on one device.

use serde::{Deserialize, Serialize};

/// Tokens that are generated greedily.
pub const TOKENS: usize = 32;
/// Number of the oracle's highest scores that are stored for each token.
pub const SCORES: usize = 8;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Opens the model.
    Open,
    /// Generates [`TOKENS`] tokens with the scores of each, step by step.
    Oracle,
    /// Generates [`TOKENS`] tokens as `kjit run` does. A token that differs from the oracle's token
    /// is replaced by the oracle's token.
    Tokens(Vec<u32>),
    /// Computes the perplexity of a short text.
    Perplexity,
    /// Computes scores, continues, rolls back, and computes the scores again.
    Back,
    /// Computes the vectors of some texts.
    Vectors,
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub enum Said {
    /// The model is open.
    Open(Box<Opened>),
    /// Tokens with the oracle's scores.
    Oracle(Vec<Step>),
    /// Tokens of a device.
    Tokens(Tokens),
    /// The perplexity.
    Perplexity(f64),
    /// The state went back.
    Back(Back),
    /// One vector per text.
    Vectors(Vec<Vec<f32>>),
    /// The device cannot do that, for this reason: no room, no compiler, an unsupported operation.
    Refused(String),
    /// It failed, or computed something that is not a number.
    Wrong(String),
}

/// An open model.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Opened {
    /// Product name of the device, with its target.
    pub device: String,
    /// The form of a GPU's tokens, such as `graph`.
    pub form: Option<String>,
    /// Notes about the device and its kernels.
    pub notes: Vec<String>,
    /// Seconds of opening.
    pub load_s: f64,
    /// Kernels that were compiled, and that were in the cache.
    pub kernels: [u64; 2],
    /// Bytes of a GPU's memory by `inspect`'s estimate.
    pub estimate: Option<u64>,
    /// Bytes of a GPU's memory that opening used, according to the driver.
    pub taken: Option<u64>,
    /// Whether the model is an encoder: it returns vectors, not text.
    pub encoder: bool,
}

/// A token that the oracle chose.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Step {
    /// The token.
    pub id: u32,
    /// The highest scores, in falling order.
    pub best: Vec<(u32, f32)>,
    /// Standard deviation of all scores.
    pub deviation: f64,
}

/// Tokens of a device, with times.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Tokens {
    /// The choice at each position, after the oracle's tokens before it.
    pub ids: Vec<u32>,
    /// Seconds from the prompt to the first token.
    pub first_token_s: f64,
    /// Tokens per second after it.
    pub decode_tok_s: f64,
}

/// A sequence that went back.
#[derive(Debug, Serialize, Deserialize)]
pub struct Back {
    /// Tokens before the continuation.
    pub at: usize,
    /// Tokens that were still there after going back; the others were computed again.
    pub kept: usize,
    /// The difference of both scores, relative to the norm of the first.
    pub off: f64,
    /// Whether the model has recurrent states.
    pub recurrent: bool,
}
