//! Ollama's API, which many editors use.

pub mod answer;
pub mod keep;
pub mod request;

use crate::loaded::{Loaded, ModelFacts};
use crate::models::{KeepAlive, ModelStatus};
use crate::options::Served;
use crate::service::Service;
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Version of Ollama's API. Clients check it before they use newer features.
pub const VERSION: &str = "0.9.0";

/// A time in RFC 3339. The date is computed by Howard Hinnant's `civil_from_days`
/// (<https://howardhinnant.github.io/date_algorithms.html>).
pub fn moment(since_1970: Duration) -> String {
    let seconds = since_1970.as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let mp = (5 * day_of_year + 2) / 153;
    let (day, month) =
        (day_of_year - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (h, m, s, ms) = (second / 3600, second / 60 % 60, second % 60, since_1970.subsec_millis());
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{ms:03}Z")
}

/// The current time.
pub fn now() -> String {
    moment(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// The expiry time of a model that is never unloaded.
const NEVER_EXPIRES: &str = "2318-01-01T00:00:00.000Z";

fn details(card: &ModelFacts) -> Value {
    json!({
        "format": "gguf", "family": card.arch, "families": [card.arch],
        "parameter_size": format!("{:.1}M", card.parameters as f64 / 1e6), "quantization_level": card.mix, "parent_model": ""
    })
}

/// `GET /api/tags`: all models. With `running`, `GET /api/ps`: the loaded models.
pub fn tags(service: &Service, running: bool) -> Value {
    let modified = moment(Duration::from_secs(service.started_unix));
    let one = |of: &ModelFacts, loaded: Option<(&Loaded, Option<Duration>)>, name: &String| {
        let mut card = json!({
            "name": name, "model": name, "modified_at": modified, "size": of.weights, "digest": of.digest, "details": details(of)
        });
        if let (Some(map), Some((loaded, left))) =
            (card.as_object_mut(), loaded.filter(|_| running))
        {
            // If the model is never unloaded, Ollama's year is used.
            let end = left.and_then(|left| SystemTime::now().checked_add(left));
            let end = end.and_then(|end| end.duration_since(UNIX_EPOCH).ok());
            map.insert(
                "expires_at".to_owned(),
                end.map_or_else(|| NEVER_EXPIRES.to_owned(), moment).into(),
            );
            map.insert(
                "size_vram".to_owned(),
                if loaded.device.is_gpu() { loaded.weights } else { 0 }.into(),
            );
            map.insert("context_length".to_owned(), loaded.context.into());
        }
        card
    };
    let of = |(served, seen): (&Served, ModelStatus)| -> Vec<Value> {
        let left = match seen.keep {
            None => service.options.idle_unload,
            Some(KeepAlive::For(time)) => Some(time),
            Some(KeepAlive::Always) => None,
        };
        let left = left.map(|time| time.saturating_sub(seen.used.elapsed()));
        let loaded = seen.loaded.as_deref().map(|loaded| (loaded, left));
        let shown = seen.card.as_deref().filter(|_| loaded.is_some() || !running);
        let Some(card) = shown else { return vec![] };
        served.names.iter().map(|name| one(card, loaded, name)).collect()
    };
    json!({ "models": service.all().flat_map(of).collect::<Vec<_>>() })
}

/// `POST /api/show`.
pub fn show(card: &ModelFacts) -> Value {
    let mut can = vec![];
    if card.encoder {
        can.push("embedding");
    } else {
        can.push("completion");
        if card.chats {
            can.push("tools");
        }
        if card.sees {
            can.push("vision");
        }
    }
    let arch = &card.arch;
    json!({
        "modelfile": "", "parameters": "", "template": "", "license": card.license.as_deref().unwrap_or(""), "details": details(card), "capabilities": can,
        "model_info": {
            "general.architecture": arch, "general.parameter_count": card.parameters,
            format!("{arch}.context_length"): card.context
        }
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    #[test]
    fn timestamps_match_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(super::moment(Duration::from_secs(seconds)), text);
        }
    }
}
