//! Converts the conversation of a request to the model's prompt.

use crate::constrain::OutputConstraints;
use crate::fields::Fields;
use crate::generation::OutputParsing;
use crate::images::{ImageRefusal, MAX_IMAGES, MessageImage};
use crate::loaded::Loaded;
use crate::prompt::Prompt;
use crate::refusal::Refusal;
use crate::tool::MAX_TOOLS;
use crate::tool::{Tool, checked_name};
use kjit_model::cancel::Cancel;
use kjit_model::chat::{Form, ReplyParser};
use kjit_model::images::{EncodeText, ImagePrompt, ImagesError, PromptImage};
use kjit_model::serve::Owner;
use kjit_model::tokenizer::Tokenizer;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A message of a conversation.
#[derive(Debug, Default)]
pub struct Turn {
    /// Role.
    pub role: String,
    /// Text, with the markers of images.
    pub content: String,
    /// Images.
    pub images: Vec<MessageImage>,
    /// Reasoning of an assistant's message.
    pub reasoning: Option<String>,
    /// Tool calls of an assistant's message.
    pub calls: Vec<Called>,
    /// Id of the call that a tool's message answers.
    pub call_id: Option<String>,
    /// Name of the tool or the speaker.
    pub name: Option<String>,
}

impl Turn {
    /// Puts the markers of the images before the text.
    #[must_use]
    pub fn with_images_before(mut self) -> Turn {
        let markers: String = self.images.iter().map(|image| image.marker.as_str()).collect();
        self.content.insert_str(0, &markers);
        self
    }

    /// Whether the model or the operator wrote the message. Then strings like control tokens in it
    /// are control tokens.
    fn is_trusted(&self) -> bool {
        matches!(self.role.as_str(), "system" | "developer" | "assistant")
    }
}
/// A tool call of an earlier message.
#[derive(Debug)]
pub struct Called {
    /// Id.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments as JSON.
    pub arguments: String,
}

/// A conversation, with its tools and variables.
#[derive(Debug, Default)]
pub struct Conversation {
    /// Messages, in order.
    pub turns: Vec<Turn>,
    /// The offered tools, as the JSON array from the request: the order of its keys is part of the
    /// prompt.
    pub tools: Option<String>,
    /// Other variables of the template.
    pub variables: serde_json::Map<String, Value>,
    /// How the prompt ends.
    pub ending: Ending,
}

/// How a prompt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ending {
    /// The prompt ends with the start of the assistant's message.
    #[default]
    Turn,
    /// The prompt ends with the end of the last message.
    Closed,
    /// The prompt ends within the last message, which is the assistant's message: the answer
    /// continues it.
    Open,
}

/// Reads `add_generation_prompt` and `continue_final_message`, as in transformers and vLLM.
pub fn ending(f: &mut Fields, turns: &[Turn]) -> Result<Ending, Refusal> {
    let (add, open) =
        (f.flag("add_generation_prompt")?, f.flag("continue_final_message")?.unwrap_or(false));
    match (add, open) {
        // vLLM's default of the first field is true, and clients send only the second.
        (Some(true), true) => {
            Err(f.wrong("continue_final_message", "needs add_generation_prompt false"))
        }
        (_, true) => match turns.last() {
            Some(last) if last.role == "assistant" && !last.content.trim().is_empty() => {
                Ok(Ending::Open)
            }
            _ => Err(f.wrong("continue_final_message", "needs a last message of the assistant")),
        },
        (Some(false), false) => Ok(Ending::Closed),
        (_, false) => Ok(Ending::Turn),
    }
}

impl Prompt {
    /// Creates the parser of an answer with these constraints.
    pub fn reading(&self, follow: &OutputConstraints) -> OutputParsing {
        let formed = follow.form.is_some();
        let calls = !(self.offered.is_empty() || formed && follow.tools.is_empty());
        let parser = match (calls, calls && follow.either()) {
            (_, true) => ReplyParser::either(self.form, &self.rendered),
            (false, _) if formed => ReplyParser::json(self.form, &self.rendered),
            (true, _) => {
                ReplyParser::new(self.form, true, &self.rendered).knowing(self.offered.clone())
            }
            (false, _) => ReplyParser::new(self.form, false, &self.rendered),
        };
        OutputParsing::Reply(self.form, parser)
    }
}

