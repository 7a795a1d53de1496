//! Answers in the format of OpenAI's Responses API: a document of output items, and the events that
//! build it.

use super::response_store::{Client, Entry};
use crate::clock::unix_time;
use crate::generation::{AnswerEvent, AnswerStatistics, FinishReason};
use crate::models::Lease;
use crate::openai::random_id;
use crate::refusal::Refusal;
use crate::service::Service;
use kjit_model::chat::{Part, ToolCall};
use kjit_model::tokenizer::EncodeOptions;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Values of a request that its response repeats or depends on.
pub struct ResponseContext {
    pub id: String,
    created: u64,
    /// Fields of the request that the response repeats.
    echoed: Map<String, Value>,
    /// Items of the conversation so far; `None` if the response is not stored.
    items: Option<Vec<Arc<Value>>>,
    /// Number of items at the end of `items` that came with this request.
    new: usize,
    pub client: Client,
    /// Whether the response may have several calls.
    parallel: bool,
}

impl ResponseContext {
    /// The values for a new response.
    pub fn new(
        echoed: Map<String, Value>,
        items: Option<Vec<Arc<Value>>>,
        new: usize,
        client: Client,
        parallel: bool,
    ) -> ResponseContext {
        let (id, created) = (random_id("resp"), unix_time());
        ResponseContext { id, created, echoed, items, new, client, parallel }
    }
}

/// The state of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    InProgress,
    Completed,
    Incomplete,
    Cancelled,
    Failed,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Status::InProgress => "in_progress",
            Status::Completed => "completed",
            Status::Incomplete => "incomplete",
            Status::Cancelled => "cancelled",
            Status::Failed => "failed",
        }
    }
}

/// The text item that is being written.
struct Open {
    id: String,
    /// Whether it is a reasoning item, not a message.
    thought: bool,
    text: String,
}

/// A response that is built from the pieces of an answer.
pub struct Building {
    service: Arc<Service>,
    loaded: Lease,
    manner: ResponseContext,
    status: Status,
    begun: bool,
    events: u64,
    output: Vec<Value>,
    open: Option<Open>,
    calls: usize,
    usage: Value,
    error: Value,
}

impl Building {
    /// A response without output.
    pub fn new(service: Arc<Service>, loaded: Lease, manner: ResponseContext) -> Building {
        Building {
            service,
            loaded,
            manner,
            status: Status::InProgress,
            begun: false,
            events: 0,
            output: vec![],
            open: None,
            calls: 0,
            usage: Value::Null,
            error: Value::Null,
        }
    }

    /// Adds a piece and returns its events. `None` is the end of the pieces.
    pub fn piece(&mut self, piece: Option<(usize, AnswerEvent)>) -> String {
        if self.status != Status::InProgress {
            return String::new();
        }
        let begun = self.start();
        begun
            + &match piece {
                Some((_, AnswerEvent::Started { .. } | AnswerEvent::Prompt(_))) => String::new(),
                Some((_, AnswerEvent::Said { parts, .. })) => {
                    parts.into_iter().map(|part| self.part(part)).collect()
                }
                Some((_, AnswerEvent::Done(done))) => self.done(&done),
                Some((_, AnswerEvent::Failed(refusal))) => self.failed(&refusal),
                // If the response is cancelled, the pieces stop before `AnswerStatistics`.
                None => self.ended(Status::Cancelled),
            }
    }

    /// The document of the response in its current state.
    pub fn document(&self) -> Value {
        let manner = &self.manner;
        let why = match self.status {
            Status::Incomplete => json!({ "reason": "max_output_tokens" }),
            _ => Value::Null,
        };
        let mut document = json!({
            "id": manner.id, "object": "response", "created_at": manner.created,
            "status": self.status.word(), "background": false, "error": self.error,
            "incomplete_details": why, "model": self.loaded.name(), "output": self.output,
            "truncation": "disabled", "usage": self.usage
        });
        if let Some(map) = document.as_object_mut() {
            map.extend(manner.echoed.clone());
        }
        document
    }

