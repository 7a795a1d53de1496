//! Constrained answers over sockets, with SmolLM2 on the CPU: random schemas, forced calls, and
//! combinations with other options. This test checks answers against the schemas with its own code,
//! not with the library that enforces them.

use crate::support::served::Served;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A random number generator.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }

    /// A schema without unbounded parts.
    fn schema(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 6 } else { 9 }) {
            0 => json!({ "type": "boolean" }),
            1 => {
                let low = self.below(50) as i64 - 20;
                json!({ "type": "integer", "minimum": low, "maximum": low + self.below(300) as i64 })
            }
            2 => json!({ "type": "string", "maxLength": 1 + self.below(12) }),
            3 => {
                json!({ "enum": [self.of(&["red", "a \"quoted\" one", "gr\u{fc}n"]), self.below(9), null, false] })
            }
            4 => json!({ "const": self.of(&["yes", "no\nno", "{}"]) }),
            5 => {
                json!({ "type": "string", "pattern": self.of(&["^[a-c]{2,4}$", "^[0-9]{2}-[0-9]{2}$"]) })
            }
            6 => {
                json!({ "type": "array", "items": self.schema(depth - 1), "minItems": self.below(2), "maxItems": 2 + self.below(2) })
            }
            7 => json!({ "anyOf": [self.schema(depth - 1), { "type": "null" }] }),
            _ => self.object(depth - 1),
        }
    }

    fn object(&mut self, depth: usize) -> Value {
        let mut names =
            ["name", "size", "the key", "x", "tags", "\u{e4}"].map(String::from).to_vec();
        let (mut properties, mut required) = (serde_json::Map::new(), vec![]);
        for _ in 0..1 + self.below(3) {
            let name = names.swap_remove(self.below(names.len()));
            properties.insert(name.clone(), self.schema(depth));
            if self.below(3) > 0 {
                required.push(name);
            }
        }
        json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
    }
}

/// Whether a value matches a schema of [`Dice`].
fn keeps(value: &Value, schema: &Value) -> bool {
    if let Some(any) = schema["anyOf"].as_array() {
        return any.iter().any(|one| keeps(value, one));
    }
    if let Some(all) = schema["enum"].as_array() {
        return all.contains(value);
    }
    if let Some(one) = schema.get("const") {
        return value == one;
    }
    let text = |value: &Value| value.as_str().map(str::to_owned);
    match schema["type"].as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        // `-0` is an integer, and serde_json reads it as a float.
        "integer" => value
            .as_i64()
            .or_else(|| (value.as_f64()?.to_bits() << 1 == 0).then_some(0))
            .is_some_and(|n| {
                schema["minimum"].as_i64().unwrap() <= n && n <= schema["maximum"].as_i64().unwrap()
            }),
        "string" => text(value).is_some_and(|s| match schema["pattern"].as_str() {
            None => s.chars().count() as u64 <= schema["maxLength"].as_u64().unwrap(),
            Some("^[a-c]{2,4}$") => {
                (2..=4).contains(&s.len()) && s.chars().all(|c| ('a'..='c').contains(&c))
            }
            Some(_) => {
                let digits =
                    |part: &str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit());
                s.split_once('-').is_some_and(|(a, b)| digits(a) && digits(b))
            }
        }),
        "array" => value.as_array().is_some_and(|all| {
            let n = all.len() as u64;
            schema["minItems"].as_u64().unwrap() <= n
                && n <= schema["maxItems"].as_u64().unwrap()
                && all.iter().all(|one| keeps(one, &schema["items"]))
        }),
        _ => value.as_object().is_some_and(|map| {
            let properties = schema["properties"].as_object().unwrap();
            let needed = schema["required"].as_array().unwrap();
            needed.iter().all(|name| map.contains_key(name.as_str().unwrap()))
                && map.iter().all(|(name, value)| {
                    properties.get(name).is_some_and(|schema| keeps(value, schema))
                })
        }),
    }
}

