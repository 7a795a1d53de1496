//! Sockets and signals: accepts connections until a signal comes, then finishes running requests.

use crate::announce::Announcements;
use crate::connection::Connection;
use crate::connection_limit::{ConnectionLimit, ConnectionSlot};
use crate::connection_state::ConnectionState;
use crate::loaded::Loaded;
use crate::options::{Limits, Options};
use crate::preparation::PLACES;
use crate::refusal::{Dialect, Refusal};
use crate::routes::routes;
use crate::running::SocketRegistration;
use crate::service::Service;
use crate::traces::Tracer;
use axum::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};

/// The signal that stopped the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// SIGTERM. Running requests were finished, or the time limit was over.
    Terminated,
    /// Ctrl-C. It is handled like SIGTERM.
    Interrupted,
}

/// Errors that end the server or prevent its start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Anyone could use the server, and no flag allows that.
    #[error("{0}")]
    Open(String),
    /// The address is in use, or does not belong to this machine.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The system cannot start threads or signal handlers.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
    /// The model cannot be opened.
    #[error("{0}")]
    Model(String),
}

/// Threads for connections. Computation has other threads.
const THREADS: usize = 2;
/// Threads for blocking work: twice the number that prepare requests. The others query the device
/// or open a model.
const WORKERS: usize = 4 * PLACES;
/// Time after the stop timeout in which the last errors are sent.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Maximum bytes of a request head, and of a single read of a body.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Files that are not connections: a quarter of the limit, within these bounds. Models, kernels,
/// compilers and drivers open files.
const OTHER_FILES: (usize, usize) = (24, 256);

/// Serves until a signal stops the server.
///
/// # Errors
/// The server cannot start, or the model cannot be opened.
pub fn serve(mut options: Options) -> Result<End, ServeError> {
    options.check().map_err(ServeError::Open)?;
    let (files, asked) = (more_files(), options.limits.connections);
    let fit = files.saturating_sub((files / 4).clamp(OTHER_FILES.0, OTHER_FILES.1)).max(1);
    if fit < asked {
        options.limits.connections = fit;
        let cure = "raise the limit (ulimit -n, LimitNOFILE= of a service)";
        (options.say)(&format!(
            "warning: this process may open {files} files: \
             {fit} connections at once instead of {asked}; {cure}"
        ));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(WORKERS)
        .enable_all()
        .build()?;
    let end = runtime.block_on(run(options));
    // A thread that hangs in a driver must not delay the exit.
    runtime.shutdown_background();
    end
}

/// Raises the limit of open files to the maximum and returns it. Each connection is a file, and the
/// initial limit is often 1,024.
fn more_files() -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If raising fails, fewer connections are possible.
    let _ = setrlimit(Resource::Nofile, limit);
    let files = getrlimit(Resource::Nofile).current;
    files.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX)
}

