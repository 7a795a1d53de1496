//! Models by name, with a hub on 127.0.0.1.

use crate::support::model;
use crate::support::server::{Fault, Repo, Server, noise, repo, sha256};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const LEN: usize = 3_000_017;
const TINY: &str = "tiny/tiny-llama-q8_0.gguf";

/// A hub with a model that can be run, and a model of random bytes.
fn served() -> Server {
    let tiny = fs::read(model(TINY)).unwrap();
    let files = [
        ("tiny-Q8_0.gguf", tiny),
        ("big-Q4_0.gguf", noise(LEN, 1)),
        ("config.json", b"{}".to_vec()),
    ];
    Server::new(vec![repo("org/tiny-GGUF", &files)])
}

/// The command in a clean environment.
fn kjit(endpoint: &str, cache: &Path, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_kjit"));
    for name in [
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "HF_TOKEN_PATH",
        "HF_HOME",
        "HUGGINGFACE_HUB_CACHE",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "SSL_CERT_FILE",
        "XDG_CACHE_HOME",
    ] {
        c.env_remove(name);
    }
    // The test does not use the home folder and the token of the user.
    c.env("HOME", cache)
        .env("HF_ENDPOINT", endpoint)
        .env("HF_HUB_CACHE", cache)
        .env("NO_COLOR", "1");
    c.args(args).stdin(Stdio::null());
    c
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn good(mut c: Command) -> (String, String) {
    let output = c.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

/// The single error line.
#[track_caller]
fn failed(output: &Output, code: i32) -> String {
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{said}");
    let lines: Vec<&str> = said.lines().filter(|l| l.starts_with("error: ")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    lines[0].to_owned()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn partial(cache: &Path) -> PathBuf {
    cache
        .join("models--org--tiny-GGUF/blobs")
        .join(format!("{}.incomplete", sha256(&noise(LEN, 1))))
}

fn wait_for(what: &str, ready: impl Fn() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < Duration::from_secs(30), "waited for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn encoder_of_images_is_fetched_with_its_model() {
    let vision = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/vision");
    let encoder = fs::read(vision.join("llava.gguf")).unwrap();
    let files =
        [("tiny-Q8_0.gguf", fs::read(model(TINY)).unwrap()), ("mmproj-tiny-f16.gguf", encoder)];
    let server = Server::new(vec![repo("org/tiny-GGUF", &files)]);
    let cache = tempfile::tempdir().unwrap();
    let kjit = |args: &[&str]| kjit(&server.endpoint, cache.path(), args);
    let name = "hf:org/tiny-GGUF:q8_0";
    let run = ["run", name, "-p", "hi", "-n", "1", "--device", "cpu"];
    // A prompt of text needs no encoder.
    good(kjit(&[&run[..], &["--raw"]].concat()));
    assert_eq!(server.count("GET cdn"), 1);
    // This encoder is another model's: a note says so, and the image has no place.
    let picture = vision.join("61x37.png").display().to_string();
    let output = kjit(&[&run[..], &["--image", &picture]].concat()).output().unwrap();
    let error = failed(&output, 1);
    assert!(error.contains("--image needs the encoder of the model's images"), "{error}");
    let said = text(&output.stderr);
    assert!(
        said.contains("note: the model reads text only") && said.contains("rows of 24"),
        "{said}"
    );
    assert_eq!(server.count("GET cdn"), 2);
    let pulled = json(&good(kjit(&["pull", name, "--json"])).0);
    let encoder = pulled["encoder"].as_str().unwrap();
    assert!(encoder.ends_with("mmproj-tiny-f16.gguf") && Path::new(encoder).exists(), "{pulled}");
    assert_eq!(pulled["files"].as_array().unwrap().len(), 1);
    let wrong = kjit(&[&run[..], &["--no-mmproj", "--image", &picture]].concat()).output().unwrap();
    failed(&wrong, 2);
}

#[test]
fn model_runs_by_name_and_is_listed_and_removed() {
    let (server, cache) = (served(), tempfile::tempdir().unwrap());
    let kjit = |args: &[&str]| kjit(&server.endpoint, cache.path(), args);
    let tail = ["--raw", "-p", "hi", "-n", "3", "--temp", "0", "--json", "--device", "cpu"];
    let by_path = model(TINY);
    let ids =
        |model: &str| json(&good(kjit(&[&["run", model][..], &tail].concat())).0)["ids"].clone();
    let right = ids(by_path.to_str().unwrap());
    assert_eq!(ids("hf:org/tiny-GGUF:q8_0"), right);
    assert_eq!(server.count("GET cdn"), 1);
    server.forget();
    for name in ["hf:org/tiny-GGUF:Q8_0", "hf:org/tiny-GGUF", "hf:org/tiny-GGUF/tiny-Q8_0.gguf"] {
        assert_eq!(ids(name), right, "{name}");
    }
    // Each command that takes a model accepts its name on the hub.
    let name = "hf:org/tiny-GGUF:Q8_0";
    for args in [
        &["inspect", name][..],
        &["logits", name, "--ids", "1", "--device", "cpu"],
        &["bench", name, "-p", "2", "-n", "1", "-r", "1", "--device", "cpu"],
        &["warm", name, "--arch", "gfx1100", "--no-cache", "--compiler", "nvrtc"],
        &["cache", "stat", "--model", name, "--no-cache"],
        &["embed", name, "--jsonl", "--pooling", "mean", "--device", "cpu"],
        &["tokenize", name, "--jsonl"],
        &["detokenize", name, "--jsonl"],
        &["template", name, "--jsonl"],
    ] {
        let output = kjit(args).output().unwrap();
        let said = text(&output.stderr);
        assert!(
            !said.contains("hub") && !said.contains("hf:") && !said.contains("cannot read"),
            "{args:?}: {said}"
        );
        // The model has no chat template, and the compiler is for other cards.
        assert!(
            output.status.success() || ["warm", "template"].contains(&args[0]),
            "{args:?}: {said}"
        );
    }
    assert_eq!(server.seen().len(), 0);
    let file = good(kjit(&["pull", "hf:org/tiny-GGUF:Q8_0"])).0;
    assert_eq!(fs::read(file.trim_end()).unwrap(), fs::read(by_path).unwrap());
    let pulled = json(&good(kjit(&["pull", "hf:org/tiny-GGUF:Q4_0", "--json"])).0);
    assert_eq!((&pulled["fetched"], &pulled["bytes"]), (&Value::from(LEN), &Value::from(LEN)));
    let listed = json(&good(kjit(&["list", "--json"])).0);
    let names: Vec<&str> =
        listed.as_array().unwrap().iter().map(|l| l["ref"].as_str().unwrap()).collect();
    assert_eq!(names, ["hf:org/tiny-GGUF/big-Q4_0.gguf", "hf:org/tiny-GGUF/tiny-Q8_0.gguf"]);
    assert_eq!(
        (&listed[0]["bytes"], &listed[0]["revisions"][0]),
        (&Value::from(LEN), &Value::from("main"))
    );
    let table = good(kjit(&["list"])).0;
    assert!(
        table.lines().count() == 2 && table.contains("3.00 MB") && table.contains("  main "),
        "{table}"
    );
    good(kjit(&["rm", "hf:org/tiny-GGUF:Q4_0"]));
    assert_eq!(good(kjit(&["list"])).0.lines().count(), 1);
    assert!(
        failed(&kjit(&["rm", "hf:org/tiny-GGUF:Q4_0"]).output().unwrap(), 1).contains("kjit list")
    );
    good(kjit(&["rm", names[1]]));
    let (out, err) = good(kjit(&["list"]));
    assert!(out.is_empty() && err.contains("no models in") && err.contains("kjit pull"), "{err}");
    assert!(!cache.path().join("models--org--tiny-GGUF").exists());
}

#[test]
fn rm_keeps_files_of_python_and_other_commits() {
    let (server, cache) = (served(), tempfile::tempdir().unwrap());
    let kjit = |args: &[&str]| kjit(&server.endpoint, cache.path(), args);
    good(kjit(&["pull", "hf:org/tiny-GGUF:Q4_0"]));
    let folder = cache.path().join("models--org--tiny-GGUF");
    let commit = fs::read_to_string(folder.join("refs/main")).unwrap();
    fs::write(folder.join("blobs/0123"), "{}").unwrap();
    std::os::unix::fs::symlink(
        "../../blobs/0123",
        folder.join("snapshots").join(commit).join("config.json"),
    )
    .unwrap();
    // A second commit with the same file, and an unfinished one.
    let now = Repo {
        commit: "0123456789012345678901234567890123456789".into(),
        ..repo("org/tiny-GGUF", &[("big-Q4_0.gguf", noise(LEN, 1))])
    };
    server.replace(now);
    assert!(good(kjit(&["pull", "hf:org/tiny-GGUF:Q4_0"])).1.contains("nothing to download"));
    fs::write(folder.join("blobs/4567.incomplete"), "half").unwrap();
    let removed = json(
        &good(kjit(&[
            "rm",
            "hf:org/tiny-GGUF@0123456789012345678901234567890123456789:Q4_0",
            "--json",
        ]))
        .0,
    );
    assert_eq!(
        (&removed["bytes"], &removed["files"][0]),
        (&Value::from(0), &Value::from("big-Q4_0.gguf"))
    );
    let removed = json(&good(kjit(&["rm", "hf:org/tiny-GGUF", "--json"])).0);
    assert_eq!(removed["bytes"], Value::from(LEN + 4));
    assert!(folder.join("blobs/0123").exists() && !folder.join("blobs/4567.incomplete").exists());
}

/// A fetch of the large file that hangs halfway.
fn halfway(server: &Server, cache: &Path) -> Child {
    server.fault("GET cdn", Fault::Wait(LEN / 2, Arc::new(AtomicBool::new(false))));
    let mut c = kjit(&server.endpoint, cache, &["pull", "hf:org/tiny-GGUF:Q4_0"]);
    let child = c.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("half of the file", || {
        fs::metadata(partial(cache)).is_ok_and(|m| m.len() >= LEN as u64 / 2)
    });
    child
}

#[test]
fn killed_or_interrupted_fetch_is_resumed() {
    for signal in [libc::SIGKILL, libc::SIGINT] {
        let (server, cache) = (served(), tempfile::tempdir().unwrap());
        let child = halfway(&server, cache.path());
        // SAFETY: kill takes two numbers; the child was not waited for yet, so its id is still
        // valid.
        unsafe { libc::kill(i32::try_from(child.id()).unwrap(), signal) };
        let ended = child.wait_with_output().unwrap();
        if signal == libc::SIGINT {
            assert_eq!(ended.status.code(), Some(130));
            let said = text(&ended.stderr);
            assert!(said.lines().any(|l| l.starts_with("interrupted")), "{said}");
        }
        let here = fs::metadata(partial(cache.path())).unwrap().len();
        server.forget();
        let (_, said) =
            good(kjit(&server.endpoint, cache.path(), &["pull", "hf:org/tiny-GGUF:Q4_0"]));
        assert!(said.contains("of which") && said.contains("are downloaded"), "{said}");
        let ranges: Vec<_> = server
            .seen()
            .into_iter()
            .filter(|s| s.what.contains("GET cdn"))
            .map(|s| s.range)
            .collect();
        assert_eq!(ranges, [Some(format!("bytes={here}-"))]);
    }
}

#[test]
fn two_processes_fetch_one_file_once() {
    let (server, cache) = (served(), tempfile::tempdir().unwrap());
    let go = Arc::new(AtomicBool::new(false));
    server.fault("GET cdn", Fault::Wait(1000, Arc::clone(&go)));
    let start = || {
        let mut c = kjit(&server.endpoint, cache.path(), &["pull", "hf:org/tiny-GGUF:Q4_0"]);
        c.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let first = start();
    wait_for("the first bytes", || {
        fs::metadata(partial(cache.path())).is_ok_and(|m| m.len() >= 1000)
    });
    let mut second = start();
    let mut said = String::new();
    BufReader::new(second.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("another process fetches big-Q4_0.gguf"), "{said}");
    go.store(true, SeqCst);
    let ends: Vec<Output> =
        [first, second].into_iter().map(|c| c.wait_with_output().unwrap()).collect();
    assert!(ends.iter().all(|e| e.status.success()), "{ends:?}");
    assert_eq!(ends[0].stdout, ends[1].stdout);
    assert_eq!(server.count("GET cdn"), 1);
}

#[test]
fn hub_errors_are_one_line_without_token() {
    let (server, cache) = (served(), tempfile::tempdir().unwrap());
    let run = |args: &[&str], vars: &[(&str, &str)]| {
        let mut c = kjit(&server.endpoint, cache.path(), args);
        c.envs(vars.iter().copied()).output().unwrap()
    };
    for (args, vars, code, words) in [
        (&["pull", "tiny"][..], &[][..], 2, &["hf:ORG/REPO"][..]),
        (&["run", "hf:tiny", "-p", "x"], &[], 2, &["hf:tiny", "hf:ORG/REPO"]),
        (&["run", "hf:a/b/../c.gguf", "-p", "x"], &[], 2, &["hf:ORG/REPO"]),
        (&["pull", "hf:org/nothing"], &[], 1, &["no repository org/nothing", "HF_TOKEN"]),
        (&["pull", "hf:org/tiny-GGUF:Q3_K"], &[], 1, &["big-Q4_0.gguf, tiny-Q8_0.gguf"]),
        (
            &["run", "hf:org/tiny-GGUF", "-p", "x"],
            &[],
            1,
            &["big-Q4_0.gguf, tiny-Q8_0.gguf", "name one"],
        ),
        (
            &["pull", "hf:org/tiny-GGUF"],
            &[("HF_TOKEN", "hf_wrong")],
            1,
            &["refuses the token", "/settings/tokens"],
        ),
        (&["pull", "hf:org/tiny-GGUF"], &[("HF_TOKEN", "hf_\u{fc}")], 1, &["HF_TOKEN"]),
        (&["pull", "hf:org/tiny-GGUF:Q8_0"], &[("HF_HUB_OFFLINE", "1")], 1, &["HF_HUB_OFFLINE"]),
        (
            &["pull", "hf:org/tiny-GGUF:Q8_0"],
            &[("HF_ENDPOINT", "hub.example")],
            1,
            &["HF_ENDPOINT", "https://"],
        ),
        (
            &["pull", "hf:org/tiny-GGUF:Q8_0"],
            &[("SSL_CERT_FILE", "/no/such/file")],
            1,
            &["SSL_CERT_FILE", "/no/such/file"],
        ),
        (&["rm", "hf:org/tiny-GGUF:Q8_0"], &[], 1, &["not in", "kjit list"]),
        (&["cache", "list", "--model", "hf:org/tiny-GGUF:Q8_0"], &[], 1, &["not in", "kjit list"]),
        (
            &["pull", "hf:org/tiny-GGUF:Q8_0"],
            &[("HF_HUB_CACHE", "/dev/null/x")],
            1,
            &["HF_HUB_CACHE", "/dev/null/x"],
        ),
    ] {
        let line = failed(&run(args, vars), code);
        assert!(
            words.iter().all(|w| line.contains(w)) && !line.contains("hf_"),
            "{args:?}: {line}"
        );
    }
    assert_eq!(server.count("GET cdn"), 0);
}

#[test]
fn token_comes_from_variable_or_file_and_stays_private() {
    let (server, cache) = (served(), tempfile::tempdir().unwrap());
    fs::create_dir(cache.path().join("home")).unwrap();
    fs::write(cache.path().join("home/token"), "hf_file\n").unwrap();
    let home = cache.path().join("home");
    for (variable, want) in [(None, "Bearer hf_file"), (Some("hf_variable"), "Bearer hf_variable")]
    {
        server.forget();
        let mut c = kjit(
            &server.endpoint,
            &cache.path().join(want),
            &["pull", "-q", "hf:org/tiny-GGUF:Q8_0"],
        );
        c.env("HF_HOME", &home);
        if let Some(token) = variable {
            c.env("HF_TOKEN", token);
        }
        assert_eq!(good(c).1, "", "-q says nothing");
        for seen in server.seen() {
            assert_eq!(
                seen.token.as_deref(),
                seen.what.contains(" hub ").then_some(want),
                "{seen:?}"
            );
        }
    }
    // Without HF_HUB_CACHE the folder is below HF_HOME, or below the user's cache folder.
    for (name, below) in [
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HOME", ".cache/huggingface/hub"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut c = kjit(&server.endpoint, cache.path(), &["pull", "hf:org/tiny-GGUF:Q8_0"]);
        let path = good_path(c.env_remove("HF_HUB_CACHE").env(name, dir.path()));
        assert!(path.starts_with(dir.path().join(below)), "{name}: {}", path.display());
    }
}

fn good_path(c: &mut Command) -> PathBuf {
    let output = c.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    PathBuf::from(text(&output.stdout).trim_end())
}

/// The command in a mount namespace with the cache on a small tmpfs. `None`, with a SKIPPED line,
/// if this process may not mount.
fn on_tmpfs(endpoint: &str, cache: &Path, options: &str, script: &str) -> Option<Output> {
    let mut c = kjit(endpoint, cache, &[]);
    let (program, envs) = (
        c.get_program().to_owned(),
        c.get_envs().map(|(k, v)| (k.to_owned(), v.map(ToOwned::to_owned))).collect::<Vec<_>>(),
    );
    let mount = format!("mount -t tmpfs -o {options} tmpfs \"$HF_HUB_CACHE\" || exit 77; {script}");
    c = Command::new("unshare");
    c.args(["-m", "sh", "-c", &mount, "sh"]).arg(program).stdin(Stdio::null());
    for (name, value) in envs {
        match value {
            Some(value) => c.env(name, value),
            None => c.env_remove(name),
        };
    }
    let output = c
        .output()
        .ok()
        .filter(|o| o.status.code() != Some(77) && !text(&o.stderr).starts_with("unshare:"));
    if output.is_none() {
        eprintln!("SKIPPED: this process may not mount a tmpfs");
    }
    output
}

#[test]
fn full_disk_keeps_partial_download() {
    let (server, cache) = (served(), tempfile::tempdir().unwrap());
    let pull = "\"$1\" pull hf:org/tiny-GGUF:Q4_0";
    let Some(output) = on_tmpfs(&server.endpoint, cache.path(), "size=1m", pull) else { return };
    let line = failed(&output, 1);
    assert!(line.contains("needs 3.00 MB") && line.contains("HF_HUB_CACHE"), "{line}");
    assert_eq!(server.count("GET cdn"), 0);
    // There is enough space at first. Then another file takes it.
    let go = Arc::new(AtomicBool::new(false));
    server.fault("GET cdn", Fault::Wait(LEN / 2, Arc::clone(&go)));
    let outside = tempfile::tempdir().unwrap();
    let filled = outside.path().join("filled");
    let script = format!(
        "{pull} & pid=$!; while [ \"$(cat \"$HF_HUB_CACHE\"/*/blobs/*.incomplete \
         2>/dev/null | wc -c)\" -lt {} ]; do sleep 0.05; done; \
         head -c 9000000 /dev/zero > \"$HF_HUB_CACHE/other\" 2>/dev/null; touch '{}'; wait $pid; \
         code=$?; [ \"$(cat \"$HF_HUB_CACHE\"/*/blobs/*.incomplete | wc -c)\" -ge {} ] || exit 78; \
         exit $code",
        LEN / 2,
        filled.display(),
        LEN / 2
    );
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_for("a full disk", || filled.exists());
            go.store(true, SeqCst);
        });
        on_tmpfs(&server.endpoint, cache.path(), "size=4m", &script)
    });
    let line = failed(&output.unwrap(), 1);
    assert!(line.contains("0 B free") && line.contains("downloaded parts are kept"), "{line}");
}

#[test]
fn read_only_hub_cache_serves_its_models() {
    let (server, cache) = (served(), tempfile::tempdir().unwrap());
    let script = "\"$1\" pull -q hf:org/tiny-GGUF:Q8_0 || exit 78; \
        mount -o remount,ro \"$HF_HUB_CACHE\"; \"$1\" inspect hf:org/tiny-GGUF:Q8_0 > /dev/null \
        && \"$1\" pull hf:org/tiny-GGUF:Q8_0 >/dev/null 2>&1 && \"$1\" list >/dev/null || exit 79; \
        \"$1\" rm hf:org/tiny-GGUF:Q8_0 2>/dev/null; \
        [ $? = 1 ] || exit 80; exec \"$1\" pull hf:org/tiny-GGUF:Q4_0";
    // stdout is the path from the first pull.
    let Some(mut output) = on_tmpfs(&server.endpoint, cache.path(), "size=400m", script) else {
        return;
    };
    output.stdout.clear();
    let line = failed(&output, 1);
    assert!(line.contains("Read-only file system") && line.contains("HF_HUB_CACHE"), "{line}");
}

#[test]
fn progress_follows_terminal_and_quiet_flag() {
    let server = served();
    let seen = |args: &[&str]| {
        let cache = tempfile::tempdir().unwrap();
        let words: Vec<String> = kjit(&server.endpoint, cache.path(), args)
            .get_args()
            .map(|a| a.to_string_lossy().into_owned())
            .collect();
        // `script` gives a terminal.
        let line = format!("{} {} > /dev/null", env!("CARGO_BIN_EXE_kjit"), words.join(" "));
        let mut c = Command::new("script");
        c.args(["-qec", &line, "/dev/null"])
            .env("HF_ENDPOINT", &server.endpoint)
            .env("HF_HUB_CACHE", cache.path())
            .env("TERM", "xterm");
        c.stdin(Stdio::null()).output().map(|o| text(&o.stdout))
    };
    match seen(&["pull", "hf:org/tiny-GGUF:Q4_0"]) {
        Err(why) => eprintln!("SKIPPED: no `script` to make a terminal with: {why}"),
        Ok(bar) => {
            assert!(
                bar.contains("big-Q4_0.gguf") && bar.contains("MiB") && bar.contains('\r'),
                "{bar:?}"
            );
            assert_eq!(seen(&["pull", "-q", "hf:org/tiny-GGUF:Q4_0"]).unwrap(), "");
        }
    }
    let cache = tempfile::tempdir().unwrap();
    let (_, said) = good(kjit(&server.endpoint, cache.path(), &["pull", "hf:org/tiny-GGUF:Q4_0"]));
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(
        said.starts_with("fetching big-Q4_0.gguf, 3.00 MB\n") && !said.contains(['\r', '\u{1b}']),
        "{said:?}"
    );
}

#[test]
fn huggingface_hub_and_kjit_share_downloads() {
    let python = |script: &str, server: &Server, cache: &Path, vars: &[(&str, &str)]| {
        let mut c = Command::new("python3");
        c.args(["-c", script])
            .env("HF_ENDPOINT", &server.endpoint)
            .env("HF_HUB_CACHE", cache)
            .env("HF_HUB_DISABLE_XET", "1");
        c.env("HF_HUB_DISABLE_TELEMETRY", "1").envs(vars.iter().copied()).output()
    };
    let (server, cache) = (served(), tempfile::tempdir().unwrap());
    if !python("import huggingface_hub", &server, cache.path(), &[])
        .is_ok_and(|o| o.status.success())
    {
        eprintln!("SKIPPED: no Python with huggingface_hub here");
        return;
    }
    let fetch = "import huggingface_hub as h; print(h.hf_hub_download('org/tiny-GGUF', 'FILE'))";
    // Python finds a model that kjit fetched, offline, and the hub confirms it.
    let ours = good_path(&mut kjit(
        &server.endpoint,
        cache.path(),
        &["pull", "-q", "hf:org/tiny-GGUF:Q8_0"],
    ));
    server.forget();
    for vars in [&[("HF_HUB_OFFLINE", "1")][..], &[]] {
        let output =
            python(&fetch.replace("FILE", "tiny-Q8_0.gguf"), &server, cache.path(), vars).unwrap();
        assert_eq!(
            text(&output.stdout).trim_end(),
            ours.to_str().unwrap(),
            "{}",
            text(&output.stderr)
        );
    }
    assert_eq!(server.count("GET cdn"), 0);
    // kjit finds a model that Python fetched, without a request to the hub.
    let output =
        python(&fetch.replace("FILE", "big-Q4_0.gguf"), &server, cache.path(), &[]).unwrap();
    let theirs = PathBuf::from(text(&output.stdout).trim_end());
    assert_eq!(fs::read(&theirs).unwrap_or_default(), noise(LEN, 1), "{}", text(&output.stderr));
    server.forget();
    let mut offline = kjit(&server.endpoint, cache.path(), &["list", "--json"]);
    let listed = json(&good_text(offline.env("HF_HUB_OFFLINE", "1")));
    assert_eq!(listed.as_array().unwrap().len(), 2);
    assert_eq!(listed[0]["path"], theirs.to_str().unwrap());
    assert_eq!(
        good_path(&mut kjit(&server.endpoint, cache.path(), &["pull", "hf:org/tiny-GGUF:Q4_0"])),
        theirs
    );
    assert_eq!(server.count("GET cdn"), 0);
}

fn good_text(c: &mut Command) -> String {
    let output = c.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}
