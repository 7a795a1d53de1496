//! What every executor of a graph can do, whatever runs it: one sequence of tokens, fed in pieces, and its logits.

use crate::graph::GraphError;
use crate::sample::Sampler;
use std::ops::ControlFlow;

/// Which rows of logits a call wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// None: the tokens only enter the cache.
    Nothing,
    /// The last token's.
    Last,
    /// Every token's, in order.
    All,
}

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvType {
    /// Single precision: the truth (`--precise`).
    F32,
    /// Half precision: the default.
    F16,
    /// Blocks of 32 signed bytes with a half-precision scale.
    Q8_0,
}

impl KvType {
    /// Bytes of so many elements, a multiple of 32.
    pub fn bytes(self, elems: usize) -> u64 {
        let elems = elems as u64;
        match self {
            KvType::F32 => elems * 4,
            KvType::F16 => elems * 2,
            KvType::Q8_0 => elems / 32 * 34,
        }
    }
}

/// What a run is set up with.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecOptions {
    /// Tokens that fit, prompt and answer together.
    pub context: usize,
    /// Storage of keys and values.
    pub kv: KvType,
    /// Nearest to the truth instead of fastest.
    pub precise: bool,
    /// Threads for work on the CPU.
    pub threads: usize,
    /// Tokens of a prompt that go through the model at once.
    pub batch: usize,
}

impl ExecOptions {
    /// So many tokens of context, keys and values in half precision, every core, and 512 tokens of a prompt at once (more suit a GPU).
    #[must_use]
    pub fn new(context: usize) -> ExecOptions {
        let threads = crate::host::default_threads();
        ExecOptions { context, kv: KvType::F16, precise: false, threads, batch: 512 }
    }

    /// How keys and values are really stored: `precise` keeps them whole.
    pub fn kv_stored(&self) -> KvType {
        if self.precise { KvType::F32 } else { self.kv }
    }
}

/// Why an executor could not be made or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
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
    /// No room for more tokens.
    #[error("{tokens} tokens do not fit in the context of {context}: give a larger -c, or a shorter prompt")]
    Context {
        /// Tokens asked for, those already there included.
        tokens: usize,
        /// Tokens that fit.
        context: usize,
    },
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
        "the model's scores are no numbers (token {id}'s is {score}): weights in the file are damaged or too large; download it again"
    )]
    Scores {
        /// The first such token.
        id: usize,
        /// Its score.
        score: f32,
    },
    /// The device or its compiler failed.
    #[error("{0}")]
    Device(String),
}

/// Checks that scores are numbers: of others, the choice of a token means nothing.
///
/// # Errors
/// [`ExecError::Scores`] with the first that is none.
pub fn check_scores(row: &[f32]) -> Result<(), ExecError> {
    // Without a way out of the loop, which compiles to whole vectors: 49,152 scores take some µs.
    if row.iter().fold(true, |all, score| all & score.is_finite()) {
        return Ok(());
    }
    match row.iter().enumerate().find(|(_, score)| !score.is_finite()) {
        Some((id, &score)) => Err(ExecError::Scores { id, score }),
        None => Ok(()),
    }
}

/// Runs one sequence through a model.
pub trait Executor: Send {
    /// Tokens in the sequence so far.
    fn len(&self) -> usize;

    /// Whether nothing was fed.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens that fit.
    fn context(&self) -> usize;

    /// Size of the vocabulary.
    fn n_vocab(&self) -> usize;

    /// Tokens of a prompt that are fed at once at little cost: between such pieces somebody may change his mind. By default a prompt is one piece.
    fn piece(&self) -> usize {
        usize::MAX
    }

    /// Appends tokens, and gives the rows of logits wanted, `n_vocab` each. Nothing is appended on an error.
    ///
    /// # Errors
    /// [`ExecError::Token`], [`ExecError::Context`], [`ExecError::Device`].
    fn feed(&mut self, tokens: &[u32], want: Want) -> Result<Vec<f32>, ExecError>;

    /// Forgets all tokens from position `len` on.
    fn truncate(&mut self, len: usize);

    /// Feeds `first`, samples, hands each token to `sink` and feeds it, until the sink breaks or the context is full (`Ok` in both
    /// cases). The token at which the sink breaks is not fed. A device may run ahead of the sink; what it fed too much is forgotten
    /// before this returns.
    ///
    /// # Errors
    /// As [`Executor::feed`], and [`ExecError::Scores`] where the choice is made on the host; tokens that the sink had until then are good.
    fn decode(
        &mut self,
        first: &[u32],
        sampler: &mut Sampler,
        sink: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<(), ExecError> {
        decode_by_host(self, first, sampler, sink)
    }
}

/// [`Executor::decode`] with the choice on the host: every token's scores come over.
pub(crate) fn decode_by_host<E: Executor + ?Sized>(
    executor: &mut E,
    first: &[u32],
    sampler: &mut Sampler,
    sink: &mut dyn FnMut(u32) -> ControlFlow<()>,
) -> Result<(), ExecError> {
    let mut logits = executor.feed(first, Want::Last)?;
    loop {
        check_scores(&logits)?;
        let token = sampler.sample(&mut logits);
        if sink(token).is_break() || executor.len() == executor.context() {
            return Ok(());
        }
        logits = executor.feed(&[token], Want::Last)?;
    }
}
