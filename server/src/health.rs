//! Health checks (alive, ready) and draining. A draining server still answers, but reports that
//! routers should send no new requests.

use crate::models::ModelStatus;
use crate::openai::json_response;
use crate::service::Service;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use kjit_model::serve::State as LoadState;
use serde_json::{Value, json};
use std::sync::Arc;

type AppState = State<Arc<Service>>;

/// `/health`, `/readyz`: 200 if routers should send new requests. Requests for unloaded models are
/// accepted: they load the model.
pub async fn ready(State(service): AppState) -> Response {
    let bad = states(&service).into_iter().find(|word| *word != "ok");
    let bad = match bad {
        None if service.draining() => Some("draining"),
        bad => bad,
    };
    said(bad)
}

/// `/livez`: 503 if only a restart can help.
pub async fn live(State(service): AppState) -> Response {
    said(states(&service).into_iter().find(|word| *word == "ended"))
}

fn said(bad: Option<&str>) -> Response {
    let mut response = json_response(&json!({ "status": bad.unwrap_or("ok") }));
    if bad.is_some() {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

/// The state of each model, as a word.
fn states(service: &Service) -> Vec<&'static str> {
    let several = service.all().count() > 1;
    let word = |(at, seen): (usize, ModelStatus)| match seen
        .loaded
        .map(|loaded| loaded.scheduler.status().state)
    {
        // Startup: nothing can be answered before the first model is loaded.
        None if at == 0 && seen.card.is_none() => "loading",
        _ if service.stopping() => "stopping",
        None | Some(LoadState::Ready) => "ok",
        Some(LoadState::Short) => "short of memory",
        Some(LoadState::Reopening) => "reopening",
        // The next request loads it again; other models may be loaded.
        Some(LoadState::Ended) if several => "ok",
        Some(LoadState::Stopping) => "stopping",
        Some(LoadState::Ended) => "ended",
    };
    service.all().map(|(_, seen)| seen).enumerate().map(word).collect()
}

/// `POST /drain`: the server is not ready from now on. It still answers requests until a signal
/// stops it.
pub async fn drain(State(service): AppState) -> Response {
    service.drain();
    let statuses = service.all().filter_map(|(_, seen)| Some(seen.loaded?.scheduler.status()));
    let (running, waiting) =
        statuses.fold((0, 0), |(r, w), status| (r + status.running, w + status.waiting));
    let document: Value = json!({
        "status": "draining", "running": running, "waiting": waiting + service.preparation.held()
    });
    json_response(&document)
}
