//! Requests to a [`super::Scheduler`] and its events.

use crate::NonExhaustive;
use crate::exec::ImageRows;
use crate::sample::{SampleOptions, TokenMask};
use crate::session::ScaledAdapter;
use sha2::{Digest, Sha256};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// Receives the events of a request. It runs on the scheduler's thread, so it must not block.
/// `Break` ends the answer after the current token; [`Event::Done`] with [`Reason::Ended`] still
/// follows.
pub type EventSink = Box<dyn FnMut(Event) -> ControlFlow<()> + Send>;

/// Restricts the tokens of an answer, for example by a grammar.
pub trait Constraint: Send {
    /// The tokens that may come next.
    ///
    /// # Errors
    /// The reason why the constraint cannot continue, in one line. The request fails with it.
    fn allowed(&mut self) -> Result<TokenMask, String>;

    /// Adds a chosen token. Returns `true` if the answer is complete and ends here.
    ///
    /// # Errors
    /// See [`Constraint::allowed`].
    fn accept(&mut self, token: u32) -> Result<bool, String>;

    /// A function that another thread calls to stop `allowed` and `accept`, which then return an
    /// error soon. `None`: both are always quick.
    fn interrupt(&self) -> Option<Interrupt> {
        None
    }
}

/// Stops a [`Constraint`] permanently.
pub type Interrupt = Arc<dyn Fn() + Send + Sync>;

/// The owner of cached texts. A request reuses only texts of its own owner. All requests without an
/// owner share the default owner. The owner is usually a digest of an API key: it is compared and
/// never printed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Owner(pub [u8; 32]);

impl Owner {
    /// The owner of texts that were computed with these scales of adapters. It differs from this
    /// owner and from those of other scales.
    #[must_use]
    pub fn with_adapters(self, scales: &[f32]) -> Owner {
        let mut digest = Sha256::new().chain_update(b"adapters").chain_update(self.0);
        scales.iter().for_each(|scale| digest.update(scale.to_bits().to_le_bytes()));
        Owner(digest.finalize().into())
    }

    /// The owner of texts that were computed with these adapters: by their content, not by their
    /// names. Without adapters that have an effect, it is this owner.
    #[must_use]
    pub fn with_loaded(self, adapters: &[ScaledAdapter]) -> Owner {
        let mut used: Vec<_> = adapters.iter().filter(|one| one.scale != 0.0).collect();
        if used.is_empty() {
            return self;
        }
        used.sort_by_key(|one| (*one.adapter.digest(), one.scale.to_bits()));
        let mut digest = Sha256::new().chain_update(b"loaded adapters").chain_update(self.0);
        for one in used {
            digest.update(one.adapter.digest());
            digest.update(one.scale.to_bits().to_le_bytes());
        }
        Owner(digest.finalize().into())
    }
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Owner")
    }
}

/// The tokens that end an answer. The sink also gets the ending token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Stop {
    /// The tokens that end an assistant's message: [`crate::Session::end_ids`].
    #[default]
    EndOfTurn,
    /// These tokens only.
    Ids(Vec<u32>),
    /// No token ends the answer: it continues past the end of a message.
    Never,
}

/// A request for an answer.
pub struct Request {
    /// The prompt: at least one token.
    pub tokens: Vec<u32>,
    /// Maximum number of tokens of the answer; `None`: until the context is full.
    pub max_tokens: Option<usize>,
    /// The sampling options.
    pub sampling: SampleOptions,
    /// The tokens that end the answer.
    pub stop: Stop,
    /// Restricts the answer's tokens.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Requests log probabilities of each chosen token, and of this number of most likely tokens.
    pub logprobs: Option<usize>,
    /// Whether tokens may be drafted from repetitions in prompt and answer. The answer is the same
    /// up to near-ties.
    pub lookup: bool,
    /// The client. Waiting clients are served round robin.
    pub client: Option<String>,
    /// The client's share: a client with weight 2 may have twice as many running requests as one
    /// with weight 1 before the other's turn comes first. 0 counts as 1.
    pub weight: u32,
    /// The order among the client's waiting requests: lower values run first, equal values in the
    /// order of their arrival. Of the client's running requests, the one with the highest value is
    /// preempted first.
    pub priority: i32,
    /// The owner of the text. Only requests of the same owner reuse it, wait for it, or can find
    /// out from response times that it was cached.
    pub owner: Owner,
    /// The scale of each adapter that the model was opened with; `None`: the scales that the
    /// adapters were opened with. Cached prefixes are shared only among requests of equal scales.
    pub adapters: Option<Vec<f32>>,
    /// Adapters that were loaded later, for a model with places for them
    /// ([`OpenOptions::adapter_slots`](crate::OpenOptions::adapter_slots)). The request waits until
    /// there are places. Cached prefixes are shared only among requests of equal adapters and
    /// scales.
    pub loaded_adapters: Vec<ScaledAdapter>,
    /// The images whose rows are among `tokens`. They are kept until the answer ends.
    pub images: Vec<Arc<ImageRows>>,
    /// Receives the events.
    pub sink: EventSink,
    #[doc(hidden)]
    pub _more: NonExhaustive,
}

