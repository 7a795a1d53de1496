//! The chat template that a command uses: of `--template FILE`, else of the model's file, else the
//! usual one for such models, which is said.

use crate::report::say;
use kjit_model::chat::ChatTemplate;
use kjit_model::gguf::Gguf;
use kjit_model::tokenizer::Tokenizer;
use std::path::Path;

pub fn open(
    file: Option<&Path>,
    gguf: &Gguf,
    tokenizer: &Tokenizer,
) -> anyhow::Result<ChatTemplate> {
    let template = match file {
        Some(path) => ChatTemplate::from_file(path, tokenizer)?,
        None => ChatTemplate::from_gguf(gguf, tokenizer)?,
    };
    if let Some(note) = template.note() {
        say(note);
    }
    Ok(template)
}
