//! Any text as a chat template: it renders or is refused in one line, and no more.

#![no_main]

use kjit_chat::{ChatTemplate, Message};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let source = String::from_utf8_lossy(bytes);
    let talk = [Message::new("system", "Rules."), Message::new("user", "a b"), Message::new("assistant", "c")];
    let template = ChatTemplate::new("t", &source, Some("<s>".into()), Some("</s>".into()));
    if let Err(error) = template.and_then(|template| template.render(talk, true)) {
        let line = error.to_string();
        assert!(!line.chars().any(char::is_control) && line.chars().count() < 700, "{line:?}");
    }
});
