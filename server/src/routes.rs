//! The routes, and the checks that each request passes before its route.

use crate::caller::Caller;
use crate::fields::{Fields, let_pass};
use crate::keys::Key;
use crate::openai::{self, json_response, random_id};
use crate::refusal::{Dialect, Refusal};
use crate::service::Service;
use crate::traces::RequestTrace;
use crate::{
    adapters, anthropic, fleet, head, health, llama, metrics, ollama, page, probes, ranking,
    sglang, status,
};
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use hyper::body::Bytes;
use serde_json::{Value, json};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

type AppState = State<Arc<Service>>;
/// The caller: the guard has checked it.
type CallerExtension = Extension<Caller>;

/// UTF-8's byte order mark.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The router.
pub fn routes(service: &Arc<Service>) -> Router {
    Router::new()
        .route("/", get(page::page))
        .route("/page/{*name}", get(page::file))
        .route("/health", get(health::ready))
        .route("/metrics", get(metrics_text))
        .route("/status", get(status_document))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .route("/v1/embeddings", post(embeddings))
        .route("/v1/inference", post(inference))
        // Routes without `/v1`, as in llama.cpp.
        .route("/models", get(models))
        .route("/chat/completions", post(chat))
        .route("/completions", post(completions))
        .route("/embeddings", post(embeddings))
        .route("/responses", post(responses))
        .route("/messages", post(messages))
        .route("/v1/health", get(health::ready))
        .route("/readyz", get(health::ready))
        .route("/livez", get(health::live))
        .route("/drain", post(health::drain))
        .route("/ping", get(health::ready).post(health::ready))
        .route("/generate", post(generate))
        .route("/health_generate", get(health_generate))
        .route("/version", get(async || json_response(&probes::version())))
        .route("/get_model_info", get(model_info))
        .route("/get_server_info", get(server_info))
        .route("/props", get(props))
        .route("/slots", get(slots))
        .route("/slots/{id}", post(slot_action))
        .route("/tokenize", post(tokenize))
        .route("/tokenizer_info", get(tokenizer_info))
        .route("/detokenize", post(detokenize))
        .route("/apply-template", post(apply_template))
        .route("/completion", post(completion))
        .route("/lora-adapters", get(lora_adapters))
        .route("/v1/load_lora_adapter", post(load_lora_adapter))
        .route("/v1/unload_lora_adapter", post(unload_lora_adapter))
        .route("/infill", post(infill))
        .route("/v1/rerank", post(rerank))
        .route("/v2/rerank", post(rerank))
        .route("/rerank", post(rerank))
        .route("/v1/score", post(score))
        .route("/score", post(score))
        .route("/api/v0/models", get(lm_studio))
        .route("/api/v0/models/{*name}", get(lm_studio_model))
        .route("/api/embeddings", post(ollama_embeddings))
        .route("/v1/responses", post(responses))
        .route("/v1/responses/{id}", get(response).delete(delete_response))
        .route("/v1/responses/{id}/cancel", post(cancel_response))
        .route("/v1/responses/{id}/input_items", get(response_items))
        .route("/v1/messages", post(messages))
        .route("/v1/messages/count_tokens", post(count_tokens))
        .route("/api/version", get(async || json_response(&json!({ "version": ollama::VERSION }))))
        .route("/api/tags", get(tags))
        .route("/api/ps", get(ps))
        .route("/api/show", post(show))
        .route("/api/chat", post(ollama_chat))
        .route("/api/generate", post(ollama_generate))
        .route("/api/embed", post(ollama_embed))
        .fallback(no_path)
        .method_not_allowed_fallback(no_method)
        // These layers run after route matching, so that answers can be counted by route.
        .route_layer(axum::middleware::from_fn(panics))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(service), guard))
        .with_state(Arc::clone(service))
}

/// Checks key and origin, and counts the answer.
async fn guard(State(service): AppState, mut request: Request, next: Next) -> Response {
    let (path, method) = (request.uri().path().to_owned(), request.method().clone());
    let id = request_id(request.headers());
    let origin = service.options.origins.allowed(request.headers());
    let traced = service.tracer.as_ref().filter(|_| method == Method::POST);
    let trace = traced.and_then(|of| RequestTrace::begin(of.spans(), request.headers(), &id));
    let mut response = match admit(&service, &request) {
        Err(refusal) => refusal.response(Dialect::of(&path)),
        Ok(_) if method == Method::OPTIONS && origin.is_some() => preflight(request.headers()),
        Ok(key) => {
            let adapters = key.and_then(|key| service.options.keys.adapters(key));
            let caller = Caller::of(key, request.headers(), service.options.share_prefixes);
            let loads_adapters = match key {
                Some(key) => service.options.keys.loads_adapters(key),
                None => service.options.host.is_loopback(),
            };
            let weight = key.map_or(1, |key| service.options.keys.weight(key));
            let trace = trace.clone();
            let caller = Caller { adapters, loads_adapters, weight, trace, ..caller };
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
    };
    service.metrics.answered(route_name(&path), response.status().as_u16());
    if let Some(trace) = trace {
        trace.end(method.as_str(), route_name(&path), response.status().as_u16());
    }
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert("x-request-id", id);
    }
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(
            header::ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static("x-request-id, retry-after, warning, x-kjit-not-held"),
        );
        headers.insert(
            header::VARY,
            HeaderValue::from_static("origin, access-control-request-headers"),
        );
    }
    response
}

