//! OpenAI's `/v1/responses`: reading requests, writing responses, storing them.

mod answer;
mod items;
mod request;
pub mod response_store;

use super::json_response;
use crate::caller::Caller;
use crate::constrain::noted;
use crate::conversation_request::{StartedAnswers, ask};
use crate::generation::AnswerEvent;
use crate::refusal::Refusal;
use crate::service::Service;
use crate::streamed::{self, IN_FLIGHT};
use answer::{Building, ResponseContext};
use axum::response::Response;
use hyper::body::Bytes;
use response_store::Run;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc;

/// A comment that is sent during silence, so that proxies do not close the connection.
const KEEP_ALIVE_COMMENT: &str = ": \n\n";

/// `POST /v1/responses`.
///
/// # Errors
/// The request is refused, or the answer fails.
pub async fn answer(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let read = request::read(&service, &body, caller)?;
    let loaded = service.model(read.at, None).await?;
    let StartedAnswers { pieces, unheld, .. } = ask(&service, &loaded, read.ask).await?;
    let manner =
        ResponseContext::new(read.echoed, read.items, read.new, read.client, read.parallel);
    let run = service.kept.run(&manner.client, &manner.id);
    let mut pieces = cancellable(pieces, run);
    let mut building = Building::new(Arc::clone(&service), loaded, manner);
    if read.stream {
        let format = Box::new(move |piece| building.piece(piece));
        return Ok(noted(streamed::named_events(pieces, format, KEEP_ALIVE_COMMENT), &unheld));
    }
    while let Some(piece) = pieces.recv().await {
        if let (_, AnswerEvent::Failed(refusal)) = piece {
            return Err(refusal);
        }
        building.piece(Some(piece));
    }
    building.piece(None);
    Ok(noted(json_response(&building.document()), &unheld))
}

/// Forwards pieces until the response is cancelled. Then the rest of the answer is dropped.
fn cancellable(
    mut pieces: mpsc::Receiver<(usize, AnswerEvent)>,
    mut run: Run,
) -> mpsc::Receiver<(usize, AnswerEvent)> {
    let (to, taken) = mpsc::channel(IN_FLIGHT);
    tokio::spawn(async move {
        loop {
            let piece = tokio::select! {
                piece = pieces.recv() => piece,
                _ = run.cancelled.wait_for(|cancelled| *cancelled) => return,
                // The client has disconnected.
                () = to.closed() => return,
            };
            let Some(piece) = piece else { return };
            if to.send(piece).await.is_err() {
                return;
            }
        }
    });
    taken
}

/// `GET /v1/responses/{id}`.
///
/// # Errors
/// No response with this id is stored for this client.
pub fn get(service: &Service, caller: &Caller, id: &str) -> Result<Response, Refusal> {
    let entry = service.kept.get(&caller.client, id).ok_or_else(|| unknown(id))?;
    Ok(json_response(&entry.document))
}

/// `DELETE /v1/responses/{id}`.
///
/// # Errors
/// No response with this id is stored for this client.
pub fn delete(service: &Service, caller: &Caller, id: &str) -> Result<Response, Refusal> {
    match service.kept.delete(&caller.client, id) {
        true => Ok(json_response(&json!({ "id": id, "object": "response", "deleted": true }))),
        false => Err(unknown(id)),
    }
}

/// `POST /v1/responses/{id}/cancel`: cancels a running response. A finished response is not
/// changed.
///
/// # Errors
/// This client has no response with this id.
pub fn cancel(service: &Service, caller: &Caller, id: &str) -> Result<Response, Refusal> {
    if service.kept.cancel(&caller.client, id) {
        let document = json!({ "id": id, "object": "response", "status": "cancelled" });
        return Ok(json_response(&document));
    }
    get(service, caller, id)
}

/// `GET /v1/responses/{id}/input_items`.
///
/// # Errors
/// No response with this id is stored for this client.
pub fn input_items(service: &Service, caller: &Caller, id: &str) -> Result<Response, Refusal> {
    let entry = service.kept.get(&caller.client, id).ok_or_else(|| unknown(id))?;
    let output = entry.document.get("output").and_then(Value::as_array).map_or(0, Vec::len);
    let input = entry.items.len().saturating_sub(output);
    let data: Vec<&Value> = entry.items.iter().take(input).map(Arc::as_ref).collect();
    Ok(json_response(&json!({ "object": "list", "data": data, "has_more": false })))
}

fn unknown(id: &str) -> Refusal {
    let id: String = id.chars().take(100).collect();
    let why = format!(
        "response '{}' is not stored: \
                       responses are stored for an hour",
        id.escape_debug()
    );
    Refusal::unknown(why)
}
