//! Writes sets of values as rules in llguidance's dialect of Lark.

use super::items::{Item, Sequence};
use super::read::Reader;
use super::set::{Array, Object, Schema, Strings};
use super::translated::Translated;
use llguidance::api::ParserLimits;
use llguidance::{GrammarBuilder, JsonCompileOptions, regex_to_lark};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// White space in JSON: none, one space, or a line break and indentation. With unlimited white
/// space, some models write only white space until the token limit.
const WHITE_SPACE: &str = "%llguidance {\"ignore_once\": true}\n%ignore /( |\\n {0,16})/\n";
/// A character of a string. A character that needs no escape cannot be written as an escape, so
/// equal names are written equally.
const CHARACTER: &str = r#"([^"\\\x00-\x1F\x7F]|\\(["\\bfnrt]|u00[01][0-9a-fA-F]|u007[fF]))"#;
/// A character without escapes.
const PLAIN: &str = r#"[^"\\\x00-\x1F\x7F]"#;
/// Longer strings have no length limit.
const MAX_LENGTH: usize = 1_000_000;
/// Maximum characters of a date or a duration. Fractions of a second may have any number of digits.
const MAX_DATE_CHARS: usize = 40;
/// Maximum number of values in a list of unique values. Each further value doubles the number of
/// rules.
const MAX_UNIQUE: usize = 6;

/// Maximum number of optional properties of one object. Any of them may come next, and the
/// library's time grows with the square of their number. The slowest token of an answer takes 5 ms
/// with 500, 50 ms with 2,000, and seconds with 10,000.
const MAX_OPTIONAL: usize = 2000;

/// Writes the rules of a grammar.
pub struct Writer<'a> {
    reader: Reader<'a>,
    out: String,
    rules: HashMap<String, String>,
    terminals: HashMap<String, String>,
    /// Named references whose rules are not written yet.
    pending: Vec<usize>,
    named: HashSet<usize>,
    any: bool,
}

/// The kind of expression for a value in a rule.
enum RuleExpression {
    /// It can be used in terminals.
    Terminal(String),
    /// It can be used in rules only.
    Rule(String),
}

/// The rules of a schema.
pub fn write(reader: Reader<'_>, root: &Schema) -> Result<Translated, String> {
    let mut writer = Writer {
        reader,
        out: WHITE_SPACE.to_owned(),
        rules: HashMap::new(),
        terminals: HashMap::new(),
        pending: vec![],
        named: HashSet::new(),
        any: false,
    };
    let Some(start) = writer.value(root)? else { return Err("no value satisfies it".to_owned()) };
    let _ = writeln!(writer.out, "start: {start}");
    while let Some(number) = writer.pending.pop() {
        let schema = writer.reader.followed(number, 0)?;
        let Some(is) = writer.value(&schema)? else {
            return Err("no value satisfies the target of a reference".to_owned());
        };
        let _ = writeln!(writer.out, "d{number}: {is}");
    }
    Ok(Translated { lark: writer.out, unheld: writer.reader.unheld })
}

/// A string in Lark's syntax. The library does not accept an unescaped DEL.
fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// A JSON string in Lark's syntax.
fn json_text(text: &str) -> String {
    quoted(&Value::from(text).to_string().replace('\u{7f}', "\\u007f"))
}

