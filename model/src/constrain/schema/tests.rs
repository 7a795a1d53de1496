//! Tests of common schemas. They check the texts that satisfy a schema, the keywords that are not
//! enforced, and random answers, which an independent validator checks.

mod judge;

use crate::constrain::{Grammar, Grammars};
use crate::serve::Constraint;
use crate::tokenizer::{SpecialIds, Tokenizer, Vocabulary};
use serde_json::{Value, json};

/// A vocabulary of single bytes, some JSON fragments, and the end token.
fn tokenizer() -> Tokenizer {
    let mut other = 0x100;
    let letter = |b: u8| match b {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => char::from(b).to_string(),
        _ => {
            other += 1;
            char::from_u32(other - 1).unwrap().to_string()
        }
    };
    let mut tokens: Vec<String> = (0u8..=255).map(letter).collect();
    tokens
        .extend(["{\"", "\":", "\",\"", "}}", "true", "null", "00", "12", ",\""].map(String::from));
    let mut types = vec![1; tokens.len()];
    let end = tokens.len() as u32;
    tokens.push("<|im_end|>".to_owned());
    types.push(3);
    let merges: Vec<&[u8]> = vec![];
    Tokenizer::new(&Vocabulary {
        model: "gpt2",
        pre: Some("gpt-2"),
        tokens: tokens.iter().map(|t| t.as_bytes()).collect(),
        types: Some(types),
        merges: Some(merges),
        special: SpecialIds { eos: Some(end), ..Default::default() },
        ..Default::default()
    })
    .unwrap()
}

struct Bench {
    tokenizer: Tokenizer,
    grammars: Grammars,
}

fn bench() -> Bench {
    let tokenizer = tokenizer();
    let grammars = Grammars::new(&tokenizer, tokenizer.n_vocab()).unwrap();
    Bench { tokenizer, grammars }
}

impl Bench {
    fn made(&self, schema: &Value) -> Box<Grammar> {
        self.grammars.json_schema(schema).unwrap_or_else(|e| {
            panic!(
                "{e}: {schema}\n{}",
                super::translate(schema).map(|t| t.lark).unwrap_or_default()
            )
        })
    }

    /// Whether the grammar accepts a text, byte by byte, to its end.
    fn takes(&self, grammar: &Grammar, text: &str) -> bool {
        let mut grammar = grammar.clone();
        for (i, byte) in text.bytes().enumerate() {
            // The first 256 tokens are bytes.
            let mask = grammar.allowed().unwrap();
            if !mask.allows(u32::from(byte)) {
                return false;
            }
            let done = grammar.accept(u32::from(byte)).unwrap();
            if done {
                return i + 1 == text.len();
            }
        }
        let end = self.tokenizer.eog_ids()[0];
        grammar.allowed().unwrap().allows(end)
    }

    /// Generates a random answer; `None` if it did not end.
    fn walk(&self, grammar: &Grammar, dice: &mut Dice) -> Option<String> {
        let mut grammar = grammar.clone();
        let mut text: Vec<u8> = vec![];
        for step in 0..1500 {
            let mask = grammar.allowed().unwrap();
            let allowed: Vec<u32> =
                (0..self.tokenizer.n_vocab() as u32).filter(|id| mask.allows(*id)).collect();
            assert!(!allowed.is_empty(), "nothing may follow {:?}", String::from_utf8_lossy(&text));
            let ends = |id: &u32| {
                let bytes = self.tokenizer.token_text(*id).unwrap();
                self.tokenizer.is_eog(*id) || matches!(bytes, b"\"" | b"}" | b"]")
            };
            let ending: Vec<u32> = allowed.iter().copied().filter(ends).collect();
            let id = match ending.as_slice() {
                [_, ..] if dice.below(3) < 1 + step / 300 => ending[dice.below(ending.len())],
                _ => allowed[dice.below(allowed.len())],
            };
            let done = grammar.accept(id).unwrap();
            if !self.tokenizer.is_eog(id) {
                text.extend(self.tokenizer.decode(&[id]).unwrap());
            }
            if done {
                return Some(String::from_utf8(text).unwrap());
            }
        }
        None
    }
}

