//! Tests the compile service with the real nvrtc, which needs no GPU. Without nvrtc the tests print
//! a message and are skipped.

use crate::common::{config, constants, engine, job, saxpy, worker};
use kjit_engine::code_object::inspect;
use kjit_engine::{
    ArgInfo, Config, Engine, Error, Isolation, Job, Options, Origin, Source, Target, Trace, Vendor,
};
use std::time::Duration;

const TARGETS: &[&str] = &[
    "sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90a", "sm_100", "sm_103", "sm_120", "sm_121",
];

#[test]
fn every_nvidia_target_compiles_and_reports_resources() {
    let dir = tempfile::tempdir().unwrap();
    let Some(engine) = engine(dir.path(), "every_nvidia_target_compiles_and_reports_resources")
    else {
        return;
    };
    let known = engine.compilers(Vendor::Nvidia).found[0].knows.clone();
    let mut jobs: Vec<Job> = TARGETS.iter().map(|t| job(t)).collect();
    let mut specific = job("sm_90");
    specific.options.arch_specific = true;
    jobs.push(specific);
    jobs.retain(|j| known.contains(&j.target.id().to_owned()));
    assert!(jobs.len() >= 5, "the compiler knows only {known:?}");
    let codes = engine.compile_all(&jobs);
    assert_eq!(engine.counts().compiled as usize, jobs.len());
    for (job, code) in jobs.iter().zip(codes) {
        let code = code.unwrap();
        assert_eq!(code.compile_id(), job.compile_id().unwrap());
        let find = |name: &str| code.kernels().iter().find(|k| k.name == name).unwrap();
        let arg = |offset, size| ArgInfo { offset, size, kind: None };
        let saxpy = find("saxpy");
        assert_eq!(saxpy.args, [arg(0, 8), arg(8, 8), arg(16, 4), arg(20, 4)], "{}", job.target);
        assert_eq!(
            (saxpy.shared, saxpy.spills, saxpy.local, saxpy.max_threads),
            (0, Some(0), 0, Some(128))
        );
        assert!((4..=64).contains(&saxpy.registers), "{} registers", saxpy.registers);
        let mixed = find("mixed");
        assert_eq!(
            mixed.args,
            [arg(0, 8), arg(8, 8), arg(16, 16), arg(32, 1), arg(40, 8)],
            "{}",
            job.target
        );
        assert_eq!(mixed.shared, 512, "{}", job.target);
    }
}

#[test]
fn second_engine_reads_the_same_bytes_from_cache() {
    let dir = tempfile::tempdir().unwrap();
    let Some(first) = engine(dir.path(), "second_engine_reads_the_same_bytes_from_cache") else {
        return;
    };
    let made = first.compile(&job("sm_90")).unwrap();
    assert_eq!(*made.origin(), Origin::Compiled);
    let second = Engine::new(config(dir.path()));
    let found = second.compile(&job("sm_90a")).unwrap();
    assert_eq!(found.bytes(), made.bytes());
    assert_eq!((second.counts().compiled, second.counts().cached), (0, 1));
    assert_eq!(found.kernels(), made.kernels());
    assert!(second.cached(&job("sm_89")).unwrap().is_none());
}