fn admit(service: &Service, request: &Request) -> Result<Option<Key>, Refusal> {
    head::check(request)?;
    let (method, path, headers) = (request.method(), request.uri().path(), request.headers());
    service.options.origins.check(head::host(request.uri(), headers), headers)?;
    // The page holds no data, and health checks need no key.
    let open = matches!(path, "/" | "/health" | "/v1/health" | "/ping" | "/readyz" | "/livez")
        || path.starts_with("/page/")
        || method == Method::OPTIONS;
    let key = if open { None } else { service.options.keys.check(headers)? };
    if service.stopping() && method == Method::POST {
        return Err(Refusal::unavailable(30, "the server is stopping"));
    }
    Ok(key)
}

/// The route name for counters.
fn route_name(path: &str) -> &'static str {
    const NAMED: [&str; 24] = [
        "/",
        "/health",
        "/metrics",
        "/status",
        "/v1/models",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/inference",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/completion",
        "/infill",
        "/generate",
        "/v1/rerank",
        "/v1/score",
        "/drain",
        "/api/version",
        "/api/tags",
        "/api/chat",
        "/api/generate",
        "/api/embed",
        "/api/show",
    ];
    let versioned = |name: &str| name.strip_prefix("/v1") == Some(path);
    let page = |name: &str| name == "/" && path.starts_with("/page/");
    let is = |name: &&&str| **name == path || versioned(name) || page(name);
    NAMED.iter().find(is).copied().unwrap_or("other")
}

/// The client's request id if it is safe in a log; if not, a new id.
fn request_id(headers: &HeaderMap) -> String {
    let good = |id: &&str| {
        (1..=128).contains(&id.len())
            && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
    };
    let given = headers.get("x-request-id").and_then(|id| id.to_str().ok()).filter(good);
    given.map_or_else(|| random_id("req"), str::to_owned)
}

/// Headers that a page of an accepted origin may send: all that it requests. Client libraries
/// identify themselves with various headers that change with each version. Only `authorization` has
/// a meaning here.
fn preflight(headers: &HeaderMap) -> Response {
    let usual = HeaderValue::from_static(CLIENTS_HEADERS);
    let asked = headers
        .get(header::ACCESS_CONTROL_REQUEST_HEADERS)
        .filter(|asked| names_headers(asked))
        .cloned();
    let allowed = [
        (
            header::ACCESS_CONTROL_ALLOW_METHODS,
            HeaderValue::from_static("GET, POST, DELETE, OPTIONS"),
        ),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, asked.unwrap_or(usual)),
        (header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600")),
    ];
    (StatusCode::NO_CONTENT, allowed).into_response()
}

/// Headers that are allowed if the browser does not name any.
const CLIENTS_HEADERS: &str = "authorization, content-type, \
    accept, x-request-id, x-api-key, api-key, openai-beta, openai-organization, \
    openai-project, anthropic-beta, anthropic-version, anthropic-dangerous-direct-browser-access, \
    http-referer, x-title, traceparent, tracestate, x-stainless-arch, \
    x-stainless-async, x-stainless-custom-poll-interval, x-stainless-helper-method, \
    x-stainless-lang, x-stainless-os, x-stainless-package-version, x-stainless-poll-helper, \
    x-stainless-retry-count, x-stainless-runtime, x-stainless-runtime-version, x-stainless-timeout";

/// Whether the text is a list of header names and nothing else.
fn names_headers(value: &HeaderValue) -> bool {
    let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
    let name = |name: &[u8]| !name.is_empty() && name.iter().all(token);
    value.as_bytes().split(|byte| *byte == b',').all(|part| name(part.trim_ascii()))
}

