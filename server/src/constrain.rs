//! Answers that must follow a schema.

use crate::loaded::Loaded;
use crate::refusal::Refusal;
use kjit_model::serve::Constraint;

/// What an answer must follow for this JSON schema.
///
/// # Errors
/// The field's name, and why not.
pub fn by_schema(_loaded: &Loaded, _schema: &str, field: &str) -> Result<Box<dyn Constraint>, Refusal> {
    Err(Refusal::field(field, "answers cannot be constrained to a schema by this server"))
}
