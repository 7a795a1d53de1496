//! Tests an nvrtc that fails, or that is replaced while the process runs. It is a library made with
//! `cc` that does what each source says (`fake_nvrtc.c`). Other tests use the real nvrtc, which
//! cannot be made to fail.

use crate::common::worker;
use kjit_cache::Config as CacheConfig;
use kjit_engine::{Config, Constants, Engine, Error, Job, Options, Source, Target};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Makes the library with this minor version. It replaces an existing one.
fn make(dir: &Path, version: u32) -> PathBuf {
    let (source, made) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_nvrtc.c"), dir.join("new.so"));
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-w", &format!("-DVERSION={version}"), "-o"])
        .arg(&made)
        .arg(source);
    assert!(cc.status().expect("cc, which linking Rust needs anyway").success());
    let library = dir.join("libnvrtc.so.13");
    std::fs::rename(made, &library).unwrap();
    library
}

fn engine(dir: &Path, library: &Path) -> Engine {
    let cache = CacheConfig::for_app("kjit").ignore_environment().dir(dir.join("cache"));
    let config = Config::new().cache(cache).isolation(worker()).jobs(2);
    Engine::new(config.compiler_path(library).timeout(Duration::from_secs(3)).memory_limit(1 << 30))
}

/// A job whose source tells the library what to do.
fn job(name: &'static str, tells: &str) -> Job {
    let text = format!("// entry: {name}\n// {tells}\n");
    let source = Source::new(name, "k.hip", text).entry(name);
    Job::new(source, Constants::new(), Options::wave(32), Target::parse("sm_90").unwrap())
}

/// Compiles a job that fails, between two jobs that must succeed. Returns the error.
fn goes_wrong(how: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path(), &make(dir.path(), 1));
    let jobs = [job("before", ""), job("bad", &format!("fake: {how}")), job("after", "")];
    let mut done = engine.compile_all(&jobs);
    assert!(done[0].is_ok() && done[2].is_ok(), "{how}: {done:?}");
    assert_eq!((engine.counts().compiled, engine.counts().failed), (2, 1), "{how}");
    let error = done.remove(1).unwrap_err();
    // The failure is cached: a second request is answered immediately.
    let began = Instant::now();
    assert_eq!(engine.compile(&jobs[1]).unwrap_err().to_string(), error.to_string());
    assert!(began.elapsed() < Duration::from_secs(2), "{how} was tried again");
    // The cache has no entry for it, and its temporary files are removed.
    assert_eq!(engine.cache().list().len(), 2, "{how}");
    let text = error.to_string();
    if let Error::Compile(failure) = &error {
        failure.kept.iter().for_each(|kept| std::fs::remove_dir_all(kept).unwrap());
    }
    for log in text.split(['(', ')', ' ', ';', ',']).filter(|word| word.ends_with("log.txt")) {
        std::fs::remove_dir_all(Path::new(log).parent().unwrap()).unwrap();
    }
    assert!(
        text.contains("bad") && text.contains("nvrtc 13.1") && !text.contains('\n'),
        "{how}: {text}"
    );
    text
}

#[test]
fn crashing_nvrtc_is_retried_once_and_is_one_error() {
    assert!(
        goes_wrong("abort")
            .contains("killed by signal 6 (it aborted), twice: nvrtc: as the test wants it")
    );
    assert!(goes_wrong("kill").contains("killed by signal 9 (out of memory?), twice"));
    // A size that cannot be allocated ends the compiler process, but not this one.
    assert!(goes_wrong("huge").contains("twice"));
}

#[test]
fn looping_or_greedy_nvrtc_is_stopped_at_its_limit() {
    let began = Instant::now();
    assert!(goes_wrong("loop").contains("was stopped after 3 s (time limit)"));
    assert!(began.elapsed() < Duration::from_secs(60));
    assert!(goes_wrong("eat").contains("twice"));
}

#[test]
fn nvrtc_failure_is_reported_with_its_log() {
    let text = goes_wrong("refuse");
    assert!(text.contains("k.hip(3): error: refused") && text.contains("sm_90"), "{text}");
    let text = goes_wrong("option");
    assert!(text.contains("nvrtcCompileProgram: as the test wants it (code 5)"), "{text}");
    let text = goes_wrong("nothing");
    assert!(text.contains("nvrtc generated no machine code"), "{text}");
}

#[test]
fn invalid_cubin_is_an_error_and_not_cached() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path(), &make(dir.path(), 1));
    let error = engine.compile(&job("bad", "fake: garbage")).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains("8 bytes that are not a 64-bit ELF file"), "{error}");
    assert!(engine.cache().list().is_empty());
}

