//! Counters of the server and the scheduler in Prometheus' text format.

use crate::loaded::Loaded;
use crate::service::Service;
use kjit_model::serve::{Histogram, Status};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// The complete text. Queries the driver for its memory: too slow for an async thread.
pub fn text(service: &Service) -> String {
    let mut out = Text::default();
    let answers = service.metrics.answers.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for ((route, status), n) in answers {
        out.labels = vec![format!("route=\"{route}\""), format!("status=\"{status}\"")];
        out.counter("kjit_http_answers_total", "HTTP answers that were begun", n);
    }
    out.labels.clear();
    crate::process::write(&mut out);
    out.with(concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"").to_owned(), |out| {
        out.gauge("kjit_build_info", "Version of this program", 1.0);
    });
    out.gauge(
        "kjit_draining",
        "1 if the server is being drained or stops",
        f64::from(u8::from(service.draining())),
    );
    let connections = service.metrics.connections.load(Ordering::Relaxed);
    out.gauge("kjit_http_connections", "Open connections", connections as f64);
    out.gauge(
        "kjit_up_seconds",
        "Seconds since the start",
        service.started.elapsed().as_secs_f64(),
    );
    out.gauge(
        "kjit_requests_preparing",
        "Requests whose prompt, schema or grammar waits to be read",
        service.preparation.waiting() as f64,
    );
    if let Some(tracer) = &service.tracer {
        let [sent, dropped] = tracer.spans().counts();
        for (result, n) in [("sent", sent), ("dropped", dropped)] {
            out.with(format!("result=\"{result}\""), |out| {
                out.counter("kjit_trace_spans_total", "Spans by what became of them", n);
            });
        }
    }
    let several = service.options.models.len() > 1;
    for (served, seen) in service.all() {
        // With a single model, lines have no model label.
        out.labels =
            several.then(|| format!("model=\"{}\"", escaped(served.name()))).into_iter().collect();
        out.gauge(
            "kjit_ready",
            "1 when the model is loaded",
            f64::from(u8::from(seen.loaded.is_some())),
        );
        out.gauge(
            "kjit_requests_for_load",
            "Requests that wait for the model to be loaded",
            seen.counts.waiting as f64,
        );
        out.counter("kjit_model_loads_total", "Times the model was loaded", seen.counts.loads);
        out.counter(
            "kjit_model_unloads_total",
            "Times the model was unloaded",
            seen.counts.unloads,
        );
        if let Some(loaded) = seen.loaded {
            out.model(&loaded);
            out.labels = vec![format!("model_name=\"{}\"", escaped(served.name()))];
            crate::vllm_metrics::write(&mut out, &loaded.scheduler.status());
        }
    }
    out.finish()
}

/// The escaped value of a label.
pub fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Lines by metric name, in alphabetical order: Prometheus wants all lines of a name together.
#[derive(Default)]
pub struct Text {
    lines: BTreeMap<String, String>,
    /// Labels of the next lines.
    labels: Vec<String>,
}

impl Text {
    fn lines(&mut self, name: &str, kind: &str, help: &str) -> &mut String {
        let head = || format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
        self.lines.entry(name.to_owned()).or_insert_with(head)
    }

    /// The current labels and one more, as a string.
    fn labelled(&self, more: Option<String>) -> String {
        let all: Vec<&str> = self.labels.iter().chain(&more).map(String::as_str).collect();
        if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
    }

    /// Adds one line of a metric.
    pub fn line(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        let labels = self.labelled(None);
        let _ = writeln!(self.lines(name, kind, help), "{name}{labels} {value}");
    }

