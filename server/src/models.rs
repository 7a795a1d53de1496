//! Which models are loaded. The first is from the start on; the others are loaded when somebody
//! asks for them. A thread loads and unloads, one after the other. A model is unloaded when nobody
//! asked for it for a while, or when another needs its room: the one that nobody asked for longest
//! goes first, and never one that has something to do. Who asks for a model that is not there waits
//! for it.

use crate::loaded::{Card, Loaded, NotLoaded, Others};
use crate::options::{Options, Served};
use crate::refusal::Refusal;
use kjit_model::serve::State;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// So long a request waits for its model: compiling all kernels of a large one for the first time
/// takes minutes.
const PATIENCE: Duration = Duration::from_secs(600);
/// So long a model that is asked for waits until one of those in its way has nothing to do.
const FOR_ROOM: Duration = Duration::from_secs(60);
/// What a model that is unloaded has to do is finished first. There is nothing, but for what came
/// in at the last moment.
const LAST: Duration = Duration::from_secs(60);
/// Between two looks at who has nothing to do.
const LOOK: Duration = Duration::from_millis(200);
/// So long those that only look at a model that is unloaded may hold it: `/status` asks the driver.
const LOOKERS: Duration = Duration::from_secs(5);

/// How a model is.
enum Is {
    /// Not loaded.
    Away,
    /// Being loaded, or being unloaded.
    Moving,
    Here(Lease),
}

/// A model that somebody asks: as long as one of these is held it is not unloaded. Who only looks
/// at a model, as `/status` does, has none: a monitor would keep it for ever.
#[derive(Clone)]
pub struct Lease {
    loaded: Arc<Loaded>,
    /// Held by all leases, the place's included.
    held: Arc<()>,
}

impl Deref for Lease {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        &self.loaded
    }
}

struct Place {
    is: Is,
    /// Requests that wait for it, and since when the first of them does.
    waiting: usize,
    since: Instant,
    /// Somebody asked for it whom no attempt has answered yet.
    wanted: bool,
    /// It was tried, and those that have something to do are in its way.
    no_room: Option<NoRoom>,
    /// When somebody last had it.
    used: Instant,
    /// How long it stays when nobody asks for it, where a request said so.
    keep: Option<Keep>,
    /// Attempts to load it that are over, and what came of the last one.
    tries: u64,
    failed: Option<Refusal>,
    counts: Counts,
    /// What is known of it whether it is loaded or not.
    card: Option<Arc<Card>>,
}

/// A model that has no room beside those that answer.
struct NoRoom {
    /// When it is given up.
    until: Instant,
    why: String,
}

/// How long a model stays loaded that nobody asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// So long: of no time, it goes when what was asked of it is done.
    For(Duration),
    /// Until another needs its room.
    Always,
}

/// How often a model was loaded and unloaded, and how many wait for it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Times that it was loaded.
    pub loads: u64,
    /// Times that it was unloaded.
    pub unloads: u64,
    /// Requests that wait until it is loaded.
    pub waiting: usize,
}

/// How a model is, to be shown.
pub struct Seen {
    /// It, if it is loaded.
    pub loaded: Option<Arc<Loaded>>,
    /// It is being loaded, or unloaded.
    pub moving: bool,
    /// What is known of it; none before it was looked at.
    pub card: Option<Arc<Card>>,
    /// How often it came and went.
    pub counts: Counts,
}

/// The models of a server, in the options' order.
pub struct Models {
    places: Mutex<(Vec<Place>, bool)>,
    /// Somebody waits for a model, or it is time to stop: for the thread that loads.
    asked: Condvar,
    /// Something changed: for those that wait.
    changed: watch::Sender<()>,
    others: Arc<Others>,
}

