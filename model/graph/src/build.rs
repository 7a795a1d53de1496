//! The builder of graphs. It checks each weight against the file when it is named, and derives the
//! shapes of values.

mod attention;
mod elementwise;
mod products;
mod recurrent;

use super::*;
use kjit_formats::format::Format;
use kjit_gguf::Gguf;
use kjit_gguf::QuotedText;
use kjit_gguf::elide::elide;
use std::collections::{HashMap, HashSet};

/// The reasons why kjit cannot run the model of a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The metadata could not be read.
    #[error(transparent)]
    Gguf(#[from] kjit_gguf::Error),
    /// An unknown architecture.
    #[error("architecture {} is not supported (supported: {known})", QuotedText(arch))]
    UnknownArch {
        /// `general.architecture`.
        arch: String,
        /// The known architectures.
        known: String,
    },
    /// The file has no tensors.
    #[error(
        "the file has a vocabulary but no tensors: \
         use it with tokenize, detokenize or template; it cannot run a model"
    )]
    NoTensors,
    /// A tensor that the architecture requires is missing.
    #[error("tensor '{name}' is missing: architecture {} needs it", QuotedText(arch))]
    MissingTensor {
        /// The tensor.
        name: String,
        /// `general.architecture`.
        arch: String,
    },
    /// The shape of a tensor differs from the metadata.
    #[error(
        "tensor {0} has shape {found:?}, but the metadata requires {want:?} (row length first)",
        QuotedText(name)
    )]
    Shape {
        /// The tensor.
        name: String,
        /// The dimensions in the file.
        found: Vec<u64>,
        /// The required dimensions.
        want: Vec<u64>,
    },
    /// kjit can read the tensor's type but cannot compute with it.
    #[error(
        "tensor {} has type {ty}, which kjit cannot compute with: \
         quantise the model to a different type",
        QuotedText(name)
    )]
    Format {
        /// The tensor.
        name: String,
        /// ggml's name of the type.
        ty: String,
    },
    /// A tensor is not used by the graph, so the graph does not describe the model of this file.
    #[error(
        "tensor {} is not used by kjit: the file is an unsupported variant of architecture {}",
        QuotedText(name),
        QuotedText(arch)
    )]
    Unused {
        /// The tensor.
        name: String,
        /// `general.architecture`.
        arch: String,
    },
    /// An embedding is requested from a decoder without a pooling type.
    #[error(
        "architecture '{arch}' computes logits, and the file has no pooling_type for embeddings: \
         choose the pooling"
    )]
    NoPooling {
        /// `general.architecture`.
        arch: String,
    },
    /// A metadata key has an invalid value.
    #[error("key {} is {}: {}", QuotedText(key), elide(value, 150), elide(why, 200))]
    Value {
        /// Name of the key.
        key: String,
        /// Value of the key.
        value: String,
        /// Why the value is invalid.
        why: String,
    },
}

/// Builds a [`Graph`] from a file.
pub struct Builder<'a> {
    gguf: &'a Gguf,
    graph: Graph,
    by_name: HashMap<(String, usize, usize, usize), WeightId>,
    names: HashSet<String>,
}

/// A range of a tensor: rows of a matrix or elements of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The first row or element.
    pub at: usize,
    /// The number of rows or elements.
    pub take: usize,
    /// The number in the whole tensor.
    pub of: usize,
}

impl Part {
    /// The whole tensor.
    pub fn all(n: usize) -> Part {
        Part { at: 0, take: n, of: n }
    }
}

impl<'a> Builder<'a> {
    /// A builder without operations.
    pub fn new(gguf: &'a Gguf, arch: &str, context: usize) -> Self {
        let graph = Graph {
            arch: arch.to_string(),
            context,
            weights: vec![],
            ropes: vec![],
            states: vec![],
            values: vec![],
            ops: vec![],
            logits: ValueId(0),
            feeds_next_stage: false,
            pooling: None,
            positions: None,
            adapters: vec![],
            adapter_slots: None,
        };
        Builder { gguf, graph, by_name: HashMap::new(), names: HashSet::new() }
    }

