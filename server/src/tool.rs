//! A tool that a request offers.

use crate::fields::Fields;
use crate::refusal::Refusal;
use serde_json::Value;

/// Maximum bytes of a tool name: Anthropic's limit (OpenAI's is 64).
pub(super) const MAX_NAME: usize = 128;

/// An offered tool.
#[derive(Debug)]
pub struct Tool {
    /// Path of the field in the request.
    pub field: String,
    /// Name.
    pub name: String,
    /// Schema of the arguments, with the keys in the order of the request.
    pub parameters: Value,
    /// Whether calls must follow the schema.
    pub strict: bool,
}

/// Reads the name of a tool. It must differ from the names of `others`.
pub fn checked_name(f: &mut Fields, others: &[Tool]) -> Result<String, Refusal> {
    let name = f.needed_text("name")?;
    let good = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(good) {
        let why = format_args!("give 1 to {MAX_NAME} letters, digits, '_', '-' or '.'");
        return Err(f.wrong("name", why));
    }
    match others.iter().any(|tool| tool.name == name) {
        true => Err(f.wrong("name", "another tool has that name")),
        false => Ok(name),
    }
}

/// Maximum number of tools in a request.
pub const MAX_TOOLS: usize = 128;
