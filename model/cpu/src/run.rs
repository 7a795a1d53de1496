//! The context in which an operation runs.

use super::pool::Pool;
use super::quantise::Quantised;
use super::rope::RopeTable;
use super::shared_mut::SharedMut;
use super::simd::Isa;
use super::state::State;
use super::weights::Weights;
use crate::pool::SERIAL;
use kjit_exec::ImageRows;
use kjit_graph::{Graph, RopeId, ValueId};
use std::sync::Arc;

/// Consecutive tokens of one sequence.
pub struct StepTokens<'a> {
    /// The states of the sequence.
    pub state: &'a mut State,
    /// Position of the first token.
    pub first: usize,
    /// Number of tokens.
    pub rows: usize,
}

/// The inputs of an operation and the executor's resources. Rows are those of all pieces, in order.
pub struct Run<'a> {
    pub graph: &'a Graph,
    pub weights: &'a Weights,
    pub ropes: &'a mut [RopeTable],
    pub pool: &'a mut Pool,
    pub isa: Isa,
    /// Buffers for the rounded input of a product; `None` if everything is f32.
    pub rounded: Option<&'a mut Quantised>,
    /// Whether the results of a row must be independent of the batch.
    pub reproducible: bool,
    /// The rows from the previous stage.
    pub given: &'a [f32],
    /// The images that have rows here, by the ids among `tokens`.
    pub images: &'a [Arc<ImageRows>],
    /// Whether the rows of an image attend to later rows of the image.
    pub bidirectional: bool,
    /// The tokens of the rows.
    pub tokens: &'a [u32],
    /// Number of rows of all pieces.
    pub rows: usize,
    pub pieces: Vec<StepTokens<'a>>,
    /// Returns the rows of a value.
    pub inputs: &'a dyn Fn(ValueId) -> &'a [f32],
}

impl<'a> Run<'a> {
    /// The rows of an input value.
    pub fn input(&self, v: ValueId) -> &'a [f32] {
        (self.inputs)(v)
    }

    /// The positions of the rows.
    pub fn positions(&self) -> impl Iterator<Item = usize> {
        self.pieces.iter().flat_map(|p| p.first..p.first + p.rows)
    }

    /// The rotation table, filled for these rows, and the rows for [`RopeTable::rotate`] on all
    /// threads.
    pub fn angles(&mut self, rope: RopeId) -> (&RopeTable, Rows<'_>) {
        let table = &mut self.ropes[rope.0 as usize];
        table.fill(self.pieces.iter().map(|p| (p.first, p.rows)));
        (table, Rows { pool: self.pool, rows: self.rows })
    }

    /// Divides `out` into ranges of whole rows and calls `f` with the start and the elements of
    /// each range. If there is enough work, it uses all threads.
    pub fn by_rows(&mut self, out: &mut [f32], f: &(dyn Fn(usize, &mut [f32]) + Sync)) {
        Rows { pool: self.pool, rows: self.rows }.run(out, f);
    }
}

/// Rows that can be divided over threads.
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
        let out = SharedMut::new(out);
        self.pool.run(n.div_ceil(run), &|task| {
            let at = task * run;
            // SAFETY: tasks have different runs, so no two use the same elements.
            f(at, unsafe { out.part(at, run.min(n - at)) });
        });
    }
}
