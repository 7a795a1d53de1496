//! Common clients with `kjit serve` and SmolLM2 on the CPU: openai, langchain-openai, ollama, curl;
//! and the page in a browser.

use crate::support::served::Served;
use kjit_tests::simulator::Setup;
use std::path::Path;
use std::process::Command;

/// The folder of `scripts/fetch-clients`, or the reason why it is missing.
fn clients() -> Option<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/fetch-clients");
    let output = Command::new(script).output().unwrap();
    let folder = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    if folder.is_empty() {
        eprintln!("SKIPPED: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    (!folder.is_empty()).then_some(folder)
}

/// Runs a script of `clients` against a server that needs a key.
fn asks(script: &str, more: &[&str], says: &str) {
    let Some(folder) = clients() else { return };
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(keys.path(), "secret\n").unwrap();
    let server = Served::start(&["--api-key-file", keys.path().to_str().unwrap()]);
    let mut python = Command::new("python3");
    let output = python
        .arg(format!("{}/tests/clients/{script}", env!("CARGO_MANIFEST_DIR")))
        .arg(format!("http://{}", server.address))
        .arg("secret")
        .args(more)
        .env("PYTHONPATH", folder)
        .output()
        .unwrap();
    let (said, why) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains(says), "{said}{why}");
}

#[test]
fn openai_python_client_works() {
    asks("ask.py", &[], "openai");
}

#[test]
fn newer_python_client_calls_work() {
    asks("newer.py", &[], "anthropic");
}

#[test]
fn pyzmq_follows_kv_events_with_vllms_types() {
    let Some(folder) = clients() else { return };
    // Two ports that were free a moment ago.
    let sockets = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let sockets = sockets.map(|socket| format!("tcp://{}", socket.local_addr().unwrap()));
    let server = Served::start(&[
        "--max-sequences",
        "1",
        "--kv-events",
        &sockets[0],
        "--kv-events-replay",
        &sockets[1],
        "--kv-events-topic",
        "kv@pod@model",
    ]);
    let output = Command::new("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/kv_events.py"))
        .arg(format!("http://{}", server.address))
        .args(&sockets)
        .env("PYTHONPATH", folder)
        .output()
        .unwrap();
    let (said, why) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("pyzmq"), "{said}{why}");
}

#[test]
fn claude_codes_requests_work() {
    let Some(folder) = clients() else { return };
    let mut command = crate::support::served::command();
    command.arg("serve").arg(crate::support::smollm2());
    command.args(["--port", "0", "--device", "cpu", "-c", "4096"]);
    command.args(["--alias", "claude-sonnet-4-5", "--alias", "claude-haiku-4-5"]);
    let server = Served::by(&mut command);
    let output = Command::new("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/claude_code.py"))
        .args([format!("http://{}", server.address), "none".to_owned()])
        .env("PYTHONPATH", folder)
        .output()
        .unwrap();
    let (said, why) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("anthropic"), "{said}{why}");
}

#[test]
fn langchain_client_works() {
    asks("chain.py", &["SmolLM2-135M-Instruct.Q4_1"], "langchain-openai");
}

#[test]
fn curl_works_without_extra_headers() {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no curl here");
        return;
    }
    let server = Served::start(&[]);
    // As in docs/serve.md: curl sends the content type of a form.
    let url = format!("http://{}/v1/chat/completions", server.address);
    let body = r#"{"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 4, "stream": true}"#;
    let output = Command::new("curl")
        .args(["-sS", "-N", "--fail-with-body", &url, "-d", body])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.ends_with("data: [DONE]\n\n"), "{said}");
}

/// Runs a script of `clients` in a browser.
fn in_a_browser(script: &str, arguments: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    let output = Command::new("python3").arg(folder.join(script)).args(arguments).output().unwrap();
    let (said, why) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{why}");
}

fn no_browser() -> bool {
    let none = std::env::var_os("KJIT_TEST_BROWSER").is_none();
    if none {
        eprintln!(
            "SKIPPED: KJIT_TEST_BROWSER is not set to a Chromium (Debian's package chromium)"
        );
    }
    none
}

#[test]
fn page_works_in_a_browser() {
    if no_browser() {
        return;
    }
    let server = Served::start(&[]);
    let address = format!("http://{}/", server.address);
    // Without axe-core the page is tested, but not its accessibility.
    let axe = clients().map(|folder| format!("{folder}/axe_core_python/axe.min.js"));
    let axe = axe.filter(|file| Path::new(file).exists());
    let arguments: Vec<&str> =
        [Some(address.as_str()), axe.as_deref()].into_iter().flatten().collect();
    in_a_browser("page.py", &arguments);
}

#[test]
fn page_sends_requests_to_the_chosen_model() {
    if no_browser() {
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_kjit"));
    command.arg("serve").args([crate::support::smollm2(), crate::support::smollm2()]);
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(keys.path(), "secret\n").unwrap();
    command.arg("--api-key-file").arg(keys.path());
    let server = Served::with(&mut command, &["--alias", "one", "--alias", "other"]);
    let address = format!("http://{}/", server.address);
    in_a_browser("page_of_two.py", &[&address, "one", "other", "secret"]);
}

#[test]
fn page_live_view_shows_pages_and_kernels() {
    if no_browser() {
        return;
    }
    let temporary = env!("CARGO_TARGET_TMPDIR");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kjit"));
    let setup = Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-O1");
    setup.apply(temporary, &mut command);
    command.arg("serve").arg(crate::support::model("tiny/tiny-llama-q4_k_m.gguf"));
    command.arg("--cache-dir").arg(Path::new(temporary).join("hipsim/command"));
    command.args([
        "--port",
        "0",
        "--device",
        "rocm:0",
        "-c",
        "256",
        "--prefill-chunk",
        "160",
        "--max-sequences",
        "3",
    ]);
    let server = Served::by(command.args(["--kv-pages", "on"]));
    in_a_browser("page_of_pages.py", &[&format!("http://{}/", server.address)]);
}
