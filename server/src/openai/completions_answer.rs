//! The answer of `POST /v1/completions`, whole or in pieces.

use super::{END, Head, RunningUsage, UsageReporting, event, finish_reason, scores, usage};
use crate::generation::{AnswerEvent, AnswerStatistics, CompleteAnswer, Score};
use crate::loaded::Loaded;
use crate::models::Lease;
use crate::refusal::{Dialect, Refusal};
use crate::streamed::Format;
use kjit_model::chat::Part;
use serde_json::{Map, Value, json};

/// Values of a request that its answer depends on.
pub struct CompletionContext {
    pub head: Head,
    /// Number of answers to each prompt.
    pub n: usize,
    /// Where a stream reports its usage.
    pub told: UsageReporting,
    /// Number of alternatives for which each token has log probabilities; `None`: no log
    /// probabilities.
    pub logprobs: Option<usize>,
    /// Number of alternatives for log probabilities of the prompt, in vLLM's format.
    pub prompt_logprobs: Option<usize>,
    /// Whether prompts are put before the answers.
    pub echo: bool,
    pub prompts: Vec<Echo>,
    /// Whether token ids of prompts and answers are included.
    pub ids: bool,
    /// Number of tokens in answers that were dropped (`best_of`).
    pub unseen: usize,
}

/// A prompt that is repeated before its answers.
pub struct Echo {
    pub tokens: Vec<u32>,
    text: String,
    /// The first token is not part of the text (BOS).
    begins: bool,
}

impl Echo {
    /// Creates it from a text, or from tokens.
    pub fn new(loaded: &Loaded, text: Option<String>, tokens: Vec<u32>) -> Echo {
        let shown = |ids: &[u32]| {
            String::from_utf8_lossy(&loaded.tokenizer.decode(ids).unwrap_or_default()).into_owned()
        };
        let first = tokens.first().copied();
        let begins = text.as_ref().is_some_and(|text| {
            first.is_some_and(|id| {
                loaded.tokenizer.bos() == first && !text.starts_with(&shown(&[id]))
            })
        });
        let text = text.unwrap_or_else(|| shown(&tokens));
        Echo { tokens, text, begins }
    }
}

impl CompletionContext {
    fn prompt(&self, i: usize) -> Option<&Echo> {
        self.prompts.get(i / self.n)
    }

    /// The text before an answer's text.
    fn before(&self, i: usize) -> &str {
        self.prompt(i).filter(|_| self.echo).map_or("", |prompt| prompt.text.as_str())
    }

    /// The log probabilities of an answer, after those of its prompt if the prompt is repeated.
    fn scores(
        &self,
        loaded: &Loaded,
        i: usize,
        of_prompt: Option<&[Score]>,
        scores: &[Score],
        at: &mut scores::TextPosition,
    ) -> Option<scores::CompletionScores> {
        let top = self.logprobs?;
        let mut all = scores::CompletionScores::default();
        let prompt = self.prompt(i).filter(|_| self.echo && of_prompt.is_some());
        if let Some(prompt) = prompt {
            if let Some(first) = prompt.tokens.first() {
                all.unknown(loaded, *first, !prompt.begins, at);
            }
            for score in of_prompt.unwrap_or_default() {
                all.push(loaded, score, top, true, at);
            }
        }
        for score in scores {
            // Control tokens have no text.
            let says = !loaded.tokenizer.is_control(score.id).unwrap_or(true);
            all.push(loaded, score, top, says, at);
        }
        Some(all)
    }
}

/// The complete answer as one document.
pub fn document(
    loaded: &Loaded,
    manner: &CompletionContext,
    answers: Vec<CompleteAnswer>,
) -> Value {
    let mut choices = vec![];
    let mut done = vec![];
    for (i, answer) in answers.into_iter().enumerate() {
        let text = format!("{}{}", manner.before(i), answer.content);
        let mut at = scores::TextPosition::default();
        let scores = manner.scores(loaded, i, Some(&answer.prompt), &answer.scores, &mut at);
        let scores = scores.map(|scores| scores.json(text.chars().count()));
        let mut one = choice(i, &text, scores, answer.done.as_ref().map(finish_reason));
        if let (true, Some(map)) = (manner.ids, one.as_object_mut()) {
            map.insert("token_ids".to_owned(), answer.ids.into());
            let prompt = manner.prompt(i).map_or(&[][..], |prompt| prompt.tokens.as_slice());
            map.insert("prompt_token_ids".to_owned(), prompt.into());
        }
        if let (Some(top), Some(map)) = (manner.prompt_logprobs, one.as_object_mut()) {
            let of_prompt = scores::of_prompt(loaded, &answer.prompt, top);
            map.insert("prompt_logprobs".to_owned(), of_prompt);
        }
        choices.push(one);
        done.extend(answer.done);
    }
    let mut document = manner.head.document("text_completion", choices.into());
    if let Some(map) = document.as_object_mut() {
        let mut all = usage(done.iter().step_by(manner.n), &done);
        for name in ["completion_tokens", "total_tokens"] {
            if let Some(value) = all.get_mut(name) {
                *value = (value.as_u64().unwrap_or(0) + manner.unseen as u64).into();
            }
        }
        map.insert("usage".to_owned(), all);
    }
    document
}

