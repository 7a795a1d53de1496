//! Bytes of a connection, without sockets: the fuzzer's seeds (`fuzz/fuzz_targets/requests.rs`),
//! and broken versions of them. 300 of these, or `KJIT_TEST_COUNT`, from number
//! `KJIT_TEST_FROM` on.

use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A random number.
fn dice(state: &mut u64, n: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % n.max(1)
}

/// Parts of requests, for places where they do not belong.
const WORDS: [&[u8]; 16] = [
    b"\"",
    b"\\",
    b"{",
    b"]",
    b",",
    b"null",
    b"-1",
    b"1e999",
    b"\xff",
    b"\r\n",
    b"\r\n\r\n",
    b"chunked",
    b"\\u0000",
    b":",
    b"9",
    b"tools",
];

#[test]
fn arbitrary_connection_data_is_answered_without_leaks() {
    if !crate::it::support::connection::model().exists() {
        eprintln!(
            "SKIPPED: {} is not there (scripts/fetch-test-models)",
            crate::it::support::connection::model().display()
        );
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/requests");
    let mut seeds: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    seeds.sort();
    let seeds: Vec<Vec<u8>> = seeds.into_iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(seeds.len() > 10);
    for seed in &seeds {
        let said = crate::it::support::connection::exercise(seed);
        assert!(said.starts_with("HTTP/1.1 20"), "{}: {said}", String::from_utf8_lossy(seed));
    }
    let number = |name: &str| std::env::var(name).ok().map(|n| n.parse::<u64>().unwrap());
    let (many, from) =
        (number("KJIT_TEST_COUNT").unwrap_or(300), number("KJIT_TEST_FROM").unwrap_or(0));
    let mut refused = 0;
    for i in from..from + many {
        let mut state = i ^ 0x9e37_79b9_7f4a_7c15;
        (0..3).for_each(|_| _ = dice(&mut state, 2));
        let mut bytes = seeds[dice(&mut state, seeds.len())].clone();
        for _ in 0..=dice(&mut state, 4) {
            let (at, word) = (dice(&mut state, bytes.len()), WORDS[dice(&mut state, WORDS.len())]);
            let end = (at + dice(&mut state, 6)).min(bytes.len());
            match dice(&mut state, 5) {
                0 => bytes.truncate(at),
                1 => drop(bytes.splice(at..end, word.iter().copied())),
                2 => drop(bytes.splice(at..at, word.iter().copied())),
                3 => drop(bytes.drain(at..end)),
                _ => bytes[at.min(end.saturating_sub(1))] ^= 1 << dice(&mut state, 8),
            }
            if bytes.is_empty() {
                bytes.push(b'0');
            }
        }
        eprintln!("request {i}");
        refused +=
            usize::from(crate::it::support::connection::exercise(&bytes).starts_with("HTTP/1.1 4"));
    }
    assert!(refused as u64 > many / 3, "{refused} of {many} were refused");
}

/// Sends these bytes only, and reads the whole answer.
fn asked(bytes: &[u8]) -> String {
    let (runtime, inside) = crate::it::support::connection::server();
    let said = runtime.block_on(async {
        let (mut client, connection) = tokio::io::duplex(1 << 20);
        let asks = async {
            client.write_all(bytes).await.unwrap();
            client.shutdown().await.unwrap();
            let mut said = vec![];
            client.read_to_end(&mut said).await.unwrap();
            said
        };
        tokio::join!(inside.answer(connection), asks).1
    });
    String::from_utf8(said).unwrap()
}

fn post(path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn no_model() -> bool {
    let missing = !crate::it::support::connection::model().exists();
    if missing {
        eprintln!(
            "SKIPPED: {} is not there (scripts/fetch-test-models)",
            crate::it::support::connection::model().display()
        );
    }
    missing
}

#[test]
fn contradictory_head_is_refused() {
    if no_model() {
        return;
    }
    let get = |target: &str, rest: &str| format!("GET {target} {rest}\r\n\r\n");
    let body = "Content-Length: 2\r\n\r\n{}";
    for (said, status) in [
        (get("/health", "HTTP/1.1\r\nHost: localhost"), "200"),
        (get("/health", "HTTP/1.1\r\nHost: [::1]:8080"), "200"),
        (get("/health", "HTTP/1.0"), "200"),
        (get("/health", "HTTP/1.1"), "400"),
        (get("/health", "HTTP/1.1\r\nHost: "), "400"),
        (get("/health", "HTTP/1.1\r\nHost: localhost\r\nHost: localhost"), "400"),
        (get("/health", "HTTP/1.0\r\nHost: localhost\r\nhost: evil.example"), "400"),
        (get("/health", "HTTP/1.1\r\nHost: [::1]evil"), "400"),
        (get("/health", "HTTP/1.1\r\nHost: [::1"), "400"),
        (get("/health", "HTTP/1.1\r\nHost: localhost:80x"), "400"),
        (get("/health", "HTTP/1.1\r\nHost: localhost:99999"), "400"),
        (get("/health", "HTTP/1.1\r\nHost: me@localhost"), "400"),
        (get("/health", "HTTP/1.1\r\nHost: local\u{e4}host"), "400"),
        (get("/health", "HTTP/1.1\r\nHost: evil.example"), "403"),
        // The target decides which server is meant, not Host.
        (get("http://localhost/health", "HTTP/1.1\r\nHost: localhost"), "200"),
        (get("http://evil.example/health", "HTTP/1.1\r\nHost: localhost"), "403"),
        (get("http://localhost@evil.example/health", "HTTP/1.1\r\nHost: localhost"), "400"),
        (get("http://[::1]evil/health", "HTTP/1.1\r\nHost: localhost"), "400"),
        // A header that continues in the next line.
        (get("/health", "HTTP/1.1\r\nHost: localhost\r\nX-A: b\r\n c"), "400"),
        (get("/health", "HTTP/1.1\r\nHost : localhost"), "400"),
        // Two lengths, in both orders, and a second request after the first that must not be taken
        // for another one.
        (
            format!("POST /api/show HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n{body}"),
            "400",
        ),
        (
            format!(
                "POST /api/show HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: \
            chunked\r\n{body}"
            ),
            "400",
        ),
        (
            "POST /api/show HTTP/1.1\r\nHost: localhost\r\ncontent-length: \
             7\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
                .to_owned(),
            "400",
        ),
        (
            "POST /api/show HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, \
             chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
                .to_owned(),
            "501",
        ),
        (
            "POST /api/show HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: \
             chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
                .to_owned(),
            "200",
        ),
        (
            "POST /api/show HTTP/1.1\r\nHost: localhost\r\nContent-Length: +2\r\n\r\n{}".to_owned(),
            "400",
        ),
        // A repeated length counts once; text in a body does not count.
        (
            format!("POST /api/show HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n{body}"),
            "200",
        ),
        (
            "POST /api/show HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: \
             chunked\r\n\r\n16\r\n\nContent-Length: 2\n\n{}\r\n0\r\n\r\n"
                .to_owned(),
            "400",
        ),
    ] {
        let answer = asked(said.as_bytes());
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} "))
                || answer.starts_with(&format!("HTTP/1.0 {status} ")),
            "{said}\n{answer}"
        );
        assert_eq!(answer.matches("HTTP/1.").count(), 1, "{said}\n{answer}");
    }
    // Several requests at once, each with a body: the next head is found.
    let several = [
        post("/api/show", "", b"{}"),
        get("/health", "HTTP/1.1\r\nHost: localhost").into_bytes(),
        b"POST /api/show HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: \
            chunked\r\nContent-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
            .to_vec(),
        get("/health", "HTTP/1.1\r\nHost: localhost").into_bytes(),
    ];
    let answer = asked(&several.concat());
    assert_eq!(
        (answer.matches("HTTP/1.1 200").count(), answer.matches("HTTP/1.1 400").count()),
        (2, 1),
        "{answer}"
    );
    assert_eq!(
        answer.matches("HTTP/1.1 ").count(),
        3,
        "nothing is read behind what contradicts itself: {answer}"
    );
}