    /// Whether the file has the tensor.
    pub fn has(&self, name: &str) -> bool {
        self.gguf.tensor_info(name).is_some()
    }

    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The file.
    pub fn gguf(&self) -> &'a Gguf {
        self.gguf
    }

    /// The dimensions of a tensor, if the file has it.
    pub fn dims(&self, name: &str) -> Option<&'a [u64]> {
        self.gguf.tensor_info(name).map(|t| t.dims())
    }

    /// Adds the matrix of this name. Its shape must match exactly.
    ///
    /// # Errors
    /// The tensor is missing, has a different shape, or has a format that kjit cannot decode.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<WeightId, GraphError> {
        self.matrix_part(name, Part::all(rows), cols)
    }

    /// Adds some rows of a matrix.
    ///
    /// # Errors
    /// See [`Builder::matrix`].
    pub fn matrix_part(
        &mut self,
        name: &str,
        rows: Part,
        cols: usize,
    ) -> Result<WeightId, GraphError> {
        let want = vec![cols as u64, rows.of as u64];
        self.weight(name, 1, (rows.take, cols), (rows.at * cols, rows.of * cols), want)
    }

    /// Adds a tensor with one matrix per expert.
    ///
    /// # Errors
    /// See [`Builder::matrix`].
    pub fn experts(
        &mut self,
        name: &str,
        experts: usize,
        rows: usize,
        cols: usize,
    ) -> Result<WeightId, GraphError> {
        self.experts_part(name, experts, Part::all(rows), cols)
    }

    /// Adds some rows of each expert's matrix.
    ///
    /// # Errors
    /// See [`Builder::matrix`].
    pub fn experts_part(
        &mut self,
        name: &str,
        experts: usize,
        rows: Part,
        cols: usize,
    ) -> Result<WeightId, GraphError> {
        let want = vec![cols as u64, rows.of as u64, experts as u64];
        self.weight(name, experts, (rows.take, cols), (rows.at * cols, rows.of * cols), want)
    }

    /// Adds a vector. Norms, biases and factors are plain floats in every file; a quantised vector
    /// is an error.
    ///
    /// # Errors
    /// See [`Builder::matrix`]; also [`GraphError::Format`].
    pub fn vector(&mut self, name: &str, len: usize) -> Result<WeightId, GraphError> {
        self.vector_part(name, Part::all(len))
    }

    /// Adds some elements of a vector, regardless of its dimensions.
    ///
    /// # Errors
    /// See [`Builder::vector`].
    pub fn vector_part(&mut self, name: &str, part: Part) -> Result<WeightId, GraphError> {
        let dims = self.dims(name).unwrap_or_default();
        // Factors of heads or groups may have several dimensions, so only the number of elements is
        // checked.
        let want = match dims.iter().product::<u64>() == part.of as u64 {
            true => dims.to_vec(),
            false => vec![part.of as u64],
        };
        let id = self.weight(name, 1, (1, part.take), (part.at, part.of), want)?;
        let weight = self.graph.weight(id);
        match weight.format.block_elems() {
            1 => Ok(id),
            _ => Err(GraphError::Format {
                name: name.to_string(),
                ty: weight.format.name.to_string(),
            }),
        }
    }

    /// Adds a vector, if the file has it.
    ///
    /// # Errors
    /// See [`Builder::vector`], if the tensor exists.
    pub fn opt_vector(&mut self, name: &str, len: usize) -> Result<Option<WeightId>, GraphError> {
        self.has(name).then(|| self.vector(name, len)).transpose()
    }

    /// Adds the reciprocals of a vector, if the file has it: `x / v` is then `x · (1 / v)`. No
    /// other operation may use the tensor.
    ///
    /// # Errors
    /// See [`Builder::vector`], if the tensor exists.
    pub fn opt_divisors(&mut self, name: &str, len: usize) -> Result<Option<WeightId>, GraphError> {
        let id = self.opt_vector(name, len)?;
        if let Some(weight) = id.and_then(|id| self.graph.weights.get_mut(id.0 as usize)) {
            (weight.inverted, weight.name) = (true, format!("1/{name}"));
        }
        Ok(id)
    }

    /// Adds a weight: `experts` matrices of `(rows, cols)`. Each begins at element `at` of a matrix
    /// of `whole` elements in the file.
    fn weight(
        &mut self,
        name: &str,
        experts: usize,
        (rows, cols): (usize, usize),
        (at, whole): (usize, usize),
        want: Vec<u64>,
    ) -> Result<WeightId, GraphError> {
        let missing =
            || GraphError::MissingTensor { name: name.to_string(), arch: self.graph.arch.clone() };
        let tensor = self.gguf.tensor_info(name).ok_or_else(missing)?;
        // Some converters write dimensions of 1, others do not.
        let trim = |dims: &[u64]| dims.iter().copied().filter(|&d| d != 1).collect::<Vec<_>>();
        if trim(tensor.dims()) != trim(&want) {
            return Err(GraphError::Shape {
                name: name.to_string(),
                found: tensor.dims().to_vec(),
                want,
            });
        }
        let key = (name.to_string(), at, rows, cols);
        if let Some(&id) = self.by_name.get(&key) {
            return Ok(id);
        }
        let unknown = || GraphError::Format { name: name.to_string(), ty: tensor.ty().to_string() };
        let format = Format::by_id(tensor.ty().0).ok_or_else(unknown)?;
        let id = WeightId(self.graph.weights.len() as u32);
        let label = match rows * cols == whole {
            true => name.to_string(),
            false => format!("{name}[{}..{}]", at / cols.max(1), at / cols.max(1) + rows),
        };
        let tensor = name.to_string();
        self.graph.weights.push(Weight {
            name: label,
            tensor,
            at,
            whole,
            experts,
            rows,
            cols,
            stride: cols,
            format,
            inverted: false,
        });
        self.by_name.insert(key, id);
        Ok(id)
    }

    /// Adds a rotation, or returns an equal one.
    pub fn rope_table(&mut self, rope: Rope) -> RopeId {
        let at = self.graph.ropes.iter().position(|r| *r == rope).unwrap_or_else(|| {
            self.graph.ropes.push(rope);
            self.graph.ropes.len() - 1
        });
        RopeId(at as u32)
    }

    /// Adds a state.
    pub fn state(&mut self, name: String, kind: StateKind) -> StateId {
        self.graph.states.push(State { name, kind });
        StateId(self.graph.states.len() as u32 - 1)
    }

    /// Adds a recurrent state of `elems` elements.
    pub fn recurrent(&mut self, name: String, elems: usize) -> StateId {
        self.state(name, StateKind::Recurrent { elems })
    }

    /// Adds a value for the result of an operation. If the name is taken, it becomes `name.2` and
    /// so on.
    pub(super) fn value(
        &mut self,
        mut name: String,
        slots: usize,
        width: usize,
        dtype: Dtype,
    ) -> ValueId {
        if !self.names.insert(name.clone()) {
            let free =
                (2..).map(|n| format!("{name}.{n}")).find(|other| !self.names.contains(other));
            name = free.unwrap_or(name);
            self.names.insert(name.clone());
        }
        self.graph.values.push(Value { name, slots, width, dtype });
        ValueId(self.graph.values.len() as u32 - 1)
    }

    /// Adds a value with the shape of a different value.
    pub(super) fn like(&mut self, name: String, x: ValueId) -> ValueId {
        let Value { slots, width, dtype, .. } = *self.graph.value(x);
        self.value(name, slots, width, dtype)
    }

    /// Appends an operation that computes a value.
    pub(super) fn push(&mut self, op: Op, out: ValueId) -> ValueId {
        self.graph.ops.push(op);
        out
    }

    /// Appends an operation.
    pub(super) fn push_op(&mut self, op: Op) {
        self.graph.ops.push(op);
    }

    /// Limits the context to this number of positions.
    pub fn limit_positions(&mut self, positions: usize) {
        self.graph.positions = Some(positions);
    }

    /// The result becomes pooled rows instead of logits.
    pub fn pool(&mut self, pooling: Pooling) {
        self.graph.pooling = Some(pooling);
    }

    /// Finishes the graph. `logits` is its result.
    ///
    /// # Errors
    /// [`GraphError::Unused`] if a tensor is not read by any operation, unless `skip` accepts its
    /// name.
    pub fn finish(
        mut self,
        logits: ValueId,
        skip: impl Fn(&str) -> bool,
    ) -> Result<Graph, GraphError> {
        self.graph.logits = logits;
        let used: HashSet<&str> = self.graph.weights.iter().map(|w| w.tensor.as_str()).collect();
        let unused = self
            .gguf
            .tensors()
            .iter()
            .map(|t| t.name())
            .find(|name| !used.contains(name) && !skip(name));
        match unused {
            Some(name) => Err(GraphError::Unused { name: name.to_string(), arch: self.graph.arch }),
            None => Ok(self.graph),
        }
    }
}
