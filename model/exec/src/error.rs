//! Why a model could not be opened on a device, or a session could not go on.

use kjit_engine::Error;
use kjit_graph::GraphError;

/// Why a session could not be made or could not go on. Whatever it is, no sequence has more tokens
/// than before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// Kernels compute wrongly on this device, in every variant that it can run: a line each. The
    /// verdicts are kept.
    #[error("{}; --device cpu computes without it, kjit doctor --run --report FILE says which \
        kernels are wrong", .0.join("; "))]
    Wrong(Vec<String>),
    /// The model makes no logits.
    #[error(
        "architecture '{arch}' is an encoder: it makes one vector of a text, no scores of a \
         next token"
    )]
    Encoder {
        /// `general.architecture`.
        arch: String,
    },
    /// The model cannot be run.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A token that the vocabulary has not.
    #[error("token id {id} is outside the vocabulary of {n_vocab}")]
    Token {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// No room for more tokens in a sequence.
    #[error(
        "{tokens} tokens do not fit in the context of {context}: give a larger -c, or a \
         shorter prompt"
    )]
    Context {
        /// Tokens asked for, those already there included.
        tokens: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// No room for another sequence.
    #[error(
        "all {sequences} sequences that fit are there: remove one, or open the model with more"
    )]
    Full {
        /// Sequences that fit.
        sequences: usize,
    },
    /// All pages for keys and values are somebody's.
    #[error(
        "{needed} pages of keys and values are needed, and {free} are free: remove a sequence, or \
         open the model with room for more tokens"
    )]
    Pages {
        /// Pages that the step takes.
        needed: usize,
        /// Those that nobody has.
        free: usize,
    },
    /// A sequence that was removed, or is another session's.
    #[error("there is no such sequence: it was removed")]
    NoSequence,
    /// A step names a sequence twice.
    #[error("a sequence is named twice in one step")]
    Twice,
    /// A row of logits or a token was wanted, and no token given to have it from.
    #[error("no token to go on from")]
    NoTokens,
    /// The mask and the biases forbid every token.
    #[error("no token is allowed: the mask or the biases forbid every one")]
    NothingAllowed,
    /// Memory could not be had.
    #[error("{what} needs {bytes} bytes, which could not be had: {hint}")]
    Memory {
        /// What for.
        what: String,
        /// How much.
        bytes: u64,
        /// What to do.
        hint: String,
    },
    /// A score is infinite or no number.
    #[error(
        "the model's scores are no numbers (token {id}'s is {score}): weights in the file are \
         damaged or too large; download it again"
    )]
    Scores {
        /// The first such token.
        id: usize,
        /// Its score.
        score: f32,
    },
    /// The device failed in a way after which nothing on it can be trusted: the session is of no
    /// more use. Another one may be opened, in a fresh context: where the device does not give one,
    /// in a fresh process.
    #[error("{0}")]
    Lost(String),
    /// The device or its compiler failed.
    #[error("{0}")]
    Device(String),
}

/// Checks that scores are numbers: of others, the choice of a token means nothing.
///
/// # Errors
/// [`SessionError::Scores`] with the first that is none.
pub fn check_scores(row: &[f32]) -> Result<(), SessionError> {
    // Without a way out of the loop, which compiles to whole vectors: 49,152 scores take some µs.
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
            // A call that the driver refuses leaves a context of which nobody knows what still
            // works.
            lost @ (Error::Driver { .. } | Error::DeviceLost { .. }) => {
                SessionError::Lost(lost.to_string())
            }
            other => SessionError::Device(other.to_string()),
        }
    }
}
