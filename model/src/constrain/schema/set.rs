//! The set of values that a schema accepts.

use super::number::Numbers;
use serde_json::Value;

/// The set of values that a schema accepts.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Schema {
    Any,
    Never,
    Null,
    Bool,
    Number(Numbers),
    String(Strings),
    Array(Box<Array>),
    Object(Box<Object>),
    /// Only this value.
    Literal(Value),
    /// Any value of these schemas.
    Union(Vec<Schema>),
    /// The definition with this index.
    Ref(usize),
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Strings {
    pub(super) least: usize,
    pub(super) most: Option<usize>,
    /// Patterns, and where they are in the schema.
    pub(super) patterns: Vec<(String, String)>,
    pub(super) formats: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Array {
    pub(super) prefix: Vec<Schema>,
    pub(super) items: Schema,
    pub(super) least: usize,
    pub(super) most: Option<usize>,
    /// The path of `uniqueItems`, if it is set.
    pub(super) unique: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Object {
    /// Listed properties in their order.
    pub(super) properties: Vec<(String, Schema)>,
    pub(super) patterns: Vec<(String, Schema)>,
    /// The schema of all other properties.
    pub(super) additional: Schema,
    /// Constraints on the names of these other properties.
    pub(super) names: Strings,
    pub(super) required: Vec<String>,
    pub(super) least: usize,
    pub(super) most: Option<usize>,
    pub(super) at: String,
}

impl Schema {
    pub(super) fn is_never(&self) -> bool {
        *self == Schema::Never
    }

    /// The union of schemas.
    pub(super) fn union(all: Vec<Schema>) -> Schema {
        let mut flat: Vec<Schema> = vec![];
        for one in all {
            match one {
                Schema::Never => {}
                Schema::Any => return Schema::Any,
                Schema::Union(inner) => flat.extend(inner),
                one => flat.push(one),
            }
        }
        match flat.len() {
            0 => Schema::Never,
            1 => flat.pop().unwrap_or(Schema::Never),
            _ => Schema::Union(flat),
        }
    }
}
