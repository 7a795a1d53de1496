//! `POST /v1/completions`: continues a text.

use super::completions_answer::{CompletionContext, Echo, document, stream_format};
use super::{Head, IGNORED, REFUSED, UsageReporting, form, json_response, place, stream};
use crate::caller::Caller;
use crate::constrain::{OutputConstraints, not_held, noted};
use crate::fields::Fields;
use crate::generation::{CompleteAnswer, GenerationRequest, OutputParsing, collect, start};
use crate::llama::infill::InfillText;
use crate::loaded::Loaded;
use crate::refusal::Refusal;
use crate::sampling::{self, Ends, Sampling};
use crate::service::Service;
use crate::streamed::{self, IN_FLIGHT};
use axum::response::Response;
use hyper::body::Bytes;
use kjit_model::cancel::Cancel;
use kjit_model::tokenizer::{EncodeOptions, Limit, Tokenizer};
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Maximum number of prompts in a request.
const MAX_PROMPTS: usize = 64;
/// Maximum tokens of an answer if the request has no limit: OpenAI's default.
const USUAL_TOKENS: usize = 16;
/// Maximum number of alternatives with log probabilities for each token.
const MAX_SCORES: i64 = 20;

/// A prompt of a request.
pub enum Text {
    /// A text, tokenised with the model's BOS token.
    Words(String),
    /// Token ids, used unchanged.
    Ids(Vec<u32>),
    /// Text before and after a gap.
    Gap(Box<InfillText>),
}

impl Text {
    /// A text, or the text before a gap if there is a suffix.
    pub fn around(text: String, suffix: Option<String>) -> Text {
        match suffix {
            None => Text::Words(text),
            Some(after) => Text::Gap(Box::new(InfillText {
                before: text,
                after,
                files: vec![],
                field: "suffix",
            })),
        }
    }

    /// The prompt's tokens.
    ///
    /// # Errors
    /// The prompt is too long.
    pub fn tokens(self, loaded: &Loaded, cancel: &Cancel) -> Result<Vec<u32>, Refusal> {
        match self {
            Text::Ids(ids) => Ok(ids),
            Text::Gap(gap) => gap.tokens(loaded, cancel),
            Text::Words(text) => {
                let options = EncodeOptions::PROMPT;
                let encode = |tokenizer: &Tokenizer, limit: &Limit| {
                    tokenizer.encode_within(text.as_bytes(), options, limit)
                };
                loaded.tokens(cancel, encode).map_err(|why| why.of("prompt"))
            }
        }
    }
}

/// Reads a string, token ids, or a list of either.
pub fn texts(f: &mut Fields, name: &str, most: usize) -> Result<Vec<Text>, Refusal> {
    let why = format!("give a string, a list of token ids, or a list of at most {most} of either");
    let ids = |all: &[Value]| -> Option<Vec<u32>> {
        all.iter().map(|id| id.as_u64()?.try_into().ok()).collect()
    };
    let found = match f.take(name) {
        Some(Value::String(text)) => Some(vec![Text::Words(text)]),
        Some(Value::Array(all)) if all.first().is_some_and(Value::is_number) => {
            ids(&all).map(|ids| vec![Text::Ids(ids)])
        }
        Some(Value::Array(all)) if (1..=most).contains(&all.len()) => {
            let one = |value: Value| match value {
                Value::String(text) => Some(Text::Words(text)),
                Value::Array(all) => ids(&all).map(Text::Ids),
                _ => None,
            };
            all.into_iter().map(one).collect()
        }
        None => return Err(f.wrong(name, "is missing")),
        Some(_) => None,
    };
    found.ok_or_else(|| f.wrong(name, why))
}

/// A request for completions.
struct CompletionRequest {
    at: usize,
    prompts: Vec<Text>,
    stream: bool,
    told: UsageReporting,
    n: usize,
    max_tokens: Option<usize>,
    sampling: Sampling,
    stop: Vec<String>,
    ends: Ends,
    ignore_eos: bool,
    logprobs: Option<usize>,
    prompt_logprobs: Option<usize>,
    /// Whether the prompt is put before each answer.
    echo: bool,
    /// Whether answers include token ids.
    ids: bool,
    /// Number of answers to each prompt; the `n` most likely are sent.
    best_of: usize,
    follow: OutputConstraints,
    caller: Caller,
}