#[test]
fn full_cache_needs_no_compiler() {
    let dir = tempfile::tempdir().unwrap();
    let Some(first) = engine(dir.path(), "full_cache_needs_no_compiler") else { return };
    first.compile(&job("sm_90")).unwrap();
    // The only compiler that this engine may use is a file that is not a library.
    let nothing = dir.path().join("libnvrtc.so.13");
    std::fs::write(&nothing, b"no library").unwrap();
    let without = Engine::new(config(dir.path()).compiler_path(&nothing));
    assert!(without.compilers(Vendor::Nvidia).found.is_empty());
    assert_eq!(without.compile(&job("sm_90")).unwrap().kernels().len(), 2);
    assert_eq!(without.counts().compiled, 0);
    match without.compile(&job("sm_80")) {
        Err(error @ Error::Miss { .. }) => {
            let text = error.to_string();
            for word in ["saxpy", "sm_80", "libnvrtc.so.13", "pip install nvidia-cuda-nvrtc"] {
                assert!(text.contains(word), "{word}: {text}");
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn equal_jobs_are_compiled_once() {
    let dir = tempfile::tempdir().unwrap();
    let Some(engine) = engine(dir.path(), "equal_jobs_are_compiled_once") else { return };
    let jobs = vec![job("sm_80"); 5];
    let done = std::sync::atomic::AtomicUsize::new(0);
    let codes = engine.compile_each(&jobs, &|_, _| {
        done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(codes.iter().all(Result::is_ok));
    assert_eq!(done.into_inner(), 5);
    assert_eq!((engine.counts().compiled, engine.counts().cached), (1, 4));
}

#[test]
fn compile_error_names_source_line_and_is_cached() {
    let dir = tempfile::tempdir().unwrap();
    let Some(engine) = engine(dir.path(), "compile_error_names_source_line_and_is_cached") else {
        return;
    };
    let source = Source::new(
        "bad",
        "bad.hip",
        "#include \"words.h\"\n\nKERNEL bad(float* y) {\n    y[0] = nonsense;\n}\n",
    )
    .file("words.h", crate::common::WORDS);
    let bad = Job::new(source, constants(), Options::wave(32), Target::parse("sm_90").unwrap());
    let Err(Error::Compile(failure)) = engine.compile(&bad) else { panic!("it compiled") };
    let text = failure.to_string();
    assert!(text.contains("bad.hip(4)") && text.contains("nonsense"), "{text}");
    assert!(text.contains("sm_90") && text.contains("BLOCK=128") && !text.contains('\n'), "{text}");
    let kept = failure.kept.clone().unwrap();
    assert!(text.contains(kept.to_str().unwrap()));
    for file in ["bad.hip", "words.h", "options.txt", "log.txt", "request.bin"] {
        assert!(kept.join(file).is_file(), "{file}");
    }
    assert!(std::fs::read_to_string(kept.join("bad.hip")).unwrap().contains("#define BLOCK 128"));
    // The kept script fails with the same message.
    assert!(text.contains(&format!("sh {}/again.sh", kept.display())), "{text}");
    let again = std::process::Command::new("sh")
        .arg(kept.join("again.sh"))
        .current_dir("/")
        .output()
        .unwrap();
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("nonsense"));
    std::fs::remove_dir_all(&kept).unwrap();
    // A second request has the same answer and creates no second folder.
    let Err(Error::Compile(second)) = engine.compile(&bad) else { panic!("it compiled") };
    assert_eq!(second.kept, failure.kept);
    assert!(!kept.exists());
}

#[test]
fn missing_entry_point_is_named_in_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let Some(engine) = engine(dir.path(), "missing_entry_point_is_named_in_the_error") else {
        return;
    };
    let mut job = job("sm_90");
    job.source = saxpy().entry("forgotten");
    let error = engine.compile(&job).unwrap_err().to_string();
    assert!(error.contains("forgotten") && error.contains("saxpy"), "{error}");
}

#[test]
fn in_process_and_child_compiles_give_identical_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let Some(child) = engine(dir.path(), "in_process_and_child_compiles_give_identical_bytes")
    else {
        return;
    };
    let here = Engine::new(Config::new().no_cache().isolation(Isolation::InProcess));
    assert_eq!(
        child.compile(&job("sm_86")).unwrap().bytes(),
        here.compile(&job("sm_86")).unwrap().bytes()
    );
}

#[test]
fn slow_compile_is_stopped_at_its_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_) = engine(dir.path(), "slow_compile_is_stopped_at_its_deadline") else { return };
    // The result of the probe is cached from the test above. A millisecond is too short to start a
    // process and a compiler.
    let hasty = Engine::new(config(dir.path()).timeout(Duration::from_millis(1)));
    let error = hasty.compile(&job("sm_90")).unwrap_err();
    assert!(
        matches!(error, Error::Worker { .. })
            && error.to_string().contains("was stopped after 0.001 s"),
        "{error}"
    );
}

#[test]
fn compiler_above_memory_limit_fails_alone() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_) = engine(dir.path(), "compiler_above_memory_limit_fails_alone") else { return };
    // The library alone maps more memory than this.
    let poor = Engine::new(config(dir.path()).memory_limit(48 << 20));
    let error = poor.compile(&job("sm_90")).unwrap_err();
    assert!(matches!(error, Error::Worker { .. }), "{error}");
}

#[test]
fn crashed_worker_is_retried_once_and_its_output_reported() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_) = engine(dir.path(), "crashed_worker_is_retried_once_and_its_output_reported")
    else {
        return;
    };
    let script = dir.path().join("kjit-cc");
    let count = dir.path().join("count");
    let text = format!(
        "#!/bin/sh\necho x >> {}\necho 'comgr: unknown arch' >&2\nkill -ABRT $$\n",
        count.display()
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let engine = Engine::new(config(dir.path()).isolation(Isolation::Worker(script)));
    let error = engine.compile(&job("sm_90")).unwrap_err().to_string();
    assert!(
        error.contains("signal 6 (it aborted), twice") && error.contains("comgr: unknown arch"),
        "{error}"
    );
    assert_eq!(std::fs::read_to_string(count).unwrap().lines().count(), 2);
}

