//! Reads requests of `/v1/responses`.

use super::super::{IGNORED, REFUSED, effort, place};
use super::items::{input, turns};
use super::response_store::Client;
use crate::caller::Caller;
use crate::choice::Choice;
use crate::constrain::ContentFormat;
use crate::conversation::Conversation;
use crate::conversation_request::ConversationRequest;
use crate::fields::Fields;
use crate::reasoning_limit;
use crate::refusal::Refusal;
use crate::sampling::{self, Ends};
use crate::service::Service;
use crate::tool_list::ToolList;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Fields that are accepted without effect.
const NO_EFFECT: [&str; 4] = ["max_tool_calls", "include", "stream_options", "client_metadata"];

/// Fields that are refused by name.
const UNSUPPORTED: [(&str, &str); 3] = [
    ("conversation", "conversations are not stored: use previous_response_id"),
    ("prompt", "stored prompts are not supported: use input"),
    ("context_management", "is not supported"),
];

/// Fields that the response repeats.
const REPEATED_FIELDS: [&str; 11] = [
    "instructions",
    "max_output_tokens",
    "metadata",
    "previous_response_id",
    "reasoning",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
    "user",
];

/// A request for a response.
pub struct ResponsesRequest {
    pub ask: ConversationRequest,
    /// The model's index.
    pub at: usize,
    pub stream: bool,
    /// Whether the answer may have several calls.
    pub parallel: bool,
    /// Fields that the response repeats.
    pub echoed: Map<String, Value>,
    /// The conversation's items; `None` if the response is not stored.
    pub items: Option<Vec<Arc<Value>>>,
    /// Number of items at the end of `items` that came with this request.
    pub new: usize,
    pub client: Client,
}

pub fn read(service: &Service, body: &[u8], caller: Caller) -> Result<ResponsesRequest, Refusal> {
    let mut f = Fields::parse(body)?;
    let (mut echoed, client) = (echoed(&f), caller.client.clone());
    let store = f.flag("store")?.unwrap_or(true);
    echoed.insert("store".to_owned(), store.into());
    f.ignore(&IGNORED);
    f.ignore(&NO_EFFECT);
    f.refuse(&REFUSED)?;
    f.refuse(&UNSUPPORTED)?;
    if f.flag("background")?.unwrap_or(false) {
        return Err(f.wrong("background", "is not supported: give stream"));
    }
    if f.text("truncation")?.is_some_and(|word| word != "disabled") {
        return Err(f.wrong("truncation", "is not supported: set it to \"disabled\""));
    }
    if f.count("top_logprobs", 0..=20)?.is_some_and(|n| n > 0) {
        return Err(f.wrong("top_logprobs", "are given by /v1/chat/completions"));
    }
    let (at, caller) = (place(&mut f, service)?, caller.of_request(&mut f)?);
    let mut items = match f.text("previous_response_id")? {
        None => vec![],
        Some(id) => match service.kept.get(&client, &id) {
            Some(entry) => entry.items,
            None => {
                let why = "no such response is stored: responses with store are stored for an hour";
                return Err(f.wrong("previous_response_id", why));
            }
        },
    };
    let before = items.len();
    items.extend(input(&mut f, &service.kept, &client)?);
    let turns = turns(f.text("instructions")?, &items, before)?;
    if items.is_empty() {
        return Err(f.wrong("input", "give a text, or at least one item"));
    }
    let stream = f.flag("stream")?.unwrap_or(false);
    let max_tokens = f.count("max_output_tokens", 1..=i64::MAX)?;
    let sampling = sampling::openai(&mut f)?;
    let stop = sampling::stop(&mut f)?;
    let thinking = reasoning_limit::budget(&mut f)?;
    let (form, variables) = (text(&mut f)?, reasoning(&mut f)?);
    let offer = tools(&mut f)?;
    let choice = tool_choice(&mut f, &offer)?;
    let parallel = f.flag("parallel_tool_calls")?.unwrap_or(true);
    echoed.insert("parallel_tool_calls".to_owned(), parallel.into());
    f.done()?;
    let (offered, tools) = offer.into_parts();
    let tools = tools.filter(|_| choice != Choice::None);
    let ask = ConversationRequest {
        conversation: Conversation { turns, tools, variables, ..Conversation::default() },
        follow: choice.follow(offered, form, parallel)?,
        n: 1,
        max_tokens,
        sampling,
        stop,
        ends: Ends::default(),
        ignore_eos: false,
        logprobs: None,
        thinking,
        ids: false,
        caller,
    };
    let new = items.len() - before;
    let items = store.then_some(items);
    Ok(ResponsesRequest { ask, at, stream, parallel, echoed, items, new, client })
}