impl CompletionRequest {
    /// If the tokens of prompts get log probabilities: the number of alternatives for each.
    fn scores_prompts(&self) -> Option<usize> {
        self.prompt_logprobs.max(self.logprobs.filter(|_| self.echo))
    }
}

fn read(service: &Service, body: &[u8], caller: Caller) -> Result<CompletionRequest, Refusal> {
    let mut f = Fields::parse(body)?;
    f.ignore(&IGNORED);
    f.refuse(&REFUSED)?;
    let (at, caller) = (place(&mut f, service)?, caller.of_request(&mut f)?);
    let mut prompts = texts(&mut f, "prompt", MAX_PROMPTS)?;
    if let Some(suffix) = f.text("suffix")?.filter(|suffix| !suffix.is_empty()) {
        let around = |text: Text| match text {
            Text::Words(text) => Ok(Text::around(text, Some(suffix.clone()))),
            Text::Ids(_) | Text::Gap(_) => Err(f.wrong("suffix", "needs a prompt string")),
        };
        prompts = prompts.into_iter().map(around).collect::<Result<_, _>>()?;
    }
    let (stream, told) = stream(&mut f)?;
    let n = f.count("n", 1..=16)?.unwrap_or(1);
    let best_of = f.count("best_of", 1..=16)?.unwrap_or(n);
    if best_of < n {
        return Err(f.wrong("best_of", format_args!("give at least n ({n})")));
    }
    if best_of > n && stream {
        return Err(f.wrong("best_of", "cannot be streamed: the best is known only at the end"));
    }
    let max_tokens = match f.whole("max_tokens", -1..=i64::MAX)? {
        None => Some(USUAL_TOKENS),
        // -1 means that only the context limits the answer.
        Some(n) => usize::try_from(n).ok(),
    };
    let sampling = sampling::openai(&mut f)?;
    let stop = sampling::stop(&mut f)?;
    let ends = sampling::ends(&mut f)?;
    let ignore_eos = f.flag("ignore_eos")?.unwrap_or(false);
    let logprobs = f.count("logprobs", 0..=MAX_SCORES)?;
    let prompt_logprobs = f.count("prompt_logprobs", 0..=MAX_SCORES)?;
    let echo = f.flag("echo")?.unwrap_or(false);
    let ids = f.flag("return_token_ids")?.unwrap_or(false);
    let follow = OutputConstraints { form: form::wanted(&mut f)?, ..OutputConstraints::default() };
    f.done()?;
    ends.beside(&follow)?;
    let answers = prompts.len() * best_of;
    if answers > MAX_PROMPTS {
        return Err(Refusal::field(
            "n",
            format_args!("{answers} answers are requested, but the maximum is {MAX_PROMPTS}"),
        ));
    }
    Ok(CompletionRequest {
        at,
        prompts,
        stream,
        told,
        n,
        max_tokens,
        sampling,
        stop,
        ends,
        ignore_eos,
        logprobs,
        prompt_logprobs,
        echo,
        ids,
        best_of,
        follow,
        caller,
    })
}

