//! Filters and tests.

use std::cmp::Ordering;
use std::rc::Rc;

use super::ast::Comparison;
use super::bind::Arguments;
use super::format;
use super::meter::{Growing, Meter};
use super::run::Run;
use super::value::Value;
use super::{Fault, methods, ops, text, wrong};

/// `value|name(arguments)`
pub fn filter(run: &mut Run, name: &str, value: &Value, arguments: Arguments) -> Result<Value, Fault> {
    let meter = &run.meter.clone();
    meter.work(1)?;
    // Python's `str` of what is no text.
    let as_text = || match value {
        Value::Text(_) => Ok(value.clone()),
        other => {
            let mut out = Growing::new(meter);
            text::write(other, &mut out, meter)?;
            Value::grown(out, meter)
        }
    };
    let changed = |change: &dyn Fn(&str) -> String| {
        let text = as_text()?;
        let text = text.as_text().unwrap_or_default();
        meter.bytes(text.len())?;
        Value::room_for(text.len() / 8, meter)?;
        Value::text(&change(text), meter)
    };
    let items = || ops::items(value, meter);
    let text_of = |at: usize, name: &str, default: &str| match arguments.get(at, name) {
        None => Ok(default.to_owned()),
        Some(value) => text::to_string(value, meter),
    };
    match name {
        "default" | "d" => {
            let loose = arguments.flag(1, "boolean", false);
            let missing = matches!(value, Value::Undefined) || (loose && !value.is_true());
            let default = || match arguments.get(0, "default_value") {
                Some(value) => Ok(value.clone()),
                None => Value::text("", meter),
            };
            if missing { default() } else { Ok(value.clone()) }
        }
        "string" | "safe" => as_text(),
        "trim" => {
            let set = arguments.get(0, "chars").and_then(Value::as_text);
            let is = |c: char| set.map_or(c.is_whitespace(), |set| set.contains(c));
            let text = as_text()?;
            let text = text.as_text().unwrap_or_default();
            meter.work(text.len().saturating_mul(set.map_or(0, str::len)) / 256)?;
            meter.bytes(text.len())?;
            Value::text(text.trim_matches(is), meter)
        }
        "upper" => changed(&str::to_uppercase),
        "lower" => changed(&str::to_lowercase),
        "title" => changed(&title),
        "capitalize" => changed(&capitalize),
        "escape" | "e" => {
            let text = as_text()?;
            let mut out = Growing::new(meter);
            for c in text.as_text().unwrap_or_default().chars() {
                match c {
                    '&' => out.push("&amp;")?,
                    '<' => out.push("&lt;")?,
                    '>' => out.push("&gt;")?,
                    '"' => out.push("&#34;")?,
                    '\'' => out.push("&#39;")?,
                    c => out.push_char(c)?,
                }
            }
            Value::grown(out, meter)
        }
        "replace" => {
            let (old, new) = (text_of(0, "old", "")?, text_of(1, "new", "")?);
            let most = match arguments.get(2, "count") {
                Some(Value::Int(n)) => usize::try_from(*n).ok(),
                _ => None,
            };
            methods::replace(as_text()?.as_text().unwrap_or_default(), &old, &new, most, meter)
        }
        "split" => {
            let by = arguments.get(0, "sep").and_then(Value::as_text);
            methods::split(as_text()?.as_text().unwrap_or_default(), by, None, false, meter)
        }
        "indent" => indent(as_text()?.as_text().unwrap_or_default(), &arguments, meter),
        "center" => {
            let text = as_text()?;
            let text = text.as_text().unwrap_or_default();
            let fill = arguments.number(0, "width", 80)?.saturating_sub(text.chars().count());
            let mut out = Growing::new(meter);
            out.repeat(" ", fill / 2)?;
            out.push(text)?;
            out.repeat(" ", fill - fill / 2)?;
            Value::grown(out, meter)
        }
        "truncate" => truncate(as_text()?.as_text().unwrap_or_default(), &arguments, meter),
        "wordcount" => {
            let text = as_text()?;
            let words = text.as_text().unwrap_or_default().split(|c: char| !c.is_alphanumeric() && c != '_');
            Ok(Value::Int(words.filter(|word| !word.is_empty()).count() as i128))
        }
        "format" => match value {
            Value::Text(pattern) => format::percent(pattern, &arguments.positional, &arguments.named, meter),
            other => wrong(format!("format: the pattern is {}", other.kind())),
        },
        "tojson" => to_json(value, &arguments, meter),
        "pprint" => {
            let mut out = Growing::new(meter);
            text::repr(value, &mut out, meter)?;
            Value::grown(out, meter)
        }
        "length" | "count" => Ok(Value::Int(match value {
            Value::Text(text) => {
                meter.bytes(text.len())?;
                text.chars().count()
            }
            Value::List(list) => list.items.len(),
            Value::Map(map) => map.entries.len(),
            Value::Undefined => 0,
            other => return wrong(format!("{} has no length", other.kind())),
        } as i128)),
        "int" => {
            let default = arguments.get(0, "default").cloned().unwrap_or(Value::Int(0));
            Ok(match value {
                Value::Int(_) => value.clone(),
                Value::Bool(b) => Value::Int(i128::from(*b)),
                Value::Float(x) if x.is_finite() => Value::Int(*x as i128),
                Value::Text(text) => {
                    let text = text.trim();
                    let int = text
                        .parse()
                        .ok()
                        .or_else(|| text.parse::<f64>().ok().filter(|x| x.is_finite()).map(|x| x as i128));
                    int.map_or(default, Value::Int)
                }
                _ => default,
            })
        }
        "float" => {
            let default = arguments.get(0, "default").cloned().unwrap_or(Value::Float(0.0));
            Ok(match value {
                Value::Int(n) => Value::Float(*n as f64),
                Value::Bool(b) => Value::Float(f64::from(u8::from(*b))),
                Value::Float(_) => value.clone(),
                Value::Text(text) => text.trim().parse().map_or(default, Value::Float),
                _ => default,
            })
        }
        "abs" => match value {
            Value::Int(n) => Ok(Value::Int(n.saturating_abs())),
            Value::Float(x) => Ok(Value::Float(x.abs())),
            other => wrong(format!("abs: {} is no number", other.kind())),
        },
        "round" => {
            let x = match value {
                Value::Int(n) => *n as f64,
                Value::Float(x) => *x,
                other => return wrong(format!("round: {} is no number", other.kind())),
            };
            let power = 10f64.powi(arguments.number(0, "precision", 0)?.min(300) as i32);
            let scaled = x * power;
            Ok(Value::Float(
                match text_of(1, "method", "common")?.as_str() {
                    "ceil" => scaled.ceil(),
                    "floor" => scaled.floor(),
                    _ => scaled.round_ties_even(),
                } / power,
            ))
        }
        "list" => Value::list(items()?, meter),
        "items" => match value {
            Value::Undefined => Value::list(Vec::new(), meter),
            _ => methods::call(run, value, "items", Arguments::default()),
        },
        "first" => Ok(items()?.into_iter().next().unwrap_or(Value::Undefined)),
        "last" => Ok(items()?.pop().unwrap_or(Value::Undefined)),
        "reverse" => match value {
            Value::Text(text) => {
                meter.bytes(text.len())?;
                Value::room_for(text.len() / 16, meter)?;
                Value::text(&text.chars().rev().collect::<String>(), meter)
            }
            _ => {
                let mut items = items()?;
                items.reverse();
                Value::list(items, meter)
            }
        },
        "attr" => {
            let attribute = text_of(0, "name", "")?;
            Ok(methods::attribute(value, &attribute, meter)?.unwrap_or(Value::Undefined))
        }
        "join" => {
            let mut items = items()?;
            if let Some(attribute) = arguments.get(1, "attribute") {
                items = items.iter().map(|item| path(item, attribute, meter)).collect::<Result<_, _>>()?;
            }
            methods::join(&text_of(0, "d", "")?, &items, meter)
        }
        "sum" => {
            let mut sum = arguments.get(1, "start").cloned().unwrap_or(Value::Int(0));
            for item in items()? {
                let item = match arguments.get(0, "attribute") {
                    Some(attribute) => path(&item, attribute, meter)?,
                    None => item,
                };
                sum = ops::operate(super::ast::Operator::Add, &sum, &item, meter)?;
            }
            Ok(sum)
        }
        "map" => map(run, &items()?, arguments),
        "select" | "reject" | "selectattr" | "rejectattr" => select(run, name, items()?, &arguments),
        "sort" | "dictsort" | "unique" | "min" | "max" | "groupby" => ordered(run, name, value, &arguments),
        "batch" | "slice" => {
            let all = items()?;
            let size = arguments.number(0, "linecount", 1)?;
            if size == 0 || size > 100_000 {
                return wrong(format!("{name}: a size from 1 to 100000 is needed, not {size}"));
            }
            let fill = arguments.get(1, "fill_with");
            let mut parts: Vec<Vec<Value>> = match name {
                "batch" => all.chunks(size).map(<[Value]>::to_vec).collect(),
                _ => {
                    let (each, longer) = (all.len() / size, all.len() % size);
                    let part = |i: usize| {
                        let from = i * each + i.min(longer);
                        all.get(from..from + each + usize::from(i < longer)).unwrap_or_default().to_vec()
                    };
                    (0..size).map(part).collect()
                }
            };
            if let Some(fill) = fill {
                let full = if name == "batch" { size } else { all.len().div_ceil(size) };
                Value::room_for(full.saturating_mul(parts.len()), meter)?;
                parts.iter_mut().for_each(|part| part.resize(full.max(part.len()), fill.clone()));
            }
            let parts = parts.into_iter().map(|part| Value::list(part, meter)).collect::<Result<_, _>>()?;
            Value::list(parts, meter)
        }
        _ => wrong(format!("there is no filter '{name:.40}'")),
    }
}

