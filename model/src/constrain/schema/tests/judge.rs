//! A validator of JSON Schema that is independent of grammars.

use llguidance::derivre::RegexBuilder;
use serde_json::Value;

/// `root` is the schema that references refer to.
pub fn keeps(value: &Value, schema: &Value, root: &Value) -> bool {
    let Some(schema) = schema.as_object() else { return schema == &Value::Bool(true) };
    schema.iter().all(|(word, says)| match word.as_str() {
        "type" => match says {
            Value::Array(all) => all.iter().any(|one| is(value, one)),
            one => is(value, one),
        },
        "const" => same(value, says),
        "enum" => list(says).iter().any(|one| same(value, one)),
        "$ref" => keeps(value, target(says.as_str().unwrap(), root), root),
        "allOf" => list(says).iter().all(|one| keeps(value, one, root)),
        "anyOf" => list(says).iter().any(|one| keeps(value, one, root)),
        "oneOf" => list(says).iter().filter(|one| keeps(value, one, root)).count() == 1,
        "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum" | "multipleOf" => {
            let Some(n) = value.as_f64() else { return true };
            let flag = |word: &str| schema.get(word) == Some(&Value::Bool(true));
            // Booleans of draft 4.
            let Some(end) = says.as_f64() else { return true };
            match word.as_str() {
                "minimum" if flag("exclusiveMinimum") => n > end,
                "minimum" => n >= end,
                "exclusiveMinimum" => n > end,
                "maximum" if flag("exclusiveMaximum") => n < end,
                "maximum" => n <= end,
                "exclusiveMaximum" => n < end,
                _ => ((n / end).round() * end - n).abs() < 1e-9 * n.abs().max(1.0),
            }
        }
        "minLength" => {
            value.as_str().is_none_or(|s| s.chars().count() as u64 >= says.as_u64().unwrap())
        }
        "maxLength" => {
            value.as_str().is_none_or(|s| s.chars().count() as u64 <= says.as_u64().unwrap())
        }
        "pattern" => value.as_str().is_none_or(|s| found(says.as_str().unwrap(), s)),
        "minItems" => value.as_array().is_none_or(|all| all.len() as u64 >= says.as_u64().unwrap()),
        "maxItems" => value.as_array().is_none_or(|all| all.len() as u64 <= says.as_u64().unwrap()),
        "uniqueItems" => value.as_array().is_none_or(|all| {
            says == &Value::Bool(false)
                || all.iter().enumerate().all(|(i, a)| all[..i].iter().all(|b| !same(a, b)))
        }),
        "items" if says.is_array() => value
            .as_array()
            .is_none_or(|all| all.iter().zip(list(says)).all(|(v, s)| keeps(v, s, root))),
        "prefixItems" => value
            .as_array()
            .is_none_or(|all| all.iter().zip(list(says)).all(|(v, s)| keeps(v, s, root))),
        "items" | "additionalItems" => {
            let before = match word.as_str() {
                "items" => schema.get("prefixItems"),
                _ => schema.get("items").filter(|items| items.is_array()),
            };
            let from = before.map_or(0, |before| list(before).len());
            value
                .as_array()
                .is_none_or(|all| all.iter().skip(from).all(|one| keeps(one, says, root)))
        }
        "required" => value.as_object().is_none_or(|map| {
            list(says).iter().all(|name| map.contains_key(name.as_str().unwrap()))
        }),
        "properties" => value.as_object().is_none_or(|map| {
            map.iter()
                .all(|(name, one)| says.get(name).is_none_or(|schema| keeps(one, schema, root)))
        }),
        "patternProperties" => value.as_object().is_none_or(|map| {
            let all = says.as_object().unwrap();
            map.iter().all(|(name, one)| {
                all.iter().all(|(p, schema)| !found(p, name) || keeps(one, schema, root))
            })
        }),
        "additionalProperties" => value.as_object().is_none_or(|map| {
            let named =
                |name: &String| schema.get("properties").is_some_and(|all| all.get(name).is_some());
            let patterns: Vec<&String> = schema
                .get("patternProperties")
                .and_then(Value::as_object)
                .map_or(vec![], |all| all.keys().collect());
            let other = |name: &String| !named(name) && !patterns.iter().any(|p| found(p, name));
            map.iter().filter(|(name, _)| other(name)).all(|(_, one)| keeps(one, says, root))
        }),
        "propertyNames" => value.as_object().is_none_or(|map| {
            map.keys().all(|name| keeps(&Value::from(name.as_str()), says, root))
        }),
        "minProperties" => {
            value.as_object().is_none_or(|map| map.len() as u64 >= says.as_u64().unwrap())
        }
        "maxProperties" => {
            value.as_object().is_none_or(|map| map.len() as u64 <= says.as_u64().unwrap())
        }
        _ => true,
    })
}

fn is(value: &Value, kind: &Value) -> bool {
    match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "string" => value.is_string(),
        "array" => value.is_array(),
        _ => value.is_object(),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn same(a: &Value, b: &Value) -> bool {
    a == b || a.as_f64().is_some_and(|a| Some(a) == b.as_f64())
}

fn target<'a>(reference: &str, root: &'a Value) -> &'a Value {
    let (_, fragment) = reference.split_once('#').unwrap();
    if fragment.is_empty() || fragment.starts_with('/') {
        return root.pointer(&fragment.replace("%20", " ")).unwrap();
    }
    let named = |one: &&Value| one.get("$anchor").and_then(Value::as_str) == Some(fragment);
    root["$defs"].as_object().unwrap().values().find(named).unwrap()
}

fn found(pattern: &str, text: &str) -> bool {
    let mut builder = RegexBuilder::new();
    let expression = builder.mk_regex_for_serach(pattern).unwrap();
    builder.to_regex(expression).is_match(text)
}
