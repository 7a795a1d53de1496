//! Translates JSON schemas to grammars in llguidance's variant of Lark.
//!
//! The library's own compiler has limits: it refuses common input (a `format` with an unknown
//! name), treats bounds as doubles, allows unlimited digits, and exceeds its own row limit for some
//! hundred optional properties. So schemas are parsed here ([`read`]), schemas that all apply to
//! one value are intersected ([`meet`]), and the result is written as rules ([`write`]). The
//! library still compiles strings with a pattern or a format, and multiples.

mod meet;
mod number;
mod read;
mod sequence;
mod write;

use number::Numbers;
use serde_json::Value;

/// A keyword of a schema that answers are not checked against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unenforced {
    /// The keyword.
    pub keyword: String,
    /// Its place, such as `$.properties.size`.
    pub at: String,
    /// Whether it excludes answers in a way that no other keyword does; a request for strict
    /// checking is then refused. Otherwise it only checks values, which a reader can do afterwards.
    pub matters: bool,
}

impl std::fmt::Display for Unenforced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}", self.keyword, self.at)
    }
}

/// A schema as a grammar.
pub struct Translated {
    /// The grammar in llguidance's variant of Lark.
    pub lark: String,
    /// The keywords that it does not enforce.
    pub unheld: Vec<Unenforced>,
}

/// Translates a schema in time linear in its size.
///
/// # Errors
/// The schema is invalid, or no value satisfies it. The text names the place and the reason.
pub fn translate(schema: &Value) -> Result<Translated, String> {
    let mut reader = read::Reader::new(schema);
    let root = reader.read(schema, "$", 0)?;
    write::write(reader, &root)
}

/// The set of values that a schema accepts.
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
    /// Only this value.
    Literal(Value),
    /// Any of these.
    Union(Vec<Schema>),
    /// The definition with this number.
    Ref(usize),
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Strings {
    least: usize,
    most: Option<usize>,
    /// Patterns with their places in the schema.
    patterns: Vec<(String, String)>,
    formats: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
struct Array {
    prefix: Vec<Schema>,
    items: Schema,
    least: usize,
    most: Option<usize>,
    /// The place of `uniqueItems`, if it is set.
    unique: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
struct Object {
    /// Listed properties in their order.
    properties: Vec<(String, Schema)>,
    patterns: Vec<(String, Schema)>,
    /// The schema of all other properties.
    additional: Schema,
    /// Constraints on the names of those.
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

    /// The union of schemas.
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
