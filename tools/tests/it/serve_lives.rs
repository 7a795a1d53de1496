//! The lifetime of `kjit serve`: clients that disconnect, a full queue, silent connections, the
//! shutdown, and many clients that do all of these simultaneously.

use crate::support::served::{Served, answer, command, request};
use crate::support::smollm2;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A stream whose first bytes have arrived.
fn streaming(server: &Served, tokens: usize) -> TcpStream {
    let body = json!({ "prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": true, "stream": true, "temperature": 0 });
    let body = body.to_string();
    let mut stream = server.connect();
    let request = request("POST", "/v1/completions", &[], body.as_bytes()) + &body;
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

fn begun(stream: &mut TcpStream) {
    let mut all = String::new();
    let mut some = [0; 512];
    while !all.contains("data: ") {
        let n = stream.read(&mut some).unwrap();
        assert!(n > 0, "{all}");
        all.push_str(&String::from_utf8_lossy(&some[..n]));
    }
}

#[test]
fn disconnect_cancels_request_and_full_queue_gives_retry_after() {
    let server = Served::start(&["--max-sequences", "1", "--max-queue", "1"]);
    let mut running = streaming(&server, 900);
    begun(&mut running);
    let waiting = streaming(&server, 4);
    server.wait_for("one runs, one waits", |s| {
        s["slots"]["running"] == 1 && s["queue"]["waiting"] == 1
    });
    let refused = server.post("/v1/completions", &json!({ "prompt": "x" }));
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(refused.json()["error"]["code"], "queue_full");
    // The client of the running request disconnects. The waiting request starts, long before 900
    // tokens could be generated.
    drop(running);
    let status = server.wait_for("it is cancelled", |s| s["requests"]["cancelled"] == 1);
    assert!(status["tokens"]["generated"].as_u64().unwrap() < 900, "{status}");
    let mut waiting = waiting;
    let answered = answer(&mut waiting).unwrap();
    assert!(answered.body.ends_with("data: [DONE]\n\n"), "{answered:?}");
    // If the client of a waiting request disconnects, the request is dropped, streamed or not.
    let mut running = streaming(&server, 900);
    begun(&mut running);
    let body = json!({ "prompt": "x", "max_tokens": 900, "ignore_eos": true }).to_string();
    let mut whole = server.connect();
    whole
        .write_all((request("POST", "/v1/completions", &[], body.as_bytes()) + &body).as_bytes())
        .unwrap();
    server.wait_for("it waits", |s| s["queue"]["waiting"] == 1);
    drop(whole);
    server.wait_for("it is forgotten", |s| s["queue"]["waiting"] == 0);
    drop(running);
    server.wait_for("nothing runs", |s| s["slots"]["running"] == 0);
}

#[test]
fn sigterm_finishes_running_requests_and_exits_0() {
    // There are so many tokens that the first request still runs when the second one waits (40
    // tokens took a tenth of a second on a fast machine), and enough time on a slow machine.
    let mut server = Served::start(&["--max-sequences", "1", "--stop-timeout", "200"]);
    let mut running = streaming(&server, 400);
    begun(&mut running);
    let mut waiting = streaming(&server, 3);
    server.wait_for("one waits", |s| s["queue"]["waiting"] == 1);
    server.signal(libc::SIGTERM);
    let line = server.line();
    assert!(line.starts_with("stopping: 2 requests"), "{line}");
    assert!(TcpStream::connect(server.address).is_err(), "nothing new is taken");
    let mut rest = String::new();
    running.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    assert!(answer(&mut waiting).unwrap().body.contains("data: [DONE]"));
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    assert_eq!(server.line(), "stopped");
}

#[test]
fn stop_timeout_reports_unfinished_answers() {
    let mut server = Served::start(&["--stop-timeout", "1"]);
    let mut running = streaming(&server, 1000);
    begun(&mut running);
    let start = Instant::now();
    server.signal(libc::SIGTERM);
    let mut rest = String::new();
    running.read_to_string(&mut rest).unwrap();
    assert!(
        rest.contains("the server stopped before the answer was complete")
            && !rest.contains("[DONE]"),
        "{rest}"
    );
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn ctrl_c_exits_130_and_invalid_model_exits_1() {
    let mut server = Served::start(&[]);
    server.signal(libc::SIGINT);
    assert_eq!(server.child.wait().unwrap().code(), Some(130));
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let line =
        crate::support::error_line(crate::support::kjit().args(["serve", here, "--port", "0"]), 1);
    assert!(line.contains("Cargo.toml"), "{line}");
}

#[test]
fn silent_or_slow_connections_are_closed_without_delaying_others() {
    let server = Served::start(&["--idle-timeout", "1", "--max-connections", "300"]);
    let mut silent: Vec<TcpStream> = (0..200).map(|_| server.connect()).collect();
    // Headers that never end, one letter at a time, and a body that does not arrive.
    let mut slow = server.connect();
    slow.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-").unwrap();
    assert_eq!(server.get("/health").status, 200);
    let until = Instant::now() + Duration::from_secs(20);
    for stream in silent.iter_mut().chain([&mut slow]) {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut said = vec![];
        let _ = stream.read_to_end(&mut said);
        assert!(Instant::now() < until, "a connection is still open");
    }
    server.wait_for("all are gone", |s| s["server"]["connections"] == 1);
}

#[test]
fn longest_idle_connection_closes_before_active_ones() {
    let server = Served::start(&["--max-connections", "8", "--max-sequences", "1"]);
    let mut running = streaming(&server, 600);
    begun(&mut running);
    // More connections than allowed: each new one closes an idle one.
    let mut idle: Vec<TcpStream> = (0..30).map(|_| server.connect()).collect();
    let mut half = server.connect();
    half.write_all(b"GET /health HTTP/1.1\r\nHo").unwrap();
    let start = Instant::now();
    assert_eq!(server.get("/health").status, 200);
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "nobody waits until others have waited long enough"
    );
    let mut said = vec![];
    let _ = idle[0].read_to_end(&mut said);
    assert!(said.is_empty(), "the first was closed without a word");
    drop((idle, half));
    // Connections with an incomplete body are not idle. One address may have half of all
    // connections. More of them get an error.
    let body = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: \
        100\r\nExpect: 100-continue\r\n\r\n";
    let bodies: Vec<TcpStream> = (0..3)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(body.as_bytes()).unwrap();
            stream.read_exact(&mut [0; 25]).unwrap();
            stream
        })
        .collect();
    let until = Instant::now() + Duration::from_secs(60);
    let refused = loop {
        let answer = server.try_ask("GET", "/health", &[], b"");
        match answer {
            Ok(answer) if answer.status == 200 => {
                assert!(Instant::now() < until, "four bodies and an answer are not counted")
            }
            Ok(answer) => break answer,
            // The connection was closed before its request was read.
            Err(_) => {}
        }
    };
    assert!(refused.status == 503 && refused.header("retry-after") == Some("2"), "{refused:?}");
    drop(bodies);
    let mut rest = String::new();
    running.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
}

