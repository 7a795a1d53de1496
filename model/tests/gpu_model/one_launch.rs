//! Tests one launch per token. The logits equal those of many launches even if waves are delayed. A
//! block that never arrives causes one error.

use super::{device, engine, open, options, tiny_models};
use crate::support::files::model_path;
use crate::support::near::off;
use crate::support::side_by_side;
use crate::support::solo_session::SoloSession;
use kjit_model::gguf::Gguf;
use kjit_model::sample::SampleOptions;
use kjit_model::session::{KvType, OpenOptions, Persistence, Probe, Session, SessionError, Want};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

#[test]
#[ignore = "needs an NVIDIA GPU (scripts/gpu-suite)"]
fn persistent_kernel_matches_many_launches() {
    let mut whole = 0;
    for path in tiny_models() {
        // For tools that slow a launch down a thousand times: wait up to an hour, and use fewer
        // tokens.
        let probe = if std::env::var_os("KJIT_TEST_PATIENT").is_some() {
            Probe::Patient
        } else {
            Probe::None
        };
        let tokens = std::env::var("KJIT_TEST_COUNT")
            .map_or(24, |n| n.parse().expect("KJIT_TEST_COUNT is a number"));
        let (many, one) =
            (options(64, 8), OpenOptions { persistent: Persistence::On, probe, ..options(64, 8) });
        let (mut many, mut one) = (open(&path, &many), open(&path, &one));
        if one.on_gpu().persistent().is_none() {
            let why = &one.on_gpu().plan().no_persistent;
            eprintln!(
                "{}: {}",
                path.display(),
                why.as_deref().unwrap_or("the device cannot run all blocks at once")
            );
            continue;
        }
        whole += 1;
        for i in 0..tokens {
            let token = (i * 37 + 5) % many.n_vocab() as u32;
            one.on_gpu().poison().unwrap();
            let (got, want) =
                (one.feed(&[token], Want::Last).unwrap(), many.feed(&[token], Want::Last).unwrap());
            // Another order of sums rounds keys and values to other f16 values, which differ by
            // 2^-11 (7e-5 measured).
            assert!(
                off(&got, &want) < 5e-4,
                "{}, token {i}: off by {}",
                path.display(),
                off(&got, &want)
            );
        }
    }
    assert!(whole > 0, "no tiny model runs in one launch");
}

/// Waves of the one launch are delayed, other waves in each launch, so that code that relies on
/// timing fails. The order of sums is fixed, so the logits are bit for bit equal each time. The
/// tokens equal the tokens with many launches.
#[test]
#[ignore = "needs an NVIDIA GPU (scripts/gpu-suite)"]
fn persistent_kernel_is_bit_identical_with_delayed_waves() {
    const ROUNDS: u32 = 100;
    let (mut whole, greedy) = (0, SampleOptions::default());
    for path in tiny_models() {
        if !path.ends_with("tiny-llama-q4_k_m.gguf") && !path.ends_with("tiny-qwen3-q8_0.gguf") {
            continue;
        }
        let on = |probe| OpenOptions { persistent: Persistence::On, probe, ..options(64, 8) };
        let (mut late, mut one) = (open(&path, &on(Probe::Delays)), open(&path, &on(Probe::None)));
        let mut many = open(&path, &options(64, 8));
        if one.on_gpu().persistent().is_none() {
            let why = &one.on_gpu().plan().no_persistent;
            eprintln!(
                "{}: {}",
                path.display(),
                why.as_deref().unwrap_or("the device cannot run all blocks at once")
            );
            continue;
        }
        whole += 1;
        let want = many.generate(&[5, 9, 2], 12, greedy.clone());
        assert_eq!(one.generate(&[5, 9, 2], 12, greedy.clone()), want, "{}", path.display());
        for round in 0..ROUNDS {
            late.truncate(0);
            assert_eq!(
                late.generate(&[5, 9, 2], 12, greedy.clone()),
                want,
                "{}, round {round}",
                path.display()
            );
        }
        late.truncate(0);
        one.truncate(0);
        for i in 0..24 {
            let token = (i * 37 + 5) % many.n_vocab() as u32;
            let (got, want) =
                (late.feed(&[token], Want::Last).unwrap(), one.feed(&[token], Want::Last).unwrap());
            assert_eq!(got, want, "{}, token {i}", path.display());
        }
    }
    assert!(whole > 0, "no tiny model runs in one launch");
}

