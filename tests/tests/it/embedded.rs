//! A program that embeds the engine, in a folder without `kjit-cc`: it is its own compiler process
//! if it calls `child_main()`. If not, the error names what is missing.

use std::path::Path;
use std::process::Command;

/// Runs a copy of the program in `folder`, without the `kjit-cc` that cargo built next to it.
fn run(folder: &Path, arguments: &[&Path]) -> String {
    let copy = folder.join("bin/embedder");
    std::fs::create_dir_all(folder.join("bin")).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_kjit-tests-embedded"), &copy).unwrap();
    let mut command = Command::new(copy);
    command.args(arguments).env("KJIT_CACHE_DIR", folder.join("cache"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn program_can_be_its_own_compiler_process() {
    let folder = tempfile::tempdir().unwrap();
    let said = run(folder.path(), &[]);
    if said == "no nvrtc\n" {
        eprintln!("SKIPPED: no nvrtc; pip install nvidia-cuda-nvrtc");
        return;
    }
    // A child process compiled it: the program itself has not mapped nvrtc.
    assert_eq!(said, "1 kernel, nvrtc not here\n");
}

#[test]
fn missing_child_main_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    // The file is never run.
    std::fs::write(folder.path().join("clang-19"), "#!/bin/sh\n").unwrap();
    let said = run(folder.path(), &[folder.path()]);
    let (kind, text) = said.split_once('\n').unwrap();
    assert!(kind.starts_with("Miss "), "{said}");
    for part in ["clang-19", "found, but cannot be started", "child_main()", "kjit-cc"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("install:"), "{text}");
}
