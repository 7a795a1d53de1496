//! Chooses the layers whose weights stay resident. The weights of the other layers are streamed in
//! each pass.
//!
//! Only whole layers are streamed, and only as many as needed. They are in a *ring* of two staging
//! slots: while a layer is read from one slot, the next layer is copied into the other. A third
//! slot would need a layer's memory without a gain: if copies take longer than steps, a copy is
//! always running; if steps take longer, the next layer is always ready.
//!
//! The copies are the file's own bytes, so the file's pages can be locked in place. Opening copies
//! nothing in host memory and repacks nothing. Matrices with a different layout on the device are
//! repacked there after each copy, into memory that all streamed layers share. That takes about 5 %
//! of the copy's time on a GPU with 4 TB/s and copies of 55 GB/s, and overlaps the next copy. The
//! slot of such a layer is free immediately after the repack. A slot whose matrices are read in
//! place is free when the layer has been computed.
//!
//! Weights of host parts (experts or feed-forward parts of single tokens) are also streamed for
//! long prompts: one copy serves all tokens. That is a separate program. With host FFN, other
//! layers may be streamed in every pass. These layers alternate between the two slots, so that also
//! for a single token the next layer is copied while one is read.

use super::arena::ALIGN;
use super::{JobId, MemoryNeed, Plan, Program};
use crate::streaming::{SLOTS, StreamedLayer, StreamedMatrix, Streaming};
use kjit_graph::op::Operation;
use kjit_graph::{Graph, Op, WeightId};
use kjit_graph::{spread, spread_from_first};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The layer of a tensor; `None` outside layers.
fn layer(tensor: &str) -> Option<usize> {
    tensor.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// A matrix and its sizes in bytes.
struct MatrixSizes {
    weight: WeightId,
    job: Option<JobId>,
    raw: u64,
    laid: u64,
}

fn room(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGN)
}

impl Plan {
    /// Streams as few layers as needed for the plan to fit `budget` bytes, or all if `all` is set.
    ///
    /// # Errors
    /// The number of bytes that are needed with all layers streamed, if even these do not fit.
    pub fn fit(&mut self, graph: &Graph, budget: u64, all: bool) -> Result<(), u64> {
        if !all && self.memory.total() <= budget {
            return Ok(());
        }
        let layers = self.matrices_by_layer(graph);
        let host_set = host_matrices(graph);
        let n = free(&layers, &host_set);
        let mut least = self.memory.total();
        for k in if all { n..=n } else { 1..=n } {
            let (memory, streaming) = self.with_streamed(graph, &layers, &host_set, k);
            least = least.min(memory.total());
            if memory.total() <= budget && n > 0 {
                self.memory = memory;
                let prompt = self.streaming.take().and_then(|s| s.prompt);
                self.streaming = Some(Streaming { prompt, ..streaming });
                if !self.persistent.is_empty() {
                    self.persistent.clear();
                    self.no_persistent = Some(
                        "layers are streamed, and one launch cannot wait for copies".to_owned(),
                    );
                }
                return Ok(());
            }
        }
        Err(least)
    }

    /// Streams the weights of host parts for `program`. In all other programs the CPU computes
    /// these parts.
    pub(super) fn copy_experts(&mut self, graph: &Graph, program: Program) {
        let layers = self.matrices_by_layer(graph);
        let (memory, streaming) = self.with_streamed(graph, &layers, &host_matrices(graph), 0);
        self.memory = memory;
        self.streaming = Some(Streaming { prompt: Some(program), ..streaming });
    }

    /// The memory and the streaming if `k` of the layers without a host part are streamed.
    fn with_streamed(
        &self,
        graph: &Graph,
        layers: &[(usize, Vec<MatrixSizes>)],
        host_set: &HashSet<WeightId>,
        k: usize,
    ) -> (MemoryNeed, Streaming) {
        let room = |s: &Streaming| {
            s.layers.iter().flat_map(|l| &l.matrices).map(|m| self.room_of(graph, m)).sum::<u64>()
        };
        // The memory if all layers are resident.
        let all = self
            .streaming
            .as_ref()
            .map_or(self.memory.weights, |s| self.memory.weights - s.ring() + room(s));
        let streaming = streaming(layers, host_set, k);
        let weights = all - room(&streaming) + streaming.ring();
        (MemoryNeed { weights, ..self.memory }, streaming)
    }

