//! Integration tests of the crate: one program, a module for each subject.

mod folder;
mod oracle;
mod speed;
mod support;
mod vocabulary;