/// `value is name`
pub fn test(run: &mut Run, name: &str, value: &Value, arguments: &[Value]) -> Result<bool, Fault> {
    use Comparison as C;
    let meter = run.meter.clone();
    meter.work(1)?;
    let operand = || match arguments.first() {
        Some(operand) => Ok(operand),
        None => wrong(format!("the test '{name:.40}' needs a value")),
    };
    let whole = || match value {
        Value::Int(n) => Ok(*n),
        Value::Bool(b) => Ok(i128::from(*b)),
        other => wrong(format!("the test '{name:.40}' takes a whole number, not {}", other.kind())),
    };
    let text_is = |is: fn(&str) -> bool| value.as_text().is_some_and(is);
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined),
        "undefined" => matches!(value, Value::Undefined),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Int(_) | Value::Float(_) | Value::Bool(_)),
        "string" => matches!(value, Value::Text(_)),
        "mapping" => matches!(value, Value::Map(_)),
        "sequence" => matches!(value, Value::List(_) | Value::Text(_) | Value::Map(_) | Value::Undefined),
        "iterable" => matches!(value, Value::List(_) | Value::Text(_) | Value::Map(_) | Value::Undefined),
        "callable" => {
            matches!(
                value,
                Value::Macro(_) | Value::Caller(..) | Value::Function(_) | Value::Method(_) | Value::Loop(_)
            )
        }
        "odd" => whole()? % 2 != 0,
        "even" => whole()? % 2 == 0,
        "divisibleby" => match operand()? {
            Value::Int(n) if *n != 0 => whole()?.checked_rem(*n).is_none_or(|rest| rest == 0),
            _ => return wrong("divisibleby needs a number that is not 0"),
        },
        "lower" => text_is(|t| t.chars().any(char::is_lowercase) && !t.chars().any(char::is_uppercase)),
        "upper" => text_is(|t| t.chars().any(char::is_uppercase) && !t.chars().any(char::is_lowercase)),
        "startingwith" => text_is_with(value, operand()?, |a, b| a.starts_with(b)),
        "endingwith" => text_is_with(value, operand()?, |a, b| a.ends_with(b)),
        "sameas" => match (value, operand()?) {
            (Value::None, Value::None) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::List(a), Value::List(b)) => Rc::ptr_eq(a, b),
            (Value::Map(a), Value::Map(b)) => Rc::ptr_eq(a, b),
            (Value::Text(_) | Value::Int(_), other) => ops::equal(value, other, &meter)?,
            _ => false,
        },
        "eq" | "equalto" => run.compare(C::Eq, value, operand()?)?,
        "ne" => run.compare(C::Ne, value, operand()?)?,
        "lt" | "lessthan" => run.compare(C::Lt, value, operand()?)?,
        "le" => run.compare(C::Le, value, operand()?)?,
        "gt" | "greaterthan" => run.compare(C::Gt, value, operand()?)?,
        "ge" => run.compare(C::Ge, value, operand()?)?,
        "in" => run.compare(C::In, value, operand()?)?,
        _ => return wrong(format!("there is no test '{name:.40}'")),
    })
}

