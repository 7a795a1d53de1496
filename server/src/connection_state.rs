//! The state of a connection: it waits for a request, or a request is being answered. The accept
//! loop uses it to close the connection that has been idle longest. The connection uses it to find
//! out whether a client that has closed its sending side still listens.

use crate::head::{RawHead, TwoLengths};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, Version, header};
use hyper::body::{Body as _, Bytes, Frame, Incoming, SizeHint};
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The state of a connection.
pub struct ConnectionState {
    now: Mutex<Activity>,
    /// Wakes the connection when it must close.
    told: Notify,
}

struct Activity {
    stage: ReadStage,
    /// Time at which the wait for a request began.
    since: Instant,
    /// Arrival time of the first byte of an incomplete head.
    begun: Option<Instant>,
    raw: RawHead,
    /// Bytes are ready and the client does not read them.
    unwritten: bool,
    /// The connection must close, unless a request arrives first.
    goes: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadStage {
    /// The connection waits for a request.
    Waits,
    /// A request has arrived and its answer has not begun. An HTTP/1.0 client does not know interim
    /// responses.
    Asked { old: bool },
    /// An answer is being sent.
    Answers,
}

/// The action when the client has closed its sending side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnClientEof {
    /// Close the connection.
    End,
    /// A request is unanswered, and the client may have closed the connection. An interim response
    /// tests this.
    Asked,
    /// A request is unanswered, from a client that does not know interim responses.
    Old,
    /// An answer is being sent. Writes fail if the client closed the connection.
    Answers,
}

impl ConnectionState {
    /// A connection that waits for its first request.
    pub fn new() -> Arc<ConnectionState> {
        let now = Activity {
            stage: ReadStage::Waits,
            since: Instant::now(),
            begun: None,
            raw: RawHead::default(),
            unwritten: false,
            goes: false,
        };
        Arc::new(ConnectionState { now: Mutex::new(now), told: Notify::new() })
    }

    fn now(&self) -> MutexGuard<'_, Activity> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes bytes that were received.
    pub fn took(&self, bytes: &[u8]) {
        let mut now = self.now();
        now.raw.took(bytes);
        now.head();
    }

    /// Arrival time of the first byte of an incomplete head.
    pub fn head_since(&self) -> Option<Instant> {
        self.now().begun
    }

    /// Stores whether bytes wait for the client.
    pub fn unwritten(&self, unwritten: bool) {
        self.now().unwritten = unwritten;
    }

    /// Whether a part of the request body is missing, or may be missing.
    pub fn lacks_body(&self) -> bool {
        self.now().raw.missing() != Some(0)
    }

    /// The action when the client has closed its sending side.
    pub fn silence(&self) -> OnClientEof {
        let now = self.now();
        match now.stage {
            _ if now.raw.missing().is_some_and(|missing| missing > 0) => OnClientEof::End,
            ReadStage::Waits => OnClientEof::End,
            ReadStage::Asked { old: false } => OnClientEof::Asked,
            ReadStage::Asked { old: true } => OnClientEof::Old,
            ReadStage::Answers => OnClientEof::Answers,
        }
    }

    /// Start of the idle time. `None` while a request is being answered.
    pub fn idle_since(&self) -> Option<Instant> {
        let now = self.now();
        (now.stage == ReadStage::Waits && !now.unwritten && !now.goes).then_some(now.since)
    }

    /// Whether the connection must close and has not closed yet.
    pub fn goes(&self) -> bool {
        self.now().goes
    }

    /// Closes the connection, unless a request arrives first.
    pub fn give_way(&self) {
        self.now().goes = true;
        self.told.notify_one();
    }

    /// Waits until the connection must close.
    pub async fn gives_way(&self) {
        loop {
            self.told.notified().await;
            let mut now = self.now();
            if now.goes && now.stage == ReadStage::Waits && !now.unwritten {
                return;
            }
            now.goes = false;
        }
    }

    /// Answers a request. The request counts from this call on, not from the first poll of the
    /// future: before that poll hyper checks whether the client has left.
    pub fn answer(
        self: &Arc<ConnectionState>,
        router: Router,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Body>, Infallible>> + use<> {
        let length = request.body().size_hint().exact();
        {
            let mut now = self.now();
            now.stage = ReadStage::Asked { old: request.version() < Version::HTTP_11 };
            (now.begun, now.goes) = (None, false);
            if now.raw.ended(length) && length.is_none() {
                request.extensions_mut().insert(TwoLengths);
            }
        }
        let asked = PendingRequest(Arc::clone(self));
        async move {
            let activity = &asked.0;
            let mut response = TowerToHyperService::new(router).call(request).await?;
            activity.now().stage = ReadStage::Answers;
            if activity.lacks_body() {
                // The start of the next head is unknown, or too far away to read up to it.
                response
                    .headers_mut()
                    .insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response.map(|body| Body::new(AnswerProgress { body, _asked: asked })))
        }
    }
}

impl Activity {
    /// Records the start of a head.
    fn head(&mut self) {
        if self.stage == ReadStage::Waits && self.begun.is_none() && self.raw.begun() {
            self.begun = Some(Instant::now());
        }
    }
}

/// A request that is being answered. The answer ends when this is dropped.
struct PendingRequest(Arc<ConnectionState>);

impl Drop for PendingRequest {
    fn drop(&mut self) {
        let mut now = self.0.now();
        (now.stage, now.since) = (ReadStage::Waits, Instant::now());
        // The next request may have arrived already.
        now.head();
    }
}

struct AnswerProgress {
    body: Body,
    _asked: PendingRequest,
}

impl hyper::body::Body for AnswerProgress {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
