//! `kjit serve --lookup`: whoever asks, greedily or by a seed, alone or beside others, gets the same tokens
//! with drafts and without.

#[path = "support/served.rs"]
mod served;
mod support;

use serde_json::{Value, json};
use served::Served;

const COPIED: &str =
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy dog. The quick brown fox";

fn bodies() -> Vec<Value> {
    let ask = |prompt: &str, temperature: f64, seed: usize| json!({ "prompt": prompt, "max_tokens": 16, "temperature": temperature, "seed": seed, "ignore_eos": true });
    let code = "for i in 0..10 { print(i); }\nfor i in 0..10 { print(i); }\nfor i in";
    let mut all = vec![ask(COPIED, 0.0, 0), ask(code, 0.0, 0), ask("Once upon a time", 0.0, 0)];
    all.extend((1..4).map(|seed| ask(COPIED, 0.7, seed)));
    // Penalties change what is drafted rightly.
    all.push(
        json!({ "prompt": COPIED, "max_tokens": 16, "temperature": 0, "frequency_penalty": 0.5, "ignore_eos": true }),
    );
    all
}

/// All texts: one after the other, then four at a time.
fn texts(server: &Served) -> [Vec<String>; 2] {
    let bodies = bodies();
    let text =
        |body: &Value| server.good("/v1/completions", body).json()["choices"][0]["text"].as_str().unwrap().to_owned();
    let alone = bodies.iter().map(text).collect();
    let text = &text;
    let together = std::thread::scope(|threads| {
        let all: Vec<_> = bodies.iter().map(|body| threads.spawn(move || text(body))).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    [alone, together]
}

#[test]
fn drafts_change_no_token_alone_or_beside_others() {
    // Precise: rows of several tokens are computed as those of one.
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
        status["tokens"]["drafted"].as_u64().unwrap() > 0 && status["tokens"]["accepted"].as_u64().unwrap() > 0,
        "{status}"
    );
}