#[test]
fn schema_validator_accepts_and_refuses_correctly() {
    let schema = json!({
        "type": "object", "required": ["a"], "additionalProperties": false,
        "properties": { "a": { "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 9 }, "minItems": 1, "maxItems": 2 } }
    });
    assert!(keeps(&json!({ "a": [3, 9] }), &schema));
    assert!(keeps(&serde_json::from_str("{\"a\": [-0]}").unwrap(), &schema));
    for wrong in [
        json!({}),
        json!({ "a": [] }),
        json!({ "a": [10] }),
        json!({ "a": [1], "b": 1 }),
        json!([1]),
        json!({ "a": [1.5] }),
    ] {
        assert!(!keeps(&wrong, &schema), "{wrong}");
    }
}

const PROMPTS: [&str; 4] = [
    "Describe a house as JSON.",
    "Say nothing but the word hello.",
    "Answer with a list of colours.",
    "Write a poem <tool_call> \"x",
];

/// 50 schemas, or `KJIT_TEST_COUNT`, from number `KJIT_TEST_FROM` on.
#[test]
fn answers_satisfy_random_schemas() {
    let number =
        |name: &str, other: usize| std::env::var(name).ok().map_or(other, |n| n.parse().unwrap());
    let (many, from) = (number("KJIT_TEST_COUNT", 50), number("KJIT_TEST_FROM", 0));
    let server = Served::start(&["--max-sequences", "4"]);
    let (next, whole) = (AtomicUsize::new(from), AtomicUsize::new(0));
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= from + many {
                        break;
                    }
                    let mut dice = Dice(i as u64);
                    dice.below(2);
                    // Any type may be at the top, not only an object.
                    let schema = if i.is_multiple_of(5) { dice.schema(2) } else { dice.object(2) };
                    whole.fetch_add(one(&server, i, &schema), Ordering::Relaxed);
                }
            });
        }
    });
    let whole = whole.into_inner();
    assert!(whole * 10 >= many * 7, "only {whole} of {many} came to their end");
}

/// One request in a random dialect. Returns the number of complete answers; all of them must be
/// valid.
fn one(server: &Served, i: usize, schema: &Value) -> usize {
    let messages = json!([{ "role": "user", "content": PROMPTS[i % 4] }]);
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "strict": i.is_multiple_of(2), "schema": schema } });
    let mut body = json!({ "messages": messages, "max_tokens": 120, "temperature": if i.is_multiple_of(3) { 0.0 } else { 1.2 }, "seed": i });
    let check = |text: &str, reason: &Value| -> usize {
        if reason == "length" {
            return 0;
        }
        assert_eq!(reason, "stop");
        let value: Value = serde_json::from_str(text)
            .unwrap_or_else(|e| panic!("{i}: {e}: {text:?} for {schema}"));
        assert!(keeps(&value, schema), "{i}: {text:?} for {schema}");
        1
    };
    if i % 4 == 3 {
        let options = json!({ "num_predict": 120, "seed": i });
        let body =
            json!({ "messages": messages, "format": schema, "stream": false, "options": options });
        let answer = server.good("/api/chat", &body).json();
        return check(answer["message"]["content"].as_str().unwrap(), &answer["done_reason"]);
    }
    body["response_format"] = format;
    if i % 4 == 1 {
        body["stream"] = true.into();
        let events = server.good("/v1/chat/completions", &body).events();
        let text: String =
            events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
        let reason = events
            .iter()
            .map(|e| &e["choices"][0]["finish_reason"])
            .find(|r| !r.is_null())
            .unwrap();
        return check(&text, reason);
    }
    let answer = server.good("/v1/chat/completions", &body).json();
    check(
        answer["choices"][0]["message"]["content"].as_str().unwrap(),
        &answer["choices"][0]["finish_reason"],
    )
}

fn tool(name: &str, properties: Value, strict: bool) -> Value {
    let required: Vec<&String> = properties.as_object().unwrap().keys().collect();
    let parameters = json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false });
    json!({ "type": "function", "function": { "name": name, "parameters": parameters, "strict": strict } })
}

