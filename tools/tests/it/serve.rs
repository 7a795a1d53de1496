//! `kjit serve` over sockets, with SmolLM2 on the CPU: the dialects, and refusals.

use crate::support::served::{Served, answer, request};
use crate::support::{error_line, kjit, smollm2};
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

fn chat(question: &str, more: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": question }], "temperature": 0, "max_tokens": 12 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn text_of(events: &[Value], at: &str) -> String {
    events.iter().filter_map(|e| e.pointer(at)?.as_str()).collect()
}

const CONTENT: &str = "/choices/0/message/content";

#[test]
fn openai_answers_and_streams_are_equal() {
    // --precise is needed: after a cached prefix, rows are computed in groups of other sizes, and
    // by default small groups are rounded differently.
    let server = Served::start(&["--alias", "small", "--max-sequences", "3", "--precise"]);
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "small");
    assert_eq!(models["data"][1]["id"], "SmolLM2-135M-Instruct.Q4_1", "{models}");

    let whole = server
        .good("/v1/chat/completions", &chat("Name a colour.", json!({ "model": "small" })))
        .json();
    let said = whole.pointer(CONTENT).unwrap().as_str().unwrap();
    assert!(!said.is_empty() && whole["choices"][0]["finish_reason"] == "length", "{whole}");
    assert_eq!(whole["usage"]["completion_tokens"], 12);

    let more = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let events = server.good("/v1/chat/completions", &chat("Name a colour.", more)).events();
    assert_eq!(text_of(&events, "/choices/0/delta/content"), said);
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let last = events.last().unwrap();
    assert_eq!((&last["usage"]["completion_tokens"], &last["choices"]), (&json!(12), &json!([])));
    assert_eq!(text_of(&events, "/choices/0/finish_reason"), "length");

    // The stop string and the text after it are not part of the answer.
    let word = said.split_whitespace().nth(2).unwrap();
    let stopped = server
        .good("/v1/chat/completions", &chat("Name a colour.", json!({ "stop": word })))
        .json();
    assert_eq!(stopped.pointer(CONTENT).unwrap(), &said[..said.find(word).unwrap()]);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");

    // Several answers, each with its own seed; the same seed gives the same answers.
    let several = chat("Tell me a story.", json!({ "n": 3, "seed": 5, "temperature": 1.5 }));
    let answers = |answer: Value| -> Vec<String> {
        let choices = answer["choices"].as_array().unwrap().clone();
        choices.iter().map(|c| c["message"]["content"].as_str().unwrap().to_owned()).collect()
    };
    let first = answers(server.good("/v1/chat/completions", &several).json());
    assert!(first.len() == 3 && first[0] != first[1] && first[1] != first[2], "{first:?}");
    assert_eq!(answers(server.good("/v1/chat/completions", &several).json()), first);

    // Log probabilities: the greedy choice is the most likely token, and its text and bytes match.
    let scored = chat("Name a colour.", json!({ "logprobs": true, "top_logprobs": 2 }));
    let scored = server.good("/v1/chat/completions", &scored).json();
    let content = scored["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(content.len(), 12);
    for token in &content {
        assert_eq!(token["top_logprobs"][0]["token"], token["token"]);
        assert!(
            token["logprob"].as_f64().unwrap() <= 0.0
                && token["top_logprobs"].as_array().unwrap().len() == 2
        );
    }
    let bytes: Vec<u8> = (content.iter().flat_map(|t| t["bytes"].as_array().unwrap()))
        .map(|b| u8::try_from(b.as_u64().unwrap()).unwrap())
        .collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), said);

    // Completions of texts, of tokens, and of several prompts; with `echo` the answer follows its
    // prompt.
    let ids = stdout_ids("The sky is");
    let go_on = |prompt: Value, more: Value| {
        let mut body = json!({ "prompt": prompt, "max_tokens": 5, "temperature": 0 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.good("/v1/completions", &body)
    };
    let one = go_on(json!("The sky is"), json!({})).json()["choices"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(go_on(json!(ids), json!({})).json()["choices"][0]["text"], one.as_str());
    let two = go_on(json!(["The sky is", ids]), json!({ "n": 2 })).json();
    assert_eq!(two["choices"].as_array().unwrap().len(), 4);
    assert!(two["choices"].as_array().unwrap().iter().all(|c| c["text"] == one.as_str()), "{two}");
    assert_eq!(
        two["usage"]["prompt_tokens"],
        2 * ids.len(),
        "a prompt is counted once, however many answers it has"
    );
    let events = go_on(json!("The sky is"), json!({ "echo": true, "stream": true })).events();
    assert_eq!(text_of(&events, "/choices/0/text"), format!("The sky is{one}"));
}

fn stdout_ids(text: &str) -> Vec<u32> {
    let line = Value::from(text).to_string();
    let printed = crate::support::stdout(
        kjit().args(["tokenize"]).arg(smollm2()).arg("--jsonl").write_stdin(line),
    );
    serde_json::from_str(&printed).unwrap()
}

#[test]
fn ollama_api_answers_and_reports_tools() {
    let server = Served::start(&[]);
    let name = "SmolLM2-135M-Instruct.Q4_1";
    assert_eq!(server.get("/api/tags").json()["models"][0]["name"], name);
    assert_eq!(
        server.post("/api/show", &json!({ "model": name })).json()["details"]["family"],
        "llama"
    );
    let body = json!({
        "model": format!("{name}:latest"), "messages": [{ "role": "user", "content": "Name a colour." }],
        "options": { "temperature": 0, "num_predict": 8, "num_ctx": 4096 }, "keep_alive": "5m"
    });
    let answer = server.good("/api/chat", &body);
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    let lines: Vec<Value> =
        answer.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said = text_of(&lines, "/message/content");
    let last = lines.last().unwrap();
    assert!(
        last["done"] == true && last["eval_count"] == 8 && last["done_reason"] == "length",
        "{last}"
    );
    let mut whole = body.clone();
    whole["stream"] = false.into();
    assert_eq!(server.good("/api/chat", &whole).json()["message"]["content"], said.as_str());
    let generate = json!({ "prompt": "The sky is", "raw": true, "stream": false, "options": { "temperature": 0, "num_predict": 4 } });
    assert!(
        !server.good("/api/generate", &generate).json()["response"].as_str().unwrap().is_empty()
    );

    // This template has no tools, so a system message describes them, which makes the prompt
    // longer.
    let tools = json!([{ "type": "function", "function": {
        "name": "weather", "description": "The weather of a city.", "parameters": { "type": "object", "properties": { "city": { "type": "string" } } }
    } }]);
    let tokens = |more| {
        server.good("/v1/chat/completions", &chat("Hi", more)).json()["usage"]["prompt_tokens"]
            .as_u64()
            .unwrap()
    };
    assert!(tokens(json!({ "tools": tools })) > tokens(json!({})) + 50);
    assert_eq!(tokens(json!({ "tools": tools, "tool_choice": "none" })), tokens(json!({})));
}

#[test]
fn unsupported_values_are_refused_by_name() {
    let server = Served::start(&["--strict-fields"]);
    let user = json!([{ "role": "user", "content": "Hi" }]);
    for (path, body, status, says) in [
        ("/v1/chat/completions", json!({ "messages": user, "frobnicate": 1 }), 400, "'frobnicate'"),
        (
            "/v1/chat/completions",
            json!({ "messages": user, "temperature": 3 }),
            400,
            "'temperature': give a number from 0 to 2",
        ),
        ("/v1/chat/completions", json!({ "messages": [] }), 400, "'messages'"),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "robot", "content": "" }] }),
            400,
            "'messages[0].role'",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }] }),
            400,
            "'messages[0].content[0].image_url.url': is missing",
        ),
        ("/v1/chat/completions", json!({ "messages": user, "model": "gpt-4" }), 404, "gpt-4"),
        ("/v1/chat/completions", json!({ "messages": user, "functions": [] }), 400, "'functions'"),
        (
            "/v1/chat/completions",
            json!({ "messages": user, "logit_bias": { "99999999": 1 } }),
            400,
            "'logit_bias'",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": user, "top_logprobs": 2 }),
            400,
            "'top_logprobs'",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": user, "stream_options": {} }),
            400,
            "'stream_options'",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": user, "lora": "x" }),
            400,
            "'lora': choose an adapter by the model's name",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": user, "tools": [{ "type": "web" }] }),
            400,
            "'tools[0].type'",
        ),
        ("/v1/completions", json!({ "prompt": "x", "suffix": "y" }), 400, "'suffix'"),
        ("/v1/completions", json!({ "prompt": [99_999_999] }), 400, "outside the vocabulary"),
        ("/v1/completions", json!({}), 400, "'prompt': is missing"),
        (
            "/v1/completions",
            json!({ "prompt": "word ".repeat(2000) }),
            400,
            "context has room for 1024",
        ),
        (
            "/v1/embeddings",
            json!({ "input": "word ".repeat(2000) }),
            400,
            "context has room for 1024",
        ),
        (
            "/v1/embeddings",
            json!({ "input": "x", "encoding_format": "hex" }),
            400,
            "'encoding_format'",
        ),
        ("/v1/inference", json!({ "prompt": 3 }), 400, "'prompt': give a string"),
        (
            "/api/chat",
            json!({ "messages": [{ "role": "user", "content": "x", "images": ["x"] }] }),
            400,
            "'messages[0].images[0]'",
        ),
        (
            "/api/generate",
            json!({ "prompt": "x", "options": { "mirostat": 3 } }),
            400,
            "'options.mirostat'",
        ),
    ] {
        let answer = server.post(path, &body);
        let error = &answer.json()["error"];
        let message = error["message"].as_str().or(error.as_str()).unwrap_or_default();
        assert!(answer.status == status && message.contains(says), "{path} {body}: {answer:?}");
        assert_eq!(error.is_string(), path.starts_with("/api/"), "{path}: each in its own words");
    }
    let missing = server.get("/v1/nothing");
    assert!(missing.status == 404 && missing.body.contains("/v1/nothing"), "{missing:?}");
    assert_eq!(server.get("/v1/chat/completions").status, 405);
    for body in [&b"{"[..], b"[]", b"\xff\xfe", b"", b"{\"messages\": [[[[["] {
        assert_eq!(server.ask("POST", "/v1/chat/completions", &[], body).status, 400);
    }
    // No request was accepted.
    assert_eq!(server.get("/status").json()["requests"]["taken"], 0);
}

