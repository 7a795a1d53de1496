//! Metrics under vLLM's names, which routers read, such as Kubernetes' Gateway API Inference
//! Extension and llm-d.

use crate::metrics::{Text, escaped};
use kjit_model::serve::Status;
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes the metrics. The label `model_name` is already set.
pub fn write(out: &mut Text, s: &Status) {
    let used = s.held_tokens.saturating_sub(s.kept_tokens) as f64 / s.room.max(1) as f64;
    for (name, help, value) in [
        ("vllm:num_requests_running", "Requests that are being answered", s.running as f64),
        ("vllm:num_requests_waiting", "Requests in the queue", s.waiting as f64),
        ("vllm:kv_cache_usage_perc", "Used share of keys and values, 1 is all", used),
    ] {
        out.gauge(name, help, value);
    }
    let prompt_tokens = s.prompt_tokens + s.cached_tokens;
    for (name, help, value) in [
        ("vllm:num_preemptions_total", "Preempted sequences", s.preempted),
        ("vllm:prefix_cache_queries_total", "Tokens of prompts that were looked up", prompt_tokens),
        ("vllm:prefix_cache_hits_total", "Tokens of prompts that were cached", s.cached_tokens),
        ("vllm:prompt_tokens_total", "Tokens of prompts", prompt_tokens),
        ("vllm:generation_tokens_total", "Tokens of answers", s.generated_tokens),
    ] {
        out.counter(name, help, value);
    }
    for (reason, value) in [
        ("stop", s.done.saturating_sub(s.cut + s.embeddings)),
        ("length", s.cut),
        ("abort", s.cancelled),
    ] {
        out.with(format!("finished_reason=\"{reason}\""), |out| {
            out.counter("vllm:request_success_total", "Requests that ended, by reason", value);
        });
    }
    for (name, help, times) in [
        (
            "vllm:time_to_first_token_seconds",
            "Time from the request to its first token",
            &s.first_token,
        ),
        ("vllm:inter_token_latency_seconds", "Time between tokens", &s.between_tokens),
        ("vllm:time_per_output_token_seconds", "Time between tokens", &s.between_tokens),
        ("vllm:e2e_request_latency_seconds", "Time from the request to its end", &s.whole),
        ("vllm:request_queue_time_seconds", "Time in the queue", &s.queued),
        (
            "vllm:request_prefill_time_seconds",
            "Time from the queue's end to the first token",
            &s.prefill,
        ),
        ("vllm:request_decode_time_seconds", "Time from the first token to the end", &s.decode),
    ] {
        out.histogram(name, help, times, 1.0);
    }
    let tokens = 1000.0;
    out.histogram("vllm:request_prompt_tokens", "Tokens of a prompt", &s.prompts, tokens);
    out.histogram("vllm:request_generation_tokens", "Tokens of an answer", &s.answers, tokens);
    // Without pages a block is one token: the product of both numbers is the capacity.
    let blocks = s.pages.map(|pages| pages.total).filter(|total| *total > 0);
    let (size, count) = blocks.map_or((1, s.room), |total| (s.room / total, total));
    out.with(format!("block_size=\"{size}\",num_gpu_blocks=\"{count}\""), |out| {
        out.gauge("vllm:cache_config_info", "Blocks of keys and values", 1.0);
    });
    let names = |all: &[String]| escaped(&all.join(","));
    let adapters = format!(
        "max_lora=\"{}\",running_lora_adapters=\"{}\",waiting_lora_adapters=\"{}\"",
        s.adapter_slots,
        names(&s.running_adapters),
        names(&s.waiting_adapters)
    );
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
    out.with(adapters, |out| {
        out.gauge("vllm:lora_requests_info", "Adapters in use, at this time", now);
    });
}
