//! Tests chat templates of folders of safetensors.

use crate::it::support::folder::Folder;
use kjit_chat::{ChatTemplate, Message};
use kjit_gguf::Gguf;
use kjit_tokenizer::Tokenizer;
use serde_json::{Value, json};

#[test]
fn chat_template_is_found_in_all_folder_layouts() {
    let render = |folder: &Folder, jinja: Option<&str>| {
        let dir = tempfile::tempdir().unwrap();
        folder.write(dir.path(), 1);
        if let Some(text) = jinja {
            std::fs::write(dir.path().join("chat_template.jinja"), text).unwrap();
        }
        let file = Gguf::open(dir.path()).unwrap();
        let tokenizer = Tokenizer::from_gguf(&file).unwrap();
        let template = ChatTemplate::from_gguf(&file, &tokenizer).unwrap();
        (template.render(&[Message::new("user", "hi")], true).unwrap(), ChatTemplate::names(&file))
    };
    let mut folder = Folder::small("qwen3");
    assert_eq!(render(&folder, None).0, "<s>hi</s>");
    assert_eq!(render(&folder, Some("own {{ bos_token }}")).0, "own <s>");
    // With `null` there is no BOS token, regardless of config.json and the tokenizer's model.
    let mut none = Folder::small("qwen3");
    (none.others[0].1["bos_token"], none.others[0].1["add_bos_token"]) =
        (Value::Null, json!(false));
    none.config["bos_token_id"] = json!(256);
    assert_eq!(render(&none, Some("own {{ bos_token }}")).0, "own ");
    folder.others[0].1["chat_template"] = json!([
        { "name": "default", "template": "plain" }, { "name": "tool_use", "template": "with tools" } ]);
    assert_eq!(render(&folder, None), ("plain".to_owned(), vec!["tool_use".to_owned()]));
}
