//! Tests of the server without sockets. Tests over sockets are the command's
//! (`tools/tests/it/serve*.rs`).

mod connections;
mod support;
