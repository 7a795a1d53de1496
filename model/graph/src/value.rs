//! Values.

/// Index of a [`Value`] in [`Graph::values`](crate::Graph::values).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// The type of a value's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// A real number. Executors choose the storage; f32 is the reference.
    Real,
    /// An index, for example of an expert.
    Index,
}

/// A value: `slots × width` elements for every token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// Unique name, equal to the name of its operation: `blk.0.attn_norm`. A value can be read by
    /// its name.
    pub name: String,
    /// Rows per token: 1, or one per chosen expert.
    pub slots: usize,
    /// Number of elements in a row.
    pub width: usize,
    /// Type of the elements.
    pub dtype: Dtype,
}
