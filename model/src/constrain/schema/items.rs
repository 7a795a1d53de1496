//! The items of a sequence.

/// An entry of a list.
#[derive(Debug, Clone)]
pub struct Item {
    /// The rule or terminal of the entry.
    pub is: String,
    /// Whether the entry is required.
    pub required: bool,
    /// Whether the entry may repeat at the end of the list, up to the length of the list.
    pub again: bool,
}

/// A list, and whether it may be empty.
pub struct Sequence {
    /// The rule of a non-empty list; `None` if it must be empty.
    pub some: Option<String>,
    /// Whether the list may be empty.
    pub none: bool,
}

impl Sequence {
    /// The list between two delimiters.
    pub fn between(self, open: &str, close: &str) -> Option<String> {
        match (self.some, self.none) {
            (Some(some), true) => Some(format!("\"{open}\" ({some})? \"{close}\"")),
            (Some(some), false) => Some(format!("\"{open}\" {some} \"{close}\"")),
            (None, true) => Some(format!("\"{open}{close}\"")),
            (None, false) => None,
        }
    }
}
