//! An interpreter of Jinja for chat templates. Every resource that a hostile template could exhaust
//! is limited.
//!
//! A template is a program from an untrusted file, and it runs in the caller's process and thread.
//! A general engine limits steps, but neither its own recursion (20,000 times `not`) nor the size
//! of values (a string doubled fifty times). The limits here:
//!
//! - Parsing: chains (`a + b + c`, `x|f|g`, `not not`, `elif`) are lists, so that only brackets and
//!   blocks nest, at most [`MAX_NESTING`] deep.
//! - Running: every step and every 32 bytes processed are counted ([`FUEL`]). Recursion of macros
//!   and loops ends at [`MAX_LEVELS`].
//! - Values: every string and list is counted before it is made and while it lives
//!   ([`MAX_MEMORY`]). Nesting is at most [`MAX_DEPTH`], and a namespace cannot contain itself.
//!
//! The semantics are those of jinja2 in `apply_chat_template` of `transformers`: `trim_blocks`,
//! `lstrip_blocks`, a sandbox without changes of existing values (except namespaces), Python's
//! output of values. There is no `include`.

mod ast;
mod bind;
mod chars;
mod filters;
mod format;
mod globals;
mod html;
mod lexer;
mod meter;
mod methods;
mod ops;
mod parser;
mod run;
mod tests;
mod text;
mod value;

pub use meter::{FUEL, MAX_MEMORY, MAX_OUTPUT};
pub use value::Data;

use kjit_tokenizer::cancel::Cancel;
use std::sync::Arc;

/// Maximum nesting of brackets and blocks in a template.
pub const MAX_NESTING: usize = 64;

/// Maximum nesting of evaluations while a template runs, for example by recursive macros. All
/// levels take less than 1 MiB of stack in a debug build and less than half of that in a release
/// build; a thread has 2 MiB by default.
pub const MAX_LEVELS: usize = 240;

/// Maximum nesting of lists and objects.
pub const MAX_DEPTH: u16 = 128;

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
    /// The template is wrong; with an explanation.
    Wrong(String),
    /// The template exceeded a limit; with an explanation.
    Limit(String),
    /// The template called `raise_exception` with this message.
    Raised(String),
}

impl Fault {
    fn at(mut self, line: usize) -> Fault {
        if self.line == 0 {
            self.line = line;
        }
        self
    }
}

/// An error whose line the caller adds.
fn wrong<T>(problem: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { line: 0, kind: Kind::Wrong(problem.into()) })
}

/// An exceeded limit.
fn limit<T>(problem: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { line: 0, kind: Kind::Limit(problem.into()) })
}

/// A parsed template.
#[derive(Debug)]
pub struct Template {
    body: Arc<Vec<ast::Node>>,
}

impl Template {
    /// Parses a template.
    pub fn new(source: &str) -> Result<Template, Fault> {
        Ok(Template { body: Arc::new(parser::parse(lexer::lex(source)?)?) })
    }

    /// Renders it with the given variables, unless cancelled. Returns its output.
    pub fn render(&self, variables: Vec<(&str, Data)>, cancel: &Cancel) -> Result<String, Fault> {
        run::render(&self.body, variables, cancel)
    }
}
