//! A connection's bytes: who takes nothing of what is written is left, who does not end a head,
//! too, and who says no more but listens has the answer.

use crate::doing::{Doing, Silence};
use crate::options::Limits;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// Who says no more is asked whether it listens, by an answer that every client of HTTP/1.1 passes
/// over: the network of one that has closed its end refuses it, and the next write fails.
const ARE_YOU_THERE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// Most answers are there before anybody need be asked.
const FIRST: Duration = Duration::from_millis(500);
/// For the refusal to come back.
const SECOND: Duration = Duration::from_millis(250);
/// From then on.
const LATER: Duration = Duration::from_secs(5);
/// After the last answer: for what the client still sends. A connection that is closed before that
/// was read takes the answer with it.
const LINGER: Duration = Duration::from_secs(2);
/// Of that.
const LINGER_BYTES: usize = 64 << 20;

/// A connection with limits on how long it may wait.
pub struct Connection<S> {
    stream: S,
    doing: Arc<Doing>,
    /// How long a write may wait.
    patience: Duration,
    /// From a head's first byte to its last.
    head: Duration,
    /// Runs while a write waits.
    writing: Option<Pin<Box<Sleep>>>,
    /// Runs while a head comes.
    reading: Option<Pin<Box<Sleep>>>,
    /// The client says no more; runs until it is asked whether it listens.
    silent: Option<(Pin<Box<Sleep>>, Duration)>,
    /// Nothing is written any more; runs until what comes is not taken any more.
    lingering: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Closes when the other end takes nothing for too long, or does not end a head.
    pub fn new(stream: S, doing: Arc<Doing>, limits: &Limits) -> Connection<S> {
        let (patience, head) = (limits.write, limits.headers);
        Connection {
            stream,
            doing,
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
        self.doing.unwritten(poll.is_pending());
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

    /// A head that has begun must end.
    fn head_in_time(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(until) = self.doing.head_since().and_then(|since| since.checked_add(self.head))
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

    /// The client says no more. As long as there is something to answer it may listen.
    fn said_all(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let silence = self.doing.silence();
            let first = if silence == Silence::Old { self.patience } else { FIRST };
            let (timer, next) = self.silent.get_or_insert_with(|| (Box::pin(sleep(first)), SECOND));
            match silence {
                Silence::End => return Poll::Ready(Ok(())),
                Silence::Answers => return Poll::Pending,
                Silence::Asked | Silence::Old => ready!(timer.as_mut().poll(context)),
            }
            if silence == Silence::Old {
                return Poll::Ready(Ok(()));
            }
            match Pin::new(&mut self.stream).poll_write(context, ARE_YOU_THERE) {
                Poll::Ready(Ok(n)) if n == ARE_YOU_THERE.len() => {}
                Poll::Ready(Err(why)) => return Poll::Ready(Err(why)),
                // Not even so little goes out.
                Poll::Ready(Ok(_)) | Poll::Pending => {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
            let _ = Pin::new(&mut self.stream).poll_flush(context)?;
            timer.as_mut().reset(Instant::now() + *next);
            *next = LATER;
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
                Some(some @ [_, ..]) => self.doing.took(some),
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
            if me.silent.is_some() || !me.doing.lacks_body() {
                return Poll::Ready(Ok(()));
            }
        }
        let (timer, bytes) = me.lingering.get_or_insert_with(|| (Box::pin(sleep(LINGER)), 0));
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