    /// Adds a gauge: a value that can go up and down.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.line(name, "gauge", help, value);
    }

    /// Adds a counter.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.line(name, "counter", help, value);
    }

    fn finish(self) -> String {
        self.lines.into_values().collect()
    }

    fn model(&mut self, loaded: &Loaded) {
        self.scheduler(&loaded.scheduler.status());
        let (compiled, cached) = loaded.kernels();
        self.counter("kjit_kernels_compiled_total", "Kernels compiled by this process", compiled);
        self.counter("kjit_kernels_cached_total", "Kernels found in the cache", cached);
        self.gauge("kjit_weights_bytes", "Bytes of the model's weights", loaded.weights as f64);
        self.gauge(
            "kjit_kv_bytes",
            "Bytes of keys and values with all contexts full",
            loaded.kv as f64,
        );
        if let Some((used, total)) = loaded.memory() {
            let of = "on the device (of the machine, on a CPU)";
            self.gauge("kjit_device_memory_used_bytes", &format!("Bytes in use {of}"), used as f64);
            self.gauge(
                "kjit_device_memory_bytes",
                "Memory of the device in bytes (on a CPU: of the machine)",
                total as f64,
            );
        }
    }

    /// Adds lines with more labels.
    pub fn with(&mut self, more: String, write: impl FnOnce(&mut Text)) {
        self.labels.push(more);
        write(self);
        self.labels.pop();
    }

    /// Adds a histogram. Its values are multiplied.
    pub fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram, times: f64) {
        let mut below = 0;
        let mut text = String::new();
        for (bound, count) in histogram.bounds().iter().zip(&histogram.counts) {
            below += count;
            let _ = writeln!(
                text,
                "{name}_bucket{} {below}",
                self.labelled(Some(format!("le=\"{}\"", (bound * times * 1e3).round() / 1e3)))
            );
        }
        let (sum, count, labels) = (histogram.sum * times, histogram.count(), self.labelled(None));
        let _ = writeln!(
            text,
            "{name}_bucket{} {count}",
            self.labelled(Some("le=\"+Inf\"".to_owned()))
        );
        let _ = writeln!(text, "{name}_sum{labels} {sum}\n{name}_count{labels} {count}");
        self.lines(name, "histogram", help).push_str(&text);
    }

    fn scheduler(&mut self, s: &Status) {
        self.gauge("kjit_requests_waiting", "Requests in the queue", s.waiting as f64);
        self.gauge("kjit_queue_limit", "Limit of the queue", s.max_queue as f64);
        self.gauge("kjit_requests_running", "Running requests", s.running as f64);
        self.gauge(
            "kjit_requests_prefilling",
            "Requests whose prompt is being computed",
            s.prefilling as f64,
        );
        self.gauge("kjit_slots", "Sequences that fit", s.slots as f64);
        self.gauge("kjit_slots_kept", "Slots that hold a cached prefix", s.kept_slots as f64);
        self.gauge("kjit_context_tokens", "Tokens that fit in a sequence", s.context as f64);
        self.gauge(
            "kjit_kv_tokens",
            "Tokens of all sequences; those in shared pages count once",
            s.held_tokens as f64,
        );
        self.gauge(
            "kjit_kv_tokens_room",
            "Tokens that fit in all sequences together",
            s.room as f64,
        );
        self.gauge(
            "kjit_kv_tokens_kept",
            "Cached tokens that no running sequence uses",
            s.kept_tokens as f64,
        );
        if let Some(pages) = s.pages {
            self.gauge("kjit_kv_pages", "Pages of keys and values", pages.total as f64);
            self.gauge(
                "kjit_kv_pages_used",
                "Pages of running sequences and cached prefixes",
                pages.used as f64,
            );
            self.gauge("kjit_kv_pages_shared", "Pages that are shared", pages.shared as f64);
        }
        self.gauge("kjit_states_kept", "Cached copies of recurrent states", s.kept_states as f64);
        self.gauge(
            "kjit_kv_bytes_per_token",
            "Bytes of a token's keys and values",
            s.bytes_per_token as f64,
        );
        for (name, help, value) in [
            ("kjit_requests_taken_total", "Requests that were accepted", s.taken),
            (
                "kjit_requests_refused_total",
                "Requests refused because the queue was full",
                s.refused,
            ),
            ("kjit_requests_done_total", "Requests that were completed", s.done),
            (
                "kjit_requests_cancelled_total",
                "Requests cancelled because the client left",
                s.cancelled,
            ),
            ("kjit_requests_failed_total", "Requests that failed", s.failed),
            ("kjit_prompt_tokens_total", "Prompt tokens that were computed", s.prompt_tokens),
            ("kjit_cached_tokens_total", "Prompt tokens found in the cache", s.cached_tokens),
            ("kjit_generated_tokens_total", "Tokens of answers", s.generated_tokens),
            ("kjit_drafted_tokens_total", "Tokens that were drafted", s.drafted_tokens),
            ("kjit_accepted_tokens_total", "Drafted tokens that were accepted", s.accepted_tokens),
            ("kjit_preempted_total", "Sequences that were preempted and recomputed", s.preempted),
            ("kjit_steps_total", "Steps of the session", s.steps),
            (
                "kjit_steps_ahead_total",
                "Steps that were launched while the step before ran",
                s.ahead.steps,
            ),
            ("kjit_ahead_rows_total", "Single tokens of answers in steps ahead", s.ahead.rows),
            ("kjit_ahead_pieces_total", "Pieces of prompts in steps ahead", s.ahead.pieces),
            (
                "kjit_reopened_total",
                "Times the model was opened again after a device's fault",
                s.reopened,
            ),
            ("kjit_embeddings_total", "Embeddings that were computed", s.embeddings),
        ] {
            self.counter(name, help, value);
        }
        self.line("kjit_busy_seconds_total", "counter", "Seconds spent in steps", s.busy);
        for (name, help, seconds) in [
            ("prepare", "Seconds to compose steps ahead", s.ahead.prepare),
            ("issue", "Seconds to give steps ahead to the device", s.ahead.issue),
            ("wait", "Seconds of waiting for tokens of steps ahead", s.ahead.wait),
            ("deliver", "Seconds to pass on tokens of steps ahead", s.ahead.deliver),
        ] {
            self.line(&format!("kjit_ahead_{name}_seconds_total"), "counter", help, seconds);
        }
        self.histogram("kjit_queue_seconds", "Time in the queue", &s.queued, 1.0);
        self.histogram(
            "kjit_first_token_seconds",
            "Time from the request to its first token",
            &s.first_token,
            1.0,
        );
        self.histogram(
            "kjit_between_tokens_seconds",
            "Time between tokens of one answer",
            &s.between_tokens,
            1.0,
        );
    }
}
