//! A rank at work: what it hears of the others, and how long it waits for them.
//!
//! A thread looks at the connections, at the library and at how many sums the device has made.
//! Where this rank waits and no sum is made, because another has ended or for too long, it gives
//! the library's work up: then the device goes on with whatever numbers, the host stops waiting,
//! and every later call has the reason.

use super::Links;
use kjit_engine::{Collective, Device, DeviceBuffer, PinnedBuffer, Stream};
use kjit_exec::SessionError;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it is looked.
const EVERY: Duration = Duration::from_millis(20);
/// How long a sum may take that another rank has no part in any more: what it sent before its end
/// may be under way.
const GONE: Duration = Duration::from_secs(2);
/// The same while the model is opened: one may compile its kernels while another finds them.
const OPENING: Duration = Duration::from_secs(900);

/// How often a rank says that it is there, and how long nothing may be heard of it: a machine that
/// is lost ends no connection. Longer than a busy machine keeps a thread waiting.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(30);

/// What ranks tell each other: a kind, then a number.
const FRAME: usize = 9;
/// A rank is gone.
const ENDED: u8 = 1;
/// What was given to this rank.
const GIVEN: u8 = 2;
/// This rank was given something else than the first.
const OTHER: u8 = 3;
/// This rank is there.
const ALIVE: u8 = 4;

/// A device among those of other processes.
pub struct Far {
    collective: Collective,
    shared: Arc<Shared>,
    rank: usize,
    /// How long it waits, once the model is open, for another that is there and does not come.
    limit: Duration,
    thread: Option<JoinHandle<()>>,
}

/// What the thread and the runner have in common.
struct Shared {
    /// Why this rank computes no more.
    why: Mutex<Option<String>>,
    over: AtomicBool,
    /// Calls under way that wait for the device.
    waiting: AtomicUsize,
    /// Milliseconds that such a call waits for a sum.
    limit: AtomicU64,
    /// What was given to this rank so far, all in one number each; not yet told.
    given: Mutex<Vec<u64>>,
    /// How often this rank was given something, and how much of that all others are known to have
    /// been given as well.
    gave: AtomicUsize,
    same: AtomicUsize,
    stop: AtomicBool,
}

/// A call that waits for the device.
pub struct Waiting(Arc<Shared>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Release);
    }
}

impl std::fmt::Debug for Far {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {}", self.rank)
    }
}

impl Shared {
    fn fail(&self, why: String, collective: &Collective) {
        let mut first = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_none() {
            *first = Some(why);
            self.over.store(true, Ordering::Release);
            drop(first);
            // It may take seconds, in which the others are told why.
            let collective = collective.clone();
            std::thread::spawn(move || collective.give_up());
        }
    }
}

