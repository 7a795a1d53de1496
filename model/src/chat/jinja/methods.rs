//! Attributes, and the methods of texts, lists and objects.

use std::rc::Rc;

use super::bind::Arguments;
use super::meter::{Growing, Meter};
use super::run::{Loop, Run};
use super::value::Value;
use super::{Fault, filters, format, ops, text, wrong};

const OF_OBJECTS: [&str; 4] = ["items", "keys", "values", "get"];

/// `value.name`; none if there is no such attribute. An object's key comes before its methods: `schema.items`
/// is what the template's author meant.
pub fn attribute(value: &Value, name: &str, meter: &Rc<Meter>) -> Result<Option<Value>, Fault> {
    let method = || Some(Value::Method(Rc::new((value.clone(), name.to_owned()))));
    Ok(match value {
        Value::Undefined => return wrong(format!("{name:.40} is asked of an undefined value")),
        Value::Map(map) => {
            meter.bytes(name.len())?;
            map.get_text(name).cloned().or_else(|| OF_OBJECTS.contains(&name).then(method).flatten())
        }
        Value::Namespace(namespace) => namespace.borrow().get(name).cloned(),
        Value::Loop(state) => of_loop(state, name),
        _ => None,
    })
}

fn of_loop(state: &Loop, name: &str) -> Option<Value> {
    let (at, count) = (state.at.get(), state.items.items.len());
    let int = |n: usize| Some(Value::Int(n as i128));
    let item =
        |at: Option<usize>| Some(at.and_then(|at| state.items.items.get(at)).cloned().unwrap_or(Value::Undefined));
    match name {
        "index" => int(at + 1),
        "index0" => int(at),
        "revindex" => int(count - at),
        "revindex0" => int(count - at - 1),
        "first" => Some(Value::Bool(at == 0)),
        "last" => Some(Value::Bool(at + 1 == count)),
        "length" => int(count),
        "depth" => int(state.depth + 1),
        "depth0" => int(state.depth),
        "previtem" => item(at.checked_sub(1)),
        "nextitem" => item(Some(at + 1)),
        _ => None,
    }
}

/// Calls a method.
pub fn call(run: &mut Run, value: &Value, name: &str, arguments: Arguments) -> Result<Value, Fault> {
    let meter = run.meter.clone();
    meter.work(1)?;
    match value {
        Value::Text(this) => of_text(this, name, &arguments, &meter),
        Value::Map(map) => match name {
            "items" => {
                Value::room_for(map.entries.len().saturating_mul(3), &meter)?;
                let pair =
                    |(key, value): &(Value, Value)| Value::sequence(vec![key.clone(), value.clone()], true, &meter);
                Value::list(map.entries.iter().map(pair).collect::<Result<_, _>>()?, &meter)
            }
            "keys" => Value::list(ops::items(value, &meter)?, &meter),
            "values" => {
                Value::room_for(map.entries.len(), &meter)?;
                Value::list(map.entries.iter().map(|(_, value)| value.clone()).collect(), &meter)
            }
            "get" => {
                let Some(key) = arguments.get(0, "key") else { return wrong("get() takes a key") };
                meter.bytes(key.as_text().map_or(0, str::len))?;
                let found = map.get(key).or_else(|| arguments.get(1, "default"));
                Ok(found.cloned().unwrap_or(Value::None))
            }
            _ => unknown(value, name),
        },
        Value::List(list) => match (name, arguments.positional.as_slice()) {
            ("index" | "count", [wanted]) => {
                let mut places = Vec::new();
                for (at, item) in list.items.iter().enumerate() {
                    if ops::equal(item, wanted, &meter)? {
                        places.push(at);
                    }
                }
                match (name, places.first()) {
                    ("count", _) => Ok(Value::Int(places.len() as i128)),
                    (_, Some(at)) => Ok(Value::Int(*at as i128)),
                    (_, None) => wrong("index(): it is not in the list"),
                }
            }
            ("append" | "extend" | "insert" | "pop" | "remove" | "clear" | "reverse" | "sort", _) => {
                wrong(format!("{name}(): a template changes no list; 'set x = x + [y]' makes another"))
            }
            _ => unknown(value, name),
        },
        Value::Loop(state) => match name {
            "cycle" => match arguments.positional.len() {
                0 => wrong("cycle() takes at least one value"),
                n => Ok(arguments.positional.get(state.at.get() % n).cloned().unwrap_or(Value::Undefined)),
            },
            "changed" => {
                // A loop that held itself would never be freed.
                if arguments.positional.iter().any(|value| value.inside().namespace) {
                    return wrong("changed() takes no loops and no namespaces");
                }
                let mut last = state.last.borrow_mut();
                let same = match &*last {
                    Some(last) if last.len() == arguments.positional.len() => {
                        let mut same = true;
                        for (a, b) in last.iter().zip(&arguments.positional) {
                            same = same && ops::equal(a, b, &meter)?;
                        }
                        same
                    }
                    _ => false,
                };
                *last = Some(arguments.positional);
                Ok(Value::Bool(!same))
            }
            _ => unknown(value, name),
        },
        Value::Undefined => wrong(format!("{name:.40}() is asked of an undefined value")),
        _ => unknown(value, name),
    }
}

fn unknown(value: &Value, name: &str) -> Result<Value, Fault> {
    wrong(format!("{} has no method {name:.40}()", value.kind()))
}

