//! `POST /api/chat` and `POST /api/generate`.

use super::answer::{AnswerContext, Kind, document, nothing, stream_format};
use super::keep::keep_alive;
use crate::caller::Caller;
use crate::choice::Choice;
use crate::constrain::{ContentFormat, OutputConstraints, not_held, noted};
use crate::conversation::{Called, Conversation, Turn, tools};
use crate::conversation_request::{self, ConversationRequest, StartedAnswers};
use crate::fields::Fields;
use crate::generation::{GenerationRequest, OutputParsing, collect, start};
use crate::images::list;
use crate::models::{KeepAlive, Lease};
use crate::openai::completions::Text;
use crate::openai::{json_response, place};
use crate::options::Served;
use crate::refusal::Refusal;
use crate::sampling::{self, Ends, Sampling};
use crate::service::Service;
use crate::streamed::{self, IN_FLIGHT};
use crate::tool::Tool;
use axum::response::Response;
use hyper::body::Bytes;
use kjit_model::cancel::Cancel;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Fields of a request, without the prompt.
struct RequestFields {
    stream: bool,
    max_tokens: Option<usize>,
    sampling: Sampling,
    stop: Vec<String>,
    form: Option<(ContentFormat, &'static str)>,
    /// Index of the model, and how long it stays loaded.
    at: usize,
    keep: Option<KeepAlive>,
    variables: Map<String, Value>,
}

/// `/api/chat`
pub async fn chat(service: Arc<Service>, body: Bytes, caller: Caller) -> Result<Response, Refusal> {
    let mut f = Fields::parse(&body)?;
    let messages = f.list("messages")?.unwrap_or_default();
    let empty = messages.is_empty();
    let turns = messages
        .into_iter()
        .enumerate()
        .map(|(i, message)| turn(message, i))
        .collect::<Result<_, _>>()?;
    let (offered, written) = tools(&mut f, &body)?.unwrap_or_default();
    let (asked, caller) = (read(&mut f, &service)?, caller.of_request(&mut f)?);
    f.done()?;
    if empty {
        return load(&service, &asked, Kind::Chat).await;
    }
    let loaded = service.model(asked.at, asked.keep).await?;
    let written = Some(written).filter(|written| !written.is_empty());
    let variables = asked.variables.clone();
    let conversation = Conversation { turns, tools: written, variables, ..Conversation::default() };
    converse(&service, loaded, asked, conversation, offered, Kind::Chat, caller).await
}

/// `/api/generate`
pub async fn generate(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let mut f = Fields::parse(&body)?;
    f.refuse_more_than_empty(&[
        ("template", "is not supported: the server uses the model's template, or --template"),
        ("context", "is not supported: use /api/chat, which reuses the history as a cached prefix"),
    ])?;
    let images = list(&mut f, "images")?;
    let text = f.text("prompt")?.unwrap_or_default();
    let suffix = f.text("suffix")?.filter(|suffix| !suffix.is_empty());
    let system = f.text("system")?;
    let raw = f.flag("raw")?.unwrap_or(false);
    let (asked, caller) = (read(&mut f, &service)?, caller.of_request(&mut f)?);
    f.done()?;
    if text.is_empty() {
        return load(&service, &asked, Kind::Generate).await;
    }
    let loaded = service.model(asked.at, asked.keep).await?;
    if raw || suffix.is_some() || loaded.template.is_err() {
        if let Some(image) = images.first() {
            return Err(image.wrong("needs the model's chat template, without raw and suffix"));
        }
        if system.is_some() {
            return Err(Refusal::field(
                "system",
                "needs the model's chat template, which raw and suffix do not use",
            ));
        }
        let (worker, follow) = (
            loaded.clone(),
            OutputConstraints { form: asked.form.clone(), ..OutputConstraints::default() },
        );
        let (text, sampling) = (Text::around(text, suffix), asked.sampling);
        let prepare = move |cancel: &Cancel| {
            let tokens = text.tokens(&worker, cancel)?;
            let constraints = follow.constraints(&worker, None, 1, cancel)?;
            Ok((tokens, constraints, sampling.resolved(&worker)))
        };
        let (tokens, constraints, sampling) = service.prepare(&loaded, &caller, prepare).await?;
        let unheld = not_held(&constraints);
        let wanted = GenerationRequest {
            max_tokens: asked.max_tokens,
            sampling,
            stop: asked.stop,
            constraint: constraints.into_iter().next(),
            lookup: loaded.lookup,
            ..GenerationRequest::of(tokens, OutputParsing::Plain, caller)
        };
        let (to, pieces) = mpsc::channel(IN_FLIGHT);
        start(&loaded, wanted, 0, to)?;
        let begun = StartedAnswers { pieces, unheld, prompt: vec![] };
        return answered(&loaded, Kind::Generate, asked.stream, begun).await;
    }
    let turn =
        |role: &str, content: String| Turn { role: role.to_owned(), content, ..Turn::default() };
    let user = Turn { images, ..turn("user", text) }.with_images_before();
    let turns = system.into_iter().map(|text| turn("system", text)).chain([user]).collect();
    let variables = asked.variables.clone();
    let conversation = Conversation { turns, variables, ..Conversation::default() };
    converse(&service, loaded, asked, conversation, vec![], Kind::Generate, caller).await
}

async fn converse(
    service: &Service,
    loaded: Lease,
    asked: RequestFields,
    conversation: Conversation,
    offered: Vec<Tool>,
    kind: Kind,
    caller: Caller,
) -> Result<Response, Refusal> {
    let ask = ConversationRequest {
        conversation,
        follow: Choice::Auto.follow(offered, asked.form, true)?,
        n: 1,
        max_tokens: asked.max_tokens,
        sampling: asked.sampling,
        stop: asked.stop,
        ends: Ends::default(),
        ignore_eos: false,
        logprobs: None,
        thinking: None,
        ids: false,
        caller,
    };
    let begun = conversation_request::ask(service, &loaded, ask).await?;
    answered(&loaded, kind, asked.stream, begun).await
}

/// Sends the answer, in pieces or as one document.
async fn answered(
    loaded: &Lease,
    kind: Kind,
    stream: bool,
    StartedAnswers { pieces, unheld, .. }: StartedAnswers,
) -> Result<Response, Refusal> {
    let manner = AnswerContext { kind, model: loaded.name().to_owned() };
    if stream {
        return Ok(noted(streamed::lines(pieces, stream_format(manner)), &unheld));
    }
    let whole = collect(pieces, 1).await?.pop().unwrap_or_default();
    Ok(noted(json_response(&document(&manner, whole)), &unheld))
}

/// Answers a request without a prompt: it loads the model, or unloads it if `keep_alive` is 0, as
/// in Ollama.
async fn load(service: &Service, asked: &RequestFields, kind: Kind) -> Result<Response, Refusal> {
    let name = service.options.models.get(asked.at).map_or("", Served::name).to_owned();
    let unload = asked.keep == Some(KeepAlive::For(Duration::ZERO));
    match unload {
        true if service.options.keep_alive => service.models.release(service.parts(asked.at).0),
        true => {}
        false => _ = service.model(asked.at, asked.keep).await?,
    }
    Ok(json_response(&nothing(
        &AnswerContext { kind, model: name },
        if unload { "unload" } else { "load" },
    )))
}

/// Fields of both routes.
fn read(f: &mut Fields, service: &Service) -> Result<RequestFields, Refusal> {
    let (at, keep) = (place(f, service)?, keep_alive(f)?);
    f.refuse(&[
        ("logprobs", "are given by /v1/chat/completions"),
        ("top_logprobs", "are given by /v1/chat/completions"),
    ])?;
    let stream = f.flag("stream")?.unwrap_or(true);
    let mut variables = Map::new();
    match f.take("think") {
        None => {}
        Some(think @ Value::Bool(_)) => _ = variables.insert("enable_thinking".to_owned(), think),
        Some(Value::String(effort)) if ["low", "medium", "high"].contains(&effort.as_str()) => {
            variables.insert("reasoning_effort".to_owned(), effort.into());
        }
        Some(_) => return Err(f.wrong("think", "give true, false, low, medium or high")),
    }
    let form = match f.take("format") {
        None => None,
        Some(Value::String(word)) if word.is_empty() => None,
        Some(Value::String(word)) if word == "json" => {
            Some((ContentFormat::json(json!({ "type": "object" })), "format"))
        }
        Some(schema @ Value::Object(_)) => Some((ContentFormat::json(schema), "format")),
        Some(_) => return Err(f.wrong("format", "give \"json\" or a JSON schema")),
    };
    let mut options = f.object("options")?.map_or_else(|| Fields::of(json!({}), "options"), Ok)?;
    // These options are fixed when the model is opened.
    options.ignore(&[
        "num_ctx",
        "num_batch",
        "num_gpu",
        "main_gpu",
        "use_mmap",
        "use_mlock",
        "num_thread",
        "num_keep",
        "numa",
        "low_vram",
    ]);
    let max_tokens =
        options.whole("num_predict", -2..=i64::MAX)?.and_then(|n| usize::try_from(n).ok());
    let sampling = sampling::ollama(&mut options)?;
    let stop = sampling::stop(&mut options)?;
    options.done()?;
    Ok(RequestFields { stream, max_tokens, sampling, stop, form, at, keep, variables })
}

fn turn(message: Value, i: usize) -> Result<Turn, Refusal> {
    let mut f = Fields::of(message, &format!("messages[{i}]"))?;
    let role = f.needed_text("role")?;
    if !["system", "user", "assistant", "tool"].contains(&role.as_str()) {
        return Err(f.wrong("role", "give system, user, assistant or tool"));
    }
    let images = list(&mut f, "images")?;
    let content = f.text("content")?.unwrap_or_default();
    let reasoning = f.text("thinking")?;
    let name = match f.text("tool_name")? {
        None => f.text("name")?,
        given => given,
    };
    let call_id = f.text("tool_call_id")?;
    let mut calls = vec![];
    for (j, call) in f.list("tool_calls")?.unwrap_or_default().into_iter().enumerate() {
        let mut call = Fields::of(call, &f.name(&format!("tool_calls[{j}]")))?;
        call.ignore(&["type", "index"]);
        let id = call.text("id")?.unwrap_or_default();
        let mut function =
            call.object("function")?.ok_or_else(|| call.wrong("function", "is missing"))?;
        function.ignore(&["index"]);
        let name = function.needed_text("name")?;
        let arguments = function.take("arguments").unwrap_or_else(|| json!({})).to_string();
        function.done()?;
        call.done()?;
        calls.push(Called { id, name, arguments });
    }
    f.done()?;
    let turn = Turn { role, content, images, reasoning, calls, call_id, name };
    Ok(turn.with_images_before())
}
