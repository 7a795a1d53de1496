//! A schema as a grammar.

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