impl Far {
    /// Watches from now on; `sums` is what the device counts its sums in.
    pub fn new(
        collective: Collective,
        links: Links,
        (rank, limit): (usize, Duration),
        sums: PinnedBuffer<u32>,
    ) -> Result<Far, SessionError> {
        let shared = Arc::new(Shared {
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
            .map_err(|e| SessionError::Device(format!("no thread that watches the ranks: {e}")))?;
        Ok(Far { collective, shared, rank, limit, thread: Some(thread) })
    }

    /// The model is open: from now on nobody has a reason to be late.
    pub fn opened(&self) {
        self.shared.limit.store(self.limit.as_millis() as u64, Ordering::Release);
    }

    /// As long as it lives, sums are waited for.
    pub fn waiting(&self) -> Waiting {
        self.shared.waiting.fetch_add(1, Ordering::Acquire);
        Waiting(Arc::clone(&self.shared))
    }

    /// Notes what was given to this rank: all must be given the same, or each would wait for
    /// another's sums.
    pub fn given(&self, what: u64) {
        self.shared.given.lock().unwrap_or_else(PoisonError::into_inner).push(what);
        self.shared.gave.fetch_add(1, Ordering::Release);
        self.look();
    }

    /// The thread looks at once.
    fn look(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// On the first rank: waits until all others have said what they were given so far.
    pub fn agreed(&self, device: &Device) -> Result<(), SessionError> {
        let gave = self.shared.gave.load(Ordering::Acquire);
        let _waiting = self.waiting();
        // Who does not say it is found by the thread, as one that does not come to a sum.
        while self.rank == 0 && self.shared.same.load(Ordering::Acquire) < gave && !self.is_over() {
            self.look();
            std::thread::sleep(Duration::from_micros(200));
        }
        self.check(device)
    }

    /// This device's part and all others' into one place.
    pub fn gather(
        &self,
        stream: &Stream,
        from: &DeviceBuffer<f32>,
        to: &DeviceBuffer<f32>,
    ) -> Result<(), kjit_engine::Error> {
        // The first call of a kind finds the ways between the ranks, which takes all of them.
        let _waiting = self.waiting();
        stream.all_gather(&self.collective, from, to)
    }

    /// Whether it is of no more use.
    pub fn is_over(&self) -> bool {
        self.shared.over.load(Ordering::Acquire)
    }

    /// This rank has failed by itself: the others learn it by its end.
    pub fn end(&self) {
        self.shared.fail("this rank has failed".to_owned(), &self.collective);
    }

    /// Whether all is well with the others.
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

impl Drop for Far {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// A connection.
struct Link {
    rank: usize,
    stream: TcpStream,
    /// The begin of a frame.
    part: Vec<u8>,
    /// What that rank was given so far.
    given: Vec<u64>,
    /// How much of it was compared, and is what the first was given.
    same: usize,
    /// When something came last.
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

    /// Whole frames that have come.
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
                    self.ended |=
                        e.kind() != std::io::ErrorKind::WouldBlock || self.heard.elapsed() > SILENCE
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

    /// Nine bytes fit whatever is on the way; who does not take them is gone, or will be found to
    /// hang.
    fn tell(&mut self, kind: u8, number: u64) {
        let mut frame = [kind; FRAME];
        frame.iter_mut().skip(1).zip(number.to_le_bytes()).for_each(|(to, b)| *to = b);
        if !self.ended {
            let _ = self.stream.write_all(&frame);
        }
    }
}

/// The thread's.
struct Watch {
    links: Vec<Link>,
    rank: usize,
    collective: Collective,
    shared: Arc<Shared>,
    sums: PinnedBuffer<u32>,
    /// Sums when it was looked last, and since when there are so many, or nobody waited.
    seen: u32,
    since: Instant,
    /// All that was given to this rank.
    given: Vec<u64>,
    gone: Option<usize>,
    /// When the others were told last that this rank is there.
    told: Instant,
    /// What the library said, and when.
    broken: Option<(Instant, String)>,
}

impl Watch {
    fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            // First what this rank was given: what others were is compared with it.
            self.tell();
            self.listen();
            if !self.shared.over.load(Ordering::Acquire)
                && let Some(why) = self.look()
            {
                self.shared.fail(why, &self.collective);
            }
            std::thread::park_timeout(EVERY);
        }
        // What was given last is told, too.
        self.tell();
    }

    fn listen(&mut self) {
        let (mut ended, mut other) = (vec![], None);
        for link in &mut self.links {
            let before = link.ended;
            for (kind, number) in link.frames() {
                match kind {
                    ENDED => self.gone = self.gone.or(Some(number as usize)),
                    OTHER => other = Some(number as usize),
                    GIVEN => link.given.push(number),
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
            self.links.iter_mut().for_each(|link| link.tell(OTHER, rank as u64));
            let why = format!(
                "rank {rank} was given another prompt, -n or --stop, or other tokens or options \
                 of sampling, than rank 0"
            );
            self.shared.fail(why, &self.collective);
        }
    }

    fn tell(&mut self) {
        let new =
            std::mem::take(&mut *self.shared.given.lock().unwrap_or_else(PoisonError::into_inner));
        if self.rank > 0 {
            for number in &new {
                self.links.iter_mut().for_each(|link| link.tell(GIVEN, *number));
            }
        }
        self.given.extend(new);
        if self.told.elapsed() > ALIVE_EVERY {
            self.links.iter_mut().for_each(|link| link.tell(ALIVE, 0));
            self.told = Instant::now();
        }
    }

    /// Why nothing more can be waited for, if so.
    fn look(&mut self) -> Option<String> {
        let sums = self.sums.peek(0).unwrap_or(self.seen);
        if sums != self.seen || self.shared.waiting.load(Ordering::Acquire) == 0 {
            (self.seen, self.since, self.broken) = (sums, Instant::now(), None);
            return None;
        }
        let waited = self.since.elapsed();
        if let Some(rank) = self.gone.filter(|_| waited > GONE) {
            return Some(format!("rank {rank} has ended, or its machine is lost"));
        }
        if self.broken.is_none() {
            self.broken = self.collective.failed().map(|said| (Instant::now(), said));
        }
        // Who is gone says more than what the library makes of it.
        if let Some((when, said)) = &self.broken
            && when.elapsed() > GONE
        {
            return Some(format!("the library by which ranks work together has failed: {said}"));
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