#[test]
fn low_file_limit_is_reported_and_connections_are_bounded() {
    let mut limited = std::process::Command::new("sh");
    limited
        .args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""])
        .arg(command().get_program())
        .arg("serve")
        .arg(smollm2());
    let server = Served::with(&mut limited, &[]);
    assert!(
        server.warned.len() == 1 && server.warned[0].contains("64 files: 40 connections"),
        "{:?}",
        server.warned
    );
    let idle: Vec<TcpStream> = (0..100).map(|_| server.connect()).collect();
    assert_eq!(server.get("/health").status, 200);
    assert!(
        server.good("/v1/completions", &json!({ "prompt": "x", "max_tokens": 1 })).json()["usage"]
            .is_object()
    );
    drop(idle);
    server.wait_for("all are gone", |s| s["server"]["connections"] == 1);
    // File descriptors run out although fewer connections are open than allowed.
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap().count();
    let most = libc::rlimit { rlim_cur: open as u64 + 4, rlim_max: 64 };
    // SAFETY: the call only reads the limit and writes nothing; the child was not waited for yet,
    // so its id is still valid.
    let set = unsafe {
        libc::prlimit(
            i32::try_from(server.child.id()).unwrap(),
            libc::RLIMIT_NOFILE,
            &most,
            std::ptr::null_mut(),
        )
    };
    assert_eq!(set, 0);
    let idle: Vec<TcpStream> = (0..60).map(|_| server.connect()).collect();
    assert_eq!(server.get("/health").status, 200);
    assert!(server.line().starts_with("warning: no connection can be accepted: "));
    drop(idle);
}

