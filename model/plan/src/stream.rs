//! Which layers' weights stay on the device, and which are copied to it for each pass.
//!
//! Layers are streamed whole, and only as many as must be. A *ring* of two slots holds what
//! travels: while a layer is read from one, the next lands in the other. A third slot would cost a
//! layer's memory and win nothing: either copies take longer than steps, and then a copy is always
//! under way, or steps do, and then the next layer is always there.
//!
//! What travels are the file's own bytes, so that its pages can be locked where they lie: nothing
//! is copied in the host's memory and nothing is laid out anew when the model is opened. Matrices
//! whose layout differs on the device are laid out there after each copy (`repack`), in a place
//! that all streamed layers share: some 5 % of the copy's time on a card of 4 TB/s at 55 GB/s, and
//! beside the next copy. Such a layer's slot is free again at once; one with matrices that are read
//! where they land keeps it until it is computed.
//!
//! What the CPU has for single tokens, experts or the feed-forward part of layers, travels in the
//! same way for a prompt of many: one pass over it serves all its tokens. That has a program of its
//! own. Beside feed-forward parts other layers may be streamed for every pass: they take the slots
//! in turn among themselves, so that for a token, too, the next one lands while one is read.

use super::arena::ALIGN;
use super::{Bind, JobId, Launch, MemoryNeed, Plan, Program};
use kjit_graph::op::Operation;
use kjit_graph::{Graph, Op, WeightId};
use kjit_graph::{spread, spread_from_first};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// Slots of the ring.
pub const SLOTS: usize = 2;

/// A matrix of a layer that is streamed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[doc(hidden)]
pub struct StreamedMatrix {
    /// Which.
    pub weight: WeightId,
    /// What lays it out anew; none where it is read where it lands.
    pub job: Option<JobId>,
    /// Where its bytes land, from the start of the slot.
    pub lands: Range<u64>,
    /// Where they are then laid out, from the start of the place for that.
    pub laid: Range<u64>,
}

/// A layer whose matrices are copied for each pass.
#[derive(Debug, Clone, PartialEq, Eq)]
#[doc(hidden)]
pub struct StreamedLayer {
    /// Its number in the model.
    pub number: usize,
    /// The slot that its bytes land in.
    pub slot: usize,
    /// Its matrices.
    pub matrices: Vec<StreamedMatrix>,
    /// The CPU computes what these matrices are for, but for long prompts.
    pub for_prompts: bool,
}

impl StreamedLayer {
    /// Whether something of it is read in the slot: then that is not free before the layer was
    /// computed.
    pub fn is_read_in_slot(&self) -> bool {
        self.matrices.iter().any(|m| m.job.is_none())
    }

    /// Bytes that are copied.
    pub fn bytes(&self) -> u64 {
        self.matrices.iter().map(|m| m.lands.end - m.lands.start).sum()
    }
}

/// The layers that are streamed, and the memory that all of them share.
#[derive(Debug, Clone, PartialEq)]
#[doc(hidden)]
pub struct Streaming {
    /// In the model's order.
    pub layers: Vec<StreamedLayer>,
    /// Layers of the model that have matrices.
    pub of: usize,
    /// Bytes of a slot.
    pub slot: u64,
    /// Bytes of the place in which matrices are laid out anew.
    pub laid: u64,
    /// The layer of each matrix, as an index in `layers`.
    pub layer_of: HashMap<WeightId, usize>,
    /// The one program that copies, for many tokens of a prompt, where others have the CPU compute
    /// in between; none where all copy.
    pub prompt: Option<Program>,
}

/// A stretch of launches that need one streamed layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub struct Stretch {
    /// Index in [`Streaming::layers`].
    pub layer: usize,
    /// The first launch that reads its matrices.
    pub first: usize,
    /// The last.
    pub last: usize,
}

impl Streaming {
    /// Bytes that are copied for a pass in which the CPU has no part.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(StreamedLayer::bytes).sum()
    }

    /// Layers that are copied for each token.
    pub fn steps(&self) -> usize {
        self.layers.iter().filter(|l| !l.for_prompts).count()
    }

    /// Bytes that are copied for each token.
    pub fn step_bytes(&self) -> u64 {
        self.layers.iter().filter(|l| !l.for_prompts).map(StreamedLayer::bytes).sum()
    }

    /// Bytes of the ring: its slots, and the place for what is laid out anew.
    pub fn ring(&self) -> u64 {
        SLOTS as u64 * self.slot + self.laid
    }

    /// The stretches of these launches, in order.
    pub fn stretches(&self, launches: &[Launch]) -> Vec<Stretch> {
        let mut all: Vec<Stretch> = vec![];
        for (i, launch) in launches.iter().enumerate() {
            let reads = launch.args.iter().find_map(|a| match a {
                Bind::Matrix(w) => self.layer_of.get(w).copied(),
                _ => None,
            });
            match (reads, all.last_mut()) {
                (None, _) => {}
                (Some(layer), Some(last)) if last.layer == layer => last.last = i,
                (Some(layer), _) => all.push(Stretch { layer, first: i, last: i }),
            }
        }
        all
    }
}

