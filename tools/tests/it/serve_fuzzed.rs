//! Sends randomly broken requests to each route of `kjit serve`. Each must be answered in time or
//! its connection is closed, without a 500. No state may remain, and a good request afterwards must
//! get the same answer as before. 400 requests, or `KJIT_TEST_COUNT`, from number `KJIT_TEST_FROM`
//! on.

use crate::support::served::{Served, answer};
use serde_json::{Value, json};
use std::io::Write;
use std::net::Shutdown;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The tiny model has no template. With this template, calls have a known format.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% for t in tools or [] %}<tools>\
    {{ t | tojson }}</tools> <tool_call>{\"name\": …, \"arguments\": …}</tool_call>{% endfor %}assistant:";

/// A random number generator.
struct Dice(u64);

impl Dice {
    fn of(seed: usize) -> Dice {
        let mut dice = Dice(seed as u64 ^ 0x9e37_79b9_7f4a_7c15);
        (0..3).for_each(|_| _ = dice.below(2));
        dice
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }

    fn one<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
}

const GETS: [&str; 12] = [
    "/",
    "/health",
    "/metrics",
    "/status",
    "/status?model=x",
    "/v1/models",
    "/v1/models/tiny",
    "/v1/models/%2e%2e/x",
    "/api/version",
    "/api/tags",
    "/api/ps",
    "/nothing",
];

/// A good request for each route with a body.
fn good() -> Vec<(&'static str, Value)> {
    let tool = json!({ "type": "function", "function": { "name": "f", "strict": true, "parameters": {
        "type": "object", "properties": { "a": { "enum": [1, 2] } }, "required": ["a"], "additionalProperties": false
    } } });
    let user = json!([{ "role": "system", "content": "x" }, { "role": "user", "content": [{ "type": "text", "text": "Hi" }] }]);
    vec![
        (
            "/v1/chat/completions",
            json!({
                "model": "tiny", "messages": user, "max_tokens": 3, "temperature": 0.5, "seed": 1, "n": 2, "stop": ["x"], "stream": true,
                "stream_options": { "include_usage": true }, "logit_bias": { "5": 1.5 }, "logprobs": true, "top_logprobs": 2, "presence_penalty": 0.5
            }),
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": user, "max_completion_tokens": 4, "tools": [tool], "tool_choice": "required" }),
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": user, "max_tokens": 4, "response_format": { "type": "json_object" } }),
        ),
        (
            "/v1/completions",
            json!({ "prompt": ["a", "b"], "max_tokens": 2, "echo": true, "top_k": 5, "min_p": 0.1, "frequency_penalty": 1, "ignore_eos": true }),
        ),
        ("/v1/completions", json!({ "prompt": [1, 2, 3], "max_tokens": 2, "logprobs": 1 })),
        ("/v1/inference", json!({ "prompt": "Hello", "max_tokens": 2, "stream": true })),
        ("/v1/embeddings", json!({ "input": ["a", [1, 2]], "encoding_format": "base64" })),
        (
            "/api/chat",
            json!({ "model": "tiny:latest", "messages": [{ "role": "user", "content": "Hi" }], "options": { "num_predict": 2, "seed": 3 }, "format": "json" }),
        ),
        (
            "/api/generate",
            json!({ "prompt": "x", "raw": true, "stream": false, "think": false, "options": { "num_predict": 2, "stop": ["a"] } }),
        ),
        ("/api/embed", json!({ "input": "x" })),
        ("/api/show", json!({ "model": "tiny" })),
    ]
}

/// A random value.
fn anything(dice: &mut Dice) -> Value {
    let long = "x\u{0}ü\u{1f600}\\\"<|im_end|>".repeat(1 + dice.below(40));
    dice.one(&[
        Value::Null,
        true.into(),
        (-1).into(),
        0.into(),
        json!(1e300),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(0.5),
        json!(""),
        json!(long),
        json!([]),
        json!({}),
        json!([[[[]]]]),
        json!({ "a": { "b": [null] } }),
        json!(["auto", 7]),
        json!("none"),
        json!("\u{202e}"),
    ])
}

/// Changes a random part of a document: replaces, removes or adds a value.
fn change(value: &mut Value, dice: &mut Dice) {
    match value {
        Value::Object(map) if !map.is_empty() && dice.below(5) > 0 => {
            let key = dice.one(&map.keys().cloned().collect::<Vec<_>>());
            match dice.below(6) {
                0 => _ = map.remove(&key),
                1 => {
                    _ = map.insert(
                        dice.one(&["x", "", "user", "model", "n", "tools", "\u{0}"]).to_owned(),
                        anything(dice),
                    )
                }
                _ => map.get_mut(&key).into_iter().for_each(|inside| change(inside, dice)),
            }
        }
        Value::Array(all) if !all.is_empty() && dice.below(4) > 0 => {
            let at = dice.below(all.len());
            match dice.below(5) {
                0 => _ = all.remove(at),
                1 => all.extend(vec![all[at].clone(); dice.below(70)]),
                _ => change(&mut all[at], dice),
            }
        }
        _ => *value = anything(dice),
    }
}

/// A request with one fault: in its document, its body's bytes, its head, or the bytes sent; and a
/// flag whether all announced bytes are sent.
fn broken(number: usize) -> (Vec<u8>, bool) {
    let mut dice = Dice::of(number);
    let wrong = dice.below(8);
    let (path, mut document) = dice.one(&good());
    if wrong < 5 {
        (0..1 + dice.below(2)).for_each(|_| change(&mut document, &mut dice));
    }
    let mut body = document.to_string().into_bytes();
    if wrong == 5 {
        (0..1 + dice.below(3)).for_each(|_| spoil(&mut body, usize::MAX, &mut dice));
    }
    let mut head = (format!("POST {path}"), format!("Content-Length: {}\r\n", body.len()), "");
    if wrong == 6 {
        head = strange(path, body.len(), &mut dice);
    }
    let (asked, length, more) = head;
    let mut all =
        format!("{asked} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}{length}\r\n")
            .into_bytes();
    all.extend(body);
    if wrong == 7 {
        spoil(&mut all, 200, &mut dice);
    }
    (all, wrong < 6)
}

/// Another method, route or length, or headers with another meaning.
fn strange(path: &str, length: usize, dice: &mut Dice) -> (String, String, &'static str) {
    let method = dice.one(&["POST", "POST", "PUT", "GET", "GET", "OPTIONS", "HEAD", "XYZ"]);
    let path = if method == "GET" { dice.one(&GETS) } else { path };
    let said = match dice.below(3) {
        0 => dice
            .one(&["-1", "99999999999999999999", "x", "", "18446744073709551615", "9000000"])
            .to_owned(),
        1 => (length / 2).to_string(),
        _ => length.to_string(),
    };
    let length = match dice.below(6) {
        0 => "Transfer-Encoding: chunked\r\n".to_owned(),
        1 => format!("Content-Length: {said}\r\nTransfer-Encoding: chunked\r\n"),
        _ => format!("Content-Length: {said}\r\n"),
    };
    let more = dice.one(&[
        "",
        "Authorization: Bearer x\r\n",
        "Origin: http://evil.example\r\n",
        "X-Request-Id: \u{1}\r\n",
        "Expect: 100-continue\r\n",
        "Content-Type: text/plain\r\nContent-Encoding: gzip\r\n",
        "Upgrade: h2c\r\n",
        "Host: other\r\n",
        "Cookie: a\r\n b\r\n",
        ": x\r\n",
    ]);
    (format!("{method} {path}"), length, more)
}

/// Cuts, inserts or changes bytes near the start.
fn spoil(bytes: &mut Vec<u8>, first: usize, dice: &mut Dice) {
    let at = dice.below(bytes.len().min(first));
    match dice.below(5) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, dice.below(256) as u8),
        2 => bytes.splice(at..at, std::iter::repeat_n(b'[', dice.below(3_000))).for_each(drop),
        3 => bytes.splice(at..at, std::iter::repeat_n(b'a', dice.below(100_000))).for_each(drop),
        _ => bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= 1 << dice.below(8)),
    }
}

