//! Tests the engine's messages about drivers that are missing, too old, without a device, or
//! broken. `cc` makes driver libraries that return fixed codes. Each test runs in a separate
//! process, with such a library first in the loader's path.

use crate::common::{config, job};
use kjit_cache::{Artefact, BuildKey};
use kjit_engine::{Config, Engine, Vendor};
use std::path::Path;
use std::process::Command;

/// The calls that the engine looks up, from its own list.
fn symbols() -> Vec<String> {
    let list = include_str!("../../src/driver/cuda/symbols.rs");
    let (_, list) = list.split_once("symbols! {").unwrap();
    let names: Vec<String> = list
        .lines()
        .filter_map(|l| Some(l.trim().split_once('(')?.0.to_owned()))
        .filter(|n| n.starts_with("cu"))
        .collect();
    assert!(names.len() > 40, "{names:?}");
    names
}

/// Makes `libcuda.so.1` of version 12.4. Its calls return 0, except those in `special`; those in
/// `without` are missing.
fn driver(dir: &Path, special: &[(&str, &str)], without: &[&str]) {
    let mut text = String::from(
        "int cuGetErrorString(int e, const char** s) { *s = \"told by the test\"; return 0; }\n",
    );
    text.push_str("int cuDriverGetVersion(int* v) { *v = 12040; return 0; }\n");
    for name in symbols() {
        if without.contains(&name.as_str())
            || ["cuGetErrorString", "cuDriverGetVersion"].contains(&name.as_str())
        {
            continue;
        }
        let body = special
            .iter()
            .find(|(n, _)| *n == name)
            .map_or("(void* a) { return 0; }", |(_, body)| body);
        text.push_str(&format!("int {name}{body}\n"));
    }
    let (source, library) = (dir.join("fake.c"), dir.join("libcuda.so.1"));
    std::fs::write(&source, text).unwrap();
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .arg(&library)
        .arg(&source)
        .status()
        .unwrap();
    assert!(made.success());
}

/// The inventory, and the answer to `cuda:0`, of a process with this driver.
fn told(dir: &Path) -> String {
    told_with(dir, &[])
}

fn told_with(dir: &Path, variables: &[(&str, &Path)]) -> String {
    let exe = std::env::current_exe().unwrap();
    let output = Command::new(exe)
        .args(["--exact", "drivers::child_process_runs_selected_case", "--nocapture"])
        .env("TEST_TELL", "1")
        .env("CUDA_VISIBLE_DEVICES", "7")
        .env("LD_LIBRARY_PATH", dir)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn child_process_runs_selected_case() {
    if std::env::var_os("TEST_TELL").is_none() {
        return; // This process was started as the child of another test.
    }
    let engine = Engine::new(Config::new().no_cache());
    let inventory = engine.devices();
    eprintln!("{inventory:?}");
    match engine.device("cuda:0") {
        Ok(device) => eprintln!("DEVICE {device:?}"),
        Err(error) => eprintln!("ERROR {error}"),
    }
    if let Some(dir) = std::env::var_os("TEST_COMPILE") {
        let engine = Engine::new(config(Path::new(&dir)));
        match engine.compile(&job("sm_90")) {
            Ok(code) => eprintln!("COMPILED {code:?}"),
            Err(error) => eprintln!("ERROR {error}"),
        }
        if let Ok(device) = engine.device("cuda:0") {
            match engine.load(&device, &job("sm_90")) {
                Ok(_) => eprintln!("LOADED"),
                Err(error) => eprintln!("ERROR {error}"),
            }
        }
    }
}

/// The error line that contains `word`.
#[track_caller]
fn error_with<'t>(text: &'t str, word: &str) -> &'t str {
    text.lines()
        .find(|line| line.starts_with("ERROR") && line.contains(word))
        .unwrap_or_else(|| panic!("no error with '{word}': {text}"))
}

#[test]
fn code_too_new_for_driver_names_both_versions() {
    let dir = tempfile::tempdir().unwrap();
    driver(dir.path(), &[], &[]);
    let cache = dir.path().join("cache");
    // Code of nvrtc 13.5, as in a pack or in a cache that another machine filled.
    let key =
        BuildKey::new(&job("sm_90").source_key().unwrap(), |key| key.field("compiler", "nvrtc"));
    let code = Artefact::new("code")
        .meta("compiler", "nvrtc 13.5")
        .meta("arch", "sm_90")
        .need("driver", "13.0");
    Engine::new(config(&cache)).cache().put(&key, &code);
    let none = dir.path().join("no-such-nvrtc");
    let text = told_with(dir.path(), &[("TEST_COMPILE", &cache), ("KJIT_NVRTC_LIBRARY", &none)]);
    let line = error_with(&text, "nvrtc 13.5");
    for word in ["'saxpy'", "needs driver 13.0", "installed: 12.4", "update the driver"] {
        assert!(line.contains(word), "{word}: {line}");
    }
}

