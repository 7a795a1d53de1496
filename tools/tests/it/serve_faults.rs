//! `kjit serve` on a simulated AMD card. If it fails, running requests get an error, the model is
//! opened again, and waiting and later requests are answered. This file also tests a server with
//! paged keys and values.

use crate::support::served::{Served, answer, request};
use kjit_tests::simulator::Setup;
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");

#[test]
fn device_failure_fails_only_running_requests() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kjit"));
    // An illegal access at the 30th step.
    let setup = Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.set("HIPSIM_FAIL", "hipGraphLaunch:30:700").apply(TEMPORARY, &mut command);
    let cache = Path::new(TEMPORARY).join("hipsim/command");
    command
        .arg("serve")
        .arg(crate::support::model("tiny/tiny-llama-q4_k_m.gguf"))
        .arg("--cache-dir")
        .arg(cache);
    command.args([
        "--port",
        "0",
        "--device",
        "rocm:0",
        "-c",
        "128",
        "--prefill-chunk",
        "16",
        "--max-sequences",
        "2",
    ]);
    let server = Served::by(&mut command);
    let body = |prompt: &[u32], tokens: usize, more: Value| {
        let mut body =
            json!({ "prompt": prompt, "max_tokens": tokens, "ignore_eos": true, "temperature": 0 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let short = body(&[5, 6, 7, 8], 5, json!({}));
    let text = |answer: Value| answer["choices"][0]["text"].as_str().unwrap().to_owned();
    let before = text(server.good("/v1/completions", &short).json());
    // One answer is streamed, one is not, and one request waits.
    let send = |body: &Value| -> TcpStream {
        let (mut stream, body) = (server.connect(), body.to_string());
        stream
            .write_all(
                (request("POST", "/v1/completions", &[], body.as_bytes()) + &body).as_bytes(),
            )
            .unwrap();
        stream
    };
    let mut streamed = send(&body(&[1, 2, 3], 100, json!({ "stream": true })));
    let mut whole = send(&body(&[9, 8, 7], 100, json!({})));
    server.wait_for("both run", |s| s["slots"]["running"] == 2 || s["requests"]["failed"] != 0);
    let mut waiting = send(&short);
    let said = answer(&mut streamed).unwrap();
    assert!(said.status == 200 && !said.body.contains("[DONE]"), "{said:?}");
    let last = said.body.trim_end().rsplit("\n\n").next().unwrap().strip_prefix("data: ").unwrap();
    let error: Value = serde_json::from_str(last).unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("the device failed during this request; send it again"), "{message}");
    let said = answer(&mut whole).unwrap();
    assert!(said.status == 503 && said.header("retry-after").is_some(), "{said:?}");
    assert!(
        said.json()["error"]["message"].as_str().unwrap().contains("the device failed"),
        "{said:?}"
    );
    assert_eq!(
        text(answer(&mut waiting).unwrap().json()),
        before,
        "who waited has the answer of before"
    );
    assert_eq!(server.line(), "the device failed: opening the model again");
    let line = server.line();
    assert!(line.starts_with("the model was reopened: ") && line.contains("gfx1100"), "{line}");
    assert_eq!(text(server.good("/v1/completions", &short).json()), before);
    assert_eq!(server.get("/health").status, 200);
    let status = server.get("/status").json();
    assert_eq!(
        (&status["requests"]["failed"], &status["requests"]["done"]),
        (&json!(2), &json!(3)),
        "{status}"
    );
    let metrics = server.get("/metrics").body;
    assert!(metrics.lines().any(|l| l == "kjit_reopened_total 1"), "{metrics}");
}

/// In the past, cached prefixes used memory that requests needed, so that all later requests
/// failed.
#[test]
fn low_memory_evicts_cached_prefixes_and_queues_requests() {
    const CONTEXT: u64 = 400_000;
    let mut command = crate::support::served::command();
    command.arg("serve").arg(crate::support::model("tiny/tiny-llama-q4_k_m.gguf"));
    command.args(["--port", "0", "--device", "cpu", "--threads", "2", "--max-sequences", "8"]);
    let server = Served::by(command.args(["-c", &CONTEXT.to_string()]));
    let asked = |i: usize| {
        let prompt: Vec<usize> =
            (0..40).map(|k| (i * 131 + k * k * 7 + k * 37 + 5) % 250).collect();
        let body = json!({ "prompt": prompt, "max_tokens": 60, "ignore_eos": true }).to_string();
        let mut stream = server.connect();
        stream
            .write_all(
                (request("POST", "/v1/completions", &[], body.as_bytes()) + &body).as_bytes(),
            )
            .unwrap();
        stream
    };
    let all = |which: std::ops::Range<usize>| {
        let streams: Vec<TcpStream> = which.map(asked).collect();
        streams.into_iter().map(|mut stream| answer(&mut stream).unwrap()).for_each(|answer| {
            assert_eq!(answer.status, 200, "{answer:?}");
        });
    };
    // Two prefixes are cached, and all threads have started.
    all(0..2);
    let status = server.wait_for("both are kept", |s| s["slots"]["kept"] == 2);
    let each = CONTEXT * status["slots"]["bytes_per_token"].as_u64().unwrap();
    let pid = i32::try_from(server.child.id()).unwrap();
    let of_process = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let size = of_process.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let size: u64 = size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024;
    let limit = libc::rlimit { rlim_cur: size + each / 2, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the pointer is valid for the call, which only reads the limit; the child was not
    // waited for, so its id is still valid.
    let set =
        unsafe { libc::prlimit(pid, libc::RLIMIT_AS, &raw const limit, std::ptr::null_mut()) };
    assert_eq!(set, 0);
    for first in [2, 6, 10] {
        all(first..first + 4);
    }
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get("/status").json()["requests"]["failed"], 0);
}

#[test]
fn paged_sequences_answer_alike_and_status_counts_pages() {
    let serve = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kjit"));
        let setup =
            Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-O1");
        setup.apply(TEMPORARY, &mut command);
        let cache = Path::new(TEMPORARY).join("hipsim/command");
        command
            .arg("serve")
            .arg(crate::support::model("tiny/tiny-llama-q4_k_m.gguf"))
            .arg("--cache-dir")
            .arg(cache);
        command
            .args(["--port", "0", "--device", "rocm:0", "-c", "256", "--prefill-chunk", "160"])
            .args(more);
        Served::by(&mut command)
    };
    let plain = serve(&["--max-sequences", "2", "--kv-pages", "off"]);
    let bytes = 512 * plain.get("/status").json()["slots"]["bytes_per_token"].as_u64().unwrap();
    let memory = bytes.to_string();
    let paged = serve(&["--max-sequences", "3", "--kv-memory", &memory]);
    let system: Vec<usize> = (0..150).map(|i| (i * i * 7 + i * 37 + 5) % 250).collect();
    for end in [[3, 1, 4], [2, 7, 1]] {
        let prompt = [&system[..], &end].concat();
        let body =
            json!({ "prompt": prompt, "max_tokens": 5, "ignore_eos": true, "temperature": 0 });
        let text = |server: &Served| {
            server.good("/v1/completions", &body).json()["choices"][0]["text"].clone()
        };
        assert_eq!(text(&paged), text(&plain));
    }
    // The device also computes embeddings, with the same results as the CPU.
    let mut command = Command::new(env!("CARGO_BIN_EXE_kjit"));
    command
        .arg("serve")
        .arg(crate::support::model("tiny/tiny-llama-q4_k_m.gguf"))
        .args(["--port", "0", "--device", "cpu"]);
    let cpu = Served::by(&mut command);
    let vector = |server: &Served| -> Vec<f64> {
        let body = json!({ "input": "One text, not too short, so that some tokens are pooled." });
        let vector = server.good("/v1/embeddings", &body).json()["data"][0]["embedding"].clone();
        serde_json::from_value(vector).unwrap()
    };
    let (here, there) = (vector(&cpu), vector(&plain));
    assert_eq!(plain.line(), "embeddings: a second copy of the model is opened on rocm:0");
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let cosine = dot(&here, &there) / (dot(&here, &here) * dot(&there, &there)).sqrt();
    assert!(cosine > 0.9999, "{cosine}");
    assert_eq!(plain.get("/status").json()["pages"], json!(null));
    let status = paged.get("/status").json();
    // Two texts are cached: a page that both share, and a separate last page for each.
    assert_eq!(
        status["pages"],
        json!({ "all": 4, "used": 3, "shared": 0, "tokens": 128 }),
        "{status}"
    );
    assert_eq!(
        (&status["slots"]["room"], &status["tokens"]["cached"]),
        (&json!(512), &json!(150)),
        "{status}"
    );
    assert_eq!(status["model"]["kv_bytes"], json!(bytes), "{status}");
    let metrics = paged.get("/metrics").body;
    for line in ["kjit_kv_pages 4", "kjit_kv_pages_used 3", "kjit_kv_pages_shared 0"] {
        assert!(metrics.lines().any(|l| l == line), "{line}: {metrics}");
    }
}