#[test]
fn nvrtc_output_is_ignored_and_one_crash_is_retried() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path(), &make(dir.path(), 1));
    let code = engine.compile(&job("chatty", "fake: print")).unwrap();
    assert_eq!(code.kernels()[0].name, "chatty");
    let mark = dir.path().join("mark");
    let code =
        engine.compile(&job("second", &format!("fake: abort once: {}", mark.display()))).unwrap();
    assert_eq!((code.kernels()[0].name.as_str(), engine.counts().compiled), ("second", 2));
    assert!(mark.is_dir());
}

#[test]
fn nvrtc_replaced_at_run_time_gets_new_keys() {
    let dir = tempfile::tempdir().unwrap();
    let library = make(dir.path(), 1);
    let running = engine(dir.path(), &library);
    let old = running.compile(&job("first", "")).unwrap();
    assert_eq!(old.compiler(), "nvrtc 13.1");
    make(dir.path(), 2);
    // The running process notices the new version at its next compile; the code has the new
    // compiler's name and key.
    let next = running.compile(&job("second", "")).unwrap();
    assert_eq!((next.compiler(), running.counts().failed), ("nvrtc 13.2", 0));
    let fresh = engine(dir.path(), &library);
    assert_eq!(fresh.compile(&job("second", "")).unwrap().bytes(), next.bytes());
    assert_eq!(fresh.counts().compiled, 0, "it was kept under the old compiler's key");
    let again = fresh.compile(&job("first", "")).unwrap();
    assert_eq!(
        (again.compiler(), fresh.counts().compiled),
        ("nvrtc 13.2", 1),
        "the old one's code was taken for the new one's"
    );
    assert_ne!(again.bytes(), old.bytes());
}

#[test]
fn longest_source_is_compiled_first() {
    let dir = tempfile::tempdir().unwrap();
    let library = make(dir.path(), 1);
    let cache = CacheConfig::for_app("kjit").ignore_environment().dir(dir.path().join("cache"));
    let engine =
        Engine::new(Config::new().cache(cache).isolation(worker()).jobs(1).compiler_path(library));
    let included = |name: &'static str, lines: usize| {
        let mut job = job(name, "");
        job.source = Source::new(name, "k.hip", format!("// entry: {name}\n#include \"long.h\"\n"))
            .file("long.h", "// a line of a header\n".repeat(lines))
            .entry(name);
        job
    };
    let jobs = [
        job("short", ""),
        included("long", 50),
        job("middling", &"x".repeat(200)),
        included("longest", 90),
    ];
    let order = std::sync::Mutex::new(vec![]);
    let codes = engine.compile_each(&jobs, &|index, _| order.lock().unwrap().push(index));
    assert_eq!(order.into_inner().unwrap(), [3, 1, 2, 0]);
    // Even so, answers are in the order of the request.
    let names: Vec<String> =
        codes.into_iter().map(|code| code.unwrap().kernels()[0].name.clone()).collect();
    assert_eq!(names, ["short", "long", "middling", "longest"]);
}

#[test]
fn killed_parent_takes_compiler_process_and_files_along() {
    // This test again, as the parent process: it is killed while its compiler loops.
    if let Some(dir) = std::env::var_os("TEST_STARTER") {
        let dir = PathBuf::from(dir);
        let _ = engine(&dir, &dir.join("libnvrtc.so.13")).compile(&job("bad", "fake: loop"));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), 1);
    let temporary = dir.path().join("temporary");
    std::fs::create_dir(&temporary).unwrap();
    let mut starter = Command::new(std::env::current_exe().unwrap());
    starter.args(["fake_nvrtc::killed_parent_takes_compiler_process_and_files_along", "--exact"]);
    let mut starter =
        starter.env("TEST_STARTER", dir.path()).env("TMPDIR", &temporary).spawn().unwrap();
    let lying = || std::fs::read_dir(&temporary).unwrap().count();
    let wait_for = |what: &str, ready: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !ready() {
            assert!(began.elapsed() < Duration::from_secs(20), "waited for {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait_for("a compiler process", &|| lying() > 0);
    // The folder exists before the process does. On a busy machine the parent was killed between
    // the two.
    std::thread::sleep(Duration::from_millis(500));
    starter.kill().unwrap();
    starter.wait().unwrap();
    wait_for("its folder to go", &|| lying() == 0);
}
