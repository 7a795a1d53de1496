//! Prometheus' text form of what the server and the scheduler count.

use crate::loaded::Loaded;
use crate::service::Service;
use kjit_model::serve::{Histogram, Status};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What the server counts by itself.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Connections that are open.
    pub connections: AtomicU64,
    /// Answers by route and status. Routes are those of the router: few.
    answers: Mutex<BTreeMap<(&'static str, u16), u64>>,
}

impl Metrics {
    /// An answer was begun.
    pub fn answered(&self, route: &'static str, status: u16) {
        *self.answers.lock().unwrap_or_else(PoisonError::into_inner).entry((route, status)).or_default() += 1;
    }
}

/// All of it. The driver is asked for its memory: not for an async thread.
pub fn text(service: &Service, loaded: Option<&Loaded>) -> String {
    let mut out = Text(String::new());
    let answers = service.metrics.answers.lock().unwrap_or_else(PoisonError::into_inner).clone();
    out.head("kjit_http_answers_total", "counter", "HTTP answers begun");
    for ((route, status), n) in answers {
        let _ = writeln!(out.0, "kjit_http_answers_total{{route=\"{route}\",status=\"{status}\"}} {n}");
    }
    let connections = service.metrics.connections.load(Ordering::Relaxed);
    out.gauge("kjit_http_connections", "Open connections", connections as f64);
    out.gauge("kjit_up_seconds", "Seconds since the start", service.started.elapsed().as_secs_f64());
    out.gauge("kjit_ready", "1 when the model is loaded", f64::from(u8::from(loaded.is_some())));
    let Some(loaded) = loaded else { return out.0 };
    let status = loaded.scheduler.status();
    out.scheduler(&status);
    let (compiled, cached) = loaded.kernels();
    out.counter("kjit_kernels_compiled_total", "Kernels that were compiled by this process", compiled);
    out.counter("kjit_kernels_cached_total", "Kernels that were found in the cache", cached);
    out.gauge("kjit_weights_bytes", "Bytes of the model's weights", loaded.weights as f64);
    out.gauge("kjit_kv_bytes", "Bytes of keys and values, all sequences full", loaded.kv as f64);
    if let Some((used, total)) = loaded.memory() {
        out.gauge(
            "kjit_device_memory_used_bytes",
            "Bytes in use on the device (of the machine, on a CPU)",
            used as f64,
        );
        out.gauge("kjit_device_memory_bytes", "Bytes of the device (of the machine, on a CPU)", total as f64);
    }
    out.0
}

struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let mut below = 0;
        for (bound, count) in histogram.bounds().iter().zip(&histogram.counts) {
            below += count;
            let _ = writeln!(self.0, "{name}_bucket{{le=\"{bound}\"}} {below}");
        }
        let (sum, count) = (histogram.sum, histogram.count());
        let _ = writeln!(self.0, "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {sum}\n{name}_count {count}");
    }

    fn scheduler(&mut self, s: &Status) {
        self.gauge("kjit_requests_waiting", "Requests in the queue", s.waiting as f64);
        self.gauge("kjit_queue_limit", "Requests that the queue takes", s.max_queue as f64);
        self.gauge("kjit_requests_running", "Requests that are being answered", s.running as f64);
        self.gauge("kjit_requests_prefilling", "Requests whose prompt is being computed", s.prefilling as f64);
        self.gauge("kjit_slots", "Sequences that fit", s.slots as f64);
        self.gauge("kjit_slots_kept", "Slots kept for a prompt that begins alike", s.kept_slots as f64);
        self.gauge("kjit_context_tokens", "Tokens that fit in a sequence", s.context as f64);
        self.gauge("kjit_kv_tokens", "Tokens in all sequences", s.held_tokens as f64);
        self.gauge("kjit_kv_tokens_kept", "Tokens in kept slots", s.kept_tokens as f64);
        self.gauge("kjit_kv_bytes_per_token", "Bytes that a token takes in a sequence", s.bytes_per_token as f64);
        for (name, help, value) in [
            ("kjit_requests_taken_total", "Requests that were taken", s.taken),
            ("kjit_requests_refused_total", "Requests refused because the queue was full", s.refused),
            ("kjit_requests_done_total", "Requests that ended as they should", s.done),
            ("kjit_requests_cancelled_total", "Requests whose client went away", s.cancelled),
            ("kjit_requests_failed_total", "Requests that failed", s.failed),
            ("kjit_prompt_tokens_total", "Tokens of prompts that were computed", s.prompt_tokens),
            ("kjit_cached_tokens_total", "Tokens of prompts that were there", s.cached_tokens),
            ("kjit_generated_tokens_total", "Tokens of answers", s.generated_tokens),
            ("kjit_drafted_tokens_total", "Tokens that were drafted", s.drafted_tokens),
            ("kjit_accepted_tokens_total", "Drafted tokens that were right", s.accepted_tokens),
            ("kjit_preempted_total", "Sequences that gave their place and were computed again", s.preempted),
            ("kjit_steps_total", "Steps of the session", s.steps),
            ("kjit_reopened_total", "Times that the model was opened again", s.reopened),
            ("kjit_embeddings_total", "Vectors that were made", s.embeddings),
        ] {
            self.counter(name, help, value);
        }
        self.head("kjit_busy_seconds_total", "counter", "Seconds in steps of the session");
        let _ = writeln!(self.0, "kjit_busy_seconds_total {}", s.busy);
        self.histogram("kjit_queue_seconds", "Time in the queue", &s.queued);
        self.histogram("kjit_first_token_seconds", "Time from the request to its first token", &s.first_token);
        self.histogram("kjit_between_tokens_seconds", "Time between tokens of one answer", &s.between_tokens);
    }
}