fn choice(i: usize, text: &str, scores: Option<Value>, reason: Option<&str>) -> Value {
    json!({ "index": i, "text": text, "logprobs": scores, "finish_reason": reason })
}

/// State of one answer in a stream.
#[derive(Default, Clone)]
struct ChoiceState {
    begun: bool,
    at: scores::TextPosition,
    /// Scores of tokens whose text was not sent yet.
    scores: scores::CompletionScores,
    /// Number of characters sent.
    sent: usize,
    so_far: RunningUsage,
    done: Option<AnswerStatistics>,
}

/// Writes the pieces of this many answers as events.
pub fn stream_format(loaded: Lease, manner: CompletionContext, answers: usize) -> Format {
    let mut choices = vec![ChoiceState::default(); answers];
    let mut failed = false;
    Box::new(move |piece| {
        let Some((i, piece)) = piece else {
            return if failed { String::new() } else { end(&manner, &choices) };
        };
        let (Some(one), false) = (choices.get_mut(i), failed) else { return String::new() };
        let mut extra = Map::new();
        let (text, of_prompt, scored, reason) = match piece {
            AnswerEvent::Started { prompt_tokens, .. } => {
                one.so_far.prompt = prompt_tokens;
                return String::new();
            }
            AnswerEvent::Prompt(of_prompt) => {
                if let Some(top) = manner.prompt_logprobs {
                    let written = scores::of_prompt(&loaded, &of_prompt, top);
                    extra.insert("prompt_logprobs".to_owned(), written);
                }
                (String::new(), Some(of_prompt), vec![], None)
            }
            AnswerEvent::Said { parts, scores, ids, generated_tokens } => {
                if manner.ids {
                    extra.insert("token_ids".to_owned(), ids.into());
                }
                one.so_far.generated = generated_tokens;
                let text = |part| if let Part::Content(text) = part { text } else { String::new() };
                (parts.into_iter().map(text).collect(), None, scores, None)
            }
            AnswerEvent::Done(done) => {
                one.so_far.generated = done.generated_tokens;
                one.done = Some(done);
                (String::new(), None, vec![], Some(finish_reason(&done)))
            }
            AnswerEvent::Failed(refusal) => {
                failed = true;
                return event(&refusal.json(Dialect::OpenAi));
            }
        };
        let first = !std::mem::replace(&mut one.begun, true);
        let before = if first { manner.before(i) } else { "" };
        // A prompt of one token has no log probabilities.
        let alone = manner.echo && manner.prompt(i).is_some_and(|p| p.tokens.len() == 1);
        let of_prompt = of_prompt.or_else(|| (first && alone).then(Vec::new));
        let some = of_prompt.is_some() || !scored.is_empty();
        if some
            && let Some(new) = manner.scores(&loaded, i, of_prompt.as_deref(), &scored, &mut one.at)
        {
            one.scores.append(new);
        }
        one.sent += before.chars().count() + text.chars().count();
        // At the end all scores are sent, with offsets within the text.
        let ready = one.scores.take_within(if reason.is_some() { usize::MAX } else { one.sent });
        let scores = (!ready.is_empty()).then(|| ready.json(one.sent));
        let mut written = choice(i, &format!("{before}{text}"), scores, reason);
        if let Some(map) = written.as_object_mut() {
            map.extend(extra);
        }
        let mut document = manner.head.document("text_completion", vec![written].into());
        manner.told.tell(&mut document, one.so_far);
        event(&document)
    })
}

fn end(manner: &CompletionContext, choices: &[ChoiceState]) -> String {
    let Some(done) = choices.iter().map(|one| one.done).collect::<Option<Vec<AnswerStatistics>>>()
    else {
        return event(&Refusal::internal("the answer is incomplete").json(Dialect::OpenAi));
    };
    let mut text = String::new();
    if manner.told.at_the_end() {
        let mut document = manner.head.document("text_completion", Value::Array(vec![]));
        if let Some(map) = document.as_object_mut() {
            map.insert("usage".to_owned(), usage(done.iter().step_by(manner.n), &done));
        }
        text = event(&document);
    }
    text + END
}
