//! Methods of strings: the methods of Python's `str` except `encode`, which returns bytes.

use std::ops::Range;
use std::rc::Rc;

use super::super::bind::{Arguments, flag, optional, size, text, whole};
use super::super::meter::{Meter, MeteredString};
use super::super::text as written;
use super::super::value::{Text, Value};
use super::super::{chars, format};
use crate::jinja::fault::{Fault, wrong};

/// The names of all methods.
pub const METHODS: [&str; 46] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];

/// Calls a method. If the input is HTML and the result has the same letters, the result is also
/// HTML.
pub fn call(
    this: &Text,
    name: &str,
    arguments: &Arguments,
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    meter.bytes(this.len())?;
    let result = match name {
        "upper" | "lower" | "casefold" | "title" | "capitalize" | "swapcase" => {
            arguments.bind(name, [], 0)?;
            in_case(this, name, meter)
        }
        "isalnum" | "isalpha" | "isascii" | "isdecimal" | "isdigit" | "isidentifier"
        | "islower" | "isnumeric" | "isprintable" | "isspace" | "istitle" | "isupper" => {
            arguments.bind(name, [], 0)?;
            Ok(Value::Bool(is(this, name)))
        }
        "strip" | "lstrip" | "rstrip" => {
            let [set] = arguments.bind(name, ["chars"], 0)?;
            strip(this, name, text(set.filter(|set| !matches!(set, Value::None)), "chars")?, meter)
        }
        "center" | "ljust" | "rjust" => {
            let [width, fill] = arguments.bind(name, ["width", "fillchar"], 1)?;
            let fill = text(fill, "fillchar")?.unwrap_or(" ");
            if fill.chars().count() != 1 {
                return wrong(format!("{name}(): the fill must be one character"));
            }
            fill_up(this, name, size(width, "width", 0)?, fill, meter)
        }
        "zfill" => {
            let [width] = arguments.bind(name, ["width"], 1)?;
            let fill = size(width, "width", 0)?.saturating_sub(this.chars().count());
            let digits = this.strip_prefix(['+', '-']).unwrap_or(this);
            let mut out = MeteredString::new(meter);
            out.push(this.get(..this.len() - digits.len()).unwrap_or_default())?;
            out.repeat("0", fill)?;
            out.push(digits)?;
            Value::grown(out, meter)
        }
        "expandtabs" => {
            let [width] = arguments.bind(name, ["tabsize"], 0)?;
            expand_tabs(this, size(width, "tabsize", 8)?, meter)
        }
        "split" | "rsplit" => {
            let [by, most] = arguments.bind(name, ["sep", "maxsplit"], 0)?;
            let most = whole(most, "maxsplit")?.and_then(|n| usize::try_from(n).ok());
            let by = text(by.filter(|by| !matches!(by, Value::None)), "sep")?;
            return split(this, by, most, name == "rsplit", meter);
        }
        "splitlines" => {
            let [keep] = arguments.bind(name, ["keepends"], 0)?;
            let lines = chars::lines(this, flag(keep, false)).map(|line| Value::text(line, meter));
            let lines = lines.collect::<Result<_, _>>()?;
            return Value::list(lines, meter);
        }
        "partition" | "rpartition" => {
            let [by] = arguments.bind(name, ["sep"], 1)?;
            let by = needed(by, "sep")?;
            if by.is_empty() {
                return wrong(format!("{name}(): the separator is empty"));
            }
            let found =
                if name == "partition" { this.split_once(by) } else { this.rsplit_once(by) };
            let parts = match (found, name) {
                (Some((before, after)), _) => [before, by, after],
                (None, "partition") => [this, "", ""],
                (None, _) => ["", "", this],
            };
            let parts =
                parts.into_iter().map(|part| Value::text(part, meter)).collect::<Result<_, _>>()?;
            return Value::tuple(parts, meter);
        }
        "replace" => {
            let [old, new, most] = arguments.bind(name, ["old", "new", "count"], 2)?;
            let most = whole(most, "count")?.and_then(|n| usize::try_from(n).ok());
            replace(this, needed(old, "old")?, needed(new, "new")?, most, meter)
        }
        "removeprefix" | "removesuffix" => {
            let [part] = arguments.bind(name, ["part"], 1)?;
            let part = needed(part, "part")?;
            let rest = if name == "removeprefix" {
                this.strip_prefix(part)
            } else {
                this.strip_suffix(part)
            };
            Value::text(rest.unwrap_or(this), meter)
        }
        "startswith" | "endswith" | "find" | "rfind" | "index" | "rindex" | "count" => {
            let [part, from, to] = arguments.bind(name, ["sub", "start", "end"], 1)?;
            let within = bytes_between(this, [from, to])?;
            return search(this, name, part.unwrap_or(&Value::Undefined), within, meter);
        }
        "join" => {
            let [all] = arguments.bind(name, ["iterable"], 1)?;
            let items = crate::jinja::items::items(all.unwrap_or(&Value::Undefined), meter)?;
            if let Some(other) = items.iter().find(|item| item.as_text().is_none()) {
                return wrong(format!(
                    "join() needs strings, not {}; '|join' accepts any value",
                    other.kind()
                ));
            }
            join(this, &items, meter)
        }
        "format" => format::braces(this, &arguments.positional, &arguments.named, meter),
        "format_map" => {
            let [map] = arguments.bind(name, ["mapping"], 1)?;
            let Some(Value::Map(map)) = map else { return wrong("format_map() needs an object") };
            let mut named = Vec::new();
            for (key, value) in &map.entries {
                meter.bytes(key.as_text().map_or(0, str::len))?;
                named.extend(key.as_text().map(|key| (key.to_owned(), value.clone())));
            }
            format::braces(this, &[], &named, meter)
        }
        "maketrans" => return make_table(arguments, meter),
        "translate" => {
            let [table] = arguments.bind(name, ["table"], 1)?;
            translate(this, table.unwrap_or(&Value::Undefined), meter)
        }
        _ => return wrong(format!("a string has no method {name:.40}()")),
    };
    Ok(result?.marked_safe(this.safe))
}

