//! LM Studio's list of models, `GET /api/v0/models`.

use crate::models::ModelStatus;
use crate::refusal::Refusal;
use crate::service::Service;
use serde_json::{Value, json};

/// The list of all models.
pub fn models(service: &Service) -> Value {
    let of = |(served, seen): (&crate::options::Served, ModelStatus)| -> Vec<Value> {
        served.names.iter().map(|name| card(name, &seen)).collect()
    };
    json!({ "object": "list", "data": service.all().flat_map(of).collect::<Vec<_>>() })
}

/// The entry of one model.
///
/// # Errors
/// No model has this name.
pub fn model(service: &Service, name: &str) -> Result<Value, Refusal> {
    service.meant(Some(name)).map(|(_, seen)| card(name, &seen))
}

fn card(name: &str, seen: &ModelStatus) -> Value {
    let state = if seen.loaded.is_some() { "loaded" } else { "not-loaded" };
    let mut all = json!({
        "id": name, "object": "model", "publisher": "kjit", "compatibility_type": "gguf",
        "state": state
    });
    if let (Some(card), Some(map)) = (&seen.card, all.as_object_mut()) {
        let kind = if card.encoder { "embeddings" } else { "llm" };
        map.insert("type".to_owned(), kind.into());
        map.insert("arch".to_owned(), card.arch.as_str().into());
        map.insert("quantization".to_owned(), card.mix.as_str().into());
        map.insert("max_context_length".to_owned(), card.context.into());
        if seen.loaded.is_some() {
            map.insert("loaded_context_length".to_owned(), card.context.into());
        }
    }
    all
}
