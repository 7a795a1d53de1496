//! A conversation is put to a model. Every dialect with messages goes through here: each reads its
//! own words into an [`Ask`] and spells the pieces of the answer.

use crate::caller::Caller;
use crate::constrain::{Follow, not_held};
use crate::conversation::{Conversation, Prompt};
use crate::generation::{Piece, Wanted, start};
use crate::models::Lease;
use crate::refusal::Refusal;
use crate::sampling::{self, Ends};
use crate::service::Service;
use crate::streamed::IN_FLIGHT;
use kjit_model::SampleOptions;
use kjit_model::cancel::Cancel;
use kjit_model::chat::Form;
use tokio::sync::mpsc;

/// What a request with messages asks for.
pub struct Ask {
    /// The conversation so far.
    pub conversation: Conversation,
    /// The form of the answer.
    pub follow: Follow,
    /// Number of answers.
    pub n: usize,
    /// Tokens of an answer at most.
    pub max_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampling: SampleOptions,
    /// Texts that end an answer.
    pub stop: Vec<String>,
    /// Ends besides the model's own.
    pub ends: Ends,
    /// Answers go on past the end of the turn.
    pub ignore_eos: bool,
    /// Log probabilities of each token, and of this many others.
    pub logprobs: Option<usize>,
    /// The client.
    pub caller: Caller,
}

/// Answers that were begun.
pub struct Asked {
    /// Pieces of the answers, each with the answer's number.
    pub pieces: mpsc::Receiver<(usize, Piece)>,
    /// The words of schemas that are not enforced; empty: all are.
    pub unheld: String,
}

/// Renders the prompt, makes the constraints, and submits the answers.
///
/// # Errors
/// The prompt, a schema or a token is refused; the queue is full.
pub async fn ask(service: &Service, loaded: &Lease, ask: Ask) -> Result<Asked, Refusal> {
    sampling::known(&ask.sampling, loaded.tokenizer.n_vocab())?;
    let Ask { conversation, follow, n, caller, .. } = ask;
    let (of, words) = (loaded.clone(), spoken(loaded, conversation));
    let prepare = move |cancel: &Cancel| {
        let prompt = words.prompt(&of, cancel)?;
        let constraints = follow.constraints(&of, Some(&prompt), n, cancel)?;
        Ok((prompt, follow, constraints))
    };
    let (prompt, follow, constraints) = service.prepare(loaded, &caller, prepare).await?;
    let unheld = not_held(&constraints);
    let mut constraints = constraints.into_iter();
    let (to, pieces) = mpsc::channel(IN_FLIGHT);
    for i in 0..n {
        let wanted = Wanted {
            max_tokens: ask.max_tokens,
            sampling: sampling::nth(&ask.sampling, i),
            stop: ask.stop.clone(),
            ignore_eos: ask.ignore_eos,
            logprobs: ask.logprobs,
            constraint: constraints.next(),
            lookup: loaded.lookup,
            more_ends: ask.ends.clone(),
            ..Wanted::of(prompt.tokens.clone(), prompt.reading(&follow), caller.clone())
        };
        start(loaded, wanted, i, to.clone())?;
    }
    Ok(Asked { pieces, unheld })
}

/// The prompt of a conversation, without an answer.
///
/// # Errors
/// The template refuses the conversation; the prompt is too long.
pub async fn prompt(
    service: &Service,
    loaded: &Lease,
    conversation: Conversation,
    caller: &Caller,
) -> Result<Prompt, Refusal> {
    let (of, words) = (loaded.clone(), spoken(loaded, conversation));
    service.prepare(loaded, caller, move |cancel| words.prompt(&of, cancel)).await
}

/// Templates except gpt-oss's know `system` only, not the newer `developer`.
fn spoken(loaded: &Lease, mut conversation: Conversation) -> Conversation {
    if loaded.form() != Form::Channels {
        let newer = conversation.turns.iter_mut().filter(|turn| turn.role == "developer");
        newer.for_each(|turn| turn.role = "system".to_owned());
    }
    conversation
}
