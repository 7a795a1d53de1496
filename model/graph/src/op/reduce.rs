//! Combines the partial results of several devices.

use super::operation::{Lookup, Operation};
use crate::value::ValueId;

/// `out` is the sum of `x` over all devices, or their concatenation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reduce {
    /// The part of this device.
    pub x: ValueId,
    /// Number of devices.
    pub ranks: usize,
    /// The rank of this device.
    pub rank: usize,
    /// Whether the parts are concatenated instead of added.
    pub join: bool,
    /// Whether the devices belong to several processes. A collectives library then transfers the
    /// parts.
    pub gathered: bool,
    /// The result, equal on every device.
    pub out: ValueId,
}

impl Operation for Reduce {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn name(&self) -> &'static str {
        "reduce"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        let how = if self.join { "joined" } else { "added" };
        vec![graph.value(self.x).name.clone(), format!("{how} over {} devices", self.ranks)]
    }
}
