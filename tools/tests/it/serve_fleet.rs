//! Programs that need minutes and large packages, with `kjit serve` on the CPU: routers in front of
//! two servers, lm-evaluation-harness, Codex CLI. They run if `KJIT_TEST_ALL` has `fleet`.

use crate::support::served::{Served, command};
use crate::support::smollm2;
use std::path::Path;
use std::process::Command;

/// The folder with these packages (`scripts/fetch-clients NAME`); `None` if the test is skipped.
fn packages(name: &str) -> Option<String> {
    if !kjit_tests::all("fleet") {
        eprintln!("SKIPPED: KJIT_TEST_ALL has no fleet: this test takes minutes");
        return None;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/fetch-clients");
    let output = Command::new(script).arg(name).output().unwrap();
    let folder = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    if folder.is_empty() {
        eprintln!("SKIPPED: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    (!folder.is_empty()).then_some(folder)
}

/// Runs a script of `clients`, which prints a line with `says`.
fn runs(script: &str, arguments: &[&str], packages: &str, says: &str) {
    let output = Command::new("python3")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(script))
        .args(arguments)
        .env("PYTHONPATH", packages)
        .output()
        .unwrap();
    let (said, why) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains(says), "{said}{why}");
    eprintln!("{said}");
}

fn fleet(router: &str) {
    let Some(folder) = packages(router) else { return };
    let kjit = env!("CARGO_BIN_EXE_kjit");
    runs("fleet.py", &[router, kjit, smollm2().to_str().unwrap()], &folder, "200 answered");
}

#[test]
fn sglang_router_loses_no_request_when_a_server_is_killed() {
    fleet("sglang");
}

#[test]
fn litellm_proxy_loses_no_request_when_a_server_is_killed() {
    fleet("litellm");
}

#[test]
fn ray_serve_loses_no_request_when_a_server_is_killed() {
    fleet("ray");
}

#[test]
fn lm_evaluation_harness_gets_the_references_numbers() {
    let Some(folder) = packages("lm-eval") else { return };
    let server = Served::start(&["--alias", "m", "--max-sequences", "8"]);
    let url = format!("http://{}", server.address);
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/oracle/made_hellaswag.json");
    runs("lm_eval_run.py", &[&url, data], &folder, "lm-eval: acc");
}

#[test]
fn codex_cli_gets_an_answer() {
    let Some(folder) = packages("codex") else { return };
    // Codex's own prompt has 10,000 tokens, more than the model's context: this template shows the
    // model the last message only.
    let template = tempfile::NamedTempFile::new().unwrap();
    let text = "<|im_start|>user\n{{ messages[-1].content }}<|im_end|>\n<|im_start|>assistant\n";
    std::fs::write(template.path(), text).unwrap();
    let mut command = command();
    command.arg("serve").arg(smollm2()).arg("--template").arg(template.path());
    let server = Served::with(&mut command, &["--alias", "m"]);
    let url = format!("http://{}", server.address);
    let codex = format!("{folder}/node_modules/.bin/codex");
    runs("codex.py", &[&codex, &url], &folder, "codex-cli");
}
