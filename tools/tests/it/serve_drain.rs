//! Draining, readiness separate from liveness, and metrics for a fleet.

use crate::support::served::Served;
use serde_json::json;
use std::time::{Duration, Instant};

#[test]
fn drained_server_is_not_ready_but_answers_until_delay() {
    let mut server = Served::start(&["--drain-delay", "4"]);
    let completion = json!({ "prompt": "The sky is", "max_tokens": 2 });
    for path in ["/livez", "/readyz", "/health"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    server.good("/v1/completions", &completion);
    let metrics = server.get("/metrics").body;
    let value = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name) && !line.starts_with('#'));
        let line = line.unwrap_or_else(|| panic!("{name}: {metrics}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let name = "model_name=\"SmolLM2-135M-Instruct.Q4_1\"";
    for (metric, is) in [
        ("vllm:e2e_request_latency_seconds_count", 1.0),
        ("vllm:request_prefill_time_seconds_count", 1.0),
        ("vllm:request_decode_time_seconds_count", 1.0),
        ("vllm:request_prompt_tokens_sum", 3.0),
        ("vllm:request_generation_tokens_sum", 2.0),
        ("vllm:lora_requests_info", f64::NAN),
    ] {
        let found = value(metric);
        assert!(is.is_nan() || (found - is).abs() < 1e-9, "{metric}: {found}");
    }
    assert_eq!(value(&format!("vllm:request_prompt_tokens_bucket{{{name},le=\"5\"}}")), 1.0);
    let ended = format!("vllm:request_success_total{{{name},finished_reason=\"length\"}}");
    assert_eq!(value(&ended), 1.0);
    // Four sequences of 1,024 tokens.
    let blocks = format!("{{{name},block_size=\"1\",num_gpu_blocks=\"4096\"}}");
    assert_eq!(value(&format!("vllm:cache_config_info{blocks}")), 1.0);
    assert_eq!(value("kjit_build_info{version="), 1.0);
    for positive in [
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_max_fds",
        "process_start_time_seconds",
    ] {
        assert!(value(positive) > 0.0, "{positive}");
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let age = now.as_secs_f64() - value("process_start_time_seconds");
    assert!((0.0..600.0).contains(&age), "{age}");

    assert_eq!(server.post("/drain", &json!({})).json()["status"], "draining");
    let ready = server.get("/readyz");
    assert_eq!((ready.status, &ready.json()["status"]), (503, &json!("draining")));
    assert_eq!((server.get("/health").status, server.get("/livez").status), (503, 200));
    server.good("/v1/completions", &completion);

    let start = Instant::now();
    server.signal(libc::SIGTERM);
    let line = server.line();
    assert!(line.starts_with("draining: ") && line.contains("4 s"), "{line}");
    server.good("/v1/completions", &completion);
    assert!(server.line().starts_with("stopping: "));
    assert!(start.elapsed() >= Duration::from_millis(3900), "{:?}", start.elapsed());
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}
