//! Errors of a session.

use kjit_engine::Error;
use kjit_graph::GraphError;

/// The error of opening or using a session. After an error no sequence has more tokens than before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// Kernels give wrong results on this device in every variant that it supports; one line for
    /// each kernel. The verdicts are cached.
    #[error("{}: use --device cpu, or find the wrong kernels with kjit doctor --run --report \
        FILE", .0.join("; "))]
    Wrong(Vec<String>),
    /// The model is an encoder and computes no logits.
    #[error("architecture '{arch}' is an encoder: it computes embeddings, not text")]
    Encoder {
        /// `general.architecture`.
        arch: String,
    },
    /// The model cannot be run.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A token outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {n_vocab}")]
    Token {
        /// Id of the token.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// The context is too small.
    #[error(
        "{tokens} tokens do not fit in the context of {context}: \
         use a larger -c or a shorter prompt"
    )]
    Context {
        /// Requested tokens, including those already in the sequence.
        tokens: usize,
        /// Tokens that fit in the context.
        context: usize,
    },
    /// Every sequence slot is in use.
    #[error("all {sequences} sequence slots are in use: remove one, or open the model with more")]
    Full {
        /// Number of sequence slots.
        sequences: usize,
    },
    /// Not enough free pages for keys and values.
    #[error(
        "{needed} KV pages are needed, but {free} are free: \
         remove a sequence, or open the model with more KV pages"
    )]
    Pages {
        /// Pages that the step needs.
        needed: usize,
        /// Free pages.
        free: usize,
    },
    /// The sequence was removed, or belongs to another session.
    #[error("the sequence does not exist: it was removed, or belongs to another session")]
    NoSequence,
    /// Scales of adapters were set for a sequence with tokens, or their number differs from the
    /// number of adapters.
    #[error(
        "{given} scales for {adapters} adapters and a sequence of {tokens} tokens: \
         set one scale for each adapter before the first token"
    )]
    Adapters {
        /// Number of scales.
        given: usize,
        /// Number of adapters.
        adapters: usize,
        /// Tokens of the sequence.
        tokens: usize,
    },
    /// Other adapters are in use in every place for adapters.
    #[error("all {slots} places for adapters are in use (--max-loras)")]
    AdapterSlots {
        /// Number of places.
        slots: usize,
    },
    /// The model or its device takes no rows of images.
    #[error("{0}")]
    Images(String),
    /// A step names one sequence twice.
    #[error("a sequence is named twice in one step")]
    Twice,
    /// Logits or a token were requested, but the sequence has no tokens.
    #[error("no token to continue from")]
    NoTokens,
    /// The mask and the biases forbid every token.
    #[error("no token is allowed: the mask or the biases forbid all tokens")]
    NothingAllowed,
    /// An allocation failed.
    #[error("{what} needs {bytes} bytes, more than available: {hint}")]
    Memory {
        /// The purpose of the memory.
        what: String,
        /// Bytes requested.
        bytes: u64,
        /// Advice for the user.
        hint: String,
    },
    /// A logit is infinite or NaN.
    #[error(
        "the logit of token {id} is {score}: \
         weights in the file are damaged or too large, download it again"
    )]
    Scores {
        /// The first such token.
        id: usize,
        /// The logit of this token.
        score: f32,
    },
    /// A device fault after which no data on the device is valid. This session is unusable. A new
    /// session needs a new context on the device, or a new process if the driver cannot create a
    /// context.
    #[error("{0}")]
    Lost(String),
    /// The device or its compiler failed.
    #[error("{0}")]
    Device(String),
}

/// Checks that all logits are finite: otherwise a choice has no meaning.
///
/// # Errors
/// [`SessionError::Scores`] with the first logit that is not finite.
pub fn check_scores(row: &[f32]) -> Result<(), SessionError> {
    // The loop has no early exit, so that the compiler vectorises it: 49,152 logits take a few µs.
    if row.iter().fold(true, |all, score| all & score.is_finite()) {
        return Ok(());
    }
    match row.iter().enumerate().find(|(_, score)| !score.is_finite()) {
        Some((id, &score)) => Err(SessionError::Scores { id, score }),
        None => Ok(()),
    }
}

impl From<Error> for SessionError {
    fn from(error: Error) -> SessionError {
        match error {
            Error::OutOfMemory { what, asked, free, total, device } => SessionError::Memory {
                what: format!("{what} on {device}"),
                bytes: asked,
                hint: format!("{free} of {total} bytes are free"),
            },
            // A failed call leaves the context in an unknown state.
            lost @ (Error::Driver { .. } | Error::DeviceLost { .. }) => {
                SessionError::Lost(lost.to_string())
            }
            other => SessionError::Device(other.to_string()),
        }
    }
}
