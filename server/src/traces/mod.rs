//! OpenTelemetry traces: one span for each answer, as vLLM writes them, and one for each request
//! that fails before it has an answer. A client's `traceparent` (W3C Trace Context) is continued.

mod export;

pub use export::TraceExport;

use axum::http::HeaderMap;
use export::Spans;
use serde_json::{Value, json};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Maximum bytes of a client's `tracestate`: longer ones are dropped, as the standard allows.
const LONGEST_STATE: usize = 512;

/// The trace of a request.
#[derive(Debug)]
pub struct RequestTrace {
    spans: Arc<Spans>,
    context: TraceContext,
    /// The client's request id, or a new one.
    id: String,
    begun: (SystemTime, Instant),
    /// Whether an answer was begun, which has a span of its own.
    answered: AtomicBool,
}

/// The trace to which a request belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TraceContext {
    /// 32 hexadecimal digits.
    trace: String,
    /// The client's span, 16 hexadecimal digits.
    parent: Option<String>,
    /// The client's `tracestate`.
    state: Option<String>,
}

impl RequestTrace {
    /// The trace of a request with these headers. `None` if its client does not record the trace.
    pub(crate) fn begin(
        spans: &Arc<Spans>,
        headers: &HeaderMap,
        id: &str,
    ) -> Option<Arc<RequestTrace>> {
        Some(Arc::new(RequestTrace {
            spans: Arc::clone(spans),
            context: context(headers)?,
            id: id.to_owned(),
            begun: (SystemTime::now(), Instant::now()),
            answered: AtomicBool::new(false),
        }))
    }

    /// Begins the span of an answer.
    pub fn answer(self: &Arc<RequestTrace>, model: &str, options: &AnswerOptions) -> AnswerSpan {
        self.answered.store(true, Ordering::Relaxed);
        let mut span = AnswerSpan {
            trace: Arc::clone(self),
            attributes: vec![],
            failure: Some("the client disconnected".to_owned()),
        };
        span.set("gen_ai.response.model", json!(model));
        span.set("gen_ai.request.id", json!(self.id));
        span.set("gen_ai.request.temperature", json!(options.temperature));
        span.set("gen_ai.request.top_p", json!(options.top_p));
        if let Some(most) = options.max_tokens {
            span.set("gen_ai.request.max_tokens", json!(most));
        }
        span
    }

    /// Ends a request. If it failed without an answer, this is a span.
    pub fn end(&self, method: &str, route: &str, status: u16) {
        if self.answered.load(Ordering::Relaxed) || status < 400 {
            return;
        }
        let attributes = [
            attribute("http.request.method", &json!(method)),
            attribute("http.route", &json!(route)),
            attribute("http.response.status_code", &json!(status)),
            attribute("gen_ai.request.id", &json!(self.id)),
        ];
        let failure = format!("HTTP status {status}");
        self.send(&format!("{method} {route}"), attributes.to_vec(), Some(&failure));
    }

    fn send(&self, name: &str, attributes: Vec<Value>, failure: Option<&str>) {
        let nanoseconds = |at: SystemTime| {
            at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos()).to_string()
        };
        // The end is measured by the clock that never goes back.
        let (begun, at) = self.begun;
        let mut span = json!({
            "traceId": self.context.trace,
            "spanId": hex::<1>(),
            "name": name,
            // SPAN_KIND_SERVER
            "kind": 2,
            "startTimeUnixNano": nanoseconds(begun),
            "endTimeUnixNano": nanoseconds(begun + at.elapsed()),
            "attributes": attributes,
        });
        if let Some(span) = span.as_object_mut() {
            if let Some(parent) = &self.context.parent {
                span.insert("parentSpanId".to_owned(), json!(parent));
            }
            if let Some(state) = &self.context.state {
                span.insert("traceState".to_owned(), json!(state));
            }
            if let Some(failure) = failure {
                // STATUS_CODE_ERROR
                span.insert("status".to_owned(), json!({ "code": 2, "message": failure }));
            }
        }
        self.spans.send(span);
    }
}

/// Options of an answer that its span names.
pub struct AnswerOptions {
    /// The temperature.
    pub temperature: f32,
    /// Top-p.
    pub top_p: f32,
    /// The token limit, if the request has one.
    pub max_tokens: Option<usize>,
}

/// The span of an answer. It ends when it is dropped, as an error unless [`AnswerSpan::done`] was
/// called.
pub struct AnswerSpan {
    trace: Arc<RequestTrace>,
    attributes: Vec<Value>,
    failure: Option<String>,
}

impl AnswerSpan {
    /// The request leaves the queue.
    pub fn started(&mut self, prompt_tokens: usize, cached_tokens: usize) {
        self.time("gen_ai.latency.time_in_queue");
        self.set("gen_ai.usage.prompt_tokens", json!(prompt_tokens));
        self.set("gen_ai.usage.cached_tokens", json!(cached_tokens));
    }

    /// The first token was chosen.
    pub fn first_token(&mut self) {
        self.time("gen_ai.latency.time_to_first_token");
    }

    /// The answer is complete.
    pub fn done(&mut self, tokens: usize, reason: &str) {
        self.set("gen_ai.usage.completion_tokens", json!(tokens));
        self.set("gen_ai.response.finish_reasons", json!(reason));
        self.time("gen_ai.latency.e2e");
        self.failure = None;
    }

    /// The answer failed.
    pub fn failed(&mut self, why: &str) {
        self.failure = Some(why.to_owned());
    }

