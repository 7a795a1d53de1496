//! Tests constrained answers. The text follows a schema, an expression or a grammar, regardless of
//! what the model prefers.

use crate::it::support::files::tiny_model;
use crate::it::support::submitted_request::{SubmittedRequest, ask};
use kjit_model::constrain::{GrammarError, Grammars, lark_of_gbnf};
use kjit_model::gguf::Gguf;
use kjit_model::sample::SampleOptions;
use kjit_model::serve::{Constraint, Reason, Scheduler, SchedulerOptions, Stop};
use kjit_model::session::{OpenOptions, Session};
use kjit_model::tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::sync::Arc;

struct Served {
    scheduler: Scheduler,
    tokenizer: Tokenizer,
    grammars: Grammars,
}

fn served() -> Option<Served> {
    let gguf = Arc::new(Gguf::open(tiny_model("tiny-llama-q4_k_m.gguf")?).unwrap());
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let graph = kjit_model::arch::build(&gguf).unwrap();
    let grammars = Grammars::new(&tokenizer, graph.n_vocab()).unwrap();
    let options = OpenOptions { threads: 2, sequences: 6, ..OpenOptions::new(512) };
    let session = Session::on_cpu(gguf, graph, &options).unwrap();
    let scheduler = Scheduler::start(session, SchedulerOptions::default()).unwrap();
    Some(Served { scheduler, tokenizer, grammars })
}

impl Served {
    /// Asks a random model for an answer, at a temperature so high that every allowed token occurs.
    fn ask(&self, seed: u64, constraint: Box<dyn Constraint>) -> SubmittedRequest {
        ask(&self.scheduler, &[1, 2, 3], 500, |r| {
            r.sampling = SampleOptions { temperature: 1.5, seed, ..SampleOptions::default() };
            r.stop = Stop::Ids(self.tokenizer.eog_ids().to_vec());
            r.constraint = Some(constraint);
        })
    }

    /// The text, if the answer ended without being cut.
    fn text(&self, asked: SubmittedRequest) -> Option<String> {
        let mut got = asked.got();
        let whole = matches!(got.reason(), Reason::Stop | Reason::Constraint);
        got.ids.retain(|id| !self.tokenizer.is_eog(*id));
        whole.then(|| String::from_utf8(self.tokenizer.decode(&got.ids).unwrap()).unwrap())
    }
}

#[test]
fn answers_satisfy_schemas_expressions_and_grammars() {
    let Some(served) = served() else { return };
    let colours = ["red", "green", "blue"];
    let schema = json!({
        "type": "object",
        "properties": {
            "colour": { "enum": colours },
            "sizes": { "type": "array", "items": { "type": "integer", "minimum": 1, "maximum": 9 }, "maxItems": 3 },
            "inner": { "$ref": "#/$defs/inner" },
        },
        "required": ["colour", "sizes", "inner"],
        "additionalProperties": false,
        "$defs": { "inner": { "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"], "additionalProperties": false } },
    });
    let g = &served.grammars;
    let json: Vec<SubmittedRequest> =
        (0..8).map(|i| served.ask(i, g.json_schema(&schema).unwrap())).collect();
    let dates: Vec<SubmittedRequest> =
        (0..4).map(|i| served.ask(i, g.regex("20[0-9]{2}-(0[1-9]|1[0-2])").unwrap())).collect();
    let sums: Vec<SubmittedRequest> = (0..4)
        .map(|i| served.ask(i, g.lark("start: N (\"+\" N){1,3}\nN: /[1-9]/").unwrap()))
        .collect();
    for asked in json {
        let text = served.text(asked).expect("so little text ends before its tokens are used up");
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let object = value.as_object().unwrap();
        assert!(colours.contains(&object["colour"].as_str().unwrap()), "{text}");
        let sizes = object["sizes"].as_array().unwrap();
        assert!(
            sizes.len() <= 3 && sizes.iter().all(|n| (1..=9).contains(&n.as_i64().unwrap())),
            "{text}"
        );
        assert!(object["inner"]["ok"].is_boolean() && object.len() == 3, "{text}");
    }
    for asked in dates {
        let text = served.text(asked).unwrap();
        let month: u32 = text[5..].parse().unwrap();
        assert!(text.len() == 7 && text.starts_with("20") && (1..=12).contains(&month), "{text}");
    }
    for asked in sums {
        let text = served.text(asked).unwrap();
        let terms: Vec<u32> = text.split('+').map(|n| n.parse().unwrap()).collect();
        assert!(
            (2..=4).contains(&terms.len()) && terms.iter().all(|n| (1..=9).contains(n)),
            "{text}"
        );
    }
}

