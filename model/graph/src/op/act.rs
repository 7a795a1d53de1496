//! An activation function on each element.

use super::operation::{Lookup, Operation};
use crate::activation::Activation;
use crate::value::ValueId;

/// `out = act(x)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Act {
    /// Input.
    pub x: ValueId,
    /// The function.
    pub act: Activation,
    /// The result, with the shape of `x`.
    pub out: ValueId,
}

impl Operation for Act {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn name(&self) -> &'static str {
        "act"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        vec![graph.value(self.x).name.clone(), format!("{:?}", self.act)]
    }
}
