//! The chat template of a command: `--template FILE`, or the template of the model, or the usual
//! template of such models, with a note.

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