fn text_is_with(value: &Value, operand: &Value, is: fn(&str, &str) -> bool) -> bool {
    value.as_text().zip(operand.as_text()).is_some_and(|(a, b)| is(a, b))
}

/// Every word with a capital first.
pub fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        match inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        inside = c.is_alphabetic();
    }
    out
}

pub fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let mut out = String::with_capacity(text.len());
    out.extend(chars.next().into_iter().flat_map(char::to_uppercase));
    out.extend(chars.flat_map(char::to_lowercase));
    out
}

fn indent(text: &str, arguments: &Arguments, meter: &Rc<Meter>) -> Result<Value, Fault> {
    let width = match arguments.get(0, "width") {
        Some(Value::Text(width)) => width.to_string(),
        _ => " ".repeat(arguments.number(0, "width", 4)?.min(1000)),
    };
    let (first, blank) = (arguments.flag(1, "first", false), arguments.flag(2, "blank", false));
    let mut out = Growing::new(meter);
    for (i, line) in text.split('\n').enumerate() {
        out.push(if i > 0 { "\n" } else { "" })?;
        let indented = if i == 0 { first } else { blank || !line.trim().is_empty() };
        out.push(if indented { &width } else { "" })?;
        out.push(line)?;
        meter.work(1)?;
    }
    Value::grown(out, meter)
}