/// A panic in a request becomes a 500 response for that request.
async fn panics(request: Request, next: Next) -> Response {
    let dialect = Dialect::of(request.uri().path());
    let mut answer = Box::pin(next.run(request));
    let answered =
        poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(context))) {
            Ok(poll) => poll.map(Some),
            Err(_) => std::task::Poll::Ready(None),
        });
    match answered.await {
        Some(response) => response,
        None => Refusal::internal("an internal fault").response(dialect),
    }
}

/// Reads the body and answers in the dialect of the path.
async fn answered<F>(
    service: Arc<Service>,
    mut request: Request,
    answer: impl FnOnce(Arc<Service>, Bytes, Caller) -> F,
) -> Response
where
    F: Future<Output = Result<Response, Refusal>>,
{
    let dialect = Dialect::of(request.uri().path());
    let caller: Caller = request.extensions_mut().remove().unwrap_or_default();
    let strict = service.options.strict_fields;
    let answer = async {
        head::plain_body(request.headers())?;
        let mut bytes = service.bodies.read(request.into_body(), &service.options.limits).await?;
        if bytes.starts_with(BYTE_ORDER_MARK) {
            // The byte order mark has no meaning in UTF-8, and some tools write it.
            bytes = bytes.slice(BYTE_ORDER_MARK.len()..);
        }
        let caller = Caller { bytes: bytes.len(), ..caller };
        answer(service, bytes, caller).await
    };
    let (answer, unknown) = match strict {
        true => (answer.await, vec![]),
        false => let_pass(answer).await,
    };
    let mut response = answer.unwrap_or_else(|refusal| refusal.response(dialect));
    if !unknown.is_empty() {
        let names: Vec<String> =
            unknown.iter().map(|name| name.escape_default().to_string()).collect();
        let names = names.join("', '");
        let warning = format!("299 kjit \"not known here, without effect: '{names}'\"");
        if let Ok(warning) = HeaderValue::from_str(&warning) {
            response.headers_mut().insert(header::WARNING, warning);
        }
    }
    response
}

async fn chat(State(service): AppState, request: Request) -> Response {
    answered(service, request, openai::chat::answer).await
}

async fn completions(State(service): AppState, request: Request) -> Response {
    answered(service, request, openai::completions::answer).await
}

async fn embeddings(State(service): AppState, request: Request) -> Response {
    answered(service, request, openai::embeddings::answer).await
}

async fn inference(State(service): AppState, request: Request) -> Response {
    answered(service, request, fleet::inference).await
}

async fn generate(State(service): AppState, request: Request) -> Response {
    answered(service, request, sglang::generate).await
}

async fn tokenizer_info(State(service): AppState) -> Response {
    said(llama::tokens::info(&service).map(|document| json_response(&document)))
}

async fn health_generate(State(service): AppState, of: CallerExtension) -> Response {
    said(probes::generate(&service, of.0).await.map(|document| json_response(&document)))
}

async fn model_info(State(service): AppState) -> Response {
    said(probes::model_info(&service).map(|document| json_response(&document)))
}

async fn server_info(State(service): AppState) -> Response {
    said(probes::server_info(&service).map(|document| json_response(&document)))
}

async fn props(State(service): AppState) -> Response {
    said(llama::props(&service).map(|document| json_response(&document)))
}

async fn slots(State(service): AppState) -> Response {
    json_response(&llama::slots(&service))
}

async fn slot_action() -> Response {
    Refusal::bad(
        "slots are not saved, restored or erased by requests: \
         with --slot-save-path the server saves and restores conversations itself",
    )
    .response(Dialect::OpenAi)
}

async fn tokenize(State(service): AppState, request: Request) -> Response {
    answered(service, request, llama::tokens::tokenize).await
}

async fn detokenize(State(service): AppState, request: Request) -> Response {
    answered(service, request, llama::tokens::detokenize).await
}

async fn apply_template(State(service): AppState, request: Request) -> Response {
    answered(service, request, llama::tokens::apply_template).await
}

async fn completion(State(service): AppState, request: Request) -> Response {
    answered(service, request, llama::completion::answer).await
}

async fn infill(State(service): AppState, request: Request) -> Response {
    answered(service, request, llama::infill::answer).await
}

async fn rerank(State(service): AppState, request: Request) -> Response {
    answered(service, request, ranking::rerank).await
}

async fn score(State(service): AppState, request: Request) -> Response {
    answered(service, request, ranking::score).await
}

async fn lm_studio(State(service): AppState) -> Response {
    json_response(&openai::lm_studio::models(&service))
}

async fn lm_studio_model(State(service): AppState, Path(name): Path<String>) -> Response {
    said(openai::lm_studio::model(&service, &name).map(|document| json_response(&document)))
}

async fn ollama_embeddings(State(service): AppState, request: Request) -> Response {
    answered(service, request, openai::embeddings::ollama_one).await
}

