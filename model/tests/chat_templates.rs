//! Templates with the constructs seen in the wild, against jinja2 as transformers sets it up
//! (tests/data/chat/make.py).

use std::path::PathBuf;

use kjit_model::chat::{ChatError, ChatTemplate, Message};
use serde_json::Value;

fn data(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data/chat").join(name);
    std::fs::read_to_string(path).unwrap()
}

fn template(name: &str, source: &str) -> ChatTemplate {
    ChatTemplate::new(name, source, Some("<s>".into()), Some("</s>".into())).unwrap()
}

/// The text of a JSON value, its keys in the order they have in the file (`serde_json::Value` sorts them).
fn raw(case: &Value) -> String {
    case["raw"].as_str().unwrap().to_owned()
}

#[test]
fn constructs_seen_in_the_wild_render_as_in_jinja2() {
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
fn an_error_names_the_template_and_the_line() {
    let error = ChatTemplate::new("tokenizer.chat_template", "a\n{% if %}\n", None, None).unwrap_err().to_string();
    assert!(error.starts_with("tokenizer.chat_template, line 2: ") && !error.contains('\n'), "{error}");
    let failing = template("t", "x\n\n{{ messages.nothing.more }}");
    let error = failing.render([Message::new("user", "x")], true).unwrap_err().to_string();
    assert!(error.starts_with("t, line 3: ") && !error.contains('\n'), "{error}");
    let error = failing.render_json("{}", None, true).unwrap_err().to_string();
    assert!(error.contains("not a JSON array"), "{error}");
    let error = failing.render_json("[1]", None, true).unwrap_err().to_string();
    assert!(error.contains("not a JSON array"), "{error}");
}

#[test]
fn a_template_that_never_ends_is_stopped() {
    let nested = "{% for a in range(100000) %}{% for b in range(100000) %}{% set c = a * b %}{% endfor %}{% endfor %}";
    let start = std::time::Instant::now();
    let error = template("t", nested).render([Message::new("user", "x")], true).unwrap_err().to_string();
    assert!(error.contains("fuel"), "{error}");
    assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
}

#[test]
fn a_template_that_writes_without_end_is_stopped() {
    let source = "{% set x = 'y' * 1000000 %}{% for a in range(100000) %}{{ x }}{% endfor %}";
    let error = template("t", source).render([Message::new("user", "x")], true).unwrap_err().to_string();
    assert!(error.contains("writes more than") || error.contains("cannot be written"), "{error}");
}

#[test]
fn text_in_messages_is_never_read_as_a_template() {
    let t = template("t", "{{ messages[0].content }}");
    let hostile = "{{ 7*7 }} {% raw %} {# #}";
    assert_eq!(t.render([Message::new("user", hostile)], true).unwrap(), hostile);
}

#[test]
fn the_date_is_there_for_templates_that_ask() {
    let t = template("t", "{{ strftime_now('%Y') }}");
    let year: u32 = t.render([Message::new("user", "x")], true).unwrap().parse().unwrap();
    assert!(year >= 2026);
}

#[test]
fn a_caller_may_give_variables_of_the_template_but_not_the_conversation() {
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
