//! A factor that grows with the position.

use super::operation::{Lookup, Operation};
use crate::value::ValueId;

/// `out = x · (1 + scale · ln(⌊(position + offset) / period⌋ + 1))`: sharper scores at high
/// positions (Nakanishi 2025, arXiv 2501.19399).
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionTemperature {
    /// Input.
    pub x: ValueId,
    /// Rate of growth.
    pub scale: f32,
    /// Positions per step of growth.
    pub period: usize,
    /// Offset that is added to the position.
    pub offset: usize,
    /// The result, with the shape of `x`.
    pub out: ValueId,
}

impl Operation for AttentionTemperature {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn name(&self) -> &'static str {
        "temper"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        let x = graph.value(self.x).name.clone();
        vec![
            x,
            format!("scale {}", self.scale),
            format!("period {}", self.period),
            format!("offset {}", self.offset),
        ]
    }
}