/// Instructions about tools for models whose template has none. Most models were trained with this
/// text.
const ABOUT_TOOLS: &str = "You may call one or more functions to assist with the user query. \
    Their signatures, in JSON:\n<tools>\n";
const HOW_TO_CALL: &str = "\n</tools>\nFor each function call return a JSON object with the \
    function's name and arguments within \
                           <tool_call></tool_call>:\n<tool_call>\n{\"name\": <name>, \"arguments\": <arguments>}\n</tool_call>";

impl Conversation {
    /// Renders and tokenises the prompt. The time depends on the template and the text: too long
    /// for an async thread. `owner` owns the rows of its images.
    ///
    /// # Errors
    /// The model has no template, the template refuses the conversation, or the prompt is too long.
    pub fn prompt(
        mut self,
        loaded: &Loaded,
        owner: Owner,
        cancel: &Cancel,
    ) -> Result<Prompt, Refusal> {
        let template = loaded.template.as_ref().map_err(|why| Refusal::field("messages", why))?;
        let wrong = |error: kjit_model::chat::ChatError| Refusal::field("messages", error);
        let variables =
            (!self.variables.is_empty()).then(|| Value::Object(self.variables.clone()).to_string());
        if loaded.literal_user_text {
            for turn in self.turns.iter_mut().filter(|turn| !turn.is_trusted()) {
                // Templates also render names and ids of calls.
                let texts = [Some(&mut turn.content), turn.name.as_mut(), turn.call_id.as_mut()];
                for text in texts.into_iter().flatten() {
                    *text = loaded.tokenizer.literal(text).into_owned();
                }
            }
        }
        let images: Vec<MessageImage> =
            self.turns.iter_mut().flat_map(|turn| std::mem::take(&mut turn.images)).collect();
        let add = self.ending == Ending::Turn;
        let render = |turns: &[Turn], tools: Option<&str>| {
            template
                .render_within(&messages(turns), tools, variables.as_deref(), add, cancel)
                .map_err(wrong)
        };
        let last = self.turns.last().map(|turn| turn.content.trim().to_owned());
        let (mut rendered, mut form) =
            (render(&self.turns, self.tools.as_deref())?, template.form());
        let offered = self.tools.as_deref().map(names).unwrap_or_default();
        if let Some(tools) = self.tools.take()
            && render(&self.turns, None)? == rendered
        {
            // The template does not render the tools, so the system message describes them.
            form = Form::Hermes;
            let turns = in_words(self.turns, &tools);
            rendered = render(&turns, None)?;
        }
        if let (Ending::Open, Some(last)) = (self.ending, last) {
            // Like transformers: everything after the text of the last message is removed.
            let end = rendered.rfind(&last).map(|at| at + last.len()).ok_or_else(|| {
                let why = "the template changes the last message: it cannot be continued";
                Refusal::field("continue_final_message", why)
            })?;
            rendered.truncate(end);
        }
        let literal = loaded.literal_user_text;
        let mut encode = |text: &str, first: bool| {
            loaded.tokens(cancel, |tokenizer, limit| match (literal, first) {
                (true, true) => tokenizer.encode_literal_chat_within(text, limit),
                (true, false) => tokenizer.encode_literal_chat_rest_within(text, limit),
                (false, true) => tokenizer.encode_chat_within(text, limit),
                (false, false) => tokenizer.encode_chat_rest_within(text, limit),
            })
        };
        let ImagePrompt { ids: tokens, images } = match images.is_empty() {
            true => ImagePrompt { ids: encode(&rendered, true)?, images: vec![] },
            false => shown(loaded, owner, &images, &rendered, &mut encode)?,
        };
        if loaded.literal_user_text {
            rendered = Tokenizer::unmarked(&rendered).into_owned();
        }
        Ok(Prompt { tokens, images, form, rendered, offered })
    }
}

