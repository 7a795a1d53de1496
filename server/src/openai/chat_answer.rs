//! `POST /v1/chat/completions`: the answer, whole or streamed.

use super::{
    END, Head, RunningUsage, UsageReporting, event, finish_reason, random_id, scores, usage,
};
use crate::generation::{AnswerEvent, AnswerStatistics, CompleteAnswer, Score};
use crate::loaded::Loaded;
use crate::models::Lease;
use crate::refusal::{Dialect, Refusal};
use crate::streamed::Format;
use kjit_model::chat::{Part, ToolCall};
use serde_json::{Map, Value, json};

/// Values of a request that its answer depends on.
pub struct ChatContext {
    pub head: Head,
    /// Whether the answer has log probabilities.
    pub scores: bool,
    /// Whether the answer may have several calls.
    pub parallel: bool,
    /// Where a stream reports its usage.
    pub told: UsageReporting,
    /// The tokens of the prompt, if token ids were requested.
    pub ids: Option<Vec<u32>>,
}

/// The complete answer as one document.
pub fn document(loaded: &Loaded, manner: &ChatContext, answers: Vec<CompleteAnswer>) -> Value {
    let done: Vec<AnswerStatistics> = answers.iter().filter_map(|answer| answer.done).collect();
    let choice = |(i, answer): (usize, CompleteAnswer)| {
        let said = !answer.content.is_empty() || answer.calls.is_empty();
        let mut message =
            json!({ "role": "assistant", "content": said.then_some(&answer.content) });
        if let Some(map) = message.as_object_mut() {
            if !answer.reasoning.is_empty() {
                map.insert("reasoning_content".to_owned(), answer.reasoning.into());
            }
            if !answer.calls.is_empty() {
                let most = if manner.parallel { usize::MAX } else { 1 };
                let calls: Vec<Value> =
                    answer.calls.iter().take(most).map(|c| call(c, None)).collect();
                map.insert("tool_calls".to_owned(), calls.into());
            }
        }
        let mut choice = json!({
            "index": i, "message": message, "finish_reason": answer.done.as_ref().map(finish_reason),
            "logprobs": manner.scores.then(|| scores::chat(loaded, &answer.scores))
        });
        if let (true, Some(map)) = (manner.ids.is_some(), choice.as_object_mut()) {
            map.insert("token_ids".to_owned(), answer.ids.into());
        }
        choice
    };
    let choices: Vec<Value> = answers.into_iter().enumerate().map(choice).collect();
    let mut document = manner.head.document("chat.completion", choices.into());
    if let Some(map) = document.as_object_mut() {
        // The prompt counts once for all of its answers.
        map.insert("usage".to_owned(), usage(done.first(), &done));
        if let Some(prompt) = &manner.ids {
            map.insert("prompt_token_ids".to_owned(), prompt.as_slice().into());
        }
    }
    document
}

fn call(call: &ToolCall, index: Option<usize>) -> Value {
    let mut value = json!({
        "id": random_id("call"), "type": "function", "function": { "name": call.name, "arguments": call.arguments }
    });
    if let (Some(index), Some(map)) = (index, value.as_object_mut()) {
        map.insert("index".to_owned(), index.into());
    }
    value
}

/// State of a stream.
#[derive(Default, Clone)]
struct ChoiceState {
    begun: bool,
    calls: usize,
    so_far: RunningUsage,
    /// Tokens that were not sent in an event yet.
    ids: Vec<u32>,
}

/// Writes the pieces of this many answers as events.
pub fn stream_format(loaded: Lease, manner: ChatContext, n: usize) -> Format {
    let mut choices = vec![ChoiceState::default(); n];
    let mut done: Vec<AnswerStatistics> = vec![];
    let mut failed = false;
    Box::new(move |piece| {
        let Some((i, piece)) = piece else { return end(&manner, &done, failed, n) };
        let (Some(choice), false) = (choices.get_mut(i), failed) else { return String::new() };
        match piece {
            AnswerEvent::Started { prompt_tokens, .. } => {
                choice.so_far.prompt = prompt_tokens;
                String::new()
            }
            AnswerEvent::Prompt(_) => String::new(),
            AnswerEvent::Said { parts, scores, ids, generated_tokens } => {
                choice.so_far.generated = generated_tokens;
                choice.ids.extend(ids);
                said(&loaded, &manner, i, choice, parts, &scores)
            }
            AnswerEvent::Done(d) => {
                choice.so_far.generated = d.generated_tokens;
                let map = first(choice);
                let text = delta(&manner, (i, &mut *choice), map, None, Some(finish_reason(&d)));
                done.push(d);
                text
            }
            AnswerEvent::Failed(refusal) => {
                failed = true;
                event(&refusal.json(Dialect::OpenAi))
            }
        }
    })
}

/// Fields of the first delta of an answer.
fn first(choice: &mut ChoiceState) -> Map<String, Value> {
    let mut map = Map::new();
    if !std::mem::replace(&mut choice.begun, true) {
        map.insert("role".to_owned(), "assistant".into());
    }
    map
}

fn said(
    loaded: &Loaded,
    manner: &ChatContext,
    i: usize,
    choice: &mut ChoiceState,
    parts: Vec<Part>,
    scored: &[Score],
) -> String {
    let mut scores = (manner.scores && !scored.is_empty()).then(|| scores::chat(loaded, scored));
    let mut text = String::new();
    for part in parts {
        let mut map = first(choice);
        match part {
            Part::Content(text) => map.insert("content".to_owned(), text.into()),
            Part::Reasoning(text) => map.insert("reasoning_content".to_owned(), text.into()),
            Part::Call(_) if choice.calls > 0 && !manner.parallel => None,
            Part::Call(c) => {
                let index = choice.calls;
                choice.calls += 1;
                map.insert("tool_calls".to_owned(), vec![call(&c, Some(index))].into())
            }
        };
        text += &delta(manner, (i, &mut *choice), map, scores.take(), None);
    }
    if scores.is_some() {
        let map = first(choice);
        text += &delta(manner, (i, &mut *choice), map, scores, None);
    }
    text
}

fn delta(
    manner: &ChatContext,
    (i, state): (usize, &mut ChoiceState),
    delta: Map<String, Value>,
    scores: Option<Value>,
    reason: Option<&str>,
) -> String {
    let mut choice =
        json!({ "index": i, "delta": delta, "logprobs": scores, "finish_reason": reason });
    if let (true, Some(map)) = (manner.ids.is_some(), choice.as_object_mut()) {
        map.insert("token_ids".to_owned(), std::mem::take(&mut state.ids).into());
    }
    let mut document = manner.head.document("chat.completion.chunk", vec![choice].into());
    manner.told.tell(&mut document, state.so_far);
    event(&document)
}

/// Ends the stream after the last piece. If an answer failed, its error was sent, and no end
/// follows.
fn end(manner: &ChatContext, done: &[AnswerStatistics], failed: bool, n: usize) -> String {
    if failed {
        return String::new();
    }
    if done.len() < n {
        return event(&Refusal::internal("the answer is incomplete").json(Dialect::OpenAi));
    }
    let mut text = String::new();
    if manner.told.at_the_end() {
        let mut document = manner.head.document("chat.completion.chunk", Value::Array(vec![]));
        if let Some(map) = document.as_object_mut() {
            map.insert("usage".to_owned(), usage(done.first(), done));
        }
        text = event(&document);
    }
    text + END
}