impl Writer<'_> {
    /// The name of a rule with this body.
    pub fn rule(&mut self, is: &str) -> String {
        if let Some(name) = self.rules.get(is) {
            return name.clone();
        }
        let name = format!("r{}", self.rules.len());
        let _ = writeln!(self.out, "{name}: {is}");
        self.rules.insert(is.to_owned(), name.clone());
        name
    }

    fn terminal(&mut self, is: &str) -> String {
        if let Some(name) = self.terminals.get(is) {
            return name.clone();
        }
        let name = format!("T{}", self.terminals.len());
        let _ = writeln!(self.out, "{name}: {is}");
        self.terminals.insert(is.to_owned(), name.clone());
        name
    }

    /// The expression for a value in a rule; `None` if there is no such value.
    pub fn value(&mut self, schema: &Schema) -> Result<Option<String>, String> {
        Ok(match self.piece(schema)? {
            None => None,
            Some(RuleExpression::Terminal(is)) => Some(self.terminal(&is)),
            Some(RuleExpression::Rule(is)) => Some(is),
        })
    }

    fn piece(&mut self, schema: &Schema) -> Result<Option<RuleExpression>, String> {
        Ok(Some(match schema {
            Schema::Never => return Ok(None),
            Schema::Any => RuleExpression::Rule(self.anything()),
            Schema::Null => RuleExpression::Terminal("\"null\"".to_owned()),
            Schema::Bool => RuleExpression::Terminal("\"true\" | \"false\"".to_owned()),
            Schema::Number(numbers) => {
                let Some(terminal) = numbers.terminal() else { return Ok(None) };
                let held = |m| super::number::Decimal::of(m).is_some_and(|m| m.places().is_some());
                if numbers.multiples.iter().all(held) {
                    return Ok(Some(RuleExpression::Terminal(terminal)));
                }
                match numbers.schema().filter(|schema| tried(schema).is_ok()) {
                    Some(schema) => RuleExpression::Rule(self.rule(&by_library(&schema))),
                    None => {
                        self.reader.note("multipleOf", "$", false);
                        RuleExpression::Terminal(terminal)
                    }
                }
            }
            Schema::String(strings) => return self.string(strings),
            Schema::Array(array) => return Ok(self.array(array)?.map(RuleExpression::Rule)),
            Schema::Object(object) => return Ok(self.object(object)?.map(RuleExpression::Rule)),
            Schema::Literal(value) => self.literal(value),
            Schema::Union(all) => return self.union(all),
            Schema::Ref(number) => {
                if self.named.insert(*number) {
                    self.pending.push(*number);
                }
                RuleExpression::Rule(format!("d{number}"))
            }
        }))
    }

    /// One terminal for all alternatives that are terminals, and the rules for the others.
    fn union(&mut self, all: &[Schema]) -> Result<Option<RuleExpression>, String> {
        let (mut terminals, mut rules) = (vec![], vec![]);
        for one in all {
            match self.piece(one)? {
                None => {}
                Some(RuleExpression::Terminal(is)) if terminals.contains(&is) => {}
                Some(RuleExpression::Terminal(is)) => terminals.push(is),
                Some(RuleExpression::Rule(is)) if rules.contains(&is) => {}
                Some(RuleExpression::Rule(is)) => rules.push(is),
            }
        }
        let terminal = (!terminals.is_empty()).then(|| terminals.join(" | "));
        if rules.is_empty() {
            return Ok(terminal.map(RuleExpression::Terminal));
        }
        if let Some(terminal) = terminal {
            rules.push(self.terminal(&terminal));
        }
        Ok(Some(RuleExpression::Rule(match rules.as_slice() {
            [one] => one.clone(),
            _ => self.rule(&rules.join(" | ")),
        })))
    }

    /// The rule that accepts any value.
    fn anything(&mut self) -> String {
        if !std::mem::replace(&mut self.any, true) {
            let string = self.terminal(&string_terminal(&Strings::default()));
            let number = super::number::Numbers::default().terminal().unwrap_or_default();
            let other = self.terminal(&format!("\"null\" | \"true\" | \"false\" | {number}"));
            let _ = writeln!(
                self.out,
                "any: {string} | {other} | \"[\" \"]\" | \"[\" any (\",\" any)* \"]\" | \"{{\" \"}}\" | \
                 \"{{\" any_pair (\",\" any_pair)* \"}}\"\nany_pair: {string} \":\" any"
            );
        }
        "any".to_owned()
    }

    fn literal(&mut self, value: &Value) -> RuleExpression {
        match value {
            Value::Array(all) if all.is_empty() => RuleExpression::Terminal("\"[]\"".to_owned()),
            Value::Object(all) if all.is_empty() => RuleExpression::Terminal("\"{}\"".to_owned()),
            Value::String(text) => RuleExpression::Terminal(json_text(text)),
            Value::Array(all) => {
                let mut parts = vec![];
                for one in all {
                    parts.push(self.literal_rule(one));
                }
                RuleExpression::Rule(self.rule(&format!("\"[\" {} \"]\"", parts.join(" \",\" "))))
            }
            Value::Object(all) => {
                let mut parts = vec![];
                for (name, one) in all {
                    let value = self.literal_rule(one);
                    parts.push(format!("{} \":\" {value}", json_text(name)));
                }
                RuleExpression::Rule(self.rule(&format!("\"{{\" {} \"}}\"", parts.join(" \",\" "))))
            }
            other => RuleExpression::Terminal(quoted(&other.to_string())),
        }
    }

    fn literal_rule(&mut self, value: &Value) -> String {
        match self.literal(value) {
            RuleExpression::Terminal(is) => self.terminal(&is),
            RuleExpression::Rule(is) => is,
        }
    }

    fn string(&mut self, strings: &Strings) -> Result<Option<RuleExpression>, String> {
        if strings.most.is_some_and(|most| most < strings.least) {
            return Ok(None);
        }
        if strings.patterns.is_empty() && strings.formats.is_empty() {
            return Ok(Some(RuleExpression::Terminal(string_terminal(strings))));
        }
        let date_formats = ["date-time", "time", "duration"];
        let most =
            match strings.formats.iter().any(|format| date_formats.contains(&format.as_str())) {
                true => Some(
                    strings.most.unwrap_or(MAX_DATE_CHARS).min(MAX_DATE_CHARS.max(strings.least)),
                ),
                false => strings.most,
            };
        let schema = |patterns: &[&str], formats: &[String]| {
            let mut all: Vec<Value> =
                patterns.iter().map(|p| json!({ "type": "string", "pattern": p })).collect();
            all.extend(formats.iter().map(|format| json!({ "type": "string", "format": format })));
            let mut one = json!({ "type": "string", "minLength": strings.least.min(MAX_LENGTH) });
            if let (Some(most), Some(one)) =
                (most.filter(|most| *most < MAX_LENGTH), one.as_object_mut())
            {
                one.insert("maxLength".to_owned(), most.into());
            }
            all.push(one);
            match all.len() {
                1 => all.pop().unwrap_or_default(),
                _ => json!({ "allOf": all }),
            }
        };
        // Each pattern is compiled separately. An invalid pattern is an error. A pattern that is
        // too large is not enforced.
        let mut patterns: Vec<&str> = vec![];
        for (pattern, at) in &strings.patterns {
            match tried(&json!({ "type": "string", "pattern": pattern })) {
                Ok(()) => patterns.push(pattern),
                Err(why)
                    if why.contains("not supported") || why.contains("Unable to determine") =>
                {
                    self.reader.note("pattern", at, false);
                }
                // The pattern matches nothing.
                Err(why) if why.starts_with("Unsatisfiable") => return Ok(None),
                Err(why) => return Err(format!("{at}.pattern: {why}")),
            }
        }
        // First all constraints together. If that is too large, a subset, the strictest first.
        for (patterns, formats) in [
            (patterns.as_slice(), strings.formats.as_slice()),
            (&patterns, &[]),
            (&[], &strings.formats),
        ] {
            let one = schema(patterns, formats);
            match tried(&one) {
                Ok(()) => return Ok(Some(RuleExpression::Rule(self.rule(&by_library(&one))))),
                Err(why) if why.starts_with("Unsatisfiable") => return Ok(None),
                Err(_) => {
                    let at = strings.patterns.first().map_or("$", |(_, at)| at.as_str());
                    self.reader.note("pattern", at, false);
                }
            }
        }
        Ok(Some(RuleExpression::Terminal(string_terminal(strings))))
    }

    fn array(&mut self, array: &Array) -> Result<Option<String>, String> {
        let (least, most) = (array.least, array.most);
        if let Some(at) = array.unique.as_ref().filter(|_| most.is_none_or(|most| most > 1)) {
            let items = match &array.items {
                Schema::Ref(number) => self.reader.followed(*number, 0)?,
                items => items.clone(),
            };
            if array.prefix.is_empty()
                && let Some(values) = self.values(&items)
            {
                return Ok(self.subsets(&values, least, most).between("[", "]"));
            }
            if !array.items.is_never() {
                self.reader.note("uniqueItems", at, false);
            }
        }
        let mut items = vec![];
        let mut cut = false;
        for (i, one) in array.prefix.iter().enumerate().take(most.unwrap_or(usize::MAX)) {
            match self.value(one)? {
                Some(is) => items.push(is),
                None if i < least => return Ok(None),
                None => {
                    cut = true;
                    break;
                }
            }
        }
        let rest = if cut { None } else { self.value(&array.items)? };
        // The list is built from its end: the lists that may follow a number of items.
        let there = items.len();
        let comma = |i: usize| if i == 0 { "" } else { "\",\" " };
        let (left_least, left_most) =
            (least.saturating_sub(there), most.map(|most| most.saturating_sub(there)));
        let tail = match rest.filter(|_| left_most != Some(0)) {
            None if left_least > 0 => return Ok(None),
            None => None,
            Some(rest) => {
                let item = [Item { is: rest, required: false, again: true }];
                let Some(sequence) = self.sequence(&item, left_least, left_most) else {
                    return Ok(None);
                };
                sequence.some.map(|some| (some, sequence.none))
            }
        };
        let (mut some, mut none) = match tail {
            Some((some, none)) => (format!("{}{some}", comma(there)), none),
            None => (String::new(), true),
        };
        for (i, item) in items.into_iter().enumerate().rev() {
            let rest = match (some.is_empty(), none) {
                (true, _) => String::new(),
                (false, true) => format!(" ({some})?"),
                (false, false) => format!(" {some}"),
            };
            some = self.rule(&format!("{}{item}{rest}", comma(i)));
            none = i >= least;
        }
        let sequence = Sequence { none, some: Some(some).filter(|some| !some.is_empty()) };
        Ok(sequence.between("[", "]").map(|is| self.rule(&is)))
    }

    /// The values of a list of unique values, if all are known and there are few of them.
    fn values(&mut self, items: &Schema) -> Option<Vec<String>> {
        let all = match items {
            Schema::Union(all) => all.as_slice(),
            Schema::Bool => {
                &[Schema::Literal(Value::Bool(true)), Schema::Literal(Value::Bool(false))]
            }
            one @ Schema::Literal(_) => std::slice::from_ref(one),
            _ => return None,
        };
        let mut values: Vec<&Value> = vec![];
        for one in all {
            match one {
                Schema::Literal(value) if !values.contains(&value) => values.push(value),
                Schema::Literal(_) => {}
                Schema::Null => values.push(&Value::Null),
                _ => return None,
            }
        }
        (values.len() <= MAX_UNIQUE)
            .then(|| values.into_iter().map(|value| self.literal_rule(value)).collect())
    }

    fn object(&mut self, object: &Object) -> Result<Option<String>, String> {
        let required: HashSet<&str> = object.required.iter().map(String::as_str).collect();
        let known: HashSet<&str> =
            object.properties.iter().map(|(name, _)| name.as_str()).collect();
        let mut items = vec![];
        let mut taken = vec![];
        // Required properties that are not listed follow the listed properties.
        let others: Vec<(String, Schema)> =
            (object.required.iter().filter(|name| !known.contains(name.as_str())))
                .map(|name| (name.clone(), object.of_name(name)))
                .collect();
        for (name, schema) in object.properties.iter().chain(&others) {
            let required = required.contains(name.as_str());
            let text = json_text(name);
            match self.value(schema)? {
                None if required => return Ok(None),
                None => {}
                Some(value) => {
                    let is = self.rule(&format!("{text} \":\" {value}"));
                    items.push(Item { is, required, again: false });
                }
            }
            taken.push(text);
        }
        if object.most != Some(items.iter().filter(|item| item.required).count()) {
            let more = self.others(object, &taken)?;
            items.extend(more.map(|is| Item { is, required: false, again: true }));
        }
        let optional = items.iter().filter(|item| !item.required).count();
        if optional > MAX_OPTIONAL {
            let at = &object.at;
            return Err(format!(
                "{at}: {optional} properties are optional, more than the limit of {MAX_OPTIONAL}: \
                 make some of them required, or remove some"
            ));
        }
        let sequence = match self.sequence(&items, object.least, object.most) {
            Some(sequence) => Some(sequence),
            None => {
                self.reader.note("minProperties, maxProperties", &object.at, false);
                self.sequence(&items, 0, None)
            }
        };
        Ok(sequence.and_then(|sequence| sequence.between("{", "}")).map(|is| self.rule(&is)))
    }

    /// The rule of a property that is not listed in `properties`.
    fn others(&mut self, object: &Object, taken: &[String]) -> Result<Option<String>, String> {
        let names = &object.names;
        let mut narrow: Vec<String> = vec![];
        for (pattern, at) in &names.patterns {
            match self.name_pattern(pattern) {
                Some(terminal) => narrow.push(terminal),
                None => self.reader.note("propertyNames", at, false),
            }
        }
        if names.most.is_some_and(|most| most < names.least) {
            return Ok(None);
        }
        let free = format!("/\"{CHARACTER}{}\"/", counts(names));
        let not = |all: &[String]| {
            if all.is_empty() { String::new() } else { format!(" & ~({})", all.join(" | ")) }
        };
        let narrow = narrow.iter().fold(String::new(), |all, one| format!("{all} & {one}"));
        let mut patterns = vec![];
        for (pattern, schema) in &object.patterns {
            match self.name_pattern(pattern) {
                Some(terminal) => patterns.push((terminal, schema)),
                None => self.reader.note("patternProperties", &object.at, false),
            }
        }
        let mut ways = vec![];
        for (i, (pattern, schema)) in patterns.iter().enumerate() {
            // A name that matches two patterns would have to satisfy both schemas, so such names
            // are excluded.
            let others: Vec<String> = patterns
                .iter()
                .enumerate()
                .filter(|(j, _)| *j != i)
                .map(|(_, (p, _))| p.clone())
                .collect();
            let Some(value) = self.value(schema)? else { continue };
            let name =
                self.terminal(&format!("{free} & {pattern}{narrow}{}{}", not(taken), not(&others)));
            ways.push(format!("{name} \":\" {value}"));
        }
        if let Some(value) = self.value(&object.additional)? {
            let all: Vec<String> = patterns.into_iter().map(|(pattern, _)| pattern).collect();
            let name = self.terminal(&format!("{free}{narrow}{}{}", not(taken), not(&all)));
            ways.push(format!("{name} \":\" {value}"));
        }
        Ok((!ways.is_empty()).then(|| self.rule(&ways.join(" | "))))
    }

    /// Names that match a pattern, with their quotes. `None` if this cannot be expressed. Names
    /// with escapes are excluded.
    fn name_pattern(&mut self, pattern: &str) -> Option<String> {
        let whole = anchored(pattern)?;
        let expression = regex_to_lark(&whole, "dw");
        let mut builder = llguidance::derivre::RegexBuilder::new();
        builder.mk_regex(&expression).ok()?;
        Some(format!("(\"\\\"\" (/{expression}/ & /{PLAIN}*/) \"\\\"\")"))
    }
}

