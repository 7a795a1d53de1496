//! The header is that of the source, and the example compiles, links and runs.

use std::path::{Path, PathBuf};
use std::process::Command;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Names of the functions that the source exports, in order.
fn exported() -> Vec<String> {
    let mut names = Vec::new();
    for file in ["fault.rs", "make.rs", "operate.rs", "read.rs"] {
        let text = std::fs::read_to_string(here().join("src").join(file)).unwrap();
        let after = text.split("#[unsafe(no_mangle)]").skip(1);
        names.extend(after.map(|part| {
            let (_, rest) = part.split_once(" fn ").unwrap();
            rest.split('(').next().unwrap().to_owned()
        }));
    }
    names
}

#[test]
fn header_declares_exactly_the_exported_functions() {
    let header = std::fs::read_to_string(here().join("kjit_ops.h")).unwrap();
    let is_code = |l: &&str| !["//", "/*", "*"].iter().any(|c| l.trim_start().starts_with(c));
    let code: String = header.lines().filter(is_code).collect::<Vec<_>>().join(" ");
    let mut declared: Vec<String> = code
        .split(|c: char| !(c.is_alphanumeric() || "_(".contains(c)))
        .filter_map(|word| word.strip_prefix("kjit_")?.split_once('(').map(|(n, _)| n))
        .map(|name| format!("kjit_{name}"))
        .collect();
    let mut wanted = exported();
    assert!(wanted.len() > 20, "{wanted:?}");
    declared.sort();
    wanted.sort();
    assert_eq!(declared, wanted);
}

#[test]
fn header_equals_cbindgen_output() {
    let test = "header_equals_cbindgen_output";
    let out = tempfile::tempdir().unwrap();
    let made = out.path().join("kjit_ops.h");
    let run = Command::new("cbindgen")
        .args(["--config", "cbindgen.toml", "--output"])
        .arg(&made)
        .arg(".")
        .current_dir(here())
        .output();
    let Ok(run) = run else {
        eprintln!("SKIPPED {test}: no cbindgen here (cargo install cbindgen)");
        return;
    };
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let read = |file: &Path| std::fs::read_to_string(file).unwrap();
    assert_eq!(read(&made), read(&here().join("kjit_ops.h")), "run cbindgen again");
}

#[test]
fn example_program_computes_expected_results() {
    let test = "example_program_computes_expected_results";
    if Command::new("cc").arg("--version").output().is_err() {
        eprintln!("SKIPPED {test}: no C compiler cc here");
        return;
    }
    let library = std::env::current_exe().unwrap().with_file_name("libkjit_c.so");
    if !library.is_file() {
        eprintln!("SKIPPED {test}: {} was not built", library.display());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program: PathBuf = folder.path().join("mlp");
    let cc = Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1"])
        .arg(here().join("examples/mlp.c"))
        .arg("-I")
        .arg(here())
        .arg(&library)
        .args(["-lm", "-o"])
        .arg(&program)
        .output()
        .unwrap();
    assert!(cc.status.success(), "{}", String::from_utf8_lossy(&cc.stderr));
    let run =
        Command::new(&program).env("LD_LIBRARY_PATH", library.parent().unwrap()).output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));
    assert!(said.contains("5 rows on cpu") && said.contains("told: matmul"), "{said}");
}
