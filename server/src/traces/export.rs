//! Sends spans to a collector: OTLP over HTTP in JSON, from a thread of its own. Requests never
//! wait for it: if it is slow or gone, spans are dropped and counted.

use serde_json::{Value, json};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use ureq::Agent;
use ureq::http::Uri;

/// Maximum number of spans that wait, and that are sent together.
const WAITING: usize = 2048;
const TOGETHER: usize = 512;
/// Time in which spans are collected.
const COLLECT: Duration = Duration::from_secs(1);
/// Time limit of a request to the collector.
const PATIENCE: Duration = Duration::from_secs(10);
/// Path of traces at a collector, if the URL has none.
const PATH: &str = "/v1/traces";

/// Where and how spans are sent.
#[derive(Clone, PartialEq, Eq)]
pub struct TraceExport {
    url: String,
    /// `service.name`.
    service: String,
    /// Headers of each request. They may be secret.
    headers: Vec<(String, String)>,
}

impl std::fmt::Debug for TraceExport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TraceExport({})", self.url)
    }
}

impl TraceExport {
    /// Sends spans to this URL. `/v1/traces` is added to a URL without a path.
    ///
    /// # Errors
    /// It is not a URL of HTTP or HTTPS.
    pub fn new(url: &str) -> Result<TraceExport, String> {
        let wanted = "give the URL of an OTLP collector, such as http://127.0.0.1:4318";
        let uri: Uri = url.parse().map_err(|_| wanted.to_owned())?;
        let good = matches!(uri.scheme_str(), Some("http" | "https"))
            && uri
                .authority()
                .is_some_and(|at| !at.host().is_empty() && !at.as_str().contains('@'))
            && uri.query().is_none();
        if !good {
            return Err(wanted.to_owned());
        }
        let bare = url.trim_end_matches('/');
        let url = if uri.path() == "/" { format!("{bare}{PATH}") } else { url.to_owned() };
        Ok(TraceExport { url, service: "kjit".to_owned(), headers: vec![] })
    }

    /// With another `service.name`.
    #[must_use]
    pub fn named(mut self, service: String) -> TraceExport {
        self.service = service;
        self
    }

    /// With headers in the form of `OTEL_EXPORTER_OTLP_HEADERS`: `NAME=VALUE,NAME=VALUE`.
    ///
    /// # Errors
    /// A header is invalid. The error has no value: it may be secret.
    pub fn with_headers(mut self, headers: &str) -> Result<TraceExport, String> {
        for header in headers.split(',').filter(|header| !header.trim().is_empty()) {
            let (name, value) = header.split_once('=').ok_or("give NAME=VALUE,NAME=VALUE")?;
            let (name, value) = (name.trim(), crate::percent::decoded(value.trim(), false));
            let value = String::from_utf8(value).map_err(|_| format!("{name} is not UTF-8"))?;
            let token = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
            if name.is_empty() || !name.bytes().all(token) || value.chars().any(char::is_control) {
                return Err("a header's name or value has a sign that is not allowed".to_owned());
            }
            self.headers.push((name.to_owned(), value));
        }
        Ok(self)
    }
}

/// The queue of spans.
#[derive(Debug)]
pub struct Spans {
    to: Mutex<Option<SyncSender<Value>>>,
    /// Signals that the thread has ended.
    gone: Mutex<Receiver<()>>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    dropped: AtomicU64,
}

impl Spans {
    /// Starts the thread.
    pub fn begin(export: &TraceExport, say: fn(&str)) -> io::Result<Arc<Spans>> {
        let (to, spans) = sync_channel(WAITING);
        let (ended, gone) = sync_channel(0);
        let counts = Arc::new(Counts::default());
        let config = Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(true)
            .max_redirects(0)
            .build();
        let exporter = Exporter {
            export: export.clone(),
            agent: config.into(),
            counts: Arc::clone(&counts),
            say,
            heard: true,
        };
        std::thread::Builder::new().name("kjit-traces".to_owned()).spawn(move || {
            exporter.run(&spans);
            drop(ended);
        })?;
        Ok(Arc::new(Spans { to: Mutex::new(Some(to)), gone: Mutex::new(gone), counts }))
    }