async fn run(options: Options) -> Result<End, ServeError> {
    let address = SocketAddr::new(options.host, options.port);
    let listen = |source| ServeError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(listen)?;
    let here = listener.local_addr().map_err(listen)?;
    if let Some(events) = &options.kv_events {
        let listen = |(address, source)| ServeError::Listen { address, source };
        events.begin(options.say).await.map_err(listen)?;
    }
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut service = Service::new(options);
    if let Some(export) = &service.options.traces {
        service.tracer = Some(Tracer::begin(export, service.options.say)?);
    }
    let service = Arc::new(service);
    let here = ServerUrl {
        scheme: if service.options.tls.is_some() { "https" } else { "http" },
        address: here,
    };
    let listed = match SocketRegistration::begin(&service.options.sockets, &service, &here) {
        Ok(listed) => listed,
        Err(why) => {
            (service.options.say)(&format!("warning: kjit ps does not show this server: {why}"));
            None
        }
    };
    let mut files = service.options.models.iter().map(|model| model.path.display().to_string());
    let (first, others) = (files.next().unwrap_or_default(), files.collect::<Vec<_>>().join(", "));
    let later =
        if others.is_empty() { others } else { format!("; on their first request: {others}") };
    (service.options.say)(&format!("listening on {here}, loading {first}{later}"));
    let mut load = load(&service, here)?;
    let worker = service.options.worker.as_ref();
    let announcements =
        worker.and_then(|worker| Announcements::begin(&service, worker, here.address.port()));
    let (stopping, (alive, gone)) = (watch::Sender::new(false), mpsc::channel(1));
    let door = Acceptor::new(&service, stopping.clone(), alive);
    let door = tokio::spawn(door.open(listener));
    let end = loop {
        tokio::select! {
            _ = terminate.recv() => break Ok(End::Terminated),
            _ = interrupt.recv() => break Ok(End::Interrupted),
            opened = &mut load, if !load.is_terminated() => {
                let fault = || "an internal fault while the model was loaded".to_owned();
                if let Err(why) = opened.unwrap_or_else(|_| Err(fault())) {
                    break Err(ServeError::Model(why));
                }
            }
        }
    };
    let mut at_once = false;
    if matches!(end, Ok(End::Terminated)) && !service.options.limits.drain.is_zero() {
        let delay = service.options.limits.drain;
        service.drain();
        let seconds = delay.as_secs();
        (service.options.say)(&format!("draining: requests are still accepted for {seconds} s"));
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            _ = terminate.recv() => at_once = true,
            _ = interrupt.recv() => at_once = true,
        }
    }
    // Stops accepting connections.
    door.abort();
    let _ = door.await;
    if at_once {
        service.stop();
        (service.options.say)("stopped at once");
    } else if end.is_ok() {
        let _ = stopping.send(true);
        stop(&service, gone, &mut terminate, &mut interrupt).await;
    }
    if let Some(announcements) = announcements {
        announcements.end().await;
    }
    let last = Arc::clone(&service);
    let _ = service.work(move || last.tracer.iter().for_each(Tracer::end)).await;
    drop(listed);
    end
}

/// The URL of the server.
#[derive(Clone, Copy)]
struct ServerUrl {
    scheme: &'static str,
    address: SocketAddr,
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.address)
    }
}

/// Starts the thread that loads the first model, and other models on request. An error of the first
/// model is sent through the channel.
fn load(
    service: &Arc<Service>,
    here: ServerUrl,
) -> io::Result<oneshot::Receiver<Result<(), String>>> {
    let (to, opened) = oneshot::channel();
    let service = Arc::clone(service);
    let open = move || {
        let line = |loaded: &Loaded| serving(loaded, here);
        let begun = service.models.begin(&service.options, &line);
        let good = begun.is_ok();
        let _ = to.send(begun);
        if good {
            service.models.keep(&service.options, &line);
        }
    };
    std::thread::Builder::new().name("kjit-load".to_owned()).spawn(open)?;
    Ok(opened)
}

/// The log line about a loaded model.
fn serving(loaded: &Loaded, here: ServerUrl) -> String {
    let (status, device) = (loaded.scheduler.status(), &loaded.device);
    let room = if loaded.encoder {
        format!("texts of {} tokens", loaded.context)
    } else if status.room < status.slots.saturating_mul(loaded.context) {
        format!("{} sequences of {} tokens, {} together", status.slots, loaded.context, status.room)
    } else {
        format!("{} sequences of {} tokens", status.slots, loaded.context)
    };
    format!("serving {} on {here}: {device}, {room}", loaded.name())
}

/// Accepts connections, up to the limit.
struct Acceptor {
    service: Arc<Service>,
    router: Router,
    places: Arc<ConnectionLimit>,
    /// Signals connections to close.
    stopping: watch::Sender<bool>,
    /// Each connection holds a clone. The receiver ends when all are dropped.
    alive: mpsc::Sender<()>,
}

impl Acceptor {
    fn new(
        service: &Arc<Service>,
        stopping: watch::Sender<bool>,
        alive: mpsc::Sender<()>,
    ) -> Acceptor {
        let places = ConnectionLimit::new(service.options.limits.connections);
        Acceptor { service: Arc::clone(service), router: routes(service), places, stopping, alive }
    }

    /// Accepts connections, each when the limit allows it.
    async fn open(self, listener: TcpListener) {
        let mut said = false;
        loop {
            match listener.accept().await {
                Ok((stream, from)) => match self.places.take(from.ip()).await {
                    Some(place) => self.let_in(stream, place),
                    None => full(&stream),
                },
                // The client disconnected before it was accepted.
                Err(why) if why.kind() == io::ErrorKind::ConnectionAborted => {}
                // No file descriptor or memory is left: the connection that has been idle longest
                // is closed.
                Err(why) => {
                    if !std::mem::replace(&mut said, true) {
                        let closed = "the connections that have been idle longest are closed";
                        (self.service.options.say)(&format!(
                            "warning: no connection can be accepted: {why}: {closed}"
                        ));
                    }
                    self.places.part();
                    self.places.one_left().await;
                }
            }
        }
    }

