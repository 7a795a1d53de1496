//! Whether the server lives, whether it is ready, and draining: it answers on, but asks routers to
//! send no more.

use crate::models::Seen;
use crate::openai::json_response;
use crate::service::Service;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use kjit_model::serve::State as Is;
use serde_json::{Value, json};
use std::sync::Arc;

type Shared = State<Arc<Service>>;

/// `/health`, `/readyz`: 200 if new requests should be sent here. Requests for unloaded models are
/// answered, too: they load the model.
pub async fn ready(State(service): Shared) -> Response {
    let bad = states(&service).into_iter().find(|word| *word != "ok");
    let bad = match bad {
        None if service.draining() => Some("draining"),
        bad => bad,
    };
    said(bad)
}

/// `/livez`: 503 if only a restart helps.
pub async fn live(State(service): Shared) -> Response {
    said(states(&service).into_iter().find(|word| *word == "ended"))
}

fn said(bad: Option<&str>) -> Response {
    let mut response = json_response(&json!({ "status": bad.unwrap_or("ok") }));
    if bad.is_some() {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

/// A word for each model.
fn states(service: &Service) -> Vec<&'static str> {
    let several = service.all().count() > 1;
    let word =
        |(at, seen): (usize, Seen)| match seen.loaded.map(|loaded| loaded.scheduler.status().state)
        {
            // Startup: nothing can be answered before the first model is loaded.
            None if at == 0 && seen.card.is_none() => "loading",
            _ if service.stopping() => "stopping",
            None | Some(Is::Ready) => "ok",
            Some(Is::Short) => "short of memory",
            Some(Is::Reopening) => "reopening",
            // The next request loads it again; other models may be loaded meanwhile.
            Some(Is::Ended) if several => "ok",
            Some(Is::Stopping) => "stopping",
            Some(Is::Ended) => "ended",
        };
    service.all().map(|(_, seen)| seen).enumerate().map(word).collect()
}

/// `POST /drain`: not ready from now on. Requests are still answered, until a signal comes.
pub async fn drain(State(service): Shared) -> Response {
    service.drain();
    let statuses = service.all().filter_map(|(_, seen)| Some(seen.loaded?.scheduler.status()));
    let (running, waiting) =
        statuses.fold((0, 0), |(r, w), status| (r + status.running, w + status.waiting));
    let document: Value = json!({
        "status": "draining", "running": running, "waiting": waiting + service.preparation.held()
    });
    json_response(&document)
}
