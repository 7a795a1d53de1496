//! Routes that routers and monitors for SGLang and vLLM use.

use crate::caller::Caller;
use crate::generation::{GenerationRequest, OutputParsing, collect, start};
use crate::refusal::Refusal;
use crate::service::Service;
use crate::streamed::IN_FLIGHT;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// `GET /version`.
pub fn version() -> Value {
    json!({ "version": env!("CARGO_PKG_VERSION") })
}

/// `GET /get_model_info`.
///
/// # Errors
/// The first model is not loaded.
pub fn model_info(service: &Service) -> Result<Value, Refusal> {
    let (served, seen) = service.meant(None)?;
    let card = seen.card.ok_or_else(Refusal::loading)?;
    Ok(json!({
        "model_path": served.name(), "tokenizer_path": served.name(),
        "is_generation": !card.encoder, "preferred_sampling_params": null, "weight_version": "default"
    }))
}

/// `GET /get_server_info`.
///
/// # Errors
/// The first model is not loaded.
pub fn server_info(service: &Service) -> Result<Value, Refusal> {
    let (served, seen) = service.meant(None)?;
    let card = seen.card.ok_or_else(Refusal::loading)?;
    let (running, waiting) = seen.loaded.map_or((0, 0), |loaded| {
        let status = loaded.scheduler.status();
        (status.running, status.waiting)
    });
    Ok(json!({
        "model_path": served.name(), "served_model_name": served.name(),
        "version": env!("CARGO_PKG_VERSION"), "context_length": card.context,
        "max_running_requests": served.open.sequences, "status": "ready", "dp_size": 1, "tp_size": 1,
        "num_running_reqs": running, "num_waiting_reqs": waiting
    }))
}

/// `GET /health_generate`: one token is computed.
///
/// # Errors
/// The model computes no token.
pub async fn generate(service: &Service, caller: Caller) -> Result<Value, Refusal> {
    let loaded = service.model(0, None).await?;
    let wanted = GenerationRequest {
        max_tokens: Some(1),
        ignore_eos: true,
        ..GenerationRequest::of(
            vec![loaded.tokenizer.bos().unwrap_or(0)],
            OutputParsing::Plain,
            caller,
        )
    };
    let (to, pieces) = mpsc::channel(IN_FLIGHT);
    start(&loaded, wanted, 0, to)?;
    collect(pieces, 1).await?;
    Ok(json!({ "status": "ok" }))
}
