//! `--split ranks`: processes with one simulated AMD device each, connected by RCCL's calls. They
//! give the same tokens as one process with two devices, and as one device. Errors are tested too:
//! a rank is missing, exits, hangs, or has other input.

use crate::support::model;
use kjit_tests::simulator::Setup;
use serde_json::Value;
use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");
const PROMPT: &str =
    "Once upon a time there was a small engine that ran far behind all of the others of its line.";

fn setup(devices: &str) -> Setup {
    Setup::devices(devices).set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og")
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

/// The command without the prompt.
fn plain(command: &str) -> Command {
    let mut c = self::command(command, "96");
    if command == "run" {
        c.args(["--raw", "-n", "12", "--json"]);
    }
    c
}

/// The command without options of generation.
fn command(command: &str, context: &str) -> Command {
    let mut c = Command::new(assert_cmd::cargo::cargo_bin("kjit"));
    c.arg("--cache-dir").arg(cache()).env_remove("KJIT_CACHE_DIR").env("NO_COLOR", "1");
    c.arg(command).arg(model("tiny/tiny-llama-q8_0.gguf")).args([
        "-c",
        context,
        "--prefill-chunk",
        "16",
    ]);
    c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    c
}

/// A free port.
fn port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

/// Sets the variables of a rank.
fn rank(c: &mut Command, rank: usize, size: usize, port: &str) {
    c.args(["--split", "ranks"]).env("RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
    c.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port).env("LOCAL_RANK", rank.to_string());
    // Each rank sees one device.
    c.env("HIPSIM_DEVICES", "gfx1100");
}

fn with(c: &mut Command, flags: &[&str]) {
    c.args(flags);
}

fn var(c: &mut Command, name: &str, value: &str) {
    c.env(name, value);
}

/// Runs two ranks and returns their outputs. `with` changes a rank's command.
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

/// The single error line.
fn error(output: &Output) -> String {
    let said = text(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
    let lines: Vec<&str> = said.lines().filter(|l| l.starts_with("error")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    lines[0].to_owned()
}

#[test]
fn two_ranks_answer_like_one_process() {
    let test = "simulated_ranks::two_ranks_answer_like_one_process";
    setup("gfx1100,gfx1100").run(test, TEMPORARY, || {
        let start = Instant::now();
        let one = ids(&kjit("run").args(["--temp", "0", "--device", "rocm:0"]).output().unwrap());
        let mut together = kjit("run");
        let together = ids(&together
            .args(["--temp", "0", "--device", "rocm:0,rocm:1", "--split", "tensor"])
            .output()
            .unwrap());
        assert_eq!((one.len(), &together), (12, &one));
        let ranks = two("run", |_, c| with(c, &["--temp", "0"]));
        assert_eq!(ids(&ranks[0]), one);
        let said = text(&ranks[0].stderr);
        assert!(
            said.contains("share 1 of 2 of layers 0 to") && said.contains("rank 0 of 2 by RANK"),
            "{said}"
        );
        assert!(said.contains("library, version 2.18.5"), "{said}");
        // The other ranks compute the same tokens and print nothing.
        assert!(ranks[1].status.success(), "{}", text(&ranks[1].stderr));
        assert_eq!(
            (text(&ranks[1].stdout), text(&ranks[1].stderr)),
            (String::new(), String::new())
        );
        // stdin of a rank is not a prompt.
        let mut dash = plain("run");
        with(&mut dash, &["-p", "-"]);
        rank(&mut dash, 0, 2, &port());
        assert!(error(&dash.output().unwrap()).contains("does not read stdin"));
        // Random draws are the same in all ranks: if not, they would differ from the first token
        // on.
        let drawn = two("run", |_, c| with(c, &["--temp", "1.5"]));
        assert_eq!(ids(&drawn[0]).len(), 12);
        assert!(drawn[1].status.success(), "{}", text(&drawn[1].stderr));
        let scores = |c: &mut Command| {
            with(c, &["--json", "--top", "3", "--ids", "3,1,4,1,5,9,2,6,5,3,5,8,9,7,9,3,2,3,8"])
        };
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
fn failed_hanging_or_mismatched_rank_is_one_error() {
    let test = "simulated_ranks::failed_hanging_or_mismatched_rank_is_one_error";
    setup("gfx1100,gfx1100").run(test, TEMPORARY, || {
        let greedy = |c: &mut Command| with(c, &["--temp", "0"]);
        // The fault happens during generation: after the test patterns, the prompt and some tokens.
        let start = Instant::now();
        let ended = two("run", |rank, c| {
            greedy(c);
            if rank == 1 {
                c.env("HIPSIM_RCCL", "die:45");
            }
        });
        assert_eq!(ended[1].status.code(), Some(9));
        let why = error(&ended[0]);
        assert!(why.contains("rank 0 on rocm:0") && why.contains("rank 1 has ended"), "{why}");
        assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
        let start = Instant::now();
        let hangs = two("run", |rank, c| {
            greedy(c);
            c.env("KJIT_RANKS_LIMIT", "4");
            if rank == 1 {
                c.env("HIPSIM_RCCL", "hang:45");
            }
        });
        for (rank, output) in hangs.iter().enumerate() {
            let why = error(output);
            let found = ["waited longer than 4 s for the other ranks", "has ended"]
                .iter()
                .any(|s| why.contains(s));
            assert!(found && why.contains(&format!("rank {rank} on rocm:0")), "{why}");
        }
        assert!(start.elapsed() < Duration::from_secs(50), "{:?}", start.elapsed());
        // An equal number of different tokens.
        let mut other = plain("run");
        other.args(["-p", &PROMPT.replace("engine", "enginf")]);
        for (rank, output) in both([kjit("run"), other], |_, c| greedy(c)).iter().enumerate() {
            let why = error(output);
            let said = ["have different inputs", "has ended"].iter().any(|s| why.contains(s));
            assert!(said && (rank > 0 || why.contains("have different inputs")), "{rank}: {why}");
        }
        // A prompt of a single piece: its scores are ready before the ranks compare, and are not
        // printed.
        let scores = |ids: &'static str| {
            let mut c = kjit("logits");
            with(&mut c, &["--json", "--ids", ids]);
            c
        };
        let why = error(&both([scores("3,1,4"), scores("3,1,5")], |_, _| {})[0]);
        assert!(why.contains("rank 1 and rank 0 have different inputs"), "{why}");
        // An equal prompt with a different seed, or with a different stop string.
        let seeds = two("run", |rank, c| {
            with(c, &["--temp", "1.5", "--seed", if rank == 0 { "7" } else { "8" }])
        });
        let stops = two("run", |rank, c| {
            with(c, &["--temp", "0", "--stop", if rank == 0 { "x" } else { "y" }])
        });
        for output in [&seeds[0], &stops[0]] {
            let why = error(output);
            assert!(why.contains("rank 1 and rank 0 have different inputs"), "{why}");
        }
    });
}

#[test]
fn missing_rank_requirements_are_reported_before_work() {
    let test = "simulated_ranks::missing_rank_requirements_are_reported_before_work";
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
        assert!(
            missing.contains("rank 1 did not connect to 127.0.0.1:")
                && missing.contains("within 2 s"),
            "{missing}"
        );
        let late = alone(&|c| var(c, "RANK", "1"));
        assert!(late.contains("rank 0 did not listen at 127.0.0.1:"), "{late}");
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
        let none = alone(&|c| var(c, "KJIT_RCCL_LIBRARY", "/nowhere/librccl.so.1"));
        assert!(
            none.contains("RCCL (librccl.so.1) not found")
                && none.contains("/nowhere/librccl.so.1"),
            "{none}"
        );
        assert!(none.contains("install ROCm's package rccl"), "{none}");
        for version in ["2708", "4242424"] {
            let old = alone(&|c| var(c, "HIPSIM_RCCL", &format!("version:{version}")));
            assert!(old.contains(&format!("version code {version}, but 2.11 or newer")), "{old}");
        }
        let no_rank = alone(&|c| var(c, "RANK", ""));
        assert!(no_rank.contains("needs a launcher"), "{no_rank}");
        let several = alone(&|c| with(c, &["--device", "rocm:0,rocm:1"]));
        assert!(several.contains("each process has one GPU"), "{several}");
        // Ranks with different input.
        let differ =
            two("run", |rank, c| with(c, &["--kv-type", if rank == 0 { "f16" } else { "q8_0" }]));
        for (rank, output) in differ.iter().enumerate() {
            assert!(
                error(output).contains("rank 1 and rank 0 differ in options"),
                "{rank}: {}",
                error(output)
            );
        }
        let mut serve = kjit("serve");
        rank(&mut serve, 0, 2, &port());
        assert!(error(&serve.output().unwrap()).contains("not for serve"));
    });
}

#[test]
fn ctrl_c_at_any_rank_ends_all() {
    let test = "simulated_ranks::ctrl_c_at_any_rank_ends_all";
    setup("gfx1100").run(test, TEMPORARY, || {
        // Sends SIGINT to some ranks after the first words. Returns their outputs and the time.
        let interrupted = |at: &[usize]| {
            let port = port();
            let mut started: Vec<Child> = (0..2)
                .map(|i| {
                    let mut c = command("run", "480");
                    with(&mut c, &["--raw", "-n", "400", "--temp", "0", "-p", PROMPT]);
                    rank(&mut c, i, 2, &port);
                    c.spawn().unwrap()
                })
                .collect();
            let mut stdout = started[0].stdout.take().unwrap();
            let mut begin = [0u8; 4];
            if let Err(e) = stdout.read_exact(&mut begin) {
                let said: Vec<String> = started
                    .into_iter()
                    .map(|c| text(&c.wait_with_output().unwrap().stderr))
                    .collect();
                panic!("{e}: {said:?}");
            }
            let start = Instant::now();
            for &i in at {
                let pid = started[i].id().to_string();
                assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
            }
            // Reads the output of the ranks, as launchers do.
            let reader = std::thread::spawn(move || {
                std::io::copy(&mut stdout, &mut std::io::sink()).unwrap()
            });
            let all: Vec<Output> =
                started.into_iter().map(|c| c.wait_with_output().unwrap()).collect();
            assert!(reader.join().unwrap() < 300, "it was not interrupted");
            (all, start.elapsed())
        };
        for at in [&[0usize][..], &[1], &[1, 0]] {
            let (all, took) = interrupted(at);
            for (i, output) in all.iter().enumerate() {
                let said = text(&output.stderr);
                let lines: Vec<&str> = said.lines().filter(|l| !l.starts_with("device:")).collect();
                let (code, words) = match at.contains(&i) {
                    true => (130, "interrupted".to_owned()),
                    false => (1, format!("error: rank {i} on rocm:0: rank {} has ended", 1 - i)),
                };
                assert_eq!(output.status.code(), Some(code), "SIGINT at {at:?}, rank {i}: {said}");
                assert!(
                    lines.len() == 1 && lines[0].contains(&words),
                    "SIGINT at {at:?}, rank {i}: {said}"
                );
            }
            assert!(took < Duration::from_secs(20), "SIGINT at {at:?}: {took:?}");
        }
        // Ranks that measure different numbers of tokens get an error immediately.
        let port = port();
        let started = [4, 5].map(|tokens| {
            let mut c = command("bench", "96");
            with(&mut c, &["-p", "0", "-r", "1", "-n", &tokens.to_string()]);
            rank(&mut c, tokens - 4, 2, &port);
            c.spawn().unwrap()
        });
        let outputs = started.map(|one| one.wait_with_output().unwrap());
        let why = error(&outputs[0]);
        assert!(why.contains("rank 1 and rank 0 have different inputs"), "{why}");
    });
}