/// Tests many positions. Attention runs in slices, and the slice that finishes last adds the
/// results and passes them on. Waves are delayed. The logits are close to those of many launches,
/// and bit for bit equal regardless of which slice is last.
#[test]
#[ignore = "needs an NVIDIA GPU (scripts/gpu-suite)"]
fn persistent_kernel_matches_after_a_thousand_positions() {
    let mut whole = 0;
    for (name, kv) in [
        ("tiny-llama-q4_k_m", KvType::F16),
        ("tiny-llama-q4_k_m", KvType::Q8_0),
        ("tiny-qwen3-q8_0", KvType::F16),
        ("tiny-moe-q4_k_m", KvType::F16),
    ] {
        let path = tiny_models().into_iter().find(|p| p.ends_with(format!("{name}.gguf")));
        let path = path.unwrap_or_else(|| panic!("the suite needs {name}.gguf"));
        let many = OpenOptions { kv, ..options(1300, 256) };
        let on = |probe| OpenOptions { persistent: Persistence::On, probe, ..many.clone() };
        let (mut late, mut one) = (open(&path, &on(Probe::Delays)), open(&path, &on(Probe::None)));
        let mut many = open(&path, &many);
        if one.on_gpu().persistent().is_none() {
            eprintln!("{name}: {:?}", one.on_gpu().plan().no_persistent);
            continue;
        }
        whole += 1;
        let vocab = many.n_vocab() as u32;
        let past: Vec<u32> = (0..1000).map(|i| (i * 37 + 5) % vocab).collect();
        [&mut late, &mut one, &mut many]
            .into_iter()
            .for_each(|s| drop(s.feed(&past, Want::Last).unwrap()));
        for i in 0..24 {
            let token = [(i * 41 + 3) % vocab];
            let [late, one, many] =
                [&mut late, &mut one, &mut many].map(|s| s.feed(&token, Want::Last).unwrap());
            assert!(
                off(&one, &many) < 5e-4,
                "{name} {kv:?}, token {i}: off by {}",
                off(&one, &many)
            );
            assert_eq!(late, one, "{name} {kv:?}, token {i}");
        }
    }
    assert!(whole > 0, "no tiny model runs in one launch");
}

