//! Jinja, as far as chat templates go, with everything bounded that a hostile template could use
//! up.
//!
//! A template is a program out of a file from anywhere, and it runs in the caller's process and on
//! the caller's thread. A general engine bounds its steps, but neither the depth of its own
//! recursion (20,000 times `not`) nor what its values hold (a string doubled fifty times). Here
//! each is a number in this file:
//!
//! - reading: chains (`a + b + c`, `x|f|g`, `not not`, `elif`) are lists, so that only brackets and
//!   blocks nest, at most [`MAX_NESTING`] deep;
//! - running: every step and every 32 bytes that it handles are counted ([`FUEL`]); recursion of
//!   macros and loops ends at [`MAX_LEVELS`];
//! - values: every text and list is counted while it lives ([`MAX_MEMORY`]) and before it is made;
//!   none nests deeper than [`MAX_DEPTH`], and a namespace cannot hold itself.
//!
//! The meaning is that of jinja2 as `transformers` sets it up for `apply_chat_template`:
//! `trim_blocks`, `lstrip_blocks`, a sandbox in which nothing that exists can be changed (but a
//! namespace), Python's spelling of values in output. There is nothing to include.

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

/// Brackets and blocks within each other, in a template's text.
pub const MAX_NESTING: usize = 64;

/// Evaluations within each other while a template runs: what macros that call themselves come to.
/// All of them take less than 1 MiB of stack in a debug build and less than half of that in a
/// release build: a thread has 2 MiB by default.
pub const MAX_LEVELS: usize = 240;

/// Lists and objects within each other.
pub const MAX_DEPTH: u16 = 128;

/// Why a template could not be read or did not finish.
#[derive(Debug)]
pub struct Fault {
    /// Line in the template, from 1; 0 while it is not known.
    pub line: usize,
    /// What happened.
    pub kind: Kind,
}

/// What happened to a template.
#[derive(Debug)]
pub enum Kind {
    /// Something in it is wrong, in words.
    Wrong(String),
    /// It asked for more than a template may have, in words.
    Limit(String),
    /// It called `raise_exception`, with these words.
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

/// A fault in words, its line to be found by whoever knows it.
fn wrong<T>(problem: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { line: 0, kind: Kind::Wrong(problem.into()) })
}

/// A limit that was reached.
fn limit<T>(problem: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { line: 0, kind: Kind::Limit(problem.into()) })
}

/// A template that was read.
#[derive(Debug)]
pub struct Template {
    body: Arc<Vec<ast::Node>>,
}

impl Template {
    /// Reads a template.
    pub fn new(source: &str) -> Result<Template, Fault> {
        Ok(Template { body: Arc::new(parser::parse(lexer::lex(source)?)?) })
    }

    /// Runs it with the given variables, as long as somebody waits for it; what it writes.
    pub fn render(&self, variables: Vec<(&str, Data)>, cancel: &Cancel) -> Result<String, Fault> {
        run::render(&self.body, variables, cancel)
    }
}
