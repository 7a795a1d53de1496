//! `GET /status`: what the server does, as JSON, for people's tools and the page.

use crate::loaded::Loaded;
use crate::service::Service;
use kjit_model::serve::{Histogram, State};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

/// All of it. The driver is asked for its memory: not for an async thread.
pub fn document(service: &Service, loaded: Option<&Loaded>) -> Value {
    let server = json!({
        "name": service.name(), "version": env!("CARGO_PKG_VERSION"), "up_s": service.started.elapsed().as_secs_f64(),
        "connections": service.metrics.connections.load(Ordering::Relaxed), "stopping": service.stopping()
    });
    let Some(loaded) = loaded else { return json!({ "state": "loading", "server": server }) };
    let s = loaded.scheduler.status();
    let (compiled, cached) = loaded.kernels();
    let memory = loaded.memory().map(|(used, total)| json!({ "used": used, "total": total }));
    let state = match s.state {
        State::Ready => "ready",
        State::Reopening => "reopening",
        State::Stopping => "stopping",
        State::Ended => "ended",
    };
    json!({
        "state": state, "server": server,
        "model": {
            "architecture": loaded.arch, "parameters": loaded.parameters, "weights_bytes": loaded.weights, "kv_bytes": loaded.kv,
            "context": loaded.context, "embeds": loaded.encoder, "chats": loaded.template.is_ok()
        },
        "device": { "label": loaded.device.label, "name": loaded.device.name, "arch": loaded.device.arch, "memory": memory },
        "kernels": { "compiled": compiled, "cached": cached },
        "queue": { "waiting": s.waiting, "limit": s.max_queue, "refused": s.refused },
        "slots": {
            "all": s.slots, "running": s.running, "prefilling": s.prefilling, "kept": s.kept_slots,
            "tokens": s.held_tokens, "kept_tokens": s.kept_tokens, "context": s.context,
            "bytes_per_token": s.bytes_per_token
        },
        "requests": { "taken": s.taken, "done": s.done, "cancelled": s.cancelled, "failed": s.failed },
        "tokens": {
            "prompt": s.prompt_tokens, "cached": s.cached_tokens, "generated": s.generated_tokens,
            "drafted": s.drafted_tokens, "accepted": s.accepted_tokens
        },
        "steps": s.steps, "busy_s": s.busy, "preempted": s.preempted, "reopened": s.reopened,
        "seconds": {
            "queued": times(&s.queued), "first_token": times(&s.first_token), "between_tokens": times(&s.between_tokens)
        }
    })
}

fn times(histogram: &Histogram) -> Value {
    json!({ "bounds": histogram.bounds(), "counts": histogram.counts, "sum": histogram.sum, "count": histogram.count() })
}