fn echoed(f: &Fields) -> Map<String, Value> {
    let usual = |name: &str| match name {
        "metadata" => json!({}),
        "text" => json!({ "format": { "type": "text" } }),
        "tool_choice" => json!("auto"),
        "tools" => json!([]),
        "temperature" | "top_p" => json!(1.0),
        _ => Value::Null,
    };
    let one = |name: &str| (name.to_owned(), f.peek(name).cloned().unwrap_or_else(|| usual(name)));
    REPEATED_FIELDS.iter().map(|name| one(name)).collect()
}

/// Reads `text.format`.
fn text(f: &mut Fields) -> Result<Option<(ContentFormat, &'static str)>, Refusal> {
    let Some(mut text) = f.object("text")? else { return Ok(None) };
    text.ignore(&["verbosity"]);
    let format = text.object("format")?;
    text.done()?;
    let Some(mut format) = format else { return Ok(None) };
    let form = match format.needed_text("type")?.as_str() {
        "text" => None,
        "json_object" => Some((ContentFormat::json(json!({ "type": "object" })), "text.format")),
        "json_schema" => {
            format.ignore(&["name", "description"]);
            let exact = format.flag("strict")?.unwrap_or(false);
            match format.take("schema") {
                Some(schema @ Value::Object(_)) => {
                    Some((ContentFormat::Json { schema, exact }, "text.format.schema"))
                }
                Some(_) => return Err(format.wrong("schema", "give a JSON schema: an object")),
                None => return Err(format.wrong("schema", "is missing")),
            }
        }
        _ => return Err(format.wrong("type", "give text, json_object or json_schema")),
    };
    format.done()?;
    Ok(form)
}

/// Reads `reasoning` into template variables.
fn reasoning(f: &mut Fields) -> Result<Map<String, Value>, Refusal> {
    let mut variables = Map::new();
    if let Some(mut reasoning) = f.object("reasoning")? {
        effort(&mut reasoning, "effort", &mut variables)?;
        // Reasoning is always shown in full.
        reasoning.ignore(&["summary", "generate_summary", "context"]);
        reasoning.done()?;
    }
    Ok(variables)
}

fn tools(f: &mut Fields) -> Result<ToolList, Refusal> {
    let mut offer = ToolList::default();
    for (i, value) in f.list("tools")?.unwrap_or_default().into_iter().enumerate() {
        let mut tool = Fields::of(value, &format!("tools[{i}]"))?;
        match tool.needed_text("type")?.as_str() {
            "function" => function(&mut offer, tool)?,
            // Codex groups tools. A call names the group, too.
            "namespace" => {
                tool.needed_text("name")?;
                tool.ignore(&["description"]);
                for (k, value) in tool.list("tools")?.unwrap_or_default().into_iter().enumerate() {
                    let mut inner = Fields::of(value, &tool.name(&format!("tools[{k}]")))?;
                    match inner.needed_text("type")?.as_str() {
                        "function" => function(&mut offer, inner)?,
                        kind => return Err(hosted(&inner, kind)),
                    }
                }
                tool.done()?;
            }
            // A search that may not leave the service finds nothing here, so the model is not told
            // of it.
            "web_search" if tool.peek("external_web_access") == Some(&Value::Bool(false)) => {}
            kind => return Err(hosted(&tool, kind)),
        }
    }
    Ok(offer)
}

fn function(offer: &mut ToolList, mut tool: Fields) -> Result<(), Refusal> {
    tool.ignore(&["defer_loading"]);
    offer.add(&mut tool, "parameters")?;
    tool.done()
}

fn hosted(tool: &Fields, kind: &str) -> Refusal {
    tool.wrong("type", format_args!("'{kind}' is a hosted tool: give function"))
}

fn tool_choice(f: &mut Fields, offer: &ToolList) -> Result<Choice, Refusal> {
    match f.take("tool_choice") {
        None => Ok(Choice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Ok(Choice::Auto),
            "none" => Ok(Choice::None),
            "required" if !offer.is_empty() => Ok(Choice::Required),
            "required" => Err(f.wrong("tool_choice", "there are no tools to call")),
            _ => Err(f.wrong("tool_choice", "give none, auto, required, or a tool")),
        },
        Some(choice) => {
            let mut choice = Fields::of(choice, "tool_choice")?;
            let kind = choice.needed_text("type")?;
            if kind != "function" {
                let why = format_args!("'{kind}' is not known here: give function");
                return Err(choice.wrong("type", why));
            }
            let name = choice.needed_text("name")?;
            if !offer.has(&name) {
                return Err(choice.wrong("name", "no such tool is among the tools"));
            }
            choice.done()?;
            Ok(Choice::Tool(name))
        }
    }
}
