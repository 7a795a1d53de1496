//! The calls of a truncated answer: the complete calls, and the name and partial arguments of the
//! last one.

use super::calls::{call, named, value};
use super::part::ToolCall;
use serde_json::{Map, Value};

/// White space and separators between calls.
const CALL_SEPARATORS: [char; 6] = [';', ',', ' ', '\n', '\r', '\t'];

/// The calls, and whether the last one is incomplete.
pub type Truncated = (Vec<ToolCall>, bool);

/// JSON: one call, several, or a list.
pub fn json(text: &str) -> Truncated {
    let mut calls = vec![];
    let text = text.trim_start();
    let mut rest = text.strip_prefix('[').unwrap_or(text);
    loop {
        rest = rest.trim_start_matches(CALL_SEPARATORS);
        let whole = value(rest).and_then(|(one, after)| Some((call(one)?, after)));
        match whole {
            Some((call, after)) => {
                calls.push(call);
                rest = after;
            }
            None => {
                let begun = begun(rest);
                let partial = begun.is_some();
                calls.extend(begun);
                return (calls, partial);
            }
        }
    }
}

/// An incomplete call at the end of a text; `None` if its name is not complete.
pub fn begun(text: &str) -> Option<ToolCall> {
    let mut rest = text.trim_start().strip_prefix('{')?;
    let (mut name, mut arguments) = (None, String::new());
    loop {
        rest = rest.trim_start_matches(CALL_SEPARATORS);
        let Some((key, after)) = string(rest) else { break };
        let Some(after) = after.trim_start().strip_prefix(':') else { break };
        let after = after.trim_start();
        match (key.as_str(), value(after)) {
            ("function", _) if after.starts_with('{') => return begun(after),
            ("name" | "tool_name" | "function", _) => {
                let Some((text, after)) = string(after) else { break };
                (name, rest) = (Some(text), after);
            }
            ("arguments" | "parameters", Some((one, after))) => {
                one.clone_into(&mut arguments);
                rest = after;
            }
            ("arguments" | "parameters", None) => {
                after.clone_into(&mut arguments);
                break;
            }
            (_, Some((_, after))) => rest = after,
            (_, None) => break,
        }
    }
    // If the arguments are in a JSON string, a part of that string cannot be decoded. Arguments
    // that are not an object are dropped.
    if !arguments.starts_with('{') {
        arguments.clear();
    }
    Some(ToolCall { name: name?, arguments })
}

/// A complete string, and the rest.
fn string(text: &str) -> Option<(String, &str)> {
    let (one, after) = value(text).filter(|_| text.starts_with('"'))?;
    Some((serde_json::from_str(one).ok()?, after))
}

/// The text after `<tool_call>`.
pub fn hermes(text: &str) -> Truncated {
    let text = text.trim_start();
    if let Some(rest) = text.strip_prefix("<function=") {
        let Some((name, rest)) = rest.split_once('>') else { return (vec![], false) };
        let arguments = match rest.trim_start().starts_with('{') {
            true => rest.trim_start().to_owned(),
            false => tagged(rest, ("<parameter=", ">", "</parameter>")),
        };
        return (vec![ToolCall { name: name.trim().to_owned(), arguments }], true);
    }
    if let Some((name, rest)) = text.split_once("<arg_key>") {
        let arguments =
            tagged(&format!("<arg_key>{rest}"), ("<arg_key>", "</arg_key>", "</arg_value>"));
        return (vec![ToolCall { name: name.trim().to_owned(), arguments }], true);
    }
    json(text)
}

/// The complete arguments, without the object's closing brace.
fn tagged(text: &str, (open, middle, close): (&str, &str, &str)) -> String {
    let mut all = Map::new();
    let mut rest = text;
    while let Some((key, after)) =
        rest.split_once(open).and_then(|(_, rest)| rest.split_once(middle))
        && let Some((given, after)) = after.split_once(close)
    {
        let given = given.trim_start().strip_prefix("<arg_value>").unwrap_or(given);
        let given = given.strip_prefix('\n').unwrap_or(given);
        let given = given.strip_suffix('\n').unwrap_or(given);
        let given =
            serde_json::from_str(given.trim()).unwrap_or_else(|_| Value::String(given.to_owned()));
        all.insert(key.trim().to_owned(), given);
        rest = after;
    }
    let mut text = Value::Object(all).to_string();
    text.pop();
    text
}

/// The text after `[TOOL_CALLS]`.
pub fn mistral(text: &str) -> Truncated {
    let mut calls = vec![];
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(CALL_SEPARATORS);
        rest = rest.strip_prefix("[TOOL_CALLS]").unwrap_or(rest).trim_start();
        if rest.starts_with(['[', '{']) {
            let (more, partial) = json(rest);
            calls.extend(more);
            return (calls, partial);
        }
        let Some(head) = rest.find(['[', '{']) else { return (calls, false) };
        let Some((name, after)) = rest.split_at_checked(head) else { return (calls, false) };
        let after = match after.split_once("[ARGS]") {
            Some((id, arguments)) if id.is_empty() || id.starts_with("[CALL_ID]") => {
                arguments.trim_start()
            }
            _ => after,
        };
        match value(after).and_then(|(arguments, after)| Some((named(name, arguments)?, after))) {
            Some((call, after)) => {
                calls.push(call);
                rest = after;
            }
            None => {
                let arguments = if after.starts_with('{') { after } else { "" };
                calls.push(ToolCall {
                    name: name.trim().to_owned(),
                    arguments: arguments.to_owned(),
                });
                return (calls, true);
            }
        }
    }
}

/// The text after DeepSeek's `<｜tool▁calls▁begin｜>`.
pub fn deepseek(text: &str) -> Truncated {
    let mut calls = vec![];
    for one in text.split("<｜tool▁call▁begin｜>").skip(1) {
        let marked = format!("<｜tool▁call▁begin｜>{one}");
        if one.contains("<｜tool▁call▁end｜>")
            && let Some(whole) = super::calls::deepseek(&marked)
        {
            calls.extend(whole);
            continue;
        }
        let Some((first, rest)) = one.split_once("<｜tool▁sep｜>") else {
            return (calls, false);
        };
        let line = rest.split_once('\n').map_or("", |(line, _)| line);
        let name = if first.trim() == "function" { line } else { first };
        if name.trim().is_empty() {
            return (calls, false);
        }
        let arguments = rest.find('{').and_then(|at| rest.get(at..)).unwrap_or_default().to_owned();
        calls.push(ToolCall { name: name.trim().to_owned(), arguments });
        return (calls, true);
    }
    (calls, false)
}