/// A schema that the library compiles, without its white space rules.
fn by_library(schema: &Value) -> String {
    let mut schema = schema.clone();
    if let Some(fields) = schema.as_object_mut() {
        fields.insert("x-guidance".to_owned(), json!({ "whitespace_flexible": false }));
    }
    format!("%json {schema}").replace('\u{7f}', "\\u007f")
}

/// Whether the library can compile a schema.
fn tried(schema: &Value) -> Result<(), String> {
    let builder = GrammarBuilder::new(None, ParserLimits::default());
    let made = JsonCompileOptions::default().json_to_llg(builder, schema.clone());
    made.map(|_| ()).map_err(|why| why.to_string())
}

/// The repetition operator for a range of lengths.
fn counts(strings: &Strings) -> String {
    let least = strings.least.min(MAX_LENGTH);
    match strings.most.filter(|most| *most < MAX_LENGTH) {
        Some(most) => format!("{{{least},{most}}}"),
        None if least == 0 => "*".to_owned(),
        None => format!("{{{least},}}"),
    }
}

fn string_terminal(strings: &Strings) -> String {
    format!("/\"{CHARACTER}{}\"/", counts(strings))
}

/// Converts an expression that is searched in a text to an expression that matches the whole text.
/// `None` if it contains an anchor in the middle.
fn anchored(pattern: &str) -> Option<String> {
    let mut ways = vec![];
    let (mut depth, mut class, mut escaped, mut from) = (0usize, false, false, 0);
    let mut ends: Vec<usize> = vec![];
    for (at, c) in pattern.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ']' => class = false,
            _ if class => {}
            '[' => class = true,
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            '|' if depth == 0 => ends.push(at),
            _ => {}
        }
    }
    ends.push(pattern.len());
    for end in ends {
        let way = pattern.get(from..end)?;
        from = end + 1;
        let (way, begins) = way.strip_prefix('^').map_or((way, false), |way| (way, true));
        let slashes = |text: &str| text.len() - text.trim_end_matches('\\').len();
        let (way, stops) = match way.strip_suffix('$').filter(|way| slashes(way) % 2 == 0) {
            Some(way) => (way, true),
            None => (way, false),
        };
        let anchors = |way: &str| {
            let (mut class, mut escaped) = (false, false);
            way.chars().any(|c| {
                let inside = class;
                match c {
                    _ if std::mem::take(&mut escaped) => {
                        return !inside && matches!(c, 'b' | 'B' | 'A' | 'z' | 'Z');
                    }
                    '\\' => escaped = true,
                    ']' => class = false,
                    '[' => class = true,
                    _ => {}
                }
                !inside && matches!(c, '^' | '$')
            })
        };
        if anchors(way) {
            return None;
        }
        let any = |no: bool| if no { "" } else { "(?s:.)*" };
        ways.push(format!("{}(?:{way}){}", any(begins), any(stops)));
    }
    Some(ways.join("|"))
}

#[cfg(test)]
mod tests {
    use super::anchored;

    #[test]
    fn unanchored_patterns_match_whole_strings() {
        for (pattern, want) in [
            ("a", Some("(?s:.)*(?:a)(?s:.)*")),
            ("^a$", Some("(?:a)")),
            ("^a|b$", Some("(?:a)(?s:.)*|(?s:.)*(?:b)")),
            ("^(a|b)\\$", Some("(?:(a|b)\\$)(?s:.)*")),
            ("^[^|$]+$", Some("(?:[^|$]+)")),
            ("(^a)", None),
            ("a\\b", None),
        ] {
            assert_eq!(anchored(pattern).as_deref(), want, "{pattern}");
        }
    }
}
