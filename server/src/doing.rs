//! What a connection does at the moment: it waits for a request, or a request of it is being
//! answered. The door asks it, because who waits longest gives way to others; the connection asks
//! it, because one that says no more may still listen.

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

/// What a connection does.
pub struct Doing {
    now: Mutex<Now>,
    /// It was told to give way.
    told: Notify,
}

struct Now {
    stage: Stage,
    /// Since when it waits.
    since: Instant,
    /// When a request's first byte had come.
    begun: Option<Instant>,
    raw: RawHead,
    /// Bytes that are ready wait for the other end.
    unwritten: bool,
    /// It gives way unless a request comes before it hears of that.
    goes: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// For a request.
    Waits,
    /// There is one, and no answer yet. A client of HTTP/1.0 knows no interim answers.
    Asked { old: bool },
    /// The answer is on its way.
    Answers,
}

/// What the end of what a client sends means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// It is the end of the connection.
    End,
    /// There is a request: the client may listen, or be gone. An interim answer finds out.
    Asked,
    /// There is a request of a client that knows no interim answers.
    Old,
    /// It is being answered: writing finds out.
    Answers,
}

impl Doing {
    /// It waits for its first request.
    pub fn new() -> Arc<Doing> {
        let now = Now {
            stage: Stage::Waits,
            since: Instant::now(),
            begun: None,
            raw: RawHead::default(),
            unwritten: false,
            goes: false,
        };
        Arc::new(Doing { now: Mutex::new(now), told: Notify::new() })
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These bytes came.
    pub fn took(&self, bytes: &[u8]) {
        let mut now = self.now();
        now.raw.took(bytes);
        now.head();
    }

    /// When the first byte of a head came that is not complete.
    pub fn head_since(&self) -> Option<Instant> {
        self.now().begun
    }

    /// Whether bytes that are ready wait for the other end.
    pub fn unwritten(&self, unwritten: bool) {
        self.now().unwritten = unwritten;
    }

    /// A part of a body has not come, or it is not known whether all has.
    pub fn lacks_body(&self) -> bool {
        self.now().raw.missing() != Some(0)
    }

    /// What it means that the client says no more.
    pub fn silence(&self) -> Silence {
        let now = self.now();
        match now.stage {
            _ if now.raw.missing().is_some_and(|missing| missing > 0) => Silence::End,
            Stage::Waits => Silence::End,
            Stage::Asked { old: false } => Silence::Asked,
            Stage::Asked { old: true } => Silence::Old,
            Stage::Answers => Silence::Answers,
        }
    }

    /// Since when nothing is asked of it and nothing on its way; none: there is something.
    pub fn idle_since(&self) -> Option<Instant> {
        let now = self.now();
        (now.stage == Stage::Waits && !now.unwritten && !now.goes).then_some(now.since)
    }

    /// Whether it was told to give way and has not heard it.
    pub fn goes(&self) -> bool {
        self.now().goes
    }

    /// It gives way, unless a request comes before it hears of that.
    pub fn give_way(&self) {
        self.now().goes = true;
        self.told.notify_one();
    }

    /// Waits until it must give way.
    pub async fn gives_way(&self) {
        loop {
            self.told.notified().await;
            let mut now = self.now();
            if now.goes && now.stage == Stage::Waits && !now.unwritten {
                return;
            }
            now.goes = false;
        }
    }

    /// Answers a request. It is there from now on, not from the future's first poll on: before that
    /// hyper looks whether the client left.
    pub fn answer(
        self: &Arc<Doing>,
        router: Router,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Body>, Infallible>> + use<> {
        let length = request.body().size_hint().exact();
        {
            let mut now = self.now();
            now.stage = Stage::Asked { old: request.version() < Version::HTTP_11 };
            (now.begun, now.goes) = (None, false);
            if now.raw.ended(length) && length.is_none() {
                request.extensions_mut().insert(TwoLengths);
            }
        }
        let asked = Asked(Arc::clone(self));
        async move {
            let doing = &asked.0;
            let mut response = TowerToHyperService::new(router).call(request).await?;
            doing.now().stage = Stage::Answers;
            if doing.lacks_body() {
                // Where the next head would begin is not known, or not worth reading on to.
                response
                    .headers_mut()
                    .insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response.map(|body| Body::new(Answer { body, _asked: asked })))
        }
    }
}

impl Now {
    /// Notes when a head begins.
    fn head(&mut self) {
        if self.stage == Stage::Waits && self.begun.is_none() && self.raw.begun() {
            self.begun = Some(Instant::now());
        }
    }
}

/// A request, until its answer is given or given up.
struct Asked(Arc<Doing>);

impl Drop for Asked {
    fn drop(&mut self) {
        let mut now = self.0.now();
        (now.stage, now.since) = (Stage::Waits, Instant::now());
        // The next one may be there already.
        now.head();
    }
}

struct Answer {
    body: Body,
    _asked: Asked,
}

impl hyper::body::Body for Answer {
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
