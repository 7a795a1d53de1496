//! Reads messages that consist of Anthropic's content blocks.

use crate::conversation::{Called, Turn};
use crate::fields::Fields;
use crate::images::{MessageImage, source};
use crate::refusal::Refusal;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Separates the texts of one message.
const TEXT_SEPARATOR: &str = "\n";

/// Reads `system`: a string, or text blocks.
pub fn system(f: &mut Fields) -> Result<Option<Turn>, Refusal> {
    let content = text_of(f, "system")?;
    let turn = |content| Turn { role: "system".to_owned(), content, ..Turn::default() };
    Ok(Some(content).filter(|text| !text.is_empty()).map(turn))
}

/// Reads `messages`.
pub fn turns(f: &mut Fields) -> Result<Vec<Turn>, Refusal> {
    let messages = f.list("messages")?.unwrap_or_default();
    if messages.is_empty() {
        return Err(f.wrong("messages", "give at least one"));
    }
    let mut read = Turns::default();
    for (i, message) in messages.into_iter().enumerate() {
        let mut f = Fields::of(message, &format!("messages[{i}]"))?;
        match f.needed_text("role")?.as_str() {
            "user" => read.user(&mut f)?,
            "assistant" => read.assistant(&mut f)?,
            "system" => {
                let content = text_of(&mut f, "content")?;
                let role = "system".to_owned();
                read.all.push(Turn { role, content, ..Turn::default() });
            }
            _ => return Err(f.wrong("role", "give user, assistant or system")),
        }
        f.done()?;
    }
    match read.all.last() {
        Some(turn) if turn.role == "assistant" => Err(Refusal::field(
            "messages",
            "the last message has the role assistant: continuing a partial answer is not supported",
        )),
        _ => Ok(read.all),
    }
}

#[derive(Default)]
struct Turns {
    all: Vec<Turn>,
    /// Names of the called tools, by call id.
    called: HashMap<String, String>,
}

impl Turns {
    /// Each tool result becomes one message. Text between results becomes a message of the user.
    fn user(&mut self, f: &mut Fields) -> Result<(), Refusal> {
        let (mut texts, mut images): (Vec<String>, Vec<MessageImage>) = (vec![], vec![]);
        let says = |texts: &mut Vec<String>, images: &mut Vec<MessageImage>| {
            let content = std::mem::take(texts).join(TEXT_SEPARATOR);
            let images = std::mem::take(images);
            Turn { role: "user".to_owned(), content, images, ..Turn::default() }
        };
        let blocks = blocks(f, "content")?;
        let none = blocks.is_empty();
        for mut block in blocks {
            match block.needed_text("type")?.as_str() {
                "text" => texts.push(text(&mut block)?),
                "document" => texts.push(document(&mut block)?),
                "image" => {
                    let image = source(&mut block)?;
                    texts.push(image.marker.clone());
                    images.push(image);
                }
                "tool_result" => {
                    if !texts.is_empty() {
                        self.all.push(says(&mut texts, &mut images));
                    }
                    self.result(&mut block)?;
                }
                _ => return Err(block.wrong("type", TEXT_ONLY)),
            }
            block.done()?;
        }
        if none || !texts.is_empty() {
            self.all.push(says(&mut texts, &mut images));
        }
        Ok(())
    }

    fn result(&mut self, block: &mut Fields) -> Result<(), Refusal> {
        let id = block.needed_text("tool_use_id")?;
        let content = text_of(block, "content")?;
        // Templates have no field for this. The text of the result describes the error to the
        // model.
        block.flag("is_error")?;
        block.ignore(&["cache_control"]);
        let name = self.called.get(&id).cloned();
        let role = "tool".to_owned();
        self.all.push(Turn { role, content, call_id: Some(id), name, ..Turn::default() });
        Ok(())
    }

    fn assistant(&mut self, f: &mut Fields) -> Result<(), Refusal> {
        let mut turn = Turn { role: "assistant".to_owned(), ..Turn::default() };
        let (mut texts, mut thoughts) = (vec![], vec![]);
        for mut block in blocks(f, "content")? {
            match block.needed_text("type")?.as_str() {
                "text" => texts.push(text(&mut block)?),
                "thinking" => {
                    thoughts.push(block.needed_text("thinking")?);
                    block.ignore(&["signature", "cache_control"]);
                }
                // Only the service that created the block can decrypt it.
                "redacted_thinking" => block.ignore(&["data", "cache_control"]),
                "tool_use" => {
                    let (id, name) = (block.needed_text("id")?, block.needed_text("name")?);
                    let arguments = match block.take("input") {
                        None => json!({}),
                        Some(input @ Value::Object(_)) => input,
                        Some(_) => return Err(block.wrong("input", "give an object")),
                    };
                    block.ignore(&["cache_control", "caller"]);
                    self.called.insert(id.clone(), name.clone());
                    turn.calls.push(Called { id, name, arguments: arguments.to_string() });
                }
                _ => return Err(block.wrong("type", "give text, thinking or tool_use")),
            }
            block.done()?;
        }
        turn.content = texts.join(TEXT_SEPARATOR);
        turn.reasoning = (!thoughts.is_empty()).then(|| thoughts.join(TEXT_SEPARATOR));
        self.all.push(turn);
        Ok(())
    }
}

