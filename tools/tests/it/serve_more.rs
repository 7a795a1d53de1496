//! Samplers, grammars, token ids, reasoning limits and ranking: fields of llama.cpp, vLLM and
//! others.

use crate::support::served::Served;
use serde_json::{Value, json};

/// A body with additional fields.
fn with(body: Value, more: Value) -> Value {
    let mut body = body;
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn llama_cpp_samplers_follow_their_definitions() {
    let server = Served::start(&["--precise"]);
    let ask = |more: Value| {
        let body = json!({ "prompt": "The sky is", "max_tokens": 8, "temperature": 1, "seed": 3 });
        let answer = server.good("/v1/completions", &with(body, more));
        assert_eq!(answer.header("warning"), None, "{answer:?}");
        answer.json()["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let (greedy, drawn) = (ask(json!({ "temperature": 0 })), ask(json!({})));
    assert_ne!(greedy, drawn);
    // With its strictest value, each option leaves only the most likely token.
    for narrow in [
        json!({ "top_n_sigma": 1e-6 }),
        json!({ "mirostat": 2, "mirostat_tau": 0, "mirostat_eta": 0 }),
    ] {
        assert_eq!(ask(narrow.clone()), greedy, "{narrow}");
    }
    // With an exponent near 0, the temperature is near its maximum for any entropy.
    let hot = json!({ "temperature": 0.01, "dynatemp_range": 2, "dynatemp_exponent": 0.01 });
    assert_ne!(ask(hot), greedy);
    // Only the least likely of all tokens stays.
    let odd = ask(json!({ "xtc_probability": 1, "xtc_threshold": 0, "max_tokens": 1 }));
    assert!(!greedy.starts_with(&odd), "{odd}");
    for more in [
        json!({ "typical_p": 0.2 }),
        json!({ "mirostat": 1, "mirostat_tau": 2 }),
        json!({ "xtc_probability": 0.5 }),
    ] {
        assert_eq!(ask(more.clone()), ask(more));
    }
    // DRY includes the prompt: its repetition is not continued.
    let again = "one two three four. one two three four. one two three";
    let dry = |more: Value| ask(with(json!({ "prompt": again, "temperature": 0 }), more));
    assert!(dry(json!({})).starts_with(" four"), "{}", dry(json!({})));
    let other = dry(json!({ "dry_multiplier": 100, "dry_sequence_breakers": ["@"] }));
    assert!(!other.starts_with(" four"), "{other}");
    // A breaker ends the repetition.
    let broken = json!({ "dry_multiplier": 100, "dry_sequence_breakers": [" three"] });
    assert!(dry(broken).starts_with(" four"));
    // Ollama's options have the same effect.
    let options = json!({ "temperature": 1, "mirostat": 2, "mirostat_tau": 0, "mirostat_eta": 0,
        "num_predict": 8, "seed": 3, "top_k": 0, "top_p": 1 });
    let body = json!({ "prompt": "The sky is", "raw": true, "stream": false, "options": options });
    assert_eq!(server.good("/api/generate", &body).json()["response"], greedy);
}

#[test]
fn grammar_token_ids_and_best_of_work() {
    let server = Served::start(&["--precise"]);
    let gbnf = "root ::= \" \" colour \".\"\ncolour ::= \"blue\" | \"gr\" [ae] \"y\"";
    let is_colour = |text: &str| matches!(text.trim(), "blue." | "grey." | "gray.");
    for (path, at) in [
        ("/completion", "/content"),
        ("/v1/completions", "/choices/0/text"),
        ("/v1/chat/completions", "/choices/0/message/content"),
    ] {
        let body = json!({ "prompt": "The sky is", "n_predict": 9, "max_tokens": 9,
            "messages": [{ "role": "user", "content": "Name a colour." }], "grammar": gbnf });
        let answer = server.good(path, &body).json();
        assert!(is_colour(answer.pointer(at).unwrap().as_str().unwrap()), "{path}: {answer}");
    }
    let wrong = json!({ "prompt": "x", "grammar": "root ::= colour" });
    let wrong = server.post("/completion", &wrong);
    assert!(wrong.status == 400 && wrong.body.contains("'colour' is used"), "{wrong:?}");
    // A schema in addition to json_object.
    let schema = json!({ "type": "object", "properties": { "n": { "enum": [7] } },
        "required": ["n"], "additionalProperties": false });
    let body = json!({ "messages": [{ "role": "user", "content": "A number?" }], "max_tokens": 20,
        "response_format": { "type": "json_object", "schema": schema } });
    let answer = server.good("/v1/chat/completions", &body).json();
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(content).unwrap(), json!({ "n": 7 }));

    // Token ids of prompt and answer are those of the texts, also in pieces.
    let text = |ids: &Value| {
        server.good("/detokenize", &json!({ "tokens": ids })).json()["content"].clone()
    };
    let body =
        json!({ "prompt": "The sky is", "n_predict": 6, "temperature": 0, "return_tokens": true });
    let whole = server.good("/completion", &body).json();
    assert_eq!(
        (whole["tokens"].as_array().unwrap().len(), text(&whole["tokens"])),
        (6, whole["content"].clone())
    );
    let body = json!({ "prompt": "The sky is", "max_tokens": 6, "temperature": 0, "return_token_ids": true });
    let one = server.good("/v1/completions", &body).json()["choices"][0].clone();
    assert_eq!(text(&one["prompt_token_ids"]), "The sky is");
    assert_eq!(one["token_ids"], whole["tokens"]);
    let events = server.good("/v1/completions", &with(body, json!({ "stream": true }))).events();
    let streamed: Vec<Value> = events
        .iter()
        .filter_map(|event| event.pointer("/choices/0/token_ids")?.as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(json!(streamed), whole["tokens"]);
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 4,
        "temperature": 0, "return_token_ids": true });
    let chat = server.good("/v1/chat/completions", &body).json();
    assert_eq!(chat["prompt_token_ids"].as_array().unwrap().len(), chat["usage"]["prompt_tokens"]);
    let content = chat["choices"][0]["message"]["content"].clone();
    assert_eq!(text(&chat["choices"][0]["token_ids"]), content);

    // The best of three answers has the largest mean log probability.
    let seeds = |n: u64, best: u64| {
        let body = json!({ "prompt": "The sky is", "max_tokens": 6, "seed": 5, "n": n,
            "best_of": best, "logprobs": 0 });
        server.good("/v1/completions", &body).json()
    };
    let mean = |choice: &Value| {
        let all = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        all.iter().map(|x| x.as_f64().unwrap()).sum::<f64>() / all.len() as f64
    };
    let (three, best) = (seeds(3, 3), seeds(1, 3));
    let most = three["choices"].as_array().unwrap().iter().map(mean).fold(f64::MIN, f64::max);
    let choices = best["choices"].as_array().unwrap();
    assert!(choices.len() == 1 && (mean(&choices[0]) - most).abs() < 1e-3, "{three} {best}");
    assert_eq!(best["usage"]["completion_tokens"], three["usage"]["completion_tokens"]);
    let body = json!({ "prompt": "x", "best_of": 2, "stream": true });
    let refused = server.post("/v1/completions", &body);
    assert!(refused.status == 400 && refused.body.contains("'best_of'"), "{refused:?}");
}

#[test]
fn assistant_turn_continues_and_reasoning_budget_ends_thought() {
    let template = tempfile::NamedTempFile::new().unwrap();
    let text = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
        {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";
    std::fs::write(template.path(), text).unwrap();
    let flags = ["--template", template.path().to_str().unwrap(), "--reasoning-budget", "5"];
    let server = Served::start(&flags);
    let turns = json!([{ "role": "user", "content": "Count." },
        { "role": "assistant", "content": "One, two," }]);
    let prompt = |more: Value| {
        let body = with(json!({ "messages": turns }), more);
        server.good("/apply-template", &body).json()["prompt"].as_str().unwrap().to_owned()
    };
    assert!(prompt(json!({})).ends_with("assistant\n<think>\n"));
    assert!(prompt(json!({ "add_generation_prompt": false })).ends_with("two,<|im_end|>\n"));
    let open = json!({ "add_generation_prompt": false, "continue_final_message": true });
    assert!(prompt(open.clone()).ends_with("assistant\nOne, two,"));
    let body = json!({ "messages": turns, "max_tokens": 3, "temperature": 0 });
    let chat = "/v1/chat/completions";
    assert_eq!(
        server.good(chat, &with(body, open)).json()["choices"][0]["finish_reason"],
        "length"
    );
    let user = json!([{ "role": "user", "content": "Count." }]);
    let refused = server.post(chat, &json!({ "messages": user, "continue_final_message": true }));
    assert!(
        refused.status == 400 && refused.body.contains("'continue_final_message'"),
        "{refused:?}"
    );

    let think = |more: Value| {
        let body =
            json!({ "messages": user, "max_tokens": 24, "temperature": 0, "ignore_eos": true });
        server.good(chat, &with(body, more)).json()["choices"][0]["message"].clone()
    };
    let words = |message: &Value, name: &str| {
        let text = message[name].as_str().unwrap_or_default().to_owned();
        server.good("/tokenize", &json!({ "content": text })).json()["tokens"]
            .as_array()
            .unwrap()
            .len()
    };
    let by_flag = think(json!({}));
    assert!((1..=6).contains(&words(&by_flag, "reasoning_content")), "{by_flag}");
    assert!(words(&by_flag, "content") > 3, "{by_flag}");
    let longer = think(json!({ "thinking_budget": 12 }));
    assert!((8..=13).contains(&words(&longer, "reasoning_content")), "{longer}");
    let none = think(json!({ "reasoning_budget": 0 }));
    assert!(none.get("reasoning_content").is_none() && words(&none, "content") > 3, "{none}");
    let endless = think(json!({ "reasoning_budget": -1 }));
    assert_eq!(words(&endless, "content"), 0, "{endless}");
}

#[test]
fn texts_are_ranked_by_relevance() {
    let server = Served::start(&[]);
    let query = "What is the capital of France?";
    let texts = ["Bananas are yellow fruits.", "Paris is the capital of France.", "Rust is fast."];
    let body = json!({ "query": query, "documents": texts, "top_n": 2, "return_documents": true });
    for path in ["/v1/rerank", "/rerank"] {
        let answer = server.good(path, &body).json();
        let results = answer["results"].as_array().unwrap();
        assert_eq!((results.len(), &results[0]["index"]), (2, &json!(1)), "{answer}");
        assert_eq!(results[0]["document"]["text"], texts[1]);
        assert!(results[0]["relevance_score"].as_f64() > results[1]["relevance_score"].as_f64());
    }
    let scores = server.good("/v1/score", &json!({ "text_1": query, "text_2": texts })).json();
    let score = |i: usize| scores["data"][i]["score"].as_f64().unwrap();
    assert!(score(1) > score(0) && score(1) > score(2) && score(1) < 1.0, "{scores}");
    let wrong = server.post("/v1/score", &json!({ "text_1": ["a", "b"], "text_2": "c" }));
    assert!(wrong.status == 400 && wrong.body.contains("'text_1'"), "{wrong:?}");
    let wrong = server.post("/rerank", &json!({ "query": "x", "documents": [] }));
    assert!(wrong.status == 400 && wrong.body.contains("'documents'"), "{wrong:?}");
    // A model without infill tokens refuses to fill a gap.
    let body = json!({ "input_prefix": "def f(", "input_suffix": "return x" });
    let refused = server.post("/infill", &body);
    assert!(refused.status == 400 && refused.body.contains("filling in the middle"), "{refused:?}");
    // Names of the model in the lists for other clients.
    let card = server.get("/api/v0/models").json()["data"][0].clone();
    assert_eq!((&card["type"], &card["quantization"]), (&json!("llm"), &json!("Q4_1")), "{card}");
    let running = server.get("/api/ps").json()["models"][0].clone();
    assert_eq!(running["digest"].as_str().unwrap().len(), 64);
    assert!(running["expires_at"].as_str().unwrap().ends_with('Z'), "{running}");
    let long = json!({ "input": "word ".repeat(3000) });
    let cut = server.good("/api/embed", &long).json();
    assert_eq!(
        (cut["embeddings"].as_array().unwrap().len(), &cut["prompt_eval_count"]),
        (1, &json!(1024))
    );
    let whole = server.post("/api/embed", &with(long, json!({ "truncate": false })));
    assert_eq!(whole.status, 400, "{whole:?}");
}
