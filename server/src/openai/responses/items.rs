//! Reads the items of a Responses conversation as messages.

use super::response_store::{Client, ResponseStore};
use crate::conversation::{Called, Turn};
use crate::fields::Fields;
use crate::images::{MessageImage, image_url};
use crate::refusal::Refusal;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;

/// Separates consecutive system messages. They are joined because templates expect one.
const TEXT_SEPARATOR: &str = "\n\n";

/// Reads `input`: a string, or items. References are replaced by the items that they name.
pub fn input(
    f: &mut Fields,
    kept: &ResponseStore,
    client: &Client,
) -> Result<Vec<Arc<Value>>, Refusal> {
    match f.take("input") {
        None => Ok(vec![]),
        Some(Value::String(text)) => {
            Ok(vec![Arc::new(json!({ "type": "message", "role": "user", "content": text }))])
        }
        Some(Value::Array(all)) => {
            let one = |(i, item): (usize, Value)| {
                if item.get("type").and_then(Value::as_str) != Some("item_reference") {
                    return Ok(Arc::new(item));
                }
                let mut f = Fields::of(item, &format!("input[{i}]"))?;
                let id = f.needed_text("id")?;
                kept.item(client, &id)
                    .ok_or_else(|| f.wrong("id", "no such item is stored: send the item itself"))
            };
            all.into_iter().enumerate().map(one).collect()
        }
        Some(_) => Err(f.wrong("input", "give a string, or a list of items")),
    }
}

/// The messages of a conversation. The first `before` items belong to earlier responses.
pub fn turns(
    instructions: Option<String>,
    items: &[Arc<Value>],
    before: usize,
) -> Result<Vec<Turn>, Refusal> {
    let mut read = Turns::default();
    if let Some(text) = instructions.filter(|text| !text.is_empty()) {
        read.message("developer", text, vec![]);
    }
    for (i, item) in items.iter().enumerate() {
        let at = match i.checked_sub(before) {
            Some(i) => format!("input[{i}]"),
            None => "previous_response_id".to_owned(),
        };
        read.item(Fields::of(Value::clone(item), &at)?)?;
    }
    read.close();
    Ok(read.all)
}

#[derive(Default)]
struct Turns {
    all: Vec<Turn>,
    /// Names of the called tools, by call id.
    called: HashMap<String, String>,
    /// The assistant's message to which further items are added.
    open: Option<Turn>,
}

impl Turns {
    fn item(&mut self, mut f: Fields) -> Result<(), Refusal> {
        let kind = f.text("type")?;
        f.ignore(&["id", "status", "phase"]);
        match kind.as_deref().unwrap_or("message") {
            "message" => {
                let role = f.needed_text("role")?;
                let mut images = vec![];
                let text = content_with(&mut f, "content", Some(&mut images))?;
                match role.as_str() {
                    "assistant" => {
                        let turn = self.assistant();
                        append(&mut turn.content, &text);
                        turn.images.extend(images);
                    }
                    "user" | "system" | "developer" => self.message(&role, text, images),
                    _ => return Err(f.wrong("role", "give user, assistant, system or developer")),
                }
            }
            "reasoning" => {
                let summary = content(&mut f, "summary")?;
                let text = content(&mut f, "content")?;
                // Only the service that created the item can decrypt it.
                f.ignore(&["encrypted_content"]);
                let text = if text.is_empty() { summary } else { text };
                if !text.is_empty() {
                    // A reasoning item begins a new message.
                    let spoke = |turn: &Turn| !turn.content.is_empty() || !turn.calls.is_empty();
                    if self.open.as_ref().is_some_and(spoke) {
                        self.close();
                    }
                    append(self.assistant().reasoning.get_or_insert_default(), &text);
                }
            }
            "function_call" => {
                let id = f.needed_text("call_id")?;
                let name = f.needed_text("name")?;
                let arguments = f.text("arguments")?.unwrap_or_else(|| "{}".to_owned());
                f.ignore(&["namespace"]);
                self.called.insert(id.clone(), name.clone());
                self.assistant().calls.push(Called { id, name, arguments });
            }
            "function_call_output" => {
                let id = f.needed_text("call_id")?;
                let mut images = vec![];
                let text = content_with(&mut f, "output", Some(&mut images))?;
                let name = self.called.get(&id).cloned();
                self.close();
                self.all.push(Turn {
                    role: "tool".to_owned(),
                    content: text,
                    images,
                    call_id: Some(id),
                    name,
                    ..Turn::default()
                });
            }
            other => {
                let why = format_args!(
                    "'{other}' is not known here: \
                     give message, reasoning, function_call or function_call_output"
                );
                return Err(f.wrong("type", why));
            }
        }
        f.done()
    }

    fn message(&mut self, role: &str, text: String, images: Vec<MessageImage>) {
        self.close();
        match self.all.last_mut() {
            Some(turn) if role != "user" && turn.role == role => {
                turn.content = [&turn.content, text.as_str()].join(TEXT_SEPARATOR);
                turn.images.extend(images);
            }
            _ => {
                let role = role.to_owned();
                self.all.push(Turn { role, content: text, images, ..Turn::default() });
            }
        }
    }

