//! Loads and unloads models. The first model is loaded at startup, the others on request. One
//! thread loads one model after the other. A model is unloaded when it was not requested for a
//! while, or when another model needs its memory. The least recently used model is unloaded first.
//! A busy model is never unloaded. Requests wait until their model is loaded.

use crate::adapters::Adapters;
use crate::loaded::{Loaded, LoadedModels, ModelFacts, NotLoaded};
use crate::options::{Options, Served};
use crate::refusal::Refusal;
use kjit_model::serve::State;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Time limit of a request that waits for its model. Compiling all kernels of a large model for the
/// first time takes minutes.
const LOAD_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum wait until a busy model that needs the memory is idle.
const MAX_MEMORY_WAIT: Duration = Duration::from_secs(60);
/// Maximum time for an unloaded model to finish. It is idle, except for requests that arrived at
/// the last moment.
const UNLOAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two checks for idle models.
const IDLE_POLL: Duration = Duration::from_millis(200);
/// Time limit for readers that still hold an unloaded model, such as `/status` while it queries the
/// driver.
const READERS_TIMEOUT: Duration = Duration::from_secs(5);

/// State of a model.
enum LoadState {
    /// The model is not loaded.
    Away,
    /// The model is being loaded or unloaded.
    Moving,
    Here(Lease),
}

/// Use of a model. A model is not unloaded while one of these exists. Readers such as `/status`
/// have no lease: a monitor must not prevent unloading.
#[derive(Clone)]
pub struct Lease {
    loaded: Arc<Loaded>,
    /// Shared by all leases, and by the entry of the model.
    held: Arc<()>,
    /// The adapter that the request named.
    adapter: Option<NamedAdapter>,
}

/// An adapter that a request named.
#[derive(Clone)]
struct NamedAdapter {
    adapters: Adapters,
    /// `MODEL:ADAPTER`.
    name: Arc<str>,
}

impl Lease {
    /// Selects one of the adapters of the model, by its index or its id in the store.
    ///
    /// # Errors
    /// The adapter was unloaded after the request had been read.
    pub fn with_adapter(self, at: usize) -> Result<Lease, Refusal> {
        let gone = || Refusal::unknown("the LoRA adapter was unloaded meanwhile");
        let (name, adapters) = match &self.served.store {
            Some(store) => {
                let one = store.get(at).ok_or_else(gone)?;
                (one.name.clone(), Adapters::Loaded(vec![one]))
            }
            None => {
                let one = self.served.adapters.get(at).ok_or_else(gone)?;
                let mut scales = vec![0.0; self.served.adapters.len()];
                scales.get_mut(at).into_iter().for_each(|scale| *scale = one.scale);
                (one.name.clone(), Adapters::Scales(scales))
            }
        };
        let name = format!("{}:{name}", self.served.name()).into();
        Ok(Lease { adapter: Some(NamedAdapter { name, adapters }), ..self })
    }

    /// Name of the model in answers, with its adapter.
    pub fn name(&self) -> &str {
        self.adapter.as_ref().map_or(self.served.name(), |adapter| &adapter.name)
    }

    /// Whether the request named an adapter.
    pub fn has_adapter(&self) -> bool {
        self.adapter.is_some()
    }

    /// The adapter that the request named, or none of the model's adapters. `None` if the model
    /// has no adapters.
    pub fn adapters(&self) -> Option<Adapters> {
        let none = || Adapters::Scales(vec![0.0; self.served.adapters.len()]);
        match &self.adapter {
            Some(named) => Some(named.adapters.clone()),
            None => (!self.served.adapters.is_empty()).then(none),
        }
    }
}

impl Deref for Lease {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        &self.loaded
    }
}

struct ModelEntry {
    is: LoadState,
    /// Number of requests that wait for the model, and the time when the first one began to wait.
    waiting: usize,
    since: Instant,
    /// A request waits for the model, and no attempt has answered it yet.
    wanted: bool,
    /// The last attempt failed because busy models are in the way.
    no_room: Option<NotEnoughMemory>,
    /// Time of the last use.
    used: Instant,
    /// How long the model stays loaded without use, if a request set it.
    keep: Option<KeepAlive>,
    /// Number of finished attempts to load it, and the last error.
    tries: u64,
    failed: Option<Refusal>,
    counts: Counts,
    /// Facts of the model, loaded or not.
    card: Option<Arc<ModelFacts>>,
}

