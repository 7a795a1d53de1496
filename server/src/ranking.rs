//! Scores how well texts match a query: `/v1/rerank` (API of Jina, Cohere and llama.cpp) and
//! `/v1/score` (API of vLLM). With an encoder the score is the cosine of the two vectors. With any
//! other model it is the likelihood of the query after the text, as a mean over its tokens (query
//! likelihood: Sachan et al. 2022, arXiv 2204.07496).

use crate::caller::Caller;
use crate::clock::unix_time;
use crate::fields::Fields;
use crate::generation::{AnswerEvent, GenerationRequest, OutputParsing, start};
use crate::models::Lease;
use crate::openai::completions::Text;
use crate::openai::embeddings::vectors;
use crate::openai::{IGNORED, json_response, place, random_id};
use crate::refusal::Refusal;
use crate::service::Service;
use crate::streamed::IN_FLIGHT;
use axum::response::Response;
use hyper::body::Bytes;
use kjit_model::cancel::Cancel;
use kjit_model::tokenizer::EncodeOptions;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Maximum number of texts in a request.
const MAX_TEXTS: usize = 1024;

/// `POST /v1/rerank`.
///
/// # Errors
/// The request is refused, or a text is too long.
pub async fn rerank(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let mut f = Fields::parse(&body)?;
    f.ignore(&IGNORED);
    let (at, caller) = (place(&mut f, &service)?, caller.of_request(&mut f)?);
    let query = f.needed_text("query")?;
    // The name in TEI and llama.cpp is `texts`.
    let name = if f.peek("documents").is_none() && f.peek("texts").is_some() {
        "texts"
    } else {
        "documents"
    };
    let texts = documents(&mut f, name)?;
    let most = f.count("top_n", 1..=i64::MAX)?.unwrap_or(texts.len());
    let shown = match f.flag("return_documents")? {
        None => f.flag("return_text")?.unwrap_or(false),
        given => given.unwrap_or(false),
    };
    f.done()?;
    let loaded = service.model(at, None).await?;
    let pairs = texts.iter().map(|text| (query.clone(), text.clone())).collect();
    let (scores, tokens) = scores(&service, &loaded, pairs, &caller, name).await?;
    let mut order: Vec<(usize, f64)> = scores.into_iter().enumerate().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let one = |(index, score): (usize, f64)| {
        let mut result = json!({ "index": index, "relevance_score": score });
        if let (true, Some(map), Some(text)) = (shown, result.as_object_mut(), texts.get(index)) {
            map.insert("document".to_owned(), json!({ "text": text }));
        }
        result
    };
    let results: Vec<Value> = order.into_iter().take(most).map(one).collect();
    Ok(json_response(&json!({
        "id": random_id("rerank"), "object": "list", "model": loaded.name(), "results": results,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens }
    })))
}

/// `POST /v1/score`.
///
/// # Errors
/// The request is refused, or a text is too long.
pub async fn score(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let mut f = Fields::parse(&body)?;
    f.ignore(&IGNORED);
    let (at, caller) = (place(&mut f, &service)?, caller.of_request(&mut f)?);
    let (first, second) = (texts(&mut f, "text_1")?, texts(&mut f, "text_2")?);
    f.done()?;
    let pairs = match (first.as_slice(), second.len()) {
        ([one], _) => second.into_iter().map(|text| (one.clone(), text)).collect(),
        (all, n) if all.len() == n => first.into_iter().zip(second).collect(),
        (_, n) => {
            let why = format_args!("must be one text, or as many texts as text_2 has ({n})");
            return Err(Refusal::field("text_1", why));
        }
    };
    let loaded = service.model(at, None).await?;
    let (scores, tokens) = scores(&service, &loaded, pairs, &caller, "text_2").await?;
    let one =
        |(index, score): (usize, f64)| json!({ "index": index, "object": "score", "score": score });
    let data: Vec<Value> = scores.into_iter().enumerate().map(one).collect();
    Ok(json_response(&json!({
        "id": random_id("score"), "object": "list", "created": unix_time(), "model": loaded.name(),
        "data": data, "usage": { "prompt_tokens": tokens, "total_tokens": tokens }
    })))
}

fn texts(f: &mut Fields, name: &str) -> Result<Vec<String>, Refusal> {
    let texts = f.texts(name, MAX_TEXTS)?;
    match texts.is_empty() || texts.iter().any(String::is_empty) {
        true => Err(f.wrong(name, "give at least one text, and none that is empty")),
        false => Ok(texts),
    }
}

