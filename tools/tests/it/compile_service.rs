//! Faulty compilers, tested through the command: one error with the compiler's log, exit 1, and
//! only the answer on stdout. The compilers are a clang with faults that a test sets
//! (`support/clang.sh`), and the simulated hiprtc, whose faults happen in kjit's compiler process.

use crate::support::model;
use kjit_tests::simulator::Setup;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");
const CLANG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/clang.sh");

fn tiny() -> PathBuf {
    model("tiny/tiny-llama-q4_k_m.gguf")
}

fn real_clang() -> Option<PathBuf> {
    let all = std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|p| p.join("clang-19"))
        .collect::<Vec<_>>();
    let found = all.into_iter().find(|p| p.is_file());
    if found.is_none() {
        eprintln!("SKIPPED: no clang-19 here (Debian: clang-19 lld-19), so nothing was compiled");
    }
    found
}

/// `kjit warm` of a small model for gfx1100 with the faulty clang.
fn warm(cache: &Path, clang: &Path) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_kjit"));
    c.arg("warm").arg(tiny()).args([
        "--arch",
        "gfx1100",
        "--compiler",
        "clang",
        "--json",
        "-q",
        "--compiler-path",
        CLANG,
    ]);
    c.arg("--cache-dir").arg(cache).env("TEST_REAL_CLANG", clang).env("NO_COLOR", "1");
    for name in ["TEST_CLANG", "TEST_LOG", "TEST_ONCE", "KJIT_CACHE_DIR"] {
        c.env_remove(name);
    }
    c
}

fn document(out: &Output) -> Value {
    let text = String::from_utf8_lossy(&out.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("{e}: {text:?}, {}", String::from_utf8_lossy(&out.stderr)))
}

fn errors(out: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&out.stderr);
    text.lines().filter(|l| l.starts_with("error: ")).map(str::to_owned).collect()
}

