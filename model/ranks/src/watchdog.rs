//! The watchdog of a running rank: detects ranks that have ended or hang.
//!
//! A thread polls the connections, the library, and the number of collective sums that the device
//! has computed. If no sum completes because another rank has ended or the time limit has passed,
//! the thread aborts the library's work. The device continues with invalid numbers, the host stops
//! waiting, and every later call returns the reason.

use super::RankConnections;
use kjit_engine::{Collective, Device, DeviceBuffer, PinnedBuffer, Stream};
use kjit_exec::SessionError;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The time limit of a sum after another rank has ended. Data that the rank sent before may still
/// arrive.
const SUM_TIMEOUT_AFTER_EXIT: Duration = Duration::from_secs(2);
/// The time limit of a sum while the model is opened. One rank may have to compile kernels that
/// another rank has in its cache.
const OPENING: Duration = Duration::from_secs(900);

/// The interval of heartbeats, and the longest time without a heartbeat. If a machine fails, its
/// connections stay open. The time is longer than the delay of a thread on a busy machine.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
const MAX_SILENCE: Duration = Duration::from_secs(30);

/// Bytes of a message: a kind (1 byte) and a number (8 bytes).
const FRAME: usize = 9;
/// Message: a rank has ended.
const ENDED: u8 = 1;
/// Message: the digest of this rank's input to a call.
const INPUT_DIGEST: u8 = 2;
/// Message: a rank's input differs from rank 0's.
const INPUT_DIFFERS: u8 = 3;
/// Message: heartbeat.
const HEARTBEAT: u8 = 4;

/// A device's connection to the ranks in other processes.
pub struct RemoteRanks {
    collective: Collective,
    shared: Arc<WatchShared>,
    rank: usize,
    /// The time limit of a sum once the model is open.
    limit: Duration,
    thread: Option<JoinHandle<()>>,
}

/// State shared by the thread and the runner.
struct WatchShared {
    /// The reason why this rank has stopped.
    why: Mutex<Option<String>>,
    over: AtomicBool,
    /// Calls that wait for the device.
    waiting: AtomicUsize,
    /// The time limit of a sum, in milliseconds.
    limit: AtomicU64,
    /// Digests of this rank's inputs that were not sent yet.
    given: Mutex<Vec<u64>>,
    /// Number of this rank's inputs, and number of these inputs that all other ranks have
    /// confirmed.
    gave: AtomicUsize,
    same: AtomicUsize,
    stop: AtomicBool,
}

/// Marks a call as waiting for the device until it is dropped.
pub struct DeviceWait(Arc<WatchShared>);

impl Drop for DeviceWait {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Release);
    }
}

impl std::fmt::Debug for RemoteRanks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {}", self.rank)
    }
}

impl WatchShared {
    fn fail(&self, why: String, collective: &Collective) {
        let mut first = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_none() {
            *first = Some(why);
            self.over.store(true, Ordering::Release);
            drop(first);
            // Aborting may take seconds. Meanwhile the other ranks get the reason.
            let collective = collective.clone();
            std::thread::spawn(move || collective.give_up());
        }
    }
}

