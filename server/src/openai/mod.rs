//! OpenAI's API.

pub mod chat;
mod chat_answer;
pub mod completions;
mod completions_answer;
pub mod embeddings;
pub mod form;
pub mod lm_studio;
pub mod responses;
mod scores;

use crate::clock::unix_time;
use crate::fields::Fields;
use crate::generation::{AnswerStatistics, FinishReason};
use crate::models::ModelStatus;
use crate::options::Served;
use crate::refusal::Refusal;
use crate::service::Service;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use std::hash::{BuildHasher, RandomState};

/// Fields that are accepted without effect. They concern accounts, storage, billing and caches of
/// OpenAI's service.
pub const IGNORED: [&str; 7] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];

/// How a request of this dialect chooses an adapter.
const NAME_ADAPTER: &str = "choose an adapter by the model's name, MODEL:ADAPTER";

/// Fields that are refused by name: ignoring them would change the answer.
pub const REFUSED: [(&str, &str); 5] = [
    ("lora", NAME_ADAPTER),
    ("adapter", NAME_ADAPTER),
    ("prediction", "is not supported"),
    ("audio", "this model generates only text"),
    ("web_search_options", "web search is not supported"),
];

/// The first fields of all documents of an answer.
#[derive(Debug, Clone)]
pub struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    /// The first fields of an answer of this model.
    pub fn new(kind: &str, model: &str) -> Head {
        Head { id: random_id(kind), created: unix_time(), model: model.to_owned() }
    }

    /// A document with this object type and these choices.
    pub fn document(&self, object: &str, choices: Value) -> Value {
        json!({ "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices })
    }
}

/// `kind-` and 24 random digits.
pub fn random_id(kind: &str) -> String {
    let word = |n: u32| RandomState::new().hash_one(n);
    format!("{kind}-{:016x}{:08x}", word(0), word(1) >> 32)
}

/// An event of a stream.
pub fn event(document: &Value) -> String {
    format!("data: {document}\n\n")
}

/// The end of a stream.
pub const END: &str = "data: [DONE]\n\n";

/// A document as an answer.
pub fn json_response(document: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], document.to_string()).into_response()
}

/// The reason why an answer ended, as OpenAI's `finish_reason`.
pub fn finish_reason(done: &AnswerStatistics) -> &'static str {
    match done.ended {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Calls => "tool_calls",
    }
}

/// Usage of several answers. The tokens of each prompt count once.
pub fn usage<'a>(
    prompts: impl IntoIterator<Item = &'a AnswerStatistics>,
    answers: impl IntoIterator<Item = &'a AnswerStatistics>,
) -> Value {
    let (mut prompt, mut cached) = (0, 0);
    for done in prompts {
        (prompt, cached) = (prompt + done.prompt_tokens, cached + done.cached_tokens);
    }
    let completion: usize = answers.into_iter().map(|done| done.generated_tokens).sum();
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": cached }
    })
}

/// Reads the reasoning effort from the field of this name, as variables of the template.
pub fn effort(
    f: &mut Fields,
    name: &str,
    variables: &mut Map<String, Value>,
) -> Result<(), Refusal> {
    let Some(effort) = f.text(name)? else { return Ok(()) };
    let (variable, value) = match effort.as_str() {
        "none" => ("enable_thinking", false.into()),
        "minimal" | "low" | "medium" | "high" => ("reasoning_effort", effort.into()),
        "xhigh" => ("reasoning_effort", "high".into()),
        _ => return Err(f.wrong(name, "give none, minimal, low, medium, high or xhigh")),
    };
    variables.insert(variable.to_owned(), value);
    Ok(())
}
/// Index of the requested model. A request for reproducible scores is refused if the model was not
/// opened with `--reproducible`.
pub fn place(fields: &mut Fields, service: &Service) -> Result<usize, Refusal> {
    let name = fields.text("model")?;
    let at = service.place(name.as_deref())?;
    let wanted = fields.flag("reproducible")?.unwrap_or(false);
    let (model, _) = service.parts(at);
    match wanted
        && service.options.models.get(model).is_some_and(|served| !served.open.reproducible)
    {
        true => {
            Err(fields.wrong("reproducible", "needs a server that was started with --reproducible"))
        }
        false => Ok(at),
    }
}

/// Where a stream reports its usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageReporting {
    /// In no event.
    Never,
    /// In one last event.
    AtTheEnd,
    /// In each event, and in one last event.
    Always,
}

/// Token counts of an answer so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunningUsage {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens of the answer.
    pub generated: usize,
}

impl UsageReporting {
    /// Whether a last event with the usage is sent.
    pub fn at_the_end(self) -> bool {
        self != UsageReporting::Never
    }

    /// Adds the usage to an event.
    pub fn tell(self, event: &mut Value, so_far: RunningUsage) {
        let RunningUsage { prompt, generated } = so_far;
        let usage = match self {
            UsageReporting::Never => return,
            UsageReporting::AtTheEnd => Value::Null,
            UsageReporting::Always => json!({
                "prompt_tokens": prompt, "completion_tokens": generated,
                "total_tokens": prompt + generated
            }),
        };
        if let Some(map) = event.as_object_mut() {
            map.insert("usage".to_owned(), usage);
        }
    }
}
/// Reads `stream`, and where the stream reports its usage.
pub fn stream(fields: &mut Fields) -> Result<(bool, UsageReporting), Refusal> {
    let stream = fields.flag("stream")?.unwrap_or(false);
    let mut usage = UsageReporting::Never;
    if let Some(mut options) = fields.object("stream_options")? {
        if !stream {
            return Err(fields.wrong("stream_options", "is for streams: set stream too"));
        }
        if options.flag("include_usage")?.unwrap_or(false) {
            usage = UsageReporting::AtTheEnd;
        }
        if options.flag("continuous_usage_stats")?.unwrap_or(false) {
            usage = UsageReporting::Always;
        }
        options.ignore(&["include_obfuscation"]);
        options.done()?;
    }
    Ok((stream, usage))
}

/// `GET /v1/models`: the list of models.
pub fn models(service: &Service) -> Value {
    let of = |(served, seen): (&Served, ModelStatus)| -> Vec<Value> {
        let adapters = served.adapters.iter().map(|one| format!("{}:{}", served.name(), one.name));
        let stored = served.store.iter().flat_map(|store| store.all());
        let stored =
            stored.flat_map(|(_, one)| [format!("{}:{}", served.name(), one.name), one.name]);
        let names = served.names.iter().cloned().chain(adapters).chain(stored);
        names.map(|name| model_card(service, &name, &seen)).collect()
    };
    let all: Vec<Value> = service.all().flat_map(of).collect();
    json!({ "object": "list", "data": all })
}

/// `GET /v1/models/{name}`.
pub fn model_card(service: &Service, name: &str, seen: &ModelStatus) -> Value {
    let context = seen.card.as_ref().map(|card| card.context);
    json!({
        "id": name, "object": "model", "created": service.started_unix, "owned_by": "kjit", "max_model_len": context,
        "loaded": seen.loaded.is_some()
    })
}
