//! Calls written in Python, for example in Gemma's `tool_code` blocks: `weather(city="Paris")`.
//! Several calls are on separate lines or in a list, and each may be inside `print(…)`. Arguments
//! are named literals. Any other text is not a call.

use super::ToolCall;
use serde_json::{Map, Value};

/// Maximum nesting of literals.
const MAX_NESTING: usize = 64;
/// Module that may precede the names in calls of Gemini and Gemma.
const MODULE: &str = "default_api.";

/// The calls of a block.
pub fn calls(text: &str) -> Option<Vec<ToolCall>> {
    let mut reader = Reader { rest: text.trim() };
    let mut all = vec![];
    while !reader.rest.is_empty() {
        match reader.takes('[') {
            false => all.push(reader.statement()?),
            true => {
                while !reader.takes(']') {
                    all.push(reader.call()?);
                    let _ = reader.takes(',');
                }
            }
        }
        reader.rest = reader.rest.trim_start_matches([';', ' ', '\t', '\r', '\n']);
    }
    (!all.is_empty()).then_some(all)
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Consumes a character after white space, if it is next.
    fn takes(&mut self, c: char) -> bool {
        self.skip();
        match self.rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn needs(&mut self, c: char) -> Option<()> {
        self.takes(c).then_some(())
    }

    /// A word of letters, digits, `_`, and the characters of `more`.
    fn word(&mut self, more: &str) -> Option<&'a str> {
        self.skip();
        let part = |c: char| c.is_alphanumeric() || c == '_' || more.contains(c);
        let end = self.rest.find(|c| !part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        (!word.is_empty() && !word.starts_with(|c: char| c.is_ascii_digit())).then_some(word)
    }

    /// A call, or a call inside `print(…)`.
    fn statement(&mut self) -> Option<ToolCall> {
        self.skip();
        match self.rest.strip_prefix("print(") {
            None => self.call(),
            Some(rest) => {
                self.rest = rest;
                let call = self.call()?;
                self.needs(')')?;
                Some(call)
            }
        }
    }

    fn call(&mut self) -> Option<ToolCall> {
        let name = self.word(".-")?;
        let name = name.strip_prefix(MODULE).unwrap_or(name).to_owned();
        self.needs('(')?;
        let mut arguments = Map::new();
        while !self.takes(')') {
            let key = self.word("")?.to_owned();
            self.needs('=')?;
            let value = self.value(MAX_NESTING)?;
            arguments.insert(key, value);
            if !self.takes(',') {
                self.needs(')')?;
                break;
            }
        }
        Some(ToolCall { name, arguments: Value::Object(arguments).to_string() })
    }

    fn value(&mut self, deep: usize) -> Option<Value> {
        let deep = deep.checked_sub(1)?;
        self.skip();
        match self.rest.chars().next()? {
            '\'' | '"' => self.string().map(Value::String),
            '[' | '(' => {
                let close = if self.takes('[') { ']' } else { ')' };
                if close == ')' {
                    self.needs('(')?;
                }
                let mut all = vec![];
                while !self.takes(close) {
                    all.push(self.value(deep)?);
                    if !self.takes(',') {
                        self.needs(close)?;
                        break;
                    }
                }
                Some(Value::Array(all))
            }
            '{' => {
                self.needs('{')?;
                let mut all = Map::new();
                while !self.takes('}') {
                    self.skip();
                    let key = self.string()?;
                    self.needs(':')?;
                    let value = self.value(deep)?;
                    all.insert(key, value);
                    if !self.takes(',') {
                        self.needs('}')?;
                        break;
                    }
                }
                Some(Value::Object(all))
            }
            c if c.is_ascii_digit() || "+-.".contains(c) => self.number(),
            _ => match self.word("")? {
                "True" | "true" => Some(Value::Bool(true)),
                "False" | "false" => Some(Value::Bool(false)),
                "None" | "null" => Some(Value::Null),
                _ => None,
            },
        }
    }

    fn number(&mut self) -> Option<Value> {
        let part = |c: char| c.is_ascii_digit() || "+-._eE".contains(c);
        let (text, rest) =
            self.rest.split_at_checked(self.rest.find(|c| !part(c)).unwrap_or(self.rest.len()))?;
        self.rest = rest;
        let text = text.replace('_', "");
        match text.parse::<i64>() {
            Ok(whole) => Some(whole.into()),
            Err(_) => text.parse::<f64>().ok().filter(|x| x.is_finite()).map(Value::from),
        }
    }

    fn string(&mut self) -> Option<String> {
        let (quote, long) = match self.rest.get(..3) {
            Some(triple @ ("\"\"\"" | "'''")) => (triple, true),
            _ => (self.rest.get(..1).filter(|q| matches!(*q, "'" | "\""))?, false),
        };
        let mut rest = self.rest.get(quote.len()..)?;
        let mut text = String::new();
        loop {
            if let Some(after) = rest.strip_prefix(quote) {
                self.rest = after;
                return Some(text);
            }
            let mut chars = rest.chars();
            match chars.next()? {
                '\n' if !long => return None,
                '\\' => {
                    let escaped = chars.next()?;
                    let digits = match escaped {
                        'x' => 2,
                        'u' => 4,
                        'U' => 8,
                        _ => 0,
                    };
                    if digits > 0 {
                        let hex = chars.as_str().get(..digits)?;
                        text.push(char::from_u32(u32::from_str_radix(hex, 16).ok()?)?);
                        rest = chars.as_str().get(digits..)?;
                        continue;
                    }
                    match escaped {
                        'n' => text.push('\n'),
                        't' => text.push('\t'),
                        'r' => text.push('\r'),
                        '\n' => {}
                        '\\' | '\'' | '"' => text.push(escaped),
                        // As in Python, the backslash is kept.
                        other => text.extend(['\\', other]),
                    }
                }
                c => text.push(c),
            }
            rest = chars.as_str();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::calls;

    fn read(text: &str) -> Option<Vec<(String, String)>> {
        Some(calls(text)?.into_iter().map(|call| (call.name, call.arguments)).collect())
    }

    #[test]
    fn python_literals_become_json_and_others_are_refused() {
        let one = |name: &str, arguments: &str| Some(vec![(name.to_owned(), arguments.to_owned())]);
        for (text, want) in [
            ("time()", one("time", "{}")),
            ("print(default_api.weather(city='Paris'))", one("weather", r#"{"city":"Paris"}"#)),
            (
                "f(a=-3, b=2.5e3, c=True, d=None, e=[1, 'x', (2,)], g={\"k\": {'l': []}},)",
                one(
                    "f",
                    r#"{"a":-3,"b":2500.0,"c":true,"d":null,"e":[1,"x",[2]],"g":{"k":{"l":[]}}}"#,
                ),
            ),
            ("f(a='it\\'s \\u00e4 \\x41 \\d', b=\"\"\"two\n\"lines\"\"\"\")", None),
            ("f(a='it\\'s \\u00e4 \\x41 \\d')", one("f", "{\"a\":\"it's ä A \\\\d\"}")),
            ("f(a='''two\n'lines' ''')", one("f", "{\"a\":\"two\\n'lines' \"}")),
            ("f(1)", None),
            ("f(a=b)", None),
            ("f(a='x'", None),
            ("f(a='x\ny')", None),
            ("x = f()", None),
            ("print(1)", None),
            ("", None),
            ("f(a=1) and more", None),
        ] {
            assert_eq!(read(text), want, "{text}");
        }
        assert_eq!(read("f(a=1)\ng()").unwrap().len(), 2);
        assert_eq!(read("[f(a=1), g()]").unwrap().len(), 2);
        let deep = format!("f(a={}1{})", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(read(&deep), None);
    }
}
