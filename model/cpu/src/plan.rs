//! The execution plan of the CPU: steps, rows and buffers of a graph.

use super::op::shares_step;
use kjit_graph::{Graph, Op, ValueId};

/// Operations that run as one step.
pub struct Step {
    /// Index of the first operation.
    pub first: usize,
    /// Number of consecutive operations. It is more than one only for products with the same input
    /// (and experts), which share work.
    pub count: usize,
    /// Whether rows of all tokens are computed, or only those with requested logits.
    pub full: bool,
}

/// The plan of a graph.
pub struct Plan {
    /// The steps in order.
    pub steps: Vec<Step>,
    /// The buffer of each value.
    pub place: Vec<usize>,
    /// Elements per row of each buffer.
    pub buffers: Vec<usize>,
    /// Whether a value has a row for every token. States depend on such values, directly or
    /// indirectly.
    pub full: Vec<bool>,
}

impl Plan {
    /// Plans a graph. If `keep` is set, no buffer is reused, so that every value remains at the
    /// end.
    pub fn new(graph: &Graph, keep: bool) -> Plan {
        let full = full_values(graph);
        let steps = steps(graph, &full);
        let mut last_use = vec![0; graph.values.len()];
        for (s, step) in steps.iter().enumerate() {
            for op in &graph.ops[step.first..step.first + step.count] {
                op.reads().iter().chain(&op.writes()).for_each(|v| last_use[v.0 as usize] = s);
            }
        }
        let mut plan = Plan {
            place: vec![usize::MAX; graph.values.len()],
            buffers: vec![],
            full,
            steps: vec![],
        };
        let mut free: Vec<usize> = vec![];
        for (s, step) in steps.iter().enumerate() {
            let ops = &graph.ops[step.first..step.first + step.count];
            for v in ops.iter().flat_map(Op::writes) {
                let value = graph.value(v);
                plan.place[v.0 as usize] = plan.take(&mut free, value.slots * value.width);
            }
            // Buffers are freed only after buffers for the results of the step were taken. So an
            // operation does not write a buffer that it reads.
            let mut dead: Vec<ValueId> =
                ops.iter().flat_map(|op| op.reads().into_iter().chain(op.writes())).collect();
            dead.retain(|v| !keep && last_use[v.0 as usize] == s && *v != graph.logits);
            dead.sort_unstable();
            dead.dedup();
            // Values from other stages have no buffer.
            free.extend(
                dead.iter().map(|v| plan.place[v.0 as usize]).filter(|place| *place != usize::MAX),
            );
        }
        plan.steps = steps;
        plan
    }

    /// Takes the smallest free buffer that is large enough, otherwise the largest free buffer,
    /// which is enlarged, otherwise a new one.
    fn take(&mut self, free: &mut Vec<usize>, elems: usize) -> usize {
        let fits = |b: usize| self.buffers[b] >= elems;
        let best = free.iter().position(|_| true).and_then(|_| {
            (0..free.len()).min_by_key(|&i| match (fits(free[i]), self.buffers[free[i]]) {
                (true, n) => (0, n),
                (false, n) => (1, usize::MAX - n),
            })
        });
        match best {
            Some(i) => {
                let b = free.swap_remove(i);
                self.buffers[b] = self.buffers[b].max(elems);
                b
            }
            None => {
                self.buffers.push(elems);
                self.buffers.len() - 1
            }
        }
    }
}

/// Values that are needed for every token: inputs of states, all values of an encoder, and the rows
/// that one stage passes to the next stage.
fn full_values(graph: &Graph) -> Vec<bool> {
    let mut full = vec![false; graph.values.len()];
    for op in graph.ops.iter().rev() {
        let all =
            graph.pooling.is_some() || graph.feeds_next_stage || matches!(op, Op::InputRows(_));
        let keeps = op.changed_state().is_some() || all;
        if keeps {
            op.writes().iter().for_each(|v| full[v.0 as usize] = true);
        }
        if keeps || op.writes().iter().any(|v| full[v.0 as usize]) {
            op.reads().iter().for_each(|v| full[v.0 as usize] = true);
        }
    }
    full
}

fn steps(graph: &Graph, full: &[bool]) -> Vec<Step> {
    let mut steps: Vec<Step> = vec![];
    for (i, op) in graph.ops.iter().enumerate() {
        let is_full = op.writes().first().is_none_or(|v| full[v.0 as usize]);
        if let Some(last) = steps.last_mut()
            && shares_step(op, &graph.ops[last.first], graph)
            && last.full == is_full
        {
            last.count += 1;
            continue;
        }
        steps.push(Step { first: i, count: 1, full: is_full });
    }
    steps
}
