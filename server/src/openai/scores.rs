//! Log probabilities, in both of OpenAI's shapes.

use crate::generation::Score;
use crate::loaded::Loaded;
use kjit_model::tokenizer::DecodeOptions;
use serde_json::{Map, Value, json};

/// A token's text: its bytes.
fn bytes(loaded: &Loaded, id: u32) -> Vec<u8> {
    let options = DecodeOptions { remove_special: false, unparse_special: true };
    loaded.tokenizer.decode_with(&[id], options).unwrap_or_default()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Of a chat: `{"content": [{"token", "logprob", "bytes", "top_logprobs"}]}`.
pub fn chat(loaded: &Loaded, scores: &[Score]) -> Value {
    let one = |id: u32, logprob: f32| {
        let bytes = bytes(loaded, id);
        json!({ "token": text(&bytes), "logprob": logprob, "bytes": bytes })
    };
    let content = scores.iter().map(|score| {
        let mut token = one(score.id, score.logprobs.chosen);
        let top: Vec<Value> = score.logprobs.top.iter().map(|other| one(other.id, other.logprob)).collect();
        if let Some(token) = token.as_object_mut() {
            token.insert("top_logprobs".to_owned(), Value::from(top));
        }
        token
    });
    json!({ "content": content.collect::<Vec<_>>() })
}

/// Of a completion: `{"tokens", "token_logprobs", "top_logprobs", "text_offset"}`; offsets go on from
/// `offset`, in characters.
pub fn completion(loaded: &Loaded, scores: &[Score], offset: &mut usize) -> Value {
    let (mut tokens, mut chosen, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for score in scores {
        let token = text(&bytes(loaded, score.id));
        offsets.push(*offset);
        *offset += token.chars().count();
        tokens.push(token);
        chosen.push(score.logprobs.chosen);
        let top = score.logprobs.top.iter().map(|other| (text(&bytes(loaded, other.id)), json!(other.logprob)));
        tops.push(top.collect::<Map<String, Value>>());
    }
    json!({ "tokens": tokens, "token_logprobs": chosen, "top_logprobs": tops, "text_offset": offsets })
}