/// The layer that a tensor belongs to; none for those that are before or behind all layers.
fn layer(tensor: &str) -> Option<usize> {
    tensor.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// A matrix as far as places go.
struct One {
    weight: WeightId,
    job: Option<JobId>,
    raw: u64,
    laid: u64,
}

fn room(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGN)
}

impl Plan {
    /// Streams as few layers as it takes for all of the plan to fit into `budget` bytes, or all
    /// where that is asked for.
    ///
    /// # Errors
    /// The bytes that it takes with all layers streamed, if not even they fit.
    pub fn fit(&mut self, graph: &Graph, budget: u64, all: bool) -> Result<(), u64> {
        if !all && self.memory.total() <= budget {
            return Ok(());
        }
        let layers = self.matrices_by_layer(graph);
        let apart = matrices_apart(graph);
        let n = free(&layers, &apart);
        let mut least = self.memory.total();
        for k in if all { n..=n } else { 1..=n } {
            let (memory, streaming) = self.with_streamed(graph, &layers, &apart, k);
            least = least.min(memory.total());
            if memory.total() <= budget && n > 0 {
                self.memory = memory;
                let prompt = self.streaming.take().and_then(|s| s.prompt);
                self.streaming = Some(Streaming { prompt, ..streaming });
                if !self.persistent.is_empty() {
                    self.persistent.clear();
                    self.no_persistent =
                        Some("layers are streamed, and it does not wait for copies".to_owned());
                }
                return Ok(());
            }
        }
        Err(least)
    }

    /// Streams the matrices of what is the CPU's in all other programs, for this one.
    pub(super) fn copy_experts(&mut self, graph: &Graph, program: Program) {
        let layers = self.matrices_by_layer(graph);
        let (memory, streaming) = self.with_streamed(graph, &layers, &matrices_apart(graph), 0);
        self.memory = memory;
        self.streaming = Some(Streaming { prompt: Some(program), ..streaming });
    }

    /// What it takes, and what travels, with `k` layers streamed of those that have nothing apart.
    fn with_streamed(
        &self,
        graph: &Graph,
        layers: &[(usize, Vec<One>)],
        apart: &HashSet<WeightId>,
        k: usize,
    ) -> (MemoryNeed, Streaming) {
        let room = |s: &Streaming| {
            s.layers.iter().flat_map(|l| &l.matrices).map(|m| self.room_of(graph, m)).sum::<u64>()
        };
        // As if all stayed.
        let all = self
            .streaming
            .as_ref()
            .map_or(self.memory.weights, |s| self.memory.weights - s.ring() + room(s));
        let streaming = streaming(layers, apart, k);
        let weights = all - room(&streaming) + streaming.ring();
        (MemoryNeed { weights, ..self.memory }, streaming)
    }

    /// Which of the feed-forward parts that the CPU could compute it should, where all does not
    /// stay: how many, and the seconds that a token then takes, as `seconds` reckons from the bytes
    /// that the CPU reads and those that are copied. `parts` gives a graph with so many of them
    /// apart.
    pub fn share(
        &self,
        graph: &Graph,
        budget: u64,
        parts: &[Vec<WeightId>],
        seconds: &dyn Fn(u64, u64) -> f64,
    ) -> Option<(usize, f64)> {
        let layers = self.matrices_by_layer(graph);
        let (of, mut streamed, mut best) = (parts.len(), layers.len(), None::<(usize, f64)>);
        for n in 0..=of {
            let apart = || {
                parts
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| spread_from_first(*i, of, n))
                    .flat_map(|(_, p)| p.iter().copied())
            };
            let apart: HashSet<WeightId> = apart().collect();
            let fits = |k: usize| {
                let (memory, streaming) = self.with_streamed(graph, &layers, &apart, k);
                (memory.total() <= budget).then_some(streaming)
            };
            // The more the CPU has, the fewer are copied.
            streamed = streamed.min(free(&layers, &apart));
            let Some(mut with) = fits(streamed) else { continue };
            while streamed > 0
                && let Some(fewer) = fits(streamed - 1)
            {
                (streamed, with) = (streamed - 1, fewer);
            }
            let bytes = apart.iter().map(|w| graph.weight(*w).bytes() as u64).sum();
            let takes = seconds(bytes, with.step_bytes());
            if best.is_none_or(|(_, least)| takes < least) {
                best = Some((n, takes));
            }
        }
        best
    }

    /// Bytes that a matrix takes where it stays on the device.
    fn room_of(&self, graph: &Graph, m: &StreamedMatrix) -> u64 {
        match m.job {
            Some(_) => room(m.laid.end - m.laid.start),
            None => room(graph.weight(m.weight).bytes() as u64),
        }
    }

    /// Layers that have matrices.
    pub fn layers(&self, graph: &Graph) -> usize {
        self.matrices_by_layer(graph).len()
    }

    /// The matrices of each layer.
    fn matrices_by_layer(&self, graph: &Graph) -> Vec<(usize, Vec<One>)> {
        let mut layers: BTreeMap<usize, Vec<One>> = BTreeMap::new();
        for (&(weight, job), &laid) in self.matrices.iter().zip(&self.matrix_bytes) {
            let w = graph.weight(weight);
            if let Some(number) = layer(&w.tensor) {
                let laid = if job.is_some() { laid } else { 0 };
                layers.entry(number).or_default().push(One {
                    weight,
                    job,
                    raw: w.bytes() as u64,
                    laid,
                });
            }
        }
        layers.into_iter().collect()
    }
}

