//! The cache, with the command on simulated AMD devices: a pack without any compiler, several cards
//! in one machine, many simultaneous processes, an install folder that is read-only, a driver that
//! is too old.
//!
//! The simulated compiler writes code objects with notes and symbols. The code that runs is the
//! same source, compiled for the CPU.

use crate::support::machine::{MODEL, Machine, RUN_SETTINGS, document, err, failure, simulated};
use crate::support::model;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const BOTH: &str = "gfx1100,gfx942:sramecc+:xnack-";

/// A pack of the model's kernels for one architecture, made without a card.
fn packed(dir: &Path, arch: &str) -> PathBuf {
    let maker = Machine::new("", dir.join(format!("maker-{arch}")));
    let pack = dir.join(format!("{arch}.kjitpack"));
    assert!(document(&maker.warm(arch))["compiled"].as_u64().unwrap() > 10);
    let model = model(MODEL);
    let args = [
        "cache",
        "export",
        "--model",
        model.to_str().unwrap(),
        "--arch",
        arch,
        "-o",
        pack.to_str().unwrap(),
    ];
    let output = maker.kjit(args.iter().chain(RUN_SETTINGS));
    assert!(output.status.success(), "{}", err(&output));
    pack
}

#[test]
fn run_without_compiler_uses_pack_or_reports_missing_card() {
    if !simulated("run_without_compiler_uses_pack_or_reports_missing_card") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let pack = packed(dir.path(), "gfx1100");
    let mut server = Machine { compilers: false, ..Machine::new(BOTH, dir.path().join("server")) };

    // Without a compiler and a pack, the error names what is missing and what to install.
    let line = failure(&server.run("rocm:0"));
    assert!(
        line.contains("gfx1100") && line.contains("no-compiler") && line.contains("install"),
        "{line}"
    );

    // Packs that are used in place: a file, and a folder of packs.
    for packs in [pack.clone(), dir.path().to_owned()] {
        server.packs = Some(packs.into_os_string());
        let output = server.run("rocm:0");
        let doc = document(&output);
        assert_eq!(doc["kernels"]["compiled"], 0, "{doc}");
        assert!(doc["kernels"]["cached"].as_u64().unwrap() > 10, "{doc}");
        assert_eq!(doc["ids"].as_array().unwrap().len(), 3);
        assert!(!err(&output).contains("warning"), "{}", err(&output));
    }
    assert!(!server.home.join("v1/e").exists(), "the pack was copied");

    // The other card of the machine: the pack has no kernels for it, and a line reports this.
    let line = failure(&server.run("rocm:1"));
    let want = format!("the pack {} has gfx1100 and not gfx942", pack.display());
    assert!(line.contains(&want), "no '{want}' in {line}");

    // A kernel that is not in the pack.
    let model = model(MODEL);
    let args = [
        "run",
        model.to_str().unwrap(),
        "--raw",
        "-p",
        "x",
        "-n",
        "1",
        "--device",
        "rocm:0",
        "-c",
        "64",
        "--precise",
    ];
    let line = failure(&server.kjit(args));
    assert!(line.contains("has gfx1100, but not this kernel"), "{line}");

    // After the import the pack is no longer needed.
    let output = server.kjit(["cache", "import", pack.to_str().unwrap()]);
    assert!(output.status.success(), "{}", err(&output));
    server.packs = None;
    let doc = document(&server.run("rocm:0"));
    assert_eq!(doc["kernels"]["compiled"], 0, "{doc}");
}

