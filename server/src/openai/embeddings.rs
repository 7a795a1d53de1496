//! `POST /v1/embeddings`, and Ollama's `POST /api/embed`: vectors of an encoder, or pooled hidden
//! states of any other model.

use super::completions::{Text, texts};
use super::{IGNORED, json_response, place};
use crate::base64;
use crate::caller::Caller;
use crate::fields::Fields;
use crate::generation::{failed, refused};
use crate::loaded::Loaded;
use crate::models::Lease;
use crate::ollama::keep::keep_alive;
use crate::refusal::Refusal;
use crate::service::Service;
use axum::response::Response;
use hyper::body::Bytes;
use kjit_model::cancel::Cancel;
use kjit_model::tokenizer::{EncodeOptions, Limit};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Maximum number of texts in a request.
const MAX_TEXTS: usize = 2048;

/// Returns vectors of length 1, and the number of tokens of all texts.
pub async fn vectors(
    service: &Arc<Service>,
    loaded: &Lease,
    texts: Vec<Text>,
    caller: &Caller,
) -> Result<(Vec<Vec<f32>>, usize), Refusal> {
    vectors_of(service, loaded, texts, caller, false).await
}

/// Like [`vectors`]. With `cut`, texts that are too long are cut at their end.
async fn vectors_of(
    service: &Arc<Service>,
    loaded: &Lease,
    texts: Vec<Text>,
    caller: &Caller,
    cut: bool,
) -> Result<(Vec<Vec<f32>>, usize), Refusal> {
    if loaded.has_adapter() {
        return Err(Refusal::field("model", "embeddings are computed without adapters"));
    }
    let of = loaded.clone();
    let prepare = move |cancel: &Cancel| {
        let one = |text: Text| match text {
            Text::Words(words) if cut => truncated(&of, &words, cancel),
            text => text.tokens(&of, cancel),
        };
        let tokens = texts.into_iter().map(one).collect::<Result<Vec<Vec<u32>>, _>>();
        tokens.map_err(|why| why.of("input"))
    };
    let tokens = service.prepare(loaded, caller, prepare).await?;
    let scheduler = {
        // One request opens the model, which takes a while. The other requests wait without
        // blocking a thread.
        let _turn = loaded.turn.lock().await;
        let (of, with) = (Arc::clone(service), loaded.clone());
        service.work(move || with.vectors(&of.options)).await?
    };
    let scheduler = scheduler
        .map_err(|why| Refusal::field("model", format_args!("has no embeddings: {why}")))?;
    let count = tokens.iter().map(Vec::len).sum();
    let mut vectors = vec![];
    // The texts are computed one after the other: a request is one entry of the queue.
    for tokens in tokens {
        let (to, from) = oneshot::channel();
        let sink = move |vector| _ = to.send(vector);
        scheduler.embed(tokens, sink).map_err(|why| refused(&why, "input"))?;
        let vector = from.await.map_err(|_| Refusal::internal("the answer is incomplete"))?;
        let mut vector = vector.map_err(|why| failed(&why, "input"))?;
        let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        if length > 0.0 {
            vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
        }
        vectors.push(vector);
    }
    Ok((vectors, count))
}

/// Upper bound of the bytes of nearly every token. A text is read up to this many times the context
/// size, which bounds the cost of long texts.
const MAX_OF_TOKEN: usize = 128;

/// Tokens of a text, cut to the context size. The token that ends a text stays.
fn truncated(loaded: &Loaded, text: &str, cancel: &Cancel) -> Result<Vec<u32>, Refusal> {
    let room = loaded.context;
    let limit = Limit { most: None, cancel: cancel.clone() };
    let text = text.get(..text.floor_char_boundary(room.saturating_mul(MAX_OF_TOKEN)));
    let text = text.unwrap_or_default();
    let ids = loaded.tokenizer.encode_within(text.as_bytes(), EncodeOptions::PROMPT, &limit);
    let mut ids = ids.map_err(|why| Refusal::internal(why.to_string()))?;
    if ids.len() > room {
        let special = loaded.tokenizer.special();
        let end = ids.last().copied();
        let end = end.filter(|_| [special.eos, special.sep].contains(&end));
        ids.truncate(room.saturating_sub(usize::from(end.is_some())));
        ids.extend(end);
    }
    Ok(ids)
}

/// Answers a request of OpenAI's format.
pub async fn answer(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let mut f = Fields::parse(&body)?;
    f.ignore(&IGNORED);
    // Texts for embeddings are not stored as cached prefixes.
    f.text("cache_salt")?;
    let at = place(&mut f, &service)?;
    let texts = texts(&mut f, "input", MAX_TEXTS)?;
    let packed = match f.text("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(f.wrong("encoding_format", "give float or base64")),
    };
    let dimensions = f.count("dimensions", 1..=1 << 20)?;
    f.done()?;
    let loaded = service.model(at, None).await?;
    let (vectors, tokens) = vectors(&service, &loaded, texts, &caller).await?;
    as_asked(dimensions, &vectors)?;
    let one = |(i, vector): (usize, &Vec<f32>)| {
        let vector: Value = match packed {
            true => {
                base64::encode(&vector.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
                    .into()
            }
            false => vector.as_slice().into(),
        };
        json!({ "object": "embedding", "index": i, "embedding": vector })
    };
    let data: Vec<Value> = vectors.iter().enumerate().map(one).collect();
    Ok(json_response(&json!({
        "object": "list", "data": data, "model": loaded.name(),
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens }
    })))
}

/// Refuses `dimensions` other than the size of the model's vectors.
fn as_asked(dimensions: Option<usize>, vectors: &[Vec<f32>]) -> Result<(), Refusal> {
    match (dimensions, vectors.first().map(Vec::len)) {
        (Some(asked), Some(made)) if asked != made => Err(Refusal::field(
            "dimensions",
            format_args!("this model computes {made}, which cannot be shortened"),
        )),
        _ => Ok(()),
    }
}

/// Answers in the format of Ollama's older `/api/embeddings`: the vector of one text.
pub async fn ollama_one(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let mut f = Fields::parse(&body)?;
    f.ignore(&["options"]);
    let (at, keep) = (place(&mut f, &service)?, keep_alive(&mut f)?);
    let text = Text::Words(f.needed_text("prompt")?);
    f.done()?;
    let loaded = service.model(at, keep).await?;
    let (vectors, _) = vectors(&service, &loaded, vec![text], &caller).await?;
    Ok(json_response(&json!({ "embedding": vectors.first() })))
}
/// Answers a request of Ollama's format.
pub async fn ollama(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let mut f = Fields::parse(&body)?;
    f.ignore(&["options"]);
    f.text("cache_salt")?;
    let (at, keep) = (place(&mut f, &service)?, keep_alive(&mut f)?);
    // True is Ollama's default.
    let cut = f.flag("truncate")?.unwrap_or(true);
    let dimensions = f.count("dimensions", 1..=1 << 20)?;
    let texts = texts(&mut f, "input", MAX_TEXTS)?;
    f.done()?;
    let loaded = service.model(at, keep).await?;
    let (vectors, tokens) = vectors_of(&service, &loaded, texts, &caller, cut).await?;
    as_asked(dimensions, &vectors)?;
    Ok(json_response(
        &json!({ "model": loaded.name(), "embeddings": vectors, "prompt_eval_count": tokens }),
    ))
}
