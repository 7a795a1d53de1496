//! Sockets and signals: takes connections until it is told to stop, and then finishes what runs.

use crate::connection::Connection;
use crate::desk::PLACES;
use crate::fleet;
use crate::loaded::Loaded;
use crate::options::{Limits, Options};
use crate::routes::routes;
use crate::service::Service;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
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
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

/// Why serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// SIGTERM: everything that ran was finished, or had its time.
    Terminated,
    /// Ctrl-C: the same.
    Interrupted,
}

/// Why nothing can be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// It would let everybody in.
    #[error("{0}")]
    Open(String),
    /// The address cannot be had.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The system gives no threads, or no signals.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
    /// The model cannot be opened.
    #[error("{0}")]
    Model(String),
}

/// Threads that look after connections: what computes has its own.
const THREADS: usize = 2;
/// Threads for what takes a while: requests that are prepared, and as many for what looks at the device or opens a model.
const WORKERS: usize = 4 * PLACES;
/// After the time for what runs is over: for the last words to be written.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Serves until a signal ends it.
///
/// # Errors
/// Nothing can be served, or the model cannot be opened.
pub fn serve(options: Options) -> Result<End, ServeError> {
    options.check().map_err(ServeError::Open)?;
    more_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(WORKERS)
        .enable_all()
        .build()?;
    let end = runtime.block_on(run(options));
    // A thread that hangs in a driver holds up nobody.
    runtime.shutdown_background();
    end
}

/// As many files as the system lets this process have: a connection is one, and 1,024 is what many systems
/// begin with.
fn more_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where that is refused, fewer connections fit.
    let _ = setrlimit(Resource::Nofile, limit);
}

async fn run(options: Options) -> Result<End, ServeError> {
    let address = SocketAddr::new(options.host, options.port);
    let listen = |source| ServeError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(listen)?;
    let here = listener.local_addr().map_err(listen)?;
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let service = Arc::new(Service::new(options));
    let here = Here { scheme: if service.options.tls.is_some() { "https" } else { "http" }, address: here };
    let mut files = service.options.models.iter().map(|model| model.path.display().to_string());
    let (first, others) = (files.next().unwrap_or_default(), files.collect::<Vec<_>>().join(", "));
    let later = if others.is_empty() { others } else { format!("; when they are asked for: {others}") };
    (service.options.say)(&format!("listening on {here}, loading {first}{later}"));
    let mut load = load(&service, here)?;
    if let Some(worker) = service.options.worker.clone() {
        tokio::spawn(fleet::announce(Arc::clone(&service), worker, here.address.port()));
    }
    let door = Door::new(&service);
    let end = loop {
        tokio::select! {
            _ = terminate.recv() => break End::Terminated,
            _ = interrupt.recv() => break End::Interrupted,
            opened = &mut load, if !load.is_terminated() => {
                match opened {
                    Ok(Ok(())) => {}
                    Ok(Err(why)) => return Err(ServeError::Model(why)),
                    Err(_) => return Err(ServeError::Model("an internal fault while the model was loaded".to_owned())),
                }
            }
            (stream, permit) = door.next(&listener) => door.let_in(stream, permit),
        }
    };
    drop(listener);
    stop(&service, door, &mut terminate, &mut interrupt).await;
    Ok(end)
}

/// Where it listens, as clients write it.
#[derive(Clone, Copy)]
struct Here {
    scheme: &'static str,
    address: SocketAddr,
}

impl fmt::Display for Here {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.address)
    }
}

