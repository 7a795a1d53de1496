//! JSON schemas as grammars in llguidance's form of Lark.
//!
//! The library has a compiler of its own, which refuses what people write (a `format` of any name),
//! tells bounds as doubles, lets digits run without an end, and makes a row of its parser longer
//! than it allows of some hundred optional properties. So a schema is read here ([`read`]), where
//! several hold at once they become one ([`meet`]), and it is written as rules ([`write`]). The
//! library's compiler still makes strings of a pattern or a format, and multiples.

mod meet;
mod number;
mod read;
mod sequence;
mod write;

use number::Numbers;
use serde_json::Value;

/// A keyword of a schema that answers are not held to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unheld {
    /// The keyword.
    pub keyword: String,
    /// Where it stands: `$.properties.size`.
    pub at: String,
    /// It was meant to exclude answers in a way that nothing else in the schema does: who asked for
    /// exactness is refused. Otherwise it is a check of values that a reader makes afterwards.
    pub matters: bool,
}

impl std::fmt::Display for Unheld {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}", self.keyword, self.at)
    }
}

/// A schema as a grammar.
pub struct Translated {
    /// In llguidance's form of Lark.
    pub lark: String,
    /// What it does not hold.
    pub unheld: Vec<Unheld>,
}

/// A schema as a grammar, in time that is linear in its size.
///
/// # Errors
/// It is no schema, or nothing keeps to it: where, and why.
pub fn translate(schema: &Value) -> Result<Translated, String> {
    let mut reader = read::Reader::new(schema);
    let root = reader.read(schema, "$", 0)?;
    write::write(reader, &root)
}

/// What values may be.
#[derive(Debug, Clone, PartialEq)]
enum Schema {
    Any,
    Never,
    Null,
    Bool,
    Number(Numbers),
    String(Strings),
    Array(Box<Array>),
    Object(Box<Object>),
    /// This value alone.
    Literal(Value),
    /// Any of these.
    Union(Vec<Schema>),
    /// The definition of this number.
    Ref(usize),
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Strings {
    least: usize,
    most: Option<usize>,
    /// With the place where they stand.
    patterns: Vec<(String, String)>,
    formats: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
struct Array {
    prefix: Vec<Schema>,
    items: Schema,
    least: usize,
    most: Option<usize>,
    /// Where it is said that no two items are the same.
    unique: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
struct Object {
    /// In the order in which they come.
    properties: Vec<(String, Schema)>,
    patterns: Vec<(String, Schema)>,
    /// Any other property.
    additional: Schema,
    /// What the names of those are.
    names: Strings,
    required: Vec<String>,
    least: usize,
    most: Option<usize>,
    at: String,
}

impl Schema {
    fn is_never(&self) -> bool {
        *self == Schema::Never
    }

    /// One of these.
    fn union(all: Vec<Schema>) -> Schema {
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

#[cfg(test)]
mod tests;