#[test]
fn required_tools_are_called_with_schema_arguments() {
    let server = Served::start(&[]);
    let tools = json!([
        tool(
            "weather",
            json!({ "city": { "enum": ["Paris", "Ulm"] }, "far": { "type": "boolean" } }),
            false
        ),
        tool("count", json!({ "n": { "type": "integer", "minimum": 1, "maximum": 5 } }), true),
    ]);
    let chat = |more: Value| {
        let mut body = json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 150, "seed": 3 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let right = |call: &Value| {
        let arguments: Value =
            serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        match call["function"]["name"].as_str().unwrap() {
            "weather" => assert!(
                ["Paris", "Ulm"].contains(&arguments["city"].as_str().unwrap())
                    && arguments["far"].is_boolean()
            ),
            "count" => assert!((1..=5).contains(&arguments["n"].as_i64().unwrap())),
            other => panic!("{other}"),
        }
        assert!(call["id"].as_str().unwrap().starts_with("call-"), "{call}");
    };
    // A named tool; several answers with one call each.
    let named = json!({ "type": "function", "function": { "name": "weather" } });
    let answer = server
        .good(
            "/v1/chat/completions",
            &chat(json!({ "tools": tools, "tool_choice": named, "n": 3, "logprobs": true })),
        )
        .json();
    for choice in answer["choices"].as_array().unwrap() {
        assert_eq!(
            (&choice["finish_reason"], &choice["message"]["content"]),
            (&json!("tool_calls"), &Value::Null)
        );
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert!(calls.len() == 1 && calls[0]["function"]["name"] == "weather", "{choice}");
        right(&calls[0]);
        assert!(!choice["logprobs"]["content"].as_array().unwrap().is_empty());
    }
    // Any tool, in a stream; a single call if that is requested.
    for parallel in [true, false] {
        let body = chat(
            json!({ "tools": tools, "tool_choice": "required", "parallel_tool_calls": parallel, "stream": true }),
        );
        let events = server.good("/v1/chat/completions", &body).events();
        let calls: Vec<&Value> = events
            .iter()
            .filter_map(|e| e["choices"][0]["delta"]["tool_calls"].as_array())
            .flatten()
            .collect();
        assert!(!calls.is_empty() && (parallel || calls.len() == 1), "{events:?}");
        calls.into_iter().for_each(right);
    }
    // If strict tools are optional, the model may also write text.
    let answer = server
        .good(
            "/v1/chat/completions",
            &chat(json!({ "tools": tools, "max_tokens": 12, "temperature": 0 })),
        )
        .json();
    let message = &answer["choices"][0]["message"];
    assert!(message["content"].is_string() || message["tool_calls"].is_array(), "{answer}");
    // A stop string also cuts a constrained answer. JSON of any type is tested, too.
    let body = chat(
        json!({ "response_format": { "type": "json_object" }, "stop": ":", "temperature": 0, "logprobs": true }),
    );
    let answer = server.good("/v1/chat/completions", &body).json();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(
        text.starts_with('{')
            && !text.contains(':')
            && answer["choices"][0]["finish_reason"] == "stop",
        "{answer}"
    );
    let body = json!({ "prompt": "x", "raw": true, "format": { "enum": ["one", "two"] }, "stream": false });
    let said = server.good("/api/generate", &body).json()["response"].as_str().unwrap().to_owned();
    assert!(said == "\"one\"" || said == "\"two\"", "{said}");
}

#[test]
fn unsupported_schemas_are_refused_by_field_name() {
    let server = Served::start(&[]);
    let format = |schema: Value| json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": schema } } });
    let with = |parameters: Value| json!([{ "type": "function", "function": { "name": "f", "parameters": parameters, "strict": true } }]);
    let mut deep = json!({ "type": "integer" });
    for _ in 0..40 {
        deep = json!({ "type": "array", "items": deep });
    }
    let at = "'response_format.json_schema.schema'";
    for (more, says) in [
        (format(json!({ "type": "banana" })), at),
        (format(json!({ "$ref": "#/$defs/none" })), at),
        (format(json!({ "type": "string", "pattern": "(" })), at),
        (format(json!({ "type": "object", "dependentSchemas": {} , "unevaluatedItems": 3 })), at),
        (format(json!([1])), at),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": {} } }),
            "'response_format.json_schema.schema': is missing",
        ),
        (json!({ "response_format": { "type": "xml" } }), "'response_format.type'"),
        (
            json!({ "tools": with(json!({ "type": "array" })) }),
            "'tools[0].function.parameters': give the schema of an object",
        ),
        (
            json!({ "tools": with(json!({ "type": "object", "properties": { "x": { "type": "banana" } } })) }),
            "'tools[0].function.parameters'",
        ),
        (
            json!({ "tools": with(json!({})), "tool_choice": { "type": "function", "function": { "name": "g" } } }),
            "'tool_choice': no such tool",
        ),
        (json!({ "tool_choice": "required" }), "'tool_choice': there are no tools"),
    ] {
        let mut body =
            json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 4 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.post("/v1/chat/completions", &body);
        let message = answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(
            answer.status == 400 && message.contains(says) && !message.contains('\n'),
            "{body}: {answer:?}"
        );
    }
    let bad = json!({ "messages": [{ "role": "user", "content": "Hi" }], "format": { "type": "banana" } });
    let answer = server.post("/api/chat", &bad);
    assert!(
        answer.status == 400 && answer.json()["error"].as_str().unwrap().starts_with("'format'"),
        "{answer:?}"
    );
    // Extremely deep nesting gives an answer or a refusal, and the server continues.
    let mut body = json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 4 });
    body.as_object_mut().unwrap().extend(format(deep).as_object().unwrap().clone());
    assert!([200, 400, 503].contains(&server.post("/v1/chat/completions", &body).status));
    assert_eq!(server.get("/health").status, 200);
}

