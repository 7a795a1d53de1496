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

/// Writes two adapters, `one` and `two`.
fn adapters(folder: &Path) -> [PathBuf; 2] {
    let base = Gguf::open(model(MODEL)).unwrap();
    let plain = |name: &str| name.contains("attn_q.") || name.contains("ffn_down.");
    [("one", 3), ("two", 4)].map(|(name, seed)| {
        let adapter = RandomAdapter::of(&base, seed, 9, plain);
        adapter.write(&folder.join(format!("{name}.gguf")), true)
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
    let files = adapters(dir);
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