/// Removes the kernels with these names from a cache.
fn forget(cache: &Path, kernels: &[&str]) {
    for kernel in kernels {
        let mut c = Command::new(env!("CARGO_BIN_EXE_kjit"));
        let done = c
            .args(["cache", "clear", "--kernel", kernel, "--cache-dir"])
            .arg(cache)
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

/// Number of kernels in a cache.
fn entries(cache: &Path) -> u64 {
    let mut c = Command::new(env!("CARGO_BIN_EXE_kjit"));
    let out = c.args(["cache", "list", "--json", "--cache-dir"]).arg(cache).output().unwrap();
    document(&out).as_array().unwrap().len() as u64
}

/// A separate cache with all kernels of the model except these kernels. Compiled once for all
/// tests.
fn cache_without(clang: &Path, kernels: &[&str]) -> tempfile::TempDir {
    let shared = Path::new(TEMPORARY).join("compile-service");
    let out = warm(&shared, clang).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let own = tempfile::tempdir().unwrap();
    let copied = Command::new("cp").arg("-a").arg(&shared).arg(own.path()).status().unwrap();
    assert!(copied.success());
    std::fs::rename(own.path().join("compile-service"), own.path().join("cache")).unwrap();
    forget(&own.path().join("cache"), kernels);
    own
}

/// The clang fails for one kernel. Returns the output, the JSON document and the lines of stderr.
fn goes_wrong(how: &str, variables: &[(&str, &str)]) -> Option<(Output, Value, Vec<String>)> {
    let clang = real_clang()?;
    let own = cache_without(&clang, &["argmax"]);
    let mut command = warm(&own.path().join("cache"), &clang);
    command.env("TEST_CLANG", how).env("TMPDIR", own.path()).envs(variables.iter().copied());
    let out = command.output().unwrap();
    let (document, errors) = (document(&out), errors(&out));
    let all =
        document["kernels"].as_array().unwrap().len() as u64 + document["failed"].as_u64().unwrap();
    assert_eq!(document["cached"].as_u64().unwrap() + 1, all, "{how}: {document}");
    // The folder is removed at the end of the test, so files that an error names must be examined
    // now.
    for error in &errors {
        assert!(error.contains("'argmax'") && error.contains("clang 19"), "{error}");
        for log in error.split(['(', ')', ' ', ';', ',']).filter(|w| w.ends_with("log.txt")) {
            assert!(Path::new(log).is_file(), "{log} is not there: {error}");
        }
    }
    Some((out, document, errors))
}

/// The error line of a fault. The fault must be an error.
fn fails(how: &str, variables: &[(&str, &str)]) -> Option<String> {
    let (out, document, errors) = goes_wrong(how, variables)?;
    assert_eq!(out.status.code(), Some(1), "{how}");
    assert_eq!(document["failed"], 1, "{how}: {document}");
    assert_eq!(errors.len(), 1, "{how}: {errors:?}");
    eprintln!("{}", errors[0]);
    errors.into_iter().next()
}

#[test]
fn aborting_clang_is_retried_once_and_reported_with_log() {
    let Some(error) = fails("abort", &[]) else { return };
    for word in ["killed by signal 6", "twice", "PLEASE submit a bug report", "log: "] {
        assert!(error.contains(word), "{word}: {error}");
    }
}

#[test]
fn looping_clang_is_stopped_at_the_deadline() {
    let began = Instant::now();
    // The compiler inherits the environment: a variable of this test identifies its process.
    let mark = format!("of-{}", std::process::id());
    let Some(error) = fails("loop", &[("KJIT_COMPILE_SECONDS", "3"), ("TEST_MARK", &mark)]) else {
        return;
    };
    assert!(error.contains("was stopped after 3 s (time limit)"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(120));
    assert_eq!(processes_with(&format!("TEST_MARK={mark}")), Vec::<String>::new(), "still running");
}

#[test]
fn deadline_kills_children_outside_the_process_group() {
    let mark = format!("left-{}", std::process::id());
    let Some(error) = fails("leave", &[("KJIT_COMPILE_SECONDS", "3"), ("TEST_MARK", &mark)]) else {
        return;
    };
    assert!(error.contains("was stopped after 3 s (time limit)"), "{error}");
    assert_eq!(processes_with(&format!("TEST_MARK={mark}")), Vec::<String>::new(), "still running");
}

#[test]
fn ctrl_c_in_warm_exits_130_and_cleans_up() {
    let Some(clang) = real_clang() else { return };
    let own = cache_without(&clang, &["argmax"]);
    let (cache, temporary) = (own.path().join("cache"), own.path().join("temporary"));
    std::fs::create_dir(&temporary).unwrap();
    let mark = format!("TEST_MARK=of-{}", std::process::id());
    let quiet = warm(&cache, &clang);
    let mut c = Command::new(quiet.get_program());
    c.args(quiet.get_args().filter(|a| *a != "-q"))
        .envs(quiet.get_envs().filter_map(|(name, value)| Some((name, value?))));
    c.env("TEST_CLANG", "loop")
        .env("TMPDIR", &temporary)
        .envs(mark.split_once('='))
        .env_remove("KJIT_CACHE_DIR");
    let child =
        c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let wait_for = |what: &str, ready: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !ready() {
            assert!(began.elapsed() < Duration::from_secs(60), "waited for {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // The looping clang has started: its source file exists.
    wait_for("the compile", &|| files_below(&temporary).iter().any(|f| f.ends_with("argmax.hip")));
    // SAFETY: `kill` takes two numbers; the child belongs to this process and was not waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!((out.status.code(), out.stdout.len()), (Some(130), 0), "{said}");
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("interrupted: ")).collect();
    wait_for("the compiler to go", &|| processes_with(&mark).is_empty());
    wait_for("its files to go", &|| files_below(&temporary).is_empty());
    // The next run compiles the remaining kernel.
    let out = warm(&cache, &clang).output().unwrap();
    assert_eq!((out.status.code(), &document(&out)["compiled"]), (Some(0), &1.into()));
    let there = document(&out)["cached"].as_u64().unwrap();
    let wanted = format!(
        "interrupted: {there} of {} kernels are compiled; run the command again to continue",
        there + 1
    );
    assert_eq!(lines, [wanted], "{said}");
}

/// All files below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// Processes with this variable in their environment.
fn processes_with(variable: &str) -> Vec<String> {
    let all = std::fs::read_dir("/proc").unwrap().flatten().map(|e| e.path());
    // Processes that have ended, and unreadable processes of other users, are skipped.
    all.filter(|p| {
        std::fs::read(p.join("environ"))
            .is_ok_and(|e| e.split(|&b| b == 0).any(|v| v == variable.as_bytes()))
    })
    .map(|p| {
        format!(
            "{}: {}",
            p.display(),
            std::fs::read_to_string(p.join("cmdline")).unwrap_or_default().replace('\0', " ")
        )
    })
    .collect()
}

#[test]
fn memory_limit_stops_clang() {
    let Some(error) = fails("eat", &[("KJIT_COMPILE_MEMORY", "1024"), ("LC_ALL", "C")]) else {
        return;
    };
    assert!(error.contains("memory exhausted"), "{error}");
}

#[test]
fn clang_output_on_stdout_is_not_forwarded() {
    let Some((out, document, errors)) = goes_wrong("print", &[]) else { return };
    assert!(out.status.success() && errors.is_empty(), "{errors:?}");
    assert_eq!(document["compiled"], 1);
    assert!(!String::from_utf8_lossy(&out.stdout).contains("valid answer"));
}

#[test]
fn clang_killed_once_is_retried() {
    let own = tempfile::tempdir().unwrap();
    let once = own.path().join("once");
    let Some((out, document, errors)) =
        goes_wrong("kill", &[("TEST_ONCE", once.to_str().unwrap())])
    else {
        return;
    };
    assert!(out.status.success() && errors.is_empty() && once.is_dir(), "{errors:?}");
    assert_eq!(document["compiled"], 1);
}

#[test]
fn invalid_code_object_is_not_cached() {
    let Some(clang) = real_clang() else { return };
    let own = cache_without(&clang, &["argmax"]);
    let cache = own.path().join("cache");
    let out = warm(&cache, &clang).env("TEST_CLANG", "garbage").output().unwrap();
    let told = errors(&out);
    assert_eq!((out.status.code(), told.len()), (Some(1), 1), "{told:?}");
    assert!(told[0].contains("'argmax'") && told[0].contains("damaged"), "{told:?}");
    // A correct compiler with the same bytes is not affected.
    let out = warm(&cache, &clang).output().unwrap();
    assert!(out.status.success());
    assert_eq!(document(&out)["compiled"], 1);
}

#[test]
fn compile_error_names_source_line_and_repro_script() {
    let Some(clang) = real_clang() else { return };
    let own = cache_without(&clang, &["argmax"]);
    let mut command = warm(&own.path().join("cache"), &clang);
    let out = command.env("TEST_CLANG", "refuse").env("TMPDIR", own.path()).output().unwrap();
    let told = errors(&out);
    assert_eq!((out.status.code(), told.len()), (Some(1), 1), "{told:?}");
    let line = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../kernel_src/gpu/argmax.hip"
    ))
    .unwrap();
    let line = line.lines().count() + 1;
    for word in [
        "'argmax'",
        "gfx1100",
        "KJ_BLOCK=",
        "VOCAB=2048",
        "use of undeclared identifier 'nonsense'",
    ] {
        assert!(told[0].contains(word), "{word}: {}", told[0]);
    }
    assert!(
        told[0].contains(&format!("argmax.hip:{line}:")),
        "line {line} of our source: {}",
        told[0]
    );
    // The command line at the end of the error message.
    let again = told[0]
        .rsplit_once(", sh ")
        .and_then(|(_, rest)| rest.strip_suffix(" repeats it"))
        .unwrap();
    let kept = Path::new(again).parent().unwrap();
    for file in ["argmax.hip", "kjit.h", "options.txt", "log.txt", "request.bin"] {
        assert!(kept.join(file).is_file(), "{file} is not in {}", kept.display());
    }
    let repeat = |how: &str| {
        let mut c = Command::new("sh");
        c.arg(again)
            .current_dir("/")
            .env("TEST_REAL_CLANG", &clang)
            .env("TEST_CLANG", how)
            .output()
            .unwrap()
    };
    let repeated = repeat("refuse");
    assert_eq!(repeated.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&repeated.stderr).contains("undeclared identifier 'nonsense'"));
    assert!(repeat("").status.success(), "with a compiler that does right it compiles");
}

#[test]
fn two_commands_compile_each_kernel_once_within_their_jobs() {
    let Some(clang) = real_clang() else { return };
    let own = cache_without(&clang, &["matvec", "repack"]);
    let (cache, log) = (own.path().join("cache"), own.path().join("log"));
    let start = |jobs: &str| {
        let mut c = warm(&cache, &clang);
        c.args(["--jobs", jobs])
            .env("TEST_LOG", &log)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let both: Vec<Output> =
        [start("2"), start("1")].into_iter().map(|c| c.wait_with_output().unwrap()).collect();
    assert!(both.iter().all(|out| out.status.success()));
    let compiled: u64 = both.iter().map(|out| document(out)["compiled"].as_u64().unwrap()).sum();
    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(
        text.lines().filter(|l| *l == "begin").count() as u64,
        compiled,
        "each was compiled once"
    );
    assert!(compiled >= 5, "{compiled}");
    let (mut at_once, mut most) = (0, 0);
    for line in text.lines() {
        at_once += if line == "begin" { 1 } else { -1 };
        most = most.max(at_once);
    }
    assert!(most <= 3, "{most} at once, of two jobs and one");
}

#[test]
fn killed_warm_resumes_on_next_run() {
    let Some(clang) = real_clang() else { return };
    let own = cache_without(&clang, &["matvec", "repack", "attend", "embed"]);
    let (cache, log) = (own.path().join("cache"), own.path().join("log"));
    let there = entries(&cache);
    let ends = || {
        std::fs::read_to_string(&log).unwrap_or_default().lines().filter(|l| *l == "end").count()
    };
    let mut first =
        warm(&cache, &clang).args(["--jobs", "1"]).env("TEST_LOG", &log).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(120);
    while ends() < 3 {
        assert!(
            Instant::now() < until && first.try_wait().unwrap().is_none(),
            "it ended before it could be killed"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    first.kill().unwrap();
    assert!(!first.wait().unwrap().success());
    let before = entries(&cache);
    let out = warm(&cache, &clang).output().unwrap();
    assert!(out.status.success());
    let second = document(&out);
    let (compiled, cached) =
        (second["compiled"].as_u64().unwrap(), second["cached"].as_u64().unwrap());
    let all = second["kernels"].as_array().unwrap().len() as u64;
    assert_eq!(compiled + cached, all);
    assert!(
        compiled > 0 && before >= there + 2,
        "two of the three were kept at least: {there}, {before}, {compiled}"
    );
    let again = warm(&cache, &clang).output().unwrap();
    assert_eq!(document(&again)["compiled"], 0);
}

/// The simulated hiprtc fails for one kernel.
fn hiprtc(how: &str, variables: &[(&str, &str)]) -> (Output, Value, Vec<String>) {
    let out = hiprtc_once("", &[]);
    // All kernels are already compiled for the CPU, so no later compile exceeds its time limit.
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let out = hiprtc_once(how, variables);
    let (document, errors) = (document(&out), errors(&out));
    eprintln!("{how}: {errors:?}");
    (out, document, errors)
}

fn hiprtc_once(how: &str, variables: &[(&str, &str)]) -> Output {
    let own = tempfile::tempdir().unwrap();
    let mut c = Command::new(env!("CARGO_BIN_EXE_kjit"));
    // These constants equal those in tests of whole models, so that kernels are compiled for the
    // CPU only once.
    c.arg("warm").arg(tiny()).args([
        "--arch",
        "gfx1030",
        "-c",
        "64",
        "--prefill-chunk",
        "32",
        "--compiler",
        "hiprtc",
        "--json",
        "-q",
    ]);
    c.arg("--cache-dir").arg(own.path()).env("TMPDIR", own.path());
    let setup =
        Setup::devices("gfx1030").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og").set(
            "HIPSIM_MISBEHAVE",
            if how.is_empty() { String::new() } else { format!("argmax:{how}") },
        );
    let out = setup.apply(TEMPORARY, &mut c).envs(variables.iter().copied()).output().unwrap();
    for error in errors(&out) {
        for log in error.split([' ', ';']).filter(|w| w.ends_with("log.txt")) {
            assert!(Path::new(log).is_file(), "{log} is not there: {error}");
        }
    }
    out
}

#[test]
fn crash_of_hiprtc_fails_one_kernel_only() {
    for (how, word) in [
        ("abort", "signal 6 (it aborted), twice: simulated HIP device: comgr: LLVM ERROR"),
        ("kill", "signal 9 (out of memory?), twice"),
        ("garbage", "damaged"),
    ] {
        let (out, document, errors) = hiprtc(how, &[]);
        assert_eq!((out.status.code(), errors.len()), (Some(1), 1), "{how}: {errors:?}");
        assert!(errors[0].contains("'argmax'") && errors[0].contains(word), "{errors:?}");
        assert!(
            document["failed"] == 1 && document["compiled"].as_u64().unwrap() > 10,
            "{document}"
        );
    }
}

#[test]
fn looping_or_greedy_hiprtc_is_stopped() {
    let (out, _, errors) = hiprtc("loop", &[("KJIT_COMPILE_SECONDS", "10")]);
    assert_eq!((out.status.code(), errors.len()), (Some(1), 1), "{errors:?}");
    assert!(errors[0].contains("was stopped after 10 s (time limit)"), "{errors:?}");
    let (out, _, errors) = hiprtc("eat", &[("KJIT_COMPILE_MEMORY", "2048")]);
    assert_eq!((out.status.code(), errors.len()), (Some(1), 1), "{errors:?}");
    assert!(errors[0].contains("twice"), "{errors:?}");
}

#[test]
fn hiprtc_output_or_single_crash_is_harmless() {
    let own = tempfile::tempdir().unwrap();
    let once = own.path().join("once");
    for (how, variables) in
        [("print", vec![]), ("kill", vec![("HIPSIM_ONCE", once.to_str().unwrap())])]
    {
        let (out, document, errors) = hiprtc(how, &variables);
        assert!(
            out.status.success() && errors.is_empty() && document["failed"] == 0,
            "{how}: {errors:?}"
        );
        assert!(!String::from_utf8_lossy(&out.stdout).contains("valid answer"));
    }
    assert!(once.is_dir(), "it died");
}
