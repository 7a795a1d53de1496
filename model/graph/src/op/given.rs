//! Rows that come from outside: of a model whose layers are on several devices, the rows that the
//! layers before have made.

use super::Operation;
use crate::{Graph, ValueId};

/// `out[t]` = the row that was given for the token.
#[derive(Debug, Clone, PartialEq)]
pub struct Given {
    /// The rows.
    pub out: ValueId,
}

impl Operation for Given {
    fn reads(&self) -> Vec<ValueId> {
        vec![]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn name(&self) -> &'static str {
        "given"
    }

    fn args(&self, _: &Graph) -> Vec<String> {
        vec![]
    }
}
