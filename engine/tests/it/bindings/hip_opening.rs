//! Tests of opening, with the installed runtime (Debian: libamdhip64-5) and without one.

use hip_sys::{Error, Hip, NEWER_CALLS, SEARCH, codes, place_by_place};
use std::ffi::OsStr;
use std::path::PathBuf;

/// The runtime; prints a skip message if there is none.
fn hip() -> Option<Hip> {
    match Hip::open(Vec::new) {
        Ok(hip) => Some(hip),
        Err(Error::NotFound { .. }) => {
            eprintln!("SKIPPED: no HIP runtime here ({})", SEARCH.package);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn runtime_has_every_call_of_its_version() {
    let Some(hip) = hip() else { return };
    for name in hip.missing() {
        assert!(NEWER_CALLS.contains(&name), "{} lacks {name}", hip.opened().place.display());
    }
    let mut version = 0;
    // SAFETY: writes one int, and is allowed before hipInit. Without a GPU it returns an error and
    // writes nothing.
    match unsafe { hip.hipRuntimeGetVersion(&mut version) } {
        Ok(()) => assert!((5..20).contains(&(version / 10_000_000)), "version {version}"),
        Err(error) => assert!(matches!(error.code(), Some(100 | 101)), "{error}"),
    }
}

#[test]
fn runtime_without_gpu_reports_no_device() {
    let Some(hip) = hip() else { return };
    if std::path::Path::new("/dev/kfd").exists() {
        eprintln!("SKIPPED: there is a GPU here");
        return;
    }
    let mut count = 7;
    // SAFETY: hipInit takes flags 0; hipGetDeviceCount writes one int.
    let (init, counted) = unsafe { (hip.hipInit(0), hip.hipGetDeviceCount(&mut count)) };
    for error in [init.unwrap_err(), counted.unwrap_err()] {
        assert!(
            matches!(error.code(), Some(codes::hipErrorNoDevice | codes::hipErrorInvalidDevice)),
            "{error}"
        );
        assert!(error.to_string().contains("no AMD GPU"), "{error}");
    }
}

#[test]
fn missing_library_call_fails_alone_by_name() {
    let Some(hip) = hip() else { return };
    if !hip.missing().contains(&"hipGraphUpload") {
        eprintln!("SKIPPED: this runtime is new enough to have every call");
        return;
    }
    // SAFETY: the call is missing, so no library is reached.
    let error =
        unsafe { hip.hipGraphUpload(std::ptr::null_mut(), std::ptr::null_mut()) }.unwrap_err();
    assert!(matches!(&error, Error::Missing { symbol: "hipGraphUpload", .. }), "{error}");
    assert!(error.to_string().contains("libamdhip64"), "{error}");
}

#[test]
fn missing_library_error_lists_places_and_package() {
    let search = hip_sys::Search {
        library: "the runtime",
        names: &["libkjit-no-such.so.2", "libkjit-no-such.so"],
        variable: "TEST_UNSET_VARIABLE",
        package: "install it",
    };
    let folder = PathBuf::from("/nowhere/_rocm_sdk_core/lib");
    let text = search.open(|| vec![folder.clone()]).unwrap_err().to_string();
    for part in [
        "the runtime",
        "libkjit-no-such.so.2",
        "/opt/rocm/lib",
        "/nowhere/_rocm_sdk_core/lib",
        "install it",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn invalid_library_error_quotes_the_loader() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libamdhip64.so.6");
    std::fs::write(&file, b"not a library").unwrap();
    let error = hip_sys::LoadedLibrary::file(&SEARCH, &file).unwrap_err().to_string();
    assert!(error.contains("libamdhip64.so.6 (") && error.contains("file too short"), "{error}");
}

#[test]
fn error_codes_are_sorted_with_names_and_descriptions() {
    for (i, row) in codes::CODES.iter().enumerate() {
        assert!(row.name.starts_with("hipError") && row.says.len() > 8, "{row:?}");
        assert!(
            codes::CODES[..i].iter().all(|other| other.code < row.code),
            "{row:?} is out of order"
        );
    }
}

#[test]
fn search_path_skips_working_directory_elements() {
    let dir = std::env::temp_dir().join(format!("kjit-loader-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("libkjit-none.so.1");
    std::fs::write(&file, "x").unwrap();
    let found = |list: String| place_by_place("libkjit-none.so.1", OsStr::new(&list));
    let there = dir.display();
    assert_eq!(found(String::new()), None);
    assert_eq!(found(format!("{there}:/usr/lib")), None);
    for list in [
        format!(":{there}"),
        format!("{there}:"),
        format!("/x::{there}"),
        format!(".;{there}"),
        format!("a/b:{there}"),
    ] {
        assert_eq!(found(list.clone()), Some(vec![file.clone()]), "{list}");
    }
    assert_eq!(found(":".to_owned()), Some(vec![]));
    std::fs::remove_dir_all(&dir).unwrap();
}