#[test]
fn unsupported_constraint_is_a_one_line_error() {
    let Some(served) = served() else { return };
    let g = &served.grammars;
    let wrong = [
        g.json_schema(&json!({ "type": "banana" })),
        g.json_schema(&json!({ "$ref": "#/$defs/none" })),
        g.json_schema(&json!({ "$ref": "http://example.com/schema" })),
        g.regex("(unclosed"),
        g.lark("start: missing"),
        g.lark(""),
    ];
    for (i, made) in wrong.into_iter().enumerate() {
        let error = made.err().unwrap_or_else(|| panic!("case {i} was accepted"));
        assert!(matches!(error, GrammarError::Grammar { .. }), "{error}");
        let line = error.to_string();
        assert!(!line.contains('\n') && line.len() < 400, "{line}");
    }
}

/// The grammar library recurses along chains. A thousand rules overflowed the default stack and
/// ended the process.
#[test]
fn long_rule_and_reference_chains_do_not_crash() {
    let Some(served) = served() else { return };
    let g = &served.grammars;
    let name = |i: usize, first: u8| {
        let letter = |n: usize| char::from(first + u8::try_from(n % 26).unwrap());
        [letter(i / 676), letter(i / 26), letter(i)].iter().collect::<String>()
    };
    // Rule names are lower-case, terminal names upper-case.
    for first in [b'a', b'A'] {
        for n in [10, 8000] {
            let chain: String =
                (0..n).map(|i| format!("{}:{}\n", name(i, first), name(i + 1, first))).collect();
            let grammar = format!("start: {}\n{chain}{}: \"x\"\n", name(0, first), name(n, first));
            match (n, g.lark(&grammar)) {
                (10, Ok(mut made)) => {
                    let mut other = made.clone();
                    let mask = made.allowed().unwrap();
                    let x = (0..49152).find(|id| mask.allows(*id)).unwrap();
                    assert!(made.accept(x).unwrap());
                    // The copy made before is independent.
                    assert!(other.allowed().unwrap().allows(x));
                }
                (10, Err(why)) => panic!("{why}"),
                // Either outcome passes: the process still runs.
                _ => {}
            }
        }
    }
    let mut definitions = serde_json::Map::new();
    for i in 0..8000 {
        definitions.insert(
            format!("d{i}"),
            json!({ "$ref": format!("#/$defs/d{}", i + 1), "minLength": 1 }),
        );
    }
    definitions.insert("d8000".to_owned(), json!({ "type": "string" }));
    drop(g.json_schema(&json!({ "$ref": "#/$defs/d0", "$defs": definitions })));
    let long = g.lark(&format!("start: \"{}\"", "x".repeat(600_000))).err().unwrap().to_string();
    assert!(long.contains("more than 524288"), "{long}");
}

/// Tests grammars in the format of llama.cpp, one for each construct.
#[test]
fn answers_satisfy_gbnf_grammars() {
    let Some(served) = served() else { return };
    let list = "root ::= item (\",\" item){1,3} end?\nitem ::= [a-c]+ | no-Digit \"\\x31\"\n\
                no-Digit ::= [^0-9,\\n\\x00-\\x1f]  # one character\nend ::= \"\" | \".\"\n";
    let lark = lark_of_gbnf(list).unwrap();
    let item = |text: &str| {
        let letters = !text.is_empty() && text.chars().all(|c| ('a'..='c').contains(&c));
        let other = |c: char| !c.is_ascii_digit() && c != ',' && c >= ' ';
        let two: Vec<char> = text.chars().collect();
        letters || matches!(two.as_slice(), [first, '1'] if other(*first))
    };
    let all: Vec<SubmittedRequest> =
        (0..6).map(|i| served.ask(i, served.grammars.lark(&lark).unwrap())).collect();
    let texts: Vec<String> = all.into_iter().filter_map(|asked| served.text(asked)).collect();
    assert!(texts.len() > 2, "{texts:?}");
    for text in texts {
        let items: Vec<&str> = text.strip_suffix('.').unwrap_or(&text).split(',').collect();
        assert!((2..=4).contains(&items.len()) && items.iter().all(|one| item(one)), "{text:?}");
    }
}
