//! The dialects of llama.cpp, vLLM, SGLang and older Ollama.

use crate::support::served::Served;
use serde_json::{Value, json};

#[test]
fn tokenize_detokenize_and_template_routes_work() {
    let server = Served::start(&[]);
    let post = |path: &str, body: Value| server.good(path, &body).json();
    let ids = post("/tokenize", json!({ "content": "The sky is" }))["tokens"].clone();
    let words = post("/tokenize", json!({ "content": "The sky is", "with_pieces": true }));
    let pieces: Vec<&str> =
        words["tokens"].as_array().unwrap().iter().map(|t| t["piece"].as_str().unwrap()).collect();
    assert_eq!((ids.as_array().unwrap().len(), pieces.concat().as_str()), (3, "The sky is"));
    assert_eq!(post("/detokenize", json!({ "tokens": ids }))["content"], "The sky is");
    let vllm = post("/tokenize", json!({ "prompt": "The sky is", "return_token_strs": true }));
    assert_eq!(
        (&vllm["tokens"], &vllm["count"], &vllm["max_model_len"], &vllm["token_strs"][1]),
        (&ids, &json!(3), &json!(1024), &json!(pieces[1]))
    );
    // If a character has two tokens, their pieces are bytes.
    let parts = post("/tokenize", json!({ "content": "𝕏", "with_pieces": true }));
    assert!(parts["tokens"][0]["piece"].is_array(), "{parts}");
    let chat = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
    let prompt = post("/apply-template", chat.clone())["prompt"].as_str().unwrap().to_owned();
    assert!(prompt.contains("user\nHi<|im_end|>") && prompt.ends_with("assistant\n"), "{prompt}");
    let counted = post("/tokenize", chat.clone())["count"].as_u64();
    let answer =
        post("/v1/chat/completions", json!({ "messages": chat["messages"], "max_tokens": 1 }));
    assert_eq!(counted, answer["usage"]["prompt_tokens"].as_u64());
    let wrong = server.post("/detokenize", &json!({ "tokens": [99_999_999] }));
    assert!(wrong.status == 400 && wrong.body.contains("'tokens'"), "{wrong:?}");
}

#[test]
fn sglang_generate_equals_openai_completion() {
    let server = Served::start(&["--precise"]);
    let ask = |more: Value, options: Value| {
        let mut sampling = json!({ "max_new_tokens": 5, "temperature": 0 });
        sampling.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        let mut body = json!({ "text": "The sky is", "sampling_params": sampling });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/generate", &body)
    };
    let other = json!({ "prompt": "The sky is", "max_tokens": 5, "temperature": 0 });
    let other = server.good("/v1/completions", &other).json()["choices"][0]["text"].clone();
    let whole = ask(json!({ "rid": "mine" }), json!({})).json();
    let meta = &whole["meta_info"];
    assert_eq!(whole["text"], other);
    assert_eq!(
        json!([
            meta["id"],
            meta["finish_reason"],
            meta["prompt_tokens"],
            meta["completion_tokens"]
        ]),
        json!(["mine", { "type": "length", "length": 5 }, 3, 5])
    );
    let ids =
        server.good("/tokenize", &json!({ "content": "The sky is" })).json()["tokens"].clone();
    let by_ids = ask(json!({ "text": null, "input_ids": ids }), json!({}));
    assert_eq!(by_ids.json()["text"], other);
    // Each event of a stream has the whole text so far.
    let events = ask(json!({ "stream": true }), json!({})).events();
    let texts: Vec<&str> = events.iter().map(|e| e["text"].as_str().unwrap()).collect();
    assert!(texts.windows(2).all(|w| w[1].starts_with(w[0])), "{texts:?}");
    let last = events.last().unwrap();
    assert_eq!((&last["text"], &last["meta_info"]["finish_reason"]["length"]), (&other, &json!(5)));
    let formed = ask(json!({}), json!({ "regex": "[xyz]{3}" })).json();
    assert!(
        formed["text"].as_str().unwrap().bytes().all(|b| b"xyz".contains(&b))
            && formed["meta_info"]["finish_reason"]["type"] == "stop",
        "{formed}"
    );
    for (more, options, says) in [
        (json!({ "text": 5 }), json!({}), "'text'"),
        (json!({ "return_logprob": true }), json!({}), "'return_logprob'"),
        (json!({ "image_data": "x" }), json!({}), "'image_data'"),
        (json!({}), json!({ "n": 2 }), "'sampling_params.n'"),
        (json!({}), json!({ "regex": "a", "ebnf": "root ::= \"a\"" }), "'sampling_params.ebnf'"),
    ] {
        let answer = ask(more, options);
        assert!(answer.status == 400 && answer.body.contains(says), "{says}: {answer:?}");
    }
    let info = server.get("/tokenizer_info").json();
    assert_eq!(json!([info["eos_token"], info["vocab_size"]]), json!(["<|im_end|>", 49152]));
}

