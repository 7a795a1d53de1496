//! Parses a JSON schema to the set of values that it accepts. The keywords of all drafts are
//! supported. An unknown keyword is an annotation.

use super::number::{Bound, Decimal, Numbers};
use super::set::{Array, Object, Schema, Strings};
use super::translated::Unenforced;
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};

/// Maximum nesting of schemas. The JSON reader has the same limit.
pub const MAX_NESTING: usize = 128;
/// Maximum number of schemas, including the schemas that intersections create.
const MAX_SCHEMAS: usize = 200_000;

/// Formats that the library enforces.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Keywords that are not enforced. The value of each is a schema, several schemas, or a number.
const UNENFORCED: [&str; 13] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
];

/// The keywords of each type.
const OF_TYPES: [(&str, &[&str]); 4] = [
    ("number", &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
    ("string", &["minLength", "maxLength", "pattern", "format"]),
    ("array", &["items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"]),
    (
        "object",
        &[
            "properties",
            "patternProperties",
            "additionalProperties",
            "required",
            "minProperties",
            "maxProperties",
            "propertyNames",
        ],
    ),
];
/// Keywords that combine schemas.
const COMBINING: [&str; 8] =
    ["const", "enum", "$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf"];

/// The target of a reference.
enum Definition<'a> {
    Unread(&'a Value),
    Reading,
    Read(Schema),
}

/// Parses a schema and its references.
pub struct Reader<'a> {
    root: &'a Value,
    definitions: Vec<(String, Definition<'a>)>,
    numbers: HashMap<String, usize>,
    anchors: Option<HashMap<&'a str, &'a Value>>,
    made: usize,
    /// Number of nested definitions that are being read.
    open: usize,
    /// The keywords that are not enforced.
    pub unheld: Vec<Unenforced>,
}

type Fields = Map<String, Value>;

impl<'a> Reader<'a> {
    pub fn new(root: &'a Value) -> Reader<'a> {
        Reader {
            root,
            definitions: vec![],
            numbers: HashMap::new(),
            anchors: None,
            made: 0,
            open: 0,
            unheld: vec![],
        }
    }

    /// Counts one more schema.
    pub fn count(&mut self) -> Result<(), String> {
        self.made += 1;
        match self.made > MAX_SCHEMAS {
            true => Err(format!("the schema expands to more than {MAX_SCHEMAS} schemas")),
            false => Ok(()),
        }
    }

    pub fn note(&mut self, keyword: &str, at: &str, matters: bool) {
        let unheld = Unenforced { keyword: keyword.to_owned(), at: at.to_owned(), matters };
        if !self.unheld.contains(&unheld) {
            self.unheld.push(unheld);
        }
    }

    pub fn read(&mut self, schema: &'a Value, at: &str, depth: usize) -> Result<Schema, String> {
        self.count()?;
        if depth > MAX_NESTING {
            return Err(format!("schemas are nested more than {MAX_NESTING} deep"));
        }
        let fields = match schema {
            Value::Bool(true) => return Ok(Schema::Any),
            Value::Bool(false) => return Ok(Schema::Never),
            Value::Object(fields) => fields,
            _ => {
                return Err(format!(
                    "{at}: {} is not a schema (expected an object, true or false)",
                    short(schema)
                ));
            }
        };
        let mut all = self.own(fields, at, depth)?;
        for (keyword, value) in fields {
            let inside = within(at, keyword);
            let part = match keyword.as_str() {
                "const" => Schema::Literal(value.clone()),
                "enum" => Schema::union(
                    list(value, &inside)?.iter().cloned().map(Schema::Literal).collect(),
                ),
                "$ref" | "$dynamicRef" | "$recursiveRef" => {
                    Schema::Ref(self.refer(value, &inside)?)
                }
                "anyOf" | "oneOf" => {
                    let mut any = vec![];
                    for (i, one) in list(value, &inside)?.iter().enumerate() {
                        any.push(self.read(one, &within(&inside, &i.to_string()), depth + 1)?);
                    }
                    if keyword == "oneOf" && !self.apart(&any) {
                        self.note("oneOf", at, false);
                    }
                    Schema::union(any)
                }
                "allOf" => {
                    for (i, one) in list(value, &inside)?.iter().enumerate() {
                        let one = self.read(one, &within(&inside, &i.to_string()), depth + 1)?;
                        all = self.meet(all, one, depth)?;
                    }
                    continue;
                }
                _ => continue,
            };
            all = self.meet(all, part, depth)?;
        }
        self.rest(fields, at, &mut all)?;
        Ok(all)
    }

    /// Reads the keywords of the types. Combining keywords (`anyOf`, `$ref`) are read elsewhere.
    fn own(&mut self, fields: &'a Fields, at: &str, depth: usize) -> Result<Schema, String> {
        let together = COMBINING.iter().any(|word| fields.contains_key(*word));
        let types: Vec<&str> = match fields.get("type") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(all)) if !all.is_empty() => {
                let text = |one: &'a Value| {
                    one.as_str().ok_or_else(|| format!("{at}.type: {} is not a type", short(one)))
                };
                all.iter().map(text).collect::<Result<_, _>>()?
            }
            Some(other) => return Err(format!("{at}.type: {} is not a type", short(other))),
            // Keywords such as `properties` imply the type object.
            None => {
                let spoken = OF_TYPES
                    .iter()
                    .filter(|(_, words)| words.iter().any(|word| fields.contains_key(*word)));
                let spoken: Vec<&str> = spoken.map(|(kind, _)| *kind).collect();
                match (spoken.is_empty(), together) {
                    (true, _) => return Ok(Schema::Any),
                    (false, false) => spoken,
                    (false, true) => vec!["null", "boolean", "number", "string", "array", "object"],
                }
            }
        };
        let mut any = vec![];
        for kind in types {
            any.push(match kind {
                "null" => Schema::Null,
                "boolean" => Schema::Bool,
                "number" | "integer" => {
                    Schema::Number(self.number(fields, at, kind == "integer")?)
                }
                "string" => Schema::String(self.string(fields, at)?),
                "array" => self.array(fields, at, depth)?,
                "object" => self.object(fields, at, depth)?,
                other => return Err(format!("{at}.type: {other:?} is not a JSON type")),
            });
        }
        Ok(Schema::union(any))
    }

    fn number(&mut self, fields: &Fields, at: &str, whole: bool) -> Result<Numbers, String> {
        let number = |word: &str| match fields.get(word) {
            None | Some(Value::Bool(_)) => Ok(None),
            Some(Value::Number(n)) => Decimal::of(n).map(Some).ok_or_else(|| {
                format!("{at}.{word}: {n} has an exponent beyond ±400, which is not supported")
            }),
            Some(other) => Err(format!("{at}.{word}: {} is not a number", short(other))),
        };
        let end = |word: &str, exclusive: &str| -> Result<[Option<Bound>; 2], String> {
            // Draft 4 has a boolean here.
            let flag = fields.get(exclusive) == Some(&Value::Bool(true));
            let (closed, open) = (number(word)?, number(exclusive)?);
            Ok([closed.map(|at| Bound { at, open: flag }), open.map(|at| Bound { at, open: true })])
        };
        let mut numbers = Numbers { whole, ..Numbers::default() };
        for least in end("minimum", "exclusiveMinimum")? {
            numbers = numbers.meet(Numbers { least, ..Numbers::default() });
        }
        for most in end("maximum", "exclusiveMaximum")? {
            numbers = numbers.meet(Numbers { most, ..Numbers::default() });
        }
        match fields.get("multipleOf") {
            None => {}
            Some(Value::Number(n)) if n.as_f64().is_some_and(|n| n > 0.0) => {
                numbers.multiples.push(n.clone())
            }
            Some(other) => {
                return Err(format!("{at}.multipleOf: {} is not a number above 0", short(other)));
            }
        }
        Ok(numbers)
    }

    fn string(&mut self, fields: &Fields, at: &str) -> Result<Strings, String> {
        let pattern = match fields.get("pattern") {
            None => None,
            Some(Value::String(pattern)) => Some((pattern.clone(), at.to_owned())),
            Some(other) => {
                return Err(format!("{at}.pattern: {} is not a regular expression", short(other)));
            }
        };
        let format = match fields.get("format") {
            Some(Value::String(name)) if FORMATS.contains(&name.as_str()) => Some(name.clone()),
            // Any other format is an annotation.
            _ => None,
        };
        Ok(Strings {
            least: count(fields, "minLength", at)?.unwrap_or(0),
            most: count(fields, "maxLength", at)?,
            patterns: pattern.into_iter().collect(),
            formats: format.into_iter().collect(),
        })
    }

    fn array(&mut self, fields: &'a Fields, at: &str, depth: usize) -> Result<Schema, String> {
        // Before draft 2020, a list in `items` was the same as `prefixItems`.
        let (prefix, items) = match (fields.get("items"), fields.get("prefixItems")) {
            (Some(Value::Array(all)), _) => {
                (Some(("items", all.as_slice())), ("additionalItems", "additionalItems"))
            }
            (_, Some(all)) => (
                Some(("prefixItems", list(all, &format!("{at}.prefixItems"))?)),
                ("items", "items"),
            ),
            (_, None) => (None, ("items", "items")),
        };
        let (word, all) = prefix.unwrap_or(("", &[]));
        let mut prefix = vec![];
        for (i, one) in all.iter().enumerate() {
            prefix.push(self.read(one, &within(at, &format!("{word}.{i}")), depth + 1)?);
        }
        let items = match fields.get(items.0) {
            None => Schema::Any,
            Some(one) => self.read(one, &within(at, items.1), depth + 1)?,
        };
        let unique = fields.get("uniqueItems") == Some(&Value::Bool(true));
        Ok(Schema::Array(Box::new(Array {
            prefix,
            items,
            least: count(fields, "minItems", at)?.unwrap_or(0),
            most: count(fields, "maxItems", at)?,
            unique: unique.then(|| at.to_owned()),
        })))
    }

    fn object(&mut self, fields: &'a Fields, at: &str, depth: usize) -> Result<Schema, String> {
        let (properties, patterns) = (
            self.map(fields, "properties", at, depth)?,
            self.map(fields, "patternProperties", at, depth)?,
        );
        let additional = match fields.get("additionalProperties") {
            None => Schema::Any,
            Some(one) => self.read(one, &within(at, "additionalProperties"), depth + 1)?,
        };
        let mut required: Vec<String> = vec![];
        // In draft 3 this was a boolean about the containing object.
        if let Some(names) = fields.get("required").filter(|names| !names.is_boolean()) {
            let mut seen = HashSet::new();
            for name in list(names, &format!("{at}.required"))? {
                let name = name
                    .as_str()
                    .ok_or_else(|| format!("{at}.required: {} is not a name", short(name)))?;
                if seen.insert(name) {
                    required.push(name.to_owned());
                }
            }
        }
        let mut object = Object {
            properties,
            patterns,
            additional,
            names: Strings::default(),
            required,
            least: count(fields, "minProperties", at)?.unwrap_or(0),
            most: count(fields, "maxProperties", at)?,
            at: at.to_owned(),
        };
        if !object.patterns.is_empty() {
            object.with_patterns(self, depth)?;
        }
        if let Some(names) = fields.get("propertyNames") {
            let inside = within(at, "propertyNames");
            let names = self.read(names, &inside, depth + 1)?;
            self.names(&mut object, names, &inside)?;
        }
        Ok(Schema::Object(Box::new(object)))
    }

    fn map(
        &mut self,
        fields: &'a Fields,
        word: &str,
        at: &str,
        depth: usize,
    ) -> Result<Vec<(String, Schema)>, String> {
        let all = match fields.get(word) {
            None => return Ok(vec![]),
            Some(Value::Object(all)) => all,
            Some(other) => {
                return Err(format!("{at}.{word}: {} is not an object of schemas", short(other)));
            }
        };
        let mut read = Vec::with_capacity(all.len());
        for (name, one) in all {
            read.push((
                name.clone(),
                self.read(one, &within(at, &format!("{word}.{name}")), depth + 1)?,
            ));
        }
        Ok(read)
    }

    /// Applies `propertyNames` to an object.
    fn names(&mut self, object: &mut Object, names: Schema, at: &str) -> Result<(), String> {
        let names = match names {
            Schema::Ref(number) => self.followed(number, 0)?,
            names => names,
        };
        let all = match names {
            Schema::Any => return Ok(()),
            Schema::String(names) => {
                object.names.add(names);
                return Ok(());
            }
            Schema::Union(all) => all,
            one => vec![one],
        };
        let mut each = vec![];
        for one in all {
            match one {
                Schema::Literal(Value::String(name)) => each.push(name),
                // These schemas accept no string, so no name matches.
                Schema::Literal(_)
                | Schema::Null
                | Schema::Bool
                | Schema::Number(_)
                | Schema::Never => {}
                Schema::Array(_) | Schema::Object(_) => {}
                // Constraints of several kinds on names are not enforced.
                _ => {
                    self.note("propertyNames", at, false);
                    return Ok(());
                }
            }
        }
        // Only these names are allowed; each is optional.
        let named: HashMap<String, Schema> =
            std::mem::take(&mut object.properties).into_iter().collect();
        let mut properties: Vec<(String, Schema)> = vec![];
        for name in each {
            let schema = named.get(&name).cloned().unwrap_or_else(|| object.of_name(&name));
            properties.push((name, schema));
        }
        (object.properties, object.patterns, object.additional) =
            (properties, vec![], Schema::Never);
        Ok(())
    }

    /// Returns the index of a reference's target in `definitions`.
    fn refer(&mut self, reference: &Value, at: &str) -> Result<usize, String> {
        let Some(text) = reference.as_str() else {
            return Err(format!("{at}: {} is not a reference", short(reference)));
        };
        if let Some(number) = self.numbers.get(text) {
            return Ok(*number);
        }
        let id = self
            .root
            .get("$id")
            .or_else(|| self.root.get("id"))
            .and_then(Value::as_str)
            .unwrap_or_default();
        let local = text.strip_prefix(id.trim_end_matches('#')).unwrap_or(text);
        let Some(fragment) = local.strip_prefix('#').or((local.is_empty()).then_some("")) else {
            return Err(format!(
                "{at}: {} refers to a different document: put the definition into $defs",
                short(reference)
            ));
        };
        let found = match fragment {
            "" => Some(self.root),
            pointer if pointer.starts_with('/') => {
                let pointer = unescaped(pointer);
                self.root.pointer(&pointer)
            }
            anchor => {
                let root = self.root;
                let anchors = self.anchors.get_or_insert_with(|| {
                    let mut all = HashMap::new();
                    anchors(root, &mut all, 0);
                    all
                });
                anchors.get(anchor).copied()
            }
        };
        let found = found.ok_or_else(|| format!("{at}: {} does not exist", short(reference)))?;
        self.definitions.push((text.to_owned(), Definition::Unread(found)));
        self.numbers.insert(text.to_owned(), self.definitions.len() - 1);
        Ok(self.definitions.len() - 1)
    }

    /// Whether the definition with this index is being read.
    pub fn is_reading(&self, number: usize) -> bool {
        matches!(self.definitions.get(number), Some((_, Definition::Reading)))
    }

    /// The schema of the definition with this index.
    pub fn definition(&mut self, number: usize) -> Result<Schema, String> {
        let Some((name, definition)) = self.definitions.get_mut(number) else {
            return Ok(Schema::Never);
        };
        let name = name.clone();
        match std::mem::replace(definition, Definition::Reading) {
            Definition::Read(schema) => {
                *definition = Definition::Read(schema.clone());
                Ok(schema)
            }
            Definition::Reading => {
                Err(format!("{name} refers to itself while it is being resolved (a cycle of $ref)"))
            }
            Definition::Unread(value) => {
                self.open += 1;
                if self.open > MAX_NESTING {
                    return Err(format!(
                        "references with other keywords are nested more than {MAX_NESTING} deep"
                    ));
                }
                let schema = self.read(value, &name, 0)?;
                self.open -= 1;
                if let Some((_, definition)) = self.definitions.get_mut(number) {
                    *definition = Definition::Read(schema.clone());
                }
                Ok(schema)
            }
        }
    }

    /// Like [`Reader::definition`], but follows references that lead only to references.
    pub fn followed(&mut self, number: usize, depth: usize) -> Result<Schema, String> {
        match self.definition(number)? {
            Schema::Ref(_) if depth > MAX_NESTING => {
                Err("a reference leads only to references".to_owned())
            }
            Schema::Ref(next) => self.followed(next, depth + 1),
            schema => Ok(schema),
        }
    }

    /// Records the keywords that are not enforced, and checks the keywords that no other function
    /// reads.
    fn rest(&mut self, fields: &'a Fields, at: &str, all: &mut Schema) -> Result<(), String> {
        for word in UNENFORCED {
            let Some(value) = fields.get(word) else { continue };
            let says = match (word, value) {
                ("minContains" | "maxContains" | "then" | "else", _) => continue,
                ("contentSchema", _) => continue,
                ("dependentRequired" | "dependentSchemas" | "dependencies", Value::Object(all)) => {
                    !all.is_empty()
                }
                ("dependentRequired" | "dependentSchemas" | "dependencies", _) => {
                    return Err(format!("{at}.{word}: {} is not an object", short(value)));
                }
                (_, Value::Bool(_) | Value::Object(_)) => true,
                _ => {
                    return Err(format!(
                        "{at}.{word}: {} is not a schema (expected an object, true or false)",
                        short(value)
                    ));
                }
            };
            let held = match (word, value) {
                ("not", Value::Bool(true)) => {
                    *all = Schema::Never;
                    true
                }
                ("not", Value::Bool(false)) => true,
                ("not", Value::Object(no)) if no.is_empty() => {
                    *all = Schema::Never;
                    true
                }
                ("if", _) => !fields.contains_key("then") && !fields.contains_key("else"),
                ("unevaluatedItems" | "unevaluatedProperties" | "contains", Value::Bool(true)) => {
                    word != "contains"
                }
                ("unevaluatedProperties", Value::Bool(false)) => close(all, true),
                ("unevaluatedItems", Value::Bool(false)) => close(all, false),
                _ => false,
            };
            if says && !held {
                self.note(word, at, true);
            }
        }
        Ok(())
    }
}

