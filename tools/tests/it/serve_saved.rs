//! Conversations that continue after a restart (`kjit serve --slot-save-path`).

use crate::support::model;
use crate::support::served::{Served, command};
use kjit_tests::simulator::Setup;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const MODEL: &str = "tiny/tiny-llama-q8_0.gguf";
/// Tokens of a page.
const PAGE: u64 = 128;

/// Starts a server with these keys, pages in `dir/pages`, and these flags.
fn served(dir: &Path, flags: &[&str]) -> Served {
    let keys = dir.join("keys");
    std::fs::write(&keys, "alpha\nbeta\n").unwrap();
    let mut command = command();
    command.args(["serve", "--port", "0", "-c", "1024", "--max-sequences", "2"]);
    command.arg("--api-key-file").arg(keys).arg("--slot-save-path").arg(dir.join("pages"));
    Served::by(command.args(flags).arg(model(MODEL)))
}

/// The greedy answer to a prompt, and its number of cached tokens.
fn ask(server: &Served, key: &str, prompt: &[u32]) -> (Value, u64) {
    let body = json!({
        "prompt": prompt, "n_predict": 6, "temperature": 0, "ignore_eos": true,
        "return_tokens": true
    });
    let header = format!("authorization: Bearer {key}");
    let answer = server.ask("POST", "/completion", &[&header], body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = answer.json();
    (answer["tokens"].clone(), answer["tokens_cached"].as_u64().unwrap())
}

/// The files of pages: larger than records.
fn pages(dir: &Path) -> Vec<PathBuf> {
    let (mut all, mut folders) = (vec![], vec![dir.join("pages")]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let (path, meta) = (entry.path(), entry.metadata().unwrap());
            let mode = meta.permissions().mode() & 0o777;
            assert_eq!(mode, if meta.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
            match meta.is_dir() {
                true => folders.push(path),
                false if meta.len() > 8192 => all.push(path),
                false => {}
            }
        }
    }
    all
}

fn prompt(n: u32) -> Vec<u32> {
    (0..n).map(|i| 5 + i * i % 241).collect()
}

#[test]
fn conversations_go_on_after_a_restart_for_their_own_key_only() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, cpu) = (dir.path(), ["--device", "cpu", "--precise"]);
    let long = prompt(600);
    let mut server = served(dir, &cpu);
    let (tokens, cached) = ask(&server, "alpha", &long);
    assert_eq!(cached, 0);
    assert_eq!(server.end(), Some(0));
    assert_eq!(pages(dir).len(), 4, "the whole pages of 605 tokens");
    // Another process: the next turn of the conversation, a part of it, and another key.
    let mut server = served(dir, &cpu);
    assert_eq!(ask(&server, "beta", &long), (tokens.clone(), 0));
    let next: Vec<u32> = long.iter().copied().chain([7, 8, 9]).collect();
    let (next_tokens, cached) = ask(&server, "alpha", &next);
    assert_eq!(cached, 4 * PAGE);
    assert_eq!(ask(&server, "alpha", &long).0, tokens);
    let other: Vec<u32> = long.iter().take(300).copied().chain(prompt(200)).collect();
    let other_tokens = ask(&server, "alpha", &other).0;
    assert_eq!(server.end(), Some(0));
    let known = pages(dir).len();
    assert_eq!(known, 4 + 4 + 1, "alpha's, beta's, and the page after 300 tokens");
    let mut server = served(dir, &["--device", "cpu", "--kv-type", "q8_0"]);
    assert_eq!(ask(&server, "alpha", &long).1, 0, "another type of keys and values");
    assert_eq!(server.end(), Some(0));
    // Without saved pages the same answers come out.
    let fresh = tempfile::tempdir().unwrap();
    let server = served(fresh.path(), &cpu);
    assert_eq!(ask(&server, "alpha", &next), (next_tokens, 0));
    assert_eq!(ask(&server, "alpha", &other).0, other_tokens);
    drop(server);
    // Damaged and torn files are not used.
    for (i, path) in pages(dir).iter().enumerate() {
        let mut bytes = std::fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        match i % 2 {
            0 => bytes[middle] ^= 1,
            _ => bytes.truncate(middle),
        }
        std::fs::write(path, bytes).unwrap();
    }
    let server = served(dir, &cpu);
    assert_eq!(ask(&server, "alpha", &long), (tokens, 0));
    let answer = server.ask(
        "POST",
        "/slots/0?action=save",
        &["authorization: Bearer alpha"],
        b"{\"filename\": \"x\"}",
    );
    assert!(answer.status == 400 && answer.body.contains("--slot-save-path"), "{answer:?}");
}

#[test]
fn saved_conversations_stay_below_their_size_limit_and_unsafe_folders_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut server = served(dir, &["--device", "cpu", "--precise"]);
    ask(&server, "alpha", &prompt(200));
    assert_eq!(server.end(), Some(0));
    let one = pages(dir).first().unwrap().metadata().unwrap().len();
    // Of 18 pages, those that fit stay.
    let limit = 7 * one;
    let size = limit.to_string();
    let mut server = served(dir, &["--device", "cpu", "--precise", "--slot-save-size", &size]);
    for i in 0..6 {
        let prompt: Vec<u32> = [9 + i].into_iter().chain(prompt(400)).collect();
        ask(&server, "alpha", &prompt);
    }
    assert_eq!(server.end(), Some(0));
    let all = pages(dir);
    let bytes: u64 = all.iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!(!all.is_empty() && bytes <= limit, "{} pages, {bytes} bytes", all.len());
    let shared = dir.join("shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o777)).unwrap();
    let out = command()
        .args(["serve", "--port", "0", "--device", "cpu", "--slot-save-path"])
        .arg(&shared)
        .arg(model(MODEL))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains("--slot-save-path"), "{said}");
}

#[test]
fn conversations_go_on_after_a_restart_on_a_simulated_gpu() {
    let test = "serve_saved::conversations_go_on_after_a_restart_on_a_simulated_gpu";
    let temporary = env!("CARGO_TARGET_TMPDIR");
    let setup = Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.run(test, temporary, || {
        let dir = tempfile::tempdir().unwrap();
        let cache = Path::new(temporary).join("hipsim/saved");
        let device =
            ["--device", "rocm:0", "--cache-dir", cache.to_str().unwrap(), "--prefill-chunk", "64"];
        let long = prompt(300);
        let mut server = served(dir.path(), &device);
        let (tokens, cached) = ask(&server, "alpha", &long);
        assert_eq!(cached, 0);
        assert_eq!(server.end(), Some(0));
        let server = served(dir.path(), &device);
        assert_eq!(ask(&server, "alpha", &long), (tokens, 2 * PAGE));
    });
}