#[test]
fn half_closed_client_receives_the_answer() {
    if no_model() {
        return;
    }
    let ask = |tokens: usize, n: usize| {
        let body = format!(
            r#"{{"prompt": [5, 6, 7], "max_tokens": {tokens}, "n": {n}, "ignore_eos": true}}"#
        );
        asked(&post("/v1/completions", "", body.as_bytes()))
    };
    let short = ask(2, 1);
    assert!(
        short.starts_with("HTTP/1.1 200") && short.contains("\"completion_tokens\":2"),
        "{short}"
    );
    // During a slow answer an interim answer tests the connection. Clients ignore it.
    let long = ask(490, 16);
    let rest = long.trim_start_matches("HTTP/1.1 100 Continue\r\n\r\n");
    assert!(
        rest.starts_with("HTTP/1.1 200") && rest.contains("\"completion_tokens\":7840"),
        "{long}"
    );
    let old =
        asked(b"POST /v1/completions HTTP/1.0\r\nContent-Length: 35\r\n\r\n{\"prompt\": [5, 6], \"max_tokens\": 3}");
    assert!(old.starts_with("HTTP/1.0 200") && old.contains("\"completion_tokens\":3"), "{old}");
    // A request without its body is incomplete and is not waited for.
    let cut = asked(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 35\r\n\r\n{\"pro",
    );
    assert!(
        cut.starts_with("HTTP/1.1 400") && cut.contains("the request's body cannot be read"),
        "{cut}"
    );
}

#[test]
fn large_body_is_refused_before_100_continue() {
    if no_model() {
        return;
    }
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n";
    let said = crate::it::support::connection::exercise(
        format!("{head}Content-Length: 8388609\r\n\r\n").as_bytes(),
    );
    assert!(
        said.starts_with("HTTP/1.1 413")
            && said.contains("8388608")
            && said.contains("connection: close"),
        "{said}"
    );
    let said = crate::it::support::connection::exercise(
        format!("{head}Content-Length: 35\r\n\r\n{{\"prompt\": [5, 6], \"max_tokens\": 3}}")
            .as_bytes(),
    );
    assert!(said.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200"), "{said}");
}

#[test]
fn body_is_read_unchanged_or_named() {
    if no_model() {
        return;
    }
    let prompt = br#"{"prompt": [5, 6], "max_tokens": 1}"#;
    let marked = [b"\xef\xbb\xbf", &prompt[..]].concat();
    for (headers, body, status, says) in [
        ("Content-Encoding: gzip\r\n", &prompt[..], "415", "gzip"),
        ("Content-Encoding: br, identity\r\n", prompt, "415", "compressed"),
        ("Content-Encoding: identity\r\n", prompt, "200", "choices"),
        ("", b"\x1f\x8b\x08\0\0\0", "400", "is compressed"),
        ("", br#"{"prompt": "x\ud800"}"#, "400", "\\\\ud800 is a lone surrogate"),
        ("", br#"{"prompt": "x\udc00y"}"#, "400", "\\\\udc00 is a lone surrogate"),
        ("", &marked, "200", "choices"),
    ] {
        let said = asked(&post("/v1/completions", headers, body));
        assert!(
            said.starts_with(&format!("HTTP/1.1 {status}")) && said.contains(says),
            "{headers}{said}"
        );
    }
}

#[test]
fn too_long_prompt_is_named_by_its_field() {
    if no_model() {
        return;
    }
    let long = "word ".repeat(600);
    for (path, field, body) in [
        (
            "/v1/chat/completions",
            "messages",
            format!(r#"{{"messages": [{{"role": "user", "content": "{long}"}}]}}"#),
        ),
        ("/v1/completions", "prompt", format!(r#"{{"prompt": "{long}"}}"#)),
        ("/v1/inference", "prompt", format!(r#"{{"prompt": "{long}"}}"#)),
        ("/v1/embeddings", "input", format!(r#"{{"input": "{long}"}}"#)),
    ] {
        let said = asked(&post(path, "", body.as_bytes()));
        let named = format!("\"param\":\"{field}\"");
        assert!(said.starts_with("HTTP/1.1 400") && said.contains(&named), "{path}: {said}");
        assert!(
            said.contains("context_length_exceeded") && said.contains("room for 512"),
            "{path}: {said}"
        );
    }
}

#[test]
fn quantization_level_comes_from_the_file() {
    if no_model() {
        return;
    }
    let show = asked(&post("/api/show", "", b"{\"model\": \"tiny\"}"));
    assert!(show.contains("\"quantization_level\":\"Q4_K_M\""), "{show}");
    for path in ["/api/tags", "/api/ps"] {
        let said = asked(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
        assert!(said.contains("\"quantization_level\":\"Q4_K_M\""), "{said}");
    }
}

#[test]
fn head_timeout_is_shorter_than_idle_timeout() {
    if no_model() {
        return;
    }
    let (runtime, inside) = crate::it::support::connection::server();
    // The server closes connections that are left open, in this order.
    let open = async |said: &[u8]| {
        let (mut client, connection) = tokio::io::duplex(1 << 20);
        let asks = async {
            client.write_all(said).await.unwrap();
            let mut all = vec![];
            client.read_to_end(&mut all).await.unwrap();
            (std::time::Instant::now(), String::from_utf8(all).unwrap())
        };
        tokio::join!(inside.answer(connection), asks).1
    };
    let health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let half = [health, &b"GET /health HTTP/1.1\r\nHo"[..]].concat();
    let (waits, (half, said)) = runtime.block_on(async { tokio::join!(open(health), open(&half)) });
    assert!(half < waits.0, "a head was waited for as long as a request");
    assert!(said.starts_with("HTTP/1.1 200") && waits.1.starts_with("HTTP/1.1 200"), "{said}");
}