/// `structured_outputs` and its older names, in chats and completions.
#[test]
fn answers_satisfy_expressions_grammars_and_choices() {
    let server = Served::start(&[]);
    let said = |path: &str, more: Value| {
        let mut body = match path {
            "/v1/completions" => json!({ "prompt": "The answer is", "max_tokens": 40 }),
            _ => {
                json!({ "messages": [{ "role": "user", "content": "Say anything." }], "max_tokens": 40 })
            }
        };
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.good(path, &body).json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "{answer}");
        choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap().to_owned()
    };
    let date = |text: &str| {
        let parts: Vec<&str> = text.split('-').collect();
        let digits =
            |part: &str, n: usize| part.len() == n && part.bytes().all(|b| b.is_ascii_digit());
        matches!(parts[..], [year, month, day] if digits(year, 4) && digits(month, 2) && digits(day, 2))
    };
    let choices = ["rouge", "a \"quoted\" one", "gr\u{fc}n\nund so"];
    let lark = "start: sum\nsum: NUMBER \"+\" NUMBER (\"+\" NUMBER)? \";\"\nNUMBER: /[0-9]{1,3}/\n";
    let sum = |text: &str| {
        let number =
            |part: &str| (1..=3).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        text.strip_suffix(';').is_some_and(|sum| sum.contains('+') && sum.split('+').all(number))
    };
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer", "minimum": 0, "maximum": 9 } }, "required": ["n"], "additionalProperties": false });
    let fits = |text: &str| keeps(&serde_json::from_str(text).unwrap(), &schema);
    for path in ["/v1/chat/completions", "/v1/completions"] {
        for name in ["structured_outputs", "guided"] {
            let asked = |way: &str, what: Value| match name {
                "guided" => said(path, json!({ format!("guided_{way}"): what })),
                _ => said(path, json!({ "structured_outputs": { way: what } })),
            };
            let text = asked("regex", json!("[0-9]{4}-[0-9]{2}-[0-9]{2}"));
            assert!(date(&text), "{path} {name}: {text}");
            let text = asked("choice", json!(choices));
            assert!(choices.contains(&text.as_str()), "{path} {name}: {text}");
            let text = asked("grammar", json!(lark));
            assert!(sum(&text), "{path} {name}: {text}");
            let text = asked("json", schema.clone());
            assert!(fits(&text), "{path} {name}: {text}");
        }
        let format =
            json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema } });
        assert!(fits(&said(path, json!({ "response_format": format }))), "{path}");
        assert!(
            fits(&said(path, json!({ "structured_outputs": { "json": schema.to_string() } }))),
            "{path}"
        );
        for (more, says) in [
            (
                json!({ "structured_outputs": { "regex": "(" } }),
                "'structured_outputs.regex': the regular expression",
            ),
            (json!({ "structured_outputs": { "regex": "" } }), "'structured_outputs.regex'"),
            (
                json!({ "structured_outputs": { "grammar": "start: nothing" } }),
                "'structured_outputs.grammar': the grammar",
            ),
            (
                json!({ "structured_outputs": { "grammar": "root ::= nothing" } }),
                "'structured_outputs.grammar'",
            ),
            (
                json!({ "structured_outputs": { "choice": [] } }),
                "'structured_outputs.choice': give a list",
            ),
            (
                json!({ "structured_outputs": { "choice": ["a", 1] } }),
                "'structured_outputs.choice': give a list",
            ),
            (
                json!({ "structured_outputs": { "json": 3 } }),
                "'structured_outputs.json': give a JSON schema",
            ),
            (
                json!({ "structured_outputs": { "json": { "type": "banana" } } }),
                "'structured_outputs.json': the JSON schema",
            ),
            (
                json!({ "structured_outputs": { "structural_tag": {} } }),
                "'structured_outputs': give json",
            ),
            (json!({ "structured_outputs": {} }), "'structured_outputs': give json"),
            (json!({ "guided_regex": 3 }), "'guided_regex': give a string"),
            (
                json!({ "structured_outputs": { "regex": "a", "choice": ["b"] } }),
                "'structured_outputs.choice': cannot be given together",
            ),
            (
                json!({ "guided_regex": "a", "response_format": { "type": "json_object" } }),
                "'guided_regex': cannot be given together",
            ),
        ] {
            let mut body = json!({ "prompt": "x", "max_tokens": 4 });
            if path.contains("chat") {
                body = json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": 4 });
            }
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let answer = server.post(path, &body);
            let message = answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
            assert!(
                answer.status == 400 && message.contains(says) && !message.contains('\n'),
                "{body}: {answer:?}"
            );
        }
    }
}

