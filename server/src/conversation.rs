//! A conversation as requests have it, as a prompt of the model.

use crate::constrain::Follow;
use crate::fields::Fields;
use crate::generation::Reading;
use crate::loaded::Loaded;
use crate::offer::MOST_TOOLS;
use crate::refusal::Refusal;
use kjit_model::cancel::Cancel;
use kjit_model::chat::{Form, ReplyParser};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// One turn.
#[derive(Debug, Default)]
pub struct Turn {
    /// Who.
    pub role: String,
    /// What.
    pub content: String,
    /// What an assistant wrote to itself.
    pub reasoning: Option<String>,
    /// Tools that an assistant called.
    pub calls: Vec<Called>,
    /// Which call a tool answers.
    pub call_id: Option<String>,
    /// The tool that answers, or who speaks.
    pub name: Option<String>,
}

impl Turn {
    /// The model or the operator wrote it: control tokens in it are meant as such.
    fn is_trusted(&self) -> bool {
        matches!(self.role.as_str(), "system" | "developer" | "assistant")
    }
}

/// A call in the history.
#[derive(Debug)]
pub struct Called {
    /// Its id.
    pub id: String,
    /// The tool.
    pub name: String,
    /// JSON.
    pub arguments: String,
}

/// A conversation with what belongs to it.
#[derive(Debug, Default)]
pub struct Conversation {
    /// In order.
    pub turns: Vec<Turn>,
    /// The tools that are offered: a JSON array as it was sent, because the order of its keys is
    /// the prompt's.
    pub tools: Option<String>,
    /// Further variables of the template.
    pub variables: serde_json::Map<String, Value>,
}

/// A prompt, and how the answer to it is read.
pub struct Prompt {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// How the model writes.
    pub form: Form,
    rendered: String,
    /// Names of the tools that were offered.
    offered: Vec<String>,
}

impl Prompt {
    /// As text.
    pub fn rendered(&self) -> &str {
        &self.rendered
    }

    /// Reads an answer that must be like this.
    pub fn reading(&self, follow: &Follow) -> Reading {
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
        Reading::Reply(self.form, parser)
    }
}

/// What is said to models whose template knows nothing of tools: the words that most models were
/// trained with.
const ABOUT_TOOLS: &str = "You may call one or more functions to assist with the user query. \
    Their signatures, in JSON:\n<tools>\n";
const HOW_TO_CALL: &str = "\n</tools>\nFor each function call return a JSON object with the \
    function's name and arguments within \
                           <tool_call></tool_call>:\n<tool_call>\n{\"name\": <name>, \"arguments\": <arguments>}\n</tool_call>";

impl Conversation {
    /// The prompt. It takes as long as the template and the text are long: not for an async thread.
    ///
    /// # Errors
    /// The model has no template, or it refuses the conversation; the prompt is too long.
    pub fn prompt(mut self, loaded: &Loaded, cancel: &Cancel) -> Result<Prompt, Refusal> {
        let template = loaded.template.as_ref().map_err(|why| Refusal::field("messages", why))?;
        let wrong = |error: kjit_model::chat::ChatError| Refusal::field("messages", error);
        let variables =
            (!self.variables.is_empty()).then(|| Value::Object(self.variables.clone()).to_string());
        if loaded.literal_user_text {
            for turn in self.turns.iter_mut().filter(|turn| !turn.is_trusted()) {
                turn.content = loaded.tokenizer.literal(&turn.content).into_owned();
            }
        }
        let render = |turns: &[Turn], tools: Option<&str>| {
            template
                .render_within(&messages(turns), tools, variables.as_deref(), true, cancel)
                .map_err(wrong)
        };
        let (mut rendered, mut form) =
            (render(&self.turns, self.tools.as_deref())?, template.form());
        let offered = self.tools.as_deref().map(names).unwrap_or_default();
        if let Some(tools) = self.tools.take()
            && render(&self.turns, None)? == rendered
        {
            // The template says nothing of them: they are said in words that most models know.
            form = Form::Hermes;
            let turns = in_words(self.turns, &tools);
            rendered = render(&turns, None)?;
        }
        let tokens = loaded.tokens(cancel, |tokenizer, limit| match loaded.literal_user_text {
            true => tokenizer.encode_literal_chat_within(&rendered, limit),
            false => tokenizer.encode_chat_within(&rendered, limit),
        })?;
        Ok(Prompt { tokens, form, rendered, offered })
    }
}

/// The names of tools as they were sent.
fn names(tools: &str) -> Vec<String> {
    let all: Vec<Value> = serde_json::from_str(tools).unwrap_or_default();
    let name =
        |tool: &Value| tool.pointer("/function/name").and_then(Value::as_str).map(str::to_owned);
    all.iter().filter_map(name).collect()
}

/// Tools, calls and what they gave as text.
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

/// Turns as JSON, for templates: arguments of calls are objects there.
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

/// Part of a body as it was written; `None`: it is not there.
pub fn raw(body: &[u8], path: &[&str]) -> Option<String> {
    let mut text: &str = std::str::from_utf8(body).ok()?;
    for key in path {
        let map: BTreeMap<std::borrow::Cow<'_, str>, &RawValue> =
            serde_json::from_str(text).ok()?;
        text = map.get(*key)?.get();
    }
    Some(text.to_owned())
}

/// Bytes of a tool's name: Anthropic's limit, OpenAI has 64.
const MOST_NAME: usize = 128;

/// A tool as it is offered.
#[derive(Debug)]
pub struct Tool {
    /// The field that has the schema of its arguments.
    pub field: String,
    /// Its name.
    pub name: String,
    /// The schema of its arguments, in the order that it was written in.
    pub parameters: Value,
    /// Calls of it keep to the schema.
    pub strict: bool,
}

/// The name of a tool beside these others.
pub fn checked_name(f: &mut Fields, others: &[Tool]) -> Result<String, Refusal> {
    let name = f.needed_text("name")?;
    let good = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    if !(1..=MOST_NAME).contains(&name.len()) || !name.bytes().all(good) {
        let why = format_args!("give 1 to {MOST_NAME} letters, digits, '_', '-' or '.'");
        return Err(f.wrong("name", why));
    }
    match others.iter().any(|tool| tool.name == name) {
        true => Err(f.wrong("name", "another tool has that name")),
        false => Ok(name),
    }
}

/// The tools that a request offers: the names and schemas, checked.
pub fn tools(fields: &mut Fields, body: &[u8]) -> Result<Option<(Vec<Tool>, String)>, Refusal> {
    let Some(all) = fields.list("tools")?.filter(|all| !all.is_empty()) else { return Ok(None) };
    if all.len() > MOST_TOOLS {
        return Err(fields.wrong("tools", format_args!("give at most {MOST_TOOLS}")));
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
            // It takes none.
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
    fn parts_of_a_body_are_as_they_were_written() {
        let body = br#"{"tools": [ {"z":1, "a":2} ], "deep": {"x": {"b": 1, "a": 2}}}"#;
        assert_eq!(raw(body, &["tools"]).unwrap(), r#"[ {"z":1, "a":2} ]"#);
        assert_eq!(raw(body, &["deep", "x"]).unwrap(), r#"{"b": 1, "a": 2}"#);
        assert_eq!(raw(body, &["deep", "y"]), None);
        assert_eq!(raw(b"[", &["a"]), None);
    }

    #[test]
    fn arguments_of_calls_are_objects_for_the_template_in_the_order_that_they_were_written() {
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
