//! LoRA adapters of `kjit serve`: names of models, the field `lora`, keys, and cached prefixes.

use crate::support::adapters::{Draw, RandomAdapter};
use crate::support::model;
use crate::support::served::{Served, command};
use kjit_model::gguf::Gguf;
use kjit_model::sample::SampleOptions;
use kjit_model::session::{AdapterFile, DecodeControl, OpenOptions};
use kjit_model::{DeviceChoice, Model};
use kjit_tests::simulator::Setup;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const MODEL: &str = "tiny/tiny-llama-q8_0.gguf";
/// Tokens of an answer.
const N: usize = 6;

/// Writes adapters: `one`, `two`, and so on.
fn adapters<const COUNT: usize>(folder: &Path) -> [PathBuf; COUNT] {
    let base = Gguf::open(model(MODEL)).unwrap();
    let plain = |name: &str| name.contains("attn_q.") || name.contains("ffn_down.");
    let names = ["one", "two", "three", "four"];
    std::array::from_fn(|i| {
        let adapter = RandomAdapter::of(&base, 3 + i as u64, 9, plain);
        adapter.write(&folder.join(format!("{}.gguf", names[i])), true)
    })
}

/// The greedy answer of the model with these adapters, computed on the CPU in f32.
fn greedy(adapters: &[(&Path, f32)], prompt: &[u32]) -> Vec<u32> {
    let file = |(path, scale): &(&Path, f32)| AdapterFile {
        path: path.to_path_buf(),
        name: None,
        scale: *scale,
    };
    let options = OpenOptions {
        device: DeviceChoice::Cpu,
        context: Some(256),
        precise: true,
        threads: 2,
        adapters: adapters.iter().map(file).collect(),
        ..OpenOptions::default()
    };
    let mut model = Model::open(model(MODEL), &options).unwrap();
    let id = model.add(SampleOptions::default()).unwrap();
    let mut out = vec![];
    model
        .session
        .decode_past_ends(&[(id, prompt)], &mut |_, token| {
            out.push(token);
            if out.len() == N { DecodeControl::End } else { DecodeControl::Go }
        })
        .unwrap();
    out
}

