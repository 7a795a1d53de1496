//! The graph's weights, as they lie in the mapped file; vectors and small things decoded once.

use super::product::Matrix;
use crate::exec::ExecError;
use crate::gguf::Gguf;
use crate::graph::{Graph, GraphError, Op, WeightId};
use std::sync::Arc;

/// Bytes of every weight of a graph, and decoded vectors.
pub struct Weights {
    /// Keeps the map that `bytes` points into.
    _file: Arc<Gguf>,
    /// Per weight. The lifetime is a lie told once, here: the bytes live as long as `_file`.
    bytes: Vec<&'static [u8]>,
    /// Per weight: the elements of norms, biases and factors; empty for matrices.
    vectors: Vec<Vec<f32>>,
}

impl Weights {
    /// Finds the weights in the file.
    ///
    /// # Errors
    /// A tensor is missing or has another size than the graph says: the graph was made from another file.
    pub fn new(file: Arc<Gguf>, graph: &Graph) -> Result<Weights, ExecError> {
        let mut bytes = Vec::with_capacity(graph.weights.len());
        for w in &graph.weights {
            let tensor = file.tensor(&w.name).map_err(GraphError::from)?;
            if tensor.data.len() != w.bytes() || tensor.ty.id != w.format.ggml_id {
                return Err(ExecError::Device(format!(
                    "tensor '{}' has {} bytes of {}, the graph asks for {} of {}: the graph was made from another file",
                    w.name,
                    tensor.data.len(),
                    tensor.ty.name,
                    w.bytes(),
                    w.format
                )));
            }
            // SAFETY: only the lifetime changes. The map neither moves nor goes while `file`, which is kept beside it, lives; and the
            // slices leave this struct only with its own lifetime.
            bytes.push(unsafe { std::mem::transmute::<&[u8], &'static [u8]>(tensor.data) });
        }
        let mut vectors = vec![vec![]; graph.weights.len()];
        for id in vector_ids(graph) {
            let (i, w) = (id.0 as usize, graph.weight(id));
            let mut v = vec![0.0; w.experts * w.rows * w.cols];
            w.format.decode(bytes[i], &mut v).map_err(|e| ExecError::Device(format!("tensor '{}': {e}", w.name)))?;
            vectors[i] = v;
        }
        Ok(Weights { _file: file, bytes, vectors })
    }

    /// A matrix: of expert `expert`, 0 where there are none.
    pub fn matrix<'a>(&'a self, graph: &Graph, id: WeightId, expert: usize) -> Matrix<'a> {
        let w = graph.weight(id);
        let bytes = self.bytes[id.0 as usize];
        let one = bytes.len() / w.experts;
        Matrix { bytes: &bytes[expert * one..][..one], format: w.format, rows: w.rows, cols: w.cols }
    }

    /// A norm's weight, a bias, or a rotation's factors.
    pub fn vector(&self, id: WeightId) -> &[f32] {
        &self.vectors[id.0 as usize]
    }
}

/// Weights that are used as vectors.
fn vector_ids(graph: &Graph) -> Vec<WeightId> {
    let mut ids: Vec<WeightId> = graph.ropes.iter().filter_map(|r| r.factors).collect();
    for op in &graph.ops {
        match *op {
            Op::RmsNorm { weight, .. } => ids.push(weight),
            Op::LayerNorm { weight, bias, .. } => ids.extend([Some(weight), bias].into_iter().flatten()),
            Op::MatMul { bias, .. } => ids.extend(bias),
            _ => {}
        }
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}
