//! Answers in Anthropic's format: a message of content blocks, whole or as a stream of events.

use crate::generation::{AnswerEvent, AnswerStatistics, CompleteAnswer, FinishReason};
use crate::openai::random_id;
use crate::refusal::{Dialect, Refusal};
use crate::streamed::Format;
use kjit_model::chat::{Part, ToolCall};
use serde_json::{Map, Value, json};

/// The event that is sent during silence, so that proxies do not close the connection.
pub const PING: &str = "event: ping\ndata: {\"type\": \"ping\"}\n\n";

/// Values of a request that its answer repeats or depends on.
pub struct AnswerContext {
    id: String,
    model: String,
    /// The stop strings of the request.
    stop: Vec<String>,
    /// Whether the answer may have several calls.
    parallel: bool,
}

impl AnswerContext {
    /// The values for a new message.
    pub fn new(model: &str, stop: Vec<String>, parallel: bool) -> AnswerContext {
        AnswerContext { id: random_id("msg"), model: model.to_owned(), stop, parallel }
    }

    /// The stop reason, and the stop string that ended the message.
    fn end(&self, done: &AnswerStatistics) -> (&'static str, Option<&str>) {
        let text = done.stop_text.and_then(|i| self.stop.get(i)).map(String::as_str);
        match (done.ended, text) {
            (FinishReason::Calls, _) => ("tool_use", None),
            (FinishReason::Length, _) => ("max_tokens", None),
            (FinishReason::Stop, Some(text)) => ("stop_sequence", Some(text)),
            (FinishReason::Stop, None) => ("end_turn", None),
        }
    }

    fn message(
        &self,
        content: Vec<Value>,
        end: (Option<&str>, Option<&str>),
        usage: Value,
    ) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": end.0, "stop_sequence": end.1, "usage": usage
        })
    }
}

/// Token counts. Cached tokens of the prompt have their own count.
fn usage(prompt: usize, cached: usize, answer: usize) -> Value {
    json!({
        "input_tokens": prompt.saturating_sub(cached), "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached, "output_tokens": answer
    })
}

/// The whole message as one document.
pub fn document(manner: &AnswerContext, answer: CompleteAnswer) -> Value {
    let mut content = vec![];
    if !answer.reasoning.is_empty() {
        content.push(json!({ "type": "thinking", "thinking": answer.reasoning, "signature": "" }));
    }
    if !answer.content.is_empty() {
        content.push(json!({ "type": "text", "text": answer.content }));
    }
    // A call that was cut off has no complete JSON object and is omitted.
    let call = |call: &ToolCall| {
        let input: Map<String, Value> = serde_json::from_str(&call.arguments).ok()?;
        let id = random_id("toolu");
        Some(json!({ "type": "tool_use", "id": id, "name": call.name, "input": input }))
    };
    let most = if manner.parallel { usize::MAX } else { 1 };
    content.extend(answer.calls.iter().filter_map(call).take(most));
    let (end, tokens) = match &answer.done {
        None => ((None, None), usage(0, 0, 0)),
        Some(done) => {
            let (reason, text) = manner.end(done);
            let tokens = usage(done.prompt_tokens, done.cached_tokens, done.generated_tokens);
            ((Some(reason), text), tokens)
        }
    };
    manner.message(content, end, tokens)
}

/// Writes pieces as server-sent events.
pub fn stream_format(manner: AnswerContext) -> Format {
    let mut stream = Stream { manner, begun: false, blocks: 0, open: None, calls: 0, ended: false };
    Box::new(move |piece| match piece {
        Some(_) | None if stream.ended => String::new(),
        Some((_, AnswerEvent::Started { prompt_tokens, cached_tokens })) => {
            stream.start(prompt_tokens, cached_tokens)
        }
        Some((_, AnswerEvent::Prompt(_))) => String::new(),
        Some((_, AnswerEvent::Said { parts, .. })) => {
            parts.into_iter().map(|part| stream.part(part)).collect()
        }
        Some((_, AnswerEvent::Done(done))) => stream.end(&done),
        Some((_, AnswerEvent::Failed(refusal))) => stream.failed(&refusal),
        None => {
            stream.failed(&Refusal::internal("the stream ended before the answer was complete"))
        }
    })
}