fn of_text(this: &str, name: &str, arguments: &Arguments, meter: &Rc<Meter>) -> Result<Value, Fault> {
    meter.bytes(this.len())?;
    let text_at = |at: usize| match arguments.positional.get(at) {
        None | Some(Value::None) => Ok(None),
        Some(Value::Text(text)) => Ok(Some(&****text)),
        Some(other) => wrong(format!("{name}() takes a text, not {}", other.kind())),
    };
    let needed = |at: usize| match text_at(at)? {
        Some(text) => Ok(text),
        None => wrong(format!("{name}() needs a text")),
    };
    let made = |text: &str| Value::text(text, meter);
    let all = |is: fn(char) -> bool| Ok(Value::Bool(!this.is_empty() && this.chars().all(is)));
    // Upper case may take three times the bytes.
    let longer = || Value::room_for(this.len() / 8, meter);
    match name {
        "upper" => longer().and_then(|()| made(&this.to_uppercase())),
        "lower" | "casefold" => longer().and_then(|()| made(&this.to_lowercase())),
        "title" => made(&filters::title(this)),
        "capitalize" => made(&filters::capitalize(this)),
        "strip" | "lstrip" | "rstrip" => {
            let set = text_at(0)?;
            let is = |c: char| set.map_or(c.is_whitespace(), |set| set.contains(c));
            meter.work(this.len().saturating_mul(set.map_or(0, str::len)) / 256)?;
            made(match name {
                "strip" => this.trim_matches(is),
                "lstrip" => this.trim_start_matches(is),
                _ => this.trim_end_matches(is),
            })
        }
        "split" | "rsplit" => {
            let most = match arguments.get(1, "maxsplit") {
                Some(Value::Int(n)) => usize::try_from(*n).ok(),
                _ => None,
            };
            split(this, text_at(0)?, most, name == "rsplit", meter)
        }
        "splitlines" => {
            let lines = this.lines().map(made).collect::<Result<_, _>>()?;
            Value::list(lines, meter)
        }
        "replace" => {
            let most = match arguments.get(2, "count") {
                Some(Value::Int(n)) => usize::try_from(*n).ok(),
                _ => None,
            };
            replace(this, needed(0)?, needed(1)?, most, meter)
        }
        "startswith" | "endswith" => {
            let has = |part: &str| if name == "startswith" { this.starts_with(part) } else { this.ends_with(part) };
            Ok(Value::Bool(match arguments.positional.first() {
                Some(Value::List(list)) => {
                    meter.work(list.items.len())?;
                    list.items.iter().filter_map(Value::as_text).any(has)
                }
                _ => has(needed(0)?),
            }))
        }
        "find" | "rfind" | "index" => {
            let part = needed(0)?;
            let at = if name == "rfind" { this.rfind(part) } else { this.find(part) };
            match at {
                Some(at) => Ok(Value::Int(this.get(..at).map_or(0, |before| before.chars().count()) as i128)),
                None if name == "index" => wrong("index(): it is not in the text"),
                None => Ok(Value::Int(-1)),
            }
        }
        "count" => Ok(Value::Int(match needed(0)? {
            "" => this.chars().count() + 1,
            part => this.matches(part).count(),
        } as i128)),
        "removeprefix" => made(this.strip_prefix(needed(0)?).unwrap_or(this)),
        "removesuffix" => made(this.strip_suffix(needed(0)?).unwrap_or(this)),
        "join" => {
            let items = ops::items(arguments.get(0, "iterable").unwrap_or(&Value::Undefined), meter)?;
            join(this, &items, meter)
        }
        "format" => format::braces(this, &arguments.positional, &arguments.named, meter),
        "isdigit" | "isdecimal" | "isnumeric" => all(char::is_numeric),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isspace" => all(char::is_whitespace),
        "isupper" => Ok(Value::Bool(this.chars().any(char::is_uppercase) && !this.chars().any(char::is_lowercase))),
        "islower" => Ok(Value::Bool(this.chars().any(char::is_lowercase) && !this.chars().any(char::is_uppercase))),
        _ => wrong(format!("a text has no method {name:.40}()")),
    }
}

/// Items as texts with a text between.
pub fn join(between: &str, items: &[Value], meter: &Rc<Meter>) -> Result<Value, Fault> {
    let mut out = Growing::new(meter);
    for (i, item) in items.iter().enumerate() {
        meter.work(1)?;
        out.push(if i > 0 { between } else { "" })?;
        text::write(item, &mut out, meter)?;
    }
    Value::grown(out, meter)
}

pub fn replace(this: &str, old: &str, new: &str, most: Option<usize>, meter: &Rc<Meter>) -> Result<Value, Fault> {
    let mut out = Growing::new(meter);
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
        Some("") => return wrong("split() by nothing"),
        Some(by) if from_end => {
            this.rsplitn(pieces, by).try_for_each(&mut push)?;
            out.reverse();
        }
        Some(by) => this.splitn(pieces, by).try_for_each(&mut push)?,
        None => {
            let mut rest = this.trim();
            for _ in 1..pieces {
                let Some((word, more)) = rest.split_once(char::is_whitespace) else { break };
                push(word)?;
                rest = more.trim_start();
            }
            if !rest.is_empty() {
                push(rest)?;
            }
        }
    }
    Value::list(out, meter)
}
