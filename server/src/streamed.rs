//! Streamed answers: a response body that sends pieces when they are ready.

use crate::generation::AnswerEvent;
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use hyper::body::{Bytes, Frame};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep};

/// Pieces between an answer and its connection. The limit ensures that a slow reader only delays
/// its own answer.
pub const IN_FLIGHT: usize = 256;
/// Maximum time without output. Proxies close connections that are silent for longer.
const MAX_SILENCE: Duration = Duration::from_secs(10);
/// Approximate maximum bytes of a frame: pieces that are ready are sent together.
const MAX_FRAME_BYTES: usize = 16 << 10;

/// Converts pieces to the dialect's text. `None` is the end, and is passed once.
pub type Format = Box<dyn FnMut(Option<(usize, AnswerEvent)>) -> String + Send>;

struct Streamed {
    pieces: mpsc::Receiver<(usize, AnswerEvent)>,
    format: Format,
    /// Text that is sent during silence.
    nothing: &'static str,
    silence: Pin<Box<Sleep>>,
    ended: bool,
}

/// Server-sent events.
pub fn events(pieces: mpsc::Receiver<(usize, AnswerEvent)>, format: Format) -> Response {
    response(pieces, format, "text/event-stream", ": \n\n")
}

/// Server-sent events with names. During silence this event is sent.
pub fn named_events(
    pieces: mpsc::Receiver<(usize, AnswerEvent)>,
    format: Format,
    nothing: &'static str,
) -> Response {
    response(pieces, format, "text/event-stream", nothing)
}
/// One JSON document per line (Ollama).
pub fn lines(pieces: mpsc::Receiver<(usize, AnswerEvent)>, format: Format) -> Response {
    response(pieces, format, "application/x-ndjson", "\n")
}

fn response(
    pieces: mpsc::Receiver<(usize, AnswerEvent)>,
    format: Format,
    kind: &'static str,
    nothing: &'static str,
) -> Response {
    let streamed =
        Streamed { pieces, format, nothing, silence: Box::pin(sleep(MAX_SILENCE)), ended: false };
    let mut response = Response::new(Body::new(streamed));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Without this header nginx buffers the answer.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl hyper::body::Body for Streamed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut text = String::new();
        while !self.ended && text.len() < MAX_FRAME_BYTES {
            let Poll::Ready(piece) = self.pieces.poll_recv(context) else { break };
            self.ended = piece.is_none();
            text += &(self.format)(piece);
        }
        if text.is_empty() {
            if self.ended {
                return Poll::Ready(None);
            }
            if self.silence.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            text = self.nothing.to_owned();
        }
        self.silence.as_mut().reset(Instant::now() + MAX_SILENCE);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(text)))))
    }
}