impl Models {
    /// So many, none of which is loaded.
    pub fn new(n: usize) -> Models {
        let now = Instant::now();
        let place = |_| Place {
            is: Is::Away,
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

    fn lock(&self) -> MutexGuard<'_, (Vec<Place>, bool)> {
        // Nothing is computed with the lock held.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model at this place of the options, as it is.
    pub fn seen(&self, at: usize) -> Option<Seen> {
        let places = self.lock();
        let place = places.0.get(at)?;
        let loaded = match &place.is {
            Is::Here(lease) => Some(Arc::clone(&lease.loaded)),
            Is::Away | Is::Moving => None,
        };
        let counts = Counts { waiting: place.waiting, ..place.counts };
        Some(Seen {
            loaded,
            moving: matches!(place.is, Is::Moving),
            card: place.card.clone(),
            counts,
        })
    }

    /// All that are loaded.
    pub fn loaded(&self) -> Vec<Arc<Loaded>> {
        let here = |place: &Place| match &place.is {
            Is::Here(lease) => Some(Arc::clone(&lease.loaded)),
            Is::Away | Is::Moving => None,
        };
        self.lock().0.iter().filter_map(here).collect()
    }

    /// Nothing is loaded any more, and who waits is told so.
    pub fn stop(&self) {
        self.lock().1 = true;
        self.asked.notify_all();
        self.changed.send_replace(());
    }

    /// The model, which is loaded first if it is not. As long as what this gives is held, it stays;
    /// `keep` is how long then, where the request says so: where none does, it is as the last one
    /// said, or the server.
    ///
    /// # Errors
    /// It cannot be loaded, or not in time; too many wait for it.
    pub async fn get(
        &self,
        at: usize,
        max_queue: usize,
        keep: Option<Keep>,
    ) -> Result<Lease, Refusal> {
        let mut changed = self.changed.subscribe();
        let mut waits: Option<Waits<'_>> = None;
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            {
                let mut places = self.lock();
                let (all, stopping) = &mut *places;
                let Some(place) = all.get_mut(at) else {
                    return Err(Refusal::internal("no such model is served"));
                };
                if let Is::Here(lease) = &place.is {
                    if *stopping || lease.scheduler.status().state != State::Ended {
                        place.used = Instant::now();
                        if keep.is_some() {
                            place.keep = keep;
                            self.asked.notify_all();
                        }
                        return Ok(lease.clone());
                    }
                    // It was lost with its device, and could not be opened again then.
                    place.is = Is::Away;
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
                        // It came, and was gone before this one looked.
                        if matches!(place.is, Is::Away) {
                            place.wanted = true;
                            self.asked.notify_all();
                        }
                    }
                    Some(_) => {}
                    None if place.waiting >= max_queue => {
                        let why = format!(
                            "{} requests wait until the model is loaded: ask again later",
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
                        waits = Some(Waits { models: self, at, tries: place.tries });
                        self.asked.notify_all();
                    }
                }
            }
            // Who drops this, because the client went away, waits no more.
            match tokio::time::timeout_at(until, changed.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Refusal::internal("nothing is loaded any more")),
                Err(_) => {
                    return Err(Refusal::unavailable(
                        30,
                        "the model is still being loaded: ask again later",
                    ));
                }
            }
        }
    }

    /// It goes as soon as nobody has anything to ask of it, also where it is still being loaded.
    pub fn release(&self, at: usize) {
        if let Some(place) = self.lock().0.get_mut(at)
            && (place.wanted || !matches!(place.is, Is::Away))
        {
            place.keep = Some(Keep::For(Duration::ZERO));
        }
        self.asked.notify_all();
    }

    /// Loads the first model, and looks at the others. `said` is called with the line that says
    /// what is served.
    ///
    /// # Errors
    /// A line: what is wrong with one of them.
    pub fn begin(&self, options: &Options, line: &dyn Fn(&Loaded) -> String) -> Result<(), String> {
        if let Some(place) = self.lock().0.first_mut() {
            place.is = Is::Moving;
        }
        let first = options.models.first().ok_or("no model is served")?;
        let loaded = Loaded::open(options, first, &self.others).map_err(|why| why.line)?;
        let said = line(&loaded);
        self.put(0, Ok(loaded));
        (options.say)(&said);
        for (at, served) in options.models.iter().enumerate().skip(1) {
            let card = Card::read(served)?;
            if let Some(place) = self.lock().0.get_mut(at) {
                place.card = Some(Arc::new(card));
            }
        }
        Ok(())
    }