/// Forbids properties and items that are not listed.
fn close(schema: &mut Schema, objects: bool) -> bool {
    match schema {
        Schema::Object(object) if objects => {
            if object.additional == Schema::Any {
                object.additional = Schema::Never;
            }
            true
        }
        Schema::Array(array) if !objects => {
            if array.items == Schema::Any {
                array.items = Schema::Never;
            }
            true
        }
        Schema::Union(all) => {
            // Every schema is closed, even if an earlier schema could not be closed.
            let closed: Vec<bool> = all.iter_mut().map(|one| close(one, objects)).collect();
            closed.into_iter().all(|one| one)
        }
        Schema::Any | Schema::Ref(_) => false,
        _ => true,
    }
}

fn list<'a>(value: &'a Value, at: &str) -> Result<&'a [Value], String> {
    value
        .as_array()
        .map(Vec::as_slice)
        .ok_or_else(|| format!("{at}: {} is not a list", short(value)))
}

/// Reads a count, such as `minItems`.
fn count(fields: &Fields, word: &str, at: &str) -> Result<Option<usize>, String> {
    let Some(value) = fields.get(word) else { return Ok(None) };
    let whole = value
        .as_u64()
        .or_else(|| value.as_f64().filter(|n| *n >= 0.0 && n.fract() == 0.0).map(|n| n as u64));
    match whole {
        Some(n) => Ok(Some(usize::try_from(n).unwrap_or(usize::MAX))),
        None => Err(format!("{at}.{word}: {} is not an integer of at least 0", short(value))),
    }
}

