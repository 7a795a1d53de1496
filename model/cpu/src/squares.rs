//! Sums of squares of the inputs of products. Importance matrices are computed from these sums.

use kjit_graph::{Graph, Op, WeightId};
use std::collections::BTreeMap;

/// The inputs of all products with a tensor: sums of squares.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InputSquares {
    /// For each matrix of the tensor, one after another, a sum for each column.
    pub sums: Vec<f64>,
    /// For each matrix, the number of inputs.
    pub counts: Vec<u64>,
}

impl InputSquares {
    fn add(&mut self, matrix: usize, x: &[f32]) {
        let Some(count) = self.counts.get_mut(matrix) else { return };
        *count += 1;
        let sums = &mut self.sums[matrix * x.len()..][..x.len()];
        sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
    }
}

/// Sums by the tensor's name.
#[derive(Debug, Default)]
pub(crate) struct Observed(pub BTreeMap<String, InputSquares>);

impl Observed {
    /// Adds the inputs of the products among `ops`.
    pub fn add<'a>(
        &mut self,
        graph: &Graph,
        ops: &[Op],
        input: &dyn Fn(kjit_graph::ValueId) -> &'a [f32],
    ) {
        for op in ops {
            match op {
                Op::MatMul(m) => {
                    let (squares, cols) = self.of(graph, m.weight);
                    input(m.x).chunks_exact(cols).for_each(|x| squares.add(0, x));
                }
                Op::ExpertMatMul(m) => {
                    let (x, experts) = (input(m.x), input(m.experts));
                    let slots = graph.value(m.experts).width;
                    let shared = graph.value(m.x).slots == 1;
                    let (squares, cols) = self.of(graph, m.weight);
                    for (slot, expert) in experts.iter().enumerate().filter(|(_, e)| **e >= 0.0) {
                        let row = if shared { slot / slots } else { slot };
                        squares.add(*expert as usize, &x[row * cols..][..cols]);
                    }
                }
                Op::HeadMatMul(m) => {
                    let width = graph.value(m.x).slots * graph.value(m.x).width;
                    let heads = graph.weight(m.weight).experts;
                    let (squares, cols) = self.of(graph, m.weight);
                    for x in input(m.x).chunks_exact(width) {
                        for head in 0..heads {
                            let from = if width == cols { 0 } else { head * cols };
                            squares.add(head, &x[from..from + cols]);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// The sums of a weight's tensor, and its number of columns.
    fn of(&mut self, graph: &Graph, id: WeightId) -> (&mut InputSquares, usize) {
        let w = graph.weight(id);
        let fresh =
            || InputSquares { sums: vec![0.0; w.experts * w.cols], counts: vec![0; w.experts] };
        (self.0.entry(w.tensor.clone()).or_insert_with(fresh), w.cols)
    }
}
