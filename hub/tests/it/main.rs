//! Tests of fetching models: one program, one module for each subject.

mod fetch;
mod registry;
mod support;
mod tls;
