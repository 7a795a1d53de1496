//! llama.cpp's dialect, in addition to OpenAI's: tokens, templates, slots, `/completion`.

pub mod completion;
pub mod infill;
pub mod tokens;

use crate::adapters::Adapters;
use crate::fields::Fields;
use crate::options::{Served, ServedAdapter};
use crate::refusal::Refusal;
use crate::service::Service;
use kjit_model::session::ScaledAdapter;
use serde_json::{Value, json};

/// `GET /props`.
///
/// # Errors
/// The first model is not loaded.
pub fn props(service: &Service) -> Result<Value, Refusal> {
    let (served, seen) = service.meant(None)?;
    let card = seen.card.ok_or_else(Refusal::loading)?;
    let vision = seen.loaded.as_ref().is_some_and(|loaded| loaded.images.is_some());
    let slots = seen.loaded.map_or(served.open.sequences, |l| l.scheduler.status().slots);
    Ok(json!({
        "model_alias": served.name(), "total_slots": slots,
        "default_generation_settings": {
            "n_ctx": card.context,
            "params": { "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05 }
        },
        "modalities": { "vision": vision, "audio": false },
        "build_info": concat!("kjit ", env!("CARGO_PKG_VERSION"))
    }))
}

/// `GET /lora-adapters`: the adapters of the first model, with the scale of requests that name
/// none.
pub fn adapters(service: &Service) -> Value {
    let Some(served) = service.options.models.first() else { return json!([]) };
    if let Some(store) = &served.store {
        let one =
            |(id, one): (usize, ScaledAdapter)| json!({ "id": id, "path": one.name, "scale": 0.0 });
        return store.all().into_iter().map(one).collect();
    }
    let all = &served.adapters;
    let one =
        |(id, one): (usize, &ServedAdapter)| json!({ "id": id, "path": one.name, "scale": 0.0 });
    Value::from(all.iter().enumerate().map(one).collect::<Vec<_>>())
}

/// Takes `lora`: `[{"id": N, "scale": X}, …]`. Adapters that are not listed have the scale 0.
pub fn adapters_of(f: &mut Fields, served: &Served) -> Result<Option<Adapters>, Refusal> {
    let all = match f.take("lora") {
        None => return Ok(None),
        Some(Value::Array(all)) => all,
        Some(_) => return Err(f.wrong("lora", "give an array of {\"id\": N, \"scale\": X}")),
    };
    let count = served.adapters.len();
    if count == 0 && served.store.is_none() {
        return Err(f.wrong("lora", "the model was started without --lora"));
    }
    let (mut scales, mut loaded) = (vec![0.0; count], vec![]);
    for one in all {
        let mut one = Fields::of(one, "lora")?;
        let id = one.count("id", 0..=i64::MAX)?;
        let scale = one.number("scale", -1e6..=1e6)?.unwrap_or(1.0);
        one.done()?;
        if let Some(store) = &served.store {
            match id.and_then(|id| store.get(id)) {
                Some(one) => loaded.push(ScaledAdapter { scale, ..one }),
                None => return Err(f.wrong("lora", "give an id of GET /lora-adapters")),
            }
            continue;
        }
        match id.and_then(|id| scales.get_mut(id)) {
            Some(place) => *place = scale,
            None => {
                let last = count - 1;
                return Err(f.wrong("lora", format_args!("give an id from 0 to {last}")));
            }
        }
    }
    Ok(Some(match served.store {
        Some(_) => Adapters::Loaded(loaded),
        None => Adapters::Scales(scales),
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