#[test]
fn llama_cpp_completion_equals_openai_completion() {
    let server = Served::start(&["--precise"]);
    let ask = |more: Value| {
        let mut body = json!({ "prompt": "The sky is", "n_predict": 5, "temperature": 0 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.good("/completion", &body)
    };
    let whole = ask(json!({})).json();
    let other = json!({ "prompt": "The sky is", "max_tokens": 5, "temperature": 0 });
    let other = server.good("/completions", &other).json();
    assert_eq!(whole["content"], other["choices"][0]["text"]);
    assert_eq!(
        (&whole["stop_type"], &whole["tokens_predicted"], &whole["tokens_evaluated"]),
        (&json!("limit"), &json!(5), &json!(3))
    );
    let streamed = ask(json!({ "stream": true })).body;
    let events: Vec<Value> = streamed
        .split("\n\n")
        .filter_map(|event| serde_json::from_str(event.strip_prefix("data: ")?).ok())
        .collect();
    let text: String = events.iter().filter_map(|e| e["content"].as_str()).collect();
    assert_eq!(json!(text), whole["content"]);
    assert_eq!(events.last().unwrap()["stop"], true);
    let word = text.split_whitespace().nth(1).unwrap();
    let stopped = ask(json!({ "stop": [word] })).json();
    assert_eq!((&stopped["stop_type"], &stopped["stopping_word"]), (&json!("word"), &json!(word)));
}

#[test]
fn router_and_monitoring_routes_work() {
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(keys.path(), "secret\n").unwrap();
    let server = Served::start(&["--api-key-file", keys.path().to_str().unwrap()]);
    for path in ["/health", "/v1/health", "/ping"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let get = |path: &str| server.ask("GET", path, &["Authorization: Bearer secret"], b"");
    let name = "SmolLM2-135M-Instruct.Q4_1";
    for (path, at, is) in [
        ("/props", "/model_alias", json!(name)),
        ("/props", "/default_generation_settings/n_ctx", json!(1024)),
        ("/slots", "/3/is_processing", json!(false)),
        ("/slots", "/0/n_ctx", json!(1024)),
        ("/get_model_info", "/is_generation", json!(true)),
        ("/get_server_info", "/served_model_name", json!(name)),
        ("/health_generate", "/status", json!("ok")),
        ("/models", "/data/0/id", json!(name)),
    ] {
        assert_eq!(server.get(path).status, 401, "{path}");
        let answer = get(path);
        assert_eq!((answer.status, answer.json().pointer(at)), (200, Some(&is)), "{path}");
    }
    let metrics = get("/metrics").body;
    for line in [
        "vllm:num_requests_running{model_name=\"SmolLM2-135M-Instruct.Q4_1\"} 0",
        "vllm:generation_tokens_total{model_name=\"SmolLM2-135M-Instruct.Q4_1\"} 1",
    ] {
        assert!(metrics.lines().any(|is| is == line), "{line}: {metrics}");
    }
    assert!(get("/version").json()["version"].is_string());
    let body = json!({ "model": name, "prompt": "Hi" }).to_string();
    let vector =
        server.ask("POST", "/api/embeddings", &["Authorization: Bearer secret"], body.as_bytes());
    assert_eq!(vector.json()["embedding"].as_array().unwrap().len(), 576, "{vector:?}");
}