fn truncate(text: &str, arguments: &Arguments, meter: &Rc<Meter>) -> Result<Value, Fault> {
    let length = arguments.number(0, "length", 255)?;
    let whole_words = !arguments.flag(1, "killwords", false);
    let end = match arguments.get(2, "end") {
        Some(value) => text::to_string(value, meter)?,
        None => "...".to_owned(),
    };
    let leeway = arguments.number(3, "leeway", 5)?;
    meter.bytes(text.len())?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Value::text(text, meter);
    }
    let kept: String = text.chars().take(length.saturating_sub(end.chars().count())).collect();
    let kept = if whole_words { kept.rsplit_once(' ').map_or(kept.as_str(), |(before, _)| before) } else { &kept };
    let mut out = Growing::new(meter);
    out.push(kept)?;
    out.push(&end)?;
    Value::grown(out, meter)
}

fn to_json(value: &Value, arguments: &Arguments, meter: &Rc<Meter>) -> Result<Value, Fault> {
    arguments.only("tojson", &["indent", "ensure_ascii", "separators", "sort_keys"])?;
    let indent = match arguments.get(0, "indent") {
        None | Some(Value::None | Value::Undefined) => None,
        Some(_) => Some(arguments.number(0, "indent", 0)?).filter(|n| *n <= 64),
    };
    if indent.is_none() && !matches!(arguments.get(0, "indent"), None | Some(Value::None | Value::Undefined)) {
        return wrong("tojson: an indent is a number up to 64");
    }
    let (item, key) = match arguments.get(usize::MAX, "separators") {
        Some(Value::List(pair)) => match pair.items.as_slice() {
            [Value::Text(item), Value::Text(key)] => (item.to_string(), key.to_string()),
            _ => return wrong("tojson: separators are two texts"),
        },
        None | Some(Value::None) => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some(_) => return wrong("tojson: separators are two texts"),
    };
    let flag = |name: &str| arguments.flag(usize::MAX, name, false);
    let json = text::Json { indent, item, key, ascii: flag("ensure_ascii"), sorted: flag("sort_keys") };
    let mut out = Growing::new(meter);
    json.write(value, 0, &mut out, meter)?;
    Value::grown(out, meter)
}

/// `a.b.0` of a value.
fn path(value: &Value, attribute: &Value, meter: &Rc<Meter>) -> Result<Value, Fault> {
    let Some(names) = attribute.as_text() else { return ops::item(value, attribute, meter) };
    let mut value = value.clone();
    for name in names.split('.') {
        meter.work(1)?;
        value = match name.parse() {
            Ok(at) => ops::item(&value, &Value::Int(at), meter)?,
            Err(_) => methods::attribute(&value, name, meter)?.unwrap_or(Value::Undefined),
        };
    }
    Ok(value)
}

fn map(run: &mut Run, items: &[Value], mut arguments: Arguments) -> Result<Value, Fault> {
    let meter = run.meter.clone();
    let mut out = Vec::new();
    if let Some(at) = arguments.named.iter().position(|(name, _)| name == "attribute") {
        let attribute = arguments.named.swap_remove(at).1;
        let default = arguments.get(usize::MAX, "default");
        for item in items {
            let value = path(item, &attribute, &meter)?;
            out.push(match (value, default) {
                (Value::Undefined, Some(default)) => default.clone(),
                (value, _) => value,
            });
        }
    } else {
        if arguments.positional.is_empty() {
            return wrong("map needs the name of a filter, or an attribute");
        }
        let name = text::to_string(&arguments.positional.remove(0), &meter)?;
        // Filters over filters go as deep as their names are written, and no deeper than levels do.
        for item in items {
            let arguments = Arguments { positional: arguments.positional.clone(), named: arguments.named.clone() };
            meter.work(1 + arguments.positional.len() + arguments.named.len())?;
            out.push(run.deeper(|run| filter(run, &name, item, arguments))?);
        }
    }
    Value::list(out, &meter)
}

