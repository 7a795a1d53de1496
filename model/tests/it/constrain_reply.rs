//! Tests whole answers by grammar. A random choice among the allowed tokens always writes an answer
//! that [`ReplyParser`] parses as intended. This is tested for every reply format, with marks that
//! are single tokens and with marks that are text.

use kjit_model::chat::{Form, Part, ReplyParser, ToolCall};
use kjit_model::constrain::{Content, Grammars, Reply};
use kjit_model::serve::Constraint;
use kjit_model::tokenizer::{SpecialIds, Tokenizer, Vocabulary};
use serde_json::{Value, json};

/// A tokenizer with all bytes, some pieces of JSON, an end token, and these marks as control
/// tokens.
fn tokenizer(marks: &[&str]) -> Tokenizer {
    let mut other = 0x100;
    let letter = |b: u8| match b {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => char::from(b).to_string(),
        _ => {
            other += 1;
            char::from_u32(other - 1).unwrap().to_string()
        }
    };
    let mut tokens: Vec<String> = (0u8..=255).map(letter).collect();
    tokens.extend(
        ["{\"", "\":", "\"}", "}}", "}Ċ", "true", "name", "Ġ\"", "\",Ġ\"", "</"].map(String::from),
    );
    let mut types = vec![1; tokens.len()];
    let end = tokens.len() as u32;
    tokens.push("<|im_end|>".to_owned());
    tokens.extend(marks.iter().map(ToString::to_string));
    types.resize(tokens.len(), 3);
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

/// A random number generator.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// Generates a random answer that begins with `begin`; `None` if it did not end.
fn walk(tokenizer: &Tokenizer, reply: &Reply<'_>, begin: &str, dice: &mut Dice) -> Option<String> {
    let grammars = Grammars::new(tokenizer, tokenizer.n_vocab()).unwrap();
    let mut constraint = grammars.reply(tokenizer, reply).unwrap();
    let mut text: Vec<u8> = vec![];
    let mut begin = tokenizer.encode_chat(begin).into_iter();
    for _ in 0..600 {
        let mask = constraint.allowed().unwrap();
        let allowed: Vec<u32> =
            (0..tokenizer.n_vocab() as u32).filter(|id| mask.allows(*id)).collect();
        let end = allowed.iter().copied().find(|id| tokenizer.is_eog(*id));
        let id = match (begin.next(), end) {
            (Some(id), _) => {
                assert!(
                    mask.allows(id),
                    "{:?} is not allowed after {:?}",
                    tokenizer.decode(&[id]),
                    String::from_utf8_lossy(&text)
                );
                id
            }
            (None, Some(end)) if dice.below(4) == 0 => end,
            // Prefers letters, so that strings end.
            _ => {
                let quotes = allowed
                    .iter()
                    .copied()
                    .filter(|id| tokenizer.token_text(*id).unwrap().contains(&b'"'));
                let quotes: Vec<u32> = quotes.collect();
                match quotes.as_slice() {
                    [_, ..] if dice.below(3) == 0 => quotes[dice.below(quotes.len())],
                    _ => allowed[dice.below(allowed.len())],
                }
            }
        };
        let done = constraint.accept(id).unwrap();
        if !tokenizer.is_eog(id) {
            match tokenizer.is_control(id).unwrap() {
                true => text.extend(tokenizer.token_text(id).unwrap()),
                false => text.extend(tokenizer.decode(&[id]).unwrap()),
            }
        }
        if done {
            return Some(String::from_utf8(text).unwrap());
        }
    }
    None
}

fn read(mut parser: ReplyParser, text: &str) -> (String, String, Vec<ToolCall>) {
    let mut parts = vec![];
    parser.push(text, &mut parts);
    parser.finish(&mut parts);
    let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), vec![]);
    for part in parts {
        match part {
            Part::Content(text) => content += &text,
            Part::Reasoning(text) => reasoning += &text,
            Part::Call(call) => calls.push(call),
        }
    }
    (content, reasoning, calls)
}

const FORMS: [(Form, &[&str]); 8] = [
    (Form::Hermes, &[]),
    (Form::Hermes, &["<tool_call>", "</tool_call>", "<think>", "</think>"]),
    (Form::Llama3, &["<|python_tag|>"]),
    (Form::Mistral, &["[TOOL_CALLS]"]),
    (Form::Mistral, &["[TOOL_CALLS]", "[ARGS]"]),
    (Form::Mistral, &[]),
    (
        Form::Channels,
        &[
            "<|channel|>",
            "<|message|>",
            "<|start|>",
            "<|end|>",
            "<|constrain|>",
            "<|return|>",
            "<|call|>",
        ],
    ),
    // The mark that ends a message is text.
    (
        Form::Channels,
        &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>", "<|return|>", "<|call|>"],
    ),
];

fn place() -> Value {
    json!({
        "type": "object", "properties": { "city": { "$ref": "#/$defs/city" }, "far": { "type": "boolean" } },
        "required": ["city", "far"], "additionalProperties": false, "$defs": { "city": { "enum": ["Paris", "Ulm"] } }
    })
}

fn is_place(call: &ToolCall) {
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
    assert_eq!(call.name, "weather");
    assert!(
        ["Paris", "Ulm"].contains(&arguments["city"].as_str().unwrap())
            && arguments["far"].is_boolean(),
        "{call:?}"
    );
    assert_eq!(arguments.as_object().unwrap().len(), 2, "{call:?}");
}

