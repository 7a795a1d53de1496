//! Splits a template into tokens. White space is handled by `trim_blocks` and `lstrip_blocks`.

use super::fault::{Fault, Kind};

#[derive(Debug, Clone, PartialEq)]
pub enum Token {
    /// Text outside of tags.
    Data(String),
    /// `{{`
    Open,
    /// `}}`
    Close,
    /// `{%`
    OpenBlock,
    /// `%}`
    CloseBlock,
    Name(String),
    Text(String),
    Int(i128),
    Float(f64),
    /// An operator or a bracket.
    Sign(&'static str),
}

/// A token and its line.
pub type Lexed = (usize, Token);

/// Operators; longer ones come first.
const SIGNS: [&str; 27] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";", "!",
];

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: usize,
    /// Whether this is the start of a line. White space before a block is then removed.
    line_begins: bool,
    out: Vec<Lexed>,
}

/// The tokens of a template.
pub fn lex(source: &str) -> Result<Vec<Lexed>, Fault> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer { source, at: 0, line: 1, line_begins: true, out: Vec::new() };
    while lexer.at < source.len() {
        lexer.next()?;
    }
    Ok(lexer.out)
}

impl Lexer<'_> {
    fn rest(&self) -> &str {
        self.source.get(self.at..).unwrap_or_default()
    }

    fn fail<T>(&self, problem: impl Into<String>) -> Result<T, Fault> {
        Err(Fault { line: self.line, kind: Kind::Wrong(problem.into()) })
    }

    /// Advances by a number of bytes.
    fn skip(&mut self, bytes: usize) {
        let passed = self.rest().get(..bytes).unwrap_or_default();
        let (lines, ends) = (passed.matches('\n').count(), passed.ends_with('\n'));
        self.line += lines;
        self.line_begins = if bytes > 0 { ends } else { self.line_begins };
        self.at += bytes;
    }

    fn push(&mut self, token: Token) {
        self.out.push((self.line, token));
    }

    /// Reads text up to a tag, and the tag.
    fn next(&mut self) -> Result<(), Fault> {
        let rest = self.rest();
        let tag = rest.match_indices('{').map(|(i, _)| i).find(|&i| {
            let next = rest.as_bytes().get(i + 1);
            matches!(next, Some(b'{' | b'%' | b'#'))
        });
        let Some(start) = tag else {
            let (data, len) = (rest.to_owned(), rest.len());
            self.data(data);
            self.skip(len);
            return Ok(());
        };
        let kind = rest.as_bytes().get(start + 1).copied().unwrap_or_default();
        let mark = rest.as_bytes().get(start + 2).copied().unwrap_or_default();
        let mut data = rest.get(..start).unwrap_or_default();
        match mark {
            b'-' => data = data.trim_end(),
            b'+' => {}
            _ if kind != b'{' => data = self.without_indent(data),
            _ => {}
        }
        let data = data.to_owned();
        self.data(data);
        self.skip(start + 2);
        if matches!(mark, b'-' | b'+') {
            self.skip(1);
        }
        match kind {
            b'#' => self.comment(),
            b'%' if self.is_raw().is_some() => self.raw(),
            b'%' => {
                self.push(Token::OpenBlock);
                self.tag("%}", Token::CloseBlock)
            }
            _ => {
                self.push(Token::Open);
                self.tag("}}", Token::Close)
            }
        }
    }

    /// Text before a block. If its last line is only white space, that line is removed.
    fn without_indent<'t>(&self, text: &'t str) -> &'t str {
        let line = text.rfind('\n').map(|i| i + 1).or(self.line_begins.then_some(0));
        let blank =
            line.filter(|&line| text.get(line..).is_some_and(|rest| rest.trim().is_empty()));
        blank.and_then(|line| text.get(..line)).unwrap_or(text)
    }

    fn data(&mut self, data: String) {
        if !data.is_empty() {
            self.push(Token::Data(data));
        }
    }

    fn comment(&mut self) -> Result<(), Fault> {
        let Some(end) = self.rest().find("#}") else { return self.fail("a comment has no '#}'") };
        let mark = end.checked_sub(1).and_then(|i| self.rest().as_bytes().get(i)).copied();
        self.skip(end);
        self.close(mark, true);
        Ok(())
    }

    /// Consumes the two closing characters of a tag, and the white space that belongs to it.
    fn close(&mut self, mark: Option<u8>, block: bool) {
        self.skip(2);
        if mark == Some(b'-') {
            let rest = self.rest();
            let space = rest.len() - rest.trim_start().len();
            self.skip(space);
        } else if block && mark != Some(b'+') && self.rest().starts_with('\n') {
            self.skip(1);
        }
    }

    /// If this is `{% raw %}`, returns the length of the rest of the tag, and its white space mark.
    fn is_raw(&self) -> Option<(usize, Option<u8>)> {
        let inner = self.rest().trim_start().strip_prefix("raw")?.trim_start();
        let mark = inner.bytes().next().filter(|b| *b == b'-');
        let inner = inner.get(usize::from(mark.is_some())..)?;
        inner.starts_with("%}").then(|| (self.rest().len() - inner.len(), mark))
    }

    fn raw(&mut self) -> Result<(), Fault> {
        let Some((len, mark)) = self.is_raw() else { return Ok(()) };
        self.skip(len);
        // The line end after this tag is part of the text, because `trim_blocks` does not apply.
        self.close(mark, false);
        let mut from = 0;
        while let Some(start) = self.rest().get(from..).and_then(|r| r.find("{%")).map(|i| i + from)
        {
            let tag = self.rest().get(start + 2..).unwrap_or_default();
            let before = tag.bytes().next().filter(|b| matches!(b, b'-' | b'+'));
            let inner = tag.get(usize::from(before.is_some())..).unwrap_or_default().trim_start();
            if let Some(inner) = inner.strip_prefix("endraw").map(str::trim_start) {
                let after = inner.bytes().next().filter(|b| matches!(b, b'-' | b'+'));
                let inner = inner.get(usize::from(after.is_some())..).unwrap_or_default();
                if inner.starts_with("%}") {
                    let end = self.rest().len() - inner.len();
                    let text = self.rest().get(..start).unwrap_or_default();
                    let text = match before {
                        Some(b'-') => text.trim_end(),
                        Some(_) => text,
                        None => self.without_indent(text),
                    };
                    let text = text.to_owned();
                    self.data(text);
                    self.skip(end);
                    self.close(after, true);
                    return Ok(());
                }
            }
            from = start + 2;
        }
        self.fail("a raw block has no endraw")
    }

    /// Reads the tokens of a tag to its end.
    fn tag(&mut self, end: &'static str, close: Token) -> Result<(), Fault> {
        // A `}` that closes a dictionary does not end the tag.
        let mut open = 0usize;
        loop {
            let space = self.rest().len() - self.rest().trim_start().len();
            self.skip(space);
            let rest = self.rest();
            let Some(first) = rest.chars().next() else { return self.fail("a tag is not closed") };
            if open == 0 {
                let mark = rest.bytes().next().filter(|b| matches!(b, b'-' | b'+'));
                let ends =
                    rest.get(usize::from(mark.is_some())..).is_some_and(|r| r.starts_with(end));
                if ends {
                    self.push(close);
                    self.skip(usize::from(mark.is_some()));
                    self.close(mark, end == "%}");
                    return Ok(());
                }
            }
            match first {
                'a'..='z' | 'A'..='Z' | '_' => self.name(),
                c if c.is_alphabetic() => self.name(),
                '0'..='9' => self.number()?,
                '"' | '\'' => self.text(first)?,
                _ => {
                    let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) else {
                        return self.fail(format!("unexpected character {first:?}"));
                    };
                    match *sign {
                        "(" | "[" | "{" => open += 1,
                        ")" | "]" | "}" => open = open.saturating_sub(1),
                        _ => {}
                    }
                    self.push(Token::Sign(sign));
                    self.skip(sign.len());
                }
            }
        }
    }

    fn name(&mut self) {
        let rest = self.rest();
        let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let name = rest.get(..len).unwrap_or_default().to_owned();
        self.push(Token::Name(name));
        self.skip(len);
    }

    fn number(&mut self) -> Result<(), Fault> {
        let radix = match self.rest().get(..2).map(str::to_ascii_lowercase).as_deref() {
            Some("0x") => 16,
            Some("0o") => 8,
            Some("0b") => 2,
            _ => 10,
        };
        if radix != 10 {
            let digits = self.rest().get(2..).unwrap_or_default();
            let len = digits.find(|c: char| c != '_' && !c.is_digit(radix)).unwrap_or(digits.len());
            let number = digits.get(..len).unwrap_or_default().replace('_', "");
            let Ok(number) = i128::from_str_radix(&number, radix) else {
                return self.fail(format!("{number:.40} is not a number or is too large"));
            };
            self.push(Token::Int(number));
            self.skip(2 + len);
            return Ok(());
        }
        let bytes = self.rest().as_bytes();
        let digits = |from: usize| {
            let run =
                bytes.iter().skip(from).take_while(|b| b.is_ascii_digit() || **b == b'_').count();
            from + run
        };
        let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
        let mut len = digits(0);
        let mut float = false;
        if bytes.get(len) == Some(&b'.') && is_digit(len + 1) {
            (len, float) = (digits(len + 1), true);
        }
        if matches!(bytes.get(len), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(len + 1), Some(b'+' | b'-')));
            if is_digit(len + 1 + sign) {
                (len, float) = (digits(len + 1 + sign), true);
            }
        }
        let text = self.rest().get(..len).unwrap_or_default().replace('_', "");
        let token = if float {
            text.parse().ok().map(Token::Float)
        } else {
            text.parse().ok().map(Token::Int)
        };
        let Some(token) = token else {
            return self.fail(format!("the number {text:.40} is too large"));
        };
        self.push(token);
        self.skip(len);
        Ok(())
    }

    fn text(&mut self, quote: char) -> Result<(), Fault> {
        let mut out = String::new();
        let mut chars = self.rest().char_indices().skip(1).peekable();
        let mut end = None;
        while let Some((i, c)) = chars.next() {
            if c == quote {
                end = Some(i + 1);
                break;
            }
            if c != '\\' {
                out.push(c);
                continue;
            }
            let Some((_, c)) = chars.next() else { break };
            let mut hex = |digits: usize| {
                let mut code = 0;
                for _ in 0..digits {
                    let (_, c) = chars.next_if(|(_, c)| c.is_ascii_hexdigit())?;
                    code = code << 4 | c.to_digit(16)?;
                }
                char::from_u32(code)
            };
            match c {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                '0'..='7' => {
                    let mut code = c.to_digit(8).unwrap_or(0);
                    for _ in 0..2 {
                        let digit =
                            chars.next_if(|(_, c)| c.is_digit(8)).and_then(|(_, c)| c.to_digit(8));
                        code = digit.map_or(code, |digit| code * 8 + digit);
                    }
                    out.extend(char::from_u32(code));
                }
                'a' => out.push('\x07'),
                'b' => out.push('\x08'),
                'f' => out.push('\x0C'),
                'v' => out.push('\x0B'),
                '\n' => {}
                'N' => {
                    return self.fail(
                        "character names (\\N) are not supported: write '\\u' and the code point",
                    );
                }
                '\\' | '\'' | '"' => out.push(c),
                'x' | 'u' | 'U' => {
                    let digits = match c {
                        'x' => 2,
                        'u' => 4,
                        _ => 8,
                    };
                    let Some(c) = hex(digits) else {
                        return self
                            .fail("an escape sequence in a string is not a valid character");
                    };
                    out.push(c);
                }
                _ => out.extend(['\\', c]),
            }
        }
        let Some(end) = end else { return self.fail("a string is not closed") };
        self.push(Token::Text(out));
        self.skip(end);
        Ok(())
    }
}