fn needed<'v>(value: Option<&'v Value>, name: &str) -> Result<&'v str, Fault> {
    text(value, name).map(Option::unwrap_or_default)
}

/// A string in a different case. It may have three times as many bytes.
pub fn in_case(this: &str, name: &str, meter: &Rc<Meter>) -> Result<Value, Fault> {
    meter.bytes(this.len())?;
    Value::check_length(this.len() / 8, meter)?;
    let changed = match name {
        "upper" => this.to_uppercase(),
        "lower" => this.to_lowercase(),
        "casefold" => chars::fold_case(this),
        "title" => chars::title(this),
        "swapcase" => chars::swap_case(this),
        _ => chars::capitalize(this),
    };
    Value::text(&changed, meter)
}

fn is(this: &str, name: &str) -> bool {
    let all = |is: fn(char) -> bool| !this.is_empty() && this.chars().all(is);
    match name {
        "isalnum" => all(|c| chars::is_alphanumeric(c) || chars::is_numeric(c)),
        "isalpha" => all(chars::is_letter),
        "isascii" => this.is_ascii(),
        "isdecimal" => all(chars::is_decimal),
        "isdigit" => all(chars::is_digit),
        "isidentifier" => all(chars::is_word) && !this.starts_with(chars::is_numeric),
        "islower" => chars::is_lower_case(this),
        "isnumeric" => all(chars::is_numeric),
        "isprintable" => this.chars().all(chars::is_printable),
        "isspace" => all(chars::is_space),
        "istitle" => chars::is_title_case(this),
        _ => chars::is_upper_case(this),
    }
}

/// Removes white space, or the characters of a set, from one end or from both ends.
pub fn strip(this: &str, name: &str, set: Option<&str>, meter: &Rc<Meter>) -> Result<Value, Fault> {
    meter.work(this.len().saturating_mul(set.map_or(0, str::len)) / 256)?;
    let is = stripped(set);
    Value::text(
        match name {
            "lstrip" => this.trim_start_matches(is),
            "rstrip" => this.trim_end_matches(is),
            _ => this.trim_start_matches(&is).trim_end_matches(&is),
        },
        meter,
    )
}

