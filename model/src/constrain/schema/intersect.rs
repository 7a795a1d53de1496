//! The intersection of schemas: a value must satisfy all of them.

use super::read::{MAX_NESTING, Reader};
use super::set::{Array, Object, Schema, Strings};
use llguidance::derivre::{Regex, RegexBuilder};
use llguidance::regex_to_lark;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

impl Reader<'_> {
    /// Returns the intersection of two schemas.
    pub fn meet(&mut self, a: Schema, b: Schema, depth: usize) -> Result<Schema, String> {
        self.count()?;
        if depth > MAX_NESTING {
            return Err(format!(
                "combined schemas (allOf, $ref) are nested more than {MAX_NESTING} deep"
            ));
        }
        let deeper = depth + 1;
        Ok(match (a, b) {
            (Schema::Any, one) | (one, Schema::Any) => one,
            (Schema::Never, _) | (_, Schema::Never) => Schema::Never,
            (Schema::Ref(a), Schema::Ref(b)) if a == b => Schema::Ref(a),
            (Schema::Ref(number), other) | (other, Schema::Ref(number)) => {
                if self.is_reading(number) {
                    // A recursive definition that is intersected with another schema would expand
                    // without end.
                    self.note("recursive $ref with other keywords", "$", false);
                    return Ok(Schema::Ref(number));
                }
                let one = self.followed(number, 0)?;
                self.meet(one, other, deeper)?
            }
            (Schema::Union(all), other) | (other, Schema::Union(all)) => {
                let mut any = vec![];
                for one in all {
                    any.push(self.meet(one, other.clone(), deeper)?);
                }
                Schema::union(any)
            }
            (Schema::Literal(value), other) | (other, Schema::Literal(value)) => {
                match self.takes(&other, &value, deeper)? {
                    true => Schema::Literal(value),
                    false => Schema::Never,
                }
            }
            (Schema::Null, Schema::Null) => Schema::Null,
            (Schema::Bool, Schema::Bool) => Schema::Bool,
            (Schema::Number(a), Schema::Number(b)) => Schema::Number(a.meet(b)),
            (Schema::String(mut a), Schema::String(b)) => {
                a.add(b);
                Schema::String(a)
            }
            (Schema::Array(a), Schema::Array(b)) => {
                Schema::Array(Box::new(self.arrays(*a, *b, deeper)?))
            }
            (Schema::Object(a), Schema::Object(b)) => {
                Schema::Object(Box::new(self.objects(*a, *b, deeper)?))
            }
            _ => Schema::Never,
        })
    }

    fn arrays(&mut self, a: Array, b: Array, depth: usize) -> Result<Array, String> {
        let mut prefix = vec![];
        for i in 0..a.prefix.len().max(b.prefix.len()) {
            let of = |array: &Array| array.prefix.get(i).unwrap_or(&array.items).clone();
            prefix.push(self.meet(of(&a), of(&b), depth)?);
        }
        Ok(Array {
            prefix,
            items: self.meet(a.items, b.items, depth)?,
            least: a.least.max(b.least),
            most: least_of(a.most, b.most),
            unique: a.unique.or(b.unique),
        })
    }

    fn objects(&mut self, a: Object, b: Object, depth: usize) -> Result<Object, String> {
        let mut properties = vec![];
        let named: HashMap<&str, &Schema> =
            b.properties.iter().map(|(name, one)| (name.as_str(), one)).collect();
        let known: HashSet<&str> = a.properties.iter().map(|(name, _)| name.as_str()).collect();
        for (name, one) in &a.properties {
            let other =
                named.get(name.as_str()).map_or_else(|| b.of_name(name), |one| (*one).clone());
            properties.push((name.clone(), self.meet(one.clone(), other, depth)?));
        }
        for (name, one) in b.properties.iter().filter(|(name, _)| !known.contains(name.as_str())) {
            properties.push((name.clone(), self.meet(a.of_name(name), one.clone(), depth)?));
        }
        let mut patterns: Vec<(String, Schema)> = vec![];
        for (mine, theirs) in [(&a, &b), (&b, &a)] {
            for (pattern, one) in &mine.patterns {
                if patterns.iter().any(|(known, _)| known == pattern) {
                    continue;
                }
                let other = theirs.patterns.iter().find(|(other, _)| other == pattern);
                let other = other.map_or(&theirs.additional, |(_, one)| one).clone();
                patterns.push((pattern.clone(), self.meet(one.clone(), other, depth)?));
            }
        }
        let mut required = a.required;
        let more: Vec<String> = {
            let known: HashSet<&String> = required.iter().collect();
            b.required.into_iter().filter(|name| !known.contains(name)).collect()
        };
        required.extend(more);
        let mut names = a.names;
        names.add(b.names);
        Ok(Object {
            properties,
            patterns,
            additional: self.meet(a.additional, b.additional, depth)?,
            names,
            required,
            least: a.least.max(b.least),
            most: least_of(a.most, b.most),
            at: a.at,
        })
    }

    /// Whether a value satisfies a schema. If this cannot be decided: `true`.
    fn takes(&mut self, schema: &Schema, value: &Value, depth: usize) -> Result<bool, String> {
        self.count()?;
        if depth > MAX_NESTING {
            return Err(format!(
                "combined schemas (allOf, $ref) are nested more than {MAX_NESTING} deep"
            ));
        }
        let deeper = depth + 1;
        Ok(match (schema, value) {
            (Schema::Any, _) | (Schema::Null, Value::Null) | (Schema::Bool, Value::Bool(_)) => true,
            (Schema::Literal(other), value) => same(other, value),
            (Schema::Number(numbers), Value::Number(n)) => numbers.has(n),
            (Schema::String(strings), Value::String(text)) => strings.takes(text),
            (Schema::Array(array), Value::Array(list)) => {
                let mut all =
                    list.len() >= array.least && array.most.is_none_or(|most| list.len() <= most);
                for (i, item) in list.iter().enumerate() {
                    let one = array.prefix.get(i).unwrap_or(&array.items);
                    all = all && self.takes(one, item, deeper)?;
                }
                all
            }
            (Schema::Object(object), Value::Object(map)) => {
                let mut all = object.required.iter().all(|name| map.contains_key(name))
                    && map.len() >= object.least
                    && object.most.is_none_or(|most| map.len() <= most);
                for (name, value) in map {
                    let one = object.properties.iter().find(|(known, _)| known == name);
                    let one = one.map_or_else(|| object.of_name(name), |(_, one)| one.clone());
                    all = all && self.takes(&one, value, deeper)?;
                }
                all
            }
            (Schema::Union(all), value) => {
                let mut any = false;
                for one in all {
                    any = any || self.takes(one, value, deeper)?;
                }
                any
            }
            (Schema::Ref(number), value) => {
                if self.is_reading(*number) {
                    return Ok(true);
                }
                let one = self.followed(*number, 0)?;
                self.takes(&one, value, deeper)?
            }
            _ => false,
        })
    }

    /// Whether at most one of these schemas accepts any value, as far as this can be decided.
    pub fn apart(&mut self, all: &[Schema]) -> bool {
        const MAX_COMPARISONS: usize = 200;
        let mut one = |schema: &Schema| match schema {
            Schema::Ref(number) if !self.is_reading(*number) => {
                self.followed(*number, 0).unwrap_or(Schema::Any)
            }
            schema => schema.clone(),
        };
        let all: Vec<Schema> = all.iter().take(MAX_COMPARISONS + 1).map(&mut one).collect();
        all.len() <= MAX_COMPARISONS
            && all.iter().enumerate().all(|(i, a)| all.iter().skip(i + 1).all(|b| apart(a, b)))
    }
}