/// The path of a keyword in the schema. Deep paths are shortened.
fn within(at: &str, word: &str) -> String {
    const MAX_PATH: usize = 120;
    match at.len() + word.len() <= MAX_PATH {
        true => format!("{at}.{word}"),
        false if at.ends_with('…') => at.to_owned(),
        false => format!("{at}.…"),
    }
}

/// A value as JSON text, shortened for an error message.
fn short(value: &Value) -> String {
    const MAX_SCHEMAS: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MAX_SCHEMAS) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text,
    }
}

/// Collects the schemas that have an anchor.
fn anchors<'a>(value: &'a Value, all: &mut HashMap<&'a str, &'a Value>, depth: usize) {
    if depth > MAX_NESTING {
        return;
    }
    match value {
        Value::Object(fields) => {
            for word in ["$anchor", "$dynamicAnchor"] {
                if let Some(name) = fields.get(word).and_then(Value::as_str) {
                    all.entry(name).or_insert(value);
                }
            }
            for word in ["$id", "id"] {
                if let Some(name) =
                    fields.get(word).and_then(Value::as_str).and_then(|id| id.strip_prefix('#'))
                {
                    all.entry(name).or_insert(value);
                }
            }
            fields.values().for_each(|inner| anchors(inner, all, depth + 1));
        }
        Value::Array(list) => list.iter().for_each(|inner| anchors(inner, all, depth + 1)),
        _ => {}
    }
}

/// Decodes the percent escapes of a pointer.
fn unescaped(pointer: &str) -> String {
    let mut bytes = vec![];
    let mut rest = pointer.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let code = (*first == b'%').then(|| more.get(..2)).flatten();
        let code = code.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { more.get(2..).unwrap_or_default() } else { more };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