    fn event(&mut self, kind: &str, fields: Value) -> String {
        let mut document = json!({ "type": kind, "sequence_number": self.events });
        self.events += 1;
        if let (Some(map), Value::Object(fields)) = (document.as_object_mut(), fields) {
            map.extend(fields);
        }
        format!("event: {kind}\ndata: {document}\n\n")
    }

    fn start(&mut self) -> String {
        if std::mem::replace(&mut self.begun, true) {
            return String::new();
        }
        let response = json!({ "response": self.document() });
        self.event("response.created", response.clone())
            + &self.event("response.in_progress", response)
    }

    fn part(&mut self, part: Part) -> String {
        match part {
            Part::Content(text) => self.text(false, &text),
            Part::Reasoning(text) => self.text(true, &text),
            Part::Call(_) if self.calls > 0 && !self.manner.parallel => String::new(),
            Part::Call(call) => self.call(call),
        }
    }

    fn text(&mut self, thought: bool, text: &str) -> String {
        let mut events = String::new();
        if self.open.as_ref().is_none_or(|open| open.thought != thought) {
            events = self.close("completed");
            let id = random_id(if thought { "rs" } else { "msg" });
            self.open = Some(Open { id: id.clone(), thought, text: String::new() });
            let item = item(&id, thought, "in_progress", vec![]);
            let index = self.output.len();
            events += &self.event(
                "response.output_item.added",
                json!({ "output_index": index, "item": item }),
            );
            events += &self.event(
                "response.content_part.added",
                json!({ "item_id": id, "output_index": index, "content_index": 0, "part": part(thought, "") }),
            );
        }
        let Some(open) = &mut self.open else { return events };
        open.text.push_str(text);
        let mut fields = json!({
            "item_id": open.id, "output_index": self.output.len(), "content_index": 0, "delta": text
        });
        with_scores(&mut fields, thought);
        events + &self.event(&format!("response.{}.delta", word(thought)), fields)
    }

    /// Ends the open text item.
    fn close(&mut self, status: &str) -> String {
        let Some(Open { id, thought, text }) = self.open.take() else { return String::new() };
        let index = self.output.len();
        let place = || json!({ "item_id": id, "output_index": index, "content_index": 0 });
        let (mut whole, mut of_part) = (place(), place());
        if let (Some(whole), Some(of_part)) = (whole.as_object_mut(), of_part.as_object_mut()) {
            whole.insert("text".to_owned(), text.as_str().into());
            of_part.insert("part".to_owned(), part(thought, &text));
        }
        with_scores(&mut whole, thought);
        let item = item(&id, thought, status, vec![part(thought, &text)]);
        self.output.push(item.clone());
        self.event(&format!("response.{}.done", word(thought)), whole)
            + &self.event("response.content_part.done", of_part)
            + &self
                .event("response.output_item.done", json!({ "output_index": index, "item": item }))
    }

    /// The namespace of an offered tool.
    fn namespace(&self, name: &str) -> Option<Value> {
        let has = |group: &&Value| {
            let tools = group.get("tools").and_then(Value::as_array);
            tools.into_iter().flatten().any(|tool| tool.get("name").is_some_and(|n| n == name))
        };
        self.manner.echoed.get("tools")?.as_array()?.iter().find(has)?.get("name").cloned()
    }

