//! Anthropic's dialect: `POST /v1/messages` and `POST /v1/messages/count_tokens`.

mod answer;
mod blocks;
mod request;

use crate::caller::Caller;
use crate::constrain::noted;
use crate::conversation_request::{StartedAnswers, ask, prompt};
use crate::generation::collect;
use crate::openai::json_response;
use crate::refusal::Refusal;
use crate::service::Service;
use crate::streamed;
use axum::response::Response;
use hyper::body::Bytes;
use serde_json::json;
use std::sync::Arc;

/// `POST /v1/messages`.
///
/// # Errors
/// The request is refused, or the answer fails.
pub async fn messages(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let read = request::message(&service, &body, caller)?;
    let loaded = service.model(read.at, None).await?;
    let stop = read.ask.stop.clone();
    let StartedAnswers { pieces, unheld, .. } = ask(&service, &loaded, read.ask).await?;
    let manner = answer::AnswerContext::new(loaded.name(), stop, read.parallel);
    if read.stream {
        let events = answer::stream_format(manner);
        return Ok(noted(streamed::named_events(pieces, events, answer::PING), &unheld));
    }
    let whole = collect(pieces, 1).await?.pop().unwrap_or_default();
    Ok(noted(json_response(&answer::document(&manner, whole)), &unheld))
}

/// `POST /v1/messages/count_tokens`: the number of tokens of the prompt that `/v1/messages` would
/// compute.
///
/// # Errors
/// The request is refused.
pub async fn count_tokens(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let (at, conversation, caller) = request::counted(&service, &body, caller)?;
    let loaded = service.model(at, None).await?;
    let tokens = prompt(&service, &loaded, conversation, &caller).await?.tokens.len();
    Ok(json_response(&json!({ "input_tokens": tokens })))
}
