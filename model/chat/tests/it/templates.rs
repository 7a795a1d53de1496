//! Compares templates with constructs of published models with jinja2 as configured in transformers
//! (tests/data/chat/make.py).

use std::path::PathBuf;

use kjit_chat::{ChatError, ChatTemplate, Message};
use serde_json::Value;

fn data(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/chat").join(name);
    std::fs::read_to_string(path).unwrap()
}

fn template(name: &str, source: &str) -> ChatTemplate {
    ChatTemplate::new(name, source, Some("<s>".into()), Some("</s>".into())).unwrap()
}

/// The text of a JSON value with its keys in the order of the file. `serde_json::Value` does not
/// keep this order.
fn raw(case: &Value) -> String {
    case["raw"].as_str().unwrap().to_owned()
}

#[test]
fn common_template_constructs_render_as_in_jinja2() {
    let cases: Vec<Value> = serde_json::from_str(&data("cases.json")).unwrap();
    assert!(cases.len() > 50);
    for (i, case) in cases.iter().enumerate() {
        let name = case["template"].as_str().unwrap();
        let template = template(name, &data(name));
        let tools = (!case["tools"].is_null()).then(|| raw(&case["tools"]));
        let prompt = case["add_generation_prompt"].as_bool().unwrap();
        let rendered = template.render_json(&raw(&case["messages"]), tools.as_deref(), prompt);
        if let Some(expected) = case["rendered"].as_str() {
            assert_eq!(rendered.unwrap(), expected, "case {i}, {name}");
        } else if let Some(message) = case["refused"].as_str() {
            let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
            match rendered {
                Err(ChatError::Refused { template, message: ours }) => {
                    assert_eq!((template.as_str(), ours), (name, message), "case {i}");
                }
                other => panic!("case {i}, {name}: {other:?}"),
            }
        } else {
            assert!(matches!(rendered, Err(ChatError::Render { .. })), "case {i}, {name}");
        }
    }
}

#[test]
fn template_error_names_template_and_line() {
    let error = ChatTemplate::new("tokenizer.chat_template", "a\n{% if %}\n", None, None)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("tokenizer.chat_template, line 2: ") && !error.contains('\n'),
        "{error}"
    );
    let failing = template("t", "x\n\n{{ messages.nothing.more }}");
    let error = failing.render([Message::new("user", "x")], true).unwrap_err().to_string();
    assert!(error.starts_with("t, line 3: ") && !error.contains('\n'), "{error}");
    let error = failing.render_json("{}", None, true).unwrap_err().to_string();
    assert!(error.contains("not a JSON array"), "{error}");
    let error = failing.render_json("[1]", None, true).unwrap_err().to_string();
    assert!(error.contains("not a JSON array"), "{error}");
}

#[test]
fn endless_template_is_stopped() {
    let nested = "{% for a in range(100000) %}{% for b in range(100000) %}{% set c = a * b %}{% endfor %}{% endfor %}";
    let start = std::time::Instant::now();
    let error =
        template("t", nested).render([Message::new("user", "x")], true).unwrap_err().to_string();
    assert!(error.contains("steps"), "{error}");
    assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
}

#[test]
fn endless_template_output_is_stopped() {
    let source = "{% set x = 'y' * 1000000 %}{% for a in range(100000) %}{{ x }}{% endfor %}";
    let error =
        template("t", source).render([Message::new("user", "x")], true).unwrap_err().to_string();
    assert!(error.contains("output exceeds") || error.contains("cannot be written"), "{error}");
}

#[test]
fn message_text_is_never_parsed_as_template() {
    let t = template("t", "{{ messages[0].content }}");
    let hostile = "{{ 7*7 }} {% raw %} {# #}";
    assert_eq!(t.render([Message::new("user", hostile)], true).unwrap(), hostile);
}

#[test]
fn strftime_now_gives_the_current_date() {
    let t = template("t", "{{ strftime_now('%Y') }}");
    let year: u32 = t.render([Message::new("user", "x")], true).unwrap().parse().unwrap();
    assert!(year >= 2026);
}

#[test]
fn caller_sets_template_variables_but_not_messages() {
    let source = "{% if enable_thinking %}T{% endif %}{{ eos_token }}{{ messages[0].content }}";
    let template = ChatTemplate::new("t", source, None, Some("</s>".to_owned())).unwrap();
    let messages = r#"[{"role": "user", "content": "x"}]"#;
    let render = |variables| template.render_with(messages, None, variables, true);
    assert_eq!(render(None).unwrap(), "</s>x");
    assert_eq!(render(Some(r#"{"enable_thinking": true, "eos_token": "E"}"#)).unwrap(), "TEx");
    for wrong in [r#"{"messages": []}"#, "[]", "{"] {
        assert!(matches!(render(Some(wrong)), Err(ChatError::Variables(_))), "{wrong}");
    }
}

/// One case for each filter, test, method and construct of jinja2's sandbox, made by
/// `tests/data/chat/make_jinja.py`.
#[test]
fn filters_tests_and_methods_match_jinja2() {
    /// kjit refuses names of characters, because it has no table of these names.
    const REFUSED: [&str; 1] = ["\\N{BULLET}"];
    /// kjit accepts this construct for templates that were not written for transformers.
    const TAKEN: [&str; 1] = ["{% do n %}"];
    let table: Value = serde_json::from_str(&data("jinja.json")).unwrap();
    let variables = table["variables"].as_str().unwrap();
    let mut wrong = Vec::new();
    for case in table["cases"].as_array().unwrap() {
        let source = case["template"].as_str().unwrap();
        let result = ChatTemplate::new("t", source, None, None)
            .and_then(|template| template.render_with("[]", None, Some(variables), true));
        match (result, case["rendered"].as_str()) {
            (Ok(ours), Some(theirs)) if ours == theirs => {}
            (
                Err(
                    ChatError::Template { .. } | ChatError::Render { .. } | ChatError::Limit { .. },
                ),
                None,
            ) => {}
            (Err(ChatError::Refused { .. }), None) if source.contains("raise_exception") => {}
            (Ok(_), None) if TAKEN.contains(&source) => {}
            (Err(_), Some(_)) if REFUSED.iter().any(|part| source.contains(part)) => {}
            (ours, theirs) => {
                let ours = ours.unwrap_or_else(|error| error.to_string());
                wrong.push(format!(
                    "{source}\n  ours   {ours:?}\n  theirs {:?}",
                    theirs.map_or(&case["fails"], |_| &case["rendered"])
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// The table has a line for each name that jinja2 and Python have.
#[test]
fn construct_table_covers_all_jinja2_names() {
    let table: Value = serde_json::from_str(&data("jinja.json")).unwrap();
    let source = data("jinja.txt");
    let tried = |kind: &str, name: &str| match kind {
        "filters" => source.contains(&format!("|{name}")) || source.contains(&format!("| {name}")),
        "tests" if name.starts_with(['=', '!', '<', '>']) => source.contains(&format!("'{name}'")),
        "tests" => source.contains(&format!("is {name}")),
        "globals" => source.contains(name),
        _ => source.contains(&format!(".{name}(")),
    };
    for (kind, names) in table["names"].as_object().unwrap() {
        for name in names.as_array().unwrap() {
            // These tests are random, or return bytes.
            let name = name.as_str().unwrap();
            let refused = ["random", "lipsum", "encode"].contains(&name);
            assert!(
                tried(kind, name) || refused,
                "{kind}: {name} is not in tests/data/chat/jinja.txt"
            );
        }
    }
}
