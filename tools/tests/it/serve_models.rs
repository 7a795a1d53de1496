//! `kjit serve A B`: several models, each requested by its name, loaded on request, and unloaded
//! when idle or when another needs its memory. After a device fault all of them work again.

use crate::support::served::{Served, answer, request};
use crate::support::{error_line, kjit, model, smollm2};
use kjit_tests::simulator::Setup;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

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
    stream
        .write_all((request("POST", "/v1/completions", &[], body.as_bytes()) + &body).as_bytes())
        .unwrap();
    stream
}

fn states(server: &Served) -> Vec<(String, String)> {
    let status = server.get("/status").json();
    names(&status, "models", "name").into_iter().zip(names(&status, "models", "state")).collect()
}

fn names(document: &Value, list: &str, name: &str) -> Vec<String> {
    document[list]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one[name].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn models_are_selected_by_name_and_all_finish() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kjit"));
    command.arg("serve").arg(smollm2()).arg(model("tiny/tiny-llama-q4_k_m.gguf"));
    let flags =
        ["--alias", "smol", "--alias", "tiny", "-c", "256", "--max-sequences", "2", "--precise"];
    let mut server = Served::by(command.args(["--port", "0", "--device", "cpu"]).args(flags));
    // Models that are not loaded are listed, and the server is ready.
    server.wait_for("tiny was looked at", |s| s["models"][1]["state"] == "unloaded");
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(
        states(&server),
        [("smol".to_owned(), "ready".to_owned()), ("tiny".to_owned(), "unloaded".to_owned())]
    );
    assert_eq!(names(&server.get("/api/tags").json(), "models", "name").len(), 4);
    assert_eq!(names(&server.get("/api/ps").json(), "models", "name").len(), 2);
    assert_eq!(
        server.post("/api/show", &json!({ "model": "tiny" })).json()["details"]["family"],
        "llama"
    );
    assert_eq!(server.get("/status?model=tiny").json()["state"], "unloaded");
    let loaded = |server: &Served| -> Vec<bool> {
        let models = server.get("/v1/models").json();
        models["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|card| card["loaded"].as_bool().unwrap())
            .collect()
    };
    assert_eq!(loaded(&server), [true, true, false, false]);
    // Many simultaneous requests: the model is loaded once, and all are answered.
    let asked: Vec<String> = std::thread::scope(|threads| {
        let all: Vec<_> =
            (0..4).map(|_| threads.spawn(|| text(&server, "tiny", json!([5, 6, 7, 8])))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(asked.iter().all(|one| *one == asked[0]), "{asked:?}");
    assert!(server.line().starts_with("tiny was requested: loading "));
    assert!(server.line().starts_with("serving tiny on "));
    assert_eq!(server.get("/status").json()["models"][1]["loads"], 1);
    assert_eq!(loaded(&server), [true; 4]);
    // Answers of each model when it runs alone.
    let (ids, words) = (json!([5, 6, 7, 8]), json!("The sky is"));
    let alone = Served::with(
        Command::new(env!("CARGO_BIN_EXE_kjit"))
            .arg("serve")
            .arg(model("tiny/tiny-llama-q4_k_m.gguf")),
        &["--precise"],
    );
    let tiny = text(&alone, "tiny-llama-q4_k_m", ids.clone());
    assert_eq!(asked[0], tiny);
    drop(alone);
    let smol = text(&server, "smol", words.clone());
    assert_eq!(text(&server, "tiny", ids.clone()), tiny);
    let both = std::thread::scope(|threads| {
        let one = threads.spawn(|| text(&server, "smol", words.clone()));
        (one.join().unwrap(), text(&server, "tiny", ids.clone()))
    });
    assert_eq!(both, (smol.clone(), tiny), "beside each other");
    // A request without a name uses the first model. The file name works like the alias.
    let unnamed = json!({ "prompt": words, "max_tokens": 8, "temperature": 0, "ignore_eos": true });
    assert_eq!(server.good("/v1/completions", &unnamed).json()["model"], "smol");
    let named = server.good("/api/generate", &json!({ "model": "tiny-llama-q4_k_m:latest", "prompt": "x", "raw": true, "stream": false, "options": { "num_predict": 2 } }));
    assert_eq!(named.json()["model"], "tiny");

    // All routes list all models.
    let refused = server.post("/v1/chat/completions", &json!({ "model": "gpt-4", "messages": [] }));
    let error = &refused.json()["error"];
    assert_eq!((refused.status, &error["code"]), (404, &json!("model_not_found")), "{refused:?}");
    assert!(error["message"].as_str().unwrap().ends_with("'smol', 'tiny' are"), "{error}");
    let all = ["smol", "SmolLM2-135M-Instruct.Q4_1", "tiny", "tiny-llama-q4_k_m"];
    let models = server.get("/v1/models").json();
    assert_eq!(names(&models, "data", "id"), all);
    assert!(
        models["data"].as_array().unwrap().iter().all(|card| card["max_model_len"] == 256),
        "{models}"
    );
    for path in ["/api/tags", "/api/ps"] {
        assert_eq!(names(&server.get(path).json(), "models", "name"), all, "{path}");
    }
    let shown = |name: &str| server.post("/api/show", &json!({ "model": name }));
    assert_ne!(
        shown("smol").json()["details"]["parameter_size"],
        shown("tiny").json()["details"]["parameter_size"]
    );
    assert_eq!(shown("gpt-4").status, 404);
    assert_eq!(server.get("/health").status, 200);
    let status = server.get("/status?model=tiny").json();
    assert_eq!(names(&status, "models", "name"), ["smol", "tiny"]);
    assert_eq!(
        (&status["server"]["name"], &status["requests"]["done"]),
        (&json!("tiny"), &json!(7))
    );
    assert_eq!(server.get("/status").json()["server"]["name"], "smol");
    assert_eq!(server.get("/status?model=gpt-4").status, 404);
    let metrics = server.get("/metrics").body;
    for line in [
        "kjit_requests_done_total{model=\"tiny\"} 7",
        "kjit_ready{model=\"smol\"} 1",
        "kjit_model_loads_total{model=\"tiny\"} 1",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line}: {metrics}");
    }
    let heads = metrics.lines().filter(|l| l.starts_with("# TYPE kjit_slots gauge")).count();
    assert_eq!(heads, 1, "{metrics}");

    // Both models finish their requests.
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
fn incompatible_flags_of_two_models_are_one_line() {
    let (a, b) = (smollm2(), model("tiny/tiny-llama-q4_k_m.gguf"));
    let line = |flags: &[&str], code: i32| {
        error_line(
            kjit()
                .arg("serve")
                .arg(&a)
                .arg(&b)
                .args(["--port", "0", "-q", "--device", "cpu"])
                .args(flags),
            code,
        )
    };
    assert!(line(&["--alias", "one"], 1).contains("--alias: 1 given for 2 models"));
    assert!(
        line(&["--alias", "one", "--alias", "one"], 1).contains("two models have the name 'one'")
    );
    assert!(
        line(&["--worker-id", "w", "--model-ref", "r"], 1)
            .contains("a worker of a fleet has one model")
    );
    assert!(line(&["--template", "x"], 1).contains("--template is for one model"));
    assert!(line(&["--split", "tensor"], 1).contains("--split tensor is for one model"));
    let missing = error_line(
        kjit()
            .arg("serve")
            .arg(&b)
            .arg("missing.gguf")
            .args(["--port", "0", "-q", "--device", "cpu"]),
        1,
    );
    assert!(missing.contains("missing.gguf"), "{missing}");
}

fn simulated(more: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kjit"));
    let setup = Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    let setup = more.iter().fold(setup, |setup, (name, value)| setup.set(name, *value));
    setup.apply(TEMPORARY, &mut command);
    command
        .arg("serve")
        .arg(model("tiny/tiny-llama-q4_k_m.gguf"))
        .arg(model("tiny/tiny-llama-q4_k_m.gguf"));
    command
        .args(["--alias", "a", "--alias", "b", "--cache-dir"])
        .arg(Path::new(TEMPORARY).join("hipsim/command"));
    command.args(["--port", "0", "--device", "rocm:0", "--prefill-chunk", "16"]);
    command
}

#[test]
fn shared_device_fault_ends_no_model() {
    let mut command = simulated(&[("HIPSIM_FAIL", "hipGraphLaunch:40:700")]);
    let server = Served::by(command.args(["-c", "128", "--max-sequences", "2"]));
    let ids = json!([5, 6, 7, 8]);
    let before = text(&server, "a", ids.clone());
    assert_eq!(text(&server, "b", ids.clone()), before);
    assert!(
        server.line().starts_with("b was requested: ")
            && server.line().starts_with("serving b on ")
    );
    // Model a fails, while b is idle and has no error.
    let failed = answer(&mut send(&server, &body("a", ids.clone(), 100, false))).unwrap();
    assert_eq!(failed.status, 503, "{failed:?}");
    let mut lines: Vec<String> = (0..4).map(|_| server.line()).collect();
    lines.iter_mut().for_each(|line| line.truncate(line.find(": ").unwrap_or(0) + 20));
    lines.sort();
    assert_eq!(lines[0].get(..15), Some("a was reopened:"), "{lines:?}");
    assert_eq!(lines[1].get(..15), Some("b was reopened:"), "{lines:?}");
    assert_eq!(lines[2], "the device failed: opening a again", "{lines:?}");
    assert_eq!(lines[3], "the device failed: opening b again", "{lines:?}");
    for model in ["a", "b"] {
        assert_eq!(text(&server, model, ids.clone()), before, "{model}");
        assert_eq!(server.get(&format!("/status?model={model}")).json()["reopened"], 1);
    }
    assert_eq!(server.get("/health").status, 200);
}

/// A card with memory for the weights during upload, and for keys and values of one model, but not
/// of two.
fn narrow() -> Served {
    let mut command = simulated(&[("HIPSIM_MEMORY", "110000000")]);
    // The simulated device is slow when other tests run.
    let flags = ["--max-sequences", "2", "-c", "16384", "--stop-timeout", "300"];
    Served::by(command.args(flags))
}

#[test]
fn idle_model_is_unloaded_to_load_a_requested_one() {
    let mut server = narrow();
    let ids = json!([5, 6, 7, 8]);
    let before = text(&server, "a", ids.clone());
    for (there, gone) in [("b", "a"), ("a", "b")] {
        assert_eq!(text(&server, there, ids.clone()), before, "{there}");
        assert!(server.line().starts_with(&format!("{there} was requested: loading ")));
        assert_eq!(server.line(), format!("{gone} is unloaded: {there} needs the memory"));
        assert!(server.line().starts_with(&format!("serving {there} on ")));
    }
    assert_eq!(
        states(&server).iter().map(|(_, state)| state.as_str()).collect::<Vec<_>>(),
        ["ready", "unloaded"]
    );
    let status = server.get("/status?model=b").json();
    assert_eq!(
        (&status["models"][0]["loads"], &status["models"][1]["unloads"]),
        (&json!(2), &json!(1)),
        "{status}"
    );
    // b waits while a answers. If a client disconnects, its request is dropped, and a model without
    // waiting requests is not loaded.
    let mut running = send(&server, &body("a", ids.clone(), 24, true));
    assert!(running.read(&mut [0; 64]).unwrap() > 0);
    let leaving = send(&server, &body("b", ids.clone(), 8, false));
    server.wait_for("it waits", |s| s["models"][1]["waiting"] == 1);
    assert!(server.line().starts_with("b was requested: loading "));
    drop(leaving);
    server.wait_for("it left", |s| {
        s["models"][1]["waiting"] == 0 && s["models"][1]["state"] == "unloaded"
    });
    let mut waiting = send(&server, &body("b", ids.clone(), 8, false));
    server.wait_for("another waits", |s| s["models"][1]["waiting"] == 1);
    assert_eq!(server.get("/health").status, 200);
    let mut rest = String::new();
    running.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "a's answer is whole: {rest}");
    let said = answer(&mut waiting).unwrap();
    assert_eq!(said.json()["choices"][0]["text"], before.as_str(), "{said:?}");
    // The server stops while a request waits for its model: running requests are finished, and the
    // waiting one gets an error.
    let mut running = send(&server, &body("b", ids.clone(), 24, true));
    assert!(running.read(&mut [0; 64]).unwrap() > 0);
    let mut waiting = send(&server, &body("a", ids, 8, false));
    server.wait_for("a is waited for", |s| s["models"][0]["waiting"] == 1);
    assert_eq!(server.end(), Some(0));
    let mut rest = String::new();
    running.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    let said = answer(&mut waiting).unwrap();
    assert!(said.status == 503 && said.body.contains("the server is stopping"), "{said:?}");
}

#[test]
fn unused_model_is_unloaded_and_reloaded() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kjit"));
    command.arg("serve").arg(model("tiny/tiny-llama-q4_k_m.gguf"));
    let server = Served::with(&mut command, &["--idle-unload", "1", "--alias", "tiny"]);
    let before = text(&server, "tiny", json!([5, 6, 7, 8]));
    let start = Instant::now();
    assert_eq!(server.line(), "tiny is unloaded: it was not used for 1 s");
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_eq!(states(&server)[0].1, "unloaded");
    assert_eq!(
        (
            server.get("/health").status,
            server.get("/v1/models").json()["data"][0]["loaded"].clone()
        ),
        (200, json!(false))
    );
    let metrics = server.get("/metrics").body;
    for line in ["kjit_ready 0", "kjit_model_loads_total 1", "kjit_model_unloads_total 1"] {
        assert!(metrics.lines().any(|l| l == line), "{line}: {metrics}");
    }
    assert_eq!(text(&server, "tiny", json!([5, 6, 7, 8])), before);
    assert!(server.line().starts_with("tiny was requested: loading "));
    assert!(server.line().starts_with("serving tiny on "));
}

/// An answer that takes longer than its model may be idle is complete, and reading the status does
/// not keep the model loaded.
#[test]
fn answer_longer_than_idle_time_completes() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kjit"));
    command.arg("serve").arg(smollm2());
    let server = Served::with(&mut command, &["--idle-unload", "1", "--alias", "smol"]);
    let start = Instant::now();
    let mut running = send(&server, &body("smol", json!("Once upon a time"), 900, true));
    let mut all = String::new();
    running.read_to_string(&mut all).unwrap();
    let took = start.elapsed();
    assert!(all.contains("data: [DONE]") && all.matches("\"text\"").count() > 100, "{all}");
    assert!(
        took > Duration::from_secs(2),
        "{took:?} is no longer than the idle time: nothing is shown"
    );
    let over = Instant::now();
    // A monitor that reads the status all the time, by each route.
    let unloaded = server.wait_for("it is unloaded", |s| {
        assert_eq!((server.get("/metrics").status, server.get("/api/ps").status), (200, 200));
        s["models"][0]["state"] == "unloaded"
    });
    assert!(over.elapsed() < Duration::from_secs(30), "{unloaded}");
    assert_eq!(unloaded["models"][0]["loads"], 1, "it was there all the time");
    assert_eq!(server.line(), "smol is unloaded: it was not used for 1 s");
}

#[test]
fn invalid_request_loads_nothing_and_keep_alive_works() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kjit"));
    command
        .arg("serve")
        .arg(model("tiny/tiny-llama-q4_k_m.gguf"))
        .arg(model("tiny/tiny-llama-q4_k_m.gguf"));
    let flags = ["--alias", "a", "--alias", "b", "--strict-fields"];
    let server = Served::with(&mut command, &flags);
    server.wait_for("b was looked at", |s| s["models"][1]["state"] == "unloaded");
    let loads =
        |server: &Served| server.get("/status").json()["models"][1]["loads"].as_u64().unwrap();
    for (path, body) in [
        ("/v1/completions", json!({ "model": "b", "prompt": "x", "temperature": 3 })),
        ("/v1/completions", json!({ "model": "b", "prompt": 3 })),
        ("/v1/chat/completions", json!({ "model": "b", "messages": [{ "role": "robot" }] })),
        ("/v1/embeddings", json!({ "model": "b", "input": "x", "encoding_format": "hex" })),
        ("/v1/inference", json!({ "model": "b", "prompt": "x", "frobnicate": 1 })),
        ("/api/generate", json!({ "model": "b", "prompt": "x", "options": { "mirostat": 3 } })),
        ("/api/generate", json!({ "model": "b", "prompt": "x", "keep_alive": "soon" })),
        ("/api/chat", json!({ "model": "b", "messages": [{ "role": "robot", "content": "" }] })),
    ] {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{path} {body}: {answer:?}");
    }
    assert_eq!(loads(&server), 0, "none of them was worth a load");
    // Unloading a model that is not loaded does not load it.
    let nothing = |keep: Value| json!({ "model": "b", "keep_alive": keep });
    let answer = server.good("/api/generate", &nothing(json!(0))).json();
    assert_eq!(
        (&answer["done_reason"], &answer["response"], loads(&server)),
        (&json!("unload"), &json!(""), 0)
    );
    // A request without a prompt loads it, and it stays.
    let answer = server.good("/api/generate", &nothing(json!(-1))).json();
    assert_eq!(
        (&answer["done_reason"], &answer["done"], loads(&server)),
        (&json!("load"), &json!(true), 1)
    );
    assert_eq!(states(&server)[1].1, "ready");
    // It is unloaded after this answer.
    let raw = |keep: Value| json!({ "model": "b", "prompt": "x", "raw": true, "stream": false, "keep_alive": keep, "options": { "num_predict": 4 } });
    assert_eq!(server.good("/api/generate", &raw(json!("0s"))).json()["done"], true);
    server.wait_for("it went", |s| {
        s["models"][1]["state"] == "unloaded" && s["models"][1]["unloads"] == 1
    });
    // It stays for a while, and requests without keep_alive do not change that.
    assert_eq!(server.good("/api/generate", &raw(json!("700ms"))).json()["done"], true);
    text(&server, "b", json!([5, 6, 7, 8]));
    // On a slow machine the model was unloaded before that request, and loaded again.
    let gone = loads(&server);
    server.wait_for("it went again", |s| {
        s["models"][1]["unloads"] == gone && s["models"][1]["state"] == "unloaded"
    });
    let answer =
        server.good("/api/chat", &json!({ "model": "a", "messages": [], "keep_alive": 0 })).json();
    assert_eq!(
        (&answer["done_reason"], &answer["message"]["content"]),
        (&json!("unload"), &json!(""))
    );
    server.wait_for("the first went, too", |s| s["models"][0]["state"] == "unloaded");
    assert_eq!(server.get("/health").status, 200);
    drop(server);
    // With --idle-unload 0 models stay loaded.
    let mut command = Command::new(env!("CARGO_BIN_EXE_kjit"));
    command.arg("serve").arg(model("tiny/tiny-llama-q4_k_m.gguf"));
    let server = Served::with(&mut command, &["--alias", "b", "--idle-unload", "0"]);
    assert_eq!(server.good("/api/generate", &raw(json!(0))).json()["done"], true);
    assert_eq!(server.good("/api/generate", &nothing(json!(0))).json()["done_reason"], "unload");
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(
        (
            states(&server)[0].1.as_str(),
            server.get("/status").json()["models"][0]["unloads"].as_u64()
        ),
        ("ready", Some(0))
    );
}

#[test]
fn failed_model_load_is_reported_and_others_continue() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("other.gguf");
    std::fs::copy(model("tiny/tiny-llama-q4_k_m.gguf"), &file).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kjit"));
    command.arg("serve").arg(model("tiny/tiny-llama-q4_k_m.gguf")).arg(&file);
    let server = Served::with(&mut command, &["--alias", "a", "--alias", "b"]);
    server.wait_for("b was looked at", |s| s["models"][1]["state"] == "unloaded");
    std::fs::rename(&file, dir.path().join("away.gguf")).unwrap();
    let said = server.post("/v1/completions", &body("b", json!([5, 6]), 2, false));
    assert!(said.status == 500 && said.body.contains("'b' cannot be loaded: "), "{said:?}");
    let before = text(&server, "a", json!([5, 6, 7, 8]));
    // The next request tries again.
    std::fs::rename(dir.path().join("away.gguf"), &file).unwrap();
    assert_eq!(text(&server, "b", json!([5, 6, 7, 8])), before);
}