async fn responses(State(service): AppState, request: Request) -> Response {
    answered(service, request, openai::responses::answer).await
}

async fn response(
    State(service): AppState,
    Path(id): Path<String>,
    of: CallerExtension,
) -> Response {
    said(openai::responses::get(&service, &of.0, &id))
}

async fn delete_response(
    State(service): AppState,
    Path(id): Path<String>,
    of: CallerExtension,
) -> Response {
    said(openai::responses::delete(&service, &of.0, &id))
}

async fn cancel_response(
    State(service): AppState,
    Path(id): Path<String>,
    of: CallerExtension,
) -> Response {
    said(openai::responses::cancel(&service, &of.0, &id))
}

async fn response_items(
    State(service): AppState,
    Path(id): Path<String>,
    of: CallerExtension,
) -> Response {
    said(openai::responses::input_items(&service, &of.0, &id))
}

fn said(answer: Result<Response, Refusal>) -> Response {
    answer.unwrap_or_else(|refusal| refusal.response(Dialect::OpenAi))
}

async fn messages(State(service): AppState, request: Request) -> Response {
    answered(service, request, anthropic::messages).await
}

async fn count_tokens(State(service): AppState, request: Request) -> Response {
    answered(service, request, anthropic::count_tokens).await
}

async fn ollama_chat(State(service): AppState, request: Request) -> Response {
    answered(service, request, ollama::request::chat).await
}

async fn ollama_generate(State(service): AppState, request: Request) -> Response {
    answered(service, request, ollama::request::generate).await
}

async fn ollama_embed(State(service): AppState, request: Request) -> Response {
    answered(service, request, openai::embeddings::ollama).await
}

async fn show(State(service): AppState, request: Request) -> Response {
    let answer = async |service: Arc<Service>, body: Bytes, _: Caller| {
        let mut asked = Fields::parse(&body)?;
        let (model, old) = (asked.text("model")?, asked.text("name")?);
        let card = service.meant(model.or(old).as_deref())?.1.card.ok_or_else(Refusal::loading)?;
        Ok(json_response(&ollama::show(&card)))
    };
    answered(service, request, answer).await
}

async fn tags(State(service): AppState) -> Response {
    with_models(&service, || ollama::tags(&service, false))
}

async fn ps(State(service): AppState) -> Response {
    with_models(&service, || ollama::tags(&service, true))
}

/// Answers if the first model is loaded.
fn with_models(service: &Service, answer: impl FnOnce() -> Value) -> Response {
    match service.meant(None).ok().and_then(|(_, seen)| seen.card) {
        Some(_) => json_response(&answer()),
        None => Refusal::loading().response(Dialect::Ollama),
    }
}

async fn load_lora_adapter(State(service): AppState, request: Request) -> Response {
    answered(service, request, adapters::load).await
}

async fn unload_lora_adapter(State(service): AppState, request: Request) -> Response {
    answered(service, request, adapters::unload).await
}

async fn lora_adapters(State(service): AppState) -> Response {
    json_response(&llama::adapters(&service))
}

async fn models(State(service): AppState) -> Response {
    json_response(&openai::models(&service))
}

async fn model(State(service): AppState, Path(name): Path<String>) -> Response {
    match service.meant(Some(&name)) {
        Ok((_, seen)) => json_response(&openai::model_card(&service, &name, &seen)),
        Err(refusal) => refusal.response(Dialect::OpenAi),
    }
}

async fn metrics_text(State(service): AppState) -> Response {
    let of = Arc::clone(&service);
    match service.work(move || metrics::text(&of)).await {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
            .into_response(),
        Err(refusal) => refusal.response(Dialect::OpenAi),
    }
}

/// The status of the model in `?model=NAME`, or of the first model.
async fn status_document(State(service): AppState, RawQuery(query): RawQuery) -> Response {
    let name = query.as_deref().and_then(|query| status::parameter(query, "model"));
    let of = Arc::clone(&service);
    match service.work(move || status::document(&of, name.as_deref())).await {
        Ok(Ok(document)) => json_response(&document),
        Ok(Err(refusal)) | Err(refusal) => refusal.response(Dialect::OpenAi),
    }
}

async fn no_path(request: Request) -> Response {
    no_route(StatusCode::NOT_FOUND, &request)
}

async fn no_method(request: Request) -> Response {
    no_route(StatusCode::METHOD_NOT_ALLOWED, &request)
}

fn no_route(status: StatusCode, request: &Request) -> Response {
    let path = request.uri().path();
    Refusal::no_route(status, request.method().as_str(), path).response(Dialect::of(path))
}
