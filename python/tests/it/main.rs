//! Runs `python/tests` and `python/examples` in the interpreter with the library that was built for
//! this test. Prints that it was skipped without Python 3.11.

use std::path::Path;
use std::process::Command;

#[test]
fn package_passes_its_python_tests() {
    run("package_passes_its_python_tests", "tests/test_kjit.py", &[]);
}

#[test]
fn files_layers_and_launch_counts_pass() {
    run("files_layers_and_launch_counts_pass", "tests/test_files.py", &[]);
}

#[test]
fn operations_match_torch_goldens() {
    run("operations_match_torch_goldens", "tests/test_goldens.py", &[]);
}

#[test]
fn imported_names_work() {
    run("imported_names_work", "tests/test_names.py", &[]);
}

#[test]
fn models_generate_text() {
    run("models_generate_text", "tests/test_model.py", &[]);
}

#[test]
fn other_libraries_accept_kjit_tensors() {
    run("other_libraries_accept_kjit_tensors", "tests/test_others.py", &[]);
}

#[test]
fn examples_run_unchanged() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<String> = std::fs::read_dir(here.join("examples"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".py") && name != "08_generate.py")
        .collect();
    files.sort();
    assert!(files.len() >= 11, "{files:?}");
    for file in files {
        run("examples_run_unchanged", &format!("examples/{file}"), &[]);
    }
    let models = std::env::var("KJIT_TEST_MODELS").unwrap_or("../.models".to_owned());
    let model = here.join(models).join("SmolLM2-135M-Instruct.Q4_1.gguf");
    match model.is_file() {
        true => {
            let model = model.display().to_string();
            run("examples_run_unchanged", "examples/08_generate.py", &[&model]);
        }
        false => eprintln!("SKIPPED 08_generate.py: {} is not there", model.display()),
    }
}

/// Runs a program of the package with what `cargo` built.
fn run(test: &str, program: &str, args: &[&str]) {
    let version = "import sys; sys.exit(sys.version_info < (3, 11))";
    if !Command::new("python3").args(["-c", version]).status().is_ok_and(|s| s.success()) {
        eprintln!("SKIPPED {test}: no python3 of 3.11 or later");
        return;
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let deps = std::env::current_exe().unwrap();
    let library = deps.with_file_name("lib_kjit.so");
    if !library.is_file() {
        eprintln!("SKIPPED {test}: {} was not built", library.display());
        return;
    }
    // The package's layout as in the wheel: its files with the library beside them.
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("kjit");
    copy(&here.join("kjit"), &package);
    let native = package.join("_kjit.so");
    std::fs::hard_link(&library, &native)
        .or_else(|_| std::fs::copy(&library, &native).map(drop))
        .unwrap();
    let out = Command::new("python3")
        .arg(here.join(program))
        .args(args)
        .env("PYTHONPATH", folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let said = [out.stdout, out.stderr].concat();
    eprintln!("{}", String::from_utf8_lossy(&said));
    assert!(out.status.success(), "{program}: {}", out.status);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &to);
        } else if path.extension().is_none_or(|e| e != "so" && e != "pyc") {
            std::fs::copy(&path, &to).unwrap();
        }
    }
}
