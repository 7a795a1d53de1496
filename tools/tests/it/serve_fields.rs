//! Fields of other servers: neutral values, unknown fields, log probabilities of prompts.

use crate::support::served::Served;
use serde_json::{Value, json};

fn ask(path: &str, more: Value) -> Value {
    let prompt = match path {
        "/v1/completions" => json!({ "prompt": "The capital of France is", "max_tokens": 1 }),
        "/api/generate" => {
            json!({ "prompt": "Hi", "stream": false, "options": { "num_predict": 1 } })
        }
        _ => json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 1 }),
    };
    let mut body = prompt;
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn neutral_fields_are_accepted_and_unknown_ones_named() {
    let (lenient, strict) = (Served::start(&[]), Served::start(&["--strict-fields"]));
    let chat = "/v1/chat/completions";
    let message = |message: Value| json!({ "messages": [message] });
    let cached =
        json!([{ "type": "text", "text": "Hi", "cache_control": { "type": "ephemeral" } }]);
    for (path, more) in [
        (chat, json!({ "top_k": -1 })),
        (chat, json!({ "cache_prompt": true })),
        (chat, json!({ "typical_p": 1 })),
        (chat, json!({ "mirostat": 0 })),
        (chat, json!({ "skip_special_tokens": true })),
        (chat, message(json!({ "role": "user", "content": cached }))),
        ("/v1/completions", json!({ "suffix": "" })),
        ("/api/generate", json!({ "context": [] })),
        ("/api/generate", json!({ "suffix": "" })),
        (
            "/api/generate",
            json!({ "options": { "mirostat": 0, "typical_p": 1.0, "tfs_z": 1.0, "num_predict": 1 } }),
        ),
    ] {
        let answer = strict.good(path, &ask(path, more));
        assert_eq!(answer.header("warning"), None, "{answer:?}");
    }
    // -1 means no limit; a stop string ends the answer.
    let endless = json!({ "max_tokens": -1, "stop": ["a", "e", "i", "o", "u", "."] });
    strict.good(chat, &ask(chat, endless));

    let odd = message(json!({ "role": "user", "content": "Hi", "timestamp": 5 }));
    let refused = strict.post(chat, &ask(chat, odd.clone()));
    assert!(refused.status == 400 && refused.body.contains("'messages[0].timestamp'"));
    let answer = lenient.good(chat, &ask(chat, odd));
    let warning = answer.header("warning").unwrap();
    assert!(
        warning.starts_with("299 ") && warning.contains("'messages[0].timestamp'"),
        "{warning}"
    );
    let both = json!({ "frobnicate": 1, "x\ny": 2, "stream": true });
    let answer = lenient.good(chat, &ask(chat, both));
    let warning = answer.header("warning").unwrap();
    assert!(warning.contains("'frobnicate'") && warning.contains("x\\ny"), "{warning}");
    // Fields that would change the answer are still refused.
    for (field, value) in [("top_a", 1), ("tfs_z", 0), ("lora", 1), ("functions", 1)] {
        let answer = lenient.post(chat, &ask(chat, json!({ field: value })));
        assert!(answer.status == 400 && answer.body.contains(&format!("'{field}'")), "{answer:?}");
    }
}