    /// Queues a span. If the queue is full, the span is dropped.
    pub fn send(&self, span: Value) {
        let to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        if to.as_ref().is_none_or(|to| to.try_send(span).is_err()) {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Numbers of sent and of dropped spans.
    pub fn counts(&self) -> [u64; 2] {
        [&self.counts.sent, &self.counts.dropped].map(|n| n.load(Ordering::Relaxed))
    }

    /// Sends the queued spans, for at most this time.
    pub fn end(&self, longest: Duration) {
        self.to.lock().unwrap_or_else(PoisonError::into_inner).take();
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        // It also ends when the thread has ended.
        let _ = gone.recv_timeout(longest);
    }
}

struct Exporter {
    export: TraceExport,
    agent: Agent,
    counts: Arc<Counts>,
    say: fn(&str),
    /// Whether the collector accepted the last spans.
    heard: bool,
}

impl Exporter {
    fn run(mut self, spans: &Receiver<Value>) {
        while let Ok(first) = spans.recv() {
            let (mut batch, until) = (vec![first], Instant::now() + COLLECT);
            let mut last = false;
            while batch.len() < TOGETHER && !last {
                match spans.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(span) => batch.push(span),
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => last = true,
                }
            }
            let n = batch.len() as u64;
            let done = self.post(batch);
            let count = if done.is_ok() { &self.counts.sent } else { &self.counts.dropped };
            count.fetch_add(n, Ordering::Relaxed);
            self.said(done);
        }
    }

    fn post(&self, spans: Vec<Value>) -> Result<(), String> {
        let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
        let version = env!("CARGO_PKG_VERSION");
        let resource =
            [text("service.name", &self.export.service), text("service.version", version)];
        let document = json!({ "resourceSpans": [{
            "resource": { "attributes": resource },
            "scopeSpans": [{ "scope": { "name": "kjit", "version": version }, "spans": spans }],
        }]});
        let mut request =
            self.agent.post(&self.export.url).header("content-type", "application/json");
        for (name, value) in &self.export.headers {
            request = request.header(name, value);
        }
        request.send(document.to_string()).map(drop).map_err(|error| error.to_string())
    }

    /// Writes one line when the collector stops accepting spans, and one when it accepts them
    /// again.
    fn said(&mut self, done: Result<(), String>) {
        let url = &self.export.url;
        match (&done, self.heard) {
            (Err(why), true) => (self.say)(&format!(
                "warning: the collector at {url} takes no traces: {why}; they are dropped until it \
                 does"
            )),
            (Ok(()), false) => (self.say)(&format!("the collector at {url} takes traces again")),
            _ => {}
        }
        self.heard = done.is_ok();
    }
}

#[cfg(test)]
mod tests {
    use super::{Spans, TraceExport, WAITING};
    use serde_json::json;
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    #[test]
    fn collectors_url_and_headers_are_checked() {
        for (url, wanted) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("https://traces.example/", "https://traces.example/v1/traces"),
            ("http://here:4318/v1/traces", "http://here:4318/v1/traces"),
            ("http://here/otlp/", "http://here/otlp/"),
        ] {
            assert_eq!(TraceExport::new(url).unwrap().url, wanted);
        }
        for url in ["", "here:4317", "grpc://here", "http://", "http://me:secret@here", "/x"] {
            let why = TraceExport::new(url).unwrap_err();
            assert!(why.contains("OTLP collector") && !why.contains("secret"), "{url}: {why}");
        }
        let export = || TraceExport::new("http://here").unwrap();
        let headers = export().with_headers("api-key=a%20b, x-org = c=d,").unwrap().headers;
        let wanted = [("api-key", "a b"), ("x-org", "c=d")];
        assert_eq!(headers, wanted.map(|(a, b)| (a.to_owned(), b.to_owned())));
        for wrong in ["secret", "a b=secret", "a=secret%0A", "=secret"] {
            let why = export().with_headers(wrong).unwrap_err();
            assert!(!why.contains("secret"), "{why}");
        }
        assert!(!format!("{:?}", export().with_headers("a=secret")).contains("secret"));
    }

    #[test]
    fn a_collector_that_never_answers_delays_nothing_and_fills_no_memory() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let spans = Spans::begin(&TraceExport::new(&url).unwrap(), |_| ()).unwrap();
        let (start, n) = (Instant::now(), 4 * WAITING as u64);
        for i in 0..n {
            spans.send(json!({ "name": i }));
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        let [sent, dropped] = spans.counts();
        // The queue, and the spans that the thread has taken from it.
        assert!(sent == 0 && dropped >= n - 2 * WAITING as u64 && dropped < n, "{dropped}");
        let start = Instant::now();
        spans.end(Duration::from_millis(100));
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}