/// Inputs from public reports about other servers, and the behaviour that their users expect.
/// `tests/data/field` has the schemas.
#[test]
fn inputs_of_public_bug_reports_are_handled() {
    let server = Served::start(&[]);
    let chat = |more: Value| {
        let mut body =
            json!({ "messages": [{ "role": "user", "content": "Run it." }], "temperature": 0 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    // Parts of characters: each token has its own key, the key of the chosen token has its value
    // (`bytes:` in openai-python), and no offset is after the end of the text.
    let body =
        json!({ "prompt": "😀😁😂🤣😃😄😅😀😁", "max_tokens": 3, "temperature": 0, "logprobs": 5 });
    let choice = server.good("/v1/completions", &body).json()["choices"][0].clone();
    let length = choice["text"].as_str().unwrap().chars().count() as u64;
    let scores = &choice["logprobs"];
    for (i, token) in scores["tokens"].as_array().unwrap().iter().enumerate() {
        let top = scores["top_logprobs"][i].as_object().unwrap();
        assert!(top.len() >= 5, "{choice}");
        assert_eq!(
            top.get(token.as_str().unwrap()),
            Some(&scores["token_logprobs"][i]),
            "{choice}"
        );
        assert!(scores["text_offset"][i].as_u64().unwrap() <= length, "{choice}");
    }
    // A tool without parameters gets no arguments.
    let ping = json!([{ "type": "function", "function": { "name": "ping" } }]);
    let body = chat(json!({ "max_tokens": 120, "tools": ping, "tool_choice": "required" }));
    let answer = server.good("/v1/chat/completions", &body).json();
    let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!((&call["name"], &call["arguments"]), (&json!("ping"), &json!("{}")), "{answer}");
    // A call that is cut contains no call markers. Tested streamed and not streamed, cut by its
    // length and by a stop string.
    let digits = "0123456789 ".repeat(6);
    let run = json!([tool("run", json!({ "cmd": { "const": digits } }), false)]);
    for cut in [json!({ "max_tokens": 40 }), json!({ "max_tokens": 200, "stop": "789 0" })] {
        let mut body = chat(json!({ "tools": run, "tool_choice": "required" }));
        body.as_object_mut().unwrap().extend(cut.as_object().unwrap().clone());
        let answer = server.good("/v1/chat/completions", &body).json();
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["content"].as_str().unwrap_or_default(), "", "{answer}");
        if let Some(call) = message["tool_calls"].get(0) {
            let arguments = call["function"]["arguments"].as_str().unwrap();
            assert!("{\"cmd\": \"".starts_with(arguments) || arguments.contains("cmd"), "{answer}");
        }
        body["stream"] = true.into();
        let events = server.good("/v1/chat/completions", &body).events();
        let said: String =
            events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(said, "");
    }
    // Schemas of pydantic and zod, in each field that accepts a schema.
    let schemas: Value =
        serde_json::from_str(include_str!("../../../tests/data/field/schemas.json")).unwrap();
    for (name, schema) in schemas.as_object().unwrap().iter().filter(|(name, _)| *name != "about") {
        let format =
            json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
        server.good(
            "/v1/chat/completions",
            &chat(json!({ "max_tokens": 2, "response_format": format })),
        );
        let tools =
            json!([{ "type": "function", "function": { "name": "f", "parameters": schema } }]);
        let body = chat(json!({ "max_tokens": 2, "tools": tools, "tool_choice": "required" }));
        server.good("/v1/chat/completions", &body);
        let body = json!({ "prompt": name, "raw": true, "format": schema, "stream": false, "options": { "num_predict": 2 } });
        server.good("/api/generate", &body);
    }
    // 500 optional integers.
    let many: serde_json::Map<String, Value> =
        (0..500).map(|i| (format!("p{i}"), json!({ "type": "integer" }))).collect();
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": { "type": "object", "properties": many } } });
    server
        .good("/v1/chat/completions", &chat(json!({ "max_tokens": 2, "response_format": format })));
    // One seed: with an empty cache, then twice with a cached prefix.
    let body = json!({
        "messages": [{ "role": "user", "content": "Name three fruits and say why you like them. \
                                                   Please." }],
        "max_tokens": 24, "seed": 5
    });
    let said: Vec<Value> = (0..3)
        .map(|_| {
            server.good("/v1/chat/completions", &body).json()["choices"][0]["message"]["content"]
                .clone()
        })
        .collect();
    assert!(said[0] == said[1] && said[1] == said[2], "{said:?}");
}

/// The pieces of a stream together have the tokens, values and offsets of the whole answer, also if
/// a stop text cuts off tokens whose text was held back.
#[test]
fn the_scores_of_a_stream_are_those_of_the_whole_answer() {
    let server = Served::start(&[]);
    let ask = |prompt: &str, stop: &str, echo: bool| {
        let body = json!({ "prompt": prompt, "max_tokens": 24, "temperature": 0, "logprobs": 1, "stop": stop, "echo": echo });
        let whole = server.good("/v1/completions", &body).json()["choices"][0].clone();
        let mut body = body;
        body["stream"] = true.into();
        let events = server.good("/v1/completions", &body).events();
        let (mut text, mut scores) = (String::new(), json!({}));
        for choice in events.iter().map(|e| &e["choices"][0]) {
            text += choice["text"].as_str().unwrap();
            for offset in choice["logprobs"]["text_offset"].as_array().into_iter().flatten() {
                assert!(offset.as_u64().unwrap() <= text.chars().count() as u64, "{choice}");
            }
            for (name, part) in choice["logprobs"].as_object().into_iter().flatten() {
                let all = scores.as_object_mut().unwrap().entry(name).or_insert(json!([]));
                all.as_array_mut().unwrap().extend(part.as_array().unwrap().clone());
            }
        }
        assert_eq!(text, whole["text"].as_str().unwrap());
        for name in ["tokens", "text_offset"] {
            assert_eq!(scores[name], whole["logprobs"][name], "{whole}");
        }
        // The second answer continues from a cached prompt: values differ in their last bits.
        let values = |of: &Value| of["token_logprobs"].as_array().unwrap().clone();
        let (some, all) = (values(&scores), values(&whole["logprobs"]));
        assert_eq!(some.len(), all.len());
        for (a, b) in some.iter().zip(&all).filter(|(a, b)| **a != **b) {
            assert!((a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-2, "{a} {b}");
        }
        whole
    };
    let counted = "one, two, three, four, five, six, seven, eight, nine, ten, one, two, three,";
    for (prompt, stop) in [(counted, ", seven, eight, n"), ("😀😁😂🤣😃😄😅😀😁", "x")]
    {
        for echo in [false, true] {
            let whole = ask(prompt, stop, echo);
            // Tokens of the stop text are past the end.
            let end = whole["text"].as_str().unwrap().chars().count() as u64;
            let offsets = whole["logprobs"]["text_offset"].as_array().unwrap();
            let past = offsets.iter().filter(|at| at.as_u64() == Some(end)).count();
            assert!(prompt != counted || past > 3, "{whole}");
        }
    }
}

/// Creating a constraint cannot be cancelled. Limits bound its time, and other requests are
/// answered in the meantime.
#[test]
fn slow_grammars_do_not_delay_other_clients() {
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(keys.path(), "hostile\nneighbour\n").unwrap();
    let server = Served::start(&["--api-key-file", keys.path().to_str().unwrap()]);
    let post = |key: &str, body: &Value| {
        let key = format!("Authorization: Bearer {key}");
        server.ask("POST", "/v1/completions", &[&key], body.to_string().as_bytes()).status
    };
    let neighbour = || {
        let start = Instant::now();
        assert_eq!(post("neighbour", &json!({ "prompt": "Hi", "max_tokens": 1 })), 200);
        start.elapsed()
    };
    let alone = (0..3).map(|_| neighbour()).max().unwrap();
    let rule = |i: usize| format!("r{i}: r{} | \"a\" r{} \"b\"\n", i + 1, i + 1);
    let chain: String = (0..1800).map(rule).collect();
    let words = vec!["/[a-z]{1,60}/"; 1500].join(" | ");
    let optional = "A? ".repeat(4000);
    for (form, statuses) in [
        (
            json!({ "structured_outputs": { "grammar": format!("start: {optional}\nA: /[ab]/") } }),
            [200, 400, 503],
        ),
        (
            json!({ "structured_outputs": { "grammar": format!("start: r0\n{chain}r1800: \"x\"") } }),
            [200, 400, 503],
        ),
        (
            json!({ "structured_outputs": { "grammar": format!("start: ({words}){{1,2000}}") } }),
            [200, 400, 503],
        ),
        (json!({ "structured_outputs": { "regex": "(a|b)*a(a|b){5000}" } }), [200, 400, 503]),
        (
            json!({ "grammar": format!("root ::= {}", "(\"a\"? [ab]){0,2000} ".repeat(800)) }),
            [200, 400, 503],
        ),
    ] {
        let mut body = form.clone();
        (body["prompt"], body["max_tokens"]) = (json!("x"), json!(4));
        let name: String = form.to_string().chars().take(60).collect();
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| (post("hostile", &body), begun.elapsed()));
            let mut slowest = Duration::ZERO;
            while !asked.is_finished() {
                std::thread::sleep(Duration::from_millis(50));
                slowest = slowest.max(neighbour());
            }
            let (status, took) = asked.join().unwrap();
            eprintln!("{name}: {status} after {took:?}, the neighbour {slowest:?}");
            assert!(statuses.contains(&status) && took < Duration::from_secs(60), "{name}");
            // The processor's time is shared with the thread that makes the constraint.
            assert!(slowest < Duration::from_secs(2) + 5 * alone, "{name}: {slowest:?}");
        });
    }
}