#[test]
fn echoed_prompt_logprobs_match_answer_logprobs() {
    let server = Served::start(&["--precise"]);
    let ask = |more: Value| {
        let path = "/v1/completions";
        server.good(path, &ask(path, more)).json()["choices"][0].clone()
    };
    let echo = ask(json!({ "max_tokens": 0, "echo": true, "logprobs": 2 }));
    assert_eq!(
        (&echo["text"], &echo["finish_reason"]),
        (&json!("The capital of France is"), &json!("length"))
    );
    let scores = &echo["logprobs"];
    let tokens: Vec<&str> =
        scores["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    assert_eq!(tokens.concat(), "The capital of France is");
    let list = |name: &str| scores[name].as_array().unwrap().clone();
    let (chosen, tops, offsets) =
        (list("token_logprobs"), list("top_logprobs"), list("text_offset"));
    assert!(chosen[0].is_null() && tops[0].is_null() && offsets[0] == 0, "{scores}");
    assert!(chosen[1..].iter().all(|p| p.as_f64().unwrap() < 0.0), "{scores}");
    assert!(tops[1..].iter().all(|top| (2..=3).contains(&top.as_object().unwrap().len())));
    let at: Vec<usize> =
        tokens.iter().scan(0, |at, t| Some(std::mem::replace(at, *at + t.len()))).collect();
    assert_eq!(json!(offsets), json!(at));

    // The log probability of each token equals the value when the token is an answer to the text
    // before it.
    for i in 1..tokens.len() {
        let before = tokens[..i].concat();
        let next =
            ask(json!({ "prompt": before, "temperature": 0, "logprobs": 20, "max_tokens": 1 }));
        let Some(known) = next["logprobs"]["top_logprobs"][0][tokens[i]].as_f64() else { continue };
        let here = chosen[i].as_f64().unwrap();
        assert!((known - here).abs() < 1e-3, "{i}: {known} {here}");
    }
    // A token that ends the answer counts, too: clients that score texts drop the last one.
    let ended =
        ask(json!({ "max_tokens": 1, "echo": true, "logprobs": 1, "logit_bias": { "2": 100 } }));
    let all = ended["logprobs"]["token_logprobs"].as_array().unwrap();
    assert_eq!((all.len(), &ended["finish_reason"]), (tokens.len() + 1, &json!("stop")));
    assert_eq!(all[1..tokens.len()], chosen[1..]);
    // The answer is the same with and without `echo`. Both ways of requesting log probabilities
    // give the same values, also in a stream.
    let greedy = json!({ "temperature": 0, "max_tokens": 4 });
    let plain = ask(greedy.clone());
    let with = |more: Value| {
        let mut body = greedy.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let scored = ask(with(json!({ "echo": true, "logprobs": 0, "prompt_logprobs": 1 })));
    let text = format!("The capital of France is{}", plain["text"].as_str().unwrap());
    assert_eq!(
        (&scored["text"], &scored["logprobs"]["token_logprobs"][1]),
        (&json!(text), &chosen[1])
    );
    let vllm = scored["prompt_logprobs"].as_array().unwrap();
    assert!(vllm.len() == tokens.len() && vllm[0].is_null());
    let found = vllm[1].as_object().unwrap().values().find(|one| one["decoded_token"] == tokens[1]);
    assert_eq!(found.unwrap()["logprob"], chosen[1]);
    let mut body = with(
        json!({ "prompt": "The capital of France is", "echo": true, "logprobs": 0, "stream": true }),
    );
    body["stream_options"] = json!({ "continuous_usage_stats": true });
    let events = server.good("/v1/completions", &body).events();
    let streamed: String = events.iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
    assert_eq!(streamed, text);
    let all: Vec<Value> = events
        .iter()
        .filter_map(|e| e.pointer("/choices/0/logprobs/tokens")?.as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(json!(all), scored["logprobs"]["tokens"]);
    assert!(events.iter().all(|e| e["usage"]["prompt_tokens"] == tokens.len()), "{events:?}");
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], 4);

    // Several prompts, of which one has a single token.
    let body = json!({ "prompt": [[504, 2365, 282], [504]], "max_tokens": 1, "echo": true, "logprobs": 1 });
    let both = server.good("/v1/completions", &body).json();
    for (i, n) in [(0, 4), (1, 2)] {
        let tokens = both["choices"][i]["logprobs"]["tokens"].as_array().unwrap();
        assert_eq!(tokens.len(), n, "{both}");
    }
    assert_eq!(both["usage"]["prompt_tokens"], 4);
    let none = server.good(
        "/v1/completions",
        &json!({ "prompt": [504], "max_tokens": 0, "echo": true, "logprobs": 1 }),
    );
    assert_eq!(none.json()["choices"][0]["logprobs"]["token_logprobs"], json!([null]));
}

#[test]
fn answer_respects_stop_tokens_and_minimum_length() {
    let server = Served::start(&["--precise"]);
    let ask = |more: Value| {
        let mut body = json!({ "prompt": "The sky is", "temperature": 0, "max_tokens": 12 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.good("/v1/completions", &body).json()
    };
    let whole = ask(json!({ "logprobs": 0 }));
    let text = whole["choices"][0]["text"].as_str().unwrap();
    let third = whole["choices"][0]["logprobs"]["tokens"][2].as_str().unwrap();
    let ids = server.good("/tokenize", &json!({ "content": third })).json()["tokens"].clone();
    assert_eq!(ids.as_array().unwrap().len(), 1, "{third}");
    let stopped = ask(json!({ "stop_token_ids": ids }));
    let choice = &stopped["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    assert!(text.starts_with(choice["text"].as_str().unwrap()), "{choice} {text}");
    assert!(!choice["text"].as_str().unwrap().contains(third), "{choice}");
    let generated = &stopped["usage"]["completion_tokens"];
    assert!(generated.as_u64().unwrap() <= 3, "{stopped}");
    // The end token is not chosen before the minimum number of tokens.
    let longer = ask(json!({ "stop_token_ids": ids, "min_tokens": 8 }));
    assert!(longer["usage"]["completion_tokens"].as_u64().unwrap() >= 8, "{longer}");
}

#[test]
fn embeddings_accept_up_to_2048_texts() {
    let server = Served::start(&[]);
    let texts = |n: usize| json!({ "input": vec!["a"; n] });
    let answer = server.good("/v1/embeddings", &texts(257)).json();
    assert_eq!(answer["data"].as_array().unwrap().len(), 257);
    let many = server.post("/v1/embeddings", &texts(2049));
    assert!(many.status == 400 && many.body.contains("2048"), "{many:?}");
}
