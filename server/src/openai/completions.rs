//! `POST /v1/completions`: continues a text.

use super::completions_answer::{Echo, Manner, document, stream_format};
use super::{Head, IGNORED, REFUSED, Told, form, json_response, place, stream};
use crate::caller::Caller;
use crate::constrain::{Follow, not_held, noted};
use crate::fields::Fields;
use crate::generation::{Reading, Wanted, collect, start};
use crate::loaded::Loaded;
use crate::refusal::Refusal;
use crate::sampling::{self, Ends};
use crate::service::Service;
use crate::streamed::{self, IN_FLIGHT};
use axum::response::Response;
use hyper::body::Bytes;
use kjit_model::SampleOptions;
use kjit_model::cancel::Cancel;
use kjit_model::tokenizer::{EncodeOptions, Limit, Tokenizer};
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Maximum prompts of a request.
const MOST_PROMPTS: usize = 64;
/// Maximum tokens of an answer if the request does not say: OpenAI's default.
const USUAL_TOKENS: usize = 16;
/// Others whose log probabilities are given with each token, at most.
const MOST_SCORES: i64 = 20;

/// A prompt of a request.
pub enum Text {
    /// A text, tokenised with the model's BOS token.
    Words(String),
    /// Token ids, used as they are.
    Ids(Vec<u32>),
}

impl Text {
    /// The prompt's tokens.
    ///
    /// # Errors
    /// The prompt is too long.
    pub fn tokens(self, loaded: &Loaded, cancel: &Cancel) -> Result<Vec<u32>, Refusal> {
        match self {
            Text::Ids(ids) => Ok(ids),
            Text::Words(text) => {
                let options = EncodeOptions { add_special: true, parse_special: true };
                let encode = |tokenizer: &Tokenizer, limit: &Limit| {
                    tokenizer.encode_within(text.as_bytes(), options, limit)
                };
                loaded.tokens(cancel, encode).map_err(|why| why.of("prompt"))
            }
        }
    }
}

/// Reads a text, token ids, or a list of either.
pub fn texts(f: &mut Fields, name: &str, most: usize) -> Result<Vec<Text>, Refusal> {
    let why = format!("give a text, a list of token ids, or a list of at most {most} of either");
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

/// What a completion asks for.
struct Asked {
    at: usize,
    prompts: Vec<Text>,
    stream: bool,
    told: Told,
    n: usize,
    max_tokens: Option<usize>,
    sampling: SampleOptions,
    /// The prompts' texts, which are put before the answers (`echo`).
    stop: Vec<String>,
    ends: Ends,
    ignore_eos: bool,
    logprobs: Option<usize>,
    prompt_logprobs: Option<usize>,
    echo: bool,
    follow: Follow,
    caller: Caller,
}

impl Asked {
    /// The prompts' tokens are scored, and so many others with each.
    fn scores_prompts(&self) -> Option<usize> {
        self.prompt_logprobs.max(self.logprobs.filter(|_| self.echo))
    }
}

fn read(service: &Service, body: &[u8], caller: Caller) -> Result<Asked, Refusal> {
    let mut f = Fields::parse(body)?;
    f.ignore(&IGNORED);
    f.refuse(&REFUSED)?;
    f.refuse_more_than_empty(&[(
        "suffix",
        "is not supported: give the model's own words for it in the prompt",
    )])?;
    let (at, caller) = (place(&mut f, service)?, caller.salted(&mut f)?);
    let prompts = texts(&mut f, "prompt", MOST_PROMPTS)?;
    let (stream, told) = stream(&mut f)?;
    let n = f.count("n", 1..=16)?.unwrap_or(1);
    if f.count("best_of", 1..=16)?.is_some_and(|best| best != n) {
        return Err(f.wrong("best_of", "is supported where it equals n"));
    }
    let max_tokens = match f.whole("max_tokens", -1..=i64::MAX)? {
        None => Some(USUAL_TOKENS),
        // -1: no limit but the context.
        Some(n) => usize::try_from(n).ok(),
    };
    let sampling = sampling::openai(&mut f)?;
    let stop = sampling::stop(&mut f)?;
    let ends = sampling::ends(&mut f)?;
    let ignore_eos = f.flag("ignore_eos")?.unwrap_or(false);
    let logprobs = f.count("logprobs", 0..=MOST_SCORES)?;
    let prompt_logprobs = f.count("prompt_logprobs", 0..=MOST_SCORES)?;
    let echo = f.flag("echo")?.unwrap_or(false);
    let follow = Follow { form: form::wanted(&mut f)?, ..Follow::default() };
    f.done()?;
    ends.beside(&follow)?;
    let answers = prompts.len() * n;
    if answers > MOST_PROMPTS {
        return Err(Refusal::field(
            "n",
            format_args!("{answers} answers are asked for, {MOST_PROMPTS} at most are given"),
        ));
    }
    Ok(Asked {
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
        follow,
        caller,
    })
}

/// Answers.
pub async fn answer(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let mut asked = read(&service, &body, caller)?;
    let loaded = service.model(asked.at, None).await?;
    sampling::known(&asked.sampling, loaded.tokenizer.n_vocab())?;
    let (n, of_prompts) = (asked.n, asked.scores_prompts());
    let (texts, follow) = (std::mem::take(&mut asked.prompts), std::mem::take(&mut asked.follow));
    let (of, answers, echo) = (loaded.clone(), texts.len() * n, asked.echo);
    let work = move |cancel: &Cancel| {
        let one = |text: Text| {
            let said = if let Text::Words(words) = &text { Some(words.clone()) } else { None };
            let tokens = text.tokens(&of, cancel)?;
            Ok(Echo::new(&of, said, tokens))
        };
        let prompts = texts.into_iter().map(one).collect::<Result<Vec<_>, Refusal>>()?;
        Ok((prompts, follow.constraints(&of, None, answers, cancel)?))
    };
    let (prompts, constraints) = service.prepare(&loaded, &asked.caller, work).await?;
    let unheld = not_held(&constraints);
    let mut constraints = constraints.into_iter();
    let (to, pieces) = mpsc::channel(IN_FLIGHT);
    for i in 0..answers {
        let mut tokens = prompts.get(i / n).map(|p| p.tokens.clone()).unwrap_or_default();
        if tokens.len() > loaded.context {
            return Err(Refusal::too_long(tokens.len(), None, loaded.context).of("prompt"));
        }
        // The model answers with the prompt itself, behind its first token.
        let forced = match of_prompts {
            Some(_) if !tokens.is_empty() => tokens.split_off(1),
            _ => vec![],
        };
        let wanted = Wanted {
            max_tokens: asked.max_tokens,
            sampling: sampling::nth(&asked.sampling, i % n),
            stop: asked.stop.clone(),
            ignore_eos: asked.ignore_eos,
            logprobs: asked.logprobs.max(of_prompts),
            constraint: constraints.next(),
            lookup: loaded.lookup,
            forced,
            more_ends: asked.ends.clone(),
            ..Wanted::of(tokens, Reading::Plain, asked.caller.clone())
        };
        start(&loaded, wanted, i, to.clone())?;
    }
    drop(to);
    let manner = Manner {
        head: Head::new("cmpl", loaded.name()),
        n,
        told: asked.told,
        logprobs: asked.logprobs,
        prompt_logprobs: asked.prompt_logprobs,
        echo,
        prompts,
    };
    if asked.stream {
        return Ok(noted(
            streamed::events(pieces, stream_format(loaded, manner, answers)),
            &unheld,
        ));
    }
    let all = collect(pieces, answers).await?;
    Ok(noted(json_response(&document(&loaded, &manner, all)), &unheld))
}