fn select(run: &mut Run, name: &str, items: Vec<Value>, arguments: &Arguments) -> Result<Value, Fault> {
    let meter = run.meter.clone();
    let by_attribute = name.ends_with("attr");
    let mut rest = arguments.positional.as_slice();
    let attribute = match rest.split_first() {
        Some((attribute, more)) if by_attribute => {
            rest = more;
            Some(attribute)
        }
        None if by_attribute => return wrong(format!("{name} needs an attribute")),
        _ => None,
    };
    let test_name = rest.first().map(|name| text::to_string(name, &meter)).transpose()?;
    let mut out = Vec::new();
    for item in items {
        let value = match attribute {
            Some(attribute) => path(&item, attribute, &meter)?,
            None => item.clone(),
        };
        let passes = match &test_name {
            Some(name) => test(run, name, &value, rest.get(1..).unwrap_or_default())?,
            None => value.is_true(),
        };
        if passes == name.starts_with("select") {
            out.push(item);
        }
    }
    Value::list(out, &meter)
}

/// What goes by an order: of the items, or of an attribute of them.
fn ordered(run: &mut Run, name: &str, value: &Value, arguments: &Arguments) -> Result<Value, Fault> {
    let meter = run.meter.clone();
    let (reverse_at, case_at, attribute_at) = match name {
        "sort" => (0, 1, 2),
        "dictsort" => (2, 0, usize::MAX),
        "groupby" => (usize::MAX, usize::MAX, 0),
        _ => (usize::MAX, 0, 1),
    };
    let reverse = arguments.flag(reverse_at, "reverse", false);
    let case = arguments.flag(case_at, "case_sensitive", false);
    let by_value = arguments.get(1, "by").and_then(Value::as_text) == Some("value");
    let attribute = arguments.get(attribute_at, "attribute");
    let items = match name {
        "dictsort" => ops::items(&methods::call(run, value, "items", Arguments::default())?, &meter)?,
        _ => ops::items(value, &meter)?,
    };
    let mut keyed = Vec::with_capacity(items.len());
    for item in items {
        let key = match (name, attribute) {
            ("dictsort", _) => ops::item(&item, &Value::Int(i128::from(by_value)), &meter)?,
            (_, Some(attribute)) => path(&item, attribute, &meter)?,
            _ => item.clone(),
        };
        let key = match &key {
            Value::Text(text) if !case => Value::text(&text.to_lowercase(), &meter)?,
            _ => key,
        };
        keyed.push((key, item));
    }
    if name == "unique" {
        let mut kept: Vec<(Value, Value)> = Vec::new();
        for (key, item) in keyed {
            let mut seen = false;
            for (other, _) in &kept {
                seen = seen || ops::equal(other, &key, &meter)?;
            }
            if !seen {
                kept.push((key, item));
            }
        }
        return Value::list(kept.into_iter().map(|(_, item)| item).collect(), &meter);
    }
    sort(&mut keyed, |(a, _), (b, _)| {
        let order = ops::order(a, b, &meter)?.unwrap_or(Ordering::Equal);
        Ok(if reverse { order.reverse() } else { order })
    })?;
    match name {
        "min" => Ok(keyed.into_iter().next().map_or(Value::Undefined, |(_, item)| item)),
        "max" => Ok(keyed.pop().map_or(Value::Undefined, |(_, item)| item)),
        "groupby" => {
            let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
            for (key, item) in keyed {
                match groups.last_mut() {
                    Some((last, group)) if ops::equal(last, &key, &meter)? => group.push(item),
                    _ => groups.push((key, vec![item])),
                }
            }
            let group = |(key, items)| Value::sequence(vec![key, Value::list(items, &meter)?], true, &meter);
            Value::list(groups.into_iter().map(group).collect::<Result<_, _>>()?, &meter)
        }
        _ => Value::list(keyed.into_iter().map(|(_, item)| item).collect(), &meter),
    }
}

/// A stable merge sort whose comparisons may fail, and need not be an order at all (NaN; whole numbers beyond
/// what a float can tell apart): the standard library's sort may panic then.
fn sort<T: Clone>(all: &mut Vec<T>, compare: impl Fn(&T, &T) -> Result<Ordering, Fault>) -> Result<(), Fault> {
    let mut width = 1;
    while width < all.len() {
        let mut merged = Vec::with_capacity(all.len());
        for pair in all.chunks(2 * width) {
            let (mut left, mut right) = pair.split_at(width.min(pair.len()));
            while let ([l, left_rest @ ..], [r, right_rest @ ..]) = (left, right) {
                if compare(l, r)? == Ordering::Greater {
                    merged.push(r.clone());
                    right = right_rest;
                } else {
                    merged.push(l.clone());
                    left = left_rest;
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        *all = merged;
        width *= 2;
    }
    Ok(())
}
