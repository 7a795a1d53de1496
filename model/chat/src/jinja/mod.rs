//! An interpreter of Jinja for chat templates. It limits every resource that a hostile template
//! could exhaust.
//!
//! A template is a program from an untrusted file. It runs in the process and thread of the caller.
//! A general engine limits the steps, but neither its own recursion (20,000 times `not`) nor the
//! size of values (a string doubled fifty times). The limits of this interpreter:
//!
//! - Parsing: chains (`a + b + c`, `x|f|g`, `not not`, `elif`) are lists. Only brackets and blocks
//!   nest, at most [`limits::MAX_NESTING`] deep.
//! - Running: every step and every 32 bytes processed are counted ([`FUEL`]). Recursion of macros
//!   and loops ends at [`limits::MAX_LEVELS`].
//! - Values: the memory of every string and list is counted before its allocation and until it is
//!   freed ([`MAX_MEMORY`]). Nesting is at most [`limits::MAX_DEPTH`], and a namespace cannot
//!   contain itself.
//!
//! The semantics are those of jinja2 in `apply_chat_template` of `transformers`: `trim_blocks`,
//! `lstrip_blocks`, a sandbox in which existing values (except namespaces) cannot change, and
//! Python's output of values. `include` is not supported.

mod ast;
mod bind;
mod call;
mod chars;
mod fault;
mod filters;
mod format;
mod globals;
mod html;
mod index;
mod items;
mod levels;
mod lexer;
mod limits;
mod meter;
mod methods;
mod ops;
mod parser;
mod range;
mod run;
mod tests;
mod text;
mod value;

pub use meter::{FUEL, MAX_MEMORY, MAX_OUTPUT};
pub use value::Data;

pub use fault::{Fault, Kind};
use kjit_tokenizer::cancel::Cancel;
use std::sync::Arc;

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

    /// Renders the template with the given variables, unless it is cancelled. Returns the output.
    pub fn render(&self, variables: Vec<(&str, Data)>, cancel: &Cancel) -> Result<String, Fault> {
        run::render(&self.body, variables, cancel)
    }
}