    /// Chooses the number of feed-forward parts on the CPU if not all layers can be resident.
    /// Returns the number and the seconds of a token, which `seconds` estimates from the bytes that
    /// the CPU reads and the bytes copied. `parts` has the matrices of each part.
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
            let host_set = || {
                parts
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| spread_from_first(*i, of, n))
                    .flat_map(|(_, p)| p.iter().copied())
            };
            let host_set: HashSet<WeightId> = host_set().collect();
            let fits = |k: usize| {
                let (memory, streaming) = self.with_streamed(graph, &layers, &host_set, k);
                (memory.total() <= budget).then_some(streaming)
            };
            // With more parts on the CPU fewer layers are streamed.
            streamed = streamed.min(free(&layers, &host_set));
            let Some(mut with) = fits(streamed) else { continue };
            while streamed > 0
                && let Some(fewer) = fits(streamed - 1)
            {
                (streamed, with) = (streamed - 1, fewer);
            }
            let bytes = host_set.iter().map(|w| graph.weight(*w).bytes() as u64).sum();
            let takes = seconds(bytes, with.step_bytes());
            if best.is_none_or(|(_, least)| takes < least) {
                best = Some((n, takes));
            }
        }
        best
    }

    /// Bytes that a matrix takes if it is resident.
    fn room_of(&self, graph: &Graph, m: &StreamedMatrix) -> u64 {
        match m.job {
            Some(_) => room(m.laid.end - m.laid.start),
            None => room(graph.weight(m.weight).bytes() as u64),
        }
    }

    /// The number of layers with matrices.
    pub fn layers(&self, graph: &Graph) -> usize {
        self.matrices_by_layer(graph).len()
    }

    /// The matrices of each layer.
    fn matrices_by_layer(&self, graph: &Graph) -> Vec<(usize, Vec<MatrixSizes>)> {
        let mut layers: BTreeMap<usize, Vec<MatrixSizes>> = BTreeMap::new();
        for (&(weight, job), &laid) in self.matrices.iter().zip(&self.matrix_bytes) {
            let w = graph.weight(weight);
            if let Some(number) = layer(&w.tensor) {
                let laid = if job.is_some() { laid } else { 0 };
                layers.entry(number).or_default().push(MatrixSizes {
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

/// Matrices that the CPU computes with.
fn host_matrices(graph: &Graph) -> HashSet<WeightId> {
    let of =
        |op: &Op| if let Op::Offload(host_set) = op { Some(host_set.matrices()) } else { None };
    graph.ops.iter().filter_map(of).flatten().collect()
}

/// Whether a layer has a host part.
fn is_apart(matrices: &[MatrixSizes], host_set: &HashSet<WeightId>) -> bool {
    matrices.iter().any(|m| host_set.contains(&m.weight))
}

/// The number of layers without a host part.
fn free(layers: &[(usize, Vec<MatrixSizes>)], host_set: &HashSet<WeightId>) -> usize {
    layers.iter().filter(|(_, matrices)| !is_apart(matrices, host_set)).count()
}

/// Streams the weights of host parts and `k` of the other layers. They are spread evenly, so that
/// copies overlap resident layers and the CPU's work. In each group the resident layers come first:
/// few layers then run after the last copy, when no copy is running.
fn streaming(
    all: &[(usize, Vec<MatrixSizes>)],
    host_set: &HashSet<WeightId>,
    k: usize,
) -> Streaming {
    let n = free(all, host_set);
    let mut s = Streaming {
        layers: vec![],
        of: all.len(),
        slot: 0,
        laid: 0,
        layer_of: HashMap::new(),
        prompt: None,
    };
    // The last used slots: by a layer of every pass, and by any layer.
    let (mut seen, mut last_step, mut last) = (0, SLOTS - 1, SLOTS - 1);
    for (number, matrices) in all {
        let for_prompts = is_apart(matrices, host_set);
        if !for_prompts {
            seen += 1;
            if !spread(seen - 1, n, k) {
                continue;
            }
        }
        // Layers of every pass alternate between the two slots.
        let slot = (if for_prompts { last } else { last_step } + 1) % SLOTS;
        last = slot;
        if !for_prompts {
            last_step = slot;
        }
        let index = s.layers.len();
        let matrices = matrices.iter().filter(|m| !for_prompts || host_set.contains(&m.weight));
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
    fn streamed_layers_are_evenly_spread() {
        for n in 1..90 {
            for k in 0..=n {
                let which: Vec<usize> = (0..n).filter(|&i| spread(i, n, k)).collect();
                assert_eq!(which.len(), k);
                // The groups of resident layers differ by at most one.
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
    fn layer_number_is_parsed_from_tensor_name() {
        assert_eq!(layer("blk.17.ffn_down.weight"), Some(17));
        assert_eq!(layer("output.weight"), None);
        assert_eq!(layer("blk.x.weight"), None);
    }
}