#[test]
fn unsupported_kv_pages_is_one_error_line() {
    let refused = |model: &Path, device: &str| {
        let mut command = crate::support::kjit();
        command.arg("serve").arg(model).args([
            "--port",
            "0",
            "--kv-pages",
            "on",
            "--device",
            device,
        ]);
        // No card is found.
        command
            .env("CUDA_VISIBLE_DEVICES", "")
            .env("HIP_VISIBLE_DEVICES", "")
            .env("ROCR_VISIBLE_DEVICES", "");
        crate::support::error_line(&mut command, 1)
    };
    let tiny = crate::support::model("tiny/tiny-llama-q4_k_m.gguf");
    for (device, why) in [
        (
            "cpu",
            "tiny-llama-q4_k_m.gguf: KV pages need a GPU: on the CPU, memory grows with the tokens",
        ),
        ("cuda:0,cuda:1", "KV pages need exactly one GPU and no layers on the CPU"),
        ("auto", "--kv-pages on: KV pages need a GPU, but the model runs on the CPU"),
    ] {
        let line = refused(&tiny, device);
        assert!(line.contains(why) && line.contains("--kv-pages on: "), "{device}: {line}");
    }
    let encoder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.models/archs/bert.gguf");
    if encoder.exists() {
        let line = refused(&encoder, "rocm:0");
        assert!(line.contains("embedding models have no KV cache"), "{line}");
    }
}
