//! Sampling options of requests.

use crate::constrain::OutputConstraints;
use crate::fields::Fields;
use crate::loaded::Loaded;
use crate::refusal::Refusal;
use crate::samplers;
use crate::unsupported_fields;
use kjit_model::SampleOptions;
use serde_json::Value;
use std::hash::{BuildHasher, RandomState};

/// Number of last tokens to which OpenAI's penalties apply: the whole answer.
const ALL: usize = 1 << 16;
/// Maximum number of tokens that end an answer, per request.
const MAX_STOPS: usize = 64;
/// Maximum number of biases in a request.
const MAX_BIASES: usize = 1024;

/// Reads OpenAI's fields and common additions: `top_k`, `min_p`, `repeat_penalty` (also
/// `repetition_penalty`). Defaults are OpenAI's: temperature 1, no cuts.
pub fn openai(fields: &mut Fields) -> Result<Sampling, Refusal> {
    let usual = SampleOptions { temperature: 1.0, top_p: 1.0, ..plain() };
    read(fields, &usual)
}

/// Reads Ollama's `options`. Defaults are Ollama's: temperature 0.8, top-k 40, top-p 0.9.
pub fn ollama(fields: &mut Fields) -> Result<Sampling, Refusal> {
    let usual = SampleOptions { temperature: 0.8, top_k: 40, top_p: 0.9, window: 64, ..plain() };
    read(fields, &usual)
}

/// Reads llama.cpp's fields, with llama.cpp's defaults.
pub fn llama(fields: &mut Fields) -> Result<Sampling, Refusal> {
    let (top_p, min_p) = (0.95, 0.05);
    let usual = SampleOptions { temperature: 0.8, top_k: 40, top_p, min_p, window: 64, ..plain() };
    read(fields, &usual)
}

/// Options without cuts, penalties and biases.
fn plain() -> SampleOptions {
    SampleOptions { temperature: 1.0, window: ALL, ..SampleOptions::default() }
}

/// Sampling options of a request, before its model is known.
#[derive(Debug, Clone)]
pub struct Sampling {
    /// The options, without the tokens of DRY's breakers.
    pub options: SampleOptions,
    /// Strings at which a repetition ends.
    pub breakers: Vec<String>,
}

impl Sampling {
    /// The options for a model. This may read its vocabulary: too slow for an async thread.
    pub fn resolved(mut self, loaded: &Loaded) -> SampleOptions {
        if self.options.dry.penalises() {
            let ids = loaded.breakers.of(loaded, &self.breakers);
            self.options.dry.breakers = ids.to_vec();
        }
        self.options
    }
}

/// Reads the fields of any dialect; `usual` has the defaults.
fn read(fields: &mut Fields, usual: &SampleOptions) -> Result<Sampling, Refusal> {
    unsupported_fields::take(fields)?;
    let repeat = match fields.number("repeat_penalty", 0.01..=10.0)? {
        None => fields.number("repetition_penalty", 0.01..=10.0)?,
        given => given,
    };
    let top_k = match fields.whole("top_k", -1..=1_000_000)? {
        None => usual.top_k,
        // -1 means all tokens in vLLM.
        Some(n) => usize::try_from(n).unwrap_or(0),
    };
    let window = match fields.whole("repeat_last_n", -1..=65536)? {
        None => usual.window,
        Some(n) => usize::try_from(n).unwrap_or(ALL),
    };
    let number = |fields: &mut Fields, name, range, usual| {
        fields.number(name, range).map(|given| given.unwrap_or(usual))
    };
    let options = SampleOptions {
        temperature: number(fields, "temperature", 0.0..=2.0, usual.temperature)?,
        top_p: number(fields, "top_p", 0.0..=1.0, usual.top_p)?,
        top_k,
        min_p: number(fields, "min_p", 0.0..=1.0, usual.min_p)?,
        repeat_penalty: repeat.unwrap_or(usual.repeat_penalty),
        presence_penalty: number(fields, "presence_penalty", -2.0..=2.0, usual.presence_penalty)?,
        frequency_penalty: number(
            fields,
            "frequency_penalty",
            -2.0..=2.0,
            usual.frequency_penalty,
        )?,
        window,
        seed: seed(fields)?,
        bias: biases(fields)?,
        ..SampleOptions::default()
    };
    samplers::read(fields, options)
}

