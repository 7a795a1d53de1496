//! `GET /status`: the state of the server as JSON, for tools and the page.

use crate::models::ModelStatus;
use crate::options::Served;
use crate::percent::decoded;
use crate::refusal::Refusal;
use crate::service::Service;
use kjit_model::gpu::PageCount;
use kjit_model::serve::{Histogram, State, Status};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

/// The state of the named model, or of the first model. Queries the driver for its memory: too slow
/// for an async thread.
///
/// # Errors
/// No model has this name.
pub fn document(service: &Service, name: Option<&str>) -> Result<Value, Refusal> {
    let (served, seen) = service.meant(name)?;
    let server = json!({
        "name": served.name(), "version": env!("CARGO_PKG_VERSION"), "up_s": service.started.elapsed().as_secs_f64(),
        "connections": service.metrics.connections.load(Ordering::Relaxed), "stopping": service.stopping()
    });
    let one = |(served, seen): (&Served, ModelStatus)| {
        let s = seen.loaded.as_ref().map(|loaded| loaded.scheduler.status());
        let state = state(&seen, s.as_ref());
        let (running, waiting) = s.map_or((0, 0), |s| (s.running, s.waiting));
        let counts = seen.counts;
        json!({
            "name": served.name(), "state": state, "running": running, "waiting": waiting + counts.waiting,
            "loads": counts.loads, "unloads": counts.unloads
        })
    };
    let models: Vec<Value> = service.all().map(one).collect();
    let Some(loaded) = &seen.loaded else {
        return Ok(json!({ "state": away(&seen), "server": server, "models": models }));
    };
    let s = loaded.scheduler.status();
    let (compiled, cached) = loaded.kernels();
    let memory = loaded.memory().map(|(used, total)| json!({ "used": used, "total": total }));
    Ok(json!({
        "state": word(s.state), "server": server, "models": models,
        "model": {
            "architecture": loaded.arch, "parameters": loaded.parameters, "weights_bytes": loaded.weights, "kv_bytes": loaded.kv,
            "context": loaded.context, "embeds": loaded.encoder, "chats": loaded.template.is_ok(),
            "vision": loaded.images.is_some()
        },
        "device": { "label": loaded.device.label, "name": loaded.device.name, "arch": loaded.device.arch, "memory": memory },
        "kernels": { "compiled": compiled, "cached": cached },
        "queue": { "waiting": s.waiting + service.preparation.waiting(), "limit": s.max_queue, "refused": s.refused },
        "slots": {
            "all": s.slots, "running": s.running, "prefilling": s.prefilling, "kept": s.kept_slots,
            "tokens": s.held_tokens, "room": s.room, "kept_tokens": s.kept_tokens, "kept_states": s.kept_states, "context": s.context,
            "bytes_per_token": s.bytes_per_token
        },
        "pages": s.pages.map(|p| json!({ "all": p.total, "used": p.used, "shared": p.shared, "tokens": PageCount::POSITIONS })),
        "requests": { "taken": s.taken, "done": s.done, "cancelled": s.cancelled, "failed": s.failed },
        "tokens": {
            "prompt": s.prompt_tokens, "cached": s.cached_tokens, "generated": s.generated_tokens,
            "drafted": s.drafted_tokens, "accepted": s.accepted_tokens
        },
        "steps": s.steps, "busy_s": s.busy, "preempted": s.preempted, "reopened": s.reopened,
        "seconds": {
            "queued": times(&s.queued), "first_token": times(&s.first_token), "between_tokens": times(&s.between_tokens)
        }
    }))
}

/// The decoded value of a query parameter.
pub fn parameter(query: &str, name: &str) -> Option<String> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    Some(String::from_utf8_lossy(&decoded(value, true)).into_owned())
}

/// The state of a model, as a word.
pub fn state(seen: &ModelStatus, status: Option<&Status>) -> &'static str {
    status.map_or_else(|| away(seen), |status| word(status.state))
}

/// The state of a model that is not loaded.
fn away(seen: &ModelStatus) -> &'static str {
    if seen.moving || seen.card.is_none() { "loading" } else { "unloaded" }
}

fn word(state: State) -> &'static str {
    match state {
        State::Ready => "ready",
        State::Short => "short of memory",
        State::Reopening => "reopening",
        State::Stopping => "stopping",
        State::Ended => "ended",
    }
}

fn times(histogram: &Histogram) -> Value {
    json!({ "bounds": histogram.bounds(), "counts": histogram.counts, "sum": histogram.sum, "count": histogram.count() })
}

#[cfg(test)]
mod tests {
    use super::parameter;

    #[test]
    fn query_parameters_are_percent_decoded() {
        for (query, name) in [
            ("model=a", Some("a")),
            ("x=1&model=a%20b+c%2F%C3%BC", Some("a b c/ü")),
            ("model=%", Some("%")),
            ("model=%2", Some("%2")),
            ("model=%zz&model=b", Some("%zz")),
            ("models=a", None),
            ("", None),
        ] {
            assert_eq!(parameter(query, "model").as_deref(), name, "{query}");
        }
    }
}
