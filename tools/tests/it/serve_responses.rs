//! `kjit serve` and OpenAI's `/v1/responses`, with SmolLM2 on the CPU.

use crate::support::served::{Answer, Served, request};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};

fn ask(input: Value, more: Value) -> Value {
    let mut body = json!({ "input": input, "max_output_tokens": 12, "temperature": 0 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The events of a stream. Each event's name is the type of its document, and events are numbered.
fn events(answer: &Answer) -> Vec<Value> {
    let one = |(i, event): (usize, &str)| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event}");
        assert_eq!(data["sequence_number"], i, "{event}");
        data
    };
    answer.body.split("\n\n").filter(|event| !event.is_empty()).enumerate().map(one).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    kinds.dedup();
    kinds.iter().map(|kind| kind.strip_prefix("response.").unwrap()).collect()
}

fn text(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{response}"))
}

#[test]
fn response_is_equal_complete_streamed_and_stored() {
    let server = Served::start(&["--precise"]);
    let whole = server.good("/v1/responses", &ask(json!("Name a colour."), json!({}))).json();
    assert_eq!(
        (&whole["object"], &whole["status"], &whole["incomplete_details"]["reason"]),
        (&json!("response"), &json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(whole["usage"]["output_tokens"], 12);
    let chat = json!({
        "messages": [{ "role": "user", "content": "Name a colour." }], "temperature": 0, "max_tokens": 12
    });
    let chat = server.good("/v1/chat/completions", &chat).json();
    assert_eq!(chat["choices"][0]["message"]["content"], text(&whole));
    assert_eq!(whole["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);

    let items = json!([{ "role": "user", "content": [{ "type": "input_text", "text": "Name a colour." }] }]);
    let streamed = server.good("/v1/responses", &ask(items, json!({ "stream": true })));
    let events = events(&streamed);
    assert_eq!(
        kinds(&events),
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "incomplete"
        ]
    );
    let deltas: String = events.iter().filter_map(|e| e["delta"].as_str()).collect();
    let last = &events.last().unwrap()["response"];
    assert_eq!((deltas.as_str(), text(last)), (text(&whole), text(&whole)));
    assert_eq!(events[0]["response"]["status"], "in_progress");

    // The response is stored, and the next request continues from it: the prompt is the whole
    // conversation.
    let id = whole["id"].as_str().unwrap();
    assert_eq!(server.get(&format!("/v1/responses/{id}")).json(), whole);
    let listed = server.get(&format!("/v1/responses/{id}/input_items")).json();
    assert_eq!(listed["data"][0]["content"], "Name a colour.", "{listed}");
    let next = ask(
        json!("Another one."),
        json!({ "previous_response_id": id, "instructions": "Be short." }),
    );
    let next = server.good("/v1/responses", &next).json();
    assert_eq!(next["previous_response_id"], id);
    let same = json!({ "temperature": 0, "max_tokens": 12, "messages": [
        { "role": "system", "content": "Be short." },
        { "role": "user", "content": "Name a colour." },
        { "role": "assistant", "content": text(&whole) },
        { "role": "user", "content": "Another one." }
    ] });
    let same = server.good("/v1/chat/completions", &same).json();
    assert_eq!(next["usage"]["input_tokens"], same["usage"]["prompt_tokens"]);
    assert_eq!(text(&next), same["choices"][0]["message"]["content"].as_str().unwrap());

    // A reference replaces an item.
    let item = json!([{ "type": "item_reference", "id": whole["output"][0]["id"] }, { "role": "user", "content": "x" }]);
    assert_eq!(server.post("/v1/responses", &ask(item, json!({}))).status, 200);
    // Responses that were not stored, or were deleted, are not found.
    let unkept = server.good("/v1/responses", &ask(json!("Hi"), json!({ "store": false }))).json();
    let unkept = unkept["id"].as_str().unwrap();
    assert_eq!(server.get(&format!("/v1/responses/{unkept}")).status, 404);
    let delete = || server.ask("DELETE", &format!("/v1/responses/{id}"), &[], b"");
    assert_eq!(delete().json()["deleted"], true);
    assert_eq!((delete().status, server.get(&format!("/v1/responses/{id}")).status), (404, 404));
    let gone = ask(json!("Hi"), json!({ "previous_response_id": id }));
    let gone = server.post("/v1/responses", &gone);
    assert!(gone.status == 400 && gone.body.contains("'previous_response_id'"), "{gone:?}");
}

#[test]
fn response_follows_schema_and_calls_functions() {
    let server = Served::start(&[]);
    let schema = json!({
        "type": "object", "required": ["colour"], "additionalProperties": false,
        "properties": { "colour": { "enum": ["red", "green"] } }
    });
    let format = json!({ "format": { "type": "json_schema", "name": "x", "strict": true, "schema": schema } });
    let formed = ask(json!("A colour."), json!({ "text": format, "max_output_tokens": 60 }));
    let formed = server.good("/v1/responses", &formed).json();
    assert_eq!((&formed["status"], &formed["text"]), (&json!("completed"), &format));
    let said: Value = serde_json::from_str(text(&formed)).unwrap();
    assert!(["red", "green"].contains(&said["colour"].as_str().unwrap()), "{said}");

    let tools = json!({
        "tools": [{ "type": "function", "name": "paint", "parameters": schema, "strict": true }],
        "tool_choice": "required", "parallel_tool_calls": false, "max_output_tokens": 60
    });
    let called = server.good("/v1/responses", &ask(json!("Paint it."), tools.clone())).json();
    let call = &called["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("paint")));
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["colour"].is_string(), "{call}");
    // As Codex sends them: tools in groups, and a search that may not leave the service.
    let mut grouped = tools.clone();
    grouped["tools"] = json!([
        { "type": "namespace", "name": "art", "description": "Art.", "tools": tools["tools"] },
        { "type": "web_search", "external_web_access": false }
    ]);
    let of_group = server.good("/v1/responses", &ask(json!("Paint it."), grouped)).json();
    let of_group = &of_group["output"][0];
    assert_eq!(json!([of_group["name"], of_group["namespace"]]), json!(["paint", "art"]));
    assert!(call["namespace"].is_null(), "{call}");
    let mut stream = ask(json!("Paint it."), tools.clone());
    stream["stream"] = true.into();
    let events = events(&server.good("/v1/responses", &stream));
    assert_eq!(
        kinds(&events),
        [
            "created",
            "in_progress",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed"
        ]
    );
    // The result of the call continues the conversation.
    let result =
        json!([{ "type": "function_call_output", "call_id": call["call_id"], "output": "done" }]);
    let result = ask(result, json!({ "previous_response_id": called["id"] }));
    assert_eq!(server.good("/v1/responses", &result).json()["output"][0]["type"], "message");
    // Unsupported fields and values are refused by name.
    for (more, says) in [
        (json!({ "background": true }), "'background'"),
        (
            json!({ "tools": [{ "type": "web_search" }] }),
            "'tools[0].type': 'web_search' is a hosted tool",
        ),
        (json!({ "conversation": "x" }), "'conversation'"),
        (json!({ "truncation": "auto" }), "'truncation'"),
        (json!({ "input": [] }), "'input'"),
        (json!({ "input": [{ "type": "computer_call" }] }), "'input[0].type': 'computer_call'"),
    ] {
        let answer = server.post("/v1/responses", &ask(json!("Hi"), more));
        let message = answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(answer.status == 400 && message.contains(says), "{says}: {answer:?}");
    }
}

#[test]
fn response_is_visible_and_cancellable_only_by_its_key() {
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(keys.path(), "alpha\nbeta\n").unwrap();
    let server = Served::start(&["--api-key-file", keys.path().to_str().unwrap()]);
    let (alpha, beta) = (["Authorization: Bearer alpha"], ["Authorization: Bearer beta"]);
    let post = |headers: &[&str], body: &Value| {
        server.ask("POST", "/v1/responses", headers, body.to_string().as_bytes())
    };
    let made = post(&alpha, &ask(json!("Hi"), json!({ "max_output_tokens": 1 }))).json();
    let id = made["id"].as_str().unwrap();
    let path = format!("/v1/responses/{id}");
    assert_eq!(server.ask("GET", &path, &beta, b"").status, 404);
    assert_eq!(server.ask("DELETE", &path, &beta, b"").status, 404);
    assert_eq!(post(&beta, &ask(json!("x"), json!({ "previous_response_id": id }))).status, 400);
    assert_eq!(server.ask("GET", &path, &alpha, b"").status, 200);

    // A running response can only be cancelled with its key.
    let long = json!({ "max_output_tokens": 900, "stream": true, "logit_bias": { "2": -100 } });
    let body = ask(json!("Tell me a long story."), long).to_string();
    let mut stream = server.connect();
    let head = request("POST", "/v1/responses", &alpha, body.as_bytes());
    stream.write_all((head + &body).as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let created = lines.find(|line| line.contains("\"response.created\"")).unwrap();
    let created: Value = serde_json::from_str(created.strip_prefix("data: ").unwrap()).unwrap();
    let id = created["response"]["id"].as_str().unwrap();
    let cancel = format!("/v1/responses/{id}/cancel");
    assert_eq!(server.ask("POST", &cancel, &beta, b"").status, 404);
    assert_eq!(server.ask("POST", &cancel, &alpha, b"").json()["status"], "cancelled");
    let last = lines.find(|line| line.contains("\"response.incomplete\"")).unwrap();
    let last: Value = serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(last["response"]["status"], "cancelled");
    let kept = server.ask("GET", &format!("/v1/responses/{id}"), &alpha, b"").json();
    assert_eq!(kept["status"], "cancelled");
}
