//! Weights of the graph: matrices in the mapped file, vectors decoded once.

use super::cpu::memory_limit;
use super::interleaved::Interleaved;
use super::pool::Pool;
use super::product::Matrix;
use kjit_exec::SessionError as ExecError;
use kjit_gguf::Gguf;
use kjit_graph::{Graph, GraphError, Op, Weight, WeightId};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Maximum bytes of matrices to copy in interleaved form. It limits memory, not speed. With 2
/// threads of a Xeon, tokens were faster by these factors: a 0.09 GB model (SmolLM2, Q4_1) 1.38,
/// 0.76 GB (1B, Q4_0) 1.14, 1.2 GB (six layers of 8B) 1.18.
const LAID_OUT: u64 = 1 << 30;

/// Whether copies of this size are allowed, given the total memory (`None`: unknown). The free
/// memory is not used: copies add up in a different order, and every run must give the same tokens.
fn fits(bytes: u64, all: Option<u64>) -> bool {
    bytes <= LAID_OUT && all.is_some_and(|all| bytes <= all / 8)
}

/// Whether `KJIT_LAID_OUT=off`, which disables interleaved copies.
fn is_off() -> bool {
    std::env::var_os("KJIT_LAID_OUT").is_some_and(|v| v == "off")
}

/// The location of every weight in the file, and decoded vectors.
pub struct Weights {
    file: Arc<Gguf>,
    /// For each weight, the part of the file and the byte range in it. They are not references,
    /// because this struct owns the file; slicing again is cheap compared with reading a matrix.
    places: Vec<(usize, Range<usize>)>,
    /// For each weight, the elements of norms, biases and factors; empty for matrices.
    vectors: Vec<Vec<f32>>,
    /// For each weight, an interleaved copy if there is one.
    interleaved: Vec<Option<Interleaved>>,
    /// Tensors whose elements were replaced: adapters that were loaded later.
    replaced: HashMap<String, Vec<u8>>,
}

impl Weights {
    /// Locates the weights in the file.
    ///
    /// # Errors
    /// A tensor is missing or its size differs from the graph: the graph belongs to another file.
    pub fn new(file: Arc<Gguf>, graph: &Graph) -> Result<Weights, ExecError> {
        let mut places = Vec::with_capacity(graph.weights.len());
        for w in &graph.weights {
            let tensor = file.tensor(&w.tensor).map_err(GraphError::from)?;
            let bytes = w.bytes_of(w.experts * w.whole);
            if tensor.data.len() != bytes || tensor.ty.id != w.format.ggml_id {
                return Err(ExecError::Device(format!(
                    "tensor '{}' has {} bytes of {}, the graph expects {} of {}: \
                     the graph belongs to another file",
                    w.tensor,
                    tensor.data.len(),
                    tensor.ty.name,
                    bytes,
                    w.format
                )));
            }
            let info = file.tensor_info(&w.tensor);
            let place = info.and_then(|info| {
                let start = usize::try_from(info.data_offset()).ok()?;
                Some((info.part(), start..start.checked_add(tensor.data.len())?))
            });
            let gone = || {
                ExecError::Device(format!("the data of tensor '{}' is outside the file", w.name))
            };
            places.push(place.filter(|p| bytes_at(&file, p).len() == bytes).ok_or_else(gone)?);
        }
        let mut vectors = vec![vec![]; graph.weights.len()];
        for id in vector_ids(graph) {
            let (i, w) = (id.0 as usize, graph.weight(id));
            let mut v = vec![0.0; w.elems()];
            // A vector belongs to a single matrix.
            let bytes = bytes_at(&file, &places[i]).get(w.bytes_of(w.at)..).unwrap_or_default();
            w.decode_vector(bytes.get(..w.bytes()).unwrap_or_default(), &mut v)
                .map_err(|e| ExecError::Device(format!("tensor '{}': {e}", w.name)))?;
            vectors[i] = v;
        }
        let interleaved = (0..graph.weights.len()).map(|_| None).collect();
        Ok(Weights { file, places, vectors, interleaved, replaced: HashMap::new() })
    }