/// The prompt with the rows of its images.
fn shown(
    loaded: &Loaded,
    owner: Owner,
    all: &[MessageImage],
    rendered: &str,
    encode: &mut EncodeText<'_, Refusal>,
) -> Result<ImagePrompt, Refusal> {
    let Some(first) = all.first() else { return Ok(ImagePrompt::default()) };
    let Some(images) = &loaded.images else {
        return Err(first.wrong(
            "this model reads text only: kjit serve reads images if it is started with --mmproj",
        ));
    };
    if let Some(more) = all.get(MAX_IMAGES) {
        return Err(more.wrong(format_args!("give at most {MAX_IMAGES} images")));
    }
    let mut whole = ImagePrompt::default();
    // Image by image, so that an error names its field and one file is in memory at a time.
    let mut rest = rendered;
    let mut ordered: Vec<(usize, &MessageImage)> = vec![];
    for image in all {
        let times = rendered.matches(&image.marker).count();
        match rendered.find(&image.marker).filter(|_| times == 1) {
            Some(at) => ordered.push((at, image)),
            None => return Err(image.wrong(ImagesError::Template(times))),
        }
    }
    ordered.sort_by_key(|place| place.0);
    for (i, (_, image)) in ordered.iter().enumerate() {
        let next = ordered.get(i + 1).and_then(|(_, next)| rest.find(&next.marker));
        let (now, later) = rest.split_at_checked(next.unwrap_or(rest.len())).unwrap_or((rest, ""));
        rest = later;
        let file = image.file(loaded.fetch.as_ref())?;
        let one = [PromptImage { marker: &image.marker, file: &file, owner: owner.0 }];
        let begun = !whole.ids.is_empty();
        let made = images.prompt(now, &one, &mut |text: &str, first| {
            encode(text, first && !begun).map_err(ImageRefusal::Other)
        });
        let made = made.map_err(|refusal| match refusal {
            ImageRefusal::Image(error) => image.wrong(error),
            ImageRefusal::Other(refusal) => refusal,
        })?;
        whole.ids.extend(made.ids);
        whole.images.extend(made.images);
        if whole.ids.len() > loaded.context {
            return Err(Refusal::longer(whole.ids.len(), loaded.context));
        }
    }
    Ok(whole)
}

/// Names of the tools in the array.
fn names(tools: &str) -> Vec<String> {
    let all: Vec<Value> = serde_json::from_str(tools).unwrap_or_default();
    let name =
        |tool: &Value| tool.pointer("/function/name").and_then(Value::as_str).map(str::to_owned);
    all.iter().filter_map(name).collect()
}

/// Writes tools, calls and results as plain text messages.
fn in_words(turns: Vec<Turn>, tools: &str) -> Vec<Turn> {
    let about = format!("{ABOUT_TOOLS}{tools}{HOW_TO_CALL}");
    let mut turns: Vec<Turn> = turns
        .into_iter()
        .map(|turn| match turn.role.as_str() {
            "tool" => Turn {
                role: "user".into(),
                content: format!("<tool_response>\n{}\n</tool_response>", turn.content),
                ..Turn::default()
            },
            _ => {
                let calls: String = (turn.calls.iter())
                    .map(|c| {
                        let name = Value::from(c.name.as_str());
                        format!(
                            "\n<tool_call>\n{{\"name\": {name}, \"arguments\": {}}}\n</tool_call>",
                            c.arguments
                        )
                    })
                    .collect();
                Turn { content: format!("{}{calls}", turn.content), calls: vec![], ..turn }
            }
        })
        .collect();
    match turns.first_mut().filter(|turn| turn.role == "system") {
        Some(system) => system.content = format!("{}\n\n{about}", system.content),
        None => turns.insert(0, Turn { role: "system".into(), content: about, ..Turn::default() }),
    }
    turns
}

