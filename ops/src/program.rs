//! A group's bytecode: the computation at each position of its index space. The CPU interprets it
//! over tiles; a GPU kernel is rendered from it.

use crate::dtype::DType;
use crate::element::{BinOp, FoldOp, UnOp};
use crate::memory::Buffer;
use crate::view::collapse;

/// The number of a step; later steps use it to read the step's value.
pub(crate) type Reg = usize;

/// The number of an index map.
pub(crate) type MapId = usize;

/// The instruction of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Instr {
    /// A register's bits.
    Constant(u64),
    /// The element of a buffer at a map's position.
    Load(usize, MapId),
    /// The element of a buffer at a map's position plus an index (i64, in an axis of `size`) times
    /// the stride of that axis, whose number the error names.
    Gather {
        leaf: usize,
        map: MapId,
        index: Reg,
        stride: i64,
        size: i64,
        axis: usize,
    },
    /// A map's position, as i64.
    Index(MapId),
    /// Random bits (u32) of a key; the counter is a map's position plus the first counter.
    Random {
        key: u64,
        first: u64,
        map: MapId,
    },
    /// A value of the kernel around the group: the result of a product.
    Given(usize),
    /// The fold of a value over the row that the position is in (GPUs).
    Fold(FoldOp, Reg),
    Unary(UnOp, Reg),
    Binary(BinOp, Reg, Reg),
    Where(Reg, Reg, Reg),
    Cast(Reg),
}

/// One step: an instruction and the dtype of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Step {
    pub instr: Instr,
    pub dtype: DType,
}

/// An affine map of the index space: `offset + sum of strides[k] * index[k]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Map {
    pub offset: i64,
    pub strides: Vec<i64>,
}

/// A buffer that the group reads.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub buffer: Buffer,
    pub dtype: DType,
}

/// The bytecode of a group over an index space whose last `folded` axes are reduced.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub shape: Vec<usize>,
    pub folded: usize,
    pub steps: Vec<Step>,
    pub leaves: Vec<Leaf>,
    pub maps: Vec<Map>,
    pub out: Reg,
}

impl Program {
    /// A program without steps, for kernels that have none.
    pub(crate) fn empty() -> Program {
        Program {
            shape: Vec::new(),
            folded: 0,
            steps: Vec::new(),
            leaves: Vec::new(),
            maps: Vec::new(),
            out: 0,
        }
    }

    /// The dtype of its result.
    pub(crate) fn dtype(&self) -> DType {
        self.steps.get(self.out).map_or(DType::Bool, |s| s.dtype)
    }

    /// The dtype of a step's value.
    pub(crate) fn dtype_of(&self, reg: Reg) -> DType {
        self.steps.get(reg).map_or(DType::Bool, |s| s.dtype)
    }

    /// Number of results, and of reduced elements for each result.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        let kept = self.shape.len() - self.folded.min(self.shape.len());
        let (kept, folded) = self.shape.split_at(kept);
        (crate::shape::numel(kept), crate::shape::numel(folded))
    }

    /// Merges axes of its index space, but not reduced axes with other axes.
    pub(crate) fn collapse(&mut self) {
        let split = self.shape.len() - self.folded.min(self.shape.len());
        let (kept, folded) = self.shape.split_at(split);
        let cut = |m: &Map, range: std::ops::Range<usize>| {
            m.strides.get(range).unwrap_or_default().to_vec()
        };
        let rank = self.shape.len();
        let mut first: Vec<_> = self.maps.iter().map(|m| cut(m, 0..split)).collect();
        let mut last: Vec<_> = self.maps.iter().map(|m| cut(m, split..rank)).collect();
        let mut shape = collapse(kept, &mut first);
        let end = collapse(folded, &mut last);
        self.folded = end.len();
        shape.extend(end);
        self.shape = shape;
        for (map, (mut a, b)) in self.maps.iter_mut().zip(first.into_iter().zip(last)) {
            a.extend(b);
            map.strides = a;
        }
    }

    /// The index space with the reduced axes first, so that the innermost loop is over the other
    /// axes.
    pub(crate) fn folded_first(&self) -> Program {
        let mut turned = self.clone();
        let split = self.shape.len() - self.folded.min(self.shape.len());
        turned.shape.rotate_left(split);
        turned.maps.iter_mut().for_each(|m| m.strides.rotate_left(split));
        turned
    }
}