/// Reads strings, or objects with a text.
fn documents(f: &mut Fields, name: &str) -> Result<Vec<String>, Refusal> {
    let all = f.list(name)?.unwrap_or_default();
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        other => other.get("text")?.as_str().map(str::to_owned),
    };
    let texts: Option<Vec<String>> = all.iter().map(text).collect();
    texts
        .filter(|all| (1..=MAX_TEXTS).contains(&all.len()) && !all.iter().any(String::is_empty))
        .ok_or_else(|| {
            let why = format_args!("give a list of 1 to {MAX_TEXTS} texts that are not empty");
            f.wrong(name, why)
        })
}

/// A score for each query and text, and the number of tokens of all.
async fn scores(
    service: &Arc<Service>,
    loaded: &Lease,
    pairs: Vec<(String, String)>,
    caller: &Caller,
    field: &'static str,
) -> Result<(Vec<f64>, usize), Refusal> {
    match loaded.encoder {
        true => by_vectors(service, loaded, pairs, caller).await,
        false => by_likelihood(service, loaded, pairs, caller, field).await,
    }
}

async fn by_vectors(
    service: &Arc<Service>,
    loaded: &Lease,
    pairs: Vec<(String, String)>,
    caller: &Caller,
) -> Result<(Vec<f64>, usize), Refusal> {
    // A query that is the same in all pairs is computed once.
    let same = pairs.iter().all(|(query, _)| Some(query) == pairs.first().map(|(first, _)| first));
    let (queries, texts): (Vec<String>, Vec<String>) = pairs.into_iter().unzip();
    let queries = if same { queries.into_iter().take(1).collect() } else { queries };
    let n = queries.len();
    let all = queries.into_iter().chain(texts).map(Text::Words).collect();
    let (vectors, tokens) = vectors(service, loaded, all, caller).await?;
    let (queries, texts) = vectors.split_at(n.min(vectors.len()));
    let dot = |(i, text): (usize, &Vec<f32>)| {
        let query = queries.get(if same { 0 } else { i }).map_or(&[][..], Vec::as_slice);
        query.iter().zip(text).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    Ok((texts.iter().enumerate().map(dot).collect(), tokens))
}

async fn by_likelihood(
    service: &Arc<Service>,
    loaded: &Lease,
    pairs: Vec<(String, String)>,
    caller: &Caller,
    field: &'static str,
) -> Result<(Vec<f64>, usize), Refusal> {
    let of = loaded.clone();
    let prepare = move |cancel: &Cancel| {
        let one = |(query, text): (String, String)| {
            let before = Text::Words(format!("Passage: {text}\nQuestion:"));
            let before = before.tokens(&of, cancel).map_err(|why| why.of(field))?;
            let asked = of.tokens(cancel, |tokenizer, limit| {
                tokenizer.encode_within(format!(" {query}").as_bytes(), EncodeOptions::PLAIN, limit)
            })?;
            match before.len() + asked.len() > of.context {
                true => Err(Refusal::longer(before.len() + asked.len(), of.context).of(field)),
                false => Ok((before, asked)),
            }
        };
        pairs.into_iter().map(one).collect::<Result<Vec<_>, Refusal>>()
    };
    let prompts = service.prepare(loaded, caller, prepare).await?;
    let (mut scores, mut tokens) = (vec![], 0);
    // One after the other: a request is one entry of the queue.
    for (before, asked) in prompts {
        tokens += before.len() + asked.len();
        let n = asked.len();
        let wanted = GenerationRequest {
            max_tokens: Some(0),
            logprobs: Some(0),
            forced: asked,
            ..GenerationRequest::of(before, OutputParsing::Plain, caller.clone())
        };
        let (to, mut pieces) = mpsc::channel(IN_FLIGHT);
        start(loaded, wanted, 0, to)?;
        let mut score = None;
        while let Some((_, piece)) = pieces.recv().await {
            match piece {
                AnswerEvent::Prompt(all) if all.len() == n && n > 0 => {
                    let sum: f64 = all.iter().map(|one| f64::from(one.logprobs.chosen)).sum();
                    score = Some((sum / n as f64).exp());
                }
                AnswerEvent::Failed(refusal) => return Err(refusal),
                AnswerEvent::Prompt(_)
                | AnswerEvent::Started { .. }
                | AnswerEvent::Said { .. }
                | AnswerEvent::Done(_) => {}
            }
        }
        scores.push(score.ok_or_else(|| Refusal::internal("an answer's end was lost"))?);
    }
    Ok((scores, tokens))
}
