//! Log probabilities, in OpenAI's two forms.

use crate::generation::Score;
use crate::loaded::Loaded;
use kjit_model::tokenizer::DecodeOptions;
use serde_json::{Map, Value, json};

/// The bytes of a token's text.
fn bytes(loaded: &Loaded, id: u32) -> Vec<u8> {
    let options = DecodeOptions { remove_special: false, unparse_special: true };
    loaded.tokenizer.decode_with(&[id], options).unwrap_or_default()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The form of chats: `{"content": [{"token", "logprob", "bytes", "top_logprobs"}]}`.
pub fn chat(loaded: &Loaded, scores: &[Score]) -> Value {
    let one = |id: u32, logprob: f32| {
        let bytes = bytes(loaded, id);
        json!({ "token": text(&bytes), "logprob": logprob, "bytes": bytes })
    };
    let content = scores.iter().map(|score| {
        let mut token = one(score.id, score.logprobs.chosen);
        let top: Vec<Value> =
            score.logprobs.top.iter().map(|other| one(other.id, other.logprob)).collect();
        if let Some(token) = token.as_object_mut() {
            token.insert("top_logprobs".to_owned(), Value::from(top));
        }
        token
    });
    json!({ "content": content.collect::<Vec<_>>() })
}

/// Position in a completion's text.
#[derive(Debug, Clone, Default)]
pub struct At {
    /// Number of complete characters.
    characters: usize,
    /// Bytes of the incomplete character.
    begun: Vec<u8>,
}

impl At {
    /// Advances by some bytes. Each byte that cannot begin or continue a character counts as one in
    /// the text.
    fn push(&mut self, bytes: &[u8]) {
        self.begun.extend_from_slice(bytes);
        let mut rest = self.begun.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.characters += text.chars().count();
                    rest = &[];
                    break;
                }
                Err(e) => {
                    let (text, after) = rest.split_at(e.valid_up_to());
                    self.characters += String::from_utf8_lossy(text).chars().count();
                    rest = after;
                    let Some(wrong) = e.error_len() else { break };
                    self.characters += 1;
                    rest = rest.get(wrong..).unwrap_or_default();
                }
            }
        }
        self.begun = rest.to_vec();
    }
}

/// A token as a JSON key: its text, or in OpenAI's form its bytes if it is part of a character.
fn key(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            bytes.iter().fold("bytes:".to_owned(), |all, byte| all + &format!("\\x{byte:02x}"))
        }
    }
}

/// The form of completions: `{"tokens", "token_logprobs", "top_logprobs", "text_offset"}`. Offsets
/// count characters from `at` on. A token that is part of a character has the character's offset.
pub fn completion(loaded: &Loaded, scores: &[Score], at: &mut At) -> Value {
    let (mut tokens, mut chosen, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for score in scores {
        let bytes_of = bytes(loaded, score.id);
        let token = key(&bytes_of);
        offsets.push(at.characters);
        // Control tokens have no text.
        if !loaded.tokenizer.is_control(score.id).unwrap_or(true) {
            at.push(&bytes_of);
        }
        let mut top = Map::new();
        for other in &score.logprobs.top {
            // Two tokens may have the same text. Then the more likely one is kept.
            top.entry(key(&bytes(loaded, other.id))).or_insert_with(|| json!(other.logprob));
        }
        // The chosen token is among them, with its own value.
        if !top.is_empty() {
            top.insert(token.clone(), json!(score.logprobs.chosen));
        }
        tokens.push(token);
        chosen.push(score.logprobs.chosen);
        tops.push(top);
    }
    json!({ "tokens": tokens, "token_logprobs": chosen, "top_logprobs": tops, "text_offset": offsets })
}

#[cfg(test)]
mod tests {
    use super::{At, key};

    #[test]
    fn parts_of_characters_have_keys_of_their_own_and_the_place_of_their_character() {
        let parts: [&[u8]; 6] =
            [b"a", b"\xf0\x9f", b"\x98", b"\x8a", "\u{e4}b".as_bytes(), b"\xff"];
        assert_eq!(
            parts.map(key),
            ["a", "bytes:\\xf0\\x9f", "bytes:\\x98", "bytes:\\x8a", "\u{e4}b", "bytes:\\xff"]
        );
        let mut at = At::default();
        let places = parts.map(|part| {
            let place = at.characters;
            at.push(part);
            place
        });
        // The text is a😊äb and a replacement character.
        assert_eq!((places, at.characters), ([0, 1, 1, 1, 2, 4], 5));
        // A character that is never completed counts as one.
        let mut at = At::default();
        at.push(b"\xf0\x9f");
        at.push(b"x");
        assert_eq!(at.characters, 2);
    }
}
