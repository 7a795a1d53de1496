//! `--split ranks`: processes with a simulated AMD device each, which RCCL's calls bring together: the tokens of one
//! process with two devices, and of one device; what is said where a rank does not come, ends, hangs, or is given
//! something else.

mod support;

use kjit_tests::simulator::Setup;
use serde_json::Value;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::model;

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");
const PROMPT: &str = "Once upon a time there was a small engine that ran far behind all of the others of its line.";

fn setup(devices: &str) -> Setup {
    Setup::devices(devices).set("KJIT_HIPSIM_CLANG", "none").set("KJIT_HIPSIM_OPTIMISE", "-Og")
}

fn cache() -> PathBuf {
    Path::new(TEMPORARY).join("hipsim/ranks")
}

/// A command with a tiny model and its prompt, in pieces.
fn kjit(command: &str) -> Command {
    let mut c = plain(command);
    if command == "run" {
        c.args(["-p", PROMPT]);
    }
    c
}

/// The same without the prompt.
fn plain(command: &str) -> Command {
    let mut c = Command::new(assert_cmd::cargo::cargo_bin("kjit"));
    c.arg("--cache-dir").arg(cache()).env_remove("KJIT_CACHE_DIR").env("NO_COLOR", "1");
    c.arg(command).arg(model("tiny/tiny-llama-q8_0.gguf")).args(["-c", "96", "--prefill-chunk", "16"]);
    if command == "run" {
        c.args(["--raw", "-n", "12", "--json"]);
    }
    c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    c
}

/// A port that nobody has.
fn port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

/// As a rank.
fn rank(c: &mut Command, rank: usize, size: usize, port: &str) {
    c.args(["--split", "ranks"]).env("RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
    c.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port).env("LOCAL_RANK", rank.to_string());
    // One device is shown to each.
    c.env("KJIT_HIPSIM_DEVICES", "gfx1100");
}

fn with(c: &mut Command, flags: &[&str]) {
    c.args(flags);
}

fn var(c: &mut Command, name: &str, value: &str) {
    c.env(name, value);
}

/// Two ranks, and what came of each; `with` has a rank's command changed.
fn two(command: &str, with: impl Fn(usize, &mut Command)) -> [Output; 2] {
    both([kjit(command), kjit(command)], with)
}

