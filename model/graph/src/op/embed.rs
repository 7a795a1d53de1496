//! Rows of a table, chosen by token or by position.

use super::operation::{Lookup, Operation};
use crate::value::ValueId;
use crate::weight::WeightId;

/// The index that chooses a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The token.
    Token,
    /// The token's position. The table limits the context.
    Position,
}

/// `out[t] = scale · table[i[t]]`, where `i` is the token id or the position.
#[derive(Debug, Clone, PartialEq)]
pub struct Embed {
    /// The table, with a row per token of the vocabulary or per position.
    pub table: WeightId,
    /// The index that selects a row.
    pub by: By,
    /// Factor (Gemma: √width).
    pub scale: f32,
    /// The rows.
    pub out: ValueId,
}

impl Operation for Embed {
    fn reads(&self) -> Vec<ValueId> {
        vec![]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn matrices(&self) -> Vec<WeightId> {
        vec![self.table]
    }

    fn bytes(&self, graph: &dyn Lookup) -> u64 {
        let table = graph.weight(self.table);
        (table.bytes() / table.rows.max(1)) as u64
    }

    fn name(&self) -> &'static str {
        match self.by {
            By::Token => "embed",
            By::Position => "embed_position",
        }
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        vec![graph.weight(self.table).name.clone(), format!("scale {}", self.scale)]
    }
}