/// A thread of its own loads the first model, then what is asked for. What is wrong at the start comes through the channel.
fn load(service: &Arc<Service>, here: Here) -> io::Result<oneshot::Receiver<Result<(), String>>> {
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

/// What is said of a model that is there.
fn serving(loaded: &Loaded, here: Here) -> String {
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

/// Lets connections in, as many as may be there at once.
struct Door {
    service: Arc<Service>,
    router: Router,
    places: Arc<Semaphore>,
    /// Says that it is time to go.
    stopping: watch::Sender<bool>,
    /// Every connection has one: when all are gone, the receiver hears it.
    alive: mpsc::Sender<()>,
    gone: mpsc::Receiver<()>,
}

impl Door {
    fn new(service: &Arc<Service>) -> Door {
        let (alive, gone) = mpsc::channel(1);
        Door {
            service: Arc::clone(service),
            router: routes(service),
            places: Arc::new(Semaphore::new(service.options.limits.connections)),
            stopping: watch::channel(false).0,
            alive,
            gone,
        }
    }

    /// The next connection, when there is a place for it.
    async fn next(&self, listener: &TcpListener) -> (TcpStream, Option<OwnedSemaphorePermit>) {
        let permit = Arc::clone(&self.places).acquire_owned().await.ok();
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return (stream, permit),
                // Out of files, or gone before it was taken: others may be well.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    fn let_in(&self, stream: TcpStream, permit: Option<OwnedSemaphorePermit>) {
        let (service, router, alive) = (Arc::clone(&self.service), self.router.clone(), self.alive.clone());
        let mut stopping = self.stopping.subscribe();
        tokio::spawn(async move {
            let open = &service.metrics.connections;
            open.fetch_add(1, Ordering::Relaxed);
            // Tokens are small and somebody waits for each.
            let _ = stream.set_nodelay(true);
            let limits = &service.options.limits;
            match &service.options.tls {
                None => answer(stream, limits, router, &mut stopping).await,
                // Whoever does not come to an understanding, or says nothing, is left.
                Some(tls) => {
                    let greeted = tokio::select! {
                        greeted = tls.greet(stream, limits.greeting) => greeted,
                        _ = stopping.wait_for(|stopping| *stopping) => None,
                    };
                    if let Some(stream) = greeted {
                        answer(stream, limits, router, &mut stopping).await;
                    }
                }
            }
            open.fetch_sub(1, Ordering::Relaxed);
            drop((permit, alive));
        });
    }
}

/// Answers what comes over a connection, until it ends or it is time to go.
pub async fn answer<S>(stream: S, limits: &Limits, router: Router, stopping: &mut watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = TokioIo::new(Connection::new(stream, limits.write));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.headers)
        .serve_connection(connection, TowerToHyperService::new(router));
    let mut serving = pin!(serving);
    let early = tokio::select! {
        _ = serving.as_mut() => false,
        _ = stopping.wait_for(|stopping| *stopping) => true,
    };
    if early {
        serving.as_mut().graceful_shutdown();
        let _ = serving.await;
    }
}

/// Finishes what runs. A second signal ends it at once.
async fn stop(service: &Arc<Service>, door: Door, terminate: &mut Signal, interrupt: &mut Signal) {
    service.stop();
    let say = service.options.say;
    let deadline = service.options.limits.stop;
    let until = Instant::now() + deadline;
    let loaded: Vec<Arc<Loaded>> = service.models.loaded();
    let busy = loaded.iter().map(|loaded| loaded.scheduler.status()).map(|s| s.running + s.waiting).sum::<usize>();
    say(&format!("stopping: {busy} requests are finished first, for {} s at most", deadline.as_secs()));
    let Door { stopping, alive, mut gone, .. } = door;
    drop(alive);
    let _ = stopping.send(true);
    let finished = async {
        let in_time = tokio::time::timeout(deadline, gone.recv()).await.is_ok();
        let rest = until.saturating_duration_since(Instant::now());
        // All at once: nobody's rest is spent on another's.
        let stops = loaded.into_iter().map(|loaded| tokio::task::spawn_blocking(move || loaded.stop(rest)));
        for stop in stops.collect::<Vec<_>>() {
            let _ = stop.await;
        }
        if !in_time {
            // What was not done has been told so: it is on its way.
            let _ = tokio::time::timeout(LAST_WORDS, gone.recv()).await;
        }
        in_time
    };
    tokio::select! {
        in_time = finished => say(if in_time { "stopped" } else { "stopped before everything was finished" }),
        _ = terminate.recv() => say("stopped at once"),
        _ = interrupt.recv() => say("stopped at once"),
    }
}
