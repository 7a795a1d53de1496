//! Translates GBNF, the grammars of llama.cpp
//! (<https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md>), to llguidance's
//! dialect of Lark. Rules become rules, and character classes become regular expressions. Both
//! grammars accept the same texts.

use std::fmt::Write;

/// Maximum nesting of parentheses.
const MAX_DEPTH: usize = 128;
/// Maximum number of repetitions in `{m,n}`. llama.cpp has the same limit.
const MAX_REPETITIONS: u32 = 2000;
/// Maximum sum of all such numbers in a grammar. With 800 times `{0,2000}`, one token took 15 s.
const MAX_TOTAL_REPETITIONS: u32 = 100_000;

/// Translates the grammar to Lark. Its first rule is `root`.
///
/// # Errors
/// One line with the position and the problem.
pub fn lark_of_gbnf(grammar: &str) -> Result<String, String> {
    let mut reader = Reader { text: grammar, at: 0, defined: vec![], used: vec![], times: 0 };
    let mut rules = String::new();
    reader.space(true);
    while reader.rest().chars().next().is_some() {
        let name = reader.name().ok_or_else(|| reader.wrong("expected the name of a rule"))?;
        reader.space(false);
        if !reader.takes("::=") {
            return Err(reader.wrong("expected '::=' after the name of the rule"));
        }
        reader.space(true);
        let body = reader.alternatives(0)?;
        if !matches!(reader.rest().chars().next(), None | Some('\n' | '\r')) {
            return Err(reader.wrong("expected the end of the rule"));
        }
        if reader.defined.contains(&name) {
            return Err(reader.wrong(&format!("the rule '{name}' occurs twice")));
        }
        let _ = writeln!(rules, "{}: {body}", rule(&name));
        reader.defined.push(name);
        reader.space(true);
    }
    if !reader.defined.iter().any(|name| name == "root") {
        return Err("the rule 'root' is missing: a text starts with it".to_owned());
    }
    match reader.used.iter().find(|name| !reader.defined.contains(name)) {
        Some(name) => Err(format!("the rule '{name}' is used but not defined")),
        None => Ok(format!("start: {}\n{rules}", rule("root"))),
    }
}

