//! `POST /v1/completions`: continues a text.

use super::{
    END, Head, IGNORED, REFUSED, event, finish_reason, form, json_response, place, scores, stream,
    usage,
};
use crate::caller::Caller;
use crate::constrain::{Follow, not_held, noted};
use crate::fields::Fields;
use crate::generation::{Done, Piece, Reading, Wanted, collect, start};
use crate::loaded::Loaded;
use crate::models::Lease;
use crate::refusal::{Dialect, Refusal};
use crate::sampling;
use crate::service::Service;
use crate::streamed::{self, Format, IN_FLIGHT};
use axum::response::Response;
use hyper::body::Bytes;
use kjit_model::cancel::Cancel;
use kjit_model::chat::Part;
use kjit_model::tokenizer::{EncodeOptions, Limit, Tokenizer};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Maximum prompts of a request.
const MOST_PROMPTS: usize = 64;
/// Maximum tokens of an answer if the request does not say: OpenAI's default.
const USUAL_TOKENS: usize = 16;

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

struct Manner {
    head: Head,
    n: usize,
    include_usage: bool,
    scores: bool,
    /// The prompts' texts, which are put before the answers (`echo`).
    echo: Vec<String>,
}

/// Answers a completion request.
pub async fn answer(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let mut f = Fields::parse(&body)?;
    f.ignore(&IGNORED);
    f.refuse(&REFUSED)?;
    f.refuse(&[("suffix", "is not supported: give the model's own words for it in the prompt")])?;
    let (at, caller) = (place(&mut f, &service)?, caller.salted(&mut f)?);
    let prompts = texts(&mut f, "prompt", MOST_PROMPTS)?;
    let (stream, include_usage) = stream(&mut f)?;
    let n = f.count("n", 1..=16)?.unwrap_or(1);
    if f.count("best_of", 1..=16)?.is_some_and(|best| best != n) {
        return Err(f.wrong("best_of", "is supported where it equals n"));
    }
    let max_tokens = f.count("max_tokens", 1..=i64::MAX)?.unwrap_or(USUAL_TOKENS);
    let options = sampling::openai(&mut f)?;
    let stop = sampling::stop(&mut f)?;
    let ignore_eos = f.flag("ignore_eos")?.unwrap_or(false);
    let logprobs = f.count("logprobs", 0..=20)?;
    let echo = f.flag("echo")?.unwrap_or(false);
    if echo && logprobs.is_some() {
        return Err(f.wrong(
            "echo",
            "cannot be given together with logprobs: those of the prompt are not computed",
        ));
    }
    let follow = Follow { form: form::wanted(&mut f)?, ..Follow::default() };
    f.done()?;
    let answers = prompts.len() * n;
    if answers > MOST_PROMPTS {
        return Err(Refusal::field(
            "n",
            format_args!("{answers} answers are asked for, {MOST_PROMPTS} at most are given"),
        ));
    }
    let loaded = service.model(at, None).await?;
    sampling::known(&options, loaded.tokenizer.n_vocab())?;
    let (prompts, echo, constraints) = {
        let of = loaded.clone();
        let work = move |cancel: &Cancel| {
            let prompts = prompts.into_iter().map(|text| text.tokens(&of, cancel));
            let prompts: Vec<Vec<u32>> = prompts.collect::<Result<_, _>>()?;
            let shown = |ids: &Vec<u32>| {
                String::from_utf8_lossy(&of.tokenizer.decode(ids).unwrap_or_default()).into_owned()
            };
            let echo = if echo { prompts.iter().map(shown).collect() } else { vec![] };
            let constraints = follow.constraints(&of, None, answers, cancel)?;
            Ok((prompts, echo, constraints))
        };
        service.prepare(&loaded, &caller, work).await?
    };
    let unheld = not_held(&constraints);
    let mut constraints = constraints.into_iter();
    let (to, pieces) = mpsc::channel(IN_FLIGHT);
    for i in 0..answers {
        let wanted = Wanted {
            tokens: prompts.get(i / n).cloned().unwrap_or_default(),
            max_tokens: Some(max_tokens),
            sampling: sampling::nth(&options, i % n),
            stop: stop.clone(),
            ignore_eos,
            logprobs,
            constraint: constraints.next(),
            reading: Reading::Plain,
            caller: caller.clone(),
            lookup: loaded.lookup,
        };
        start(&loaded, wanted, i, to.clone())?;
    }
    drop(to);
    let head = Head::new("cmpl", loaded.name());
    let manner = Manner { head, n, include_usage, scores: logprobs.is_some(), echo };
    if stream {
        return Ok(noted(streamed::events(pieces, format(loaded, manner, answers)), &unheld));
    }
    let mut choices = vec![];
    let mut done = vec![];
    for (i, answer) in collect(pieces, answers).await?.into_iter().enumerate() {
        let text =
            format!("{}{}", manner.echo.get(i / n).map_or("", String::as_str), answer.content);
        let mut at = scores::At::default();
        let scores = manner.scores.then(|| scores::completion(&loaded, &answer.scores, &mut at));
        choices.push(choice(i, &text, scores, answer.done.as_ref().map(finish_reason)));
        done.extend(answer.done);
    }
    let mut document = manner.head.document("text_completion", choices.into());
    if let Some(map) = document.as_object_mut() {
        map.insert("usage".to_owned(), usage(done.iter().step_by(n), &done));
    }
    Ok(noted(json_response(&document), &unheld))
}

