//! The byte stream of a connection, with time limits. A client that does not read, or does not
//! complete a request head, is disconnected. A client that has closed only its sending side still
//! gets its answer.

use crate::connection_state::{ConnectionState, OnClientEof};
use crate::options::Limits;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// Interim response that tests whether a client that closed its sending side still listens. All
/// HTTP/1.1 clients ignore it. If the client process has ended, its system resets the connection,
/// and the next write fails.
const PROBE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// Time before the first test: most answers are complete by then.
const FIRST_TEST: Duration = Duration::from_millis(500);
/// Time before the second test. A reset after the first test can arrive in this time.
const SECOND: Duration = Duration::from_millis(250);
/// Time between all later tests.
const TEST_INTERVAL: Duration = Duration::from_secs(5);
/// After the last answer, the client's remaining bytes are read for this time. Closing before they
/// are read would discard the answer.
const CLOSE_DELAY: Duration = Duration::from_secs(2);
/// Maximum number of these bytes.
const LINGER_BYTES: usize = 64 << 20;

/// A connection with time limits.
pub struct Connection<S> {
    stream: S,
    activity: Arc<ConnectionState>,
    /// Maximum time of a write.
    patience: Duration,
    /// Maximum time from the first byte of a head to its last.
    head: Duration,
    /// Timer while a write waits.
    writing: Option<Pin<Box<Sleep>>>,
    /// Timer while a head arrives.
    reading: Option<Pin<Box<Sleep>>>,
    /// Timer until the next test of a client that has closed its sending side.
    silent: Option<(Pin<Box<Sleep>>, Duration)>,
    /// Timer after the last write: when it ends, remaining bytes are no longer read.
    lingering: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Wraps a stream. It closes if the client reads nothing for too long or does not complete a
    /// head.
    pub fn new(stream: S, activity: Arc<ConnectionState>, limits: &Limits) -> Connection<S> {
        let (patience, head) = (limits.write, limits.headers);
        Connection {
            stream,
            activity,
            patience,
            head,
            writing: None,
            reading: None,
            silent: None,
            lingering: None,
        }
    }

    fn watched<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        self.activity.unwritten(poll.is_pending());
        if poll.is_ready() {
            self.writing = None;
            return poll;
        }
        let patience = self.patience;
        let writing = self.writing.get_or_insert_with(|| Box::pin(sleep(patience)));
        match writing.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Fails if a head takes too long.
    fn head_in_time(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(until) = self.activity.head_since().and_then(|since| since.checked_add(self.head))
        else {
            self.reading = None;
            return Ok(());
        };
        let reading = self.reading.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if reading.deadline() != until {
            reading.as_mut().reset(until);
        }
        match reading.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }

    /// The client has closed its sending side. It may still listen while a request is unanswered.
    fn said_all(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let silence = self.activity.silence();
            let first = if silence == OnClientEof::Old { self.patience } else { FIRST_TEST };
            let (timer, next) = self.silent.get_or_insert_with(|| (Box::pin(sleep(first)), SECOND));
            match silence {
                OnClientEof::End => return Poll::Ready(Ok(())),
                OnClientEof::Answers => return Poll::Pending,
                OnClientEof::Asked | OnClientEof::Old => ready!(timer.as_mut().poll(context)),
            }
            if silence == OnClientEof::Old {
                return Poll::Ready(Ok(()));
            }
            match Pin::new(&mut self.stream).poll_write(context, PROBE) {
                Poll::Ready(Ok(n)) if n == PROBE.len() => {}
                Poll::Ready(Err(why)) => return Poll::Ready(Err(why)),
                // The socket does not accept even these few bytes.
                Poll::Ready(Ok(_)) | Poll::Pending => {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
            let _ = Pin::new(&mut self.stream).poll_flush(context)?;
            timer.as_mut().reset(Instant::now() + *next);
            *next = TEST_INTERVAL;
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.silent.is_some() {
            return self.said_all(context);
        }
        let before = to.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(context, to);
        if let Poll::Ready(Ok(())) = poll {
            match to.filled().get(before..) {
                Some(some @ [_, ..]) => self.activity.took(some),
                _ => return self.said_all(context),
            }
        }
        self.head_in_time(context)?;
        poll
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, from);
        self.watched(context, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, from);
        self.watched(context, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_flush(context);
        self.watched(context, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let me = &mut *self;
        if me.lingering.is_none() {
            ready!(Pin::new(&mut me.stream).poll_shutdown(context))?;
            if me.silent.is_some() || !me.activity.lacks_body() {
                return Poll::Ready(Ok(()));
            }
        }
        let (timer, bytes) = me.lingering.get_or_insert_with(|| (Box::pin(sleep(CLOSE_DELAY)), 0));
        let mut some = [0; 8192];
        while *bytes < LINGER_BYTES && timer.as_mut().poll(context).is_pending() {
            let mut to = ReadBuf::new(&mut some);
            match ready!(Pin::new(&mut me.stream).poll_read(context, &mut to)) {
                Ok(()) if !to.filled().is_empty() => *bytes += to.filled().len(),
                _ => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}
