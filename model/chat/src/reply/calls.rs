//! Parses the bodies of tool calls. A body that cannot be parsed is not a call, and the caller
//! treats it as text.

use super::part::ToolCall;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// A call in the JSON of the model.
#[derive(Deserialize)]
struct Written<'a> {
    #[serde(borrow, alias = "tool_name")]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, alias = "parameters")]
    arguments: Option<&'a RawValue>,
    /// Some models nest the call like the description of tools: `{"function": {"name": …}}`.
    #[serde(borrow)]
    function: Option<&'a RawValue>,
}

/// `{"name": …, "arguments": {…}}` (or `parameters`), a list of these, or several separated by `;`
/// or white space.
pub fn json(text: &str) -> Option<Vec<ToolCall>> {
    let mut calls = vec![];
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (one, after) = value(rest)?;
        if one.starts_with('[') {
            let all: Vec<&RawValue> = serde_json::from_str(one).ok()?;
            calls.extend(all.iter().map(|one| call(one.get())).collect::<Option<Vec<_>>>()?);
        } else {
            calls.push(call(one)?);
        }
        rest = after.trim_start_matches([';', ',', ' ', '\n', '\r', '\t']);
    }
    (!calls.is_empty()).then_some(calls)
}

pub fn call(text: &str) -> Option<ToolCall> {
    let written: Written = serde_json::from_str(text).ok()?;
    let written = match written.function {
        Some(inside) if inside.get().starts_with('{') => serde_json::from_str(inside.get()).ok()?,
        Some(name) if written.name.is_none() => {
            Written { name: serde_json::from_str(name.get()).ok(), ..written }
        }
        _ => written,
    };
    let arguments = written.arguments.map_or("null", RawValue::get);
    let arguments = match arguments.as_bytes().first()? {
        b'{' => arguments.to_owned(),
        b'n' => "{}".to_owned(),
        b'"' => object(&serde_json::from_str::<String>(arguments).ok()?)?,
        _ => return None,
    };
    Some(ToolCall { name: written.name?.into_owned(), arguments })
}

/// A JSON object, unchanged.
fn object(text: &str) -> Option<String> {
    let text = text.trim();
    if text.is_empty() {
        return Some("{}".to_owned());
    }
    serde_json::from_str::<Map<String, Value>>(text).ok().map(|_| text.to_owned())
}

/// A call whose name is outside of its JSON.
pub fn named(name: &str, arguments: &str) -> Option<ToolCall> {
    let name = name.trim();
    (!name.is_empty()).then_some(())?;
    Some(ToolCall { name: name.to_owned(), arguments: object(arguments)? })
}

/// The body of `<tool_call>`: JSON, Qwen3-Coder's
/// `<function=name><parameter=key>value</parameter></function>`, Llama 3.1's
/// `<function=name>{…}</function>`, or GLM's `name` and
/// `<arg_key>key</arg_key><arg_value>value</arg_value>`.
pub fn hermes(text: &str) -> Option<Vec<ToolCall>> {
    let text = text.trim();
    if let Some(calls) = json(text) {
        return Some(calls);
    }
    let Some(rest) = text.strip_prefix("<function=") else {
        return glm(text).map(|call| vec![call]);
    };
    let (name, mut rest) = rest.split_once('>')?;
    if rest.trim_start().starts_with('{') {
        let (arguments, after) = value(rest.trim_start())?;
        matches!(after.trim(), "" | "</function>").then_some(())?;
        return Some(vec![named(name, arguments)?]);
    }
    let mut arguments = Map::new();
    loop {
        rest = rest.trim_start();
        let Some(parameter) = rest.strip_prefix("<parameter=") else { break };
        let (key, after) = parameter.split_once('>')?;
        let (value, after) = after.split_once("</parameter>")?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        // A value that parses as JSON is JSON. Any other value is a string.
        let value =
            serde_json::from_str(value.trim()).unwrap_or_else(|_| Value::String(value.to_owned()));
        arguments.insert(key.trim().to_owned(), value);
        rest = after;
    }
    matches!(rest.trim_end(), "" | "</function>").then_some(())?;
    Some(vec![ToolCall {
        name: name.trim().to_owned(),
        arguments: Value::Object(arguments).to_string(),
    }])
}

/// A name with arguments in tags.
fn glm(text: &str) -> Option<ToolCall> {
    let (name, mut rest) = text.split_at_checked(text.find("<arg_key>").unwrap_or(text.len()))?;
    let name = name.trim();
    let word = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    (!rest.is_empty() && !name.is_empty() && name.chars().all(word)).then_some(())?;
    let mut arguments = Map::new();
    while let Some(pair) = rest.trim_start().strip_prefix("<arg_key>") {
        let (key, after) = pair.split_once("</arg_key>")?;
        let (given, after) =
            after.trim_start().strip_prefix("<arg_value>")?.split_once("</arg_value>")?;
        let given =
            serde_json::from_str(given.trim()).unwrap_or_else(|_| Value::String(given.to_owned()));
        arguments.insert(key.trim().to_owned(), given);
        rest = after;
    }
    rest.trim().is_empty().then(|| ToolCall {
        name: name.to_owned(),
        arguments: Value::Object(arguments).to_string(),
    })
}

/// The text after DeepSeek's `<｜tool▁calls▁begin｜>`: `function<｜tool▁sep｜>name` and the arguments
/// in a fence, or `name<｜tool▁sep｜>{…}`, each between its own markers.
pub fn deepseek(text: &str) -> Option<Vec<ToolCall>> {
    let mut calls = vec![];
    for one in text.split("<｜tool▁call▁begin｜>").skip(1) {
        let one = one.split("<｜tool▁call▁end｜>").next()?;
        let (first, rest) = one.split_once("<｜tool▁sep｜>")?;
        let open = rest.find('{')?;
        let (head, _) = value(rest.get(open..)?)?;
        let name = match first.trim() {
            "function" => rest.lines().next()?,
            name => name,
        };
        calls.push(named(name, head)?);
    }
    (!calls.is_empty()).then_some(calls)
}

/// The text after `[TOOL_CALLS]`: a list, or `name[ARGS]{…}`, repeated. There may be `[CALL_ID]…`
/// before `[ARGS]`.
pub fn mistral(text: &str) -> Option<Vec<ToolCall>> {
    let between = [';', ',', ' ', '\n', '\r', '\t'];
    let mut calls = vec![];
    let mut rest = text.trim();
    while !rest.is_empty() {
        rest = rest.strip_prefix("[TOOL_CALLS]").unwrap_or(rest).trim_start();
        if rest.starts_with(['[', '{']) {
            let (one, after) = value(rest)?;
            calls.extend(json(one)?);
            rest = after.trim_start_matches(between);
            continue;
        }
        let head = rest.find(['[', '{'])?;
        let (name, after) = rest.split_at_checked(head)?;
        // A call without arguments is followed by the next call or by nothing.
        let after = match after.split_once("[ARGS]") {
            Some((id, arguments)) if id.is_empty() || id.starts_with("[CALL_ID]") => {
                arguments.trim_start()
            }
            _ => after,
        };
        let (arguments, after) = if after.starts_with('{') { value(after)? } else { ("", after) };
        calls.push(named(name, arguments)?);
        rest = after.trim_start_matches(between);
    }
    (!calls.is_empty()).then_some(calls)
}

/// The JSON value at the start of a text, and the rest.
pub fn value(text: &str) -> Option<(&str, &str)> {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    let one = stream.next()?.ok()?.get();
    Some((one, text.get(stream.byte_offset()..)?))
}
