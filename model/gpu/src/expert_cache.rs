//! The expert cache: the most used host experts are also in GPU memory.
//!
//! The device computes the routing, and the host reads the chosen experts. Then both compute at the
//! same time: the device the cached experts, the CPU the others. The choices are counted. An expert
//! that is chosen more often than a cached expert replaces it. A loader thread copies it through
//! page-locked memory on a separate stream during decoding. Until the copy is complete, the CPU
//! computes both experts.
//!
//! On the device, a chosen expert that runs on the CPU gets share 0 and any valid cache slot. That
//! slot is never being written, so its product is finite.

use super::plan::expert_cache::layers;
use super::plan::{JobId, Plan};
use super::streamed::Repacker;
use kjit_engine::{Device, DeviceBuffer, Error, Event, PinnedBuffer, Result, Stream};
use kjit_gguf::Gguf;
use kjit_graph::merge_host_experts;
use kjit_graph::{Graph, Op, WeightId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Maximum number of experts that are being loaded. An expert of Qwen3 30B-A3B has 2.7 MB. With
/// this number the loader is busy during a token, and the CPU computes only a few more experts.
const MAX_LOADING: usize = 16;
/// An expert replaces another expert if it was chosen at least 25 % more often and at least this
/// number of times more.
const MARGIN: u32 = 2;
/// All counts are halved after this number of tokens, so that recent choices weigh more.
const HALVING_TOKENS: u64 = 1024;

/// Counts of the expert cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpertCacheCounts {
    /// Layers whose experts are on the CPU.
    pub layers: usize,
    /// Cache slots of each layer.
    pub places: usize,
    /// Largest number of experts of a layer.
    pub experts: usize,
    /// Number of chosen experts.
    pub chosen: u64,
    /// Number of chosen experts that were cached.
    pub hit: u64,
    /// Number of experts loaded since the model was opened.
    pub brought: u64,
    /// Number of times that all chosen experts of a layer were cached.
    pub whole: u64,
    /// Number of times that experts were chosen in a layer.
    pub times: u64,
    /// The reason why no more experts are loaded; `None` while experts are loaded.
    pub stopped: Option<String>,
}

impl std::fmt::Display for ExpertCacheCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ExpertCacheCounts { layers, places, experts, brought, .. } = self;
        let part = |n: u64, of: u64| 100.0 * n as f64 / of.max(1) as f64;
        let (hit, whole) = (part(self.hit, self.chosen), part(self.whole, self.times));
        write!(
            f,
            "experts: {places} of {experts} per layer are cached on the GPU ({layers} layers); \
             hits: {hit:.1} % of chosen experts, {whole:.1} % of layers with hits only; \
             {brought} copied"
        )?;
        self.stopped.as_ref().map_or(Ok(()), |why| write!(f, "; no more experts are copied: {why}"))
    }
}

/// The cache slots of a layer.
#[derive(Debug, Clone)]
struct Table {
    /// The cache slot of each expert.
    place: Vec<Option<u32>>,
    /// The expert in each cache slot; `None` while one is being loaded.
    expert: Vec<Option<u32>>,
    /// How often each expert was chosen.
    counts: Vec<u32>,
}

impl Table {
    /// The first experts fill the slots.
    fn new(experts: usize, places: usize) -> Table {
        let place = (0..experts as u32).map(|e| (e < places as u32).then_some(e)).collect();
        let expert = (0..places as u32).map(Some).collect();
        Table { place, expert, counts: vec![0; experts] }
    }

    /// The expert to load and the cache slot to load it into, if it is used often enough. The old
    /// expert of the slot is dropped.
    fn replace(&mut self) -> Option<(u32, u32)> {
        // Only one expert is loaded at a time, so that another slot is always valid.
        if self.expert.iter().any(Option::is_none) {
            return None;
        }
        let count = |e: u32| self.counts.get(e as usize).copied().unwrap_or(0);
        let (place, coldest) = (0..)
            .zip(&self.expert)
            .filter_map(|(p, e)| Some((p, (*e)?)))
            .min_by_key(|(_, e)| count(*e))?;
        let absent = (0..).zip(&self.place).filter(|(_, place)| place.is_none()).map(|(e, _)| e);
        let hottest = absent.max_by_key(|e| count(*e))?;
        let (little, much) = (count(coldest), count(hottest));
        if much < little + little / 4 + MARGIN {
            return None;
        }
        *self.place.get_mut(coldest as usize)? = None;
        *self.expert.get_mut(place as usize)? = None;
        Some((hottest, place))
    }

    fn arrived(&mut self, expert: u32, place: u32) {
        if let (Some(at), Some(of)) =
            (self.place.get_mut(expert as usize), self.expert.get_mut(place as usize))
        {
            (*at, *of) = (Some(place), Some(expert));
        }
    }
}