/// Generator of random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// A schema, accepted texts, rejected texts, and the keywords that are not enforced.
type Row = (
    &'static str,
    Value,
    &'static [&'static str],
    &'static [&'static str],
    &'static [&'static str],
);

fn object(properties: Value) -> Value {
    let required: Vec<&String> = properties.as_object().unwrap().keys().collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

#[allow(clippy::too_many_lines)]
fn rows() -> Vec<Row> {
    let one = |schema: Value| json!({ "type": "object", "properties": { "p": schema }, "required": ["p"] });
    vec![
        ("nothing in it", json!({ "const": {} }), &["{}"], &["{ }", "{\"a\": 1}"], &[]),
        ("empty", json!({}), &["1", "{\"a\": [null]}", "\"x\""], &["x", ""], &[]),
        (
            "annotations only",
            json!({ "title": "T", "$schema": "http://json-schema.org/draft-07/schema#", "x-a": 1 }),
            &["1"],
            &[],
            &[],
        ),
        ("true", one(json!(true)), &["{\"p\": 1}"], &["{}"], &[]),
        (
            "false, optional",
            json!({ "type": "object", "properties": { "a": false } }),
            &["{}", "{\"b\": 1}"],
            &["{\"a\": 1}"],
            &[],
        ),
        (
            "set of literals",
            one(
                json!({ "items": { "enum": ["x", "y"], "type": "string" }, "type": "array", "uniqueItems": true }),
            ),
            &["{\"p\": [\"y\", \"x\"]}", "{\"p\": []}"],
            &["{\"p\": [\"x\",\"x\"]}", "{\"p\": [\"z\"]}"],
            &[],
        ),
        (
            "set of strings",
            one(json!({ "items": { "type": "string" }, "type": "array", "uniqueItems": true })),
            &["{\"p\": [\"y\"]}"],
            &["{\"p\": [1]}"],
            &["uniqueItems"],
        ),
        (
            "path",
            one(json!({ "format": "path", "type": "string" })),
            &["{\"p\": \"/a/b\"}"],
            &["{\"p\": 1}"],
            &[],
        ),
        (
            "secret",
            one(json!({ "format": "password", "type": "string", "writeOnly": true })),
            &["{\"p\": \"x\"}"],
            &[],
            &[],
        ),
        (
            "an unknown format",
            one(json!({ "format": "my-own!", "type": "string" })),
            &["{\"p\": \"x\"}"],
            &[],
            &[],
        ),
        (
            "a format in a number",
            one(json!({ "format": "int64", "type": "integer" })),
            &["{\"p\": 3}"],
            &["{\"p\": 3.5}"],
            &[],
        ),
        (
            "a format that is not a name",
            one(json!({ "format": 3, "type": "string" })),
            &["{\"p\": \"\"}"],
            &[],
            &[],
        ),
        (
            "date",
            json!({ "type": "string", "format": "date" }),
            &["\"2024-02-29\""],
            &["\"2024-13-01\"", "\"x\""],
            &[],
        ),
        (
            "date-time",
            json!({ "type": "string", "format": "date-time" }),
            &["\"2024-02-29T12:00:00Z\""],
            &["\"2024-02-29T12:00:00.1234567890123456789012345678901234567890Z\""],
            &[],
        ),
        (
            "uuid",
            json!({ "type": "string", "format": "uuid" }),
            &["\"123e4567-e89b-12d3-a456-426614174000\""],
            &["\"123e\""],
            &[],
        ),
        (
            "zod's e-mail",
            json!({ "type": "string", "format": "email",
            "pattern": "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$" }),
            &["\"a@b.de\""],
            &["\"a\""],
            &["pattern"],
        ),
        (
            "pattern",
            json!({ "type": "string", "pattern": "^[a-c]+$" }),
            &["\"abc\""],
            &["\"abd\"", "\"\""],
            &[],
        ),
        (
            "pattern in the middle",
            json!({ "type": "string", "pattern": "[0-9]" }),
            &["\"a1b\"", "\"\\\"1\""],
            &["\"ab\""],
            &[],
        ),
        (
            "dict of literals",
            one(
                json!({ "additionalProperties": { "type": "integer" }, "propertyNames": { "enum": ["a", "b"] }, "type": "object" }),
            ),
            &["{\"p\": {}}", "{\"p\": {\"b\": 1}}", "{\"p\": {\"a\": 1, \"b\": 2}}"],
            &["{\"p\": {\"c\": 1}}", "{\"p\": {\"a\": \"\"}}"],
            &[],
        ),
        (
            "dict of an enum by reference",
            json!({ "type": "object", "additionalProperties": { "type": "integer" }, "propertyNames": { "$ref": "#/$defs/E" },
            "$defs": { "E": { "enum": ["a", "b"], "title": "E", "type": "string" } } }),
            &["{\"a\": 1}"],
            &["{\"c\": 1}"],
            &[],
        ),
        (
            "zod's record",
            one(
                json!({ "type": "object", "propertyNames": { "type": "string" }, "additionalProperties": { "type": "number" } }),
            ),
            &["{\"p\": {\"x\": 1.5}}"],
            &["{\"p\": {\"x\": \"\"}}"],
            &[],
        ),
        (
            "names of a pattern",
            json!({ "type": "object", "propertyNames": { "pattern": "^[a-z]+$" }, "additionalProperties": { "type": "integer" } }),
            &["{\"ab\": 1}", "{}"],
            &["{\"A\": 1}", "{\"\": 1}"],
            &[],
        ),
        (
            "names of a length",
            json!({ "type": "object", "propertyNames": { "maxLength": 2, "minLength": 1 } }),
            &["{\"ab\": 1}"],
            &["{\"abc\": 1}", "{\"\": 1}"],
            &[],
        ),
        (
            "patterns of names",
            json!({ "type": "object", "properties": { "n": { "type": "string" } }, "patternProperties": { "^x-": { "type": "integer" }, "y$": { "type": "boolean" } },
            "additionalProperties": false }),
            &["{\"n\": \"\", \"x-a\": 1}", "{\"ay\": true}"],
            &["{\"x-a\": true}", "{\"b\": 1}", "{\"x-y\": 1}", "{\"n\": 1}"],
            &[],
        ),
        (
            "patterns and all others",
            json!({ "type": "object", "properties": { "s_1": { "maxLength": 1 } }, "patternProperties": { "^s_": { "type": "string" } }, "additionalProperties": { "type": "null" } }),
            &["{\"s_1\": \"x\", \"s_2\": \"long\", \"o\": null}"],
            &["{\"s_1\": \"xx\"}", "{\"o\": \"\"}", "{\"s_1\": 1}"],
            &[],
        ),
        (
            "cache_control between other keys",
            one(
                json!({ "type": "string", "cache_control": { "type": "ephemeral" }, "examples": ["a"], "default": "b",
            "deprecated": true, "readOnly": true, "$comment": "c", "discriminator": { "propertyName": "k" }, "nullable": true, "xml": {} }),
            ),
            &["{\"p\": \"x\"}"],
            &["{\"p\": null}"],
            &[],
        ),
        (
            "unenforced keywords are reported",
            json!({ "type": "string", "not": { "const": "x" } }),
            &["\"x\"", "\"y\""],
            &["1"],
            &["not"],
        ),
        (
            "if and then",
            json!({ "type": "object", "if": { "required": ["a"] }, "then": { "required": ["b"] } }),
            &["{}"],
            &["1"],
            &["if"],
        ),
        (
            "contains and dependents",
            json!({ "type": "array", "contains": { "type": "integer" }, "minContains": 2, "dependentRequired": {} }),
            &["[]"],
            &["1"],
            &["contains"],
        ),
        (
            "dependents",
            json!({ "type": "object", "dependentRequired": { "a": ["b"] } }),
            &["{\"a\": 1}"],
            &[],
            &["dependentRequired"],
        ),
        (
            "nothing unevaluated",
            json!({ "type": "object", "allOf": [{ "properties": { "a": { "type": "integer" } } }], "properties": { "b": {} }, "unevaluatedProperties": false }),
            &["{\"b\": 1, \"a\": 2}", "{}"],
            &["{\"c\": 1}"],
            &[],
        ),
        (
            "or null",
            json!({ "anyOf": [{ "type": "integer" }, { "type": "null" }], "default": null, "title": "N" }),
            &["1", "null"],
            &["\"\""],
            &[],
        ),
        (
            "types in a list",
            json!({ "type": ["string", "null", "integer"], "minLength": 1, "maximum": 5 }),
            &["\"a\"", "null", "5"],
            &["\"\"", "6", "true"],
            &[],
        ),
        (
            "a tree",
            json!({ "$ref": "#/$defs/N", "$defs": { "N": { "type": "object", "properties": { "v": { "type": "integer" }, "c": { "type": "array", "items": { "$ref": "#/$defs/N" } } },
            "required": ["v"], "additionalProperties": false } } }),
            &["{\"v\": 1, \"c\": [{\"v\": 2}, {\"v\": 3, \"c\": []}]}"],
            &["{\"c\": []}"],
            &[],
        ),
        (
            "itself",
            json!({ "type": "object", "properties": { "next": { "anyOf": [{ "$ref": "#" }, { "type": "null" }] } }, "required": ["next"], "additionalProperties": false }),
            &["{\"next\": {\"next\": null}}"],
            &["{\"next\": 1}"],
            &[],
        ),
        (
            "a reference with other keywords",
            json!({ "$ref": "#/definitions/S", "maxLength": 2, "definitions": { "S": { "type": "string", "minLength": 1 } } }),
            &["\"ab\""],
            &["\"\"", "\"abc\""],
            &[],
        ),
        (
            "allOf with one reference",
            one(json!({ "allOf": [{ "$ref": "#/$defs/E" }], "description": "d" }))
                .as_object()
                .map(|o| {
                    let mut o = o.clone();
                    o.insert("$defs".into(), json!({ "E": { "enum": ["a", "b"] } }));
                    Value::Object(o)
                })
                .unwrap(),
            &["{\"p\": \"a\"}"],
            &["{\"p\": \"c\"}"],
            &[],
        ),
        (
            "an anchor",
            json!({ "$ref": "#here", "$defs": { "x": { "$anchor": "here", "type": "boolean" } } }),
            &["true"],
            &["1"],
            &[],
        ),
        (
            "a pointer with escapes",
            json!({ "$ref": "#/$defs/a~1b%20c", "$defs": { "a/b c": { "const": 1 } } }),
            &["1"],
            &["2"],
            &[],
        ),
        (
            "its own id",
            json!({ "$id": "https://example.com/s", "$ref": "https://example.com/s#/$defs/a", "$defs": { "a": { "const": 1 } } }),
            &["1"],
            &["2"],
            &[],
        ),
        (
            "a recursive reference with other keywords",
            json!({ "$ref": "#/$defs/a", "$defs": { "a": { "type": "object", "properties": { "n": { "$ref": "#/$defs/a", "type": "object" } } } } }),
            &["{\"n\": {}}"],
            &["1"],
            &["recursive $ref with other keywords"],
        ),
        (
            "const",
            json!({ "const": { "a": [1, null, "x\"y"] } }),
            &["{\"a\": [1, null, \"x\\\"y\"]}"],
            &["{\"a\": [1]}"],
            &[],
        ),
        (
            "enum of all kinds",
            json!({ "enum": ["red", 1, 1.5, null, true, ["a"], {}] }),
            &["\"red\"", "1", "1.5", "null", "true", "[\"a\"]", "{}"],
            &["2", "false", "[]"],
            &[],
        ),
        (
            "enum and a type",
            json!({ "type": "string", "enum": ["a", null, 3] }),
            &["\"a\""],
            &["null", "3"],
            &[],
        ),
        (
            "const of a large number",
            json!({ "const": 9_007_199_254_740_993_i64 }),
            &["9007199254740993"],
            &["9007199254740992"],
            &[],
        ),
        (
            "a tuple",
            json!({ "type": "array", "prefixItems": [{ "type": "integer" }, { "type": "string" }], "minItems": 2, "maxItems": 2 }),
            &["[1, \"a\"]"],
            &["[1]", "[1, \"a\", 2]", "[\"a\", 1]"],
            &[],
        ),
        (
            "a tuple and other items",
            json!({ "type": "array", "prefixItems": [{ "type": "integer" }], "items": { "type": "boolean" } }),
            &["[]", "[1]", "[1, true, false]"],
            &["[true]", "[1, 2]"],
            &[],
        ),
        (
            "an older tuple",
            json!({ "type": "array", "items": [{ "type": "integer" }, { "type": "null" }], "additionalItems": false }),
            &["[]", "[1]", "[1, null]"],
            &["[1, null, 1]"],
            &[],
        ),
        (
            "an older tuple and other items",
            json!({ "type": "array", "items": [{ "type": "integer" }], "additionalItems": { "type": "string" }, "minItems": 2 }),
            &["[1, \"a\"]"],
            &["[1]", "[1, 2]"],
            &[],
        ),
        ("no items", json!({ "type": "array", "items": false }), &["[]"], &["[1]"], &[]),
        (
            "number of items",
            json!({ "type": "array", "items": { "type": "integer" }, "minItems": 1, "maxItems": 3 }),
            &["[1]", "[1, 2, 3]"],
            &["[]", "[1,2,3,4]"],
            &[],
        ),
        (
            "a union with a discriminator",
            json!({ "oneOf": [{ "$ref": "#/$defs/C" }, { "$ref": "#/$defs/D" }], "discriminator": { "mapping": { "c": "#/$defs/C" }, "propertyName": "k" },
            "$defs": { "C": object(json!({ "k": { "const": "c", "type": "string" }, "m": { "type": "integer" } })), "D": object(json!({ "k": { "const": "d" } })) } }),
            &["{\"k\": \"c\", \"m\": 1}", "{\"k\": \"d\"}"],
            &["{\"k\": \"d\", \"m\": 1}", "{\"k\": \"e\"}"],
            &[],
        ),
        (
            "one of two that overlap",
            json!({ "oneOf": [{ "type": "integer" }, { "type": "number", "minimum": 3 }] }),
            &["1", "4"],
            &["\"\""],
            &["oneOf"],
        ),
        (
            "exclusive bounds",
            json!({ "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1 }),
            &["0.5"],
            &["0", "1", "1.0", "0.0"],
            &[],
        ),
        (
            "exclusive bounds in draft 4",
            json!({ "type": "integer", "minimum": 0, "exclusiveMinimum": true, "maximum": 3, "exclusiveMaximum": false }),
            &["1", "3"],
            &["0", "4"],
            &[],
        ),
        (
            "multiples",
            json!({ "type": "integer", "multipleOf": 3, "minimum": 1 }),
            &["3", "12"],
            &["4", "0", "-3"],
            &[],
        ),
        (
            "cents",
            json!({ "type": "number", "multipleOf": 0.01, "minimum": 0 }),
            &["1.25", "7"],
            &["1.255", "-1"],
            &[],
        ),
        (
            "at most 64 bits",
            json!({ "type": "integer", "minimum": 9_007_199_254_740_993_i64, "maximum": u64::MAX }),
            &["9007199254740993", "18446744073709551615"],
            &["9007199254740992", "18446744073709551616"],
            &[],
        ),
        (
            "numbers have an end",
            json!({ "type": "number" }),
            &["12345678901234567", "-1.5e10"],
            &["1234567890123456789012345", "1.00000000000000000000001", "1e1000"],
            &[],
        ),
        (
            "integers have an end",
            json!({ "type": "integer" }),
            &["9223372036854775807"],
            &["92233720368547758079"],
            &[],
        ),
        (
            "lengths",
            json!({ "type": "string", "minLength": 2, "maxLength": 3 }),
            &["\"ab\"", "\"\u{e4}\\n\u{1f600}\""],
            &["\"a\"", "\"abcd\""],
            &[],
        ),
        (
            "at least one of these",
            json!({ "type": "object", "properties": { "a": { "type": "integer" }, "b": { "type": "integer" } }, "minProperties": 1, "additionalProperties": false }),
            &["{\"a\": 1}", "{\"b\": 1}", "{\"a\": 1, \"b\": 1}"],
            &["{}"],
            &[],
        ),
        (
            "at most one of these",
            json!({ "type": "object", "properties": { "a": { "type": "integer" }, "b": { "type": "integer" }, "c": {} }, "required": ["c"], "maxProperties": 2, "additionalProperties": false }),
            &["{\"a\": 1, \"c\": 1}", "{\"c\": 1}"],
            &["{\"a\": 1, \"b\": 1, \"c\": 1}", "{}"],
            &[],
        ),
        (
            "number of properties with any name",
            json!({ "type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": { "type": "integer" } }),
            &["{\"x\": 1}", "{\"x\": 1, \"y\": 1}"],
            &["{}", "{\"x\": 1, \"y\": 1, \"z\": 1}"],
            &[],
        ),
        (
            "required but not listed",
            json!({ "type": "object", "required": ["z"], "additionalProperties": { "type": "integer" } }),
            &["{\"z\": 1}"],
            &["{}", "{\"z\": \"\"}"],
            &[],
        ),
        (
            "properties imply an object",
            json!({ "properties": { "a": { "type": "integer" } }, "required": ["a"] }),
            &["{\"a\": 1}"],
            &["{}", "1"],
            &[],
        ),
        (
            "two bases",
            json!({ "allOf": [object(json!({ "a": {} })).as_object().map(|o| { let mut o = o.clone(); o.remove("additionalProperties"); Value::Object(o) }).unwrap(),
            { "type": "object", "properties": { "b": { "type": "integer" }, "a": { "type": "string" } }, "required": ["b"] }] }),
            &["{\"a\": \"x\", \"b\": 1}"],
            &["{\"a\": 1, \"b\": 1}", "{\"b\": 1}"],
            &[],
        ),
        (
            "one of two is required",
            json!({ "type": "object", "properties": { "a": {}, "b": {} }, "additionalProperties": false, "anyOf": [{ "required": ["a"] }, { "required": ["b"] }] }),
            &["{\"a\": 1}", "{\"b\": 1}"],
            &["{}"],
            &[],
        ),
        (
            "names with quotes",
            json!({ "type": "object", "properties": { "a\"b\\c\n/\u{7f}": { "const": 1 } }, "required": ["a\"b\\c\n/\u{7f}"], "additionalProperties": false }),
            &["{\"a\\\"b\\\\c\\n/\\u007f\": 1}"],
            &["{}"],
            &[],
        ),
        (
            "a pattern with all characters",
            json!({ "type": "string", "pattern": "^[\\s\\S]+$" }),
            &["\"a\\\"/\\n\""],
            &["\"\""],
            &[],
        ),
    ]
}

#[test]
fn common_schemas_accept_and_refuse_as_expected() {
    let bench = bench();
    for (name, schema, takes, refuses, unheld) in rows() {
        let grammar = bench.made(&schema);
        let words: Vec<&str> = grammar.unheld().iter().map(|one| one.keyword.as_str()).collect();
        assert_eq!(words, unheld, "{name}");
        let lark = super::translate(&schema).unwrap().lark;
        for text in takes {
            assert!(bench.takes(&grammar, text), "{name}: {text} is refused\n{lark}");
        }
        for text in refuses {
            assert!(!bench.takes(&grammar, text), "{name}: {text} is accepted\n{lark}");
        }
    }
}

#[test]
fn random_answers_satisfy_their_schema() {
    let (bench, mut dice) = (bench(), Dice(7));
    for (name, schema, takes, _, unheld) in rows() {
        // Checks the validator, too.
        for text in takes.iter().filter(|_| unheld.is_empty()) {
            let value: Value = serde_json::from_str(text).unwrap();
            assert!(judge::keeps(&value, &schema, &schema), "{name}: the validator refuses {text}");
        }
        let grammar = bench.made(&schema);
        let mut whole = 0;
        for _ in 0..8 {
            let Some(text) = bench.walk(&grammar, &mut dice) else { continue };
            let value: Value =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}: {text}"));
            assert!(!unheld.is_empty() || judge::keeps(&value, &schema, &schema), "{name}: {text}");
            whole += 1;
        }
        assert!(whole > 0, "{name}: no answer was complete");
    }
}

#[test]
fn invalid_schema_is_refused_with_position() {
    let bench = bench();
    let mut deep = json!({ "type": "integer" });
    for _ in 0..200 {
        deep = json!({ "items": deep });
    }
    for (schema, says) in [
        (json!({ "type": "banana" }), "$.type: \"banana\" is not a JSON type"),
        (json!({ "properties": { "a": { "type": ["string", 3] } } }), "$.properties.a.type"),
        (json!({ "$ref": "#/$defs/none" }), "\"#/$defs/none\" does not exist"),
        (json!({ "$ref": "http://example.com/x" }), "refers to a different document"),
        (
            json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/a" } } }),
            "only to references",
        ),
        (json!({ "type": "string", "pattern": "(" }), "$.pattern"),
        (json!({ "properties": [] }), "$.properties"),
        (
            json!({ "type": "object", "unevaluatedItems": 3 }),
            "$.unevaluatedItems: 3 is not a \
                                                              schema",
        ),
        (json!({ "minLength": -1 }), "$.minLength: -1 is not an integer of at least 0"),
        (json!({ "multipleOf": 0 }), "$.multipleOf"),
        (json!({ "enum": 3 }), "$.enum"),
        (json!({ "type": "integer", "minimum": 3, "maximum": 2 }), "no value satisfies it"),
        (json!(false), "no value satisfies it"),
        (deep, "deep"),
    ] {
        let why =
            bench.grammars.json_schema(&schema).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(why.contains(says) && !why.contains('\n') && why.len() < 500, "{schema}: {why:?}");
    }
}

/// The number of rules and of allowed next tokens grows linearly with the size of a schema.
#[test]
fn rules_grow_linearly_with_optional_properties() {
    let bench = bench();
    let schema = |n: usize, required: bool| {
        let properties: serde_json::Map<String, Value> = (0..n)
            .map(|i| {
                (
                    format!("property_{i}"),
                    json!({ "anyOf": [{ "type": "integer" }, { "type": "null" }] }),
                )
            })
            .collect();
        let required: Vec<String> =
            if required { vec![format!("property_{}", n / 2)] } else { vec![] };
        json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
    };
    let bytes = |n: usize| super::translate(&schema(n, false)).unwrap().lark.len();
    assert!(bytes(2000) < 5 * bytes(500), "{} of 500, {} of 2000", bytes(500), bytes(2000));
    let why = bench.grammars.json_schema(&schema(3000, false)).err().unwrap().to_string();
    assert!(why.contains("3000 properties are optional"), "{why}");
    for required in [false, true] {
        let grammar = bench.made(&schema(600, required));
        assert!(
            bench.takes(
                &grammar,
                "{\"property_0\": 1, \"property_300\": null, \"property_599\": 3}"
            )
        );
        assert!(!bench.takes(&grammar, "{\"property_300\": 1, \"property_299\": 3}"));
        assert!(!bench.takes(&grammar, "{\"property_300\": 1, \"property_300\": 3}"));
        assert_eq!(bench.takes(&grammar, "{}"), !required);
    }
}
