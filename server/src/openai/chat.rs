//! `POST /v1/chat/completions`: the request.

use super::chat_answer::{ChatContext, document, stream_format};
use super::{Head, IGNORED, REFUSED, UsageReporting, effort, form, json_response, place, stream};
use crate::caller::Caller;
use crate::choice::Choice;
use crate::constrain::noted;
use crate::conversation::{Called, Conversation, Turn, ending, tools};
use crate::conversation_request::{ConversationRequest, StartedAnswers, ask};
use crate::fields::Fields;
use crate::generation::collect;
use crate::images::{MessageImage, image_url};
use crate::models::Lease;
use crate::reasoning_limit;
use crate::refusal::Refusal;
use crate::sampling;
use crate::service::Service;
use crate::streamed;
use crate::tool::Tool;
use axum::response::Response;
use hyper::body::Bytes;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Fields of a chat request.
struct Chat {
    ask: ConversationRequest,
    stream: bool,
    told: UsageReporting,
    parallel: bool,
}

/// Answers a chat request.
pub async fn answer(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let (loaded, asked) = read(&service, &body, caller).await?;
    let n = asked.ask.n;
    let scores = asked.ask.logprobs.is_some();
    let ids = asked.ask.ids;
    let StartedAnswers { pieces, unheld, prompt } = ask(&service, &loaded, asked.ask).await?;
    let manner = ChatContext {
        head: Head::new("chatcmpl", loaded.name()),
        scores,
        parallel: asked.parallel,
        told: asked.told,
        ids: ids.then_some(prompt),
    };
    if asked.stream {
        return Ok(noted(streamed::events(pieces, stream_format(loaded, manner, n)), &unheld));
    }
    let answers = collect(pieces, n).await?;
    Ok(noted(json_response(&document(&loaded, &manner, answers)), &unheld))
}

async fn read(service: &Service, body: &[u8], caller: Caller) -> Result<(Lease, Chat), Refusal> {
    let mut f = Fields::parse(body)?;
    f.ignore(&IGNORED);
    f.refuse(&REFUSED)?;
    f.refuse(&[
        ("functions", "is an old form: give tools"),
        ("function_call", "is an old form: give tool_choice"),
    ])?;
    let (at, caller) = (place(&mut f, service)?, caller.of_request(&mut f)?);
    let turns = turns(&mut f)?;
    let ending = ending(&mut f, &turns)?;
    let thinking = reasoning_limit::budget(&mut f)?;
    let ids = f.flag("return_token_ids")?.unwrap_or(false);
    let (stream, told) = stream(&mut f)?;
    let n = f.count("n", 1..=16)?.unwrap_or(1);
    let max_tokens = match sampling::most(&mut f, "max_completion_tokens")?.flatten() {
        None => sampling::most(&mut f, "max_tokens")?.flatten(),
        given => {
            f.ignore(&["max_tokens"]);
            given
        }
    };
    let sampling = sampling::openai(&mut f)?;
    let stop = sampling::stop(&mut f)?;
    let ends = sampling::ends(&mut f)?;
    let ignore_eos = f.flag("ignore_eos")?.unwrap_or(false);
    let logprobs = logprobs(&mut f)?;
    if let Some(kinds) = f.list("modalities")?
        && kinds != [json!("text")]
    {
        return Err(f.wrong("modalities", "this model generates only text"));
    }
    let variables = variables(&mut f)?;
    let offered = tools(&mut f, body)?;
    let parallel = f.flag("parallel_tool_calls")?.unwrap_or(true);
    let (offered, tools) = offered.unwrap_or_default();
    let choice = tool_choice(&mut f, &offered)?;
    // Tools that must not be called are not in the prompt.
    let tools = Some(tools).filter(|tools| !tools.is_empty() && choice != Choice::None);
    let form = form::wanted(&mut f)?;
    f.done()?;
    let follow = choice.follow(offered, form, parallel)?;
    ends.beside(&follow)?;
    // All checks that do not need the model run before it is loaded.
    let loaded = service.model(at, None).await?;
    let conversation = Conversation { turns, tools, variables, ending };
    let ask = ConversationRequest {
        conversation,
        follow,
        n,
        max_tokens,
        sampling,
        stop,
        ends,
        ignore_eos,
        logprobs,
        thinking,
        ids,
        caller,
    };
    Ok((loaded, Chat { ask, stream, told, parallel }))
}

fn logprobs(f: &mut Fields) -> Result<Option<usize>, Refusal> {
    let wanted = f.flag("logprobs")?.unwrap_or(false);
    match f.count("top_logprobs", 0..=20)? {
        Some(_) if !wanted => Err(f.wrong("top_logprobs", "needs logprobs: set logprobs too")),
        top => Ok(wanted.then_some(top.unwrap_or(0))),
    }
}

