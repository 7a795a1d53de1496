//! `POST /generate`: text completion in SGLang's dialect, which its router sends.

use crate::caller::Caller;
use crate::constrain::{ContentFormat, OutputConstraints, not_held, noted};
use crate::fields::Fields;
use crate::generation::{
    AnswerEvent, AnswerStatistics, CompleteAnswer, FinishReason, GenerationRequest, OutputParsing,
    collect, start,
};
use crate::openai::completions::texts;
use crate::openai::{END, event, json_response, place, random_id};
use crate::refusal::{Dialect, Refusal};
use crate::sampling;
use crate::service::Service;
use crate::streamed::{self, Format, IN_FLIGHT};
use axum::response::Response;
use hyper::body::Bytes;
use kjit_model::cancel::Cancel;
use kjit_model::constrain::lark_of_gbnf;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Maximum tokens of an answer if the request has no limit, as in SGLang.
const USUAL_TOKENS: usize = 128;
/// Maximum bytes of an expression or grammar.
const MOST_BYTES: usize = 64 << 10;
/// Fields that are refused by name, because they would change the answer.
const REFUSED: [(&str, &str); 4] = [
    ("input_embeds", "give text or input_ids"),
    ("image_data", "this route reads text only: send images to /v1/chat/completions"),
    ("audio_data", "this route reads text only"),
    ("lora_path", "choose an adapter by the model's name, MODEL:ADAPTER"),
];
/// Fields without effect on the text of an answer.
const IGNORED: [&str; 8] = [
    "log_metrics",
    "rid",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "data_parallel_rank",
    "text_in_logprobs",
    "no_logs",
];

/// `POST /generate`.
///
/// # Errors
/// The request is refused, or the answer fails.
pub async fn generate(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let mut f = Fields::parse(&body)?;
    let (at, caller) = (place(&mut f, &service)?, caller.of_request(&mut f)?);
    let id = f.peek("rid").and_then(Value::as_str).map(str::to_owned);
    f.refuse(&REFUSED)?;
    if f.flag("return_logprob")?.unwrap_or(false) || f.flag("return_hidden_states")? == Some(true) {
        return Err(Refusal::bad("'return_logprob': use logprobs of /v1/completions"));
    }
    f.ignore(&["logprob_start_len", "top_logprobs_num", "token_ids_logprob"]);
    f.ignore(&IGNORED);
    let named = if f.peek("input_ids").is_some() { "input_ids" } else { "text" };
    let prompt = texts(&mut f, named, 1)?.pop();
    let prompt = prompt.ok_or_else(|| Refusal::field(named, "is missing"))?;
    let stream = f.flag("stream")?.unwrap_or(false);
    let mut options = match f.object("sampling_params")? {
        Some(options) => options,
        None => Fields::parse(b"{}")?,
    };
    f.done()?;
    let max_tokens = options.count("max_new_tokens", 1..=i64::MAX)?.unwrap_or(USUAL_TOKENS);
    options.count("n", 1..=1)?;
    let form = form(&mut options)?;
    let stop = sampling::stop(&mut options)?;
    let ignore_eos = options.flag("ignore_eos")?.unwrap_or(false);
    let mut ends = sampling::ends(&mut options)?;
    if let Some(least) = options.count("min_new_tokens", 0..=i64::MAX)? {
        ends.least = least;
    }
    options.ignore(&["no_stop_trim", "stream_interval"]);
    let seed = options.whole("sampling_seed", i64::MIN..=i64::MAX)?;
    let mut sampling = sampling::openai(&mut options)?;
    if let Some(seed) = seed {
        sampling.options.seed = seed.cast_unsigned();
    }
    options.done()?;
    let follow = OutputConstraints { form, ..OutputConstraints::default() };
    ends.beside(&follow)?;
    let loaded = service.model(at, None).await?;
    sampling::known(&sampling, loaded.tokenizer.n_vocab())?;
    let of = loaded.clone();
    let work = move |cancel: &Cancel| {
        let tokens = prompt.tokens(&of, cancel)?;
        let constraints = follow.constraints(&of, None, 1, cancel)?;
        Ok((tokens, constraints, sampling.resolved(&of)))
    };
    let (tokens, constraints, sampling) = service.prepare(&loaded, &caller, work).await?;
    let unheld = not_held(&constraints);
    let wanted = GenerationRequest {
        max_tokens: Some(max_tokens),
        sampling,
        stop,
        ignore_eos,
        more_ends: ends,
        constraint: constraints.into_iter().next(),
        lookup: loaded.lookup,
        ..GenerationRequest::of(tokens, OutputParsing::Plain, caller)
    };
    let (to, pieces) = mpsc::channel(IN_FLIGHT);
    start(&loaded, wanted, 0, to)?;
    let id = id.unwrap_or_else(|| random_id("gen"));
    if stream {
        return Ok(noted(streamed::events(pieces, format(id)), &unheld));
    }
    let whole = collect(pieces, 1).await?.pop().unwrap_or_default();
    let done = whole.done.ok_or_else(cut_short)?;
    let document = json!({ "text": whole.content, "meta_info": ended(&id, &done) });
    Ok(noted(json_response(&document), &unheld))
}

