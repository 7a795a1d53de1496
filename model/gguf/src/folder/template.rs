//! The chat templates of a folder: a separate file, or a key of `tokenizer_config.json`.

use super::error::FolderError;
use super::fail::fail;
use super::header::Header;
use super::json::{self, Object};
use crate::Error;
use serde_json::Value;
use std::path::Path;

const KEY: &str = "tokenizer.chat_template";

/// Writes the templates; a folder may have none.
pub fn write(folder: &Path, header: &mut Header) -> Result<(), Error> {
    let path = folder.join("chat_template.jinja");
    if let Some(bytes) = json::bytes(&path, json::MAX_SETTINGS)? {
        let text = String::from_utf8(bytes).map_err(|e| {
            let why = format!("invalid UTF-8 at byte {}", e.utf8_error().valid_up_to());
            fail(&path, FolderError::Json { why })
        })?;
        header.str(KEY, &text);
        return Ok(());
    }
    for (name, most) in [
        ("chat_template.json", json::MAX_SETTINGS),
        ("tokenizer_config.json", json::MAX_TOKENIZER_CONFIG),
    ] {
        let Some(file) = Object::read_keys(folder.join(name), most, &["chat_template"])? else {
            continue;
        };
        match file.get("chat_template") {
            None => continue,
            Some(Value::String(text)) => header.str(KEY, text),
            // Several named templates. The template `default` has no name in GGUF.
            Some(Value::Array(list)) => {
                let mut seen = std::collections::HashSet::new();
                for one in list {
                    let text = |key: &str| one.get(key).and_then(Value::as_str);
                    let (Some(name), Some(template)) = (text("name"), text("template")) else {
                        return Err(file.bad("chat_template", "each template needs a name"));
                    };
                    if !seen.insert(name) {
                        return Err(file.bad("chat_template", "a name occurs twice"));
                    }
                    match name {
                        "default" => header.str(KEY, template),
                        name => header.str(&format!("{KEY}.{name}"), template),
                    }
                }
            }
            Some(_) => {
                return Err(file.bad("chat_template", "expected a string or a list of templates"));
            }
        }
        return Ok(());
    }
    Ok(())
}
