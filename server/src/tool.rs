//! A tool that a request offers.

use crate::fields::Fields;
use crate::refusal::Refusal;
use serde_json::Value;

/// Bytes of a tool's name: Anthropic's limit, OpenAI has 64.
pub(super) const MOST_NAME: usize = 128;

/// An offered tool.
#[derive(Debug)]
pub struct Tool {
    /// Position among the tools.
    pub field: String,
    /// Name.
    pub name: String,
    /// Schema of the arguments, with the keys in the order of the request.
    pub parameters: Value,
    /// Whether calls must follow the schema.
    pub strict: bool,
}

/// The name of a tool beside these others.
pub fn checked_name(f: &mut Fields, others: &[Tool]) -> Result<String, Refusal> {
    let name = f.needed_text("name")?;
    let good = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    if !(1..=MOST_NAME).contains(&name.len()) || !name.bytes().all(good) {
        let why = format_args!("give 1 to {MOST_NAME} letters, digits, '_', '-' or '.'");
        return Err(f.wrong("name", why));
    }
    match others.iter().any(|tool| tool.name == name) {
        true => Err(f.wrong("name", "another tool has that name")),
        false => Ok(name),
    }
}

/// Most tools of one request.
pub const MOST_TOOLS: usize = 128;
