//! Filters on strings.

use std::rc::Rc;

use super::super::bind::{Arguments, flag, optional, size, text};
use super::super::meter::{Meter, MeteredString};
use super::super::text as written;
use super::super::value::Value;
use super::super::{chars, format, methods};
use super::wrap;
use crate::jinja::fault::{Fault, wrong};

pub fn filter(
    name: &str,
    value: &Value,
    arguments: &Arguments,
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    let whole = written::as_text(value, meter)?;
    let this = whole.as_text().unwrap_or_default();
    let safe = matches!(&whole, Value::Text(text) if text.safe);
    let needs_text = || match value {
        Value::Text(_) => Ok(()),
        other => wrong(format!("{name} needs a string, not {}", other.kind())),
    };
    let string =
        |value: Option<&Value>| value.map(|value| written::to_string(value, meter)).transpose();
    meter.bytes(this.len())?;
    match name {
        "string" => {
            arguments.bind(name, [], 0)?;
            Ok(whole)
        }
        "upper" | "lower" | "capitalize" => {
            arguments.bind(name, [], 0)?;
            Ok(methods::in_case(this, name, meter)?.marked_safe(safe))
        }
        "title" => {
            arguments.bind(name, [], 0)?;
            Value::check_length(this.len() / 8, meter)?;
            Value::text(&title(this), meter)
        }
        "trim" => {
            let [set] = arguments.bind(name, ["chars"], 0)?;
            let set = text(set.filter(|set| !matches!(set, Value::None)), "chars")?;
            Ok(methods::strip(this, "strip", set, meter)?.marked_safe(safe))
        }
        "replace" => {
            let [old, new, most] = arguments.bind(name, ["old", "new", "count"], 2)?;
            let most = optional(most, "count")?.and_then(|n| usize::try_from(n).ok());
            let (old, new) = (string(old)?.unwrap_or_default(), string(new)?.unwrap_or_default());
            methods::replace(this, &old, &new, most, meter)
        }
        "split" => {
            let [by] = arguments.bind(name, ["sep"], 0)?;
            methods::split(this, text(by, "sep")?, None, false, meter)
        }
        "center" => {
            let [width] = arguments.bind(name, ["width"], 0)?;
            Ok(methods::fill_up(this, name, size(width, "width", 80)?, " ", meter)?
                .marked_safe(safe))
        }
        "format" => {
            if !arguments.positional.is_empty() && !arguments.named.is_empty() {
                return wrong("format accepts either positional or named values, not both");
            }
            let named = arguments
                .named
                .iter()
                .map(|(name, value)| Ok((Value::text(name, meter)?, value.clone())));
            let named = named.collect::<Result<Vec<_>, Fault>>()?;
            let named = if named.is_empty() { Value::None } else { Value::map(named, meter)? };
            let named_alone = std::slice::from_ref(&named);
            let values = if matches!(named, Value::None) {
                arguments.positional.as_slice()
            } else {
                named_alone
            };
            Ok(format::percent(this, safe, values, &named, meter)?.marked_safe(safe))
        }
        "indent" => {
            needs_text()?;
            let [width, first, blank] = arguments.bind(name, ["width", "first", "blank"], 0)?;
            let width = match width {
                Some(Value::Text(width)) => width.to_string(),
                width => {
                    let mut out = MeteredString::new(meter);
                    out.repeat(" ", size(width, "width", 4)?)?;
                    out.finish_uncounted()
                }
            };
            indent(this, &width, flag(first, false), flag(blank, false), meter)
        }
        "truncate" => {
            needs_text()?;
            let [length, kill, end, leeway] =
                arguments.bind(name, ["length", "killwords", "end", "leeway"], 0)?;
            let end = string(end)?.unwrap_or_else(|| "...".to_owned());
            let (length, leeway) =
                (size(length, "length", 255)?, optional(leeway, "leeway")?.unwrap_or(5));
            let ending = end.chars().count();
            if length < ending || leeway < 0 {
                return wrong(format!(
                    "truncate: the length {length} is less than the length of 'end' ({ending})"
                ));
            }
            let most = length.saturating_add(usize::try_from(leeway).unwrap_or(usize::MAX));
            if this.chars().count() <= most {
                return Ok(whole);
            }
            let kept: String = this.chars().take(length - ending).collect();
            let words = kept.rsplit_once(' ').map_or(kept.as_str(), |(before, _)| before);
            let mut out = MeteredString::new(meter);
            out.push(if flag(kill, false) { &kept } else { words })?;
            out.push(&end)?;
            Value::grown(out, meter)
        }
        "wordcount" => {
            arguments.bind(name, [], 0)?;
            Ok(Value::Int(
                this.split(|c| !chars::is_word(c)).filter(|word| !word.is_empty()).count() as i128,
            ))
        }
        "wordwrap" => {
            needs_text()?;
            let [width, long, between, hyphens] = arguments.bind(
                name,
                ["width", "break_long_words", "wrapstring", "break_on_hyphens"],
                0,
            )?;
            let width = match size(width, "width", 79)? {
                0 => return wrong("wordwrap: the width must be at least 1"),
                width => width,
            };
            let between =
                text(between.filter(|between| !matches!(between, Value::None)), "wrapstring")?;
            let wrap =
                wrap::Wrap { width, long_words: flag(long, true), hyphens: flag(hyphens, true) };
            wrap.text(this, between.unwrap_or("\n"), meter)
        }
        "tojson" => to_json(value, arguments, meter),
        _ => {
            arguments.bind(name, [], 0)?;
            let mut out = MeteredString::new(meter);
            written::pretty(value, &mut out, meter)?;
            Value::grown(out, meter)
        }
    }
}