    /// Seconds since the request arrived.
    fn time(&mut self, name: &'static str) {
        let seconds = self.trace.begun.1.elapsed().as_secs_f64();
        self.set(name, json!(seconds));
    }

    fn set(&mut self, name: &'static str, value: Value) {
        self.attributes.push(attribute(name, &value));
    }
}

impl Drop for AnswerSpan {
    fn drop(&mut self) {
        let attributes = std::mem::take(&mut self.attributes);
        self.trace.send("llm_request", attributes, self.failure.as_deref());
    }
}

impl fmt::Debug for AnswerSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnswerSpan({})", self.trace.context.trace)
    }
}

/// An attribute in OTLP's JSON.
fn attribute(name: &str, value: &Value) -> Value {
    let value = match value {
        Value::Number(n) if n.is_f64() => json!({ "doubleValue": n }),
        Value::Number(n) => json!({ "intValue": n.to_string() }),
        Value::Bool(b) => json!({ "boolValue": b }),
        Value::String(text) => json!({ "stringValue": text }),
        other => json!({ "stringValue": other.to_string() }),
    };
    json!({ "key": name, "value": value })
}

/// The trace that a client's headers continue, or a new one. `None` if the client does not record
/// it.
fn context(headers: &HeaderMap) -> Option<TraceContext> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let fresh = || TraceContext { trace: hex::<2>(), parent: None, state: None };
    let Some((trace, parent, sampled)) = text("traceparent").and_then(traceparent) else {
        return Some(fresh());
    };
    let state = text("tracestate").filter(|state| (1..=LONGEST_STATE).contains(&state.len()));
    sampled.then(|| TraceContext {
        trace: trace.to_owned(),
        parent: Some(parent.to_owned()),
        state: state.map(str::to_owned),
    })
}

/// The ids of trace and span in a `traceparent`, and whether the client records them. An invalid
/// header is ignored.
fn traceparent(text: &str) -> Option<(&str, &str, bool)> {
    let mut parts = text.split('-');
    let mut hex = |len: usize| {
        let lower = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        parts.next().filter(|part| part.len() == len && part.bytes().all(lower))
    };
    let (version, trace, parent, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
    let zeros = |id: &str| id.bytes().all(|b| b == b'0');
    // Later versions may have more parts.
    let more = parts.next().is_some();
    if version == "ff" || version == "00" && more || zeros(trace) || zeros(parent) {
        return None;
    }
    Some((trace, parent, u8::from_str_radix(flags, 16).ok()? & 1 == 1))
}

/// A random id of `N` times 16 hexadecimal digits, not only zeros.
fn hex<const N: usize>() -> String {
    let word = |n: usize| format!("{:016x}", RandomState::new().hash_one(n).max(1));
    (0..N).map(word).collect()
}

/// Time that the last spans have when the server ends.
const LAST: Duration = Duration::from_secs(2);

/// The export of a server's spans.
#[derive(Debug)]
pub struct Tracer(Arc<Spans>);

impl Tracer {
    /// Starts the export.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn begin(export: &TraceExport, say: fn(&str)) -> std::io::Result<Tracer> {
        Spans::begin(export, say).map(Tracer)
    }

    /// Where spans are sent.
    pub(crate) fn spans(&self) -> &Arc<Spans> {
        &self.0
    }

    /// Sends the last spans. Blocks for at most 2 s.
    pub fn end(&self) {
        self.0.end(LAST);
    }
}

#[cfg(test)]
mod tests {
    use super::{TraceContext, context, hex, traceparent};
    use axum::http::HeaderMap;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn traceparent_is_read_by_the_standard_or_ignored() {
        let of = |text: &str| traceparent(text).map(|(_, _, sampled)| sampled);
        for (head, flags, tail, wanted) in [
            ("00", "01", "", Some(true)),
            ("00", "00", "", Some(false)),
            ("00", "ff", "", Some(true)),
            ("01", "01", "-more", Some(true)),
            ("00", "01", "-more", None),
            ("ff", "01", "", None),
            ("0", "01", "", None),
            ("00", "0x", "", None),
        ] {
            let text = format!("{head}-{TRACE}-{SPAN}-{flags}{tail}");
            assert_eq!(of(&text), wanted, "{text}");
        }
        assert_eq!(traceparent(&format!("00-{TRACE}-{SPAN}-01")), Some((TRACE, SPAN, true)));
        for text in [
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-01"),
            String::new(),
            "é".repeat(40),
        ] {
            assert_eq!(traceparent(&text), None, "{text}");
        }
    }

    #[test]
    fn a_request_continues_its_clients_trace() {
        let mut headers = HeaderMap::new();
        let fresh = context(&headers).unwrap();
        assert!(fresh.trace.len() == 32 && fresh.parent.is_none());
        assert_ne!(fresh, context(&headers).unwrap(), "each request is a trace");
        headers.insert("traceparent", format!("00-{TRACE}-{SPAN}-01").parse().unwrap());
        headers.insert("tracestate", "vendor=1".parse().unwrap());
        let (trace, parent) = (TRACE.to_owned(), Some(SPAN.to_owned()));
        let state = Some("vendor=1".to_owned());
        assert_eq!(context(&headers), Some(TraceContext { trace, parent, state }));
        headers.insert("traceparent", format!("00-{TRACE}-{SPAN}-00").parse().unwrap());
        assert_eq!(context(&headers), None, "the client does not record it");
        headers.insert("traceparent", "nonsense".parse().unwrap());
        assert_eq!(context(&headers).unwrap().parent, None);
        assert_eq!((hex::<1>().len(), hex::<2>().len()), (16, 32));
    }
}
