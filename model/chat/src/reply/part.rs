//! The parts of an answer.

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The name of the tool.
    pub name: String,
    /// Arguments of the call, a JSON object. Incomplete if the answer was cut.
    pub arguments: String,
}

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Text for the reader.
    Content(String),
    /// Reasoning of the model.
    Reasoning(String),
    /// A complete call. A call that cannot be parsed is content.
    Call(ToolCall),
}

/// Appends the calls if they could be parsed, otherwise the text.
pub(super) fn calls_or_content(calls: Option<Vec<ToolCall>>, written: String, out: &mut Vec<Part>) {
    match calls {
        Some(calls) => out.extend(calls.into_iter().map(Part::Call)),
        None if written.is_empty() => {}
        None => out.push(Part::Content(written)),
    }
}