/// Capitalises every word. A word starts after white space, a hyphen or a bracket.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let begins = |c: char| chars::is_space(c) || "-({[<".contains(c);
    for word in text.split_inclusive(begins) {
        let mut letters = word.chars();
        out.extend(letters.next().into_iter().flat_map(char::to_uppercase));
        out.push_str(&letters.as_str().to_lowercase());
    }
    out
}

fn indent(
    text: &str,
    width: &str,
    first: bool,
    blank: bool,
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    let mut out = MeteredString::new(meter);
    // If the text ends with a line end, its last line is an empty line.
    let open = text.is_empty() || text.ends_with(|c| c != '\r' && chars::is_line_end(c));
    for (i, line) in chars::lines(text, false).chain(open.then_some("")).enumerate() {
        meter.work(1)?;
        out.push(if i > 0 { "\n" } else { "" })?;
        let indented = if i == 0 { first } else { blank || !line.is_empty() };
        out.push(if indented { width } else { "" })?;
        out.push(line)?;
    }
    Value::grown(out, meter)
}

fn to_json(value: &Value, arguments: &Arguments, meter: &Rc<Meter>) -> Result<Value, Fault> {
    let [ascii, indent, separators, sorted] =
        arguments.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"], 0)?;
    let indent = match indent {
        Some(Value::Text(indent)) => Some(indent.to_string()),
        other => match optional(other, "indent")? {
            Some(width) if width <= 64 => Some(" ".repeat(usize::try_from(width).unwrap_or(0))),
            Some(_) => return wrong("tojson: indent must be a string or an integer from 0 to 64"),
            None => None,
        },
    };
    let (item, key) = match separators {
        None | Some(Value::None) => {
            (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned())
        }
        Some(Value::List(pair)) => match pair.items.as_slice() {
            [Value::Text(item), Value::Text(key)] => (item.to_string(), key.to_string()),
            _ => return wrong("tojson: separators must be two strings"),
        },
        Some(_) => return wrong("tojson: separators must be two strings"),
    };
    let json =
        written::Json { indent, item, key, ascii: flag(ascii, false), sorted: flag(sorted, false) };
    let mut out = MeteredString::new(meter);
    json.write(value, 0, &mut out, meter)?;
    Value::grown(out, meter)
}
