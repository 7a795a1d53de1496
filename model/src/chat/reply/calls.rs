//! The inside of calls. What cannot be read is none: the caller then has the text as it was written.

use super::ToolCall;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// A call as models write it.
#[derive(Deserialize)]
struct Written<'a> {
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, alias = "parameters")]
    arguments: Option<&'a RawValue>,
    /// Some models put it where their tools are described: `{"function": {"name": …}}`.
    #[serde(borrow)]
    function: Option<&'a RawValue>,
}

/// `{"name": …, "arguments": {…}}` (or `parameters`), a list of such, or several with `;` or white space
/// between.
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

fn call(text: &str) -> Option<ToolCall> {
    let written: Written = serde_json::from_str(text).ok()?;
    let written = match written.function {
        Some(inside) if inside.get().starts_with('{') => serde_json::from_str(inside.get()).ok()?,
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

/// A JSON object in a text, as it was written.
fn object(text: &str) -> Option<String> {
    let text = text.trim();
    if text.is_empty() {
        return Some("{}".to_owned());
    }
    serde_json::from_str::<Map<String, Value>>(text).ok().map(|_| text.to_owned())
}

/// One call whose name stood outside.
pub fn named(name: &str, arguments: &str) -> Option<ToolCall> {
    let name = name.trim();
    (!name.is_empty()).then_some(())?;
    Some(ToolCall { name: name.to_owned(), arguments: object(arguments)? })
}

/// What stands between `<tool_call>` and its end: JSON, or Qwen3-Coder's
/// `<function=name><parameter=key>value</parameter></function>`.
pub fn hermes(text: &str) -> Option<Vec<ToolCall>> {
    let text = text.trim();
    let Some(rest) = text.strip_prefix("<function=") else { return json(text) };
    let (name, mut rest) = rest.split_once('>')?;
    let mut arguments = Map::new();
    loop {
        rest = rest.trim_start();
        let Some(parameter) = rest.strip_prefix("<parameter=") else { break };
        let (key, after) = parameter.split_once('>')?;
        let (value, after) = after.split_once("</parameter>")?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        // A value that is JSON is meant so; any other is a text.
        let value = serde_json::from_str(value.trim()).unwrap_or_else(|_| Value::String(value.to_owned()));
        arguments.insert(key.trim().to_owned(), value);
        rest = after;
    }
    matches!(rest.trim_end(), "" | "</function>").then_some(())?;
    Some(vec![ToolCall { name: name.trim().to_owned(), arguments: Value::Object(arguments).to_string() }])
}

/// What follows `[TOOL_CALLS]`: a list, or `name[ARGS]{…}` (with `[CALL_ID]…` between), again and again.
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
        // Where there are no arguments, what follows is the next call or nothing.
        let after = match after.split_once("[ARGS]") {
            Some((id, arguments)) if id.is_empty() || id.starts_with("[CALL_ID]") => arguments.trim_start(),
            _ => after,
        };
        let (arguments, after) = if after.starts_with('{') { value(after)? } else { ("", after) };
        calls.push(named(name, arguments)?);
        rest = after.trim_start_matches(between);
    }
    (!calls.is_empty()).then_some(calls)
}

/// The JSON value that a text begins with, and what follows it.
fn value(text: &str) -> Option<(&str, &str)> {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    let one = stream.next()?.ok()?.get();
    Some((one, text.get(stream.byte_offset()..)?))
}
