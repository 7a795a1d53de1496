//! `kjit serve --otlp-traces-endpoint`: spans of answers at a collector.

use crate::support::served::{Served, command};
use crate::support::{error_line, kjit, smollm2};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A collector: its URL, and the head and document of each request.
fn collector() -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (to, requests) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            loop {
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    if stream.read_line(&mut head).unwrap_or(0) == 0 {
                        break;
                    }
                }
                let length = head.to_lowercase();
                let length = length.lines().find_map(|l| l.strip_prefix("content-length: "));
                let Some(length) = length else { break };
                let mut body = vec![0; length.trim().parse().unwrap()];
                stream.read_exact(&mut body).unwrap();
                let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
                if to.send((head, serde_json::from_slice(&body).unwrap())).is_err() {
                    return;
                }
            }
        }
    });
    (url, requests)
}

/// The spans that the collector gets until there are `n`.
fn spans(requests: &Receiver<(String, Value)>, n: usize) -> Vec<Value> {
    let mut all = vec![];
    while all.len() < n {
        let (head, document) = requests.recv_timeout(Duration::from_secs(30)).unwrap();
        assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
        assert!(head.to_lowercase().contains("x-team: blue\r\n"), "{head}");
        let resource = &document["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "my service");
        all.extend(resource["scopeSpans"][0]["spans"].as_array().unwrap().clone());
    }
    assert_eq!(all.len(), n, "{all:?}");
    all
}

/// The attributes of a span by name.
fn attributes(span: &Value) -> BTreeMap<&str, &Value> {
    let all = span["attributes"].as_array().unwrap();
    all.iter().map(|a| (a["key"].as_str().unwrap(), &a["value"])).collect()
}

#[test]
fn each_answer_is_a_span_of_its_clients_trace() {
    let (url, requests) = collector();
    let mut command = command();
    command.env("OTEL_SERVICE_NAME", "my service");
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-team=blue");
    let mut server =
        Served::with(command.arg("serve").arg(smollm2()), &["--otlp-traces-endpoint", &url]);
    let body = json!({ "prompt": "The sky is", "max_tokens": 3, "temperature": 0.5, "n": 2 });
    let (path, body) = ("/v1/completions", body.to_string());
    let parent = format!("traceparent: 00-{TRACE}-{PARENT}-01");
    let headers = [parent.as_str(), "x-request-id: mine-1", "tracestate: vendor=1"];
    assert_eq!(server.ask("POST", path, &headers, body.as_bytes()).status, 200);
    for span in spans(&requests, 2) {
        assert_eq!(
            json!([span["name"], span["kind"], span["traceId"], span["parentSpanId"]]),
            json!(["llm_request", 2, TRACE, PARENT]),
        );
        assert_eq!((&span["traceState"], &span["status"]), (&json!("vendor=1"), &Value::Null));
        let at = |name: &str| span[name].as_str().unwrap().parse::<u64>().unwrap();
        let took = at("endTimeUnixNano") - at("startTimeUnixNano");
        assert!(took > 0 && took < 120_000_000_000, "{span}");
        let all = attributes(&span);
        assert_eq!(all["gen_ai.request.id"]["stringValue"], "mine-1");
        assert_eq!(all["gen_ai.request.max_tokens"]["intValue"], "3");
        assert_eq!(all["gen_ai.request.temperature"]["doubleValue"], 0.5);
        assert_eq!(all["gen_ai.usage.prompt_tokens"]["intValue"], "3");
        assert_eq!(all["gen_ai.usage.completion_tokens"]["intValue"], "3");
        assert_eq!(all["gen_ai.response.finish_reasons"]["stringValue"], "length");
        let seconds = |name: &str| all[name]["doubleValue"].as_f64().unwrap();
        let times = ["time_in_queue", "time_to_first_token", "e2e"];
        let [queue, first, whole] = times.map(|t| seconds(&format!("gen_ai.latency.{t}")));
        assert!(0.0 < queue && queue <= first && first <= whole, "{queue} {first} {whole}");
    }
    // A client that does not record its trace gets no span; a refused request has one.
    let off = format!("traceparent: 00-{TRACE}-{PARENT}-00");
    assert_eq!(server.ask("POST", path, &[&off], body.as_bytes()).status, 200);
    assert_eq!(server.ask("POST", path, &[], b"{}").status, 400);
    let refused = spans(&requests, 1).remove(0);
    assert_eq!(
        json!([refused["name"], refused["status"]["code"]]),
        json!(["POST /v1/completions", 2])
    );
    assert_ne!(refused["traceId"], TRACE);
    assert_eq!(attributes(&refused)["http.response.status_code"]["intValue"], "400");
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("kjit_trace_spans_total{result=\"sent\"} 3"), "{metrics}");
    // The last spans are sent at the end.
    assert_eq!(server.ask("POST", path, &[], b"{}").status, 400);
    server.signal(libc::SIGTERM);
    assert_eq!(server.end(), Some(0));
    spans(&requests, 1);
}

#[test]
fn a_collector_that_is_gone_or_silent_delays_no_answer() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for (address, said) in [(gone, true), (silent.local_addr().unwrap(), false)] {
        let url = format!("http://{address}");
        let mut server = Served::start(&["--otlp-traces-endpoint", &url]);
        let body = json!({ "prompt": "The sky is", "max_tokens": 1 });
        for _ in 0..3 {
            server.good("/v1/completions", &body);
        }
        if said {
            let line = server.line();
            assert!(line.contains("takes no traces") && line.contains(&url), "{line}");
        }
        let start = Instant::now();
        server.signal(libc::SIGTERM);
        assert_eq!(server.end(), Some(0));
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
    for url in ["here:4317", "grpc://here:4317"] {
        let mut c = kjit();
        c.arg("serve").arg(smollm2()).args(["--otlp-traces-endpoint", url]);
        let line = error_line(&mut c, 2);
        assert!(line.contains("OTLP collector"), "{line}");
    }
}
