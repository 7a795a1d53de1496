//! Traces in Chrome's format: host and device spans on one clock.

use crate::error::{Error, Result};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Collects spans. Cheap to clone: clones share the trace.
#[derive(Clone)]
pub struct Trace {
    inner: Arc<Inner>,
}

struct Inner {
    start: Instant,
    spans: Mutex<Vec<FinishedSpan>>,
}

struct FinishedSpan {
    name: String,
    track: String,
    /// Microseconds from the start of the trace.
    at: f64,
    lasted: f64,
    detail: Vec<(&'static str, String)>,
}

/// An open span, which ends on drop.
pub struct Span {
    trace: Trace,
    name: String,
    track: String,
    from: Instant,
    detail: Vec<(&'static str, String)>,
}

impl Default for Trace {
    fn default() -> Trace {
        Trace::new()
    }
}

impl Trace {
    /// A trace that starts now.
    #[must_use]
    pub fn new() -> Trace {
        Trace { inner: Arc::new(Inner { start: Instant::now(), spans: Mutex::default() }) }
    }

    /// Opens a span on a track (`compile 3`, `upload`, `load`). A track is a row in the viewer.
    #[must_use]
    pub fn span(&self, track: impl Into<String>, name: impl Into<String>) -> Span {
        Span {
            trace: self.clone(),
            name: name.into(),
            track: track.into(),
            from: Instant::now(),
            detail: Vec::new(),
        }
    }

    /// Microseconds since the start of the trace: the clock of [`Trace::add`].
    #[must_use]
    pub fn now_us(&self) -> f64 {
        self.inner.start.elapsed().as_secs_f64() * 1e6
    }

    /// Adds a finished span, with times of [`Trace::now_us`].
    pub fn add(
        &self,
        track: impl Into<String>,
        name: impl Into<String>,
        at_us: f64,
        lasted_us: f64,
    ) {
        self.push(FinishedSpan {
            name: name.into(),
            track: track.into(),
            at: at_us,
            lasted: lasted_us,
            detail: Vec::new(),
        });
    }

    fn push(&self, done: FinishedSpan) {
        self.inner.spans.lock().unwrap_or_else(PoisonError::into_inner).push(done);
    }

    /// Number of finished spans.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.spans.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether the list of finished spans is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The trace as JSON, for chrome://tracing and Perfetto.
    #[must_use]
    pub fn to_json(&self) -> String {
        let spans = self.inner.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tracks: Vec<&str> = Vec::new();
        let mut out = String::from("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
        for span in spans.iter() {
            let id = tracks.iter().position(|t| *t == span.track).unwrap_or_else(|| {
                tracks.push(&span.track);
                tracks.len() - 1
            });
            // Writing into a String cannot fail.
            let _ = write!(
                out,
                "{{\"ph\":\"X\",\"pid\":1,\"tid\":{id},\"ts\":{:.3},\"dur\":{:.3},\"name\":{}",
                span.at,
                span.lasted,
                quoted(&span.name)
            );
            if !span.detail.is_empty() {
                let args: Vec<String> = span
                    .detail
                    .iter()
                    .map(|(k, v)| format!("{}:{}", quoted(k), quoted(v)))
                    .collect();
                let _ = write!(out, ",\"args\":{{{}}}", args.join(","));
            }
            out.push_str("},\n");
        }
        for (id, track) in tracks.iter().enumerate() {
            let name = quoted(track);
            let _ = writeln!(
                out,
                "{{\"ph\":\"M\",\"pid\":1,\"tid\":{id},\"name\":\"thread_name\",\"args\":{{\"name\":{name}}}}},"
            );
        }
        out.push_str(
            "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"kjit\"}}]}\n",
        );
        out
    }

    /// Writes the trace to a file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, path: &Path) -> Result<()> {
        std::fs::write(path, self.to_json())
            .map_err(|e| Error::Io { path: path.to_owned(), why: e.to_string() })
    }
}

impl Span {
    /// Adds a detail that the viewer shows.
    pub fn detail(&mut self, key: &'static str, value: impl Into<String>) {
        self.detail.push((key, value.into()));
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let at = self.from.saturating_duration_since(self.trace.inner.start).as_secs_f64() * 1e6;
        let lasted = self.from.elapsed().as_secs_f64() * 1e6;
        let (name, track) = (std::mem::take(&mut self.name), std::mem::take(&mut self.track));
        self.trace.push(FinishedSpan {
            name,
            track,
            at,
            lasted,
            detail: std::mem::take(&mut self.detail),
        });
    }
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Trace({} spans)", self.len())
    }
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_become_valid_json_with_named_tracks() {
        let trace = Trace::new();
        let mut span = trace.span("compile 0", "k \"quoted\" \\ \n");
        span.detail("target", "sm_90");
        drop(span);
        trace.add("cuda:0", "matvec", 10.0, 2.5);
        let json = trace.to_json();
        assert!(json.contains(r#""name":"k \"quoted\" \\ \u000a""#), "{json}");
        assert!(
            json.contains(r#""args":{"target":"sm_90"}"#) && json.contains(r#""name":"cuda:0""#)
        );
        assert_eq!(json.matches('{').count(), json.matches('}').count());
    }
}
