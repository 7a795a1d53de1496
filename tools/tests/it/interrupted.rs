//! Events during the work: Ctrl-C, a reader that ends, a model file that is truncated.

use crate::support::{error_line, kjit, smollm2};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::Duration;

/// Starts the command with pipes, and reads stderr up to the line about the device. From then on it
/// computes.
fn computing(args: &[&str]) -> (Child, BufReader<ChildStderr>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kjit"))
        .args(args)
        .args(["--device", "cpu"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.starts_with("device: cpu"), "{line}");
    (child, said)
}

/// Sends Ctrl-C. Returns the output, and stderr after the first line.
fn ctrl_c((mut child, mut said): (Child, BufReader<ChildStderr>)) -> (Output, String) {
    // SAFETY: kill takes two numbers; the child was not waited for yet, so its id is still valid.
    unsafe { libc::kill(i32::try_from(child.id()).unwrap(), libc::SIGINT) };
    let mut stderr = String::new();
    said.read_to_string(&mut stderr).unwrap();
    let mut stdout = vec![];
    child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    (Output { status: child.wait().unwrap(), stdout, stderr: vec![] }, stderr)
}

#[test]
fn ctrl_c_ends_answer_with_output_and_statistics() {
    let model = smollm2();
    let mut run =
        computing(&["run", model.to_str().unwrap(), "-p", "Tell a long story.", "--temp", "0"]);
    let mut first = [0; 1];
    run.0.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let (output, stderr) = ctrl_c(run);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(output.stdout.ends_with(b"\n"));
    assert!(
        stderr.contains("tok/s") && stderr.contains("interrupted") && stderr.lines().count() == 1,
        "{stderr}"
    );
}

#[test]
fn ctrl_c_ends_long_prompt_between_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let prompt = dir.path().join("prompt.txt");
    std::fs::write(&prompt, "word ".repeat(7000)).unwrap();
    let model = smollm2();
    let run = computing(&[
        "run",
        model.to_str().unwrap(),
        "-f",
        prompt.to_str().unwrap(),
        "--prefill-chunk",
        "64",
        "--json",
    ]);
    // The signal arrives during the prompt, which takes many seconds.
    std::thread::sleep(Duration::from_millis(400));
    let (output, stderr) = ctrl_c(run);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    let doc: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&doc["stop_reason"], &doc["ids"]),
        (&Value::from("interrupted"), &Value::Array(vec![])),
        "{doc}"
    );
}

#[test]
fn ctrl_c_ends_perplexity_immediately_with_130() {
    let model = smollm2();
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../LICENSE-APACHE");
    let (output, stderr) = ctrl_c(computing(&["perplexity", model.to_str().unwrap(), "-f", text]));
    assert_eq!((output.status.code(), stderr.as_str()), (Some(130), "interrupted\n"));
    assert!(output.stdout.is_empty());
}

#[test]
fn closed_reader_ends_answer_silently() {
    let model = smollm2();
    let (mut child, mut said) =
        computing(&["run", model.to_str().unwrap(), "-p", "Tell a long story.", "--temp", "0"]);
    let mut first = [0; 1];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap(); // and closes it
    let mut stderr = String::new();
    said.read_to_string(&mut stderr).unwrap();
    assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""));
}

#[test]
fn model_truncated_during_use_is_an_error_without_sigbus() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model.gguf");
    std::fs::copy(smollm2(), &model).unwrap();
    let (mut child, mut said) =
        computing(&["run", model.to_str().unwrap(), "-p", "Tell a long story.", "--temp", "0"]);
    let mut first = [0; 1];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    std::fs::OpenOptions::new().write(true).open(&model).unwrap().set_len(1_000_000).unwrap();
    let mut stderr = String::new();
    said.read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{stderr}");
    assert!(
        stderr.starts_with("error: a model file was truncated") && stderr.lines().count() == 1,
        "{stderr}"
    );
}

#[test]
fn endless_prompt_or_line_is_refused() {
    let model = smollm2();
    let line = error_line(kjit().arg("run").arg(&model).args(["-f", "/dev/zero"]), 1);
    assert!(line.contains("/dev/zero is longer than 256 MiB"), "{line}");
    let endless = Command::new(env!("CARGO_BIN_EXE_kjit"))
        .args(["tokenize", "--jsonl"])
        .arg(&model)
        .stdin(std::fs::File::open("/dev/zero").unwrap())
        .output()
        .unwrap();
    let said = String::from_utf8(endless.stderr).unwrap();
    assert!(
        endless.status.code() == Some(1)
            && said.starts_with("error: line 1 of stdin is longer than"),
        "{said}"
    );
}