fn both(commands: [Command; 2], with: impl Fn(usize, &mut Command)) -> [Output; 2] {
    let (port, mut number) = (port(), 0..);
    let started = commands.map(|mut c| {
        let i = number.next().unwrap();
        rank(&mut c, i, 2, &port);
        with(i, &mut c);
        c.spawn().unwrap()
    });
    started.map(|one| one.wait_with_output().unwrap())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn ids(output: &Output) -> Vec<u64> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let doc: Value = serde_json::from_slice(&output.stdout).unwrap();
    doc["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

/// The one line that says what went wrong.
fn error(output: &Output) -> String {
    let said = text(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
    let lines: Vec<&str> = said.lines().filter(|l| l.starts_with("error")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    lines[0].to_owned()
}

#[test]
fn two_ranks_say_what_one_process_says() {
    let test = "two_ranks_say_what_one_process_says";
    setup("gfx1100,gfx1100").run(test, TEMPORARY, || {
        let start = Instant::now();
        let one = ids(&kjit("run").args(["--temp", "0", "--device", "rocm:0"]).output().unwrap());
        let mut together = kjit("run");
        let together =
            ids(&together.args(["--temp", "0", "--device", "rocm:0,rocm:1", "--split", "tensor"]).output().unwrap());
        assert_eq!((one.len(), &together), (12, &one));
        let ranks = two("run", |_, c| with(c, &["--temp", "0"]));
        assert_eq!(ids(&ranks[0]), one);
        let said = text(&ranks[0].stderr);
        assert!(said.contains("share 1 of 2 of layers 0 to") && said.contains("rank 0 of 2 by RANK"), "{said}");
        assert!(said.contains("library, version 2.18.5"), "{said}");
        // The others compute the same, and say nothing.
        assert!(ranks[1].status.success(), "{}", text(&ranks[1].stderr));
        assert_eq!((text(&ranks[1].stdout), text(&ranks[1].stderr)), (String::new(), String::new()));
        // Numbers that are drawn are the same everywhere: else they would part at the first token.
        let drawn = two("run", |_, c| with(c, &["--temp", "1.5"]));
        assert_eq!(ids(&drawn[0]).len(), 12);
        assert!(drawn[1].status.success(), "{}", text(&drawn[1].stderr));
        let scores =
            |c: &mut Command| with(c, &["--json", "--top", "3", "--ids", "3,1,4,1,5,9,2,6,5,3,5,8,9,7,9,3,2,3,8"]);
        let ranks = two("logits", |_, c| scores(c));
        let mut both = kjit("logits");
        scores(&mut both);
        let both = both.args(["--device", "rocm:0,rocm:1", "--split", "tensor"]).output().unwrap();
        assert!(both.status.success() && ranks[1].stdout.is_empty(), "{}", text(&both.stderr));
        assert_eq!(text(&ranks[0].stdout), text(&both.stdout), "sums are made in the same order");
        eprintln!("{:.1?}", start.elapsed());
    });
}

#[test]
fn a_rank_that_ends_or_hangs_or_is_given_something_else_is_one_error() {
    let test = "a_rank_that_ends_or_hangs_or_is_given_something_else_is_one_error";
    setup("gfx1100,gfx1100").run(test, TEMPORARY, || {
        let greedy = |c: &mut Command| with(c, &["--temp", "0"]);
        // In the midst of the tokens: behind the patterns, the prompt and some of these.
        let start = Instant::now();
        let ended = two("run", |rank, c| {
            greedy(c);
            if rank == 1 {
                c.env("KJIT_HIPSIM_RCCL", "die:45");
            }
        });
        assert_eq!(ended[1].status.code(), Some(9));
        let why = error(&ended[0]);
        assert!(why.contains("rank 0 on rocm:0") && why.contains("rank 1 has ended"), "{why}");
        assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
        let start = Instant::now();
        let hangs = two("run", |rank, c| {
            greedy(c);
            if rank == 1 {
                c.env("KJIT_HIPSIM_RCCL", "hang:45");
            }
        });
        for (rank, output) in hangs.iter().enumerate() {
            let why = error(output);
            let found = ["waited longer than 10 s for the other ranks", "has ended"].iter().any(|s| why.contains(s));
            assert!(found && why.contains(&format!("rank {rank} on rocm:0")), "{why}");
        }
        assert!(start.elapsed() < Duration::from_secs(50), "{:?}", start.elapsed());
        // As many tokens, and others.
        let mut other = plain("run");
        other.args(["-p", &PROMPT.replace("engine", "enginf")]);
        for (rank, output) in both([kjit("run"), other], |_, c| greedy(c)).iter().enumerate() {
            let why = error(output);
            let said = ["rank 1 was given another prompt", "has ended"].iter().any(|s| why.contains(s));
            assert!(said && (rank > 0 || why.contains("given another")), "{rank}: {why}");
        }
        // One piece, whose scores are there before ranks hear of each other: they are not handed out.
        let scores = |ids: &'static str| {
            let mut c = kjit("logits");
            with(&mut c, &["--json", "--ids", ids]);
            c
        };
        let why = error(&both([scores("3,1,4"), scores("3,1,5")], |_, _| {})[0]);
        assert!(why.contains("rank 1 was given another prompt"), "{why}");
        // The same prompt, and numbers of its own.
        let seeds = two("run", |rank, c| with(c, &["--temp", "1.5", "--seed", if rank == 0 { "7" } else { "8" }]));
        let why = error(&seeds[0]);
        assert!(why.contains("other tokens or options of sampling"), "{why}");
    });
}

#[test]
fn what_is_not_there_is_said_before_anything_is_computed() {
    let test = "what_is_not_there_is_said_before_anything_is_computed";
    setup("gfx1100").run(test, TEMPORARY, || {
        let alone = |with: &dyn Fn(&mut Command)| {
            let mut c = kjit("run");
            c.env("KJIT_RANKS_WAIT", "2");
            rank(&mut c, 0, 2, &port());
            with(&mut c);
            error(&c.output().unwrap())
        };
        let start = Instant::now();
        let missing = alone(&|_| {});
        assert!(missing.contains("rank 1 did not come to 127.0.0.1:") && missing.contains("within 2 s"), "{missing}");
        let late = alone(&|c| var(c, "RANK", "1"));
        assert!(late.contains("rank 0 did not listen at 127.0.0.1:"), "{late}");
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
        let none = alone(&|c| var(c, "KJIT_RCCL_LIBRARY", "/nowhere/librccl.so.1"));
        assert!(none.contains("RCCL (librccl.so.1) not found") && none.contains("/nowhere/librccl.so.1"), "{none}");
        assert!(none.contains("install ROCm's package rccl"), "{none}");
        for version in ["2708", "4242424"] {
            let old = alone(&|c| var(c, "KJIT_HIPSIM_RCCL", &format!("version:{version}")));
            assert!(old.contains(&format!("version code {version}; 2.11 or newer")), "{old}");
        }
        let no_rank = alone(&|c| var(c, "RANK", ""));
        assert!(no_rank.contains("none says which this one is"), "{no_rank}");
        let several = alone(&|c| with(c, &["--device", "rocm:0,rocm:1"]));
        assert!(several.contains("each process has one GPU"), "{several}");
        // Ranks that are there, and do not fit together.
        let differ = two("run", |rank, c| with(c, &["--kv-type", if rank == 0 { "f16" } else { "q8_0" }]));
        for (rank, output) in differ.iter().enumerate() {
            assert!(error(output).contains("rank 1 has another options than rank 0"), "{rank}: {}", error(output));
        }
        let mut serve = kjit("serve");
        rank(&mut serve, 0, 2, &port());
        assert!(error(&serve.output().unwrap()).contains("not for serve"));
    });
}

#[test]
fn strangers_at_the_port_neither_hold_nor_end_the_ranks() {
    let test = "strangers_at_the_port_neither_hold_nor_end_the_ranks";
    setup("gfx1100").run(test, TEMPORARY, || {
        let port = port();
        let first = |wait: &str| {
            let mut c = kjit("run");
            with(&mut c, &["--temp", "0"]);
            rank(&mut c, 0, 2, &port);
            c.env("KJIT_RANKS_WAIT", wait).spawn().unwrap()
        };
        let stranger = || {
            let end = Instant::now() + Duration::from_secs(20);
            loop {
                match TcpStream::connect(format!("127.0.0.1:{port}")) {
                    Ok(stream) => break stream,
                    Err(e) => assert!(Instant::now() < end, "{e}"),
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        // One that says a byte now and then: rank 0 waits no longer for that.
        let (start, zero) = (Instant::now(), first("3"));
        let mut slow = stranger();
        let dripping = std::thread::spawn(move || {
            while start.elapsed() < Duration::from_secs(30) && slow.write_all(b"k").is_ok() {
                std::thread::sleep(Duration::from_millis(300));
            }
        });
        let why = error(&zero.wait_with_output().unwrap());
        assert!(why.contains("rank 1 did not come to") && start.elapsed() < Duration::from_secs(20), "{why}");
        dripping.join().unwrap();
        // Others that say something else, nothing, or that they are of another job: the ranks meet all the same.
        let zero = first("60");
        let mut others: Vec<TcpStream> = (0..4).map(|_| stranger()).collect();
        for (other, says) in others.iter_mut().zip(["GET / HTTP/1.1\r\n\r\n", "kjit-rank-2 1 other x\n", "kjit-rank-2 x -\n"]) {
            other.write_all(says.as_bytes()).unwrap();
        }
        let mut one = kjit("run");
        with(&mut one, &["--temp", "0"]);
        rank(&mut one, 1, 2, &port);
        // What a launcher hands to one of the ranks is nobody's prompt.
        let mut one = one.stdin(Stdio::piped()).spawn().unwrap();
        let stdin = one.stdin.take();
        let outputs = [zero.wait_with_output().unwrap(), one.wait_with_output().unwrap()];
        drop(stdin);
        assert_eq!(ids(&outputs[0]).len(), 12);
        assert!(outputs[1].status.success(), "{}", text(&outputs[1].stderr));
        let mut dash = plain("run");
        with(&mut dash, &["-p", "-"]);
        rank(&mut dash, 0, 2, &port);
        assert!(error(&dash.output().unwrap()).contains("reads no stdin"));
    });
}
