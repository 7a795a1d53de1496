//! Runs `python/tests/test_kjit.py` in the interpreter with the library that was built for this
//! test. Prints that it was skipped without Python 3.11.

use std::path::Path;
use std::process::Command;

#[test]
fn the_package_passes_its_own_tests() {
    let test = "the_package_passes_its_own_tests";
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
    std::fs::copy(&library, package.join("_kjit.so")).unwrap();
    let out = Command::new("python3")
        .arg(here.join("tests/test_kjit.py"))
        .env("PYTHONPATH", folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let said = [out.stdout, out.stderr].concat();
    eprintln!("{}", String::from_utf8_lossy(&said));
    assert!(out.status.success(), "{}", out.status);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &to);
        } else {
            std::fs::copy(&path, &to).unwrap();
        }
    }
}
