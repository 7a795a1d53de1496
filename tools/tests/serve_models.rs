//! `kjit serve A B`: several models at once, each asked by its name, each with what memory the others left, all
//! of them there again after a fault of their device.

#[path = "support/served.rs"]
mod served;
mod support;

use kjit_tests::simulator::Setup;
use serde_json::{Value, json};
use served::{Served, answer, request};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use support::{error_line, kjit, model, smollm2};

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");

fn body(model: &str, prompt: Value, tokens: usize, stream: bool) -> Value {
    json!({
        "model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "stream": stream
    })
}

fn text(server: &Served, model: &str, prompt: Value) -> String {
    let answer = server.good("/v1/completions", &body(model, prompt, 8, false)).json();
    assert_eq!(answer["model"], model);
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

fn send(server: &Served, body: &Value) -> TcpStream {
    let (mut stream, body) = (server.connect(), body.to_string());
    stream.write_all((request("POST", "/v1/completions", &[], body.as_bytes()) + &body).as_bytes()).unwrap();
    stream
}

fn names(document: &Value, list: &str, name: &str) -> Vec<String> {
    document[list].as_array().unwrap().iter().map(|one| one[name].as_str().unwrap().to_owned()).collect()
}

#[test]
fn each_model_is_asked_by_its_name_and_all_of_them_are_finished() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kjit"));
    command.arg("serve").arg(smollm2()).arg(model("tiny/tiny-llama-q4_k_m.gguf"));
    let flags = ["--alias", "smol", "--alias", "tiny", "-c", "256", "--max-sequences", "2", "--precise"];
    let mut server = Served::by(command.args(["--port", "0", "--device", "cpu"]).args(flags));
    assert!(server.line().starts_with("serving tiny on "), "one after the other");
    // What each says when it is alone.
    let (ids, words) = (json!([5, 6, 7, 8]), json!("The sky is"));
    let alone = Served::with(
        Command::new(env!("CARGO_BIN_EXE_kjit")).arg("serve").arg(model("tiny/tiny-llama-q4_k_m.gguf")),
        &["--precise"],
    );
    let tiny = text(&alone, "tiny-llama-q4_k_m", ids.clone());
    drop(alone);
    let smol = text(&server, "smol", words.clone());
    assert_eq!(text(&server, "tiny", ids.clone()), tiny);
    let both = std::thread::scope(|threads| {
        let one = threads.spawn(|| text(&server, "smol", words.clone()));
        (one.join().unwrap(), text(&server, "tiny", ids.clone()))
    });
    assert_eq!(both, (smol.clone(), tiny), "beside each other");
    // Who names none means the first; the file's name is as good as the alias.
    let unnamed = json!({ "prompt": words, "max_tokens": 8, "temperature": 0, "ignore_eos": true });
    assert_eq!(server.good("/v1/completions", &unnamed).json()["model"], "smol");
    let named = server.good("/api/generate", &json!({ "model": "tiny-llama-q4_k_m:latest", "prompt": "x", "raw": true, "stream": false, "options": { "num_predict": 2 } }));
    assert_eq!(named.json()["model"], "tiny");

    // Everybody is told of all of them.
    let refused = server.post("/v1/chat/completions", &json!({ "model": "gpt-4", "messages": [] }));
    let error = &refused.json()["error"];
    assert_eq!((refused.status, &error["code"]), (404, &json!("model_not_found")), "{refused:?}");
    assert!(error["message"].as_str().unwrap().ends_with("'smol', 'tiny' are"), "{error}");
    let all = ["smol", "SmolLM2-135M-Instruct.Q4_1", "tiny", "tiny-llama-q4_k_m"];
    let models = server.get("/v1/models").json();
    assert_eq!(names(&models, "data", "id"), all);
    assert!(models["data"].as_array().unwrap().iter().all(|card| card["max_model_len"] == 256), "{models}");
    for path in ["/api/tags", "/api/ps"] {
        assert_eq!(names(&server.get(path).json(), "models", "name"), all, "{path}");
    }
    let shown = |name: &str| server.post("/api/show", &json!({ "model": name }));
    assert_ne!(shown("smol").json()["details"]["parameter_size"], shown("tiny").json()["details"]["parameter_size"]);
    assert_eq!(shown("gpt-4").status, 404);
    assert_eq!(server.get("/health").status, 200);
    let status = server.get("/status?model=tiny").json();
    assert_eq!(names(&status, "models", "name"), ["smol", "tiny"]);
    assert_eq!((&status["server"]["name"], &status["requests"]["done"]), (&json!("tiny"), &json!(3)));
    assert_eq!(server.get("/status").json()["server"]["name"], "smol");
    assert_eq!(server.get("/status?model=gpt-4").status, 404);
    let metrics = server.get("/metrics").body;
    for line in ["kjit_requests_done_total{model=\"tiny\"} 3", "kjit_ready{model=\"smol\"} 1"] {
        assert!(metrics.lines().any(|l| l == line), "{line}: {metrics}");
    }
    let heads = metrics.lines().filter(|l| l.starts_with("# TYPE kjit_slots gauge")).count();
    assert_eq!(heads, 1, "{metrics}");

    // Both finish what they have.
    let mut running: Vec<TcpStream> =
        [("smol", words), ("tiny", ids)].map(|(m, p)| send(&server, &body(m, p, 60, true))).into();
    for stream in &mut running {
        assert!(stream.read(&mut [0; 64]).unwrap() > 0);
    }
    assert_eq!(server.end(), Some(0));
    for stream in &mut running {
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("data: [DONE]"), "{rest}");
    }
}

