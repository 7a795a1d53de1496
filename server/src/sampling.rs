//! Sampling options of requests.

use crate::fields::Fields;
use crate::refusal::Refusal;
use kjit_model::SampleOptions;
use serde_json::Value;
use std::hash::{BuildHasher, RandomState};

/// Number of last tokens for OpenAI's penalties: the whole answer.
const ALL: usize = 1 << 16;
/// Maximum biases of a request.
const MOST_BIASES: usize = 1024;

/// OpenAI's fields and common additions: `top_k`, `min_p`, `repeat_penalty` (also
/// `repetition_penalty`). Defaults are OpenAI's: temperature 1, no cuts.
pub fn openai(fields: &mut Fields) -> Result<SampleOptions, Refusal> {
    let repeat = match fields.number("repeat_penalty", 0.01..=10.0)? {
        None => fields.number("repetition_penalty", 0.01..=10.0)?,
        given => given,
    };
    Ok(SampleOptions {
        temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(1.0),
        top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0),
        top_k: fields.count("top_k", 0..=1_000_000)?.unwrap_or(0),
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(0.0),
        repeat_penalty: repeat.unwrap_or(1.0),
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        window: ALL,
        seed: seed(fields)?,
        bias: biases(fields)?,
    })
}

/// Ollama's `options`. Defaults are Ollama's: temperature 0.8, top-k 40, top-p 0.9.
pub fn ollama(fields: &mut Fields) -> Result<SampleOptions, Refusal> {
    Ok(SampleOptions {
        temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(0.8),
        top_k: fields.count("top_k", 0..=1_000_000)?.unwrap_or(40),
        top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(0.9),
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(0.0),
        repeat_penalty: fields.number("repeat_penalty", 0.01..=10.0)?.unwrap_or(1.0),
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        window: match fields.whole("repeat_last_n", -1..=65536)? {
            None => 64,
            Some(n) => usize::try_from(n).unwrap_or(ALL),
        },
        seed: seed(fields)?,
        bias: vec![],
    })
}

/// The options of one of several answers to a request, with its own seed.
pub fn nth(options: &SampleOptions, n: usize) -> SampleOptions {
    SampleOptions { seed: options.seed.wrapping_add(n as u64), ..options.clone() }
}

/// The given seed, or a random one.
fn seed(fields: &mut Fields) -> Result<u64, Refusal> {
    // A negative seed is as good as any other.
    let given = fields.whole("seed", i64::MIN..=i64::MAX)?;
    Ok(given.map_or_else(|| RandomState::new().hash_one(0), |n| n.cast_unsigned()))
}

/// Whether all biased tokens are ids of the vocabulary.
pub fn known(options: &SampleOptions, n_vocab: usize) -> Result<(), Refusal> {
    match options.bias.iter().all(|(id, _)| (*id as usize) < n_vocab) {
        true => Ok(()),
        false => Err(Refusal::field("logit_bias", format_args!("give token ids below {n_vocab}"))),
    }
}

fn biases(fields: &mut Fields) -> Result<Vec<(u32, f32)>, Refusal> {
    let wrong = || {
        Refusal::field(
            "logit_bias",
            format_args!(
                "give an object of at most {MOST_BIASES} token ids, each with a number from \
                 -100 to 100"
            ),
        )
    };
    match fields.take("logit_bias") {
        None => Ok(vec![]),
        Some(Value::Object(map)) if map.len() <= MOST_BIASES => {
            let one = |(id, bias): (&String, &Value)| {
                let id = id.parse::<u32>().ok()?;
                Some((id, bias.as_f64().filter(|b| b.abs() <= 100.0)? as f32))
            };
            map.iter().map(one).collect::<Option<Vec<_>>>().ok_or_else(wrong)
        }
        Some(_) => Err(wrong()),
    }
}

/// Stop texts of a request.
pub fn stop(fields: &mut Fields) -> Result<Vec<String>, Refusal> {
    let texts = fields.texts("stop", 16)?;
    match texts.iter().all(|text| !text.is_empty() && text.len() <= 1024) {
        true => Ok(texts),
        false => Err(fields.wrong("stop", "give texts of 1 to 1024 bytes")),
    }
}
