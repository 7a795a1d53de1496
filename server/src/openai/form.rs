//! Constraints of an answer: `response_format`, vLLM's `structured_outputs`, and the older names of
//! that field.

use crate::constrain::ContentFormat;
use crate::fields::Fields;
use crate::refusal::Refusal;
use kjit_model::constrain::lark_of_gbnf;
use serde_json::{Value, json};

/// Maximum number of choices in a request.
const MAX_CHOICES: usize = 1000;
/// Maximum bytes of a regular expression, a grammar or a choice.
const MAX_BYTES: usize = 64 << 10;

/// Each kind of constraint with vLLM's name and its older name.
const CONSTRAINT_FIELDS: [(&str, &str, &str); 4] = [
    ("json", "structured_outputs.json", "guided_json"),
    ("regex", "structured_outputs.regex", "guided_regex"),
    ("choice", "structured_outputs.choice", "guided_choice"),
    ("grammar", "structured_outputs.grammar", "guided_grammar"),
];

/// The format of the content, and the field that requests it.
pub fn wanted(f: &mut Fields) -> Result<Option<(ContentFormat, &'static str)>, Refusal> {
    let mut all: Vec<(ContentFormat, &'static str)> = response_format(f)?.into_iter().collect();
    if let Some(mut outputs) = f.object("structured_outputs")? {
        let before = all.len();
        for (way, field, _) in CONSTRAINT_FIELDS {
            all.extend(one(&mut outputs, way, way)?.map(|form| (form, field)));
        }
        if outputs.flag("json_object")?.unwrap_or(false) {
            all.push((
                ContentFormat::json(json!({ "type": "object" })),
                "structured_outputs.json_object",
            ));
        }
        // vLLM's choice of a library has no effect: kjit has one library and no fallback.
        outputs.flag("disable_fallback")?;
        outputs.done()?;
        if all.len() == before {
            return Err(Refusal::field(
                "structured_outputs",
                "give json, regex, choice, grammar or json_object",
            ));
        }
    }
    all.extend(gbnf(f)?);
    for (way, _, field) in CONSTRAINT_FIELDS {
        all.extend(one(f, field, way)?.map(|form| (form, field)));
    }
    match all.as_slice() {
        [(_, first), (_, second), ..] => Err(Refusal::field(
            second,
            format_args!("cannot be given together with {first}: an answer has one form"),
        )),
        _ => Ok(all.pop()),
    }
}

/// Reads the constraint of one kind from the field with this name.
fn one(f: &mut Fields, name: &str, way: &str) -> Result<Option<ContentFormat>, Refusal> {
    if way == "choice" {
        return choice(f, name);
    }
    if way == "json" {
        let wrong = "give a JSON schema: an object, or its text";
        let schema = match f.take(name) {
            None => return Ok(None),
            Some(Value::String(text)) => {
                serde_json::from_str(&text).map_err(|_| f.wrong(name, wrong))?
            }
            Some(schema) => schema,
        };
        return if schema.is_object() {
            Ok(Some(ContentFormat::json(schema)))
        } else {
            Err(f.wrong(name, wrong))
        };
    }
    let Some(text) = f.text(name)? else { return Ok(None) };
    if text.is_empty() || text.len() > MAX_BYTES {
        return Err(f.wrong(name, format_args!("give 1 to {MAX_BYTES} bytes")));
    }
    if way == "regex" {
        return Ok(Some(ContentFormat::Regex(text)));
    }
    if text.lines().any(is_gbnf) {
        return lark_of_gbnf(&text)
            .map(|lark| Some(ContentFormat::Lark(lark)))
            .map_err(|why| f.wrong(name, format_args!("this GBNF grammar is invalid: {why}")));
    }
    Ok(Some(ContentFormat::Lark(text)))
}

/// llama.cpp's `grammar`: GBNF. An empty string means no constraint.
pub fn gbnf(f: &mut Fields) -> Result<Option<(ContentFormat, &'static str)>, Refusal> {
    let Some(text) = f.text("grammar")?.filter(|text| !text.is_empty()) else { return Ok(None) };
    if text.len() > MAX_BYTES {
        return Err(f.wrong("grammar", format_args!("give at most {MAX_BYTES} bytes")));
    }
    let lark = lark_of_gbnf(&text).map_err(|why| f.wrong("grammar", why))?;
    Ok(Some((ContentFormat::Lark(lark), "grammar")))
}

/// Whether a line defines a rule in GBNF: a name and `::=`.
fn is_gbnf(line: &str) -> bool {
    let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    line.trim_start()
        .split_once("::=")
        .is_some_and(|(left, _)| !left.is_empty() && left.trim_end().chars().all(name))
}

/// Reads a list of strings; the answer is one of them.
fn choice(f: &mut Fields, name: &str) -> Result<Option<ContentFormat>, Refusal> {
    let Some(all) = f.list(name)? else { return Ok(None) };
    let wrong = || {
        let what = format_args!(
            "give a list of 1 to {MAX_CHOICES} texts that are not empty, \
             of {MAX_BYTES} bytes in all"
        );
        f.wrong(name, what)
    };
    let text = |value: &Value| {
        let text = value.as_str().filter(|text| !text.is_empty())?;
        // Writes a string as a Lark literal. The library does not accept an unescaped DEL.
        Some(Value::from(text).to_string().replace('\u{7f}', "\\u007f"))
    };
    let texts: Vec<String> = all.iter().map(text).collect::<Option<_>>().ok_or_else(wrong)?;
    let bytes = texts.iter().map(String::len).sum::<usize>();
    match (1..=MAX_CHOICES).contains(&texts.len()) && bytes <= MAX_BYTES {
        true => Ok(Some(ContentFormat::Lark(format!("start: {}", texts.join(" | "))))),
        false => Err(wrong()),
    }
}

/// Reads OpenAI's `response_format`.
fn response_format(f: &mut Fields) -> Result<Option<(ContentFormat, &'static str)>, Refusal> {
    let Some(mut format) = f.object("response_format")? else { return Ok(None) };
    let form = match format.needed_text("type")?.as_str() {
        "text" => None,
        // llama.cpp and other servers also accept a schema in this type.
        "json_object" => match format.take("schema") {
            None => Some((ContentFormat::json(json!({ "type": "object" })), "response_format")),
            Some(schema @ Value::Object(_)) => {
                Some((ContentFormat::json(schema), "response_format.schema"))
            }
            Some(_) => return Err(format.wrong("schema", "give a JSON schema: an object")),
        },
        "json_schema" => {
            let Some(mut json_schema) = format.object("json_schema")? else {
                return Err(format.wrong("json_schema", "is missing"));
            };
            json_schema.ignore(&["name", "description"]);
            // With and without `strict`, the schema is enforced as far as possible.
            let exact = json_schema.flag("strict")?.unwrap_or(false);
            let schema = match json_schema.take("schema") {
                Some(schema @ Value::Object(_)) => schema,
                Some(_) => return Err(json_schema.wrong("schema", "give a JSON schema: an object")),
                None => return Err(json_schema.wrong("schema", "is missing")),
            };
            json_schema.done()?;
            Some((ContentFormat::Json { schema, exact }, "response_format.json_schema.schema"))
        }
        _ => return Err(format.wrong("type", "give text, json_object or json_schema")),
    };
    format.done()?;
    Ok(form)
}