/// Matrices of what the CPU computes.
fn matrices_apart(graph: &Graph) -> HashSet<WeightId> {
    let of = |op: &Op| if let Op::Elsewhere(apart) = op { Some(apart.matrices()) } else { None };
    graph.ops.iter().filter_map(of).flatten().collect()
}

/// Whether something of a layer is the CPU's.
fn is_apart(matrices: &[One], apart: &HashSet<WeightId>) -> bool {
    matrices.iter().any(|m| apart.contains(&m.weight))
}

/// Layers that are the device's alone.
fn free(layers: &[(usize, Vec<One>)], apart: &HashSet<WeightId>) -> usize {
    layers.iter().filter(|(_, matrices)| !is_apart(matrices, apart)).count()
}

/// What is apart streamed, and `k` of the other layers: spread evenly, so that copies go on while
/// resident layers are computed, and the CPU's parts. The first of each stretch stays: the last to
/// be copied has few layers behind it, whose steps no copy runs beside.
fn streaming(all: &[(usize, Vec<One>)], apart: &HashSet<WeightId>, k: usize) -> Streaming {
    let n = free(all, apart);
    let mut s = Streaming {
        layers: vec![],
        of: all.len(),
        slot: 0,
        laid: 0,
        layer_of: HashMap::new(),
        prompt: None,
    };
    // The slots that were taken last: by a layer of every pass, by any.
    let (mut seen, mut last_step, mut last) = (0, SLOTS - 1, SLOTS - 1);
    for (number, matrices) in all {
        let for_prompts = is_apart(matrices, apart);
        if !for_prompts {
            seen += 1;
            if !spread(seen - 1, n, k) {
                continue;
            }
        }
        // Those of every pass take turns among themselves.
        let slot = (if for_prompts { last } else { last_step } + 1) % SLOTS;
        last = slot;
        if !for_prompts {
            last_step = slot;
        }
        let index = s.layers.len();
        let matrices = matrices.iter().filter(|m| !for_prompts || apart.contains(&m.weight));
        let (mut lands, mut laid) = (0, 0);
        let mut places = vec![];
        for m in matrices {
            let (from, to) = (lands, laid);
            lands = room(lands + m.raw);
            laid = room(laid + m.laid);
            let (lands, laid) = (from..from + m.raw, to..to + m.laid);
            places.push(StreamedMatrix { weight: m.weight, job: m.job, lands, laid });
            s.layer_of.insert(m.weight, index);
        }
        (s.slot, s.laid) = (s.slot.max(lands), s.laid.max(laid));
        s.layers.push(StreamedLayer { number: *number, slot, matrices: places, for_prompts });
    }
    s
}

#[cfg(test)]
mod tests {
    use super::layer;
    use kjit_graph::spread;

    #[test]
    fn streamed_layers_are_spread_and_as_many_as_asked_for() {
        for n in 1..90 {
            for k in 0..=n {
                let which: Vec<usize> = (0..n).filter(|&i| spread(i, n, k)).collect();
                assert_eq!(which.len(), k);
                // No two stretches of resident layers differ by more than one.
                let ends = std::iter::once(-1).chain(which.iter().map(|&i| i as i64));
                let gaps: Vec<i64> = ends.clone().zip(ends.skip(1)).map(|(a, b)| b - a).collect();
                if let (Some(least), Some(most)) = (gaps.iter().min(), gaps.iter().max()) {
                    assert!(most - least <= 1, "{k} of {n}: {which:?}");
                    assert_eq!(which.last(), Some(&(n - 1)));
                }
            }
        }
    }

    #[test]
    fn a_layers_tensors_are_known_by_their_names() {
        assert_eq!(layer("blk.17.ffn_down.weight"), Some(17));
        assert_eq!(layer("output.weight"), None);
        assert_eq!(layer("blk.x.weight"), None);
    }
}