    /// Creates interleaved copies of the matrices of products, on all threads. All are copied if
    /// their total is at most [`LAID_OUT`] bytes and at most an eighth of the memory; if not, none
    /// is copied. Matrices of experts and of single heads are not copied, nor matrices of encoders,
    /// which process many tokens in one pass. Returns `false` if the allocation fails.
    pub fn lay_out(&mut self, graph: &Graph, pool: &mut Pool) -> bool {
        let products = graph
            .ops
            .iter()
            .filter_map(|op| if let Op::MatMul(m) = op { Some(m.weight) } else { None });
        let mut ids: Vec<WeightId> =
            products.filter(|id| Interleaved::suits(graph.weight(*id).format)).collect();
        ids.sort_unstable();
        ids.dedup();
        let bytes: u64 = ids.iter().map(|id| graph.weight(*id).bytes() as u64).sum();
        if graph.pooling.is_some() || is_off() || !fits(bytes, memory_limit()) {
            return true;
        }
        for id in ids {
            let Some(interleaved) = Interleaved::of(self.matrix(graph, id, 0), pool) else {
                self.interleaved.fill_with(|| None);
                return false;
            };
            self.interleaved[id.0 as usize] = Some(interleaved);
        }
        true
    }

    /// Bytes of interleaved copies.
    pub fn laid_out(&self) -> usize {
        self.interleaved.iter().flatten().map(Interleaved::bytes).sum()
    }

    /// The interleaved copy of a matrix.
    pub fn interleaved(&self, id: WeightId) -> Option<&Interleaved> {
        self.interleaved[id.0 as usize].as_ref()
    }

    /// A matrix. `expert` is 0 if there are no experts.
    pub fn matrix<'a>(&'a self, graph: &Graph, id: WeightId, expert: usize) -> Matrix<'a> {
        let w = graph.weight(id);
        let replaced = || self.replaced.get(&w.tensor).map(Vec::as_slice);
        let stacked = graph.adapter_slots.as_ref().and_then(|_| replaced());
        let bytes = stacked.unwrap_or_else(|| bytes_at(&self.file, &self.places[id.0 as usize]));
        let one = w.bytes_of(w.whole);
        let bytes = &bytes[expert * one + w.bytes_of(w.at)..][..w.bytes() / w.experts];
        Matrix { bytes, format: w.format, rows: w.rows, cols: w.cols }
    }

    /// Replaces the elements of a tensor. Does nothing if no weight is in it.
    ///
    /// # Errors
    /// `bytes` is not the tensor's size, or a copy of its elements exists.
    pub fn replace(&mut self, graph: &Graph, tensor: &str, bytes: &[u8]) -> Result<(), ExecError> {
        let of = |(id, w): &(usize, &Weight)| w.tensor == tensor && self.places.len() > *id;
        let Some((id, w)) = graph.weights.iter().enumerate().find(of) else { return Ok(()) };
        let whole = w.bytes_of(w.experts * w.whole);
        if bytes.len() != whole || self.interleaved[id].is_some() || !self.vectors[id].is_empty() {
            return Err(ExecError::Device(format!(
                "tensor '{tensor}' of {whole} bytes cannot be replaced by {} bytes",
                bytes.len()
            )));
        }
        let to = self.replaced.entry(tensor.to_owned()).or_default();
        to.clear();
        to.extend_from_slice(bytes);
        Ok(())
    }

    /// A vector: weights of a norm, a bias, or rotation factors.
    pub fn vector(&self, id: WeightId) -> &[f32] {
        &self.vectors[id.0 as usize]
    }
}

/// The bytes of a location. They are empty if it is outside the file, which [`Weights::new`]
/// excludes.
fn bytes_at<'a>(file: &'a Gguf, (part, range): &(usize, Range<usize>)) -> &'a [u8] {
    file.part_bytes(*part).and_then(|bytes| bytes.get(range.clone())).unwrap_or_default()
}

/// The weights that are used as vectors.
fn vector_ids(graph: &Graph) -> Vec<WeightId> {
    let factors =
        graph.ropes.iter().flat_map(|r| r.factors.into_iter().chain(r.long.map(|(_, w)| w)));
    let mut ids: Vec<WeightId> = factors.chain(graph.ops.iter().flat_map(Op::vectors)).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_copies_are_limited_by_memory_share_and_gibibyte() {
        assert!(!fits(1, None) && fits(LAID_OUT, Some(8 * LAID_OUT)) && fits(0, Some(0)));
        assert!(!fits(LAID_OUT + 1, Some(u64::MAX)));
        assert!(fits(1 << 20, Some(8 << 20)) && !fits((1 << 20) + 1, Some(8 << 20)));
    }
}