fn ask(server: &Served, key: &str, more: Value, prompt: &[u32]) -> (u16, Value) {
    let mut body = json!({
        "prompt": prompt, "n_predict": N, "temperature": 0, "ignore_eos": true,
        "return_tokens": true
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let header = format!("authorization: Bearer {key}");
    let answer = server.ask("POST", "/completion", &[&header], body.to_string().as_bytes());
    (answer.status, answer.json())
}

/// Starts a server with both adapters, the second one with a scale of 0.5.
fn served(dir: &Path, adapters: &[PathBuf; 2], device: &[&str]) -> Served {
    let keys = dir.join("keys");
    std::fs::write(&keys, "alpha\nbeta adapters=one\n").unwrap();
    let mut command = command();
    command.args(["serve", "--port", "0", "-c", "256", "--max-sequences", "4", "--alias", "base"]);
    command.arg(model(MODEL)).arg("--api-key-file").arg(keys).args(device);
    let half = format!("{}=0.5", adapters[1].display());
    command.arg("--lora").arg(&adapters[0]).args(["--lora", &half]);
    Served::by(&mut command)
}

fn answers(dir: &Path, device: &[&str], rounds: usize) {
    let files: [PathBuf; 2] = adapters(dir);
    let [one, two] = [&files[0], &files[1]].map(|path| path.as_path());
    let server = served(dir, &files, device);
    let mut draw = Draw(9);
    // Longer than a page of keys and values.
    let prompt: Vec<u32> = (0..150).map(|_| draw.below(250) as u32).collect();
    let cases = [
        (json!({ "model": "base" }), greedy(&[], &prompt)),
        (json!({ "model": "base:one" }), greedy(&[(one, 1.0)], &prompt)),
        (json!({ "model": "base:two" }), greedy(&[(two, 0.5)], &prompt)),
        (
            json!({ "lora": [{ "id": 1, "scale": -0.75 }, { "id": 0, "scale": 0.5 }] }),
            greedy(&[(one, 0.5), (two, -0.75)], &prompt),
        ),
    ];
    for (i, (_, tokens)) in cases.iter().enumerate() {
        assert!(cases[..i].iter().all(|(_, other)| other != tokens), "{i}: no difference is seen");
    }
    // Alone: the first time nothing is cached, although the base had this prompt before.
    for round in 0..rounds {
        for (more, tokens) in &cases {
            let (status, answer) = ask(&server, "alpha", more.clone(), &prompt);
            assert_eq!((status, &answer["tokens"]), (200, &json!(tokens)), "{more}: {answer}");
            let cached = answer["tokens_cached"].as_u64().unwrap();
            assert_eq!(cached > 100, round == 1, "{more}: {cached} tokens were cached");
            let name = more["model"].as_str().unwrap_or("base");
            assert_eq!(answer["model"], name);
        }
    }
    // Beside each other, with prompts that differ after some tokens.
    std::thread::scope(|scope| {
        for (more, tokens) in &cases {
            let (server, prompt) = (&server, &prompt);
            scope.spawn(move || {
                let (status, answer) = ask(server, "alpha", more.clone(), prompt);
                assert_eq!((status, &answer["tokens"]), (200, &json!(tokens)), "{more}");
            });
        }
    });
    // Keys.
    assert_eq!(ask(&server, "beta", json!({ "model": "base:one" }), &prompt).0, 200);
    for more in [json!({ "model": "base:two" }), json!({ "lora": [{ "id": 1, "scale": 0.1 }] })] {
        let (status, answer) = ask(&server, "beta", more, &prompt);
        assert_eq!(status, 403, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("'two'"), "{answer}");
    }
    // Wrong requests.
    for (more, status, word) in [
        (json!({ "model": "base:three" }), 404, "base:three"),
        (json!({ "model": "one" }), 404, "'one'"),
        (json!({ "lora": [{ "id": 2 }] }), 400, "0 to 1"),
        (json!({ "lora": [{ "id": 0, "scale": "x" }] }), 400, "lora"),
        (json!({ "lora": { "id": 0 } }), 400, "array"),
    ] {
        let (found, answer) = ask(&server, "alpha", more.clone(), &prompt);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(found == status && message.contains(word), "{more}: {found} {answer}");
    }
    // Lists.
    let header = ["authorization: Bearer alpha"];
    let list = server.ask("GET", "/v1/models", &header, b"").json();
    let ids: Vec<&str> =
        list["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert!(ids.contains(&"base") && ids.contains(&"base:one") && ids.contains(&"base:two"));
    let list = server.ask("GET", "/lora-adapters", &header, b"").json();
    assert_eq!((&list[0]["path"], &list[1]["id"]), (&json!("one"), &json!(1)), "{list}");
}

#[test]
fn requests_choose_an_adapter_and_never_see_the_prefixes_of_another() {
    let dir = tempfile::tempdir().unwrap();
    answers(dir.path(), &["--device", "cpu", "--precise"], 2);
}

#[test]
fn adapters_run_side_by_side_on_a_simulated_gpu() {
    let test = "serve_adapters::adapters_run_side_by_side_on_a_simulated_gpu";
    let temporary = env!("CARGO_TARGET_TMPDIR");
    let setup = Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.run(test, temporary, || {
        let dir = tempfile::tempdir().unwrap();
        let cache = Path::new(temporary).join("hipsim/adapters");
        let cache = cache.to_str().unwrap();
        // The first round shows that nothing is shared. The requests beside each other then begin
        // with cached pages.
        let device = ["--device", "rocm:0", "--cache-dir", cache, "--prefill-chunk", "64"];
        answers(dir.path(), &device, 1);
    });
}

/// Loads, uses, replaces and unloads adapters while a server with two places for them runs.
fn loads(dir: &Path) {
    let files: [PathBuf; 4] = adapters(dir);
    let [one, two, three, four] = files.each_ref().map(PathBuf::as_path);
    let keys = dir.join("keys");
    std::fs::write(&keys, "alpha load-adapters=yes\nbeta adapters=one\n").unwrap();
    let mut command = command();
    command.args(["serve", "--port", "0", "-c", "256", "--max-sequences", "6", "--alias", "base"]);
    command.arg(model(MODEL)).arg("--api-key-file").arg(keys);
    command.args([
        "--device",
        "cpu",
        "--precise",
        "--max-loras",
        "2",
        "--max-lora-rank",
        "9",
        "--max-cpu-loras",
        "3",
    ]);
    let server = Served::by(command.arg("--lora").arg(format!("{}=1.5", three.display())));
    let send = |key: &str, what: &str, body: Value| {
        let header = format!("authorization: Bearer {key}");
        let path = format!("/v1/{what}_lora_adapter");
        let answer = server.ask("POST", &path, &[&header], body.to_string().as_bytes());
        (answer.status, answer.body)
    };
    let load = |name: &str, path: &Path| {
        send("alpha", "load", json!({ "lora_name": name, "lora_path": path }))
    };
    assert_eq!(load("one", one).0, 200);
    let (status, text) = load("two", two);
    assert_eq!((status, &*text), (200, "Success: LoRA adapter 'two' added successfully."));
    let mut draw = Draw(11);
    let prompt: Vec<u32> = (0..150).map(|_| draw.below(250) as u32).collect();
    // Ids count from 0 in the order of loading: three, one, two.
    let cases = [
        (json!({ "model": "base" }), greedy(&[], &prompt)),
        (json!({ "model": "base:one" }), greedy(&[(one, 1.0)], &prompt)),
        (json!({ "model": "two" }), greedy(&[(two, 1.0)], &prompt)),
        (json!({ "model": "base:three" }), greedy(&[(three, 1.5)], &prompt)),
        (
            json!({ "lora": [{ "id": 2, "scale": -0.75 }, { "id": 1, "scale": 0.5 }] }),
            greedy(&[(one, 0.5), (two, -0.75)], &prompt),
        ),
    ];
    for (i, (_, tokens)) in cases.iter().enumerate() {
        assert!(cases[..i].iter().all(|(_, other)| other != tokens), "{i}: no difference is seen");
    }
    // Three adapters take turns in two places. A cached prefix is used by its own adapter only.
    for round in 0..2 {
        for (more, tokens) in &cases {
            let (status, answer) = ask(&server, "alpha", more.clone(), &prompt);
            assert_eq!((status, &answer["tokens"]), (200, &json!(tokens)), "{more}: {answer}");
            let cached = answer["tokens_cached"].as_u64().unwrap();
            assert!((cached > 100) == (round == 1), "{more}: {cached} tokens were cached");
        }
    }
    // Beside each other: requests wait until their adapters have places.
    std::thread::scope(|scope| {
        for (more, tokens) in cases.iter().chain(&cases) {
            let (server, prompt) = (&server, &prompt);
            scope.spawn(move || {
                let (status, answer) = ask(server, "alpha", more.clone(), prompt);
                assert_eq!((status, &answer["tokens"]), (200, &json!(tokens)), "{more}");
            });
        }
    });
    let header = ["authorization: Bearer alpha"];
    let metrics = server.ask("GET", "/metrics", &header, b"").body;
    assert!(metrics.contains("max_lora=\"2\",running_lora_adapters=\"\""), "{metrics}");
    let list = server.ask("GET", "/v1/models", &header, b"").json();
    let listed = |name: &str| list["data"].as_array().unwrap().iter().any(|m| m["id"] == name);
    assert!(["base", "base:one", "one", "two", "three"].into_iter().all(listed), "{list}");
    let list = server.ask("GET", "/lora-adapters", &header, b"").json();
    assert_eq!((&list[0]["path"], &list[2]["id"]), (&json!("three"), &json!(2)), "{list}");
    // Another adapter under a known name does not see the prefixes of the old one.
    let again = json!({ "lora_name": "one", "lora_path": four, "load_inplace": true });
    let (status, text) = load("one", four);
    assert!(status == 400 && text.contains("already"), "{text}");
    assert_eq!(send("alpha", "load", again).0, 200);
    let (_, answer) = ask(&server, "alpha", json!({ "model": "one" }), &prompt);
    let tokens = (&answer["tokens"], &answer["tokens_cached"]);
    assert_eq!(tokens, (&json!(greedy(&[(four, 1.0)], &prompt)), &json!(0)), "{answer}");
    // Keys, and wrong requests.
    let body = json!({ "lora_name": "one", "lora_path": one });
    assert_eq!(send("beta", "load", body.clone()).0, 403);
    assert_eq!(send("beta", "unload", body).0, 403);
    assert_eq!(ask(&server, "beta", json!({ "model": "two" }), &prompt).0, 403);
    assert_eq!(ask(&server, "beta", json!({ "model": "one" }), &prompt).0, 200);
    let base = Gguf::open(model(MODEL)).unwrap();
    let wide = RandomAdapter::of(&base, 9, 500, |name| name.contains("attn_q."));
    let wide = wide.write(&dir.join("wide.gguf"), true);
    let table = RandomAdapter::of(&base, 9, 4, |name| name.contains("token_embd."));
    let table = table.write(&dir.join("table.gguf"), true);
    for (what, body, status, word) in [
        ("load", json!({ "lora_path": one }), 400, "lora_name"),
        ("load", json!({ "lora_name": "x" }), 400, "lora_path"),
        ("load", json!({ "lora_name": "x:y", "lora_path": one }), 400, "lora_name"),
        ("load", json!({ "lora_name": "base", "lora_path": one }), 400, "model's name"),
        ("load", json!({ "lora_name": "x", "lora_path": one }), 400, "--max-cpu-loras"),
        ("unload", json!({ "lora_name": "x" }), 404, "'x'"),
        ("unload", json!({}), 400, "lora_name"),
        ("unload", json!({ "lora_name": "two" }), 200, "removed"),
        ("load", json!({ "lora_name": "x", "lora_path": "/no/such/file" }), 404, "/no/such/file"),
        ("load", json!({ "lora_name": "x", "lora_path": model(MODEL) }), 400, "general.type"),
        ("load", json!({ "lora_name": "x", "lora_path": wide }), 400, "--max-lora-rank"),
        ("load", json!({ "lora_name": "x", "lora_path": table }), 400, "token_embd"),
    ] {
        let (found, text) = send("alpha", what, body.clone());
        assert!(found == status && text.contains(word), "{body}: {found} {text}");
    }
    assert_eq!(ask(&server, "alpha", json!({ "model": "base:two" }), &prompt).0, 404);
    let all = json!({ "lora": [{ "id": 0 }, { "id": 1 }] });
    assert_eq!(ask(&server, "alpha", all, &prompt).0, 400, "the id of a replaced adapter");
    assert_eq!(load("two", two).0, 200);
    let list = server.ask("GET", "/lora-adapters", &header, b"").json();
    let all: Vec<Value> =
        list.as_array().unwrap().iter().map(|one| json!({ "id": one["id"] })).collect();
    let (status, answer) = ask(&server, "alpha", json!({ "lora": all }), &prompt);
    assert!(status == 400 && answer.to_string().contains("--max-loras"), "{status} {answer}");
}

#[test]
fn adapters_are_loaded_replaced_and_unloaded_while_the_server_runs() {
    let dir = tempfile::tempdir().unwrap();
    loads(dir.path());
}

#[test]
fn adapters_are_paged_in_on_a_simulated_gpu() {
    let test = "serve_adapters::adapters_are_paged_in_on_a_simulated_gpu";
    let temporary = env!("CARGO_TARGET_TMPDIR");
    let setup = Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.run(test, temporary, || {
        let dir = tempfile::tempdir().unwrap();
        let cache = Path::new(temporary).join("hipsim/adapters");
        let cache = cache.to_str().unwrap();
        let [one, two]: [PathBuf; 2] = adapters(dir.path());
        let mut command = command();
        command.args(["serve", "--port", "0", "-c", "64", "--max-sequences", "1"]);
        command.args(["--device", "rocm:0", "--cache-dir", cache, "--max-loras", "1"]);
        let server = Served::by(command.arg("--lora").arg(&one).arg(model(MODEL)));
        let body = json!({ "lora_name": "two", "lora_path": two });
        server.good("/v1/load_lora_adapter", &body);
        let prompt: Vec<u32> = (7..17).collect();
        for (name, path) in [("one", &one), ("two", &two), ("one", &one)] {
            let (status, answer) = ask(&server, "", json!({ "model": name }), &prompt);
            let tokens = json!(greedy(&[(path, 1.0)], &prompt));
            assert_eq!((status, &answer["tokens"]), (200, &tokens), "{name}: {answer}");
        }
    });
}

#[test]
fn adapters_are_loaded_without_keys_on_loopback_and_only_with_places() {
    let dir = tempfile::tempdir().unwrap();
    let [one]: [PathBuf; 1] = adapters(dir.path());
    let body = json!({ "lora_name": "one", "lora_path": one });
    for (flags, status, word) in [
        (&["--max-loras", "1"][..], 200, "Success"),
        (&["--max-loras", "1", "--host", "0.0.0.0", "--allow-anyone"], 403, "load-adapters=yes"),
        (&[], 400, "--max-loras"),
    ] {
        let mut command = command();
        command.args(["serve", "--port", "0", "--device", "cpu", "-c", "64"]).arg(model(MODEL));
        let server = Served::by(command.args(flags));
        let answer = server.post("/v1/load_lora_adapter", &body);
        assert!(answer.status == status && answer.body.contains(word), "{flags:?}: {answer:?}");
    }
}