/// Answers a request for completions.
pub async fn answer(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let mut asked = read(&service, &body, caller)?;
    let loaded = service.model(asked.at, None).await?;
    sampling::known(&asked.sampling, loaded.tokenizer.n_vocab())?;
    let (n, best_of, of_prompts) = (asked.n, asked.best_of, asked.scores_prompts());
    let (texts, follow) = (std::mem::take(&mut asked.prompts), std::mem::take(&mut asked.follow));
    let (of, answers, echo) = (loaded.clone(), texts.len() * best_of, asked.echo);
    let sampling = asked.sampling.clone();
    let work = move |cancel: &Cancel| {
        let one = |text: Text| {
            let said = if let Text::Words(words) = &text { Some(words.clone()) } else { None };
            let tokens = text.tokens(&of, cancel)?;
            Ok(Echo::new(&of, said, tokens))
        };
        let prompts = texts.into_iter().map(one).collect::<Result<Vec<_>, Refusal>>()?;
        let constraints = follow.constraints(&of, None, answers, cancel)?;
        Ok((prompts, constraints, sampling.resolved(&of)))
    };
    let (prompts, constraints, sampling) = service.prepare(&loaded, &asked.caller, work).await?;
    let unheld = not_held(&constraints);
    let mut constraints = constraints.into_iter();
    let (to, pieces) = mpsc::channel(IN_FLIGHT);
    for i in 0..answers {
        let mut tokens = prompts.get(i / best_of).map(|p| p.tokens.clone()).unwrap_or_default();
        if tokens.len() > loaded.context {
            return Err(Refusal::too_long(tokens.len(), None, loaded.context).of("prompt"));
        }
        // The prompt after its first token is forced as the beginning of the answer.
        let forced = match of_prompts {
            Some(_) if !tokens.is_empty() => tokens.split_off(1),
            _ => vec![],
        };
        let wanted = GenerationRequest {
            max_tokens: asked.max_tokens,
            sampling: sampling::nth(&sampling, i % best_of),
            stop: asked.stop.clone(),
            ignore_eos: asked.ignore_eos,
            // The most likely answers are chosen by their log probabilities.
            logprobs: asked.logprobs.max(of_prompts).max((best_of > n).then_some(0)),
            constraint: constraints.next(),
            lookup: loaded.lookup,
            forced,
            more_ends: asked.ends.clone(),
            // Clients that score texts count one token after the prompt, whatever it is.
            scores_ends: asked.echo,
            ids: asked.ids,
            ..GenerationRequest::of(tokens, OutputParsing::Plain, asked.caller.clone())
        };
        start(&loaded, wanted, i, to.clone())?;
    }
    drop(to);
    let mut manner = CompletionContext {
        head: Head::new("cmpl", loaded.name()),
        n,
        told: asked.told,
        logprobs: asked.logprobs,
        prompt_logprobs: asked.prompt_logprobs,
        echo,
        prompts,
        ids: asked.ids,
        unseen: 0,
    };
    if asked.stream {
        return Ok(noted(
            streamed::events(pieces, stream_format(loaded, manner, answers)),
            &unheld,
        ));
    }
    let mut all = collect(pieces, answers).await?;
    if best_of > n {
        manner.unseen = keep_best(&mut all, best_of, n);
    }
    Ok(noted(json_response(&document(&loaded, &manner, all)), &unheld))
}

/// Keeps the `n` most likely of each `best_of` answers, by the mean log probability of their
/// tokens. Returns the number of tokens of the dropped answers.
fn keep_best(all: &mut Vec<CompleteAnswer>, best_of: usize, n: usize) -> usize {
    let mean = |answer: &CompleteAnswer| {
        let sum: f64 = answer.scores.iter().map(|one| f64::from(one.logprobs.chosen)).sum();
        sum / answer.scores.len().max(1) as f64
    };
    let mut unseen = 0;
    let mut kept = vec![];
    let mut rest = std::mem::take(all).into_iter();
    loop {
        let mut some: Vec<CompleteAnswer> = rest.by_ref().take(best_of).collect();
        if some.is_empty() {
            break;
        }
        some.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        let others = some.iter().skip(n).filter_map(|answer| answer.done);
        unseen += others.map(|done| done.generated_tokens).sum::<usize>();
        some.truncate(n);
        kept.extend(some);
    }
    *all = kept;
    unseen
}

#[cfg(test)]
mod tests {
    use super::{CompleteAnswer, keep_best};
    use crate::generation::Score;
    use kjit_model::serve::Logprobs;

    #[test]
    fn answers_with_highest_logprob_per_token_are_kept() {
        let answer = |name: &str, logprobs: &[f32]| {
            let one =
                |chosen: &f32| Score { id: 0, logprobs: Logprobs { chosen: *chosen, top: vec![] } };
            let scores = logprobs.iter().map(one).collect();
            CompleteAnswer { content: name.to_owned(), scores, ..CompleteAnswer::default() }
        };
        let mut all = vec![
            answer("a", &[-1.0, -3.0]),
            answer("b", &[-1.5]),
            answer("c", &[-1.0, -1.0, -1.0]),
            answer("d", &[-2.0]),
            answer("e", &[-0.5]),
            answer("f", &[-0.1, -2.0]),
        ];
        keep_best(&mut all, 3, 2);
        let kept: Vec<&str> = all.iter().map(|answer| answer.content.as_str()).collect();
        assert_eq!(kept, ["c", "b", "e", "f"]);
    }
}
