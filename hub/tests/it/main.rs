//! Tests of fetching models: one program, a module for each subject.

mod fetch;
mod support;
mod tls;
