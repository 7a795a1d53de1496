//! `POST /completion`: text completion in llama.cpp's dialect.

use crate::caller::Caller;
use crate::constrain::{ContentFormat, OutputConstraints, not_held, noted};
use crate::fields::Fields;
use crate::generation::{
    AnswerEvent, AnswerStatistics, CompleteAnswer, FinishReason, GenerationRequest, OutputParsing,
    collect, start,
};
use crate::openai::completions::{Text, texts};
use crate::openai::form::gbnf;
use crate::openai::{event, json_response, place};
use crate::refusal::{Dialect, Refusal};
use crate::sampling;
use crate::service::Service;
use crate::streamed::{self, Format, IN_FLIGHT};
use axum::response::Response;
use hyper::body::Bytes;
use kjit_model::cancel::Cancel;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Fields that are refused by name, because they would change the answer.
const REFUSED: [(&str, &str); 1] =
    [("image_data", "this route reads text only: send images to /v1/chat/completions")];

/// Values of a request that its answer repeats.
struct CompletionContext {
    model: String,
    stop: Vec<String>,
    /// Whether the answer includes token ids.
    ids: bool,
}

/// `POST /completion`.
///
/// # Errors
/// The request is refused, or the answer fails.
pub async fn answer(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let mut f = Fields::parse(&body)?;
    let (at, caller) = (place(&mut f, &service)?, caller.of_request(&mut f)?);
    let text = texts(&mut f, "prompt", 1)?.pop().unwrap_or(Text::Ids(vec![]));
    go(service, f, at, caller, text).await
}

/// Continues a text, with the other fields of the request.
///
/// # Errors
/// The request is refused, or the answer fails.
pub async fn go(
    service: Arc<Service>,
    mut f: Fields,
    at: usize,
    caller: Caller,
    text: Text,
) -> Result<Response, Refusal> {
    f.refuse(&REFUSED)?;
    let stream = f.flag("stream")?.unwrap_or(false);
    let max_tokens = match f.whole("n_predict", -1..=i64::MAX)? {
        None => f.whole("max_tokens", -1..=i64::MAX)?,
        given => given,
    };
    let max_tokens = max_tokens.and_then(|n| usize::try_from(n).ok());
    let sampling = sampling::llama(&mut f)?;
    let stop = sampling::stop(&mut f)?;
    let ignore_eos = f.flag("ignore_eos")?.unwrap_or(false);
    let ids = f.flag("return_tokens")?.unwrap_or(false);
    let form = match f.take("json_schema") {
        None => None,
        Some(schema @ Value::Object(_)) => Some((ContentFormat::json(schema), "json_schema")),
        Some(_) => return Err(f.wrong("json_schema", "give a JSON schema: an object")),
    };
    let form = match (form, gbnf(&mut f)?) {
        (Some(_), Some(_)) => {
            return Err(f.wrong("grammar", "cannot be given together with json_schema"));
        }
        (form, grammar) => form.or(grammar),
    };
    let (model, _) = service.parts(at);
    let served = service.options.models.get(model);
    let served = served.ok_or_else(|| Refusal::internal("no such model is served"))?;
    let adapters = super::adapters_of(&mut f, served)?;
    f.done()?;
    if max_tokens == Some(0) {
        return Err(Refusal::field("n_predict", "give -1, or a whole number from 1 up"));
    }
    let loaded = service.model(at, None).await?;
    sampling::known(&sampling, loaded.tokenizer.n_vocab())?;
    let (of, follow) = (loaded.clone(), OutputConstraints { form, ..OutputConstraints::default() });
    let work = move |cancel: &Cancel| {
        let tokens = text.tokens(&of, cancel)?;
        let constraints = follow.constraints(&of, None, 1, cancel)?;
        Ok((tokens, constraints, sampling.resolved(&of)))
    };
    let (tokens, constraints, sampling) = service.prepare(&loaded, &caller, work).await?;
    let unheld = not_held(&constraints);
    let wanted = GenerationRequest {
        max_tokens,
        sampling,
        stop: stop.clone(),
        ignore_eos,
        constraint: constraints.into_iter().next(),
        lookup: loaded.lookup,
        ids,
        adapters,
        ..GenerationRequest::of(tokens, OutputParsing::Plain, caller)
    };
    let (to, pieces) = mpsc::channel(IN_FLIGHT);
    start(&loaded, wanted, 0, to)?;
    let manner = CompletionContext { model: loaded.name().to_owned(), stop, ids };
    if stream {
        return Ok(noted(streamed::events(pieces, stream_format(manner)), &unheld));
    }
    let whole = collect(pieces, 1).await?.pop().unwrap_or_default();
    let Some(done) = whole.done else {
        return Err(Refusal::internal("the stream ended before the answer was complete"));
    };
    Ok(noted(json_response(&last(&manner, whole.content, &whole.ids, &done)), &unheld))
}

fn last(
    manner: &CompletionContext,
    content: String,
    ids: &[u32],
    done: &AnswerStatistics,
) -> Value {
    let word = done.stop_text.and_then(|i| manner.stop.get(i));
    let kind = match (done.ended, word) {
        (FinishReason::Length, _) => "limit",
        (_, Some(_)) => "word",
        (FinishReason::Stop | FinishReason::Calls, None) => "eos",
    };
    let (computed, ms) = (done.prompt_tokens - done.cached_tokens, 1e3);
    let (prompt, answer) = (done.first_token, done.total.saturating_sub(done.first_token));
    let ids = if manner.ids { ids } else { &[] };
    json!({
        "index": 0, "content": content, "tokens": ids, "stop": true, "model": manner.model, "stop_type": kind,
        "stopping_word": word.map_or("", String::as_str), "truncated": false,
        "tokens_predicted": done.generated_tokens, "tokens_evaluated": done.prompt_tokens,
        "tokens_cached": done.cached_tokens,
        "timings": {
            "cache_n": done.cached_tokens,
            "prompt_n": computed, "prompt_ms": prompt.as_secs_f64() * ms,
            "predicted_n": done.generated_tokens, "predicted_ms": answer.as_secs_f64() * ms
        }
    })
}

fn stream_format(manner: CompletionContext) -> Format {
    let mut ended = false;
    Box::new(move |piece| match piece {
        _ if ended => String::new(),
        Some((_, AnswerEvent::Started { .. } | AnswerEvent::Prompt(_))) => String::new(),
        Some((_, AnswerEvent::Said { parts, scores, ids, .. })) => {
            let mut whole = CompleteAnswer::default();
            whole.add(parts, scores);
            let content = whole.content;
            event(&json!({ "index": 0, "content": content, "tokens": ids, "stop": false }))
        }
        Some((_, AnswerEvent::Done(done))) => {
            ended = true;
            event(&last(&manner, String::new(), &[], &done))
        }
        Some((_, AnswerEvent::Failed(refusal))) => {
            ended = true;
            event(&refusal.json(Dialect::OpenAi))
        }
        None => event(
            &Refusal::internal("the stream ended before the answer was complete")
                .json(Dialect::OpenAi),
        ),
    })
}