    /// The open message of the assistant: consecutive reasoning, text and calls are one message.
    fn assistant(&mut self) -> &mut Turn {
        let begin = || Turn { role: "assistant".to_owned(), ..Turn::default() };
        self.open.get_or_insert_with(begin)
    }

    fn close(&mut self) {
        self.all.extend(self.open.take());
    }
}

fn append(to: &mut String, text: &str) {
    if !to.is_empty() && !text.is_empty() {
        to.push('\n');
    }
    to.push_str(text);
}

/// Reads content that has no images.
fn content(f: &mut Fields, name: &str) -> Result<String, Refusal> {
    content_with(f, name, None)
}

/// Reads content: a string, or parts that are texts, and images if they have a place. The text
/// contains markers of images.
fn content_with(
    f: &mut Fields,
    name: &str,
    mut images: Option<&mut Vec<MessageImage>>,
) -> Result<String, Refusal> {
    match f.take(name) {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(parts)) => {
            let mut text = String::new();
            for (j, part) in parts.into_iter().enumerate() {
                let mut part = Fields::of(part, &f.name(&format!("{name}[{j}]")))?;
                match part.needed_text("type")?.as_str() {
                    "input_text" | "output_text" | "text" | "reasoning_text" | "summary_text" => {
                        text += &part.needed_text("text")?;
                    }
                    "refusal" => text += &part.needed_text("refusal")?,
                    "input_image" => match &mut images {
                        Some(images) => {
                            let image = image_url(&mut part)?;
                            text += &image.marker;
                            images.push(image);
                        }
                        None => return Err(part.wrong("type", "no image is read here")),
                    },
                    _ => return Err(part.wrong("type", "give input_text or input_image")),
                }
                part.ignore(&["annotations", "logprobs", "cache_control"]);
                part.done()?;
            }
            Ok(text)
        }
        Some(_) => Err(f.wrong(name, "give a string, or a list of parts")),
    }
}

#[cfg(test)]
mod tests {
    use super::{Arc, Value, json, turns};

    fn items(all: Value) -> Vec<Arc<Value>> {
        all.as_array().unwrap().iter().cloned().map(Arc::new).collect()
    }

    #[test]
    fn items_of_one_answer_become_one_turn() {
        let all = items(json!([
            { "role": "developer", "content": [{ "type": "input_text", "text": "B" }] },
            { "type": "message", "role": "user", "content": "Hi", "id": "m", "status": "completed" },
            { "type": "reasoning", "id": "r", "summary": [], "content": [{ "type": "reasoning_text", "text": "hm" }], "encrypted_content": "x" },
            { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "I look.", "annotations": [], "logprobs": [] }] },
            { "type": "function_call", "id": "f", "call_id": "1", "name": "look", "arguments": "{\"z\":1}" },
            { "type": "function_call", "call_id": "2", "name": "hear", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "2", "output": "noise" },
            { "type": "function_call_output", "call_id": "1", "output": [{ "type": "input_text", "text": "a cat" }] },
            { "type": "reasoning", "summary": [{ "type": "summary_text", "text": "so" }] },
            { "role": "assistant", "content": "A cat." }
        ]));
        let all = turns(Some("A".into()), &all, 0).unwrap();
        let seen: Vec<_> = all.iter().map(|t| (t.role.as_str(), t.content.as_str())).collect();
        assert_eq!(
            seen,
            [
                ("developer", "A\n\nB"),
                ("user", "Hi"),
                ("assistant", "I look."),
                ("tool", "noise"),
                ("tool", "a cat"),
                ("assistant", "A cat.")
            ]
        );
        assert_eq!(all[2].reasoning.as_deref(), Some("hm"));
        assert_eq!(all[2].calls.len(), 2);
        assert_eq!((all[3].name.as_deref(), all[4].name.as_deref()), (Some("hear"), Some("look")));
        assert_eq!(all[5].reasoning.as_deref(), Some("so"));
    }

    #[test]
    fn invalid_items_are_refused_by_name() {
        for (item, why) in [
            (
                json!({ "type": "web_search_call", "id": "w" }),
                "'input[1].type': 'web_search_call' is not known here: \
                 give message, reasoning, function_call or function_call_output",
            ),
            (
                json!({ "role": "user", "content": [{ "type": "input_image", "image_url": "x" }] }),
                "'input[1].content[0].image_url': give a data URL, or one with http or https",
            ),
            (
                json!({ "role": "robot", "content": "" }),
                "'input[1].role': give user, assistant, system or developer",
            ),
        ] {
            let before = json!({ "role": "user", "content": "x" });
            let all = items(json!([before, before, item]));
            assert_eq!(turns(None, &all, 1).unwrap_err().message(), why);
        }
    }
}
