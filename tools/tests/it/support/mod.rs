//! Helpers that the tests of the command share.

#[allow(dead_code, reason = "these tests use a part of it")]
#[path = "../../../../model/tests/support/adapters.rs"]
pub mod adapters;
#[path = "../../../../model/gguf/tests/it/support/folder.rs"]
pub mod folder;
pub mod machine;
#[path = "../../../../hub/tests/it/support/registry.rs"]
pub mod registry;
pub mod served;
#[path = "../../../../hub/tests/it/support/server.rs"]
pub mod server;
pub mod terminal;
#[allow(dead_code, reason = "these tests use a part of it")]
#[path = "../../../../model/gguf/tests/it/support/writer.rs"]
pub mod writer;

use assert_cmd::Command;
use std::path::PathBuf;

/// The command, without variables of the caller that change its output.
pub fn kjit() -> Command {
    let mut c = Command::cargo_bin("kjit").expect("the kjit binary is built with its tests");
    c.env_remove("KJIT_CACHE_DIR").env("NO_COLOR", "1");
    c
}

/// Path of a test model. If the file is missing, the test fails and explains how to get it.
pub fn model(name: &str) -> PathBuf {
    let dir = std::env::var_os("KJIT_TEST_MODELS").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.models")),
        PathBuf::from,
    );
    let path = dir.join(name);
    assert!(path.exists(), "{} is missing: run scripts/fetch-test-models", path.display());
    path
}

/// SmolLM2-135M-Instruct, the model that every test machine has.
pub fn smollm2() -> PathBuf {
    model("SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// Runs a command that must succeed. Returns stdout.
pub fn stdout(c: &mut Command) -> String {
    String::from_utf8(c.assert().success().get_output().stdout.clone()).expect("stdout is UTF-8")
}

/// Runs a command that must fail with this exit code. Returns the one line of stderr.
pub fn error_line(c: &mut Command, code: i32) -> String {
    let output = c.assert().failure().code(code).get_output().clone();
    assert!(
        output.stdout.is_empty(),
        "an error wrote to stdout: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    let text = String::from_utf8(output.stderr).expect("stderr is UTF-8");
    let lines: Vec<&str> = text.lines().filter(|l| l.starts_with("error")).collect();
    assert_eq!(lines.len(), 1, "one line says what went wrong: {text}");
    lines[0].to_string()
}

/// Runs a command that fails after some lines of output. Returns the one line of stderr.
pub fn error_after_output(c: &mut Command) -> String {
    let output = c.assert().failure().code(1).get_output().clone();
    let text = String::from_utf8(output.stderr).expect("stderr is UTF-8");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}