/// The name of a rule in Lark: lower-case letters, digits and `_`. `-` and capitals are replaced by
/// letters. Different names stay different.
fn rule(name: &str) -> String {
    name.chars().fold("r_".to_owned(), |mut all, c| {
        match c {
            '-' => all.push_str("_m_"),
            '_' => all.push_str("__"),
            c if c.is_ascii_uppercase() => {
                all.push_str("_u");
                all.push(c.to_ascii_lowercase());
            }
            c => all.push(c),
        }
        all
    })
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    defined: Vec<String>,
    used: Vec<String>,
    /// Sum of the numbers of repetitions.
    times: u32,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn wrong(&self, why: &str) -> String {
        let before = self.text.get(..self.at).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        format!("line {line}, column {column}: {why}")
    }

    fn takes(&mut self, text: &str) -> bool {
        let is = self.rest().starts_with(text);
        self.at += if is { text.len() } else { 0 };
        is
    }

    /// Skips blanks and comments. If the rule continues on the next line, also skips line ends.
    fn space(&mut self, lines: bool) {
        loop {
            let rest = self.rest();
            let next = match rest.chars().next() {
                Some(' ' | '\t') => 1,
                Some('\n' | '\r') if lines => 1,
                Some('#') => rest.find(['\n', '\r']).unwrap_or(rest.len()),
                _ => return,
            };
            self.at += next;
        }
    }

    fn name(&mut self) -> Option<String> {
        let rest = self.rest();
        let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let end = rest.find(|c| !part(c)).unwrap_or(rest.len());
        let name = rest.get(..end).filter(|name| !name.is_empty())?;
        self.at += end;
        Some(name.to_owned())
    }

    /// Alternatives up to the end of the rule or a parenthesis.
    fn alternatives(&mut self, deep: usize) -> Result<String, String> {
        if deep > MAX_DEPTH {
            return Err(self.wrong(&format!("parentheses are nested more than {MAX_DEPTH} deep")));
        }
        let mut all = vec![self.sequence(deep)?];
        while self.takes("|") {
            self.space(true);
            all.push(self.sequence(deep)?);
        }
        Ok(all.join(" | "))
    }

    fn sequence(&mut self, deep: usize) -> Result<String, String> {
        let mut all: Vec<String> = vec![];
        loop {
            let rest = self.rest();
            let one = match rest.chars().next() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.at += 1;
                    r"/(.|\n)/".to_owned()
                }
                Some('(') => {
                    self.at += 1;
                    self.space(true);
                    let inner = self.alternatives(deep + 1)?;
                    // Line ends are white space inside parentheses.
                    self.space(true);
                    if !self.takes(")") {
                        return Err(self.wrong("a parenthesis is not closed"));
                    }
                    format!("({inner})")
                }
                Some(c) if c.is_ascii_alphanumeric() || c == '_' || c == '-' => {
                    let name = self.name().unwrap_or_default();
                    if !self.used.contains(&name) {
                        self.used.push(name.clone());
                    }
                    rule(&name)
                }
                Some('<') => {
                    return Err(self.wrong("token references (<…>) are not supported: use strings"));
                }
                _ => break,
            };
            let times = self.times()?;
            all.push(match times.is_empty() || one.starts_with('(') {
                true => one + &times,
                false => format!("({one}){times}"),
            });
            self.space(deep > 0);
        }
        // An empty alternative is allowed.
        Ok(if all.is_empty() { "\"\"".to_owned() } else { all.join(" ") })
    }

    /// `*`, `+`, `?`, `{m}`, `{m,}`, `{m,n}`.
    fn times(&mut self) -> Result<String, String> {
        for sign in ["*", "+", "?"] {
            if self.takes(sign) {
                return Ok(sign.to_owned());
            }
        }
        if !self.takes("{") {
            return Ok(String::new());
        }
        let least = self.number();
        let most = if self.takes(",") { self.number() } else { least };
        let open = self.text.get(..self.at).is_some_and(|text| text.ends_with(','));
        if !self.takes("}") {
            return Err(self.wrong("expected {m}, {m,} or {m,n}"));
        }
        self.times = self.times.saturating_add(most.or(least).unwrap_or(0));
        if self.times > MAX_TOTAL_REPETITIONS {
            return Err(self.wrong(&format!(
                "more than {MAX_TOTAL_REPETITIONS} repetitions in total: \
                 use smaller numbers, or * or +"
            )));
        }
        match (least, most) {
            (Some(m), None) if open && m <= MAX_REPETITIONS => Ok(format!("{{{m},}}")),
            (Some(m), Some(n)) if m <= n && n <= MAX_REPETITIONS => Ok(format!("{{{m},{n}}}")),
            (None, Some(n)) if n <= MAX_REPETITIONS => Ok(format!("{{0,{n}}}")),
            _ => Err(self.wrong(&format!(
                "repetitions must be at most {MAX_REPETITIONS}, with the minimum first"
            ))),
        }
    }

    fn number(&mut self) -> Option<u32> {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number = rest.get(..end)?.parse().ok();
        self.at += end;
        number
    }

    /// A character, and whether it was escaped.
    fn character(&mut self) -> Result<(char, bool), String> {
        let ended = |me: &Self| me.wrong("the string is not closed");
        let mut chars = self.rest().chars();
        let first = chars.next().ok_or_else(|| ended(self))?;
        if matches!(first, '\n' | '\r') {
            return Err(ended(self));
        }
        if first != '\\' {
            self.at += first.len_utf8();
            return Ok((first, false));
        }
        let second = chars.next().ok_or_else(|| ended(self))?;
        let digits = match second {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        let hex = self.rest().get(2..2 + digits);
        let c = match second {
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            '\\' | '"' | '[' | ']' | '-' | '^' | '/' => Some(second),
            _ if digits > 0 => {
                hex.and_then(|hex| u32::from_str_radix(hex, 16).ok()).and_then(char::from_u32)
            }
            _ => None,
        };
        let c = c.ok_or_else(|| self.wrong("unknown escape sequence"))?;
        // Every letter after a backslash has one byte.
        self.at += 2 + digits;
        Ok((c, true))
    }

    fn literal(&mut self) -> Result<String, String> {
        self.at += 1;
        let mut text = String::new();
        while !self.takes("\"") {
            text.push(self.character()?.0);
        }
        // The string as JSON, which Lark can read. The library does not accept an unescaped DEL.
        let text = serde_json::Value::from(text).to_string();
        Ok(text.replace('\u{7f}', "\\u007f"))
    }

    /// A class of characters as a regular expression.
    fn class(&mut self) -> Result<String, String> {
        self.at += 1;
        let not = self.takes("^");
        let mut ranges = String::new();
        while !self.takes("]") {
            let (first, _) = self.character()?;
            let _ = write!(ranges, "\\u{{{:x}}}", u32::from(first));
            let range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
            if range {
                self.at += 1;
                let (last, _) = self.character()?;
                if last < first {
                    return Err(self.wrong("the range ends before it begins"));
                }
                let _ = write!(ranges, "-\\u{{{:x}}}", u32::from(last));
            }
        }
        match (ranges.is_empty(), not) {
            (true, true) => Ok(r"/(.|\n)/".to_owned()),
            (true, false) => Err(self.wrong("a class without characters matches nothing")),
            (false, _) => Ok(format!("/[{}{ranges}]/", if not { "^" } else { "" })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::lark_of_gbnf;

    #[test]
    fn gbnf_rules_classes_and_repetitions_are_translated() {
        let gbnf = "# a comment\nroot  ::= (\"yes\" | no-Way) [a-z0-9_\\-]+ .{2,3} \"\\\"\\n\"?\n\
            no-Way ::= \"no\" |\n  [^\\x41-C] ( \"x\"\n  \"y\" )*  # another\n";
        let want = "start: r_root\n\
            r_root: (\"yes\" | r_no_m__uway) (/[\\u{61}-\\u{7a}\\u{30}-\\u{39}\\u{5f}\\u{2d}]/)+ \
            (/(.|\\n)/){2,3} (\"\\\"\\n\")?\n\
            r_no_m__uway: \"no\" | /[^\\u{41}-\\u{43}]/ (\"x\" \"y\")*\n";
        assert_eq!(lark_of_gbnf(gbnf).unwrap(), want);
    }

    #[test]
    fn gbnf_errors_are_named_with_position() {
        for (gbnf, why) in [
            ("", "the rule 'root' is missing: a text starts with it"),
            ("root ::= a", "the rule 'a' is used but not defined"),
            ("root = \"x\"", "line 1, column 6: expected '::=' after the name of the rule"),
            ("root ::= \"x", "line 1, column 12: the string is not closed"),
            ("root ::= (\"x\"", "line 1, column 14: a parenthesis is not closed"),
            ("root ::= \"x\" )", "line 1, column 14: expected the end of the rule"),
            ("root ::= [z-a]", "line 1, column 14: the range ends before it begins"),
            ("root ::= \"a\\q\"", "line 1, column 12: unknown escape sequence"),
            ("root ::= \"a\"\nroot ::= \"b\"", "line 2, column 13: the rule 'root' occurs twice"),
            (
                "root ::= \"a\"{3,2}",
                "line 1, column 18: repetitions must be at most 2000, with the minimum first",
            ),
            (
                "root ::= <[5]>",
                "line 1, column 10: token references (<…>) are not supported: use strings",
            ),
        ] {
            assert_eq!(lark_of_gbnf(gbnf).unwrap_err(), why, "{gbnf}");
        }
        let many = format!("root ::= {}", "([ab]? \"c\"){0,2000} ".repeat(51));
        assert_eq!(
            lark_of_gbnf(&many).unwrap_err(),
            "line 1, column 1029: more than 100000 repetitions in total: \
             use smaller numbers, or * or +"
        );
        let deep = format!("root ::= {}\"x\"{}", "(".repeat(100_000), ")".repeat(100_000));
        assert!(lark_of_gbnf(&deep).unwrap_err().contains("parentheses"));
    }
}