/// Variables of the template: `chat_template_kwargs` and `reasoning_effort`.
pub fn variables(f: &mut Fields) -> Result<Map<String, Value>, Refusal> {
    let mut variables = match f.take("chat_template_kwargs") {
        None => Map::new(),
        Some(Value::Object(map)) => map,
        Some(_) => return Err(f.wrong("chat_template_kwargs", "give an object")),
    };
    effort(f, "reasoning_effort", &mut variables)?;
    Ok(variables)
}

fn tool_choice(f: &mut Fields, tools: &[Tool]) -> Result<Choice, Refusal> {
    let Some(choice) = f.take("tool_choice") else { return Ok(Choice::Auto) };
    let named = match &choice {
        Value::String(word) => match word.as_str() {
            "auto" => return Ok(Choice::Auto),
            "none" => return Ok(Choice::None),
            "required" if !tools.is_empty() => return Ok(Choice::Required),
            "required" => return Err(f.wrong("tool_choice", "there are no tools to call")),
            _ => return Err(f.wrong("tool_choice", "give none, auto, required, or a tool")),
        },
        Value::Object(_) => {
            let mut choice = Fields::of(choice, "tool_choice")?;
            choice.text("type")?;
            let mut function =
                choice.object("function")?.ok_or_else(|| choice.wrong("function", "is missing"))?;
            let name = function.needed_text("name")?;
            function.done()?;
            choice.done()?;
            name
        }
        _ => return Err(f.wrong("tool_choice", "give none, auto, required, or a tool")),
    };
    match tools.iter().any(|tool| tool.name == named) {
        true => Ok(Choice::Tool(named)),
        false => Err(f.wrong("tool_choice", "no such tool is among the tools")),
    }
}

pub fn turns(f: &mut Fields) -> Result<Vec<Turn>, Refusal> {
    let messages = f.list("messages")?.unwrap_or_default();
    if messages.is_empty() {
        return Err(f.wrong("messages", "give at least one"));
    }
    messages.into_iter().enumerate().map(|(i, message)| turn(message, i)).collect()
}

fn turn(message: Value, i: usize) -> Result<Turn, Refusal> {
    let mut f = Fields::of(message, &format!("messages[{i}]"))?;
    let role = f.needed_text("role")?;
    if !["system", "developer", "user", "assistant", "tool"].contains(&role.as_str()) {
        return Err(f.wrong("role", "give system, developer, user, assistant or tool"));
    }
    let (content, images) = content(&mut f)?;
    let mut calls = vec![];
    for (j, call) in f.list("tool_calls")?.unwrap_or_default().into_iter().enumerate() {
        let mut call = Fields::of(call, &f.name(&format!("tool_calls[{j}]")))?;
        call.text("type")?;
        call.ignore(&["index"]);
        let id = call.text("id")?.unwrap_or_default();
        let mut function =
            call.object("function")?.ok_or_else(|| call.wrong("function", "is missing"))?;
        let name = function.needed_text("name")?;
        let arguments = match function.take("arguments") {
            None => "{}".to_owned(),
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
        };
        function.done()?;
        call.done()?;
        calls.push(Called { id, name, arguments });
    }
    let reasoning = match f.text("reasoning_content")? {
        None => f.text("reasoning")?,
        given => given,
    };
    let (call_id, name) = (f.text("tool_call_id")?, f.text("name")?);
    f.ignore(&["refusal", "annotations", "audio", "function_call"]);
    f.done()?;
    Ok(Turn { role, content, images, reasoning, calls, call_id, name })
}

/// Reads content: a string, or parts that are texts and images. The text contains markers of
/// images.
fn content(f: &mut Fields) -> Result<(String, Vec<MessageImage>), Refusal> {
    let mut images = vec![];
    match f.take("content") {
        None => Ok((String::new(), images)),
        Some(Value::String(text)) => Ok((text, images)),
        Some(Value::Array(parts)) => {
            let mut text = String::new();
            for (j, part) in parts.into_iter().enumerate() {
                let mut part = Fields::of(part, &f.name(&format!("content[{j}]")))?;
                match part.needed_text("type")?.as_str() {
                    "text" => text += &part.needed_text("text")?,
                    "refusal" => text += &part.needed_text("refusal")?,
                    "image_url" => {
                        let image = image_url(&mut part)?;
                        text += &image.marker;
                        images.push(image);
                    }
                    _ => return Err(part.wrong("type", "give text or image_url")),
                }
                // A hint for caches. kjit finds cached prefixes without it.
                part.ignore(&["cache_control"]);
                part.done()?;
            }
            Ok((text, images))
        }
        Some(_) => Err(f.wrong("content", "give a string, or a list of parts")),
    }
}
