//! What an operation is given to run with.

use super::kv::KvStore;
use super::pool::Pool;
use super::quantise::Quantised;
use super::rope::RopeTable;
use super::share::Shared;
use super::simd::Isa;
use super::state::State;
use super::weights::Weights;
use kjit_graph::{Graph, RopeId, ValueId};

/// Elements below which an elementwise operation is not worth waking threads for.
pub(super) const SERIAL: usize = 8192;

/// Successive tokens of one sequence.
pub struct Piece<'a> {
    /// What the sequence keeps.
    pub state: &'a mut State,
    /// Position of the first.
    pub first: usize,
    /// How many.
    pub rows: usize,
}

/// The inputs of an operation and what it works with: rows are those of the pieces, one piece
/// behind the other.
pub struct Run<'a> {
    pub graph: &'a Graph,
    pub weights: &'a Weights,
    pub ropes: &'a mut [RopeTable],
    pub pool: &'a mut Pool,
    pub isa: Isa,
    /// The input of a product, rounded; `None` where all is to be f32.
    pub rounded: Option<&'a mut Quantised>,
    /// A row's results are the same bits whatever rows come with it.
    pub reproducible: bool,
    /// The rows that the stage before has made.
    pub given: &'a [f32],
    /// The rows' tokens.
    pub tokens: &'a [u32],
    /// Rows of all pieces.
    pub rows: usize,
    pub pieces: Vec<Piece<'a>>,
    /// The rows of a value.
    pub inputs: &'a dyn Fn(ValueId) -> &'a [f32],
}

impl<'a> Run<'a> {
    /// The rows of a value that the operation reads.
    pub fn input(&self, v: ValueId) -> &'a [f32] {
        (self.inputs)(v)
    }

    /// Positions of the rows.
    pub fn positions(&self) -> impl Iterator<Item = usize> {
        self.pieces.iter().flat_map(|p| p.first..p.first + p.rows)
    }

    /// The rotation with the angles of the rows, for [`RopeTable::turn`] on all threads.
    pub fn angles(&mut self, rope: RopeId) -> (&RopeTable, Rows<'_>) {
        let table = &mut self.ropes[rope.0 as usize];
        table.fill(self.pieces.iter().map(|p| (p.first, p.rows)));
        (table, Rows { pool: self.pool, rows: self.rows })
    }

    /// Cuts `out` into runs of whole rows and calls `f` with each run's start and elements, on all
    /// threads if it is worth it.
    pub fn by_rows(&mut self, out: &mut [f32], f: &(dyn Fn(usize, &mut [f32]) + Sync)) {
        Rows { pool: self.pool, rows: self.rows }.run(out, f);
    }
}

/// Rows to be split among threads.
pub struct Rows<'a> {
    pool: &'a mut Pool,
    rows: usize,
}

impl Rows<'_> {
    /// See [`Run::by_rows`].
    pub fn run(&mut self, out: &mut [f32], f: &(dyn Fn(usize, &mut [f32]) + Sync)) {
        if out.len() < SERIAL || self.rows == 1 {
            return f(0, out);
        }
        let (n, width) = (out.len(), out.len() / self.rows);
        let run = self.rows.div_ceil(4 * self.pool.threads()) * width;
        let out = Shared::new(out);
        self.pool.run(n.div_ceil(run), &|task| {
            let at = task * run;
            // SAFETY: tasks have different runs.
            f(at, unsafe { out.part(at, run.min(n - at)) });
        });
    }
}

/// What an attention reads: its keys, its values, and the elements of a value.
pub type Kept<'a> = (&'a KvStore, &'a KvStore, usize);