    /// Loads what is asked for, and unloads what is not, until it is time to stop.
    pub fn keep(&self, options: &Options, line: &dyn Fn(&Loaded) -> String) {
        let name = |at: usize| options.models.get(at).map_or("", Served::name);
        while let Some(next) = self.next(options.idle_unload) {
            match next {
                Next::Load(at, until) => self.load(at, until, options, line),
                Next::Unload(at, lease, idle) => {
                    self.unload(at, lease);
                    let why = match idle.as_secs() {
                        0 => "who asked last said so (keep_alive)".to_owned(),
                        seconds => format!("nobody asked for it for {seconds} s"),
                    };
                    (options.say)(&format!("{} is unloaded: {why}", name(at)));
                }
                Next::GiveUp(at, why) => {
                    let name = name(at);
                    (options.say)(&format!("{name} cannot be loaded: {why}"));
                    let why = format!("'{name}' has no room beside the models that answer: {why}");
                    self.put(at, Err(Refusal::unavailable(10, why)));
                }
            }
        }
    }

    /// What is to be done next; none: it is time to stop.
    fn next(&self, idle: Option<Duration>) -> Option<Next> {
        let mut places = self.lock();
        loop {
            let (all, stopping) = &mut *places;
            if *stopping {
                return None;
            }
            // Nobody wants it any more.
            all.iter_mut()
                .filter(|place| place.waiting == 0)
                .for_each(|place| place.no_room = None);
            let now = Instant::now();
            // One without room is tried again when there may be some, late though it be; others are
            // loaded meanwhile.
            let room = all.iter().any(has_nothing_to_do)
                || !all.iter().any(|place| matches!(place.is, Is::Here(_)));
            let given_up =
                |p: &Place| !room && p.no_room.as_ref().is_some_and(|none| now >= none.until);
            if let Some((at, place)) = all.iter_mut().enumerate().find(|(_, place)| given_up(place))
            {
                return Some(Next::GiveUp(
                    at,
                    place.no_room.take().map(|none| none.why).unwrap_or_default(),
                ));
            }
            let ready = |p: &Place| p.wanted && p.waiting > 0 && matches!(p.is, Is::Away);
            let wanted = all
                .iter_mut()
                .enumerate()
                .filter(|(_, p)| ready(p) && (room || p.no_room.is_none()));
            // Who waits longest comes first.
            if let Some((at, place)) = wanted.min_by_key(|(_, place)| place.since) {
                place.is = Is::Moving;
                return Some(Next::Load(at, place.no_room.take().map(|none| none.until)));
            }
            if let Some((at, lease, limit)) = take_idle(all, |place| place.stays(idle)) {
                return Some(Next::Unload(at, lease, limit));
            }
            // Somebody's long answer is no idle time.
            let looks = |place: &Place| {
                place.no_room.is_some()
                    || matches!(place.is, Is::Here(_)) && place.stays(idle).is_some()
            };
            let most = if all.iter().any(looks) { LOOK } else { PATIENCE };
            places =
                self.asked.wait_timeout(places, most).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Loads a model, with the room of others if it must be. Where those that are in its way have
    /// something to do it is left, to be tried again until then.
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
            say(&format!("{name} is asked for: loading {}", served.path.display()));
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
                // What it has of the device goes before, so that it has all of it then.
                if let Ok(less) = opened {
                    less.stop(Duration::ZERO);
                }
                self.unload(other, lease);
                let gone = options.models.get(other).map_or("", Served::name);
                say(&format!("{gone} is unloaded: {name} needs the room"));
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
            // Those that are in its way have something to do, which nobody takes from them.
            let busy = why.room && places.0.iter().any(|place| matches!(place.is, Is::Here(_)));
            if let Some(place) = places.0.get_mut(at).filter(|_| busy) {
                place.is = Is::Away;
                let until = until.unwrap_or_else(|| Instant::now() + FOR_ROOM);
                place.no_room = Some(NoRoom { until, why: why.line });
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

    /// A model was loaded, or could not be.
    fn put(&self, at: usize, loaded: Result<Loaded, Refusal>) {
        if let Some(place) = self.lock().0.get_mut(at) {
            place.tries += 1;
            // Who came meanwhile is told of this one, too.
            place.wanted = false;
            place.no_room = None;
            place.used = Instant::now();
            (place.is, place.failed) = match loaded {
                Ok(loaded) => {
                    place.counts.loads += 1;
                    place.card = Some(Arc::new(loaded.card()));
                    (Is::Here(Lease { loaded: Arc::new(loaded), held: Arc::default() }), None)
                }
                Err(why) => (Is::Away, Some(why)),
            };
        }
        self.changed.send_replace(());
    }

    fn unload(&self, at: usize, lease: Lease) {
        lease.stop(LAST);
        // Its memory is to be there when the next one is loaded.
        let until = Instant::now() + LOOKERS;
        while Arc::strong_count(&lease.loaded) > 1 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(lease);
        if let Some(place) = self.lock().0.get_mut(at) {
            place.is = Is::Away;
            place.keep = None;
            place.counts.unloads += 1;
        }
        // Who came meanwhile waits for the next time.
        self.asked.notify_all();
        self.changed.send_replace(());
    }
}

enum Next {
    /// To be tried: again, until then.
    Load(usize, Option<Instant>),
    /// It had nothing to do for so long.
    Unload(usize, Lease, Duration),
    /// It had no room, and why.
    GiveUp(usize, String),
}

impl Place {
    /// How long it stays when nobody asks for it; none: until another needs its room.
    fn stays(&self, idle: Option<Duration>) -> Option<Duration> {
        match self.keep {
            None => idle,
            Some(Keep::For(time)) => Some(time),
            Some(Keep::Always) => None,
        }
    }
}

/// It is loaded, nobody holds it or is about to, and what was asked of it is done.
fn has_nothing_to_do(place: &Place) -> bool {
    let free = |lease: &Lease| {
        place.waiting == 0 && Arc::strong_count(&lease.held) == 1 && !lease.is_busy()
    };
    matches!(&place.is, Is::Here(lease) if free(lease))
}

/// Takes out, of those that have had nothing to do for as long as they stay, the one that nobody
/// had for longest; and how long that is.
fn take_idle(
    all: &mut [Place],
    stays: impl Fn(&Place) -> Option<Duration>,
) -> Option<(usize, Lease, Duration)> {
    let now = Instant::now();
    for place in
        all.iter_mut().filter(|place| matches!(place.is, Is::Here(_)) && !has_nothing_to_do(place))
    {
        place.used = now;
    }
    let over = |place: &Place| {
        stays(place).filter(|limit| has_nothing_to_do(place) && now - place.used >= *limit)
    };
    let idle = all.iter_mut().enumerate().filter_map(|(at, place)| Some((over(place)?, at, place)));
    let (limit, at, place) = idle.min_by_key(|(_, _, place)| place.used)?;
    match std::mem::replace(&mut place.is, Is::Moving) {
        Is::Here(lease) => Some((at, lease, limit)),
        other => {
            place.is = other;
            None
        }
    }
}

/// Somebody waits for a model.
struct Waits<'a> {
    models: &'a Models,
    at: usize,
    /// Attempts to load it that were over when he came.
    tries: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.models.lock().0.get_mut(self.at) {
            place.waiting -= 1;
            if place.waiting == 0 {
                // Who comes next has his own time.
                place.no_room = None;
            }
        }
    }
}