/// The form of the answer: a schema as text, a regular expression, or GBNF (`ebnf`).
fn form(f: &mut Fields) -> Result<Option<(ContentFormat, &'static str)>, Refusal> {
    let mut all = vec![];
    if let Some(text) = f.text("json_schema")? {
        let schema = serde_json::from_str(&text).ok().filter(Value::is_object);
        let schema = schema.ok_or_else(|| f.wrong("json_schema", "give the text of an object"))?;
        all.push((ContentFormat::json(schema), "json_schema"));
    }
    for (name, read) in [("regex", false), ("ebnf", true)] {
        let Some(text) = f.text(name)? else { continue };
        if text.is_empty() || text.len() > MOST_BYTES {
            return Err(f.wrong(name, format_args!("give 1 to {MOST_BYTES} bytes")));
        }
        all.push(match read {
            false => (ContentFormat::Regex(text), name),
            true => {
                let lark = lark_of_gbnf(&text).map_err(|why| f.wrong(name, why))?;
                (ContentFormat::Lark(lark), name)
            }
        });
    }
    match all.as_slice() {
        [(_, first), (_, second), ..] => {
            Err(f.wrong(second, format_args!("cannot be given together with {first}")))
        }
        _ => Ok(all.pop()),
    }
}

fn cut_short() -> Refusal {
    Refusal::internal("the stream ended before the answer was complete")
}

fn meta(
    id: &str,
    reason: &Value,
    (prompt, cached): (usize, usize),
    tokens: usize,
    total: Option<Duration>,
) -> Value {
    let mut meta = json!({
        "id": id, "finish_reason": reason, "prompt_tokens": prompt, "cached_tokens": cached,
        "completion_tokens": tokens, "weight_version": "default"
    });
    if let (Some(total), Some(meta)) = (total, meta.as_object_mut()) {
        meta.insert("e2e_latency".to_owned(), total.as_secs_f64().into());
    }
    meta
}

fn ended(id: &str, done: &AnswerStatistics) -> Value {
    let reason = match done.ended {
        FinishReason::Length => json!({ "type": "length", "length": done.generated_tokens }),
        FinishReason::Stop | FinishReason::Calls => json!({ "type": "stop" }),
    };
    let prompt = (done.prompt_tokens, done.cached_tokens);
    meta(id, &reason, prompt, done.generated_tokens, Some(done.total))
}

/// Events of a stream: each has the whole text so far.
fn format(id: String) -> Format {
    let (mut text, mut prompt, mut over) = (String::new(), (0, 0), false);
    Box::new(move |piece| match piece {
        _ if over => String::new(),
        Some((_, AnswerEvent::Started { prompt_tokens, cached_tokens })) => {
            prompt = (prompt_tokens, cached_tokens);
            String::new()
        }
        Some((_, AnswerEvent::Prompt(_))) => String::new(),
        Some((_, AnswerEvent::Said { parts, scores, generated_tokens, .. })) => {
            let mut whole = CompleteAnswer::default();
            whole.add(parts, scores);
            text += &whole.content;
            let meta = meta(&id, &Value::Null, prompt, generated_tokens, None);
            event(&json!({ "text": text, "meta_info": meta }))
        }
        Some((_, AnswerEvent::Done(done))) => {
            over = true;
            event(&json!({ "text": text, "meta_info": ended(&id, &done) })) + END
        }
        Some((_, AnswerEvent::Failed(refusal))) => {
            over = true;
            event(&refusal.json(Dialect::OpenAi))
        }
        None => event(&cut_short().json(Dialect::OpenAi)),
    })
}
