//! llama.cpp's dialect, in addition to OpenAI's: tokens, templates, slots, `/completion`.

pub mod completion;
pub mod infill;
pub mod tokens;

use crate::options::Served;
use crate::refusal::Refusal;
use crate::service::Service;
use serde_json::{Value, json};

/// `GET /props`.
///
/// # Errors
/// The first model is not loaded.
pub fn props(service: &Service) -> Result<Value, Refusal> {
    let (served, seen) = service.meant(None)?;
    let card = seen.card.ok_or_else(Refusal::loading)?;
    let slots = seen.loaded.map_or(served.open.sequences, |l| l.scheduler.status().slots);
    Ok(json!({
        "model_alias": served.name(), "total_slots": slots,
        "default_generation_settings": {
            "n_ctx": card.context,
            "params": { "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05 }
        },
        "modalities": { "vision": false, "audio": false },
        "build_info": concat!("kjit ", env!("CARGO_PKG_VERSION"))
    }))
}

/// `GET /slots`: the slots in use, without the content of their requests.
pub fn slots(service: &Service) -> Value {
    let mut all = vec![];
    for (served, loaded) in service.all().filter_map(|(served, seen)| Some((served, seen.loaded?)))
    {
        let status = loaded.scheduler.status();
        all.extend(
            (0..status.slots).map(|id| slot(served, id, id < status.running, status.context)),
        );
    }
    Value::from(all)
}

fn slot(served: &Served, id: usize, busy: bool, context: usize) -> Value {
    json!({ "id": id, "model": served.name(), "n_ctx": context, "is_processing": busy })
}
