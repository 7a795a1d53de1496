//! `kjit serve --lookup`: answers have the same tokens with drafts and without, greedy or by seed,
//! alone or beside others.

use crate::support::served::Served;
use serde_json::{Value, json};

const COPIED: &str = "The quick brown fox jumps over the lazy dog. \
    The quick brown fox jumps over the lazy dog. The quick brown fox";

fn bodies() -> Vec<Value> {
    let ask = |prompt: &str, temperature: f64, seed: usize| json!({ "prompt": prompt, "max_tokens": 16, "temperature": temperature, "seed": seed, "ignore_eos": true });
    let code = "for i in 0..10 { print(i); }\nfor i in 0..10 { print(i); }\nfor i in";
    let mut all = vec![ask(COPIED, 0.0, 0), ask(code, 0.0, 0), ask("Once upon a time", 0.0, 0)];
    all.extend((1..4).map(|seed| ask(COPIED, 0.7, seed)));
    // Penalties change which drafts are accepted.
    all.push(
        json!({ "prompt": COPIED, "max_tokens": 16, "temperature": 0, "frequency_penalty": 0.5, "ignore_eos": true }),
    );
    all
}

/// Complete answers with log probabilities. They are requested one after the other, twice (the
/// second time with a cached prefix), and then four simultaneously.
fn scored(server: &Served) -> [Vec<Value>; 3] {
    let with = |mut body: Value| {
        body["logprobs"] = 3.into();
        body["reproducible"] = true.into();
        body
    };
    let bodies: Vec<Value> = bodies().into_iter().map(with).collect();
    let answer = |body: &Value| server.good("/v1/completions", body).json()["choices"].clone();
    let answer = &answer;
    let together = std::thread::scope(|threads| {
        let all: Vec<_> = bodies.iter().map(|body| threads.spawn(move || answer(body))).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    [together, bodies.iter().map(answer).collect(), bodies.iter().map(answer).collect()]
}

/// All texts: one after the other, then four simultaneously.
fn texts(server: &Served) -> [Vec<String>; 2] {
    let bodies = bodies();
    let text = |body: &Value| {
        server.good("/v1/completions", body).json()["choices"][0]["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let alone = bodies.iter().map(text).collect();
    let text = &text;
    let together = std::thread::scope(|threads| {
        let all: Vec<_> = bodies.iter().map(|body| threads.spawn(move || text(body))).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    [alone, together]
}

#[test]
fn drafts_change_no_token_alone_or_batched() {
    // With --precise, several rows are computed like single rows.
    let flags = |lookup: &'static str| ["--lookup", lookup, "--precise", "--max-sequences", "4"];
    let off = Served::start(&flags("off"));
    let [alone, together] = texts(&off);
    assert_eq!(alone, together, "without drafts");
    assert_eq!(off.get("/status").json()["tokens"]["drafted"], 0);
    let on = Served::start(&flags("on"));
    let [drafted_alone, drafted_together] = texts(&on);
    assert_eq!(alone, drafted_alone);
    assert_eq!(alone, drafted_together);
    let status = on.get("/status").json();
    assert!(
        status["tokens"]["drafted"].as_u64().unwrap() > 0
            && status["tokens"]["accepted"].as_u64().unwrap() > 0,
        "{status}"
    );
}

#[test]
fn reproducible_scores_ignore_caching_drafts_and_batching() {
    let start = |lookup: &'static str| {
        Served::start(&["--lookup", lookup, "--reproducible", "--max-sequences", "4"])
    };
    let [together, alone, cached] = scored(&start("off"));
    assert_eq!(alone, cached);
    assert_eq!(alone, together);
    let drafts = start("on");
    assert_eq!(scored(&drafts), [alone.clone(), alone.clone(), alone]);
    assert!(drafts.get("/status").json()["tokens"]["accepted"].as_u64().unwrap() > 0);
    // A server without the flag refuses the option.
    let other = Served::start(&["--max-sequences", "1"]);
    let refused = other.post("/v1/completions", &json!({ "prompt": "x", "reproducible": true }));
    assert_eq!(refused.status, 400);
    let said = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(said.contains("reproducible") && said.contains("--reproducible"), "{said}");
    other
        .good("/v1/completions", &json!({ "prompt": "x", "reproducible": false, "max_tokens": 1 }));
}