/// Pads to a width. If the number of padding characters is odd, the extra character is on the same
/// side as in Python.
pub fn fill_up(
    this: &str,
    name: &str,
    width: usize,
    fill: &str,
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    let missing = width.saturating_sub(this.chars().count());
    let before = match name {
        "ljust" => 0,
        "rjust" => missing,
        _ => missing / 2 + (missing & width & 1),
    };
    let mut out = MeteredString::new(meter);
    out.repeat(fill, before)?;
    out.push(this)?;
    out.repeat(fill, missing - before)?;
    Value::grown(out, meter)
}

fn expand_tabs(this: &str, width: usize, meter: &Rc<Meter>) -> Result<Value, Fault> {
    let mut out = MeteredString::new(meter);
    let mut column = 0;
    for c in this.chars() {
        match c {
            '\t' => {
                let spaces = if width == 0 { 0 } else { width - column % width };
                out.repeat(" ", spaces)?;
                column = 0;
            }
            c => {
                out.push_char(c)?;
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    Value::grown(out, meter)
}

/// The byte range between two character positions; `None` if the first is past the end.
fn bytes_between(this: &str, ends: [Option<&Value>; 2]) -> Result<Option<Range<usize>>, Fault> {
    let [from, to] = ends;
    let (from, to) = (optional(from, "start")?, optional(to, "end")?);
    if from.is_none() && to.is_none() {
        return Ok(Some(0..this.len()));
    }
    let count = this.chars().count() as i128;
    let place = |at: i128| if at < 0 { at.saturating_add(count).max(0) } else { at };
    let (from, to) = (from.map_or(0, place), to.map_or(count, place).min(count));
    if from > to {
        return Ok(None);
    }
    let byte = |at: i128| this.char_indices().nth(at as usize).map_or(this.len(), |(byte, _)| byte);
    Ok(Some(byte(from)..byte(to)))
}

fn search(
    this: &str,
    name: &str,
    wanted: &Value,
    within: Option<Range<usize>>,
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    let offset = within.as_ref().map_or(0, |within| within.start);
    let part = within.and_then(|within| this.get(within));
    if let "startswith" | "endswith" = name {
        let has = |wanted: &Value| {
            let wanted = needed(Some(wanted), "sub")?;
            let has = |part: &str| {
                if name == "startswith" { part.starts_with(wanted) } else { part.ends_with(wanted) }
            };
            Ok(part.is_some_and(has))
        };
        let Value::List(list) = wanted else { return has(wanted).map(Value::Bool) };
        if !list.kind.is_tuple() {
            return wrong(format!(
                "{name}() needs a string or a tuple of strings, not {}",
                wanted.kind()
            ));
        }
        for wanted in &list.items {
            meter.work(1)?;
            if has(wanted)? {
                return Ok(Value::Bool(true));
            }
        }
        return Ok(Value::Bool(false));
    }
    let wanted = needed(Some(wanted), "sub")?;
    if name == "count" {
        let count = match (part, wanted) {
            (None, _) => 0,
            (Some(part), "") => part.chars().count() + 1,
            (Some(part), wanted) => part.matches(wanted).count(),
        };
        return Ok(Value::Int(count as i128));
    }
    let found = match name {
        "rfind" | "rindex" => part.and_then(|part| part.rfind(wanted)),
        _ => part.and_then(|part| part.find(wanted)),
    };
    match found {
        Some(at) => Ok(Value::Int(
            this.get(..offset + at).map_or(0, |before| before.chars().count()) as i128,
        )),
        None if name.ends_with("index") => {
            wrong(format!("{name}(): the string does not contain the value"))
        }
        None => Ok(Value::Int(-1)),
    }
}

/// Joins elements as strings.
pub fn join(between: &str, items: &[Value], meter: &Rc<Meter>) -> Result<Value, Fault> {
    let mut out = MeteredString::new(meter);
    for (i, item) in items.iter().enumerate() {
        meter.work(1)?;
        out.push(if i > 0 { between } else { "" })?;
        written::write(item, &mut out, meter)?;
    }
    Value::grown(out, meter)
}

pub fn replace(
    this: &str,
    old: &str,
    new: &str,
    most: Option<usize>,
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    let mut out = MeteredString::new(meter);
    let mut from = 0;
    for (at, found) in this.match_indices(old).take(most.unwrap_or(usize::MAX)) {
        meter.work(1)?;
        out.push(this.get(from..at).unwrap_or_default())?;
        out.push(new)?;
        from = at + found.len();
    }
    out.push(this.get(from..).unwrap_or_default())?;
    Value::grown(out, meter)
}

pub fn split(
    this: &str,
    by: Option<&str>,
    most: Option<usize>,
    from_end: bool,
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    let pieces = most.map_or(usize::MAX, |most| most.saturating_add(1));
    let mut out = Vec::new();
    let mut push = |part: &str| {
        out.push(Value::text(part, meter)?);
        Ok::<(), Fault>(())
    };
    match by {
        Some("") => return wrong("split(): the separator is empty"),
        Some(by) if from_end => this.rsplitn(pieces, by).try_for_each(&mut push)?,
        Some(by) => this.splitn(pieces, by).try_for_each(&mut push)?,
        None => words(this, pieces, from_end, &mut push)?,
    }
    if from_end {
        out.reverse();
    }
    Value::list(out, meter)
}

/// Splits a string into words, from either end. The last piece is the unsplit rest.
fn words(
    this: &str,
    pieces: usize,
    from_end: bool,
    push: &mut impl FnMut(&str) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut rest = this;
    for piece in 1.. {
        rest = if from_end {
            rest.trim_end_matches(chars::is_space)
        } else {
            rest.trim_start_matches(chars::is_space)
        };
        if rest.is_empty() {
            break;
        }
        let split = if from_end {
            rest.rsplit_once(chars::is_space)
        } else {
            rest.split_once(chars::is_space).map(|(word, more)| (more, word))
        };
        match split.filter(|_| piece < pieces) {
            None => return push(rest),
            Some((more, word)) => {
                push(word)?;
                rest = more;
            }
        }
    }
    Ok(())
}

/// `maketrans`: makes an object with code points as keys.
fn make_table(arguments: &Arguments, meter: &Rc<Meter>) -> Result<Value, Fault> {
    let [from, to, without] = arguments.bind("maketrans", ["x", "y", "z"], 1)?;
    let point = |c: char| Value::Int(u32::from(c).into());
    let mut entries = Vec::new();
    match (from, to) {
        (Some(Value::Map(map)), None) => {
            for (key, value) in &map.entries {
                let mut letters = key.as_text().unwrap_or_default().chars();
                let key = match (letters.next(), letters.next()) {
                    (Some(only), None) => point(only),
                    _ if key.as_text().is_none() => key.clone(),
                    _ => return wrong("maketrans(): a key is not one character"),
                };
                entries.push((key, value.clone()));
            }
        }
        _ => {
            let (from, to) = (needed(from, "x")?, needed(to, "y")?);
            let without = needed(without, "z")?;
            Value::check_length((from.len() + without.len()).saturating_mul(4), meter)?;
            if from.chars().count() != to.chars().count() {
                return wrong("maketrans() needs two strings of the same length");
            }
            entries.extend(from.chars().zip(to.chars()).map(|(from, to)| (point(from), point(to))));
            entries.extend(without.chars().map(|c| (point(c), Value::None)));
        }
    }
    Value::map(entries, meter)
}

fn translate(this: &str, table: &Value, meter: &Rc<Meter>) -> Result<Value, Fault> {
    let Value::Map(map) = table else {
        return wrong("translate() needs an object with code points as keys");
    };
    let mut out = MeteredString::new(meter);
    for c in this.chars() {
        meter.work(1)?;
        match map.get(&Value::Int(u32::from(c).into())) {
            None => out.push_char(c)?,
            Some(Value::None) => {}
            Some(Value::Text(text)) => out.push(text)?,
            Some(Value::Int(n)) => match u32::try_from(*n).ok().and_then(char::from_u32) {
                Some(c) => out.push_char(c)?,
                None => return wrong(format!("translate(): {n} is not a code point")),
            },
            Some(other) => {
                return wrong(format!("translate(): {} is not a character", other.kind()));
            }
        }
    }
    Value::grown(out, meter)
}

/// Matches white space, or the given characters.
pub fn stripped(set: Option<&str>) -> impl Fn(char) -> bool + '_ {
    move |c| set.map_or_else(|| chars::is_space(c), |set| set.contains(c))
}