const TEXT_ONLY: &str = "give text, image, document or tool_result";

/// Reads the text of a text block.
fn text(block: &mut Fields) -> Result<String, Refusal> {
    block.ignore(&["cache_control", "citations"]);
    block.needed_text("text")
}

/// Reads a document block. Only plain text is accepted.
fn document(block: &mut Fields) -> Result<String, Refusal> {
    block.ignore(&["cache_control", "citations"]);
    let title = block.text("title")?;
    let context = block.text("context")?;
    let Some(mut source) = block.object("source")? else {
        return Err(block.wrong("source", "is missing"));
    };
    if source.needed_text("type")? != "text" {
        return Err(source.wrong("type", "this model reads documents of plain text only: text"));
    }
    source.ignore(&["media_type"]);
    let data = source.needed_text("data")?;
    source.done()?;
    let all: Vec<String> = title.into_iter().chain(context).chain([data]).collect();
    Ok(all.join(TEXT_SEPARATOR))
}

/// Reads a field that is a string or a list of text blocks.
fn text_of(f: &mut Fields, name: &str) -> Result<String, Refusal> {
    let mut texts = vec![];
    for mut block in blocks(f, name)? {
        match block.needed_text("type")?.as_str() {
            "text" => texts.push(text(&mut block)?),
            "document" => texts.push(document(&mut block)?),
            _ => return Err(block.wrong("type", "this model reads text only")),
        }
        block.done()?;
    }
    Ok(texts.join(TEXT_SEPARATOR))
}

/// Reads content as blocks. A plain string is one block.
fn blocks(f: &mut Fields, name: &str) -> Result<Vec<Fields>, Refusal> {
    let field = f.name(name);
    let one = |(i, block): (usize, Value)| Fields::of(block, &format!("{field}[{i}]"));
    match f.take(name) {
        None => Ok(vec![]),
        Some(Value::String(text)) => {
            Ok(vec![Fields::of(json!({ "type": "text", "text": text }), &field)?])
        }
        Some(Value::Array(all)) => all.into_iter().enumerate().map(one).collect(),
        Some(_) => Err(f.wrong(name, "give a string, or a list of blocks")),
    }
}

#[cfg(test)]
mod tests {
    use super::{system, turns};
    use crate::fields::Fields;
    use serde_json::{Value, json};

    fn fields(value: &Value) -> Fields {
        Fields::parse(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn blocks_become_turns_in_order_with_tool_names() {
        let hint = json!({ "type": "ephemeral" });
        let mut f = fields(&json!({
            "system": [{ "type": "text", "text": "A", "cache_control": hint }, { "type": "text", "text": "B" }],
            "messages": [
                { "role": "user", "content": "Hi" },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "hm", "signature": "s" },
                    { "type": "redacted_thinking", "data": "x" },
                    { "type": "text", "text": "I look." },
                    { "type": "tool_use", "id": "1", "name": "look", "input": { "z": 1, "a": 2 } },
                    { "type": "tool_use", "id": "2", "name": "hear", "input": {} }
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "2", "content": "noise", "is_error": true },
                    { "type": "tool_result", "tool_use_id": "1", "content": [{ "type": "text", "text": "a cat" }], "cache_control": hint },
                    { "type": "text", "text": "And?" }, { "type": "text", "text": "Well?" }
                ] }
            ]
        }));
        assert_eq!(system(&mut f).unwrap().unwrap().content, "A\nB");
        let all = turns(&mut f).unwrap();
        let seen: Vec<_> = all.iter().map(|t| (t.role.as_str(), t.content.as_str())).collect();
        assert_eq!(
            seen,
            [
                ("user", "Hi"),
                ("assistant", "I look."),
                ("tool", "noise"),
                ("tool", "a cat"),
                ("user", "And?\nWell?")
            ]
        );
        assert_eq!(all[1].reasoning.as_deref(), Some("hm"));
        assert_eq!(all[1].calls[0].arguments, r#"{"z":1,"a":2}"#, "in the order that it was sent");
        let names: Vec<_> = all[2..4].iter().map(|t| t.name.as_deref()).collect();
        assert_eq!(names, [Some("hear"), Some("look")]);
    }

    #[test]
    fn invalid_blocks_are_refused_by_name() {
        for (messages, why) in [
            (json!([]), "'messages': give at least one"),
            (
                json!([{ "role": "user", "content": [{ "type": "image", "source": {} }] }]),
                "'messages[0].content[0].source.type': is missing",
            ),
            (
                json!([{ "role": "user", "content": [{ "type": "text" }] }]),
                "'messages[0].content[0].text': is missing",
            ),
            (
                json!([{ "role": "user", "content": "x" }, { "role": "assistant", "content": "I" }]),
                "'messages': the last message has the role assistant: \
                 continuing a partial answer is not supported",
            ),
        ] {
            let refused = turns(&mut fields(&json!({ "messages": messages }))).unwrap_err();
            assert_eq!(refused.message(), why);
        }
    }
}