fn apart(a: &Schema, b: &Schema) -> bool {
    let values = |schema: &Schema| match schema {
        Schema::Literal(value) => Some(vec![value.clone()]),
        Schema::Union(all) => all
            .iter()
            .map(|one| if let Schema::Literal(value) = one { Some(value.clone()) } else { None })
            .collect::<Option<Vec<Value>>>(),
        _ => None,
    };
    if let (Some(a), Some(b)) = (values(a), values(b)) {
        return a.iter().all(|a| b.iter().all(|b| !same(a, b)));
    }
    match (a, b) {
        (Schema::Never, _) | (_, Schema::Never) => true,
        (Schema::Any | Schema::Ref(_), _) | (_, Schema::Any | Schema::Ref(_)) => false,
        (Schema::Union(all), other) | (other, Schema::Union(all)) => {
            all.iter().all(|one| apart(one, other))
        }
        (Schema::Object(a), Schema::Object(b)) => a.properties.iter().any(|(name, one)| {
            let needed = a.required.contains(name) || b.required.contains(name);
            needed && b.properties.iter().any(|(other, two)| other == name && apart(one, two))
        }),
        (Schema::Number(a), Schema::Number(b)) => a.clone().meet(b.clone()).terminal().is_none(),
        (Schema::Literal(value), other) | (other, Schema::Literal(value)) => match (value, other) {
            (Value::Number(n), Schema::Number(numbers)) => !numbers.has(n),
            (Value::String(text), Schema::String(strings)) => !strings.takes(text),
            (value, other) => kind(&Schema::Literal(value.clone())) != kind(other),
        },
        (a, b) => kind(a) != kind(b),
    }
}