impl RemoteRanks {
    /// Starts the watchdog. The device counts its sums in `sums`.
    pub fn new(
        collective: Collective,
        links: RankConnections,
        (rank, limit): (usize, Duration),
        sums: PinnedBuffer<u32>,
    ) -> Result<RemoteRanks, SessionError> {
        let shared = Arc::new(WatchShared {
            why: Mutex::default(),
            over: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            limit: AtomicU64::new(OPENING.as_millis() as u64),
            given: Mutex::default(),
            gave: AtomicUsize::new(0),
            same: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        let mut watch = Watch {
            links: links.0.into_iter().map(|(rank, stream)| Link::new(rank, stream)).collect(),
            rank,
            collective: collective.clone(),
            shared: Arc::clone(&shared),
            sums,
            seen: 0,
            since: Instant::now(),
            given: vec![],
            gone: None,
            told: Instant::now(),
            broken: None,
        };
        let thread =
            std::thread::Builder::new().name("ranks".to_owned()).spawn(move || watch.run());
        let thread = thread
            .map_err(|e| SessionError::Device(format!("cannot start the watchdog thread: {e}")))?;
        Ok(RemoteRanks { collective, shared, rank, limit, thread: Some(thread) })
    }

    /// Must be called when the model is open. From then on the shorter time limit applies.
    pub fn opened(&self) {
        self.shared.limit.store(self.limit.as_millis() as u64, Ordering::Release);
    }

    /// Marks a wait for sums, until the result is dropped.
    pub fn waiting(&self) -> DeviceWait {
        self.shared.waiting.fetch_add(1, Ordering::Acquire);
        DeviceWait(Arc::clone(&self.shared))
    }

    /// Records the digest of an input. All ranks must have equal inputs. Otherwise each rank would
    /// wait for a different sum.
    pub fn given(&self, what: u64) {
        self.shared.given.lock().unwrap_or_else(PoisonError::into_inner).push(what);
        self.shared.gave.fetch_add(1, Ordering::Release);
        self.look();
    }

    /// Wakes the thread of the watchdog.
    fn look(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// On rank 0, waits until all other ranks have sent the digests of their inputs so far.
    pub fn agreed(&self, device: &Device) -> Result<(), SessionError> {
        let gave = self.shared.gave.load(Ordering::Acquire);
        let _waiting = self.waiting();
        // The thread detects a rank that sends no digest, as it detects a rank that is missing from
        // a sum.
        while self.rank == 0 && self.shared.same.load(Ordering::Acquire) < gave && !self.is_over() {
            self.look();
            std::thread::sleep(Duration::from_micros(200));
        }
        self.check(device)
    }

    /// Gathers the parts of all devices in `to`.
    pub fn gather(
        &self,
        stream: &Stream,
        from: &DeviceBuffer<f32>,
        to: &DeviceBuffer<f32>,
    ) -> Result<(), kjit_engine::Error> {
        // The first call of a kind sets up connections, which involves all ranks.
        let _waiting = self.waiting();
        stream.all_gather(&self.collective, from, to)
    }

    /// Whether this rank has stopped.
    pub fn is_over(&self) -> bool {
        self.shared.over.load(Ordering::Acquire)
    }

    /// Stops because of an error of this rank. The other ranks detect that this rank has ended.
    pub fn end(&self) {
        self.shared.fail("this rank has failed".to_owned(), &self.collective);
    }

    /// Returns the reason if this rank has stopped.
    pub fn check(&self, device: &Device) -> Result<(), SessionError> {
        if !self.is_over() {
            return Ok(());
        }
        let why = self
            .shared
            .why
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
            .unwrap_or_default();
        Err(SessionError::Lost(format!("rank {} on {}: {why}", self.rank, device.label())))
    }
}

impl Drop for RemoteRanks {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// The connection to a rank.
struct Link {
    rank: usize,
    stream: TcpStream,
    /// An incomplete message.
    part: Vec<u8>,
    /// Digests of the inputs of that rank.
    given: Vec<u64>,
    /// Number of digests that were compared and found equal to those of rank 0.
    same: usize,
    /// Time of the last message.
    heard: Instant,
    ended: bool,
}

impl Link {
    fn new(rank: usize, stream: TcpStream) -> Link {
        Link {
            rank,
            stream,
            part: vec![],
            given: vec![],
            same: 0,
            heard: Instant::now(),
            ended: false,
        }
    }

    /// Reads complete messages.
    fn frames(&mut self) -> Vec<(u8, u64)> {
        let mut bytes = [0u8; 64 * FRAME];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => self.ended = true,
                Ok(n) => {
                    self.part.extend(bytes.iter().take(n));
                    self.heard = Instant::now();
                    continue;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    self.ended |= e.kind() != std::io::ErrorKind::WouldBlock
                        || self.heard.elapsed() > MAX_SILENCE
                }
            }
            break;
        }
        let mut all = vec![];
        while let Some((frame, rest)) = self.part.split_at_checked(FRAME) {
            if let ([kind], number) = frame.split_at(1)
                && let Ok(number) = number.try_into()
            {
                all.push((*kind, u64::from_le_bytes(number)));
            }
            self.part = rest.to_vec();
        }
        all
    }

    /// Sends a message of nine bytes, which fits in any send buffer. A rank that does not read is
    /// detected because it has ended or hangs.
    fn tell(&mut self, kind: u8, number: u64) {
        let mut frame = [kind; FRAME];
        frame.iter_mut().skip(1).zip(number.to_le_bytes()).for_each(|(to, b)| *to = b);
        if !self.ended {
            let _ = self.stream.write_all(&frame);
        }
    }
}

/// The thread's state.
struct Watch {
    links: Vec<Link>,
    rank: usize,
    collective: Collective,
    shared: Arc<WatchShared>,
    sums: PinnedBuffer<u32>,
    /// The number of sums at the last poll, and the time since the last change while a call waits.
    seen: u32,
    since: Instant,
    /// Digests of all inputs of this rank.
    given: Vec<u64>,
    gone: Option<usize>,
    /// Time of the last heartbeat that was sent.
    told: Instant,
    /// The library's error and its time.
    broken: Option<(Instant, String)>,
}

impl Watch {
    fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            // Messages are sent first, because inputs of other ranks are compared with this rank's
            // inputs.
            self.tell();
            self.listen();
            if !self.shared.over.load(Ordering::Acquire)
                && let Some(why) = self.look()
            {
                self.shared.fail(why, &self.collective);
            }
            std::thread::park_timeout(POLL_INTERVAL);
        }
        // Sends the last digests.
        self.tell();
    }

