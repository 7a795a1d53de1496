//! Translates JSON schemas to grammars in llguidance's dialect of Lark.
//!
//! The library's own compiler has limits. It rejects common input (a `format` with an unknown
//! name), treats bounds as f64, allows unlimited digits, and exceeds its own limit of rows for some
//! hundred optional properties. So schemas are parsed here ([`read`]), combined schemas are
//! intersected ([`meet`]), and the result is written as rules ([`write`]). The library still
//! compiles strings with a pattern or a format, and multiples.

mod intersect;
mod number;
mod read;
mod sequence;
mod write;

use serde_json::Value;
pub use translated::{Translated, Unenforced};

/// Translates a schema in time linear in its size.
///
/// # Errors
/// The schema is invalid, or no value satisfies it. The message names the path and the reason.
pub fn translate(schema: &Value) -> Result<Translated, String> {
    let mut reader = read::Reader::new(schema);
    let root = reader.read(schema, "$", 0)?;
    write::write(reader, &root)
}

mod items;
mod set;
#[cfg(test)]
mod tests;
mod translated;