#[test]
fn different_cards_use_kernels_from_two_packs() {
    if !simulated("different_cards_use_kernels_from_two_packs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let packs = std::env::join_paths([packed(dir.path(), "gfx1100"), packed(dir.path(), "gfx942")])
        .unwrap();
    let server = Machine {
        compilers: false,
        packs: Some(packs),
        ..Machine::new(BOTH, dir.path().join("server"))
    };
    let runs: Vec<Value> =
        ["rocm:0", "rocm:1"].iter().map(|device| document(&server.run(device))).collect();
    for (doc, arch) in runs.iter().zip(["gfx1100", "gfx942"]) {
        assert!(doc["device"]["arch"].as_str().unwrap().starts_with(arch), "{doc}");
        assert_eq!(doc["kernels"]["compiled"], 0, "{doc}");
    }
    assert_eq!(runs[0]["ids"], runs[1]["ids"]);
}

#[test]
fn compile_despite_pack_is_reported() {
    if !simulated("compile_despite_pack_is_reported") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let pack = packed(dir.path(), "gfx1100");
    let server = Machine {
        packs: Some(pack.clone().into()),
        ..Machine::new("gfx942", dir.path().join("server"))
    };
    let output = server.run("rocm:0");
    assert!(document(&output)["kernels"]["compiled"].as_u64().unwrap() > 0);
    let want = format!(
        "note: kernels are compiled here: the pack {} has gfx1100 and not gfx942",
        pack.display()
    );
    assert!(err(&output).contains(&want), "no '{want}' in {}", err(&output));
}

#[test]
fn parallel_warm_processes_compile_every_kernel_once() {
    if !simulated("parallel_warm_processes_compile_every_kernel_once") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::new("", dir.path().join("cache"));
    let outputs: Vec<Output> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..16).map(|_| scope.spawn(|| machine.warm("gfx1030"))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let docs: Vec<Value> = outputs.iter().map(document).collect();
    let count = |doc: &Value, what: &str| doc[what].as_u64().unwrap();
    let kernels = count(&docs[0], "compiled") + count(&docs[0], "cached");
    assert!(
        docs.iter().all(|doc| count(doc, "compiled") + count(doc, "cached") == kernels
            && count(doc, "failed") == 0)
    );
    let compiled: u64 = docs.iter().map(|doc| count(doc, "compiled")).sum();
    assert_eq!(compiled, kernels, "some kernels were compiled twice, or none");
    eprintln!("16 processes, {kernels} kernels, {compiled} compiles");
}

#[test]
fn user_without_home_runs_from_read_only_install() {
    // SAFETY: geteuid has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if !simulated("user_without_home_runs_from_read_only_install") || !root {
        eprintln!("SKIPPED: only root can become another user");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let machine = Machine::new("", dir.path().join("never made"));
    let library = machine
        .command()
        .get_envs()
        .find(|(name, _)| *name == "KJIT_HIPRTC_LIBRARY")
        .unwrap()
        .1
        .unwrap()
        .to_owned();
    // The files are copied by cp: they must not be open for writing here while another thread
    // forks.
    for (from, to) in [
        (assert_cmd::cargo::cargo_bin("kjit").into_os_string(), "kjit"),
        (library, "libhipsim.so.6.2.0"),
        (model(MODEL).into_os_string(), "model.gguf"),
    ] {
        assert!(Command::new("cp").arg(from).arg(bin.join(to)).status().unwrap().success());
    }
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&bin, PermissionsExt::from_mode(0o555)).unwrap();
    // The simulated compiler needs a folder for sources. It is not part of this test.
    std::fs::create_dir(dir.path().join("work")).unwrap();
    std::fs::set_permissions(dir.path().join("work"), PermissionsExt::from_mode(0o777)).unwrap();
    let as_nobody = |args: &[&str]| {
        let mut command = Command::new(bin.join("kjit"));
        command.args(args).args(RUN_SETTINGS).env_clear().current_dir("/").uid(54_321).gid(54_321);
        // PATH is for the simulated compiler, which checks sources with the system's compiler.
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
            .env("KJIT_HIPRTC_LIBRARY", bin.join("libhipsim.so.6.2.0"))
            .env("HIPSIM_CLANG", "none");
        command.env("HIPSIM_DIR", dir.path().join("work"));
        command
    };
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/hipsim/kernel.h");
    let readable = Command::new("cat")
        .arg(header)
        .uid(54_321)
        .gid(54_321)
        .stdout(std::process::Stdio::null())
        .status();
    if !readable.unwrap().success() {
        eprintln!("SKIPPED: another user cannot read {header}, which the simulated compiler needs");
        return;
    }
    let path = bin.join("model.gguf");
    let warm =
        ["warm", path.to_str().unwrap(), "--arch", "gfx1100", "--compiler", "hiprtc", "--json"];
    let output = as_nobody(&warm).output().unwrap();
    let doc = not_kept(&output);
    assert!(doc["compiled"].as_u64().unwrap() > 10 && doc["failed"] == 0, "{doc}");
    assert_eq!(doc["not_kept"], doc["compiled"], "{doc}");
    assert!(err(&output).contains("no cache directory"), "{}", err(&output));
    // If the home folder cannot be written, the result is equal, but with a different message.
    let output = as_nobody(&warm).env("HOME", &bin).output().unwrap();
    let doc = not_kept(&output);
    assert!(doc["compiled"].as_u64().unwrap() > 10 && doc["not_kept"] == doc["compiled"], "{doc}");
    assert_eq!(err(&output).matches("warning").count(), 1, "{}", err(&output));
    assert!(err(&output).contains("cannot write to the cache"), "{}", err(&output));
}

/// Checks a `warm` that stored nothing: it failed, and one line has the reason. Returns its
/// document.
#[track_caller]
fn not_kept(output: &Output) -> serde_json::Value {
    let line = failure(output);
    assert!(line.contains("compiled but not stored") && line.contains("--cache-dir"), "{line}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn driver_refusal_of_newer_code_names_both_versions() {
    if !simulated("driver_refusal_of_newer_code_names_both_versions") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut machine = Machine::new("gfx1100", dir.path().join("cache"));
    document(&machine.warm("gfx1100"));
    // Each load gives hipErrorNoBinaryForGpu: the entries of the warmed cache are quarantined and
    // compiled once more.
    machine.fail =
        Some((1..200).map(|n| format!("hipModuleLoadData:{n}:209")).collect::<Vec<_>>().join(","));
    let line = failure(&machine.run("rocm:0"));
    for word in ["the driver (6.2)", "refuses code of hiprtc 6.2", "update the driver"] {
        assert!(line.contains(word), "{word}: {line}");
    }
}
