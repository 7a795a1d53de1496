//! What is asked of a [`super::Scheduler`], and what it answers.

use crate::sample::{SampleOptions, TokenMask};
use std::ops::ControlFlow;
use std::time::Duration;

/// Takes a request's events, on the scheduler's thread: it must not wait for anything. To break
/// ends the answer after the token at hand; [`Event::Done`] with [`Reason::Ended`] still comes.
pub type Sink = Box<dyn FnMut(Event) -> ControlFlow<()> + Send>;

/// What the tokens of an answer must be like: a grammar, say.
pub trait Constraint: Send {
    /// The tokens that may come next.
    ///
    /// # Errors
    /// One line: why the constraint cannot go on. The request fails with it.
    fn allowed(&mut self) -> Result<TokenMask, String>;

    /// Enters a token that was chosen. True: the answer is complete, and ends here.
    ///
    /// # Errors
    /// As of [`Constraint::allowed`].
    fn accept(&mut self, token: u32) -> Result<bool, String>;
}

/// Whose texts are kept: a request goes on from what others of the same owner computed, and from
/// nobody else's. The default is one owner, of all requests that name none. A digest of a key, say:
/// it is compared and never shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Owner(pub [u8; 32]);

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Owner")
    }
}

/// Which tokens end an answer. The one that does is handed out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Stop {
    /// Those that end a turn: [`crate::Session::end_ids`].
    #[default]
    EndOfTurn,
    /// These, and no others.
    Ids(Vec<u32>),
    /// None: it goes on past the end of a turn.
    Never,
}

/// An answer that is asked for.
pub struct Request {
    /// The prompt: at least one token.
    pub tokens: Vec<u32>,
    /// Tokens of the answer at most; none: until the context is full.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampling: SampleOptions,
    /// Which tokens end the answer.
    pub stop: Stop,
    /// What the answer must be like.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Log probabilities of each token, and of so many that were the likeliest.
    pub logprobs: Option<usize>,
    /// Whether tokens may be drafted from what the prompt and the answer repeat. The answer is the
    /// same, but for near-ties.
    pub lookup: bool,
    /// Who asks: clients take turns.
    pub client: Option<String>,
    /// Whose text it is: only requests of the same owner go on from it, wait for it or tell by
    /// times that it was there.
    pub owner: Owner,
    /// Takes the events.
    pub sink: Sink,
}

impl Request {
    /// A greedy answer to these tokens until the end of the turn, or until the context is full.
    pub fn new(tokens: Vec<u32>, sink: Sink) -> Request {
        Request {
            tokens,
            max_tokens: None,
            sampling: SampleOptions::default(),
            stop: Stop::default(),
            constraint: None,
            logprobs: None,
            lookup: false,
            client: None,
            owner: Owner::default(),
            sink,
        }
    }
}

/// A token that might have been chosen.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Alternative {
    /// The token.
    pub id: u32,
    /// The natural logarithm of its probability, of the model's own scores: before biases,
    /// penalties, temperature and cuts.
    pub logprob: f32,
}

/// How likely a token was.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Logprobs {
    /// The natural logarithm of the chosen one's probability.
    pub chosen: f32,
    /// The likeliest, the likeliest first; among equals the lowest id.
    pub top: Vec<Alternative>,
}

/// What happens to a request. [`Event::Done`] or [`Event::Failed`] comes once, last.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// It left the queue. Once, unless it ends before.
    Started {
        /// Tokens of its prompt.
        prompt_tokens: usize,
        /// Those of them that need not be computed.
        cached_tokens: usize,
    },
    /// A token of the answer.
    Token {
        /// The token.
        id: u32,
        /// Where they were asked for.
        logprobs: Option<Logprobs>,
    },
    /// The answer is complete.
    Done {
        /// Why it ended.
        reason: Reason,
        /// What it took.
        usage: Usage,
    },
    /// The answer cannot be completed.
    Failed(Failure),
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Reason {
    /// A token of [`Request::stop`] came.
    Stop,
    /// The number of tokens asked for was reached.
    Length,
    /// No room is left in the context.
    ContextFull,
    /// The constraint is fulfilled and allows nothing more.
    Constraint,
    /// The sink broke.
    Ended,
    /// [`super::Answer::cancel`], or the answer was dropped.
    Cancelled,
}

/// What an answer took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were not computed, because another request had them.
    pub cached_tokens: usize,
    /// Tokens of the answer.
    pub generated_tokens: usize,
    /// Tokens that were drafted for it, and those of them that were right.
    pub drafted_tokens: usize,
    /// Drafted tokens that were the answer's.
    pub accepted_tokens: usize,
    /// Time in the queue.
    pub queued: Duration,
    /// Time from the submission to the first token; none if there is none.
    pub first_token: Option<Duration>,
    /// Time from the submission to the end.
    pub total: Duration,
}

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The queue is full.
    #[error("{waiting} requests are waiting already: try again in {} s", retry_after.as_secs().max(1))]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
        /// When there may be room, as far as the last requests tell.
        retry_after: Duration,
    },
    /// The prompt is longer than the context.
    #[error(
        "the prompt has {tokens} tokens, the context {context}: shorten it, or serve with a \
         larger -c"
    )]
    Context {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// There is no token to go on from.
    #[error("the prompt has no tokens")]
    NoTokens,
    /// A token that the vocabulary has not.
    #[error("token id {id} is outside the vocabulary of {n_vocab}")]
    Token {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// More log probabilities than are made.
    #[error("log probabilities of {asked} tokens were asked for, {most} at most are given")]
    Logprobs {
        /// How many were asked for.
        asked: usize,
        /// How many there are at most.
        most: usize,
    },
    /// The model makes vectors, no text.
    #[error("architecture '{arch}' is an encoder: it makes embeddings, no text")]
    Encoder {
        /// `general.architecture`.
        arch: String,
    },
    /// The model makes text, no vectors.
    #[error("architecture '{arch}' makes text, no embeddings: serve an encoder")]
    NoEncoder {
        /// `general.architecture`.
        arch: String,
    },
    /// Nothing is taken any more.
    #[error("the server is stopping")]
    Stopping,
    /// The device failed and the model could not be opened again.
    #[error("the model is not there: {0}")]
    Lost(String),
}

/// Why an answer cannot be completed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The device failed; the model is opened again. The same request may be made once more.
    #[error("the device failed while this was computed; ask again: {0}")]
    Device(String),
    /// Memory for it could not be had, though nobody else had any of it. There may be more when
    /// other programs have ended.
    #[error("there is no memory for this now; ask again later: {0}")]
    Memory(String),
    /// The session cannot do this.
    #[error("{0}")]
    Request(String),
    /// The constraint cannot go on.
    #[error("the constraint cannot go on: {0}")]
    Constraint(String),
    /// A fault in this program.
    #[error("an internal fault: {0}")]
    Panic(String),
    /// The scheduler stopped before it was done.
    #[error("the server stopped before the answer was complete")]
    Stopped,
}
