//! Tests of common schemas. They check the texts that satisfy a schema, the keywords that are not
//! enforced, and random answers, which an independent validator checks.

mod judge;
mod rows;

use crate::constrain::{Grammar, Grammars};
use crate::serve::Constraint;
use crate::tokenizer::{SpecialIds, Tokenizer, Vocabulary};
use rows::rows;
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
            "$.unevaluatedItems: 3 is not a schema",
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