    fn let_in(&self, stream: TcpStream, place: ConnectionSlot) {
        let (service, router, alive) =
            (Arc::clone(&self.service), self.router.clone(), self.alive.clone());
        let mut stopping = self.stopping.subscribe();
        tokio::spawn(async move {
            let open = &service.metrics.connections;
            open.fetch_add(1, Ordering::Relaxed);
            // Small packets are sent immediately: clients wait for each token.
            let _ = stream.set_nodelay(true);
            let (limits, activity) = (&service.options.limits, &place.activity);
            match &service.options.tls {
                None => answer(stream, limits, router, activity, &mut stopping).await,
                // A client whose TLS handshake fails or takes too long is dropped.
                Some(tls) => {
                    let greeted = tokio::select! {
                        greeted = tls.greet(stream, limits.greeting) => greeted,
                        () = activity.gives_way() => None,
                        _ = stopping.wait_for(|stopping| *stopping) => None,
                    };
                    if let Some(stream) = greeted {
                        answer(stream, limits, router, activity, &mut stopping).await;
                    }
                }
            }
            open.fetch_sub(1, Ordering::Relaxed);
            drop((place, alive));
        });
    }
}

/// Sends a client the error that its address has its maximum number of connections, if it can be
/// sent immediately.
fn full(stream: &TcpStream) {
    let why = "this address has the maximum number of connections, and all of them are in use";
    let body = Refusal::unavailable(2, why).json(Dialect::OpenAi).to_string();
    let head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: \
        application/json\r\nRetry-After: 2\r\nConnection: close";
    let _ = stream
        .try_write(format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
}

/// Answers requests on a connection until it ends, must close, or the server stops.
pub async fn answer<S>(
    stream: S,
    limits: &Limits,
    router: Router,
    activity: &Arc<ConnectionState>,
    stopping: &mut watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = TokioIo::new(Connection::new(stream, Arc::clone(activity), limits));
    let answers = service_fn(|request| activity.answer(router.clone(), request));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(connection, answers);
    let mut serving = pin!(serving);
    tokio::select! {
        _ = serving.as_mut() => return,
        () = activity.gives_way() => return,
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
    serving.as_mut().graceful_shutdown();
    let _ = serving.await;
}

/// Finishes running requests. A second signal ends the server immediately.
async fn stop(
    service: &Arc<Service>,
    mut gone: mpsc::Receiver<()>,
    terminate: &mut Signal,
    interrupt: &mut Signal,
) {
    service.stop();
    let say = service.options.say;
    let deadline = service.options.limits.stop;
    let until = Instant::now() + deadline;
    let loaded: Vec<Arc<Loaded>> = service.models.loaded();
    let asked = loaded
        .iter()
        .map(|loaded| loaded.scheduler.status())
        .map(|s| s.running + s.waiting)
        .sum::<usize>();
    let busy = asked + service.preparation.held();
    say(&format!(
        "stopping: {busy} requests are finished first, for {} s at most",
        deadline.as_secs()
    ));
    let finished = async {
        let in_time = tokio::time::timeout(deadline, gone.recv()).await.is_ok();
        let rest = until.saturating_duration_since(Instant::now());
        // All models stop simultaneously, so that no model uses up the remaining time of another.
        let stops =
            loaded.into_iter().map(|loaded| tokio::task::spawn_blocking(move || loaded.stop(rest)));
        for stop in stops.collect::<Vec<_>>() {
            let _ = stop.await;
        }
        if !in_time {
            // Unfinished requests have got an error, which is still being sent.
            let _ = tokio::time::timeout(LAST_WORDS, gone.recv()).await;
        }
        in_time
    };
    tokio::select! {
        in_time = finished => say(if in_time { "stopped" } else { "stopped before everything \
                                                                   was finished" }),
        _ = terminate.recv() => say("stopped at once"),
        _ = interrupt.recv() => say("stopped at once"),
    }
}
