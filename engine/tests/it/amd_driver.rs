//! Tests AMD's runtime on a machine without a GPU, with Debian's real library and without a
//! library. (Tests on the simulated device cover devices.)

use crate::common::config;
use kjit_engine::{Engine, Error};
use std::process::Command;

/// Runs the test in a separate process, because a process opens the runtime only once, by its
/// environment at that time.
fn in_a_process(test: &str, set: &[(&str, &str)]) -> bool {
    const INNER: &str = "TEST_INNER";
    if std::env::var_os(INNER).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(INNER, "1").envs(set.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
    eprint!(
        "{}",
        text.lines()
            .filter(|l| l.contains("SKIPPED"))
            .map(|l| format!("{l}\n"))
            .collect::<String>()
    );
    false
}

#[test]
fn runtime_without_gpu_is_not_an_error() {
    if std::path::Path::new("/dev/kfd").exists() {
        eprintln!("SKIPPED: there may be a GPU here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::new(config(dir.path()));
    let inventory = engine.devices();
    assert!(inventory.devices.iter().all(|d| d.label() != "rocm:0"));
    match engine.device("rocm:0") {
        Err(error @ Error::NoDevice { .. }) => {
            let text = error.to_string();
            assert!(
                text.contains("finds no AMD GPU")
                    && text.contains("libamdhip64")
                    && text.contains("/dev/kfd"),
                "{text}"
            );
            assert!(inventory.missing.contains(&text), "{:?}", inventory.missing);
        }
        Err(error @ Error::NoLibrary { .. }) => {
            eprintln!("SKIPPED: no HIP runtime here (Debian: libamdhip64-5): {error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn missing_configured_runtime_is_an_error_without_fallback() {
    let test = "amd_driver::missing_configured_runtime_is_an_error_without_fallback";
    if !in_a_process(test, &[("KJIT_HIP_LIBRARY", "/nowhere/libamdhip64.so.6")]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let error = Engine::new(config(dir.path())).device("rocm:0").unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::NoLibrary { .. }), "{text}");
    for part in ["libamdhip64.so", "/nowhere/libamdhip64.so.6", "ROCm", "KJIT_HIP_LIBRARY"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("/opt/rocm"), "{text}");
}

#[test]
fn inventory_lists_device_hiding_variables_with_warnings() {
    let test = "amd_driver::inventory_lists_device_hiding_variables_with_warnings";
    let set = [
        ("HIP_VISIBLE_DEVICES", "-1"),
        ("HSA_OVERRIDE_GFX_VERSION", "11.0.0"),
        ("ROCR_VISIBLE_DEVICES", "0"),
    ];
    if !in_a_process(test, &set) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let inventory = Engine::new(config(dir.path())).devices();
    for (name, value) in set {
        assert!(
            inventory.visibility.contains(&(name.to_owned(), value.to_owned())),
            "{:?}",
            inventory.visibility
        );
        assert!(
            inventory.warnings().iter().any(|w| w.contains(name)),
            "{:?}",
            inventory.warnings()
        );
    }
}