    /// Writes a call, which arrives complete.
    fn call(&mut self, call: ToolCall) -> String {
        self.calls += 1;
        let mut events = self.close("completed");
        let (id, call_id, index) = (random_id("fc"), random_id("call"), self.output.len());
        let namespace = self.namespace(&call.name);
        let item = |arguments: &str, status: &str| {
            let mut item = json!({
                "id": id, "type": "function_call", "status": status, "call_id": call_id,
                "name": call.name, "arguments": arguments
            });
            if let (Some(item), Some(namespace)) = (item.as_object_mut(), &namespace) {
                item.insert("namespace".to_owned(), namespace.clone());
            }
            item
        };
        events += &self.event(
            "response.output_item.added",
            json!({ "output_index": index, "item": item("", "in_progress") }),
        );
        events += &self.event(
            "response.function_call_arguments.delta",
            json!({ "item_id": id, "output_index": index, "delta": call.arguments }),
        );
        events += &self.event(
            "response.function_call_arguments.done",
            json!({ "item_id": id, "output_index": index, "name": call.name, "arguments": call.arguments }),
        );
        let item = item(&call.arguments, "completed");
        self.output.push(item.clone());
        events
            + &self
                .event("response.output_item.done", json!({ "output_index": index, "item": item }))
    }

    fn done(&mut self, done: &AnswerStatistics) -> String {
        let status = match done.ended {
            FinishReason::Stop | FinishReason::Calls => Status::Completed,
            FinishReason::Length => Status::Incomplete,
        };
        let mut events = String::new();
        if self.output.is_empty() && self.open.is_none() {
            // An answer without text becomes a message with empty text.
            events = self.text(false, "");
        }
        events += &self.close(status.word());
        let (input, output) = (done.prompt_tokens, done.generated_tokens);
        self.usage = json!({
            "input_tokens": input, "input_tokens_details": { "cached_tokens": done.cached_tokens },
            "output_tokens": output,
            "output_tokens_details": { "reasoning_tokens": self.thoughts().min(output) },
            "total_tokens": input + output
        });
        events + &self.ended(status)
    }

    /// Number of tokens of the reasoning text.
    fn thoughts(&self) -> usize {
        let thoughts = self.output.iter().filter(|item| item["type"] == "reasoning");
        let text = |item: &Value| {
            item.pointer("/content/0/text").and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let tokens = |text: String| {
            self.loaded.tokenizer.encode(text.as_bytes(), EncodeOptions::PLAIN).len()
        };
        thoughts.map(text).map(tokens).sum()
    }

    fn failed(&mut self, refusal: &Refusal) -> String {
        let code =
            if refusal.status().is_server_error() { "server_error" } else { "invalid_prompt" };
        self.error = json!({ "code": code, "message": refusal.message() });
        self.ended(Status::Failed)
    }

    fn ended(&mut self, status: Status) -> String {
        let events = self.close("incomplete");
        self.status = status;
        let document = self.document();
        // A failed response is not part of a conversation, so it is not stored.
        if let Some(items) = self.manner.items.take().filter(|_| status != Status::Failed) {
            self.keep(items, &document);
        }
        let kind = match status {
            Status::Cancelled => "incomplete",
            other => other.word(),
        };
        events + &self.event(&format!("response.{kind}"), json!({ "response": document }))
    }

    fn keep(&self, mut items: Vec<Arc<Value>>, document: &Value) {
        items.extend(self.output.iter().cloned().map(Arc::new));
        let entry = Entry { document: Arc::new(document.clone()), items };
        let new = self.manner.new + self.output.len();
        self.service.kept.put(&self.manner.client, &self.manner.id, entry, new);
    }
}

/// The content type of a reasoning item or a message.
fn word(thought: bool) -> &'static str {
    if thought { "reasoning_text" } else { "output_text" }
}

fn part(thought: bool, text: &str) -> Value {
    match thought {
        true => json!({ "type": "reasoning_text", "text": text }),
        false => {
            json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
        }
    }
}

fn item(id: &str, thought: bool, status: &str, content: Vec<Value>) -> Value {
    match thought {
        true => {
            json!({ "id": id, "type": "reasoning", "status": status, "summary": [], "content": content })
        }
        false => {
            json!({ "id": id, "type": "message", "status": status, "role": "assistant", "content": content })
        }
    }
}

/// Adds an empty `logprobs` to events of a message's text, because clients expect the field.
fn with_scores(fields: &mut Value, thought: bool) {
    if let Some(map) = fields.as_object_mut().filter(|_| !thought) {
        map.insert("logprobs".to_owned(), json!([]));
    }
}