#[test]
fn compiler_output_on_stdout_does_not_break_the_protocol() {
    // Output on stdout before the protocol starts would break the protocol. So the worker moves its
    // pipe to another descriptor first. In the real binary descriptor 1 is the log.
    let Isolation::Worker(kjit_cc) = worker() else { unreachable!() };
    let mut child = std::process::Command::new(kjit_cc)
        .args(["--kjit-cc-work", "0"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let fd = |n: u32| std::fs::read_link(format!("/proc/{}/fd/{n}", child.id())).ok();
    let mut moved = false;
    for _ in 0..200 {
        if fd(1).is_some() && fd(1) == fd(2) {
            moved = true;
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(moved, "fd 1 is {:?}, fd 2 is {:?}", fd(1), fd(2));
    assert_eq!(fd(0), Some("/dev/null".into()));
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn missing_worker_error_lists_three_solutions() {
    let dir = tempfile::tempdir().unwrap();
    let engine =
        Engine::new(config(dir.path()).isolation(Isolation::Worker("/nonexistent/kjit-cc".into())));
    let report = engine.compilers(Vendor::Nvidia);
    assert!(report.found.is_empty());
    if !report.unusable.is_empty() {
        assert!(report.unusable[0].contains("/nonexistent/kjit-cc"), "{:?}", report.unusable);
    }
}

#[test]
fn trace_contains_compile_spans() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_) = engine(dir.path(), "compile::trace_contains_compile_spans") else { return };
    let trace = Trace::new();
    let engine = Engine::new(config(dir.path()).trace(trace.clone()));
    engine.compile_all(&[job("sm_80"), job("sm_89")]).into_iter().for_each(|c| drop(c.unwrap()));
    let json = trace.to_json();
    assert_eq!(json.matches("\"ph\":\"X\"").count(), 2, "{json}");
    assert!(json.contains("compile 0") && json.contains("BLOCK=128"));
}

#[test]
fn invalid_jobs_are_refused_before_compiler_search() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::new(config(dir.path()).compiler_path("/nonexistent"));
    let mut wave = job("sm_90");
    wave.options.wave = 64;
    let mut header = job("sm_90");
    header.source = Source::new("h", "h.hip", "#include \"gone.h\"");
    for (job, word) in [(wave, "waves of 64"), (header, "gone.h")] {
        let error = engine.compile(&job).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn unavailable_devices_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::new(config(dir.path()));
    for (asked, word) in [
        ("cuda:x", "not a device number"),
        ("metal", "not supported"),
        ("banana:0", "this build has no such driver"),
        ("cuda:4096", ""),
    ] {
        let error = engine.device(asked).unwrap_err();
        assert!(error.to_string().contains(word), "{asked}: {error}");
    }
    let inventory = engine.devices();
    if inventory.devices.is_empty() {
        assert!(!inventory.missing.is_empty());
        let error = engine.device("cuda:0").unwrap_err().to_string();
        assert!(error.contains("libcuda") || error.contains("device"), "{error}");
    }
}

#[test]
fn damaged_cubin_is_an_error_without_panic() {
    let dir = tempfile::tempdir().unwrap();
    let Some(engine) = engine(dir.path(), "damaged_cubin_is_an_error_without_panic") else {
        return;
    };
    let code = engine.compile(&job("sm_90")).unwrap();
    let whole = code.bytes();
    assert_eq!(inspect("whole", whole).unwrap(), {
        let mut kernels = code.kernels().to_vec();
        kernels.iter_mut().for_each(|k| k.spills = None);
        kernels
    });
    for len in (0..whole.len()).step_by(7) {
        assert!(inspect("cut", &whole[..len]).is_err(), "cut at {len} of {}", whole.len());
    }
    let mut bytes = whole.to_vec();
    for at in 0..bytes.len() {
        for bit in [0x01, 0x80] {
            bytes[at] ^= bit;
            // The hash detects changes of the code. The reader must neither panic nor hang.
            let _ = inspect("flipped", &bytes);
            bytes[at] ^= bit;
        }
    }
}

#[test]
fn three_hundred_cache_hits_are_fast() {
    let dir = tempfile::tempdir().unwrap();
    let Some(first) = engine(dir.path(), "three_hundred_cache_hits_are_fast") else { return };
    let made = first.compile(&job("sm_90")).unwrap();
    drop(made);
    let again = Engine::new(config(dir.path()));
    let jobs = vec![job("sm_90"); 300];
    let began = std::time::Instant::now();
    assert!(again.compile_all(&jobs).iter().all(Result::is_ok));
    let took = began.elapsed();
    eprintln!("300 hits, search for compilers included: {took:?}");
    assert_eq!(again.counts().cached, 300);
    // 20 to 60 ms were measured on two busy cores. The limit only catches a library that is hashed,
    // or a kernel that is compiled, for each hit.
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn clang_helper_words_do_not_clash_with_nvrtc() {
    let dir = tempfile::tempdir().unwrap();
    let Some(engine) = engine(dir.path(), "the_words_do_not_clash") else { return };
    let text = r#"
#include "words.h"
extern "C" __global__ void __launch_bounds__(128) plain(float* y, uint64_t n, int8_t by, unsigned* count) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    float v = __shfl_xor_sync(0xffffffffu, y[i], 1) + expf(y[i]) + make_float4(1, 2, 3, 4).w + dim3(4).x;
    if (i < n && __any_sync(0xffffffffu, by)) y[i] = fmaxf(v, (float)max((int)atomicAdd(count, 1u), gridDim.x));
}
"#;
    let source = Source::new("plain", "plain.cu", text).words().entry("plain");
    let target: Target = "sm_90".parse().unwrap();
    let job = Job::new(source, kjit_engine::Constants::new(), Options::wave(32), target);
    let code = engine.compile(&job).unwrap();
    assert_eq!(code.kernels()[0].args.iter().map(|a| a.size).collect::<Vec<_>>(), [8, 8, 1, 8]);
}