/// The options of one of several answers to a request, with its own seed.
pub fn nth(options: &SampleOptions, n: usize) -> SampleOptions {
    SampleOptions { seed: options.seed.wrapping_add(n as u64), ..options.clone() }
}

/// The given seed, or a random one.
fn seed(fields: &mut Fields) -> Result<u64, Refusal> {
    // A negative seed is accepted too.
    let given = fields.whole("seed", i64::MIN..=i64::MAX)?;
    Ok(given.map_or_else(|| RandomState::new().hash_one(0), |n| n.cast_unsigned()))
}

/// Whether all biased tokens are ids of the vocabulary.
pub fn known(sampling: &Sampling, n_vocab: usize) -> Result<(), Refusal> {
    match sampling.options.bias.iter().all(|(id, _)| (*id as usize) < n_vocab) {
        true => Ok(()),
        false => Err(Refusal::field("logit_bias", format_args!("give token ids below {n_vocab}"))),
    }
}

fn biases(fields: &mut Fields) -> Result<Vec<(u32, f32)>, Refusal> {
    let wrong = || {
        Refusal::field(
            "logit_bias",
            format_args!(
                "give an object of at most {MAX_BIASES} token ids, \
                 each with a number from -100 to 100"
            ),
        )
    };
    match fields.take("logit_bias") {
        None => Ok(vec![]),
        Some(Value::Object(map)) if map.len() <= MAX_BIASES => {
            let one = |(id, bias): (&String, &Value)| {
                let id = id.parse::<u32>().ok()?;
                Some((id, bias.as_f64().filter(|b| b.abs() <= 100.0)? as f32))
            };
            map.iter().map(one).collect::<Option<Vec<_>>>().ok_or_else(wrong)
        }
        Some(_) => Err(wrong()),
    }
}

/// Maximum tokens of an answer. -1: only the context limits it.
pub fn most(fields: &mut Fields, name: &str) -> Result<Option<Option<usize>>, Refusal> {
    match fields.whole(name, -1..=i64::MAX)? {
        None => Ok(None),
        Some(0) => Err(fields.wrong(name, "give a whole number from 1 up, or -1")),
        Some(n) => Ok(Some(usize::try_from(n).ok())),
    }
}

/// Conditions that end an answer, besides the model's end token and stop strings.
#[derive(Debug, Clone, Default)]
pub struct Ends {
    /// Tokens that end the answer. Their text is not part of the answer.
    pub ids: Vec<u32>,
    /// Minimum number of tokens before an end token is allowed.
    pub least: usize,
}

impl Ends {
    /// Checks that these conditions can be combined with the constraint of the answer.
    ///
    /// # Errors
    /// The constraint has its own end.
    pub fn beside(&self, follow: &OutputConstraints) -> Result<(), Refusal> {
        match self.least > 0 && !follow.nothing() {
            true => {
                let why = "cannot be given together with a form of the answer";
                Err(Refusal::field("min_tokens", why))
            }
            false => Ok(()),
        }
    }
}

/// vLLM's `stop_token_ids` and `min_tokens`.
pub fn ends(f: &mut Fields) -> Result<Ends, Refusal> {
    let all = f.list("stop_token_ids")?.unwrap_or_default();
    let ids: Option<Vec<u32>> = all.iter().map(|id| id.as_u64()?.try_into().ok()).collect();
    let ids = ids.filter(|ids| ids.len() <= MAX_STOPS).ok_or_else(|| {
        f.wrong("stop_token_ids", format_args!("give a list of at most {MAX_STOPS} token ids"))
    })?;
    Ok(Ends { ids, least: f.count("min_tokens", 0..=i64::MAX)?.unwrap_or(0) })
}
/// Reads the stop strings of a request.
pub fn stop(fields: &mut Fields) -> Result<Vec<String>, Refusal> {
    stops(fields, "stop")
}

/// Reads strings that end an answer, from the field of this name.
pub fn stops(fields: &mut Fields, name: &str) -> Result<Vec<String>, Refusal> {
    let texts = fields.texts(name, 16)?;
    match texts.iter().all(|text| !text.is_empty() && text.len() <= 1024) {
        true => Ok(texts),
        false => Err(fields.wrong(name, "give texts of 1 to 1024 bytes")),
    }
}
