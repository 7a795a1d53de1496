//! Tests of fetching models: one program, one module for each subject.

mod fetch;
mod support;
mod tls;