/// The CPU's part of the current layer.
pub(super) struct HostShare {
    pub x: Vec<f32>,
    /// Expert ids; below 0 if the device computes the expert.
    pub experts: Vec<f32>,
    pub shares: Vec<f32>,
    /// Whether the CPU has at least one expert to compute.
    pub any: bool,
}

struct CacheState {
    tables: Vec<Table>,
    counts: ExpertCacheCounts,
    /// Tokens since the counts were last halved.
    since: u64,
    /// The next layer to check.
    next: usize,
    under_way: usize,
    mine: Option<HostShare>,
}

/// The expert cache and its loader.
pub(super) struct ExpertCache {
    state: Mutex<CacheState>,
    /// Page-locked words: chosen experts and shares from the device, then cache slots and shares to
    /// the device.
    out: [PinnedBuffer<u32>; 2],
    back: [PinnedBuffer<u32>; 2],
    porter: Loader,
}

impl ExpertCache {
    /// Creates the cache of a graph with cache slots; `None` without any.
    pub fn new(
        device: &Device,
        gguf: &Arc<Gguf>,
        (graph, plan): (&Graph, &Plan),
        matrices: &HashMap<WeightId, DeviceBuffer<u8>>,
        repackers: HashMap<JobId, Repacker>,
    ) -> Result<Option<ExpertCache>> {
        let layers = layers(graph);
        let Some(whole) = merge_host_experts(graph).filter(|_| !layers.is_empty()) else {
            return Ok(None);
        };
        let lost = || Error::Buffer("an expert's matrix is missing".to_owned());
        let (mut tables, mut of_layers, mut top) = (vec![], vec![], 0);
        for (placed, products) in &layers {
            let first = products.first().map(|p| graph.weight(p.weight)).ok_or_else(lost)?;
            // All experts of the file, not only the cached ones.
            let all = whole.ops.iter().find_map(|op| match op {
                Op::ExpertMatMul(p) if p.experts == placed.experts => {
                    Some(graph.weight(p.weight).experts)
                }
                _ => None,
            });
            tables.push(Table::new(all.ok_or_else(lost)?, first.experts));
            top = top.max(graph.value(placed.experts).width);
            let stacks = products.iter().map(|p| {
                let (w, to) =
                    (graph.weight(p.weight), matrices.get(&p.weight).ok_or_else(lost)?.clone());
                let info = gguf.tensor_info(&w.tensor).ok_or_else(lost)?;
                let start =
                    usize::try_from(info.data_offset()).map_err(|_| lost())? + w.bytes_of(w.at);
                let job =
                    plan.matrices.iter().find(|(id, _)| *id == p.weight).and_then(|(_, job)| *job);
                let repack =
                    job.map(|job| repackers.get(&job).cloned().ok_or_else(lost)).transpose()?;
                let (bytes, step) = (w.bytes() / w.experts.max(1), w.bytes_of(w.whole));
                let each = to.len() / w.experts.max(1);
                Ok(Stack { part: info.part(), start, step, bytes, rows: w.rows, to, each, repack })
            });
            of_layers.push(stacks.collect::<Result<Vec<_>>>()?);
        }
        let (experts, places) =
            tables.iter().map(|t| (t.place.len(), t.expert.len())).max().unwrap_or_default();
        let counts = ExpertCacheCounts {
            layers: tables.len(),
            places,
            experts,
            ..ExpertCacheCounts::default()
        };
        let state = CacheState { tables, counts, since: 0, next: 0, under_way: 0, mine: None };
        let words = plan.programs().iter().map(|p| p.tokens as usize).max().unwrap_or(1) * top;
        let two = || Ok::<_, Error>([device.pinned(words)?, device.pinned(words)?]);
        let porter = Loader::new(device, gguf, of_layers)?;
        Ok(Some(ExpertCache { state: Mutex::new(state), out: two()?, back: two()?, porter }))
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current counts.
    pub fn counts(&self) -> ExpertCacheCounts {
        self.lock().counts.clone()
    }

    /// The fraction of a layer's experts that are not cached.
    pub fn absent(&self) -> f64 {
        let ExpertCacheCounts { places, experts, .. } = self.lock().counts;
        1.0 - places as f64 / experts.max(1) as f64
    }

    /// Divides a layer's chosen experts: stores the CPU's part, and sends the device's part to the
    /// device.
    pub fn divide(
        &self,
        (stream, layer, rows): (&Stream, usize, usize),
        (from, here): (&DeviceBuffer<f32>, &PinnedBuffer<f32>),
        chosen: [&DeviceBuffer<f32>; 2],
        to: [&DeviceBuffer<f32>; 2],
    ) -> Result<()> {
        let words = |all: &[PinnedBuffer<u32>; 2]| -> Result<Vec<PinnedBuffer<u32>>> {
            all.iter().zip(chosen).map(|(all, of)| all.slice(..of.len())).collect()
        };
        let (out, back) = (words(&self.out)?, words(&self.back)?);
        stream.copy_out(from, here)?;
        for (of, out) in chosen.iter().zip(&out) {
            stream.copy_out(&of.cast::<u32>()?, out)?;
        }
        stream.synchronize()?;
        let x = here.read(<[f32]>::to_vec)?;
        let read = |i: usize| out.get(i).map_or(Ok(vec![]), |words| words.read(<[u32]>::to_vec));
        let (experts, shares) = (read(0)?, read(1)?);
        let mut state = self.lock();
        if layer == 0 {
            self.porter.turn(&mut state, stream, rows as u64)?;
        }
        let CacheState { tables, counts, mine, .. } = &mut *state;
        let table = tables
            .get_mut(layer)
            .ok_or_else(|| Error::Buffer("a layer has no cache slots".to_owned()))?;
        // A valid cache slot for experts that run on the CPU.
        let some =
            (0..).zip(&table.expert).find(|(_, e)| e.is_some()).map_or(0, |(place, _)| place);
        let (mut places, mut own) =
            (vec![some; experts.len()], vec![0f32.to_bits(); experts.len()]);
        let mut rest = HostShare {
            x,
            experts: vec![-1.0; experts.len()],
            shares: vec![0.0; experts.len()],
            any: false,
        };
        let (theirs, ours) =
            (places.iter_mut().zip(&mut own), rest.experts.iter_mut().zip(&mut rest.shares));
        for (((&expert, &share), (place, own)), (mine, part)) in
            experts.iter().zip(&shares).zip(theirs).zip(ours)
        {
            let Some(count) = table.counts.get_mut(expert as usize) else { continue };
            *count = count.saturating_add(1);
            counts.chosen += 1;
            match table.place.get(expert as usize).copied().flatten() {
                Some(at) => {
                    (*place, *own) = (at, share);
                    counts.hit += 1;
                }
                None => {
                    // Exact in f32: there are fewer than 2^24 experts.
                    (*mine, *part) = (expert as f32, f32::from_bits(share));
                    rest.any = true;
                }
            }
        }
        (counts.times, counts.whole) = (counts.times + 1, counts.whole + u64::from(!rest.any));
        *mine = Some(rest);
        drop(state);
        for ((words, back), to) in [places, own].iter().zip(&back).zip(to) {
            back.write(|there| there.copy_from_slice(words))?;
            stream.copy_in(back, &to.cast::<u32>()?)?;
        }
        Ok(())
    }

    /// The CPU's part of the layer that was divided last.
    pub fn mine(&self) -> Result<HostShare> {
        self.lock().mine.take().ok_or_else(|| Error::Buffer("experts were not divided".to_owned()))
    }
}

/// The matrices of a layer's experts, in the file and on the device.
struct Stack {
    part: usize,
    /// Offset of the first expert in the file part.
    start: usize,
    /// Bytes from one expert to the next.
    step: usize,
    bytes: usize,
    rows: usize,
    to: DeviceBuffer<u8>,
    /// Bytes of a cache slot.
    each: usize,
    repack: Option<Repacker>,
}

/// A request to load an expert.
struct LoadRequest {
    layer: usize,
    expert: u32,
    place: u32,
    /// Signals that no work reads the slot any more.
    after: Event,
}

/// Layer, expert, cache slot, and the result.
type CopiedExpert = (usize, u32, u32, Result<()>);

/// The loader: copies experts to the device on a thread.
struct Loader {
    parcels: Option<Sender<LoadRequest>>,
    arrived: Mutex<Receiver<CopiedExpert>>,
    thread: Option<JoinHandle<()>>,
    /// Set when the results are no longer needed.
    ended: Arc<AtomicBool>,
}

impl Drop for Loader {
    fn drop(&mut self) {
        // The thread ends after its current expert.
        self.ended.store(true, Relaxed);
        self.parcels = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Loader {
    fn new(device: &Device, gguf: &Arc<Gguf>, layers: Vec<Vec<Stack>>) -> Result<Loader> {
        let most = layers.iter().flatten().map(|s| s.bytes).max().unwrap_or(1).max(1);
        let (stream, raw) = (device.stream()?, device.buffer::<u8>(most)?);
        let (staging, gguf) = (device.pinned_for_writing::<u8>(most)?, Arc::clone(gguf));
        let (parcels, to_carry) = channel::<LoadRequest>();
        let (done, arrived) = channel();
        let ended = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&ended);
        let carry = move || {
            for parcel in to_carry.into_iter().take_while(|_| !over.load(Relaxed)) {
                let LoadRequest { layer, expert, place, .. } = parcel;
                let stacks = layers.get(layer).map_or(&[][..], Vec::as_slice);
                let brought = bring(&stream, &gguf, stacks, &parcel, (&staging, &raw));
                if done.send((layer, expert, place, brought)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("kjit-experts".to_owned()).spawn(carry);
        let thread = thread.map_err(|e| {
            Error::Buffer(format!("cannot start the thread that loads experts: {e}"))
        })?;
        Ok(Loader {
            parcels: Some(parcels),
            arrived: Mutex::new(arrived),
            thread: Some(thread),
            ended,
        })
    }

    /// Between two tokens: adds loaded experts to the tables, and requests others.
    fn turn(&self, state: &mut CacheState, stream: &Stream, tokens: u64) -> Result<()> {
        let arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let (layer, expert, place, came) = match arrived.try_recv() {
                Ok(one) => one,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    state.counts.stopped.get_or_insert_with(|| {
                        "the thread that loads experts has ended".to_owned()
                    });
                    break;
                }
            };
            state.under_way = state.under_way.saturating_sub(1);
            match (came, state.tables.get_mut(layer)) {
                (Ok(()), Some(table)) => {
                    state.counts.brought += 1;
                    table.arrived(expert, place);
                }
                (Err(lost @ (Error::Driver { .. } | Error::DeviceLost { .. })), _) => {
                    return Err(lost);
                }
                // The slot's content is invalid, so the slot stays unused, and the CPU computes the
                // expert.
                (Err(other), _) => state.counts.stopped = Some(other.to_string()),
                (Ok(()), None) => {}
            }
        }
        state.since += tokens;
        if state.since >= HALVING_TOKENS {
            state.since = 0;
            state.tables.iter_mut().flat_map(|t| &mut t.counts).for_each(|count| *count /= 2);
        }
        let (layers, mut after) = (state.tables.len(), None);
        for i in 0..layers {
            if state.under_way >= MAX_LOADING || state.counts.stopped.is_some() {
                break;
            }
            let layer = (state.next + i) % layers.max(1);
            let Some((expert, place)) = state.tables.get_mut(layer).and_then(Table::replace) else {
                continue;
            };
            state.next = layer + 1;
            let after = match &after {
                Some(after) => Event::clone(after),
                None => {
                    let event = stream.device().event()?;
                    stream.record(&event)?;
                    after.insert(event).clone()
                }
            };
            let parcel = LoadRequest { layer, expert, place, after };
            if self.parcels.as_ref().is_none_or(|parcels| parcels.send(parcel).is_err()) {
                state.counts.stopped = Some("the thread that loads experts has ended".to_owned());
                break;
            }
            state.under_way += 1;
        }
        Ok(())
    }
}

/// Copies one expert's matrices and waits for the copies.
fn bring(
    stream: &Stream,
    gguf: &Gguf,
    stacks: &[Stack],
    parcel: &LoadRequest,
    (staging, raw): (&PinnedBuffer<u8>, &DeviceBuffer<u8>),
) -> Result<()> {
    stream.wait(&parcel.after)?;
    for s in stacks {
        let at = s.start + parcel.expert as usize * s.step;
        let bytes = gguf.part_bytes(s.part).and_then(|b| b.get(at..at + s.bytes));
        let bytes =
            bytes.ok_or_else(|| Error::Buffer("an expert is not in the file".to_owned()))?;
        // Waits until the previous copy has read the buffer.
        let here = staging.slice(..bytes.len())?;
        here.write(|to| to.copy_from_slice(bytes))?;
        let place = parcel.place as usize * s.each;
        let place = s.to.slice(place..place + s.each)?;
        match &s.repack {
            None => stream.copy_in(&here, &place)?,
            Some(repack) => {
                let raw = raw.slice(..bytes.len())?;
                stream.copy_in(&here, &raw)?;
                repack.launch(stream, &raw, &place, s.rows)?;
            }
        }
    }
    stream.synchronize()
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn most_used_expert_replaces_least_used() {
        let mut table = Table::new(5, 2);
        assert_eq!(table.replace(), None, "no expert was chosen yet");
        table.counts = vec![4, 3, 1, 4, 6];
        assert_eq!(table.replace(), Some((4, 1)));
        assert_eq!(
            table.place,
            [Some(0), None, None, None, None],
            "neither expert is cached during the copy"
        );
        assert_eq!(table.replace(), None, "the other slot is unchanged");
        table.arrived(4, 1);
        assert_eq!(table.place, [Some(0), None, None, None, Some(1)]);
        assert_eq!(table.expert, [Some(0), Some(4)]);
        // An expert that is chosen only slightly more often does not replace another expert.
        table.counts = vec![4, 3, 1, 6, 6];
        assert_eq!(table.replace(), None);
        table.counts = vec![4, 3, 1, 7, 6];
        assert_eq!(table.replace(), Some((3, 0)));
    }
}
