//! `POST /v1/inference`: the route that a fleet uses for requests to its workers. docs/serve.md
//! defines it.

use crate::caller::Caller;
use crate::fields::Fields;
use crate::generation::{
    AnswerEvent, FinishReason, GenerationRequest, OutputParsing, collect, start,
};
use crate::openai::completions::Text;
use crate::openai::{END, event, json_response, place};
use crate::refusal::{Dialect, Refusal};
use crate::sampling;
use crate::service::Service;
use crate::streamed::{self, IN_FLIGHT};
use axum::response::Response;
use hyper::body::Bytes;
use kjit_model::cancel::Cancel;
use kjit_model::chat::Part;
use serde_json::json;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Maximum tokens of an answer if the request has no limit.
const USUAL_TOKENS: usize = 128;

/// `POST /v1/inference {"prompt": …, "max_tokens": …}`: continues a text.
pub async fn inference(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let mut f = Fields::parse(&body)?;
    let (at, caller) = (place(&mut f, &service)?, caller.of_request(&mut f)?);
    let text = f.needed_text("prompt")?;
    let stream = f.flag("stream")?.unwrap_or(false);
    let max_tokens = f.count("max_tokens", 1..=i64::MAX)?.unwrap_or(USUAL_TOKENS);
    let sampling = sampling::openai(&mut f)?;
    let stop = sampling::stop(&mut f)?;
    f.done()?;
    let loaded = service.model(at, None).await?;
    sampling::known(&sampling, loaded.tokenizer.n_vocab())?;
    let of = loaded.clone();
    let prepare =
        move |cancel: &Cancel| Ok((Text::Words(text).tokens(&of, cancel)?, sampling.resolved(&of)));
    let (tokens, sampling) = service.prepare(&loaded, &caller, prepare).await?;
    let (to, pieces) = mpsc::channel(IN_FLIGHT);
    let wanted = GenerationRequest {
        max_tokens: Some(max_tokens),
        sampling,
        stop,
        lookup: loaded.lookup,
        ..GenerationRequest::of(tokens, OutputParsing::Plain, caller)
    };
    start(&loaded, wanted, 0, to)?;
    let reason =
        |ended: FinishReason| if ended == FinishReason::Length { "length" } else { "stop" };
    if !stream {
        let whole = collect(pieces, 1).await?.pop().unwrap_or_default();
        let Some(done) = whole.done else {
            return Err(Refusal::internal("the stream ended before the answer was complete"));
        };
        return Ok(json_response(&json!({
            "text": whole.content, "prompt_tokens": done.prompt_tokens, "generated_tokens": done.generated_tokens,
            "stop_reason": reason(done.ended), "first_token_s": done.first_token.as_secs_f64(),
            "total_s": done.total.as_secs_f64()
        })));
    }
    let mut ended = false;
    Ok(streamed::events(
        pieces,
        Box::new(move |piece| match piece {
            Some((_, AnswerEvent::Started { .. } | AnswerEvent::Prompt(_))) => String::new(),
            Some((_, AnswerEvent::Said { parts, .. })) => {
                let text = |part| if let Part::Content(text) = part { text } else { String::new() };
                event(&json!({ "text": parts.into_iter().map(text).collect::<String>() }))
            }
            Some((_, AnswerEvent::Done(done))) => {
                ended = true;
                event(&json!({
                    "done": true, "prompt_tokens": done.prompt_tokens, "generated_tokens": done.generated_tokens,
                    "stop_reason": reason(done.ended), "first_token_s": done.first_token.as_secs_f64(),
                    "total_s": done.total.as_secs_f64()
                })) + END
            }
            Some((_, AnswerEvent::Failed(refusal))) => {
                ended = true;
                event(&refusal.json(Dialect::OpenAi))
            }
            None if ended => String::new(),
            None => event(
                &Refusal::internal("the stream ended before the answer was complete")
                    .json(Dialect::OpenAi),
            ),
        }),
    ))
}
