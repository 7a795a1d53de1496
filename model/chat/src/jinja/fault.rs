//! Errors of a template.

/// An error of parsing or rendering a template.
#[derive(Debug)]
pub struct Fault {
    /// Line in the template, from 1; 0 if not known yet.
    pub line: usize,
    /// The kind of error.
    pub kind: Kind,
}

/// The kinds of errors.
#[derive(Debug)]
pub enum Kind {
    /// The template is invalid; with the reason.
    Wrong(String),
    /// The template exceeded a limit; with the reason.
    Limit(String),
    /// The template called `raise_exception` with this message.
    Raised(String),
}

impl Fault {
    pub(super) fn at(mut self, line: usize) -> Fault {
        if self.line == 0 {
            self.line = line;
        }
        self
    }
}

/// An error without a line. The caller adds the line.
pub(super) fn wrong<T>(problem: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { line: 0, kind: Kind::Wrong(problem.into()) })
}

/// An exceeded limit.
pub(super) fn limit<T>(problem: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { line: 0, kind: Kind::Limit(problem.into()) })
}