#[test]
fn endless_bodies_share_one_limit() {
    let server = Served::start(&[]);
    let memory = |server: &Served| {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
    };
    let before = memory(&server);
    let part = vec![b' '; 7 << 20];
    let mut bodies: Vec<TcpStream> = (0..50)
        .map(|_| {
            let mut stream = server.connect();
            let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: \
                8000000\r\n\r\n";
            stream.write_all(head.as_bytes()).unwrap();
            // The server need not read a refused request.
            let _ = stream.write_all(&part);
            stream
        })
        .collect();
    let mut said = [0; 12];
    bodies.last_mut().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(&said, b"HTTP/1.1 503");
    let grown = memory(&server).saturating_sub(before);
    assert!(grown < 250 << 10, "{grown} kB for bodies of {} kB", 50 * 7 * 1024);
    // Another request is answered in the meantime.
    assert!(
        server.good("/v1/completions", &json!({ "prompt": "x", "max_tokens": 1 })).json()["usage"]
            .is_object()
    );
}

#[test]
fn worker_announces_itself_and_answers_inference() {
    let hive = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://me:secret@{}", hive.local_addr().unwrap());
    let (to, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in hive.incoming().flatten() {
            let mut stream = stream;
            let (mut all, mut some) = (String::new(), [0; 4096]);
            // The body is complete when all of its braces are closed.
            while all
                .split_once("\r\n\r\n")
                .is_none_or(|(_, body)| serde_json::from_str::<Value>(body).is_err())
            {
                match stream.read(&mut some) {
                    Ok(n) if n > 0 => all.push_str(&String::from_utf8_lossy(&some[..n])),
                    _ => break,
                }
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            let _ = to.send(all);
        }
    });
    let mut command = command();
    command.args(["serve", "--worker-id", "w0", "--model"]).arg(smollm2());
    let mut server =
        Served::with(command.args(["--model-ref", "hf:smol", "--hive-url", &url]), &[]);
    let first = heard.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(first.starts_with("POST /v1/workers/w0 HTTP/1.1\r\n"), "{first}");
    assert!(
        first.contains("authorization: Basic bWU6c2VjcmV0\r\n")
            && first.contains("host: 127.0.0.1:"),
        "{first}"
    );
    let card: Value = serde_json::from_str(first.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(
        (&card["id"], &card["model_ref"], &card["port"]),
        (&json!("w0"), &json!("hf:smol"), &json!(server.address.port()))
    );
    // Each change is announced immediately. Without a change, the next announcement comes after ten
    // seconds.
    let next = |what: &str, good: &dyn Fn(&Value) -> bool| -> Value {
        let mut told = Instant::now();
        loop {
            let said =
                heard.recv_timeout(Duration::from_secs(30)).unwrap_or_else(|_| panic!("{what}"));
            let card: Value = serde_json::from_str(said.split_once("\r\n\r\n").unwrap().1).unwrap();
            assert!(
                told.elapsed() < Duration::from_secs(9),
                "{what} was not reported immediately: {card}"
            );
            told = Instant::now();
            if good(&card) {
                return card;
            }
        }
    };
    let card = next("the model is loaded", &|card| card["ready"] == true);
    assert!(
        card["device"]["label"] == "cpu" && card["memory"]["total"].as_u64().unwrap() > 0,
        "{card}"
    );
    let mut running = streaming(&server, 900);
    begun(&mut running);
    next("a request runs", &|card| card["running"] == 1);
    drop(running);
    next("it runs no more", &|card| card["running"] == 0);

    let body =
        json!({ "prompt": "Hello, world!", "max_tokens": 6, "temperature": 0, "model": "hf:smol" });
    let whole = server.good("/v1/inference", &body).json();
    assert!(whole["generated_tokens"] == 6 && whole["stop_reason"] == "length", "{whole}");
    let mut body = body;
    body["stream"] = true.into();
    let events = server.good("/v1/inference", &body).events();
    let text: String = events.iter().filter_map(|e| e["text"].as_str()).collect();
    assert_eq!(whole["text"], text.as_str());
    assert_eq!(events.last().unwrap()["generated_tokens"], 6);
    assert_eq!(server.end(), Some(0));
    let last = next("it has ended", &|card| card["ended"] == true);
    assert!(last["ready"] == false && last["stopping"] == true && last["id"] == "w0", "{last}");
    assert!(heard.recv_timeout(Duration::from_millis(1)).is_err(), "nothing comes behind the end");
    for url in ["https://hive", "hive:3000", "http://me:secret@"] {
        let mut command = crate::support::kjit();
        command
            .args(["serve", "--worker-id", "w0", "--model-ref", "x", "--hive-url", url])
            .arg(smollm2());
        let line = crate::support::error_line(&mut command, 2);
        assert!(line.contains("http://USER:PASSWORD@HOST:PORT"), "{line}");
    }
}

#[test]
fn cpu_sequences_share_kv_memory_and_youngest_is_preempted() {
    let tiny = crate::support::model("tiny/tiny-llama-q4_k_m.gguf");
    let serve = |flags: &[&str]| {
        let always = ["--port", "0", "--device", "cpu", "-c", "96"];
        Served::by(command().arg("serve").arg(&tiny).args(always).args(flags))
    };
    let plain = serve(&[]);
    let each = plain.get("/status").json()["slots"]["bytes_per_token"].as_u64().unwrap();
    let server = serve(&["--kv-memory", &format!("{}B", 200 * each), "--max-sequences", "12"]);
    let slots =
        |s: &Value| (s["slots"]["all"].as_u64().unwrap(), s["slots"]["room"].as_u64().unwrap());
    assert_eq!(slots(&server.get("/status").json()), (12, 200));
    let body = |i: usize| json!({ "prompt": format!("Once {i} upon"), "max_tokens": 40, "temperature": 0, "ignore_eos": true });
    let text = |server: &Served, i| {
        server.good("/v1/completions", &body(i)).json()["choices"][0]["text"].to_string()
    };
    let alone: Vec<String> = (0..12).map(|i| text(&plain, i)).collect();
    std::thread::scope(|threads| {
        let all: Vec<_> = (0..12)
            .map(|i| {
                threads.spawn({
                    let (server, text) = (&server, &text);
                    move || text(server, i)
                })
            })
            .collect();
        for (i, one) in all.into_iter().enumerate() {
            assert_eq!(one.join().unwrap(), alone[i], "request {i}");
        }
    });
    let status = server.get("/status").json();
    assert!(
        status["preempted"].as_u64().unwrap() > 0
            && status["slots"]["tokens"].as_u64().unwrap() <= 200,
        "{status}"
    );
    assert!(server.get("/metrics").body.contains("\nkjit_kv_tokens_room 200\n"));
}

/// Counts of one client in the load test.
#[derive(Default)]
struct Count {
    answered: AtomicUsize,
    refused: AtomicUsize,
    left: AtomicUsize,
}

/// 500 requests, or `KJIT_TEST_COUNT`. Thousands of requests need a model of four layers, because
/// only the server is tested: 20,000 with SmolLM2 take more than an hour on two cores.
#[test]
fn mixed_requests_are_answered_once_without_leaks() {
    let many: usize = std::env::var("KJIT_TEST_COUNT").ok().map_or(500, |n| n.parse().unwrap());
    let flags = ["--max-sequences", "4", "--max-queue", "64"];
    let tiny = crate::support::model("tiny/tiny-llama-q4_k_m.gguf");
    let model = if many > 2000 { tiny } else { smollm2() };
    let server = Served::with(command().arg("serve").arg(model), &flags);
    let idle: Vec<TcpStream> = (0..many.min(1000)).map(|_| server.connect()).collect();
    // Greedy answers without other requests.
    let prompts = ["The sky is", "Once upon a time", "2 + 2 =", "Water boils at"];
    let ask = |prompt: &str| json!({ "prompt": prompt, "max_tokens": 4, "temperature": 0 });
    let alone: Vec<String> = prompts
        .iter()
        .map(|p| server.good("/v1/completions", &ask(p)).json()["choices"][0]["text"].to_string())
        .collect();
    let count = Count::default();
    let memory = |server: &Served| {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
    };
    let run = |from: usize, until: usize| {
        let next = AtomicUsize::new(from);
        std::thread::scope(|threads| {
            for _ in 0..8 {
                threads.spawn(|| {
                    loop {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        if i >= until {
                            break;
                        }
                        one(&server, i, &ask(prompts[i % 4]), &alone[i % 4], &count);
                    }
                });
            }
        });
        server
            .wait_for("nothing runs", |s| s["slots"]["running"] == 0 && s["queue"]["waiting"] == 0);
    };
    run(0, many / 2);
    let half = memory(&server);
    run(many / 2, many);
    let status = server
        .wait_for("all is at rest", |s| s["slots"]["running"] == 0 && s["queue"]["waiting"] == 0);
    let whole = memory(&server);
    // Maximum growth of memory in the second half: for buffers of the allocator. The states of 250
    // leaked answers would be far larger.
    assert!(
        whole < half + 32 * 1024,
        "{half} kB after the first half, {whole} kB after the second"
    );
    let requests = &status["requests"];
    let of = |name: &str| requests[name].as_u64().unwrap();
    assert_eq!(of("taken"), of("done") + of("cancelled"), "{status}");
    assert_eq!(of("failed"), 0, "{status}");
    let all = count.answered.load(Ordering::Relaxed)
        + count.refused.load(Ordering::Relaxed)
        + count.left.load(Ordering::Relaxed);
    assert_eq!(all, many);
    assert!(
        count.answered.load(Ordering::Relaxed) > many / 3 && count.left.load(Ordering::Relaxed) > 0
    );
    drop(idle);
    server.wait_for("idle connections are gone", |s| s["server"]["connections"] == 1);
}

/// Sends one request. Most are good, the others have one fault each.
fn one(server: &Served, i: usize, body: &Value, alone: &str, count: &Count) {
    let text = body.to_string();
    let refused = |status: u16, sent: &[u8]| {
        let answer = server.try_ask("POST", "/v1/completions", &[], sent);
        // If a server does not read a large body to its end, it may close the connection before its
        // answer was read.
        assert!(answer.as_ref().map_or(status == 413, |a| a.status == status), "{answer:?}");
        count.refused.fetch_add(1, Ordering::Relaxed);
    };
    let leave = |sent: &str| {
        let mut stream = server.connect();
        let _ = stream.write_all(sent.as_bytes());
        count.left.fetch_add(1, Ordering::Relaxed);
    };
    match i % 16 {
        0 => refused(400, b"{\"prompt\": "),
        1 => refused(400, b"{\"prompt\": \"x\", \"temperature\": \"nonsense\"}"),
        2 if i % 64 == 2 => refused(413, &vec![b' '; 9 << 20]),
        3 => refused(400, json!({ "prompt": "word ".repeat(3000) }).to_string().as_bytes()),
        // Half a head, half a body, a complete request whose answer is not read, an abandoned
        // stream.
        4 => leave("POST /v1/comp"),
        5 => leave(
            &(request("POST", "/v1/completions", &[], text.as_bytes()) + &text[..text.len() / 2]),
        ),
        6 => leave(&(request("POST", "/v1/completions", &[], text.as_bytes()) + &text)),
        7 => {
            let mut body = body.clone();
            (body["stream"], body["max_tokens"]) = (true.into(), 200.into());
            let text = body.to_string();
            leave(&(request("POST", "/v1/completions", &[], text.as_bytes()) + &text));
        }
        8 | 9 => {
            let mut body = body.clone();
            body["stream"] = true.into();
            let events = server.good("/v1/completions", &body).events();
            let said: String =
                events.iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
            assert_eq!(Value::from(said).to_string(), alone);
            count.answered.fetch_add(1, Ordering::Relaxed);
        }
        _ => {
            let answer = server.good("/v1/completions", body).json();
            assert_eq!(answer["choices"][0]["text"].to_string(), alone);
            count.answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}
