//! The text of an answer that is truncated inside a character.

use crate::it::support::folder::letters;
use kjit_chat::stop::StopWatcher;
use kjit_tokenizer::{EncodeOptions, Tokenizer, Vocabulary};
use std::ops::ControlFlow;

/// A tokenizer with one token for each byte.
fn bytes() -> Tokenizer {
    let letters: Vec<String> = letters().into_iter().map(String::from).collect();
    let vocabulary = Vocabulary {
        model: "gpt2",
        pre: Some("gpt-2"),
        tokens: letters.iter().map(String::as_bytes).collect(),
        merges: Some(vec![]),
        ..Vocabulary::default()
    };
    Tokenizer::new(&vocabulary).unwrap()
}

#[test]
fn incomplete_character_of_truncated_answer_is_dropped() {
    let t = bytes();
    let ids = t.encode("aé".as_bytes(), EncodeOptions::PLAIN);
    assert_eq!(ids.len(), 3);
    type End = fn(&mut StopWatcher, &mut dyn FnMut(&str) -> ControlFlow<()>);
    let text = |end: End| {
        let (mut shown, mut watcher) = (String::new(), StopWatcher::new(&t, &[]));
        let mut show = |piece: &str| {
            shown.push_str(piece);
            ControlFlow::Continue(())
        };
        ids[..2].iter().for_each(|id| assert!(watcher.push(*id, &mut show).is_continue()));
        end(&mut watcher, &mut show);
        (shown, watcher.into_text())
    };
    assert_eq!(text(|w, to| w.cut(to)), ("a".to_owned(), "a".to_owned()));
    assert_eq!(
        text(|w, to| w.finish(to)),
        ("a\u{fffd}".to_owned(), "a\u{fffd}".to_owned()),
        "the model ended the answer here"
    );
}