fn choice(i: usize, text: &str, scores: Option<Value>, reason: Option<&str>) -> Value {
    json!({ "index": i, "text": text, "logprobs": scores, "finish_reason": reason })
}

fn format(loaded: Lease, manner: Manner, answers: usize) -> Format {
    let mut begun = vec![false; answers];
    let mut offsets = vec![scores::At::default(); answers];
    let mut done: Vec<Option<Done>> = vec![None; answers];
    let mut failed = false;
    Box::new(move |piece| {
        let Some((i, piece)) = piece else {
            return if failed { String::new() } else { end(&manner, &done) };
        };
        if failed {
            return String::new();
        }
        let first = begun.get_mut(i).is_some_and(|begun| !std::mem::replace(begun, true));
        let before = manner.echo.get(i / manner.n).filter(|_| first).map_or("", String::as_str);
        let written = |text: &str, scores: Option<Value>, reason: Option<&str>| {
            let choices = vec![choice(i, text, scores, reason)];
            let mut document = manner.head.document("text_completion", choices.into());
            if let Some(map) = document.as_object_mut().filter(|_| manner.include_usage) {
                map.insert("usage".to_owned(), Value::Null);
            }
            event(&document)
        };
        match piece {
            Piece::Said { parts, scores } => {
                let text: String = parts
                    .into_iter()
                    .map(|p| if let Part::Content(text) = p { text } else { String::new() })
                    .collect();
                let some = manner.scores && !scores.is_empty();
                let offset = offsets.get_mut(i).filter(|_| some);
                let scores = offset.map(|offset| scores::completion(&loaded, &scores, offset));
                written(&format!("{before}{text}"), scores, None)
            }
            Piece::Done(d) => {
                let text = written(before, None, Some(finish_reason(&d)));
                if let Some(done) = done.get_mut(i) {
                    *done = Some(d);
                }
                text
            }
            Piece::Failed(refusal) => {
                failed = true;
                event(&refusal.json(Dialect::OpenAi))
            }
        }
    })
}

fn end(manner: &Manner, done: &[Option<Done>]) -> String {
    let Some(done) = done.iter().copied().collect::<Option<Vec<Done>>>() else {
        return event(&Refusal::internal("an answer's end was lost").json(Dialect::OpenAi));
    };
    let mut text = String::new();
    if manner.include_usage {
        let mut document = manner.head.document("text_completion", Value::Array(vec![]));
        if let Some(map) = document.as_object_mut() {
            map.insert("usage".to_owned(), usage(done.iter().step_by(manner.n), &done));
        }
        text = event(&document);
    }
    text + END
}
