//! Nodes of the graph of primitives: immutable, shared, computed at most once. A node with a value
//! drops its definition, so the graph contains only what is still to be computed.

use crate::contract::Axes;
use crate::device::Device;
use crate::dtype::DType;
use crate::element::{BinOp, FoldOp, UnOp};
use crate::error::Result;
use crate::hash::{BuildFast, Fast};
use crate::memory::Buffer;
use crate::view::View;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// A chain of this many nodes without values is computed before it grows, because dropping and
/// lowering are recursive.
const DEEPEST: u32 = 128;

/// A primitive with real dtypes. Complex values are pairs above this level.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    /// One value in every element, as the bits of a register.
    Constant(u64),
    /// The row-major index as i64.
    Iota,
    /// Random bits (u32) from a counter (Philox 4×32-10): key, first counter.
    Random(u64, u64),
    Unary(UnOp),
    Binary(BinOp),
    /// (condition, value if true, value if false).
    Where,
    Cast,
    View(View),
    /// The elements in row-major order.
    Reshape,
    /// (source, index): the index replaces the position in one axis of the source; the other axes
    /// have the result's positions. Source and index are views in the result's shape, except for
    /// that axis.
    Gather {
        axis: usize,
        size: usize,
    },
    /// Reduces the last `folded` axes to one value.
    Fold {
        op: FoldOp,
        folded: usize,
    },
    /// (…, m, k) × (…, k, n) with batches broadcast before.
    Product,
    /// A sum of products over several axes, on GPUs.
    Contract(Axes),
    /// softmax(q kᵀ scale + mask) v on GPUs, of (q, k, v): (batch…, rows, width) with equal
    /// batches, and a mask (batch…, rows, keys), if there is a fourth input.
    Attention(Sight),
    /// A cumulative sum or product along the last axis.
    Scan(FoldOp),
    /// Indices (i64) that sort the last axis, stable, NaN last.
    ArgSort {
        descending: bool,
    },
    /// A copy of the first input, with the other inputs written to their regions.
    Assemble(Vec<Region>),
    /// (base, index, values): a copy of base with values added or written along one axis.
    Scatter {
        axis: usize,
        add: bool,
    },
}

/// The keys that row i of an attention sees: i - left … i + right, without an end where it is
/// `None`; and the scale as the bits of an f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sight {
    pub left: Option<u32>,
    pub right: Option<u32>,
    pub scale: u32,
}

/// The region of an input of [`Op::Assemble`]: `start + step * i` in each axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Region {
    pub start: Vec<i64>,
    pub step: Vec<i64>,
}

/// The definition of a node.
#[derive(Debug)]
pub(crate) struct Def {
    pub op: Op,
    pub inputs: Vec<Arc<Node>>,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub device: Device,
    depth: u32,
    /// Number of nodes that have this node as an input.
    uses: AtomicU32,
    def: Mutex<Option<Arc<Def>>>,
    value: OnceLock<Buffer>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nodes without values, by their definitions: equal expressions share a node.
static NODES: Mutex<Option<HashMap<u64, Weak<Node>, BuildFast>>> = Mutex::new(None);

impl Node {
    /// A node with a value.
    pub(crate) fn leaf(dtype: DType, shape: Vec<usize>, value: Buffer) -> Arc<Node> {
        let device = value.device();
        let node = Node {
            dtype,
            shape,
            device,
            depth: 0,
            uses: AtomicU32::new(0),
            def: Mutex::new(None),
            value: OnceLock::new(),
        };
        let _ = node.value.set(value);
        Arc::new(node)
    }

    /// A node to be computed, or the existing node of an equal expression.
    pub(crate) fn new(
        op: Op,
        inputs: Vec<Arc<Node>>,
        dtype: DType,
        shape: Vec<usize>,
        device: &Device,
    ) -> Result<Arc<Node>> {
        let mut depth = inputs.iter().map(|n| n.current_depth()).max().unwrap_or(0) + 1;
        if depth > DEEPEST {
            for input in &inputs {
                crate::eval::force(input)?;
            }
            depth = 1;
        }
        let mut hasher = Fast::default();
        (&op, dtype, &shape, device.id()).hash(&mut hasher);
        inputs.iter().for_each(|n| Arc::as_ptr(n).hash(&mut hasher));
        let key = hasher.finish();
        let mut nodes = lock(&NODES);
        let table = nodes.get_or_insert_default();
        if let Some(known) = table.get(&key).and_then(Weak::upgrade) {
            let same = lock(&known.def).as_ref().is_some_and(|def| {
                def.op == op
                    && def.inputs.len() == inputs.len()
                    && def.inputs.iter().zip(&inputs).all(|(a, b)| Arc::ptr_eq(a, b))
            });
            if same && known.dtype == dtype && known.shape == shape && known.device == *device {
                return Ok(known);
            }
        }
        inputs.iter().for_each(|n| _ = n.uses.fetch_add(1, Ordering::Relaxed));
        let node = Arc::new(Node {
            dtype,
            shape,
            device: device.clone(),
            depth,
            uses: AtomicU32::new(0),
            def: Mutex::new(Some(Arc::new(Def { op, inputs }))),
            value: OnceLock::new(),
        });
        // Of two different nodes with one hash the newer stays.
        table.insert(key, Arc::downgrade(&node));
        // The table is swept each time that its size reaches a power of two above 4096.
        if table.len() > 4096 && table.len().is_power_of_two() {
            table.retain(|_, node| node.strong_count() > 0);
        }
        drop(nodes);
        crate::stream::note(&node);
        Ok(node)
    }

    fn current_depth(&self) -> u32 {
        if self.value.get().is_some() { 0 } else { self.depth }
    }

    /// Its value, if it has been computed.
    pub(crate) fn value(&self) -> Option<&Buffer> {
        self.value.get()
    }

    /// Its definition, as long as it has no value.
    pub(crate) fn def(&self) -> Option<Arc<Def>> {
        lock(&self.def).clone()
    }

    /// Sets its value; later calls have no effect.
    pub(crate) fn set(&self, value: Buffer) {
        let _ = self.value.set(value);
        let def = lock(&self.def).take();
        drop(def);
    }

    /// Whether several nodes have it as an input.
    pub(crate) fn shared(&self) -> bool {
        self.uses.load(Ordering::Relaxed) > 1
    }

    pub(crate) fn numel(&self) -> usize {
        crate::shape::numel(&self.shape)
    }
}