#[test]
fn unauthorised_requests_are_refused() {
    let line = error_line(
        kjit().arg("serve").arg(smollm2()).args(["--host", "0.0.0.0", "--port", "0", "-q"]),
        1,
    );
    assert!(line.contains("--api-key-file") && line.contains("--allow-anyone"), "{line}");
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    std::fs::write(&keys, "# people\nalpha\nbeta\n").unwrap();
    let server = Served::start(&[
        "--api-key-file",
        keys.to_str().unwrap(),
        "--cors",
        "https://app.example",
        "--max-body",
        "20kB",
    ]);
    let status = |path: &str, headers: &[&str]| server.ask("GET", path, headers, b"").status;
    for path in ["/v1/models", "/metrics", "/status", "/api/tags"] {
        assert_eq!(status(path, &[]), 401, "{path}");
        assert_eq!(status(path, &["Authorization: Bearer alpha2"]), 401, "{path}");
        assert_eq!(status(path, &["Authorization: Bearer beta"]), 200, "{path}");
    }
    for path in ["/health", "/", "/page/main.js"] {
        assert_eq!(status(path, &[]), 200, "{path}");
    }
    let refused = server.post("/v1/completions", &json!({ "prompt": "x" }));
    assert!(
        refused.status == 401 && refused.header("www-authenticate") == Some("Bearer"),
        "{refused:?}"
    );

    // Pages of other origins, and other host names that resolve to this address.
    let key = "Authorization: Bearer alpha";
    assert_eq!(status("/v1/models", &[key, "Origin: https://evil.example"]), 403);
    assert_eq!(status("/v1/models", &[key, "Host: evil.example"]), 403);
    let good = server.ask("GET", "/v1/models", &[key, "Origin: https://app.example"], b"");
    assert_eq!(
        (good.status, good.header("access-control-allow-origin")),
        (200, Some("https://app.example"))
    );
    // Clients read the request id, and send various headers. An invalid list of header names is not
    // repeated.
    assert_eq!(
        good.header("access-control-expose-headers"),
        Some("x-request-id, retry-after, warning, x-kjit-not-held")
    );
    let before = |more: &[&str]| {
        let headers = [&["Origin: https://app.example"][..], more].concat();
        let before = server.ask("OPTIONS", "/v1/models", &headers, b"");
        assert_eq!(before.status, 204, "{before:?}");
        before.header("access-control-allow-headers").unwrap().to_owned()
    };
    let asked = "authorization,content-type,x-stainless-lang,x-somebodys-own";
    assert_eq!(before(&[&format!("Access-Control-Request-Headers: {asked}")]), asked);
    for usual in [before(&[]), before(&["Access-Control-Request-Headers: a b"])] {
        let all = [
            "authorization",
            "content-type",
            "x-stainless-retry-count",
            "openai-beta",
            "anthropic-version",
            "x-api-key",
        ];
        assert!(all.iter().all(|name| usual.split(", ").any(|one| one == *name)), "{usual}");
    }
    for wrong in [["--cors", "nonsense"], ["--cors", "*"], ["--cors", "https://app.example/x"]] {
        let line =
            error_line(kjit().arg("serve").arg(smollm2()).args(wrong).args(["--port", "0"]), 2);
        assert!(line.contains("--cors") && line.contains("https://app.example"), "{line}");
    }

    // Bodies have a limit; requests have an id.
    let large = server.ask("POST", "/v1/completions", &[key], &vec![b'x'; 1 << 20]);
    assert!(large.status == 413 && large.body.contains("20000"), "{large:?}");
    assert_eq!(
        server.ask("GET", "/health", &["X-Request-Id: mine-1"], b"").header("x-request-id"),
        Some("mine-1")
    );
    let forged = server.ask("GET", "/health", &["X-Request-Id: a b\"c"], b"");
    assert!(forged.header("x-request-id").unwrap().starts_with("req-"), "{forged:?}");
}

