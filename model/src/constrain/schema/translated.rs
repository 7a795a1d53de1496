//! A schema as a grammar.

/// A keyword of a schema that is not enforced in answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unenforced {
    /// The keyword.
    pub keyword: String,
    /// Path of the keyword, such as `$.properties.size`.
    pub at: String,
    /// Whether the keyword excludes answers that no other keyword excludes. Strict mode is then
    /// refused. Otherwise the keyword only checks values, and the client can check them after the
    /// answer.
    pub matters: bool,
}

impl std::fmt::Display for Unenforced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}", self.keyword, self.at)
    }
}

/// A schema as a grammar.
pub struct Translated {
    /// The grammar in llguidance's dialect of Lark.
    pub lark: String,
    /// The keywords that the grammar does not enforce.
    pub unheld: Vec<Unenforced>,
}