    fn listen(&mut self) {
        let (mut ended, mut other) = (vec![], None);
        for link in &mut self.links {
            let before = link.ended;
            for (kind, number) in link.frames() {
                match kind {
                    ENDED => self.gone = self.gone.or(Some(number as usize)),
                    INPUT_DIFFERS => other = Some(number as usize),
                    INPUT_DIGEST => link.given.push(number),
                    _ => {}
                }
            }
            let at = link.same;
            let both = link.given.iter().zip(&self.given).skip(at);
            link.same += both.take_while(|(theirs, ours)| theirs == ours).count();
            if link.same < link.given.len().min(self.given.len()) {
                other = Some(link.rank);
            }
            if link.ended && !before {
                ended.push(link.rank);
            }
        }
        let same = self.links.iter().map(|link| link.same).min();
        self.shared.same.store(same.unwrap_or(0), Ordering::Release);
        for rank in ended {
            self.gone = self.gone.or(Some(rank));
            self.links.iter_mut().for_each(|link| link.tell(ENDED, rank as u64));
        }
        if let Some(rank) = other.filter(|_| !self.shared.over.load(Ordering::Acquire)) {
            self.links.iter_mut().for_each(|link| link.tell(INPUT_DIFFERS, rank as u64));
            let why = format!(
                "rank {rank} and rank 0 have different inputs: \
                 the prompt, -n, --stop, the tokens or the sampling options differ"
            );
            self.shared.fail(why, &self.collective);
        }
    }

    fn tell(&mut self) {
        let new =
            std::mem::take(&mut *self.shared.given.lock().unwrap_or_else(PoisonError::into_inner));
        if self.rank > 0 {
            for number in &new {
                self.links.iter_mut().for_each(|link| link.tell(INPUT_DIGEST, *number));
            }
        }
        self.given.extend(new);
        if self.told.elapsed() > ALIVE_EVERY {
            self.links.iter_mut().for_each(|link| link.tell(HEARTBEAT, 0));
            self.told = Instant::now();
        }
    }

    /// Returns the reason to stop waiting, if there is one.
    fn look(&mut self) -> Option<String> {
        let sums = self.sums.peek(0).unwrap_or(self.seen);
        if sums != self.seen || self.shared.waiting.load(Ordering::Acquire) == 0 {
            (self.seen, self.since, self.broken) = (sums, Instant::now(), None);
            return None;
        }
        let waited = self.since.elapsed();
        if let Some(rank) = self.gone.filter(|_| waited > SUM_TIMEOUT_AFTER_EXIT) {
            return Some(format!("rank {rank} has ended, or its machine cannot be reached"));
        }
        if self.broken.is_none() {
            self.broken = self.collective.failed().map(|said| (Instant::now(), said));
        }
        // If a rank has ended, this explains more than the library's error about that rank.
        if let Some((when, said)) = &self.broken
            && when.elapsed() > SUM_TIMEOUT_AFTER_EXIT
        {
            return Some(format!("the vendor's collective library has failed: {said}"));
        }
        let limit = Duration::from_millis(self.shared.limit.load(Ordering::Acquire));
        let late = || {
            format!(
                "waited longer than {} s for the other ranks: one of them hangs",
                limit.as_secs()
            )
        };
        (waited > limit).then(late)
    }
}
