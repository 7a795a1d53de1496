//! `kjit serve` in Anthropic's dialect, with SmolLM2 on the CPU.

use crate::support::served::{Answer, Served};
use serde_json::{Value, json};

fn message(question: &str, more: Value) -> Value {
    let mut body = json!({
        "model": "SmolLM2-135M-Instruct.Q4_1", "max_tokens": 12, "temperature": 0,
        "messages": [{ "role": "user", "content": question }]
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The events of a stream. Each event's name is the type of its document.
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let one = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event}");
        data
    };
    answer.body.split("\n\n").filter(|event| !event.is_empty()).map(one).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    kinds.dedup();
    kinds
}

#[test]
fn anthropic_answers_and_streams_are_equal() {
    let server = Served::start(&["--precise"]);
    let whole = server.good("/v1/messages", &message("Name a colour.", json!({}))).json();
    let said = whole["content"][0]["text"].as_str().unwrap();
    assert!(!said.is_empty() && whole["content"][0]["type"] == "text", "{whole}");
    assert_eq!(
        (&whole["type"], &whole["role"], &whole["stop_reason"], &whole["stop_sequence"]),
        (&json!("message"), &json!("assistant"), &json!("max_tokens"), &Value::Null)
    );
    assert_eq!(whole["usage"]["output_tokens"], 12);
    // The chat route has the same prompt and answer.
    let chat = json!({
        "messages": [{ "role": "user", "content": "Name a colour." }], "temperature": 0, "max_tokens": 12
    });
    let chat = server.good("/v1/chat/completions", &chat).json();
    assert_eq!(chat["choices"][0]["message"]["content"], said);

    let streamed =
        server.good("/v1/messages", &message("Name a colour.", json!({ "stream": true })));
    let events = events(&streamed);
    assert_eq!(
        kinds(&events),
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    let text: String = events.iter().filter_map(|e| e["delta"]["text"].as_str()).collect();
    assert_eq!(text, said);
    let delta = &events[events.len() - 2];
    assert_eq!(
        (&delta["delta"]["stop_reason"], &delta["usage"]["output_tokens"]),
        (&json!("max_tokens"), &json!(12))
    );
    // Cached tokens are counted separately; the sum is the number of prompt tokens.
    let prompt = chat["usage"]["prompt_tokens"].as_u64().unwrap();
    for usage in [&whole["usage"], &events[0]["message"]["usage"], &delta["usage"]] {
        let of = |name: &str| usage[name].as_u64().unwrap();
        assert_eq!(of("input_tokens") + of("cache_read_input_tokens"), prompt, "{usage}");
        assert_eq!(of("cache_creation_input_tokens"), 0);
    }
    assert!(delta["usage"]["cache_read_input_tokens"].as_u64().unwrap() > 0, "{delta}");
    let counted = server.good("/v1/messages/count_tokens", &json!({
        "model": "SmolLM2-135M-Instruct.Q4_1", "messages": [{ "role": "user", "content": "Name a colour." }]
    }));
    assert_eq!(counted.json(), json!({ "input_tokens": prompt }));

    // The stop string is reported, and is not part of the answer.
    let word = said.split_whitespace().nth(2).unwrap();
    let stop = json!({ "stop_sequences": ["qqqq", word] });
    let stopped = server.good("/v1/messages", &message("Name a colour.", stop)).json();
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"], &stopped["content"][0]["text"]),
        (&json!("stop_sequence"), &json!(word), &json!(said[..said.find(word).unwrap()]))
    );
}