/// Messages as JSON for templates. Arguments of calls become objects.
fn messages(turns: &[Turn]) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let turn = |turn: &Turn| {
        let mut text =
            format!("{{\"role\":{},\"content\":{}", quoted(&turn.role), quoted(&turn.content));
        let more = [
            ("reasoning_content", &turn.reasoning),
            ("tool_call_id", &turn.call_id),
            ("name", &turn.name),
        ];
        for (key, value) in more {
            if let Some(value) = value {
                text += &format!(",\"{key}\":{}", quoted(value));
            }
        }
        if !turn.calls.is_empty() {
            let call = |call: &Called| {
                let object =
                    serde_json::from_str::<BTreeMap<String, &RawValue>>(&call.arguments).is_ok();
                let arguments =
                    if object { call.arguments.clone() } else { quoted(&call.arguments) };
                format!(
                    "{{\"id\":{},\"type\":\"function\",\"function\":{{\"name\":{},\"arguments\":{arguments}}}}}",
                    quoted(&call.id),
                    quoted(&call.name)
                )
            };
            let calls: Vec<String> = turn.calls.iter().map(call).collect();
            text += &format!(",\"tool_calls\":[{}]", calls.join(","));
        }
        text + "}"
    };
    let turns: Vec<String> = turns.iter().map(turn).collect();
    format!("[{}]", turns.join(","))
}

/// The JSON text of a field, as it was sent. `None` if it is missing.
pub fn raw(body: &[u8], path: &[&str]) -> Option<String> {
    let mut text: &str = std::str::from_utf8(body).ok()?;
    for key in path {
        let map: BTreeMap<std::borrow::Cow<'_, str>, &RawValue> =
            serde_json::from_str(text).ok()?;
        text = map.get(*key)?.get();
    }
    Some(text.to_owned())
}

/// Reads and checks the tools of a request.
pub fn tools(fields: &mut Fields, body: &[u8]) -> Result<Option<(Vec<Tool>, String)>, Refusal> {
    let Some(all) = fields.list("tools")?.filter(|all| !all.is_empty()) else { return Ok(None) };
    if all.len() > MAX_TOOLS {
        return Err(fields.wrong("tools", format_args!("give at most {MAX_TOOLS}")));
    }
    let whole = raw(body, &["tools"]).unwrap_or_default();
    let mut tools: Vec<Tool> = vec![];
    for (index, value) in all.into_iter().enumerate() {
        let at = format!("tools[{index}]");
        let mut tool = Fields::of(value, &at)?;
        if tool.needed_text("type")? != "function" {
            return Err(tool.wrong("type", "give \"function\": no other tools are known here"));
        }
        let Some(mut function) = tool.object("function")? else {
            return Err(tool.wrong("function", "is missing"));
        };
        tool.done()?;
        let name = checked_name(&mut function, &tools)?;
        function.text("description")?;
        let strict = function.flag("strict")?.unwrap_or(false);
        let parameters = match function.take("parameters") {
            // A tool without parameters.
            None => json!({}),
            Some(schema @ Value::Object(_)) => schema,
            Some(_) => return Err(function.wrong("parameters", "give a JSON schema: an object")),
        };
        function.done()?;
        let field = format!("{at}.function.parameters");
        tools.push(Tool { field, name, parameters, strict });
    }
    Ok(Some((tools, whole)))
}

#[cfg(test)]
mod tests {
    use super::{Called, Turn, in_words, messages, raw};

    #[test]
    fn raw_parts_of_body_are_unchanged() {
        let body = br#"{"tools": [ {"z":1, "a":2} ], "deep": {"x": {"b": 1, "a": 2}}}"#;
        assert_eq!(raw(body, &["tools"]).unwrap(), r#"[ {"z":1, "a":2} ]"#);
        assert_eq!(raw(body, &["deep", "x"]).unwrap(), r#"{"b": 1, "a": 2}"#);
        assert_eq!(raw(body, &["deep", "y"]), None);
        assert_eq!(raw(b"[", &["a"]), None);
    }

    #[test]
    fn call_arguments_keep_their_field_order() {
        let call = |arguments: &str| Turn {
            role: "assistant".into(),
            calls: vec![Called { id: "1".into(), name: "f".into(), arguments: arguments.into() }],
            ..Turn::default()
        };
        assert!(
            messages(&[call(r#"{"z": 1, "a": 2}"#)]).contains(r#""arguments":{"z": 1, "a": 2}"#)
        );
        assert!(messages(&[call("no \"JSON")]).contains(r#""arguments":"no \"JSON""#));
        let words = in_words(vec![call("{}")], "[]");
        assert_eq!(words[0].role, "system");
        assert!(
            words[1]
                .content
                .contains("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>")
        );
    }
}
