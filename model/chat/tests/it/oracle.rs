//! Compares rendered prompts with jinja2's and llama.cpp's (tests/data/oracle/chat_templates.json).

use crate::it::support::files::model_path;
use kjit_chat::{ChatTemplate, Message, Origin};
use kjit_gguf::Gguf;
use kjit_tokenizer::Tokenizer;
use serde_json::Value;

#[test]
fn smollm2_conversations_match_the_reference() {
    let Some(path) = model_path("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let file = Gguf::open(path).unwrap();
    let template = ChatTemplate::from_gguf(&file, &Tokenizer::from_gguf(&file).unwrap()).unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/oracle/chat_templates.json");
    let oracle: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let cases = oracle["smollm2"]["cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let prompt = case["add_generation_prompt"].as_bool().unwrap();
        let expected = case["rendered"].as_str().unwrap();
        assert_eq!(
            template.render_json(&case["messages"].to_string(), None, prompt).unwrap(),
            expected
        );
        let messages: Vec<Message> = serde_json::from_value(case["messages"].clone()).unwrap();
        assert_eq!(template.render(&messages, prompt).unwrap(), expected);
    }
}

#[test]
fn file_without_template_gets_default_with_note() {
    let Some(path) = model_path("vocab/ggml-vocab-llama-bpe.gguf") else { return };
    let file = Gguf::open(path).unwrap();
    let template = ChatTemplate::from_gguf(&file, &Tokenizer::from_gguf(&file).unwrap()).unwrap();
    assert_eq!(template.origin(), &Origin::Fallback("llama3"));
    assert!(template.note().unwrap().contains("llama3"));
    assert_eq!(
        template.render([Message::new("user", "Hi")], true).unwrap(),
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    );
}

#[test]
fn named_templates_and_tool_template_are_used() {
    let Some(path) = model_path("vocab/ggml-vocab-command-r.gguf") else { return };
    let file = Gguf::open(path).unwrap();
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    let mut names = ChatTemplate::names(&file);
    names.sort();
    assert_eq!(names, ["rag", "tool_use"]);
    let messages = r#"[{"role": "user", "content": "What time is it?"}]"#;
    let tools = r#"[{"name": "clock", "description": "Tells the time.", "parameter_definitions":
        {"zone": {"description": "Where.", "type": "str", "required": true}}}]"#;
    let usual = ChatTemplate::from_gguf(&file, &tokenizer).unwrap();
    assert_eq!((usual.origin(), usual.note()), (&Origin::Given, None));
    let with_tools = usual.render_json(messages, Some(tools), true).unwrap();
    let named = ChatTemplate::named(&file, &tokenizer, "tool_use").unwrap();
    assert_eq!(with_tools, named.render_json(messages, Some(tools), true).unwrap());
    assert!(with_tools.contains("def clock(zone: str)"), "{with_tools}");
    assert!(!usual.render_json(messages, None, true).unwrap().contains("def "));
    let error = ChatTemplate::named(&file, &tokenizer, "nonsense").unwrap_err().to_string();
    assert!(error.contains("'nonsense'") && error.contains("tool_use"), "{error}");
}

#[test]
fn missing_template_and_turn_tokens_give_advice() {
    let Some(path) = model_path("vocab/ggml-vocab-llama-spm.gguf") else { return };
    let file = Gguf::open(path).unwrap();
    let error = ChatTemplate::from_gguf(&file, &Tokenizer::from_gguf(&file).unwrap()).unwrap_err();
    assert!(
        error.to_string().contains("--raw") && error.to_string().contains("--template"),
        "{error}"
    );
}

/// The vocabulary-only files have the longest and most unusual templates.
#[test]
fn templates_of_other_models_render() {
    for name in ["command-r", "gemma-4", "phi-3", "qwen2", "qwen35"] {
        let Some(path) = model_path(&format!("vocab/ggml-vocab-{name}.gguf")) else { return };
        let file = Gguf::open(path).unwrap();
        let template =
            ChatTemplate::from_gguf(&file, &Tokenizer::from_gguf(&file).unwrap()).unwrap();
        let conversation = [
            Message::new("user", "first question"),
            Message::new("assistant", "first answer"),
            Message::new("user", "second question"),
        ];
        let prompt = template.render(conversation, true).unwrap();
        let at = |text: &str| {
            prompt.find(text).unwrap_or_else(|| panic!("{name}: {text:?} is not in {prompt:?}"))
        };
        assert!(
            at("first question") < at("first answer") && at("first answer") < at("second question"),
            "{prompt:?}"
        );
    }
}