/// Tests every architecture that supports one launch per token. Norms, gates, residuals and
/// mixtures are in another order than in llama.
#[test]
#[ignore = "needs an NVIDIA GPU (scripts/gpu-suite)"]
fn persistent_kernel_matches_in_every_architecture() {
    let Some(folder) = model_path("archs") else { return };
    let files = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path());
    let mut all: Vec<_> = files.filter(|p| p.extension().is_some_and(|e| e == "gguf")).collect();
    all.sort();
    // The kernels of a model take seconds to compile, so several models are tested in parallel.
    let next = AtomicUsize::new(0);
    let (whole, wrong) = (AtomicUsize::new(0), Mutex::new(vec![]));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(4, |n| n.get() / 2).clamp(1, 8) {
            scope.spawn(|| {
                while let Some(path) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match late_beside_launches(path) {
                        None => {}
                        Some(Ok(())) => _ = whole.fetch_add(1, Ordering::Relaxed),
                        Some(Err(off)) => {
                            wrong.lock().unwrap().push(format!("{}: {off}", path.display()))
                        }
                    }
                }
            });
        }
    });
    let (whole, wrong) = (whole.into_inner(), wrong.into_inner().unwrap());
    eprintln!("{whole} models have the logits of launches in one launch");
    assert!(whole > 10 && wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Compares twelve tokens in one launch with delayed waves with many launches. `None` if the model
/// does not support one launch.
fn late_beside_launches(path: &Path) -> Option<Result<(), String>> {
    let gguf = Arc::new(Gguf::open(path).unwrap());
    let graph = kjit_model::arch::build(&gguf).ok().filter(|graph| !graph.states.is_empty())?;
    let engine = engine();
    let device = device(&engine);
    let late = OpenOptions { persistent: Persistence::On, probe: Probe::Delays, ..options(64, 8) };
    let made = |o: &OpenOptions| {
        Session::on_gpu(&engine, &device, &gguf, graph.clone(), o).ok().map(SoloSession::of)
    };
    let mut late = made(&late)?;
    late.on_gpu().persistent()?;
    let mut many = made(&options(64, 8))?;
    for i in 0..12 {
        let token = [(i * 37 + 5) % many.n_vocab() as u32];
        let (got, want) = match (late.feed(&token, Want::Last), many.feed(&token, Want::Last)) {
            (Ok(got), Ok(want)) => (got, want),
            (Err(SessionError::Encoder { .. }), _) => return None,
            (got, want) => {
                return Some(Err(format!("token {i}: {:?}, launches {:?}", got.err(), want.err())));
            }
        };
        let off = off(&got, &want);
        // Another order of sums rounds keys, values and states to other f16 values. NaN fails.
        if !matches!(off.partial_cmp(&2e-3), Some(std::cmp::Ordering::Less)) {
            return Some(Err(format!("token {i} is off by {off}")));
        }
    }
    Some(Ok(()))
}

/// Runs one token of each of two sequences in one launch, with slots and with pages. The logits and
/// answers are close to the CPU's, and bit for bit equal regardless of which waves are delayed.
#[test]
#[ignore = "needs an NVIDIA GPU (scripts/gpu-suite)"]
fn persistent_kernel_for_two_sequences_matches_the_host() {
    let engine = engine();
    let device = device(&engine);
    // A session compiles a kernel for each number of sequences, so few models are tested.
    for (name, kv, paged) in [
        ("tiny-llama-q4_k_m", KvType::F16, None),
        ("tiny-llama-q4_k_m", KvType::Q8_0, Some(1024)),
        ("tiny-qwen3-q8_0", KvType::F16, Some(1024)),
        ("tiny-gemma3-q4_k_m", KvType::F16, None),
        ("tiny-tied-f16", KvType::F16, Some(1024)),
    ] {
        let path = tiny_models().into_iter().find(|p| p.ends_with(format!("{name}.gguf")));
        let path = path.unwrap_or_else(|| panic!("the suite needs {name}.gguf"));
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let label = format!("{name} {kv:?}, pages {paged:?}");
        let o = OpenOptions { kv, ..options(24, 16) };
        let mut host = SoloSession::cpu(&gguf, &graph, &OpenOptions { precise: true, ..o.clone() });
        let on = |probe| OpenOptions {
            persistent: Persistence::On,
            probe,
            sequences: 3,
            paged,
            ..o.clone()
        };
        let made =
            |probe| Session::on_gpu(&engine, &device, &gguf, graph.clone(), &on(probe)).unwrap();
        let (mut late, mut one) = (made(Probe::Delays), made(Probe::None));
        let gpu = one.gpu().unwrap();
        assert_eq!(
            gpu.persistent().map(|(_, most)| most),
            Some(2),
            "{label}: {:?}",
            gpu.plan().no_persistent
        );
        // Three sequences use many launches. They run between the others.
        for n in [1, 2, 3, 2, 1] {
            one.gpu().unwrap().poison().unwrap();
            let seen = side_by_side::scores(&mut one, &mut host, n);
            // Keys and values are f16 or eight-bit.
            let most = if kv == KvType::Q8_0 { 0.1 } else { 2e-2 };
            assert!(seen.iter().all(|x| *x < most), "{label}, {n} sequences: off by {seen:?}");
            for _ in 0..8 {
                let late = side_by_side::scores(&mut late, &mut host, n);
                assert_eq!(late, seen, "{label}, {n} sequences, delayed waves");
            }
            let gap = side_by_side::answers(&mut one, &mut host, n, 6);
            assert!(gap < 0.05, "{label}: a token is {gap} below the choice of the CPU");
        }
        side_by_side::limits(&mut late);
        let first = side_by_side::draws(&mut one, [7, 8], 8);
        assert_eq!(first, side_by_side::draws(&mut late, [7, 8], 8), "{label}");
    }
}

/// Simulates a stall: one block of the launch never arrives. Waits are limited in time, the error
/// gives the place, and the GPU stays usable.
#[test]
#[ignore = "needs an NVIDIA GPU (scripts/gpu-suite)"]
fn stalled_block_is_one_error_and_gpu_stays_usable() {
    let path = tiny_models().into_iter().find(|p| p.ends_with("tiny-llama-q4_k_m.gguf"));
    let path = path.expect("the suite needs tiny-llama-q4_k_m.gguf");
    let on = |probe| OpenOptions { persistent: Persistence::On, probe, ..options(64, 8) };
    let mut stalled = open(&path, &on(Probe::Stall));
    assert!(stalled.on_gpu().persistent().is_some(), "{:?}", stalled.on_gpu().plan().no_persistent);
    let began = std::time::Instant::now();
    let error = stalled.feed(&[5], Want::Last).unwrap_err();
    let (said, took) = (error.to_string(), began.elapsed().as_secs_f64());
    assert!(
        matches!(error, SessionError::Lost(_)) && said.contains("waited longer than 1 s"),
        "{said}"
    );
    assert!(!said.contains('\n') && (1.0..4.0).contains(&took), "after {took} s: {said}");
    // The session stays unusable; another session of the same process works.
    assert!(stalled.feed(&[5], Want::Last).is_err());
    drop(stalled);
    let (mut one, mut many) = (open(&path, &on(Probe::None)), open(&path, &options(64, 8)));
    let (got, want) = (one.feed(&[5], Want::Last).unwrap(), many.feed(&[5], Want::Last).unwrap());
    assert!(off(&got, &want) < 5e-4, "off by {}", off(&got, &want));
}