impl Request {
    /// A greedy answer that ends with the message or when the context is full.
    pub fn new(tokens: Vec<u32>, sink: EventSink) -> Request {
        Request {
            tokens,
            max_tokens: None,
            sampling: SampleOptions::default(),
            stop: Stop::default(),
            constraint: None,
            logprobs: None,
            lookup: false,
            client: None,
            weight: 1,
            priority: 0,
            owner: Owner::default(),
            adapters: None,
            loaded_adapters: vec![],
            images: vec![],
            sink,
            _more: NonExhaustive::default(),
        }
    }
}

/// A token with its log probability.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Alternative {
    /// Id of the token.
    pub id: u32,
    /// Natural logarithm of the token's probability, computed from the model's logits before
    /// biases, penalties, temperature and cuts.
    pub logprob: f32,
}

/// Log probabilities at one position.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Logprobs {
    /// Natural logarithm of the chosen token's probability.
    pub chosen: f32,
    /// The most likely tokens in descending order; among equals, the lowest id comes first.
    pub top: Vec<Alternative>,
}

/// An event of a request. [`Event::Done`] or [`Event::Failed`] comes exactly once, and last.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The request left the queue. It is sent at most once.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens of the prompt that were cached.
        cached_tokens: usize,
    },
    /// A token of the answer.
    Token {
        /// Id of the token.
        id: u32,
        /// Log probabilities, if requested.
        logprobs: Option<Logprobs>,
    },
    /// The answer is complete.
    Done {
        /// Why the answer ended.
        reason: Reason,
        /// Counts and times of the answer.
        usage: Usage,
    },
    /// The answer cannot be completed.
    Failed(Failure),
}

/// The reason for an answer's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Reason {
    /// A token of [`Request::stop`] was chosen.
    Stop,
    /// The requested number of tokens was reached.
    Length,
    /// The context is full.
    ContextFull,
    /// The constraint is complete.
    Constraint,
    /// The sink returned `Break`.
    Ended,
    /// [`super::Answer::cancel`] was called, or the answer was dropped.
    Cancelled,
}

/// Counts and times of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    /// Number of tokens of the prompt.
    pub prompt_tokens: usize,
    /// Number of tokens of the prompt that were cached.
    pub cached_tokens: usize,
    /// Number of tokens of the answer.
    pub generated_tokens: usize,
    /// Number of tokens drafted for the answer.
    pub drafted_tokens: usize,
    /// Number of drafted tokens that were accepted.
    pub accepted_tokens: usize,
    /// Time in the queue.
    pub queued: Duration,
    /// Time from submission to the first token; `None` if there was no token.
    pub first_token: Option<Duration>,
    /// Time from submission to the end.
    pub total: Duration,
}

/// The reason why a request was rejected.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The queue is full.
    #[error(
        "{waiting} requests are waiting already: try again in {} s"
    , retry_after.as_secs().max(1))]
    QueueFull {
        /// Number of waiting requests.
        waiting: usize,
        /// Estimated time until the queue has capacity.
        retry_after: Duration,
    },
    /// The prompt is longer than the context.
    #[error(
        "the prompt has {tokens} tokens, the context {context}: \
         shorten it, or serve with a larger -c"
    )]
    Context {
        /// Number of tokens of the prompt.
        tokens: usize,
        /// Size of the context in tokens.
        context: usize,
    },
    /// The prompt is empty.
    #[error("the prompt has no tokens")]
    NoTokens,
    /// A token outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {n_vocab}")]
    Token {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// More log probabilities than the limit.
    #[error("log probabilities of {asked} tokens were requested; at most {most} are returned")]
    Logprobs {
        /// The number requested.
        asked: usize,
        /// The limit.
        most: usize,
    },
    /// The model is an encoder.
    #[error("architecture '{arch}' is an encoder: it computes embeddings, not text")]
    Encoder {
        /// `general.architecture`.
        arch: String,
    },
    /// The model is not an encoder.
    #[error("architecture '{arch}' generates text, not embeddings: serve an encoder")]
    NoEncoder {
        /// `general.architecture`.
        arch: String,
    },
    /// The number of scales differs from the model's number of adapters.
    #[error("{given} scales were given, the model has {adapters} adapters")]
    Adapters {
        /// Number of scales.
        given: usize,
        /// Number of adapters.
        adapters: usize,
    },
    /// More adapters than the model has places for.
    #[error(
        "{given} adapters were requested, \
         but at most {slots} can be used at the same time (--max-loras)"
    )]
    AdapterSlots {
        /// Number of different adapters.
        given: usize,
        /// Number of places.
        slots: usize,
    },
    /// The scheduler is stopping.
    #[error("the server is stopping")]
    Stopping,
    /// The device failed and the model could not be reopened.
    #[error("the model is not available: {0}")]
    Lost(String),
}

/// The reason why an answer failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The device failed, and the model is being reopened. The client may send the request again.
    #[error("the device failed during this request; send it again: {0}")]
    Device(String),
    /// There is not enough memory, although no other request uses any. Other programs may free
    /// memory later.
    #[error("not enough memory for this request now; send it again later: {0}")]
    Memory(String),
    /// The session rejects the request.
    #[error("{0}")]
    Request(String),
    /// The constraint cannot continue.
    #[error("the constraint cannot continue: {0}")]
    Constraint(String),
    /// A panic in this program.
    #[error("an internal fault: {0}")]
    Panic(String),
    /// The scheduler stopped before the answer was complete.
    #[error("the server stopped before the answer was complete")]
    Stopped,
}