#[test]
fn what_two_models_cannot_be_is_said_in_a_line() {
    let (a, b) = (smollm2(), model("tiny/tiny-llama-q4_k_m.gguf"));
    let line = |flags: &[&str], code: i32| {
        error_line(kjit().arg("serve").arg(&a).arg(&b).args(["--port", "0", "-q", "--device", "cpu"]).args(flags), code)
    };
    assert!(line(&["--alias", "one"], 1).contains("--alias: 1 given for 2 models"));
    assert!(line(&["--alias", "one", "--alias", "one"], 1).contains("two models would be called 'one'"));
    assert!(line(&["--worker-id", "w", "--model-ref", "r"], 1).contains("a worker of a fleet has one model"));
    assert!(line(&["--template", "x"], 1).contains("--template is for one model"));
    assert!(line(&["--split", "tensor"], 1).contains("--split tensor is for one model"));
    let missing =
        error_line(kjit().arg("serve").arg(&b).arg("missing.gguf").args(["--port", "0", "-q", "--device", "cpu"]), 1);
    assert!(missing.contains("missing.gguf"), "{missing}");
}

fn simulated(more: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kjit"));
    let setup = Setup::devices("gfx1100").set("KJIT_HIPSIM_CLANG", "none").set("KJIT_HIPSIM_OPTIMISE", "-Og");
    let setup = more.iter().fold(setup, |setup, (name, value)| setup.set(name, *value));
    setup.apply(TEMPORARY, &mut command);
    command.arg("serve").arg(model("tiny/tiny-llama-q4_k_m.gguf")).arg(model("tiny/tiny-llama-q4_k_m.gguf"));
    command.args(["--alias", "a", "--alias", "b", "--cache-dir"]).arg(Path::new(TEMPORARY).join("hipsim/command"));
    command.args(["--port", "0", "--device", "rocm:0", "--prefill-chunk", "16"]);
    command
}

#[test]
fn a_fault_of_the_device_that_they_share_ends_no_model() {
    let mut command = simulated(&[("KJIT_HIPSIM_FAIL", "hipGraphLaunch:40:700")]);
    let server = Served::by(command.args(["-c", "128", "--max-sequences", "2"]));
    assert!(server.line().starts_with("serving b on "));
    let ids = json!([5, 6, 7, 8]);
    let before = text(&server, "a", ids.clone());
    assert_eq!(text(&server, "b", ids.clone()), before);
    // a fails, while b has nothing to do and would not see it.
    let failed = answer(&mut send(&server, &body("a", ids.clone(), 100, false))).unwrap();
    assert_eq!(failed.status, 503, "{failed:?}");
    let mut lines: Vec<String> = (0..4).map(|_| server.line()).collect();
    lines.iter_mut().for_each(|line| line.truncate(line.find(": ").unwrap_or(0) + 20));
    lines.sort();
    assert_eq!(lines[0].get(..17), Some("a is there again:"), "{lines:?}");
    assert_eq!(lines[1].get(..17), Some("b is there again:"), "{lines:?}");
    assert_eq!(lines[2], "the device failed: opening a again", "{lines:?}");
    assert_eq!(lines[3], "the device failed: opening b again", "{lines:?}");
    for model in ["a", "b"] {
        assert_eq!(text(&server, model, ids.clone()), before, "{model}");
        assert_eq!(server.get(&format!("/status?model={model}")).json()["reopened"], 1);
    }
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn the_second_model_has_the_memory_that_the_first_left_or_the_end_is_a_line() {
    // Room for the weights' way to the device, and for one model's keys and values.
    let mut command = simulated(&[("KJIT_HIPSIM_MEMORY", "110000000")]);
    let output = command.args(["--max-sequences", "2", "-c", "16384"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() == 3 && lines[1].starts_with("serving a on "), "{said}");
    assert!(lines[2].contains("b beside 1 other model: ") && lines[2].contains(" would fit"), "{said}");
}