fn event(document: &Value) -> String {
    let kind = document.get("type").and_then(Value::as_str).unwrap_or_default();
    format!("event: {kind}\ndata: {document}\n\n")
}

/// The kind of the content block that is open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Text,
    Thinking,
}

/// State of a streamed message.
struct Stream {
    manner: AnswerContext,
    begun: bool,
    /// Number of blocks begun so far.
    blocks: usize,
    open: Option<Open>,
    calls: usize,
    ended: bool,
}

impl Stream {
    fn start(&mut self, prompt: usize, cached: usize) -> String {
        if std::mem::replace(&mut self.begun, true) {
            return String::new();
        }
        let message = self.manner.message(vec![], (None, None), usage(prompt, cached, 0));
        event(&json!({ "type": "message_start", "message": message }))
    }

    fn part(&mut self, part: Part) -> String {
        let begun = self.start(0, 0);
        begun
            + &match part {
                Part::Content(text) => self.text(Open::Text, text),
                Part::Reasoning(text) => self.text(Open::Thinking, text),
                Part::Call(_) if self.calls > 0 && !self.manner.parallel => String::new(),
                Part::Call(call) => self.call(&call),
            }
    }

    fn text(&mut self, kind: Open, text: String) -> String {
        let mut events = String::new();
        if self.open != Some(kind) {
            events = self.close();
            self.open = Some(kind);
            events += &self.begin(&match kind {
                Open::Text => json!({ "type": "text", "text": "" }),
                Open::Thinking => json!({ "type": "thinking", "thinking": "", "signature": "" }),
            });
        }
        let delta = match kind {
            Open::Text => json!({ "type": "text_delta", "text": text }),
            Open::Thinking => json!({ "type": "thinking_delta", "thinking": text }),
        };
        events + &self.delta(&delta)
    }

    /// Writes a call, which arrives complete, as its own block.
    fn call(&mut self, call: &ToolCall) -> String {
        self.calls += 1;
        let (id, name) = (random_id("toolu"), &call.name);
        let mut events = self.close();
        events += &self.begin(&json!({ "type": "tool_use", "id": id, "name": name, "input": {} }));
        let arguments = json!({ "type": "input_json_delta", "partial_json": call.arguments });
        events += &self.delta(&arguments);
        events + &self.stop()
    }

    fn begin(&mut self, block: &Value) -> String {
        self.blocks += 1;
        event(&json!({
            "type": "content_block_start", "index": self.blocks - 1, "content_block": block
        }))
    }

    fn delta(&self, delta: &Value) -> String {
        let index = self.blocks.saturating_sub(1);
        event(&json!({ "type": "content_block_delta", "index": index, "delta": delta }))
    }

    fn stop(&self) -> String {
        let index = self.blocks.saturating_sub(1);
        event(&json!({ "type": "content_block_stop", "index": index }))
    }

    /// Ends the open block.
    fn close(&mut self) -> String {
        match self.open.take() {
            None => String::new(),
            Some(Open::Text) => self.stop(),
            // Clients send a thinking block back with its signature. The field is required, so it
            // is sent empty.
            Some(Open::Thinking) => {
                self.delta(&json!({ "type": "signature_delta", "signature": "" })) + &self.stop()
            }
        }
    }

    fn end(&mut self, done: &AnswerStatistics) -> String {
        let mut events = self.start(done.prompt_tokens, done.cached_tokens);
        events += &self.close();
        let (reason, text) = self.manner.end(done);
        events += &event(&json!({
            "type": "message_delta", "delta": { "stop_reason": reason, "stop_sequence": text },
            "usage": usage(done.prompt_tokens, done.cached_tokens, done.generated_tokens)
        }));
        self.ended = true;
        events + &event(&json!({ "type": "message_stop" }))
    }

    fn failed(&mut self, refusal: &Refusal) -> String {
        self.ended = true;
        event(&refusal.json(Dialect::Anthropic))
    }
}