#[test]
fn anthropic_tools_are_called_and_results_are_read() {
    let server = Served::start(&[]);
    let schema = json!({
        "type": "object", "required": ["city"], "additionalProperties": false,
        "properties": { "city": { "enum": ["Paris", "Rome"] } }
    });
    let cache = json!({ "type": "ephemeral" });
    let tools = json!({
        "max_tokens": 80,
        "system": [{ "type": "text", "text": "You look things up.", "cache_control": cache }],
        "tools": [{ "name": "weather", "description": "The weather of a city.", "input_schema": schema, "cache_control": cache }],
        "tool_choice": { "type": "any", "disable_parallel_tool_use": true }
    });
    let ask = message("How is the weather in Paris?", tools);
    let called = server.good("/v1/messages", &ask).json();
    assert_eq!(called["stop_reason"], "tool_use", "{called}");
    let call = &called["content"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("tool_use"), &json!("weather")));
    let city = call["input"]["city"].as_str().unwrap();
    assert!(["Paris", "Rome"].contains(&city), "{call}");

    let mut streamed = ask.clone();
    streamed["stream"] = true.into();
    let events = events(&server.good("/v1/messages", &streamed));
    let begun = events.iter().find(|e| e["type"] == "content_block_start").unwrap();
    assert_eq!(
        (&begun["content_block"]["name"], &begun["content_block"]["input"]),
        (&json!("weather"), &json!({}))
    );
    let input: String = events.iter().filter_map(|e| e["delta"]["partial_json"].as_str()).collect();
    assert!(serde_json::from_str::<Value>(&input).unwrap()["city"].is_string(), "{input}");
    assert_eq!(events[events.len() - 2]["delta"]["stop_reason"], "tool_use");

    // The conversation continues with the call and its result. A longer history has more tokens.
    let mut history = ask;
    history["tool_choice"] = json!({ "type": "none" });
    let short = tokens(&server, &history);
    let messages = history["messages"].as_array_mut().unwrap();
    messages.push(json!({ "role": "assistant", "content": called["content"] }));
    messages.push(json!({ "role": "user", "content": [
        { "type": "tool_result", "tool_use_id": call["id"], "content": [{ "type": "text", "text": "It rains cats and dogs." }] },
        { "type": "text", "text": "What should I wear?" }
    ] }));
    assert!(tokens(&server, &history) > short + 20);
    assert_eq!(server.good("/v1/messages", &history).json()["role"], "assistant");
}

fn tokens(server: &Served, body: &Value) -> u64 {
    let mut body = body.clone();
    body.as_object_mut().unwrap().retain(|key, _| {
        ["model", "messages", "system", "tools", "tool_choice"].contains(&key.as_str())
    });
    let counted = server.good("/v1/messages/count_tokens", &body).json();
    counted["input_tokens"].as_u64().unwrap()
}

#[test]
fn anthropic_errors_and_both_key_headers_work() {
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(keys.path(), "secret\n").unwrap();
    let server = Served::start(&["--api-key-file", keys.path().to_str().unwrap()]);
    let ask = |headers: &[&str], body: &Value| {
        server.ask("POST", "/v1/messages", headers, body.to_string().as_bytes())
    };
    let good = message("Hi", json!({ "max_tokens": 1 }));
    for header in ["x-api-key: secret", "Authorization: Bearer secret"] {
        assert_eq!(ask(&[header], &good).status, 200, "{header}");
    }
    let key = ["x-api-key: secret"];
    for (headers, more, status, kind, says) in [
        (&["x-api-key: other"][..], json!({}), 401, "authentication_error", "x-api-key"),
        (&key, json!({ "model": "claude" }), 404, "not_found_error", "'claude' is not served"),
        (&key, json!({ "max_tokens": null }), 400, "invalid_request_error", "'max_tokens'"),
        (&key, json!({ "mcp_servers": [{}] }), 400, "invalid_request_error", "'mcp_servers'"),
        (
            &key,
            json!({ "tools": [{ "type": "bash_20250124", "name": "bash" }] }),
            400,
            "invalid_request_error",
            "'tools[0].type': 'bash_20250124' is a hosted tool",
        ),
        (
            &key,
            json!({ "tools": [{ "name": "x", "input_schema": { "type": "string" } }], "tool_choice": { "type": "any" } }),
            400,
            "invalid_request_error",
            "'tools[0].input_schema'",
        ),
        (
            &key,
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image" }] }] }),
            400,
            "invalid_request_error",
            "messages[0].content[0].source",
        ),
    ] {
        let answer = ask(headers, &message("Hi", more));
        let error = answer.json();
        assert_eq!((answer.status, &error["type"]), (status, &json!("error")), "{answer:?}");
        assert_eq!(error["error"]["type"], kind, "{answer:?}");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(says), "{says}: {message}");
    }
}
