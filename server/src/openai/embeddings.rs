//! `POST /v1/embeddings`, and Ollama's `POST /api/embed`: vectors of an encoder, or pooled hidden
//! states of any other model.

use super::completions::{Text, texts};
use super::{IGNORED, json_response, place};
use crate::base64;
use crate::caller::Caller;
use crate::fields::Fields;
use crate::generation::{failed, refused};
use crate::models::Lease;
use crate::ollama::keep::keep_alive;
use crate::refusal::Refusal;
use crate::service::Service;
use axum::response::Response;
use hyper::body::Bytes;
use kjit_model::cancel::Cancel;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Maximum texts of a request.
const MOST: usize = 256;

/// Vectors of length 1, and the tokens of all texts.
async fn vectors(
    service: &Arc<Service>,
    loaded: &Lease,
    texts: Vec<Text>,
    caller: &Caller,
) -> Result<(Vec<Vec<f32>>, usize), Refusal> {
    let of = loaded.clone();
    let prepare = move |cancel: &Cancel| {
        let tokens = texts
            .into_iter()
            .map(|text| text.tokens(&of, cancel))
            .collect::<Result<Vec<Vec<u32>>, _>>();
        tokens.map_err(|why| why.of("input"))
    };
    let tokens = service.prepare(loaded, caller, prepare).await?;
    let scheduler = {
        // One request opens the model, which takes a while. The others wait without a thread.
        let _turn = loaded.turn.lock().await;
        let (of, with) = (Arc::clone(service), loaded.clone());
        service.work(move || with.vectors(&of.options)).await?
    };
    let scheduler = scheduler
        .map_err(|why| Refusal::field("model", format_args!("it makes no vectors: {why}")))?;
    let count = tokens.iter().map(Vec::len).sum();
    let mut vectors = vec![];
    // One text after the other: a request takes one place in the queue, however many texts it has.
    for tokens in tokens {
        let (to, from) = oneshot::channel();
        let sink = move |vector| _ = to.send(vector);
        scheduler.embed(tokens, sink).map_err(|why| refused(&why, "input"))?;
        let vector = from.await.map_err(|_| Refusal::internal("an answer's end was lost"))?;
        let mut vector = vector.map_err(|why| failed(&why, "input"))?;
        let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        if length > 0.0 {
            vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
        }
        vectors.push(vector);
    }
    Ok((vectors, count))
}

/// Answers OpenAI's request.
pub async fn answer(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let mut f = Fields::parse(&body)?;
    f.ignore(&IGNORED);
    // Texts for embeddings are not kept as prefixes.
    f.text("cache_salt")?;
    let at = place(&mut f, &service)?;
    let texts = texts(&mut f, "input", MOST)?;
    let packed = match f.text("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(f.wrong("encoding_format", "give float or base64")),
    };
    let dimensions = f.count("dimensions", 1..=1 << 20)?;
    f.done()?;
    let loaded = service.model(at, None).await?;
    let (vectors, tokens) = vectors(&service, &loaded, texts, &caller).await?;
    if let (Some(asked), Some(made)) = (dimensions, vectors.first().map(Vec::len))
        && asked != made
    {
        return Err(Refusal::field(
            "dimensions",
            format_args!("this model makes {made}, and they cannot be cut"),
        ));
    }
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

/// Answers Ollama's request.
pub async fn ollama(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let mut f = Fields::parse(&body)?;
    f.ignore(&["options"]);
    f.text("cache_salt")?;
    let (at, keep) = (place(&mut f, &service)?, keep_alive(&mut f)?);
    if f.flag("truncate")? == Some(true) {
        return Err(f.wrong("truncate", "texts are not cut: one that is too long is refused"));
    }
    let texts = texts(&mut f, "input", MOST)?;
    f.done()?;
    let loaded = service.model(at, keep).await?;
    let (vectors, tokens) = vectors(&service, &loaded, texts, &caller).await?;
    Ok(json_response(
        &json!({ "model": loaded.name(), "embeddings": vectors, "prompt_eval_count": tokens }),
    ))
}