#[test]
fn random_requests_are_answered_or_refused_without_leaks() {
    let number =
        |name: &str, other: usize| std::env::var(name).ok().map_or(other, |n| n.parse().unwrap());
    let (many, from) = (number("KJIT_TEST_COUNT", 400), number("KJIT_TEST_FROM", 0));
    let mut command = Command::new(env!("CARGO_BIN_EXE_kjit"));
    command.arg("serve").arg(crate::support::model("tiny/tiny-llama-q4_k_m.gguf"));
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("template.jinja");
    std::fs::write(&template, TEMPLATE).unwrap();
    let flags = [
        "--alias",
        "tiny",
        "--max-sequences",
        "4",
        "--idle-timeout",
        "1",
        "--max-connections",
        "32",
    ];
    command.arg("--template").arg(&template);
    let server = Served::with(&mut command, &flags);
    let whole =
        json!({ "prompt": "The sky is", "max_tokens": 8, "temperature": 0, "ignore_eos": true });
    let text = || server.good("/v1/completions", &whole).json()["choices"][0]["text"].to_string();
    let before = text();
    for (path, document) in good() {
        server.good(path, &document);
    }
    let (next, answered) = (AtomicUsize::new(from), AtomicUsize::new(0));
    std::thread::scope(|threads| {
        for _ in 0..12 {
            threads.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= from + many {
                        break;
                    }
                    let mut stream = server.connect();
                    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                    let (bytes, whole) = broken(i);
                    let _ = stream.write_all(&bytes);
                    // The server would wait half a minute for the rest of the body.
                    if !whole {
                        let _ = stream.shutdown(Shutdown::Write);
                    }
                    match answer(&mut stream) {
                        Ok(got) => {
                            // A client that sent `Expect` gets an interim response first.
                            let (first, then) = (got.status, got.body.starts_with("HTTP/1.1 500"));
                            assert!(
                                first == 100 && !then || first >= 200 && first != 500,
                                "{i}: {got:?}"
                            );
                            assert!(!got.body.contains("internal fault"), "{i}: {got:?}");
                            _ = answered.fetch_add(1, Ordering::Relaxed);
                        }
                        // The connection was closed: this is not a timeout.
                        Err(why) => assert!(
                            !matches!(
                                why.kind(),
                                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                            ),
                            "{i}: {why}"
                        ),
                    }
                }
            });
        }
    });
    let answered = answered.into_inner();
    assert!(answered * 2 > many, "only {answered} of {many} had an answer");
    let rest = |s: &Value| {
        s["slots"]["running"] == 0 && s["queue"]["waiting"] == 0 && s["server"]["connections"] == 1
    };
    let status = server.wait_for("nothing is left", rest);
    let requests = &status["requests"];
    let of = |name: &str| requests[name].as_u64().unwrap();
    assert_eq!((of("taken"), of("failed")), (of("done") + of("cancelled"), 0), "{status}");
    assert!(of("done") * 20 > many as u64, "one in twenty is good enough to be computed: {status}");
    assert_eq!(text(), before);
    eprintln!(
        "{many} requests: {answered} answered, {} sequences begun, {} ended",
        of("taken"),
        of("done")
    );
}