/// A model that does not fit while other models are busy.
struct NotEnoughMemory {
    /// Time limit of the wait for memory.
    until: Instant,
    why: String,
}

/// How long a model stays loaded without use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    /// It stays loaded for this time. Zero: it is unloaded when its requests are finished.
    For(Duration),
    /// Until another model needs its memory.
    Always,
}

/// Counters of loading.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Number of times the model was loaded.
    pub loads: u64,
    /// Number of times the model was unloaded.
    pub unloads: u64,
    /// Number of requests that wait for the model.
    pub waiting: usize,
}

/// State of a model, for status pages.
pub struct ModelStatus {
    /// The model, if it is loaded.
    pub loaded: Option<Arc<Loaded>>,
    /// Whether the model is being loaded or unloaded.
    pub moving: bool,
    /// Facts of the model. `None` until they were read.
    pub card: Option<Arc<ModelFacts>>,
    /// Counters of loading.
    pub counts: Counts,
    /// Time of the last use.
    pub used: Instant,
    /// How long the model stays loaded without use, if a request set it.
    pub keep: Option<KeepAlive>,
}

/// The models of a server, in the order of the options.
pub struct Models {
    places: Mutex<(Vec<ModelEntry>, bool)>,
    /// Wakes the loading thread: a model is requested, or the server stops.
    asked: Condvar,
    /// Wakes waiting requests after each change.
    changed: watch::Sender<()>,
    others: Arc<LoadedModels>,
}