fn is_tool(call: &ToolCall) {
    match call.name.as_str() {
        "set-2" => {
            assert!((1..=3).contains(
                &serde_json::from_str::<Value>(&call.arguments).unwrap()["n"].as_i64().unwrap()
            ))
        }
        _ => is_place(call),
    }
}

#[test]
fn forced_call_parses_in_every_form() {
    let mut dice = Dice(1);
    let other = json!({ "type": "object", "properties": { "n": { "type": "integer", "minimum": 1, "maximum": 3 } }, "required": ["n"], "additionalProperties": false });
    let place = place();
    for (form, marks) in FORMS {
        let tokenizer = tokenizer(marks);
        for parallel in [false, true] {
            let tools = [("weather", &place), ("set-2", &other)];
            let reply =
                Reply { form, prompt: "", content: Content::Nothing, tools: &tools, parallel };
            let (mut whole, mut most) = (0, 0);
            for _ in 0..12 {
                // A model that reasons may do so first.
                let Some(text) = walk(&tokenizer, &reply, "", &mut dice) else { continue };
                let (content, _, calls) = read(ReplyParser::either(form, ""), &text);
                assert!(
                    content.is_empty() && !calls.is_empty(),
                    "{form:?}: {content:?} {calls:?} {text:?}"
                );
                assert!(parallel || calls.len() == 1, "{form:?}: {text}");
                calls.iter().for_each(is_tool);
                (whole, most) = (whole + 1, most.max(calls.len()));
            }
            assert!(whole > 4, "{form:?} {marks:?}: {whole}");
            assert!(!parallel || form == Form::Channels || most > 1, "{form:?} {marks:?}: {most}");
        }
    }
}

#[test]
fn content_after_started_reasoning_satisfies_schema() {
    let mut dice = Dice(2);
    // One of the strings contains marks, which are plain text in it.
    let marked = "<|end|> <tool_call>";
    let schema = json!({ "type": "array", "items": { "enum": [1, marked, null] }, "maxItems": 3 });
    for (form, marks) in FORMS {
        let tokenizer = tokenizer(marks);
        let begun = if form == Form::Channels { "" } else { "x<think>\n" };
        for (prompt, begin) in [
            ("", ""),
            (
                begun,
                match form {
                    Form::Channels => "<|channel|>analysis<|message|>Hm [1<|end|>",
                    _ => "Hm [1</think>\n",
                },
            ),
        ] {
            let reply =
                Reply { form, prompt, content: Content::Json(&schema), tools: &[], parallel: true };
            let mut whole = 0;
            for _ in 0..8 {
                let Some(text) = walk(&tokenizer, &reply, begin, &mut dice) else { continue };
                let (content, reasoning, _) = read(ReplyParser::json(form, prompt), &text);
                let value: Value = serde_json::from_str(&content)
                    .unwrap_or_else(|e| panic!("{form:?} {e}: {text:?}"));
                let items = value.as_array().unwrap();
                assert!(
                    items.len() <= 3 && items.iter().all(|i| i == 1 || i == marked || i.is_null()),
                    "{text}"
                );
                assert!(begin.is_empty() || reasoning.contains("Hm [1"), "{form:?}: {text:?}");
                whole += 1;
            }
            assert!(whole > 3, "{form:?} {marks:?} {prompt:?}: {whole}");
        }
    }
}

#[test]
fn started_call_is_constrained_and_other_text_is_free() {
    let mut dice = Dice(3);
    let place = place();
    for (form, marks) in FORMS {
        let tokenizer = tokenizer(marks);
        let tools = [("weather", &place)];
        let reply =
            Reply { form, prompt: "", content: Content::Text, tools: &tools, parallel: true };
        let (words, begin) = match form {
            Form::Hermes => ("1 < 2 </tool {", "Let me <tool see.\n<tool_call>"),
            Form::Llama3 => ("Tell {\"name\"", "{"),
            Form::Mistral => ("1 [TOOL {", "[TOOL_CALLS]"),
            Form::Channels => ("<|channel|>final<|message|>1 < 2", "<|channel|>commentary to="),
        };
        let mut called = 0;
        for _ in 0..8 {
            if let Some(text) = walk(&tokenizer, &reply, words, &mut dice) {
                assert!(text.starts_with(words), "{text}");
            }
            let Some(text) = walk(&tokenizer, &reply, begin, &mut dice) else { continue };
            let (_, _, calls) = read(ReplyParser::new(form, true, ""), &text);
            assert!(!calls.is_empty(), "{form:?}: {text:?}");
            calls.iter().for_each(is_place);
            called += 1;
        }
        assert!(called > 2, "{form:?} {marks:?}: {called}");
        // Content may also follow a schema.
        let schema = json!({ "type": "object", "properties": { "x": { "type": "integer", "minimum": 0, "maximum": 9 } }, "required": ["x"], "additionalProperties": false });
        let reply = Reply { content: Content::Json(&schema), ..reply };
        let (mut said, mut called) = (0, 0);
        for _ in 0..24 {
            let Some(text) = walk(&tokenizer, &reply, "", &mut dice) else { continue };
            let (content, _, calls) = read(ReplyParser::either(form, ""), &text);
            calls.iter().for_each(is_place);
            if calls.is_empty() {
                assert!(
                    serde_json::from_str::<Value>(&content).unwrap()["x"].is_i64(),
                    "{form:?}: {text:?}"
                );
            }
            (said, called) =
                (said + usize::from(calls.is_empty()), called + usize::from(!calls.is_empty()));
        }
        assert!(said > 1 && called > 1, "{form:?} {marks:?}: {said} said, {called} called");
    }
}
