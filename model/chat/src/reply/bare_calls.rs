//! Answers that consist only of JSON calls without a marker. Qwen2.5-Coder and Llama 3 write them:
//! plain, in a code fence, or in the tags of the tools' descriptions. JSON is a call only if its
//! name is the name of a tool.

use super::calls;
use super::part::ToolCall;

/// Labels of a code fence.
const FENCES: [&str; 4] = ["", "json", "tool_call", "tool_calls"];
/// Tags around JSON.
const TAGS: [(&str, &str); 1] = [("<tools>", "</tools>")];
/// Prefix of Llama 3.1's calls.
const FUNCTION: &str = "<function=";
/// Keys of a call.
const KEYS: [&str; 7] = ["name", "arguments", "parameters", "type", "function", "id", "tool_name"];
/// Maximum bytes to wait for a name.
const MAX_UNNAMED: usize = 4096;

/// Whether an answer with this start is a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallGuess {
    No,
    /// Not known yet.
    Open,
    /// Yes: it has the name of a tool.
    Named,
}

/// The calls of a complete answer; `None` if it is not a call.
pub fn read(text: &str, names: &[String]) -> Option<Vec<ToolCall>> {
    let text = text.trim();
    let calls = match text.starts_with(FUNCTION) {
        true => calls::hermes(text)?,
        false => calls::json(inside(text)?.trim())?,
    };
    calls.iter().all(|call| names.contains(&call.name)).then_some(calls)
}

/// The calls of a truncated answer.
pub fn cut(text: &str, names: &[String]) -> Option<super::truncated::Truncated> {
    let text = text.trim_start();
    let (calls, partial) = match text.starts_with(FUNCTION) {
        true => super::truncated::hermes(text),
        false => super::truncated::json(inside(text)?.trim_start()),
    };
    (!calls.is_empty() && calls.iter().all(|call| names.contains(&call.name)))
        .then_some((calls, partial))
}

/// The text inside a fence or tags; their end may be missing.
fn inside(text: &str) -> Option<&str> {
    if let Some(rest) = text.strip_prefix("```") {
        let (word, body) = rest.split_at_checked(rest.find(['\n', '{', '['])?)?;
        let body = body.trim_end();
        return FENCES.contains(&word.trim()).then(|| body.strip_suffix("```").unwrap_or(body));
    }
    for (open, close) in TAGS {
        if let Some(rest) = text.strip_prefix(open) {
            return Some(rest.strip_suffix(close).unwrap_or(rest));
        }
    }
    Some(text)
}

/// Classifies the start of an answer.
pub fn may_be(text: &str, names: &[String]) -> CallGuess {
    let text = text.trim_start();
    let all = |is: bool| if is { CallGuess::Open } else { CallGuess::No };
    if text.is_empty() || "```".starts_with(text) {
        return CallGuess::Open;
    }
    if let Some(rest) = text.strip_prefix("```") {
        return match rest.find(['\n', '{', '[']).and_then(|at| rest.split_at_checked(at)) {
            Some((word, body)) if FENCES.contains(&word.trim()) => json(body, names),
            Some(_) => CallGuess::No,
            None => all(FENCES.iter().any(|word| word.starts_with(rest.trim_end()))),
        };
    }
    if let Some(rest) = text.strip_prefix(FUNCTION) {
        return match rest.split_once('>') {
            Some((name, _)) if names.iter().any(|known| known == name.trim()) => CallGuess::Named,
            Some(_) => CallGuess::No,
            None => all(names.iter().any(|name| name.starts_with(rest.trim()))),
        };
    }
    for (open, _) in TAGS {
        if let Some(rest) = text.strip_prefix(open) {
            return json(rest, names);
        }
    }
    match text.starts_with('<') {
        true => all(TAGS
            .iter()
            .map(|(open, _)| *open)
            .chain([FUNCTION])
            .any(|open| open.starts_with(text))),
        false => json(text, names),
    }
}

/// Like [`may_be`], for JSON.
fn json(text: &str, names: &[String]) -> CallGuess {
    let text = text.trim_start();
    if text.len() > MAX_UNNAMED {
        return CallGuess::No;
    }
    let text = text.strip_prefix('[').unwrap_or(text).trim_start();
    if text.is_empty() {
        return CallGuess::Open;
    }
    let Some(mut rest) = text.strip_prefix('{') else { return CallGuess::No };
    loop {
        rest = rest.trim_start_matches([',', ' ', '\n', '\r', '\t']);
        let Some(inner) = rest.strip_prefix('"') else {
            return if rest.is_empty() { CallGuess::Open } else { CallGuess::No };
        };
        let Some((key, after)) = inner.split_once('"') else {
            return if KEYS.iter().any(|key| key.starts_with(inner)) {
                CallGuess::Open
            } else {
                CallGuess::No
            };
        };
        if !KEYS.contains(&key) {
            return CallGuess::No;
        }
        let after = after.trim_start();
        if after.is_empty() {
            return CallGuess::Open;
        }
        let Some(after) = after.strip_prefix(':').map(str::trim_start) else {
            return CallGuess::No;
        };
        match (key, after.strip_prefix('"').map(|inner| (inner, inner.split_once('"')))) {
            _ if after.is_empty() => return CallGuess::Open,
            ("function", None) if after.starts_with('{') => return json(after, names),
            ("name" | "tool_name" | "function", Some((_, Some((name, _))))) => {
                return if names.iter().any(|known| known == name) {
                    CallGuess::Named
                } else {
                    CallGuess::No
                };
            }
            ("name" | "tool_name" | "function", Some((begun, None))) => {
                return if names.iter().any(|name| name.starts_with(begun)) {
                    CallGuess::Open
                } else {
                    CallGuess::No
                };
            }
            ("name" | "tool_name" | "function", None) => return CallGuess::No,
            _ => match calls::value(after) {
                Some((_, after)) => rest = after,
                None => return CallGuess::Open,
            },
        }
    }
}
