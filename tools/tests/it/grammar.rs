//! `--grammar` and `--json-schema` of `kjit run`.

use crate::support::terminal::terminal;
use crate::support::{error_line, kjit, smollm2, stdout};
use serde_json::Value;
use std::process::Command;

/// Schema of an answer that a model would never write unasked.
const SCHEMA: &str = r#"{"type": "object", "properties": {"size": {"type": "integer", "minimum": 1,
    "maximum": 9}, "colour": {"enum": ["red", "blue"]}}, "required": ["size", "colour"],
    "additionalProperties": false}"#;

fn answer(flags: &[&str]) -> Value {
    let mut c = kjit();
    c.arg("run").arg(smollm2()).args(["-p", "Tell me about the sea.", "--json"]).args(flags);
    serde_json::from_str(&stdout(&mut c)).unwrap()
}

fn checked(text: &Value) {
    let value: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
    assert!((1..=9).contains(&value["size"].as_i64().unwrap()), "{text}");
    assert!(["red", "blue"].contains(&value["colour"].as_str().unwrap()), "{text}");
    assert_eq!(value.as_object().unwrap().len(), 2, "{text}");
}

#[test]
fn answers_follow_grammar_and_schema_from_flag_and_file() {
    let folder = tempfile::tempdir().unwrap();
    let (gbnf, schema) = (folder.path().join("moves.gbnf"), folder.path().join("schema.json"));
    let moves = "# A list of moves.\nroot ::= move (\",\" move){2}\nmove ::= [a-h] [1-8]\n";
    std::fs::write(&gbnf, moves).unwrap();
    std::fs::write(&schema, SCHEMA).unwrap();
    let schema = schema.to_str().unwrap();
    // Hot, so that tokens that the grammar forbids would be drawn.
    let hot = ["--temp", "3", "--seed", "5"];
    for more in [&["--raw"][..], &["--lookup", "on"]] {
        let flags = [&["--grammar-file", gbnf.to_str().unwrap()], &hot[..], more].concat();
        let said = answer(&flags);
        let text = said["text"].as_str().unwrap();
        let moves: Vec<&[u8]> = text.split(',').map(str::as_bytes).collect();
        let good = |m: &&[u8]| {
            m.len() == 2 && (b'a'..=b'h').contains(&m[0]) && (b'1'..=b'8').contains(&m[1])
        };
        assert!(moves.len() == 3 && moves.iter().all(good), "{said}");
        assert_eq!(said["stop_reason"], "end_of_generation");
        assert_eq!(said["drafted_tokens"], 0, "{said}");
    }
    for flags in [["--json-schema", SCHEMA], ["-j", schema], ["--json-schema-file", schema]] {
        checked(&answer(&[&flags[..], &hot].concat())["text"]);
    }
    // A cut answer is the beginning of one that follows the grammar.
    let cut = answer(&["--grammar", "root ::= \"abc\" [0-9]{400}", "-n", "8", "--temp", "0"]);
    assert_eq!(cut["stop_reason"], "length");
    assert!(cut["text"].as_str().unwrap().starts_with("abc"), "{cut}");
}

#[test]
fn bad_grammar_is_one_line_that_names_the_flag() {
    let refused = |flags: &[&str], code| {
        let mut c = kjit();
        c.arg("run").arg(smollm2()).args(["-p", "Hi", "--temp", "0"]).args(flags);
        error_line(&mut c, code)
    };
    for (flags, wanted) in [
        (["--grammar", "root ::= \"a"], "--grammar: invalid GBNF"),
        (["--grammar", ""], "--grammar: it is empty"),
        (["--grammar-file", "/nowhere.gbnf"], "--grammar-file: cannot read /nowhere.gbnf"),
        (["--json-schema", "{\"type\": "], "--json-schema: it is not JSON"),
        (["--json-schema", "{\"type\": \"thing\"}"], "--json-schema: the JSON schema"),
        (["--json-schema", "/nowhere.json"], "--json-schema: cannot read /nowhere.json"),
    ] {
        let line = refused(&flags, 1);
        assert!(line.contains(wanted), "{flags:?}: {line}");
    }
    let both = refused(&["--grammar", "root ::= \"a\"", "--json-schema", "{}"], 2);
    assert!(both.contains("cannot be used with"), "{both}");
    // A keyword that is not enforced is named.
    let mut c = kjit();
    c.arg("run").arg(smollm2()).args(["-p", "Hi", "-n", "4"]);
    c.args(["--json-schema", "{\"type\": \"array\", \"contains\": {\"type\": \"null\"}}"]);
    let output = c.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("note: --json-schema: not enforced: contains"), "{said}");
}

/// The text without a terminal's control sequences.
fn without_codes(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(0, |at| at + 1);
        plain += &part[end..];
    }
    plain
}

#[test]
fn chat_answers_follow_the_grammar_also_after_continue() {
    let (mut person, program) = terminal(0);
    let state = tempfile::tempdir().unwrap();
    let mut child = Command::new("timeout")
        .args(["--foreground", "60", env!("CARGO_BIN_EXE_kjit"), "run", "--device", "cpu"])
        .args(["--temp", "2", "--seed", "3", "-n", "6", "--grammar"])
        .arg("root ::= \"<\" [xyz]{8} \"|\" [0-9]{8} \">\"")
        .env("TERM", "xterm")
        .env("XDG_STATE_HOME", state.path())
        .arg(smollm2())
        .stdin(program.try_clone().unwrap())
        .stderr(program.try_clone().unwrap())
        .stdout(program.try_clone().unwrap())
        .spawn()
        .unwrap();
    drop(program);
    person.sees("> ");
    for question in ["Tell me about the sea.", "And the sky?"] {
        let mut text = String::new();
        person.types(question);
        person.sees(question);
        let mut answer = person.passes("\u{1b}[?2004h");
        while answer.contains("/continue continues it") {
            text += answer.split("note: the answer was cut").next().unwrap();
            person.types("/continue");
            person.sees("/continue");
            answer = person.passes("\u{1b}[?2004h");
        }
        text += &answer;
        let text = without_codes(&text);
        let from = text.find('<').unwrap_or_else(|| panic!("{text:?}"));
        let signs = |c: &char| "<xyz|0123456789>".contains(*c);
        let text: String = text[from..].chars().filter(signs).take(19).collect();
        let (left, right) = text[1..].split_once('|').unwrap_or_else(|| panic!("{text}"));
        assert!(left.len() == 8 && left.chars().all(|c| "xyz".contains(c)), "{text}");
        assert!(right.len() == 9 && right.ends_with('>'), "{text}");
    }
    person.types("/bye");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
