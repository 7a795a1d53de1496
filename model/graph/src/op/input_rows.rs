//! Input rows of a pipeline stage: the rows that the previous stage computed on another device.

use super::operation::{Lookup, Operation};
use crate::value::ValueId;

/// `out[t]` is the given row of token `t`.
#[derive(Debug, Clone, PartialEq)]
pub struct InputRows {
    /// The rows.
    pub out: ValueId,
}

impl Operation for InputRows {
    fn reads(&self) -> Vec<ValueId> {
        vec![]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn name(&self) -> &'static str {
        "given"
    }

    fn args(&self, _: &dyn Lookup) -> Vec<String> {
        vec![]
    }
}
