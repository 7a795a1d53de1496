//! Sends a conversation to a model. Every dialect with messages reads its fields into a
//! [`ConversationRequest`] and formats the pieces of the answer itself.

use crate::caller::Caller;
use crate::constrain::{OutputConstraints, not_held};
use crate::conversation::Conversation;
use crate::generation::{AnswerEvent, GenerationRequest, start};
use crate::models::Lease;
use crate::prompt::Prompt;
use crate::reasoning_limit::ReasoningTokens;
use crate::refusal::Refusal;
use crate::sampling::{self, Ends, Sampling};
use crate::service::Service;
use crate::streamed::IN_FLIGHT;
use kjit_model::cancel::Cancel;
use kjit_model::chat::Form;
use tokio::sync::mpsc;

/// A request with messages, independent of the dialect.
pub struct ConversationRequest {
    /// The conversation so far.
    pub conversation: Conversation,
    /// The constraint on the answer.
    pub follow: OutputConstraints,
    /// Number of answers.
    pub n: usize,
    /// Maximum tokens of an answer.
    pub max_tokens: Option<usize>,
    /// Sampling options.
    pub sampling: Sampling,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Conditions that end an answer, besides the model's end token and stop strings.
    pub ends: Ends,
    /// Whether answers continue past an end token.
    pub ignore_eos: bool,
    /// Number of alternatives with log probabilities for each token; `None`: no log probabilities.
    pub logprobs: Option<usize>,
    /// Maximum tokens of the reasoning, if the request sets it. `Some(None)`: no limit.
    pub thinking: Option<Option<usize>>,
    /// Whether pieces include token ids.
    pub ids: bool,
    /// The caller of the request.
    pub caller: Caller,
}

/// Answers that have started.
pub struct StartedAnswers {
    /// Pieces of the answers, each with the index of its answer.
    pub pieces: mpsc::Receiver<(usize, AnswerEvent)>,
    /// The schema keywords that are not enforced; empty if all are.
    pub unheld: String,
    /// The tokens of the prompt, if they were requested.
    pub prompt: Vec<u32>,
}

/// Renders the prompt, creates the constraints, and submits the answers.
///
/// # Errors
/// The prompt, a schema or a token is refused, or the queue is full.
pub async fn ask(
    service: &Service,
    loaded: &Lease,
    ask: ConversationRequest,
) -> Result<StartedAnswers, Refusal> {
    sampling::known(&ask.sampling, loaded.tokenizer.n_vocab())?;
    let ConversationRequest { conversation, follow, n, caller, sampling, .. } = ask;
    let (of, words) = (loaded.clone(), spoken(loaded, conversation));
    let owner = caller.owner;
    let prepare = move |cancel: &Cancel| {
        let prompt = words.prompt(&of, owner, cancel)?;
        let constraints = follow.constraints(&of, Some(&prompt), n, cancel)?;
        Ok((prompt, follow, constraints, sampling.resolved(&of)))
    };
    let (prompt, follow, constraints, sampling) = service.prepare(loaded, &caller, prepare).await?;
    let unheld = not_held(&constraints);
    let mut constraints = constraints.into_iter();
    let thought = ask.thinking.unwrap_or(service.options.reasoning_budget);
    let thought =
        thought.map(|most| ReasoningTokens::new(loaded, prompt.form, prompt.rendered(), most));
    let (to, pieces) = mpsc::channel(IN_FLIGHT);
    for i in 0..n {
        let wanted = GenerationRequest {
            max_tokens: ask.max_tokens,
            sampling: sampling::nth(&sampling, i),
            stop: ask.stop.clone(),
            ignore_eos: ask.ignore_eos,
            logprobs: ask.logprobs,
            constraint: constraints.next(),
            lookup: loaded.lookup,
            more_ends: ask.ends.clone(),
            thought: thought.clone(),
            ids: ask.ids,
            images: prompt.images.clone(),
            ..GenerationRequest::of(prompt.tokens.clone(), prompt.reading(&follow), caller.clone())
        };
        start(loaded, wanted, i, to.clone())?;
    }
    Ok(StartedAnswers { pieces, unheld, prompt: if ask.ids { prompt.tokens } else { vec![] } })
}

/// Computes the prompt tokens of a conversation.
///
/// # Errors
/// The template refuses the conversation, or the prompt is too long.
pub async fn prompt(
    service: &Service,
    loaded: &Lease,
    conversation: Conversation,
    caller: &Caller,
) -> Result<Prompt, Refusal> {
    let (of, words) = (loaded.clone(), spoken(loaded, conversation));
    let owner = caller.owner;
    service.prepare(loaded, caller, move |cancel| words.prompt(&of, owner, cancel)).await
}

/// Renames `developer` to `system`, except for gpt-oss: other templates do not know `developer`.
fn spoken(loaded: &Lease, mut conversation: Conversation) -> Conversation {
    if loaded.form() != Form::Channels {
        let newer = conversation.turns.iter_mut().filter(|turn| turn.role == "developer");
        newer.for_each(|turn| turn.role = "system".to_owned());
    }
    conversation
}
