//! HTML: escapes text, and implements the filters that read and write HTML.

use std::rc::Rc;

use super::bind::{Arguments, flag, optional, text};
use super::chars;
use super::fault::{Fault, wrong};
use super::meter::{Meter, MeteredString};
use super::text as written;
use super::value::Value;

/// Escapes the special characters of HTML.
pub fn escape(this: &str, out: &mut MeteredString) -> Result<(), Fault> {
    for c in this.chars() {
        match c {
            '&' => out.push("&amp;")?,
            '<' => out.push("&lt;")?,
            '>' => out.push("&gt;")?,
            '"' => out.push("&#34;")?,
            '\'' => out.push("&#39;")?,
            c => out.push_char(c)?,
        }
    }
    Ok(())
}

/// A value as HTML. Safe strings are unchanged.
pub fn escaped(value: &Value, meter: &Rc<Meter>) -> Result<String, Fault> {
    let mut out = MeteredString::new(meter);
    match value {
        Value::Text(text) if text.safe => out.push(text)?,
        other => escape(&written::to_string(other, meter)?, &mut out)?,
    }
    Ok(out.finish_uncounted())
}

pub fn filter(
    name: &str,
    value: &Value,
    arguments: &Arguments,
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    match name {
        "e" | "escape" => {
            arguments.bind(name, [], 0)?;
            Ok(Value::text(&escaped(value, meter)?, meter)?.marked_safe(true))
        }
        "forceescape" => {
            arguments.bind(name, [], 0)?;
            let mut out = MeteredString::new(meter);
            escape(&written::to_string(value, meter)?, &mut out)?;
            Ok(Value::grown(out, meter)?.marked_safe(true))
        }
        "safe" => {
            arguments.bind(name, [], 0)?;
            Ok(written::as_text(value, meter)?.marked_safe(true))
        }
        "striptags" => {
            arguments.bind(name, [], 0)?;
            without_tags(&written::to_string(value, meter)?, meter)
        }
        "urlencode" => {
            arguments.bind(name, [], 0)?;
            url_encoded(value, meter)
        }
        "urlize" => {
            let [limit, nofollow, target, rel, schemes] = arguments.bind(
                name,
                ["trim_url_limit", "nofollow", "target", "rel", "extra_schemes"],
                0,
            )?;
            let mut parts: Vec<&str> =
                text(rel, "rel")?.unwrap_or_default().split_whitespace().collect();
            parts.extend(flag(nofollow, false).then_some("nofollow"));
            parts.push("noopener");
            parts.sort_unstable();
            parts.dedup();
            let mut attributes =
                format!(" rel=\"{}\"", escaped(&Value::text(&parts.join(" "), meter)?, meter)?);
            if let Some(target) = target.filter(|target| target.is_true()) {
                attributes.push_str(&format!(" target=\"{}\"", escaped(target, meter)?));
            }
            let limit = optional(limit, "trim_url_limit")?.map(|n| usize::try_from(n).unwrap_or(0));
            let schemes = schemes
                .map(|schemes| super::items::items(schemes, meter))
                .transpose()?
                .unwrap_or_default();
            urlized(&escaped(value, meter)?, &attributes, limit, &schemes, meter)
        }
        _ => {
            let [space] = arguments.bind(name, ["autospace"], 0)?;
            attributes(value, flag(space, true), meter)
        }
    }
}

/// Removes comments and tags, collapses white space, and decodes common entities by name and all by
/// number.
fn without_tags(this: &str, meter: &Rc<Meter>) -> Result<Value, Fault> {
    let mut out = this.to_owned();
    for (open, close) in [("<!--", "-->"), ("<", ">")] {
        let mut kept = MeteredString::new(meter);
        let mut rest = out.as_str();
        while let Some(found) = rest.find(open).and_then(|from| {
            let to = rest.get(from..)?.find(close)? + from + close.len();
            Some((rest.get(..from)?, rest.get(to..)?))
        }) {
            kept.push(found.0)?;
            rest = found.1;
        }
        kept.push(rest)?;
        out = kept.finish_uncounted();
    }
    let mut text = MeteredString::new(meter);
    let words = out.split(chars::is_space).filter(|word| !word.is_empty());
    for (i, word) in words.enumerate() {
        text.push(if i > 0 { " " } else { "" })?;
        let mut rest = word;
        while let Some((before, entity)) = rest.split_once('&') {
            text.push(before)?;
            let end = entity.bytes().take(MAX_ENTITY).position(|b| b == b';');
            let known =
                end.and_then(|end| Some((character(entity.get(..end)?)?, entity.get(end + 1..)?)));
            match known {
                Some((c, behind)) => {
                    text.push_char(c)?;
                    rest = behind;
                }
                None => {
                    text.push("&")?;
                    rest = entity;
                }
            }
        }
        text.push(rest)?;
    }
    Value::grown(text, meter)
}

/// Maximum bytes of an entity.
const MAX_ENTITY: usize = 32;