#[test]
fn keys_do_not_see_other_prompts() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    std::fs::write(&keys, "alpha\nbeta\n").unwrap();
    let keys = ["--api-key-file", keys.to_str().unwrap(), "--max-sequences", "12"];
    let secret =
        "The number of the account at the bank, which nobody else may ever know, is 482913.";
    let cached = |server: &Served, key: &str, salt: Value| {
        let body = chat(secret, json!({ "max_tokens": 1, "cache_salt": salt })).to_string();
        let header = format!("Authorization: Bearer {key}");
        let answer = server.ask("POST", "/v1/chat/completions", &[&header], body.as_bytes());
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    let counted = |server: &Served| {
        let status = server.ask("GET", "/status", &["Authorization: Bearer beta"], b"").json();
        status["tokens"]["cached"].as_u64().unwrap()
    };
    let server = Served::start(&keys);
    assert_eq!(cached(&server, "alpha", Value::Null), 0);
    assert_eq!(
        (cached(&server, "beta", Value::Null), counted(&server)),
        (0, 0),
        "another's prompt"
    );
    assert!(
        cached(&server, "alpha", Value::Null) > 20 && cached(&server, "beta", Value::Null) > 20,
        "one's own"
    );
    // Both headers for a key are equal.
    let odd = server.ask(
        "POST",
        "/v1/completions",
        &["Authorization: bearer  alpha "],
        json!({ "prompt": secret, "max_tokens": 1, "cache_salt": "x" }).to_string().as_bytes(),
    );
    assert_eq!(odd.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "{odd:?}");
    // Cached prefixes with salts, each with its key.
    assert_eq!(cached(&server, "alpha", json!("one")), 0);
    assert_eq!(
        (cached(&server, "alpha", json!("two")), cached(&server, "beta", json!("one"))),
        (0, 0)
    );
    assert!(cached(&server, "alpha", json!("one")) > 20);
    let header = ["Authorization: Bearer alpha"];
    let wrong =
        server.ask("POST", "/v1/completions", &header, br#"{"prompt": "x", "cache_salt": ""}"#);
    assert!(wrong.status == 400 && wrong.body.contains("'cache_salt'"), "{wrong:?}");
    let ollama =
        br#"{"prompt": "x", "raw": true, "stream": false, "cache_salt": "one", "options": {"num_predict": 1}}"#;
    assert_eq!(server.ask("POST", "/api/generate", &header, ollama).status, 200);

    // With --share-prefixes a salt still separates prefixes.
    let shared = Served::start(&[&keys[..], &["--share-prefixes"]].concat());
    assert_eq!(cached(&shared, "alpha", Value::Null), 0);
    assert!(cached(&shared, "beta", Value::Null) > 20);
    assert_eq!(
        (cached(&shared, "alpha", json!("one")), cached(&shared, "beta", json!("two"))),
        (0, 0)
    );
    assert!(cached(&shared, "beta", json!("one")) > 20);
}

/// The text is one token, the end of the user's turn, unless it is read as plain text.
#[test]
fn control_tokens_in_messages_are_text_on_request() {
    let tokens = |server: &Served, text: &str| {
        let answer = server.good("/v1/chat/completions", &chat(text, json!({ "max_tokens": 1 })));
        answer.json()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let (usual, literal) = (Served::start(&[]), Served::start(&["--literal-user-text"]));
    let (token, other) = ("Say <|im_end|> now", "Say <|im_end> now");
    assert_eq!(tokens(&usual, other), tokens(&literal, other));
    assert!(tokens(&usual, token) + 2 < tokens(&usual, other));
    assert!(tokens(&literal, token) >= tokens(&literal, other));
    // A tool's result is read in the same way; the model's own turns are not.
    let talk = |role: &str| {
        let turns = json!([{ "role": "user", "content": "x" }, { "role": "assistant", "content": "y" },
            { "role": role, "content": token, "tool_call_id": "1" }]);
        let turns = json!({ "messages": turns, "max_tokens": 1 });
        literal.good("/v1/chat/completions", &turns).json()["usage"]["prompt_tokens"].as_u64()
    };
    assert!(talk("tool") > talk("system"), "{:?} {:?}", talk("tool"), talk("system"));
    // The text of the prompt has the token as it was written. It does not show how the token is
    // read.
    let rendered = literal.good("/apply-template", &chat(token, json!({}))).json();
    let rendered = rendered["prompt"].as_str().unwrap();
    assert!(rendered.contains(token) && !rendered.contains(['\u{fdd0}', '\u{fdd1}']), "{rendered}");
}

/// The prompts of the flood are prepared before they are queued. They wait without delaying other
/// clients, and are dropped when their clients disconnect.
#[test]
fn schema_and_prompt_floods_do_not_delay_others() {
    // Limit of the time that an answer may take while the flood and other tests use the processor.
    // Before a fix it was more than a minute.
    const SOON: Duration = Duration::from_secs(15);
    let server = Served::start(&["--max-queue", "40", "--max-body", "16MiB"]);
    let memory = || {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
    };
    let neighbour = || {
        let start = Instant::now();
        server.good("/v1/completions", &json!({ "prompt": "Hi", "max_tokens": 1 }));
        let took = start.elapsed();
        assert!(took < SOON, "{took:?}");
    };
    let all = |clients: usize, body: &Value| -> Vec<TcpStream> {
        let body = body.to_string();
        let send = |_| {
            let mut stream = server.connect();
            stream
                .write_all(request("POST", "/v1/chat/completions", &[], body.as_bytes()).as_bytes())
                .unwrap();
            stream.write_all(body.as_bytes()).unwrap();
            stream
        };
        (0..clients).map(send).collect()
    };
    neighbour();
    let before = memory();
    let properties: serde_json::Map<String, Value> =
        (0..10_000).map(|i| (format!("p{i}"), json!({ "type": "integer" }))).collect();
    let schema =
        json!({ "type": "object", "properties": properties, "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    let flood = all(16, &chat("Go", json!({ "response_format": format })));
    server.wait_for("they wait", |s| s["queue"]["waiting"].as_u64() > Some(8));
    neighbour();
    // The clients disconnect, and their work is cancelled.
    drop(flood);
    server.wait_for("they are gone", |s| s["queue"]["waiting"] == 0);
    neighbour();

    // Very long white space cannot fit, so it is not tokenised to its end.
    let flood = all(6, &chat(&" ".repeat(4_000_000), json!({})));
    neighbour();
    for mut stream in flood {
        let answer = answer(&mut stream).unwrap();
        assert!(
            answer.status == 400 && answer.body.contains("the context has room for 1024"),
            "{answer:?}"
        );
    }
    neighbour();
    let after = memory();
    assert!(after < before + 400, "{before} MiB before, {after} MiB after");
    // The queue accepts requests up to its limit.
    let refused = Served::start(&["--max-queue", "2"]);
    let mut asked: Vec<TcpStream> = (0..8).map(|_| refused.connect()).collect();
    let body = chat("Go", json!({ "response_format": format })).to_string();
    let head = request("POST", "/v1/chat/completions", &[], body.as_bytes());
    asked
        .iter_mut()
        .for_each(|stream| stream.write_all((head.clone() + &body).as_bytes()).unwrap());
    refused.wait_for("some are sent away", |s| s["queue"]["refused"].as_u64() >= Some(4));
}

#[test]
fn page_is_complete_and_status_is_machine_readable() {
    let server = Served::start(&[]);
    let page = server.get("/");
    let policy = page.header("content-security-policy").unwrap();
    for part in ["default-src 'none'", "connect-src 'self'", "trusted-types 'none'"] {
        assert!(policy.contains(part), "{part}: {policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    assert!(
        page.body.trim_end().ends_with("</html>")
            && page.header("content-type").unwrap().starts_with("text/html")
    );
    let file = server.get("/page/vendor/katex.css");
    assert_eq!(file.header("content-type"), Some("text/css; charset=utf-8"));
    let tag = format!("If-None-Match: \"other\", W/{}", file.header("etag").unwrap());
    let had = server.ask("GET", "/page/vendor/katex.css", &[&tag], b"");
    assert_eq!((had.status, had.body.as_str()), (304, ""));
    for path in ["/page/", "/page/none.js", "/page/../page.rs", "/page/vendor/licences/katex"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    server.good("/v1/chat/completions", &chat("Hi", json!({ "max_tokens": 3 })));
    let status = server.wait_for("one is done", |s| s["requests"]["done"] == 1);
    assert_eq!(
        (&status["state"], &status["tokens"]["generated"], &status["slots"]["context"]),
        (&json!("ready"), &json!(3), &json!(1024))
    );
    let text = server.get("/metrics").body;
    let value = |name: &str| -> f64 {
        let line = text
            .lines()
            .find(|l| l.split(' ').next() == Some(name))
            .unwrap_or_else(|| panic!("{name}: {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(value("kjit_generated_tokens_total"), 3.0);
    assert_eq!(value("kjit_first_token_seconds_count"), 1.0);
    assert_eq!(value("kjit_first_token_seconds_bucket{le=\"+Inf\"}"), 1.0);
    assert_eq!(value("kjit_between_tokens_seconds_count"), 2.0);
    assert_eq!(
        value("kjit_http_answers_total{route=\"/v1/chat/completions\",status=\"200\"}"),
        1.0
    );
    // Each metric has a type, and bucket counts never decrease.
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .unwrap_or(name);
        assert!(
            text.contains(&format!("# TYPE {family} "))
                || text.contains(&format!("# TYPE {name} ")),
            "{line}"
        );
    }
}
