//! Answers in Ollama's format: one JSON document, or one per line.

use super::now;
use crate::generation::{AnswerEvent, AnswerStatistics, CompleteAnswer, FinishReason};
use crate::refusal::{Dialect, Refusal};
use crate::streamed::Format;
use kjit_model::chat::{Part, ToolCall};
use serde_json::{Map, Value, json};

/// The route of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Answers are chat messages.
    Chat,
    /// Answers are text.
    Generate,
}

/// Values of a request that its answer depends on.
pub struct AnswerContext {
    pub kind: Kind,
    pub model: String,
}

/// The complete answer as one document.
pub fn document(manner: &AnswerContext, answer: CompleteAnswer) -> Value {
    let mut document = line(manner, answer.content, answer.reasoning, &answer.calls);
    if let Some(done) = answer.done {
        ended(&mut document, &done);
    }
    Value::Object(document)
}

/// The answer to a request without a prompt.
pub fn nothing(manner: &AnswerContext, reason: &str) -> Value {
    let mut document = line(manner, String::new(), String::new(), &[]);
    document.insert("done".to_owned(), true.into());
    document.insert("done_reason".to_owned(), reason.into());
    Value::Object(document)
}

/// Writes pieces as lines.
pub fn stream_format(manner: AnswerContext) -> Format {
    let mut ended_well = false;
    let mut failed = false;
    Box::new(move |piece| match piece {
        None if ended_well || failed => String::new(),
        None => {
            format!(
                "{}\n",
                Refusal::internal("the stream ended before the answer was complete")
                    .json(Dialect::Ollama)
            )
        }
        Some((_, AnswerEvent::Started { .. } | AnswerEvent::Prompt(_))) => String::new(),
        Some((_, AnswerEvent::Said { parts, .. })) => {
            let mut whole = CompleteAnswer::default();
            parts.into_iter().for_each(|part: Part| whole.add(vec![part], vec![]));
            match whole.content.is_empty() && whole.reasoning.is_empty() && whole.calls.is_empty() {
                true => String::new(),
                false => {
                    let document = line(&manner, whole.content, whole.reasoning, &whole.calls);
                    format!("{}\n", Value::Object(document))
                }
            }
        }
        Some((_, AnswerEvent::Done(done))) => {
            ended_well = true;
            let mut document = line(&manner, String::new(), String::new(), &[]);
            ended(&mut document, &done);
            format!("{}\n", Value::Object(document))
        }
        Some((_, AnswerEvent::Failed(refusal))) => {
            failed = true;
            format!("{}\n", refusal.json(Dialect::Ollama))
        }
    })
}

fn line(
    manner: &AnswerContext,
    content: String,
    thinking: String,
    calls: &[ToolCall],
) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("model".to_owned(), manner.model.as_str().into());
    map.insert("created_at".to_owned(), now().into());
    map.insert("done".to_owned(), false.into());
    match manner.kind {
        Kind::Generate => {
            map.insert("response".to_owned(), content.into());
            if !thinking.is_empty() {
                map.insert("thinking".to_owned(), thinking.into());
            }
        }
        Kind::Chat => {
            let mut message = Map::new();
            message.insert("role".to_owned(), "assistant".into());
            message.insert("content".to_owned(), content.into());
            if !thinking.is_empty() {
                message.insert("thinking".to_owned(), thinking.into());
            }
            // Arguments are an object in Ollama's API. A call that was cut off has no valid object
            // and is omitted.
            let call = |call: &ToolCall| {
                let arguments: Map<String, Value> = serde_json::from_str(&call.arguments).ok()?;
                Some(json!({ "function": { "name": call.name, "arguments": arguments } }))
            };
            let calls: Vec<Value> = calls.iter().filter_map(call).collect();
            if !calls.is_empty() {
                message.insert("tool_calls".to_owned(), calls.into());
            }
            map.insert("message".to_owned(), message.into());
        }
    }
    map
}

fn ended(map: &mut Map<String, Value>, done: &AnswerStatistics) {
    let reason = match done.ended {
        FinishReason::Stop | FinishReason::Calls => "stop",
        FinishReason::Length => "length",
    };
    let nanoseconds = |d: std::time::Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    map.insert("done".to_owned(), true.into());
    map.insert("done_reason".to_owned(), reason.into());
    map.insert("total_duration".to_owned(), nanoseconds(done.total).into());
    map.insert("load_duration".to_owned(), 0.into());
    map.insert("prompt_eval_count".to_owned(), done.prompt_tokens.into());
    map.insert("prompt_eval_duration".to_owned(), nanoseconds(done.first_token).into());
    map.insert("eval_count".to_owned(), done.generated_tokens.into());
    map.insert(
        "eval_duration".to_owned(),
        nanoseconds(done.total.saturating_sub(done.first_token)).into(),
    );
}
