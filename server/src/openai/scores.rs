//! Log probabilities, in OpenAI's two formats.

use crate::generation::Score;
use crate::loaded::Loaded;
use serde_json::{Map, Value, json};

/// The bytes of a token's text.
fn bytes(loaded: &Loaded, id: u32) -> Vec<u8> {
    loaded.tokenizer.decode(&[id]).unwrap_or_default()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The format of chat answers: `{"content": [{"token", "logprob", "bytes", "top_logprobs"}]}`.
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

/// Position in the text of a completion.
#[derive(Debug, Clone, Default)]
pub struct TextPosition {
    /// Number of complete characters.
    characters: usize,
    /// Bytes of the incomplete character.
    begun: Vec<u8>,
}

impl TextPosition {
    /// Advances by some bytes. Each byte that cannot begin or continue a character counts as one
    /// character.
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

/// A token as a JSON key: its text, or its bytes in OpenAI's notation if it is part of a character.
fn key(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            bytes.iter().fold("bytes:".to_owned(), |all, byte| all + &format!("\\x{byte:02x}"))
        }
    }
}

/// Scores of a completion: `{"tokens", "token_logprobs", "top_logprobs", "text_offset"}`.
#[derive(Debug, Default, Clone)]
pub struct CompletionScores {
    tokens: Vec<String>,
    chosen: Vec<Option<f32>>,
    tops: Vec<Option<Map<String, Value>>>,
    offsets: Vec<usize>,
}

impl CompletionScores {
    /// Adds a token without probability: the first token of all. `says`: the token is part of the
    /// text.
    pub fn unknown(&mut self, loaded: &Loaded, id: u32, says: bool, at: &mut TextPosition) {
        let bytes_of = bytes(loaded, id);
        self.offsets.push(at.characters);
        if says {
            at.push(&bytes_of);
        }
        self.tokens.push(key(&bytes_of));
        self.chosen.push(None);
        self.tops.push(None);
    }

    /// Adds a token with the `most` most likely alternatives. Offsets, in characters, continue from
    /// `at`. A token inside a character has the offset of the character.
    pub fn push(
        &mut self,
        loaded: &Loaded,
        score: &Score,
        most: usize,
        says: bool,
        at: &mut TextPosition,
    ) {
        self.unknown(loaded, score.id, says, at);
        let mut top = Map::new();
        for other in score.logprobs.top.iter().take(most) {
            // Two tokens may have the same text. The more likely one stays.
            top.entry(key(&bytes(loaded, other.id))).or_insert_with(|| json!(other.logprob));
        }
        // The chosen token is added to the alternatives, with its own value.
        if let Some(token) = self.tokens.last().filter(|_| !top.is_empty()) {
            top.insert(token.clone(), json!(score.logprobs.chosen));
        }
        if let (Some(chosen), Some(tops)) = (self.chosen.last_mut(), self.tops.last_mut()) {
            (*chosen, *tops) = (Some(score.logprobs.chosen), Some(top));
        }
    }

    /// Appends the scores of later tokens.
    pub fn append(&mut self, mut later: CompletionScores) {
        self.tokens.append(&mut later.tokens);
        self.chosen.append(&mut later.chosen);
        self.tops.append(&mut later.tops);
        self.offsets.append(&mut later.offsets);
    }

    /// Takes the scores of the tokens that begin within the first `characters` of the text. The
    /// others wait: their text may still be cut off.
    pub fn take_within(&mut self, characters: usize) -> CompletionScores {
        let n = self.offsets.partition_point(|at| *at <= characters);
        let later = CompletionScores {
            tokens: self.tokens.split_off(n),
            chosen: self.chosen.split_off(n),
            tops: self.tops.split_off(n),
            offsets: self.offsets.split_off(n),
        };
        std::mem::replace(self, later)
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The JSON in OpenAI's format. Offsets are at most `characters`, the length of the text:
    /// tokens that a stop string or a limit cut off get the offset of the end.
    pub fn json(mut self, characters: usize) -> Value {
        self.offsets.iter_mut().for_each(|at| *at = (*at).min(characters));
        json!({
            "tokens": self.tokens, "token_logprobs": self.chosen, "top_logprobs": self.tops,
            "text_offset": self.offsets
        })
    }
}

/// Log probabilities of a prompt in vLLM's format: `[null, {"ID": {"logprob", "rank",
/// "decoded_token"}}]`. The rank is known only among the most likely tokens.
pub fn of_prompt(loaded: &Loaded, scores: &[Score], most: usize) -> Value {
    let one = |score: &Score| {
        let mut all = Map::new();
        let entry = |id: u32, logprob: f32, rank: Option<usize>| {
            let decoded = text(&bytes(loaded, id));
            json!({ "logprob": logprob, "rank": rank, "decoded_token": decoded })
        };
        for (i, other) in score.logprobs.top.iter().take(most).enumerate() {
            all.insert(other.id.to_string(), entry(other.id, other.logprob, Some(i + 1)));
        }
        let rank = score.logprobs.top.iter().position(|other| other.id == score.id);
        all.entry(score.id.to_string())
            .or_insert_with(|| entry(score.id, score.logprobs.chosen, rank.map(|i| i + 1)));
        Value::Object(all)
    };
    std::iter::once(Value::Null).chain(scores.iter().map(one)).collect()
}

#[cfg(test)]
mod tests {
    use super::{TextPosition, key};

    #[test]
    fn partial_characters_have_unique_keys_and_correct_offsets() {
        let parts: [&[u8]; 6] =
            [b"a", b"\xf0\x9f", b"\x98", b"\x8a", "\u{e4}b".as_bytes(), b"\xff"];
        assert_eq!(
            parts.map(key),
            ["a", "bytes:\\xf0\\x9f", "bytes:\\x98", "bytes:\\x8a", "\u{e4}b", "bytes:\\xff"]
        );
        let mut at = TextPosition::default();
        let places = parts.map(|part| {
            let place = at.characters;
            at.push(part);
            place
        });
        // The text is "a😊äb" and a replacement character.
        assert_eq!((places, at.characters), ([0, 1, 1, 1, 2, 4], 5));
        // A character that is never completed counts as one.
        let mut at = TextPosition::default();
        at.push(b"\xf0\x9f");
        at.push(b"x");
        assert_eq!(at.characters, 2);
    }
}