/// Entities by name.
const ENTITIES: [(&str, char); 26] = [
    ("amp", '&'),
    ("apos", '\''),
    ("bull", '•'),
    ("cent", '¢'),
    ("copy", '©'),
    ("deg", '°'),
    ("euro", '€'),
    ("gt", '>'),
    ("hellip", '…'),
    ("laquo", '«'),
    ("ldquo", '“'),
    ("lsquo", '‘'),
    ("lt", '<'),
    ("mdash", '—'),
    ("middot", '·'),
    ("nbsp", '\u{a0}'),
    ("ndash", '–'),
    ("para", '¶'),
    ("pound", '£'),
    ("quot", '"'),
    ("raquo", '»'),
    ("rdquo", '”'),
    ("reg", '®'),
    ("rsquo", '’'),
    ("sect", '§'),
    ("times", '×'),
];

fn character(name: &str) -> Option<char> {
    match name.strip_prefix('#') {
        Some(number) => match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16).ok().and_then(char::from_u32),
            None => number.parse().ok().and_then(char::from_u32),
        },
        None => ENTITIES.iter().find(|(known, _)| *known == name).map(|(_, c)| *c),
    }
}

fn url_encoded(value: &Value, meter: &Rc<Meter>) -> Result<Value, Fault> {
    let mut out = MeteredString::new(meter);
    let quote = |this: &str, keep: &str, out: &mut MeteredString| {
        for byte in this.bytes() {
            match char::from(byte) {
                c if c.is_ascii_alphanumeric() || "_.-~".contains(c) || keep.contains(c) => {
                    out.push_char(c)?
                }
                ' ' if keep.is_empty() => out.push("+")?,
                _ => out.push(&format!("%{byte:02X}"))?,
            }
        }
        Ok::<(), Fault>(())
    };
    let pairs = match value {
        Value::Map(map) => map.entries.clone(),
        Value::List(_) | Value::Generator(_) => {
            let mut pairs = Vec::new();
            for pair in super::items::items(value, meter)? {
                match super::items::items(&pair, meter)?.as_slice() {
                    [key, value] => pairs.push((key.clone(), value.clone())),
                    _ => return wrong("urlencode: an element of the query is not a pair"),
                }
            }
            pairs
        }
        other => {
            quote(&written::to_string(other, meter)?, "/", &mut out)?;
            return Value::grown(out, meter);
        }
    };
    for (i, (key, value)) in pairs.iter().enumerate() {
        out.push(if i > 0 { "&" } else { "" })?;
        quote(&written::to_string(key, meter)?, "", &mut out)?;
        out.push("=")?;
        quote(&written::to_string(value, meter)?, "", &mut out)?;
    }
    Value::grown(out, meter)
}

fn attributes(value: &Value, space: bool, meter: &Rc<Meter>) -> Result<Value, Fault> {
    let Value::Map(map) = value else {
        return wrong(format!("xmlattr: {} is not an object", value.kind()));
    };
    let mut out = MeteredString::new(meter);
    let mut first = true;
    for (key, value) in &map.entries {
        if matches!(value, Value::None | Value::Undefined) {
            continue;
        }
        let key = escaped(key, meter)?;
        if key.is_empty()
            || key.contains(|c: char| chars::is_space(c) || matches!(c, '/' | '>' | '='))
        {
            return wrong(format!("xmlattr: {key:.40?} is not a valid attribute name"));
        }
        out.push(if first && !space { "" } else { " " })?;
        first = false;
        out.push(&format!("{key}=\"{}\"", escaped(value, meter)?))?;
    }
    Value::grown(out, meter)
}

/// Escapes a text and converts its addresses to links.
fn urlized(
    this: &str,
    attributes: &str,
    limit: Option<usize>,
    schemes: &[Value],
    meter: &Rc<Meter>,
) -> Result<Value, Fault> {
    let mut out = MeteredString::new(meter);
    for part in this.split_inclusive(chars::is_space) {
        meter.work(1 + schemes.len())?;
        let word = part.trim_end_matches(chars::is_space);
        let (head, middle, tail) = bracketed(word);
        out.push(head)?;
        let shown = |out: &mut MeteredString| match limit
            .and_then(|limit| middle.char_indices().nth(limit))
        {
            Some((at, _)) => {
                out.push(middle.get(..at).unwrap_or_default())?;
                out.push("...")
            }
            None => out.push(middle),
        };
        let link = |out: &mut MeteredString, scheme: &str, attributes: &str| {
            [&"<a href=\"", &scheme, &middle, &"\"", &attributes, &">"]
                .into_iter()
                .try_for_each(|part| out.push(part))
        };
        let mail = middle.strip_prefix("mailto:").filter(|mail| is_mail(mail));
        let scheme = schemes
            .iter()
            .filter_map(Value::as_text)
            .find(|scheme| middle != *scheme && middle.starts_with(scheme));
        if is_address(middle) {
            let has_scheme = middle.starts_with("https://") || middle.starts_with("http://");
            link(&mut out, if has_scheme { "" } else { "https://" }, attributes)?;
            shown(&mut out)?;
            out.push("</a>")?;
        } else if let Some(mail) = mail {
            link(&mut out, "", "")?;
            out.push(mail)?;
            out.push("</a>")?;
        } else if !middle.starts_with("www.")
            && !middle.starts_with('@')
            && !middle.contains(':')
            && is_mail(middle)
        {
            link(&mut out, "mailto:", "")?;
            out.push(middle)?;
            out.push("</a>")?;
        } else if scheme.is_some() {
            link(&mut out, "", attributes)?;
            out.push(middle)?;
            out.push("</a>")?;
        } else {
            out.push(middle)?;
        }
        out.push(tail)?;
        out.push(part.get(word.len()..).unwrap_or_default())?;
    }
    Value::grown(out, meter)
}

