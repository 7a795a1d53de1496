//! A worker of a fleet: `POST /v1/inference`, and the announcements to the hive. Both are kjit's own to
//! define; docs/serve.md has them.

use crate::caller::Caller;
use crate::fields::Fields;
use crate::generation::{Ended, Piece, Reading, Wanted, collect, start};
use crate::openai::completions::Text;
use crate::openai::{END, event, json_response, place};
use crate::options::Worker;
use crate::refusal::{Dialect, Refusal};
use crate::sampling;
use crate::service::Service;
use crate::streamed::{self, IN_FLIGHT};
use axum::response::Response;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Uri, header};
use hyper_util::rt::TokioIo;
use kjit_model::chat::Part;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// Between two announcements.
const EVERY: Duration = Duration::from_secs(10);
/// For one of them.
const PATIENCE: Duration = Duration::from_secs(5);
/// Tokens of an answer where the request does not say.
const USUAL_TOKENS: usize = 128;

/// `POST /v1/inference {"prompt": …, "max_tokens": …}`: text goes on.
pub async fn inference(service: Arc<Service>, body: Bytes, caller: Caller) -> Result<Response, Refusal> {
    let mut f = Fields::parse(&body)?;
    let (at, caller) = (place(&mut f, &service)?, caller.salted(&mut f)?);
    let text = f.needed_text("prompt")?;
    let stream = f.flag("stream")?.unwrap_or(false);
    let max_tokens = f.count("max_tokens", 1..=i64::MAX)?.unwrap_or(USUAL_TOKENS);
    let sampling = sampling::openai(&mut f)?;
    let stop = sampling::stop(&mut f)?;
    f.done()?;
    let loaded = service.model(at, None).await?;
    sampling::known(&sampling, loaded.tokenizer.n_vocab())?;
    let tokens = {
        let of = loaded.clone();
        service.prepare(&loaded, &caller, move |cancel| Text::Words(text).tokens(&of, cancel)).await?
    };
    let (to, pieces) = mpsc::channel(IN_FLIGHT);
    let wanted = Wanted {
        tokens,
        max_tokens: Some(max_tokens),
        sampling,
        stop,
        ignore_eos: false,
        logprobs: None,
        constraint: None,
        reading: Reading::Plain,
        caller,
        lookup: loaded.lookup,
    };
    start(&loaded, wanted, 0, to)?;
    let reason = |ended: Ended| if ended == Ended::Length { "length" } else { "stop" };
    if !stream {
        let whole = collect(pieces, 1).await?.pop().unwrap_or_default();
        let Some(done) = whole.done else { return Err(Refusal::internal("the answer's end was lost")) };
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
            Some((_, Piece::Said { parts, .. })) => {
                let text = |part| if let Part::Content(text) = part { text } else { String::new() };
                event(&json!({ "text": parts.into_iter().map(text).collect::<String>() }))
            }
            Some((_, Piece::Done(done))) => {
                ended = true;
                event(&json!({
                    "done": true, "prompt_tokens": done.prompt_tokens, "generated_tokens": done.generated_tokens,
                    "stop_reason": reason(done.ended), "first_token_s": done.first_token.as_secs_f64(),
                    "total_s": done.total.as_secs_f64()
                })) + END
            }
            Some((_, Piece::Failed(refusal))) => {
                ended = true;
                event(&refusal.json(Dialect::OpenAi))
            }
            None if ended => String::new(),
            None => event(&Refusal::internal("the answer's end was lost").json(Dialect::OpenAi)),
        }),
    ))
}

/// Whether a hive can be announced to at this address.
///
/// # Errors
/// It cannot; in words.
pub fn check_hive(url: &str) -> Result<(), String> {
    let uri: Uri = url.parse().map_err(|error| format!("--hive-url {url}: {error}"))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http"), Some(_)) => Ok(()),
        (Some("https"), _) => {
            Err(format!("--hive-url {url}: announcements are sent by plain http, to a proxy if need be"))
        }
        _ => Err(format!("--hive-url {url}: give http://HOST:PORT")),
    }
}

/// Announces the worker again and again. It goes on serving whether anybody answers or not.
pub async fn announce(service: Arc<Service>, worker: Worker, port: u16) {
    let Some(hive) = worker.hive.clone() else { return };
    let mut heard = true;
    loop {
        let card = {
            let (of, worker) = (Arc::clone(&service), worker.clone());
            service.work(move || card(&of, &worker, port)).await
        };
        let Ok(card) = card else { return };
        let sent = tokio::time::timeout(PATIENCE, post(&hive, &worker.id, card.to_string())).await;
        let problem = match sent {
            Ok(Ok(())) => None,
            Ok(Err(why)) => Some(why),
            Err(_) => Some(format!("no answer within {} s", PATIENCE.as_secs())),
        };
        // Once when it goes, once when it is back.
        match (&problem, heard) {
            (Some(why), true) => {
                (service.options.say)(&format!("the hive at {hive} does not hear of this worker: {why}"))
            }
            (None, false) => (service.options.say)(&format!("the hive at {hive} hears of this worker again")),
            _ => {}
        }
        heard = problem.is_none();
        tokio::time::sleep(EVERY).await;
    }
}

/// What the hive is told.
fn card(service: &Service, worker: &Worker, port: u16) -> Value {
    let mut card = json!({
        "id": worker.id, "model_ref": worker.model_ref, "port": port, "ready": false, "running": 0, "queued": 0
    });
    let seen = service.meant(None).ok().map(|(_, seen)| seen);
    let (Some(seen), Some(map)) = (seen, card.as_object_mut()) else { return card };
    // One that nobody asked for long is loaded again by who asks.
    map.insert("ready".to_owned(), (seen.card.is_some() && !service.stopping()).into());
    let Some(loaded) = seen.loaded else { return card };
    let status = loaded.scheduler.status();
    if status.state == kjit_model::serve::State::Short {
        map.insert("ready".to_owned(), false.into());
    }
    let device = &loaded.device;
    map.insert("running".to_owned(), status.running.into());
    map.insert("queued".to_owned(), status.waiting.into());
    map.insert("slots".to_owned(), status.slots.into());
    map.insert("device".to_owned(), json!({ "label": device.label, "name": device.name, "arch": device.arch }));
    if let Some((used, total)) = loaded.memory() {
        map.insert("memory".to_owned(), json!({ "used": used, "total": total }));
    }
    card
}

async fn post(hive: &str, id: &str, body: String) -> Result<(), String> {
    let uri: Uri = hive.parse().map_err(|error| format!("{error}"))?;
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let line = |error: &dyn std::fmt::Display| error.to_string();
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await.map_err(|e| line(&e))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| line(&e))?;
    let connection = tokio::spawn(connection);
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let request = Request::post(format!("{}/v1/workers/{id}", uri.path().trim_end_matches('/')))
        .header(header::HOST, authority)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONNECTION, "close")
        .body(Full::new(Bytes::from(body)))
        .map_err(|e| line(&e))?;
    let response = sender.send_request(request).await.map_err(|e| line(&e));
    connection.abort();
    let status = response?.status();
    if status.is_success() { Ok(()) } else { Err(format!("it answers {status}")) }
}
