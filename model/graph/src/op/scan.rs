//! Selective state-space models.

use super::operation::{Lookup, Operation};
use crate::state::StateId;
use crate::value::ValueId;
use crate::weight::WeightId;

/// The recurrence of Mamba (Gu & Dao 2023, arXiv 2312.00752) and Mamba-2 (Dao & Gu 2024, arXiv
/// 2405.21060). Each head has `P` channels with `N` state numbers each:
///
/// ```text
/// h[p][n] ← e^(dt · a[n]) · h[p][n] + dt · x[p] · b[n]
/// out[p]  = Σ_n h[p][n] · c[n] + d · x[p]
/// ```
///
/// Mamba has one channel per head and `N` values of `a` per head. Mamba-2 has one `a` per head.
/// Adjacent heads share `b` and `c`.
#[derive(Debug, Clone, PartialEq)]
pub struct Scan {
    /// Input, `heads · P` wide.
    pub x: ValueId,
    /// Time step of each head, above zero.
    pub dt: ValueId,
    /// Input projection of the state, `groups · N` wide.
    pub b: ValueId,
    /// Output projection of the state, `groups · N` wide.
    pub c: ValueId,
    /// Decay, below zero: one per head, or N per head.
    pub a: WeightId,
    /// Skip connection, one factor per head.
    pub d: WeightId,
    /// The state: `heads · P · N` elements.
    pub state: StateId,
    /// The result, with the shape of `x`.
    pub out: ValueId,
}

impl Operation for Scan {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x, self.dt, self.b, self.c]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn vectors(&self) -> Vec<WeightId> {
        vec![self.a, self.d]
    }

    fn changed_state(&self) -> Option<StateId> {
        Some(self.state)
    }

    fn name(&self) -> &'static str {
        "scan"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        let mut args: Vec<String> =
            self.reads().iter().map(|v| graph.value(*v).name.clone()).collect();
        args.extend([self.a, self.d].map(|w| graph.weight(w).name.clone()));
        args.push(format!("state {}", graph.state(self.state).name));
        args
    }
}

/// The inputs of a [`Scan`].
#[derive(Debug, Clone, Copy)]
pub struct ScanInputs {
    /// See [`Scan::x`].
    pub x: ValueId,
    /// See [`Scan::dt`].
    pub dt: ValueId,
    /// See [`Scan::b`].
    pub b: ValueId,
    /// See [`Scan::c`].
    pub c: ValueId,
}