#[test]
fn compiler_newer_than_driver_is_skipped_with_both_versions() {
    let dir = tempfile::tempdir().unwrap();
    driver(dir.path(), &[], &[]);
    // The library is never opened.
    std::fs::write(dir.path().join("libnvrtc.so.99"), "").unwrap();
    std::fs::write(dir.path().join("libnvrtc.so.13"), "").unwrap();
    let text = told_with(
        dir.path(),
        &[("TEST_COMPILE", &dir.path().join("cache")), ("KJIT_NVRTC_LIBRARY", Path::new(""))],
    );
    if text.contains("COMPILED") {
        eprintln!("SKIPPED: this machine has an nvrtc that goes with driver 12.4");
        return;
    }
    let line = error_with(&text, "libnvrtc.so.13");
    assert!(line.contains("is nvrtc 13, newer than the driver (12.4) takes"), "{line}");
}

#[test]
fn driver_refusal_of_newer_code_reports_both_versions() {
    let dir = tempfile::tempdir().unwrap();
    let name = ("cuDeviceGetName", "(char* s) { s[0] = 'X'; s[1] = 0; return 0; }");
    let pci = ("cuDeviceGetPCIBusId", "(char* s) { s[0] = 0; return 0; }");
    let attribute = (
        "cuDeviceGetAttribute",
        "(int* v, int a, int d) { *v = a == 75 ? 9 : a == 76 ? 0 : 32; return 0; }",
    );
    let count = ("cuDeviceGetCount", "(int* n) { *n = 1; return 0; }");
    let load = ("cuModuleLoadDataEx", "(void* m, void* p) { return 209; }");
    let plain = ("cuModuleLoadData", "(void* m, void* p) { return 209; }");
    driver(dir.path(), &[count, name, pci, attribute, load, plain], &[]);
    let Some(maker) = crate::common::engine(
        &dir.path().join("maker"),
        "driver_refusal_of_newer_code_reports_both_versions",
    ) else {
        return;
    };
    let report = maker.compilers(Vendor::Nvidia);
    let compiler = &report.found[0];
    // The cache does not record the requirements of the code, so the driver must refuse it. There
    // is no compiler to compile it again.
    let code = maker.compile(&job("sm_90")).unwrap();
    let cache = dir.path().join("cache");
    let entry = Artefact::new(code.bytes().to_vec())
        .meta("compiler", code.compiler())
        .meta("arch", "sm_90");
    Engine::new(config(&cache)).cache().put(&maker.cache().list()[0].key, &entry);
    let none = dir.path().join("no-such-nvrtc");
    let text = told_with(dir.path(), &[("TEST_COMPILE", &cache), ("KJIT_NVRTC_LIBRARY", &none)]);
    let line = error_with(&text, "refuses code of");
    let (major, minor) = compiler.version;
    for word in
        ["'saxpy'", "cuda:0", "(12.4)", &format!("nvrtc {major}.{minor}"), "update the driver"]
    {
        assert!(line.contains(word), "{word}: {line}");
    }
}

#[test]
fn old_driver_error_lists_missing_calls() {
    let dir = tempfile::tempdir().unwrap();
    driver(dir.path(), &[], &["cuLaunchKernelEx", "cuGraphExecUpdate_v2"]);
    let text = told(dir.path());
    for word in [
        "ERROR the NVIDIA driver",
        "lacks cuLaunchKernelEx, cuGraphExecUpdate_v2",
        "older than 12.0",
        "525",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn driver_start_failure_quotes_the_driver() {
    let dir = tempfile::tempdir().unwrap();
    driver(dir.path(), &[("cuInit", "(int f) { return 803; }")], &[]);
    let text = told(dir.path());
    assert!(
        text.contains("ERROR device cuda")
            && text.contains("(12.4) does not start: told by the test (code 803)"),
        "{text}"
    );
}

#[test]
fn driver_without_devices_names_hiding_variables() {
    let dir = tempfile::tempdir().unwrap();
    driver(dir.path(), &[("cuDeviceGetCount", "(int* n) { *n = 0; return 0; }")], &[]);
    let text = told(dir.path());
    assert!(
        text.contains(
            "ERROR device cuda:0: the NVIDIA driver shows 0 device(s) (set: CUDA_VISIBLE_DEVICES=7"
        ),
        "{text}"
    );
    assert!(
        text.contains("cuda: NVIDIA 12.4 (libcuda.so.1)")
            && text.contains("the driver shows no device"),
        "{text}"
    );
}

#[test]
fn unknown_error_codes_and_device_failures_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let count = ("cuDeviceGetCount", "(int* n) { *n = 1; return 0; }");
    driver(dir.path(), &[count, ("cuDeviceGetName", "(char* s) { return 123456; }")], &[]);
    let text = told(dir.path());
    assert!(
        text.contains("ERROR cuDeviceGetName on cuda:0: told by the test (code 123456)"),
        "{text}"
    );
    // A device of an unknown architecture.
    let name = ("cuDeviceGetName", "(char* s) { s[0] = 'X'; s[1] = 0; return 0; }");
    let pci = ("cuDeviceGetPCIBusId", "(char* s) { s[0] = 0; return 0; }");
    let attribute = ("cuDeviceGetAttribute", "(int* v, int a, int d) { *v = 99; return 0; }");
    driver(dir.path(), &[count, name, pci, attribute], &[]);
    let text = told(dir.path());
    assert!(
        text.contains("ERROR device cuda:0: X is sm_9999, which kjit cannot compile for"),
        "{text}"
    );
}
