//! Parts that several devices have made of a row.

use super::Operation;
use crate::{Graph, ValueId};

/// `out` = the sum of `x` over all devices, or every device's `x` one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reduce {
    /// This device's part.
    pub x: ValueId,
    /// Devices.
    pub ranks: usize,
    /// This one among them.
    pub rank: usize,
    /// Put one behind the other, not added.
    pub join: bool,
    /// The devices are of several processes: a library brings the parts.
    pub gathered: bool,
    /// The same on every device.
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

    fn args(&self, graph: &Graph) -> Vec<String> {
        let how = if self.join { "joined" } else { "added" };
        vec![graph.value(self.x).name.clone(), format!("{how} over {} devices", self.ranks)]
    }
}