fn kind(schema: &Schema) -> Option<u8> {
    match schema {
        Schema::Null | Schema::Literal(Value::Null) => Some(0),
        Schema::Bool | Schema::Literal(Value::Bool(_)) => Some(1),
        Schema::Number(_) | Schema::Literal(Value::Number(_)) => Some(2),
        Schema::String(_) | Schema::Literal(Value::String(_)) => Some(3),
        Schema::Array(_) | Schema::Literal(Value::Array(_)) => Some(4),
        Schema::Object(_) | Schema::Literal(Value::Object(_)) => Some(5),
        _ => None,
    }
}

/// Whether two values are equal for JSON Schema: 1 equals 1.0.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_i128(), b.as_i128()) {
            (Some(a), Some(b)) => a == b,
            _ => a.as_f64() == b.as_f64(),
        },
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

fn least_of(a: Option<usize>, b: Option<usize>) -> Option<usize> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl Strings {
    /// The intersection with other constraints.
    pub fn add(&mut self, other: Strings) {
        self.least = self.least.max(other.least);
        self.most = least_of(self.most, other.most);
        for (pattern, at) in other.patterns {
            if self.patterns.iter().all(|(known, _)| *known != pattern) {
                self.patterns.push((pattern, at));
            }
        }
        for format in other.formats {
            if !self.formats.contains(&format) {
                self.formats.push(format);
            }
        }
    }

    /// Whether a string satisfies these constraints, without formats. If this cannot be decided for
    /// a pattern, the pattern counts as satisfied.
    fn takes(&self, text: &str) -> bool {
        let length = text.chars().count();
        length >= self.least
            && self.most.is_none_or(|most| length <= most)
            && self.patterns.iter().all(|(pattern, _)| found(pattern, text).unwrap_or(true))
    }
}

impl Object {
    /// The schema of a property that is not listed.
    pub fn of_name(&self, name: &str) -> Schema {
        let pattern = self.patterns.iter().find(|(pattern, _)| found(pattern, name) == Some(true));
        pattern.map_or(&self.additional, |(_, one)| one).clone()
    }

    /// Applies the schemas of name patterns to the listed properties as well.
    pub fn with_patterns(&mut self, reader: &mut Reader<'_>, depth: usize) -> Result<(), String> {
        for (pattern, other) in &self.patterns {
            let Some(mut finder) = finder(pattern) else { continue };
            for (_, one) in self.properties.iter_mut().filter(|(name, _)| finder.is_match(name)) {
                *one = reader.meet(std::mem::replace(one, Schema::Never), other.clone(), depth)?;
            }
        }
        Ok(())
    }
}

/// Whether a pattern matches somewhere in a text; `None` if this cannot be decided.
fn found(pattern: &str, text: &str) -> Option<bool> {
    Some(finder(pattern)?.is_match(text))
}

/// Compiles a pattern for searching.
fn finder(pattern: &str) -> Option<Regex> {
    const FUEL: u64 = 10_000;
    let mut builder = RegexBuilder::new();
    let expression = builder.mk_regex_for_serach(&regex_to_lark(pattern, "dw")).ok()?;
    builder.to_regex_limited(expression, FUEL).ok()
}