impl Models {
    /// Entries for this many models, none of them loaded.
    pub fn new(n: usize) -> Models {
        let now = Instant::now();
        let place = |_| ModelEntry {
            is: LoadState::Away,
            waiting: 0,
            wanted: false,
            no_room: None,
            since: now,
            used: now,
            keep: None,
            tries: 0,
            failed: None,
            counts: Counts::default(),
            card: None,
        };
        let places = Mutex::new(((0..n).map(place).collect(), false));
        Models {
            places,
            asked: Condvar::new(),
            changed: watch::Sender::new(()),
            others: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, (Vec<ModelEntry>, bool)> {
        // The lock is held only for short updates.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// State of the model with this index in the options.
    pub fn seen(&self, at: usize) -> Option<ModelStatus> {
        let places = self.lock();
        let place = places.0.get(at)?;
        let loaded = match &place.is {
            LoadState::Here(lease) => Some(Arc::clone(&lease.loaded)),
            LoadState::Away | LoadState::Moving => None,
        };
        let counts = Counts { waiting: place.waiting, ..place.counts };
        Some(ModelStatus {
            loaded,
            moving: matches!(place.is, LoadState::Moving),
            card: place.card.clone(),
            counts,
            used: place.used,
            keep: place.keep,
        })
    }

    /// All loaded models.
    pub fn loaded(&self) -> Vec<Arc<Loaded>> {
        let here = |place: &ModelEntry| match &place.is {
            LoadState::Here(lease) => Some(Arc::clone(&lease.loaded)),
            LoadState::Away | LoadState::Moving => None,
        };
        self.lock().0.iter().filter_map(here).collect()
    }

    /// Stops loading. Waiting requests get an error.
    pub fn stop(&self) {
        self.lock().1 = true;
        self.asked.notify_all();
        self.changed.send_replace(());
    }

    /// Returns the model and loads it first if necessary. It stays loaded while the lease is held,
    /// and for `keep` after that. Without `keep` the time of an earlier request is used, or the
    /// server's time.
    ///
    /// # Errors
    /// Loading failed or took too long, or too many requests wait for the model.
    pub async fn get(
        &self,
        at: usize,
        max_queue: usize,
        keep: Option<KeepAlive>,
    ) -> Result<Lease, Refusal> {
        let mut changed = self.changed.subscribe();
        let mut waits: Option<LoadWaiter<'_>> = None;
        let until = tokio::time::Instant::now() + LOAD_TIMEOUT;
        loop {
            {
                let mut places = self.lock();
                let (all, stopping) = &mut *places;
                let Some(place) = all.get_mut(at) else {
                    return Err(Refusal::internal("no such model is served"));
                };
                if let LoadState::Here(lease) = &place.is {
                    if *stopping || lease.scheduler.status().state != State::Ended {
                        place.used = Instant::now();
                        if keep.is_some() {
                            place.keep = keep;
                            self.asked.notify_all();
                        }
                        return Ok(lease.clone());
                    }
                    // The model was lost with its device, and opening it again failed.
                    place.is = LoadState::Away;
                    place.wanted = true;
                    self.asked.notify_all();
                }
                if *stopping {
                    return Err(Refusal::unavailable(30, "the server is stopping"));
                }
                match &waits {
                    Some(waits) if place.tries > waits.tries => {
                        if let Some(why) = &place.failed {
                            return Err(why.clone());
                        }
                        // The model was loaded, and unloaded again before this request woke up.
                        if matches!(place.is, LoadState::Away) {
                            place.wanted = true;
                            self.asked.notify_all();
                        }
                    }
                    Some(_) => {}
                    None if place.waiting >= max_queue => {
                        let why = format!(
                            "{} requests wait until the model is loaded: retry later",
                            place.waiting
                        );
                        return Err(Refusal::busy(10, why));
                    }
                    None => {
                        if place.waiting == 0 {
                            place.since = Instant::now();
                        }
                        place.waiting += 1;
                        place.wanted = true;
                        waits = Some(LoadWaiter { models: self, at, tries: place.tries });
                        self.asked.notify_all();
                    }
                }
            }
            // If the client disconnects, this future is dropped, which ends the wait.
            match tokio::time::timeout_at(until, changed.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Refusal::internal("the model is not loaded any more")),
                Err(_) => {
                    return Err(Refusal::unavailable(
                        30,
                        "the model is still being loaded: retry later",
                    ));
                }
            }
        }
    }

    /// Unloads the model when it is idle, even if it is being loaded now.
    pub fn release(&self, at: usize) {
        if let Some(place) = self.lock().0.get_mut(at)
            && (place.wanted || !matches!(place.is, LoadState::Away))
        {
            place.keep = Some(KeepAlive::For(Duration::ZERO));
        }
        self.asked.notify_all();
    }

    /// Loads the first model and reads the facts of the others. `line` formats the log line about a
    /// loaded model.
    ///
    /// # Errors
    /// One line that describes the fault of a model.
    pub fn begin(&self, options: &Options, line: &dyn Fn(&Loaded) -> String) -> Result<(), String> {
        if let Some(place) = self.lock().0.first_mut() {
            place.is = LoadState::Moving;
        }
        let first = options.models.first().ok_or("no model is served")?;
        let loaded = Loaded::open(options, first, &self.others).map_err(|why| why.line)?;
        let said = line(&loaded);
        self.put(0, Ok(loaded));
        (options.say)(&said);
        for (at, served) in options.models.iter().enumerate().skip(1) {
            let card = ModelFacts::read(served)?;
            if let Some(place) = self.lock().0.get_mut(at) {
                place.card = Some(Arc::new(card));
            }
        }
        Ok(())
    }

    /// Loads requested models and unloads idle models, until the server stops.
    pub fn keep(&self, options: &Options, line: &dyn Fn(&Loaded) -> String) {
        let name = |at: usize| options.models.get(at).map_or("", Served::name);
        while let Some(next) = self.next(options.idle_unload) {
            match next {
                NextStep::Load(at, until) => self.load(at, until, options, line),
                NextStep::Unload(at, lease, idle) => {
                    self.unload(at, lease);
                    let why = match idle.as_secs() {
                        0 => "its last request set keep_alive to 0".to_owned(),
                        seconds => format!("it was not used for {seconds} s"),
                    };
                    (options.say)(&format!("{} is unloaded: {why}", name(at)));
                }
                NextStep::GiveUp(at, why) => {
                    let name = name(at);
                    (options.say)(&format!("{name} cannot be loaded: {why}"));
                    let why =
                        format!("'{name}' does not fit in memory beside the models in use: {why}");
                    self.put(at, Err(Refusal::unavailable(10, why)));
                }
            }
        }
    }

    /// The next task. `None` if the server stops.
    fn next(&self, idle: Option<Duration>) -> Option<NextStep> {
        let mut places = self.lock();
        loop {
            let (all, stopping) = &mut *places;
            if *stopping {
                return None;
            }
            // No request waits for the model any more.
            all.iter_mut()
                .filter(|place| place.waiting == 0)
                .for_each(|place| place.no_room = None);
            let now = Instant::now();
            // A model that did not fit is tried again when memory may be free. Other models are
            // loaded in the meantime.
            let room = all.iter().any(has_nothing_to_do)
                || !all.iter().any(|place| matches!(place.is, LoadState::Here(_)));
            let given_up =
                |p: &ModelEntry| !room && p.no_room.as_ref().is_some_and(|none| now >= none.until);
            if let Some((at, place)) = all.iter_mut().enumerate().find(|(_, place)| given_up(place))
            {
                return Some(NextStep::GiveUp(
                    at,
                    place.no_room.take().map(|none| none.why).unwrap_or_default(),
                ));
            }
            let ready =
                |p: &ModelEntry| p.wanted && p.waiting > 0 && matches!(p.is, LoadState::Away);
            let wanted = all
                .iter_mut()
                .enumerate()
                .filter(|(_, p)| ready(p) && (room || p.no_room.is_none()));
            // The model with the longest waiting request is loaded first.
            if let Some((at, place)) = wanted.min_by_key(|(_, place)| place.since) {
                place.is = LoadState::Moving;
                return Some(NextStep::Load(at, place.no_room.take().map(|none| none.until)));
            }
            if let Some((at, lease, limit)) = take_idle(all, |place| place.stays(idle)) {
                return Some(NextStep::Unload(at, lease, limit));
            }
            // A model that is busy with a long answer is not idle.
            let looks = |place: &ModelEntry| {
                place.no_room.is_some()
                    || matches!(place.is, LoadState::Here(_)) && place.stays(idle).is_some()
            };
            let most = if all.iter().any(looks) { IDLE_POLL } else { LOAD_TIMEOUT };
            places =
                self.asked.wait_timeout(places, most).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Loads a model and unloads idle models that are in the way. If busy models are in the way,
    /// loading is tried again until a deadline.
    fn load(
        &self,
        at: usize,
        until: Option<Instant>,
        options: &Options,
        line: &dyn Fn(&Loaded) -> String,
    ) {
        let Some(served) = options.models.get(at) else { return };
        let (say, name) = (options.say, served.name());
        if until.is_none() {
            say(&format!("{name} was requested: loading {}", served.path.display()));
        }
        loop {
            let open = || Loaded::open(options, served, &self.others);
            let panicked = |_| Err(NotLoaded { line: "an internal fault".to_owned(), room: false });
            let opened = catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(panicked);
            let lacks = match &opened {
                Ok(loaded) => loaded.lacks_room(),
                Err(why) => why.room,
            };
            let idle =
                if lacks { take_idle(&mut self.lock().0, |_| Some(Duration::ZERO)) } else { None };
            if let Some((other, lease, _)) = idle {
                // The old session is dropped first, so that the new session gets all of the memory.
                if let Ok(less) = opened {
                    less.stop(Duration::ZERO);
                }
                self.unload(other, lease);
                let gone = options.models.get(other).map_or("", Served::name);
                say(&format!("{gone} is unloaded: {name} needs the memory"));
                continue;
            }
            let why = match opened {
                Ok(loaded) => {
                    let said = line(&loaded);
                    self.put(at, Ok(loaded));
                    return say(&said);
                }
                Err(why) => why,
            };
            let mut places = self.lock();
            // Busy models use the memory. They are not unloaded.
            let busy =
                why.room && places.0.iter().any(|place| matches!(place.is, LoadState::Here(_)));
            if let Some(place) = places.0.get_mut(at).filter(|_| busy) {
                place.is = LoadState::Away;
                let until = until.unwrap_or_else(|| Instant::now() + MAX_MEMORY_WAIT);
                place.no_room = Some(NotEnoughMemory { until, why: why.line });
                return;
            }
            drop(places);
            say(&format!("{name} cannot be loaded: {}", why.line));
            return self.put(
                at,
                Err(Refusal::internal(format!("'{name}' cannot be loaded: {}", why.line))),
            );
        }
    }

    /// Stores the result of loading.
    fn put(&self, at: usize, loaded: Result<Loaded, Refusal>) {
        if let Some(place) = self.lock().0.get_mut(at) {
            place.tries += 1;
            // Requests that arrived in the meantime get this result too.
            place.wanted = false;
            place.no_room = None;
            place.used = Instant::now();
            (place.is, place.failed) = match loaded {
                Ok(loaded) => {
                    place.counts.loads += 1;
                    place.card = Some(Arc::new(loaded.card()));
                    (
                        LoadState::Here(Lease {
                            loaded: Arc::new(loaded),
                            held: Arc::default(),
                            adapter: None,
                        }),
                        None,
                    )
                }
                Err(why) => (LoadState::Away, Some(why)),
            };
        }
        self.changed.send_replace(());
    }

    fn unload(&self, at: usize, lease: Lease) {
        lease.stop(UNLOAD_TIMEOUT);
        // The memory must be free before the next model is loaded.
        let until = Instant::now() + READERS_TIMEOUT;
        while Arc::strong_count(&lease.loaded) > 1 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(lease);
        if let Some(place) = self.lock().0.get_mut(at) {
            place.is = LoadState::Away;
            place.keep = None;
            place.counts.unloads += 1;
        }
        // Requests that arrived in the meantime wait for the next attempt.
        self.asked.notify_all();
        self.changed.send_replace(());
    }
}

enum NextStep {
    /// Load this model, with tries until the deadline.
    Load(usize, Option<Instant>),
    /// Unload this model, which has been idle this long.
    Unload(usize, Lease, Duration),
    /// End the wait of a model that does not fit. The text is the reason.
    GiveUp(usize, String),
}

impl ModelEntry {
    /// How long the model stays loaded without use. `None`: until another model needs its memory.
    fn stays(&self, idle: Option<Duration>) -> Option<Duration> {
        match self.keep {
            None => idle,
            Some(KeepAlive::For(time)) => Some(time),
            Some(KeepAlive::Always) => None,
        }
    }
}

/// Whether the model is loaded and has no requests.
fn has_nothing_to_do(place: &ModelEntry) -> bool {
    let free = |lease: &Lease| {
        place.waiting == 0 && Arc::strong_count(&lease.held) == 1 && !lease.is_busy()
    };
    matches!(&place.is, LoadState::Here(lease) if free(lease))
}

/// Takes out the model to unload: of the models whose idle time is over, the least recently used
/// one. Also returns its idle time.
fn take_idle(
    all: &mut [ModelEntry],
    stays: impl Fn(&ModelEntry) -> Option<Duration>,
) -> Option<(usize, Lease, Duration)> {
    let now = Instant::now();
    for place in all
        .iter_mut()
        .filter(|place| matches!(place.is, LoadState::Here(_)) && !has_nothing_to_do(place))
    {
        place.used = now;
    }
    let over = |place: &ModelEntry| {
        stays(place).filter(|limit| has_nothing_to_do(place) && now - place.used >= *limit)
    };
    let idle = all.iter_mut().enumerate().filter_map(|(at, place)| Some((over(place)?, at, place)));
    let (limit, at, place) = idle.min_by_key(|(_, _, place)| place.used)?;
    match std::mem::replace(&mut place.is, LoadState::Moving) {
        LoadState::Here(lease) => Some((at, lease, limit)),
        other => {
            place.is = other;
            None
        }
    }
}

/// A request that waits for a model.
struct LoadWaiter<'a> {
    models: &'a Models,
    at: usize,
    /// Number of finished attempts when the wait began.
    tries: u64,
}

impl Drop for LoadWaiter<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.models.lock().0.get_mut(self.at) {
            place.waiting -= 1;
            if place.waiting == 0 {
                // The next waiting request gets a new deadline.
                place.no_room = None;
            }
        }
    }
}