/// Splits a word into leading brackets, the word, and trailing punctuation. A closing bracket stays
/// in the word if the word also contains its opening bracket.
fn bracketed(word: &str) -> (&str, &str, &str) {
    let mut middle = word;
    while let Some(rest) = ["(", "<", "&lt;"].iter().find_map(|open| middle.strip_prefix(open)) {
        middle = rest;
    }
    let head = word.get(..word.len() - middle.len()).unwrap_or_default();
    let whole = middle;
    while let Some(rest) =
        [")", ">", ".", ",", "&gt;"].iter().find_map(|close| middle.strip_suffix(close))
    {
        middle = rest;
    }
    let mut end = middle.len();
    for (open, close) in [("(", ")"), ("<", ">"), ("&lt;", "&gt;")] {
        let part = whole.get(..end).unwrap_or_default();
        let opened = part.matches(open).count();
        if opened <= part.matches(close).count() {
            continue;
        }
        for _ in 0..opened {
            match whole.get(end..).and_then(|tail| tail.find(close)) {
                Some(at) => end += at + close.len(),
                None => break,
            }
        }
    }
    let (middle, tail) = whole.split_at_checked(end).unwrap_or((whole, ""));
    (head, middle, tail)
}

fn is_mail(this: &str) -> bool {
    let Some((name, host)) = this.rsplit_once('@') else { return false };
    let Some((before, end)) = host.rsplit_once('.') else { return false };
    !name.is_empty()
        && before.starts_with(chars::is_word)
        && before.chars().all(|c| chars::is_word(c) || c == '.' || c == '-')
        && !end.is_empty()
        && end.chars().all(chars::is_word)
}

/// Whether a text without white space is a web address.
fn is_address(this: &str) -> bool {
    let lower = this.to_lowercase();
    let scheme = ["https://", "http://"].iter().find_map(|scheme| lower.strip_prefix(scheme));
    let rest = scheme.or_else(|| lower.strip_prefix("www.")).unwrap_or(&lower);
    let is_number = scheme.is_some() && rest.starts_with('[');
    let end = match is_number {
        true => rest.find(']').map_or(0, |at| at + 1),
        false => rest.find([':', '/', '?', '#']).unwrap_or(rest.len()),
    };
    let (host, behind) = rest.split_at_checked(end).unwrap_or((rest, ""));
    let behind = match behind.strip_prefix(':') {
        Some(port) => {
            let digits = port.bytes().take_while(u8::is_ascii_digit).count();
            match port.get(digits..) {
                Some(behind) if (1..=5).contains(&digits) => behind,
                _ => return false,
            }
        }
        None => behind,
    };
    if !(behind.is_empty() || behind.starts_with(['/', '?', '#'])) {
        return false;
    }
    let label = |part: &str| {
        !part.is_empty() && part.chars().all(|c| chars::is_word(c) || c == '%' || c == '-')
    };
    let labels: Vec<&str> = host.split('.').collect();
    let Some((top, domain)) = labels.split_last() else { return false };
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_v6 = is_number
        && inner.is_some_and(|inner| {
            let parts: Vec<&str> = inner.split(':').collect();
            (3..=9).contains(&parts.len())
                && parts
                    .iter()
                    .all(|part| part.len() <= 4 && part.bytes().all(|b| b.is_ascii_hexdigit()))
        });
    let is_v4 = scheme.is_some()
        && labels.len() == 4
        && labels
            .iter()
            .all(|part| (1..=3).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit()));
    let is_top = (2..=63).contains(&top.len()) && top.bytes().all(|b| b.is_ascii_lowercase())
        || top.strip_prefix("xn--").is_some_and(|rest| {
            (2..=59).contains(&rest.chars().count())
                && rest.chars().all(|c| chars::is_word(c) || c == '%')
        });
    let usual = ["com", "net", "int", "edu", "gov", "org", "info", "mil"];
    let is_domain = if lower.len() > rest.len() {
        is_top && domain.iter().all(|part| label(part))
    } else {
        !domain.is_empty()
            && usual.contains(top)
            && domain.iter().all(|part| label(part) && (2..=63).contains(&part.chars().count()))
    };
    is_v4 || is_v6 || is_domain
}
