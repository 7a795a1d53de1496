//! A token as one launch on the simulated device. Its blocks are resident together and run in
//! random order, and its logits match those of many launches, also with delayed waves.

use crate::common::{TEMPORARY, WORKER};
use kjit_engine::{Arg, Device, Geometry};
use kjit_kernels::norm::{NormKind, NormSpec};
use kjit_kernels::persistent::{HEAD, Persistent, Probe};
use kjit_kernels::step::StepContext;
use kjit_model::gguf::Gguf;
use kjit_model::sample::SampleOptions;
use kjit_model::session::{KvType, OpenOptions, Persistence, Session, Want};
use kjit_tests::files::model_path;
use kjit_tests::launch::TestLaunch;
use kjit_tests::near::off;
use kjit_tests::several::{Several, options, setup};
use kjit_tests::side_by_side;
use kjit_tests::simulator::{Setup, Simulated, cache, engine};
use kjit_tests::solo_session::SoloSession;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// Compares one launch with many. `chunk` equals the value in other tests of this model and card,
/// so that launches are compiled for the CPU only once.
fn as_launches(test: &str, name: &str, (arch, chunk): (&str, usize), probe: Probe) {
    let Some(path) = model_path(name) else { return };
    let setup = Setup::devices(arch).set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.run(test, TEMPORARY, || {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let options =
            OpenOptions { prefill_chunk: Some(chunk), kv: KvType::F16, ..OpenOptions::new(64) };
        let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
        let device = engine.device("rocm:0").unwrap();
        let one = OpenOptions { persistent: Persistence::On, probe, ..options.clone() };
        let mut many = SoloSession::gpu(&engine, &device, &gguf, &graph, &options);
        assert_eq!(many.on_gpu().persistent(), None);
        let mut one = SoloSession::gpu(&engine, &device, &gguf, &graph, &one);
        let plan = one.on_gpu().plan();
        assert_eq!(
            one.on_gpu().persistent(),
            Some((plan.decode.launches.len(), 1)),
            "{:?}",
            plan.no_persistent
        );
        let prompt: Vec<u32> = (0..5).map(|i| (i * 37 + 5) % many.n_vocab() as u32).collect();
        for token in prompt {
            one.on_gpu().poison().unwrap();
            let (got, want) =
                (one.feed(&[token], Want::Last).unwrap(), many.feed(&[token], Want::Last).unwrap());
            // The products may be divided into other teams of threads. Sums that differ by 2e-7 can
            // round to different f16 keys and values, 2^-11 apart. The largest measured difference
            // is 7e-5.
            assert!(off(&got, &want) < 5e-4, "{name} on {arch}: off by {}", off(&got, &want));
        }
        let greedy = SampleOptions::default();
        one.truncate(0);
        many.truncate(0);
        assert_eq!(
            one.generate(&[5, 9, 2], 6, greedy.clone()),
            many.generate(&[5, 9, 2], 6, greedy)
        );
        assert_eq!(Simulated::here().fault(0), "");
    });
}

#[test]
fn persistent_llama_q4_on_simulated_gfx1100_ignores_delays() {
    let test = "simulated_persistent::persistent_llama_q4_on_simulated_gfx1100_ignores_delays";
    as_launches(test, "tiny/tiny-llama-q4_k_m.gguf", ("gfx1100", 8), Probe::Delays);
}

#[test]
fn persistent_gemma_q8_on_simulated_gfx942_matches_launches() {
    let test = "simulated_persistent::persistent_gemma_q8_on_simulated_gfx942_matches_launches";
    as_launches(test, "tiny/tiny-gemma3-q8_0.gguf", ("gfx942:sramecc+:xnack-", 8), Probe::None);
}

#[test]
fn persistent_experts_q4_on_simulated_gfx90a_match_launches() {
    let test = "simulated_persistent::persistent_experts_q4_on_simulated_gfx90a_match_launches";
    as_launches(test, "tiny/tiny-moe-q4_k_m.gguf", ("gfx90a:sramecc+:xnack-", 32), Probe::Delays);
}

/// Two tensor-parallel devices run a token as one launch each. The launches exchange sums through
/// each other's memory or host memory. Prompts are several launches that use the same
/// synchronisation variables.
#[test]
fn persistent_kernel_on_two_simulated_gfx1100_matches_launches() {
    let test = "simulated_persistent::persistent_kernel_on_two_simulated_gfx1100_matches_launches";
    let name = "tiny/tiny-llama-q8_0.gguf";
    if model_path(name).is_none() {
        return;
    }
    setup("gfx1100,gfx1100,gfx1100").set("HIPSIM_LINK", "pairs").run(test, TEMPORARY, || {
        let b = Several::new(name, TEMPORARY, WORKER);
        let all = b.devices(3);
        let options = OpenOptions { sequences: 1, ..options(KvType::F16) };
        let on =
            OpenOptions { persistent: Persistence::On, probe: Probe::Delays, ..options.clone() };
        let opened = |devices: &[Device], o: &OpenOptions| -> SoloSession {
            let session = Session::on_gpus(&b.engine, devices, &b.gguf, b.graph.clone(), o);
            SoloSession::of(session.map_err(|e| format!("{e:?}")).unwrap())
        };
        // Prompts are launches that synchronise with the same variables.
        let said = |s: &mut SoloSession| {
            let vocab = s.n_vocab() as u32;
            let mut rows = vec![];
            for round in 0..2 {
                let prompt: Vec<u32> = (0..19).map(|i| (i * 37 + 5 + round) % vocab).collect();
                rows.push(s.feed(&prompt, Want::Last).unwrap());
                rows.extend(
                    (0..4).map(|i| s.feed(&[(i * 41 + 3 + round) % vocab], Want::Last).unwrap()),
                );
                s.truncate(0);
            }
            let answer = s.generate(&[5, 9, 2], 6, SampleOptions::default());
            s.truncate(0);
            (rows, answer)
        };
        let mut many = opened(&all[..2], &options);
        assert_eq!(many.on_gpu().persistent(), None);
        let want = said(&mut many);
        drop(many);
        let mut first = None;
        for (devices, way) in [
            (vec![all[0].clone(), all[2].clone()], "through the host's memory"),
            (all[..2].to_vec(), "from device to device"),
        ] {
            let mut one = opened(&devices, &on);
            let gpu = one.on_gpu();
            assert_eq!((gpu.ranks(), gpu.sums_go()), (2, Some(way)));
            let why = &gpu.plan().no_persistent;
            assert_eq!(gpu.persistent(), Some((gpu.plan().decode.launches.len(), 1)), "{why:?}");
            let got = said(&mut one);
            assert_eq!(got.1, want.1);
            for (i, (got, want)) in got.0.iter().zip(&want.0).enumerate() {
                assert!(off(got, want) < 5e-4, "row {i}, {way}: off by {}", off(got, want));
            }
            assert!(first.get_or_insert(got.clone()).0 == got.0, "other bits {way}");
            // Another model on one of the devices: two such launches could wait forever, because
            // each prevents blocks of the other from starting. The model is opened during an answer
            // and waits for its end. (Kernels of two models do not run concurrently on the
            // simulator, so the answer pauses. On cards it continues.)
            let mut beside = std::thread::scope(|scope| {
                let mut opening = None;
                one.decode(&[5, 9, 2], SampleOptions::default(), &mut |token| {
                    assert_eq!(token, want.1[0]);
                    opening = Some(scope.spawn(|| opened(&all[..2], &on)));
                    std::thread::sleep(Duration::from_secs(3));
                    ControlFlow::Break(())
                })
                .unwrap();
                opening.unwrap().join().unwrap()
            });
            one.truncate(0);
            assert_eq!(beside.on_gpu().persistent(), None);
            assert!(said(&mut beside) == want, "what becomes launches has their bits");
            // Tokens that it decodes ahead are finished first, for the same reason.
            drop(beside);
            assert!(said(&mut one) == want, "what becomes launches has their bits");
            assert_eq!(one.on_gpu().persistent(), None);
        }
        (0..3).for_each(|i| assert_eq!(Simulated::here().fault(i), ""));
    });
}

#[test]
fn persistent_kernel_for_two_sequences_on_simulated_gfx1100_matches() {
    let test =
        "simulated_persistent::persistent_kernel_for_two_sequences_on_simulated_gfx1100_matches";
    let Some(path) = model_path("tiny/tiny-llama-q4_k_m.gguf") else { return };
    let setup = Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.run(test, TEMPORARY, || {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let options = OpenOptions {
            prefill_chunk: Some(8),
            kv: KvType::F16,
            threads: 2,
            ..OpenOptions::new(24)
        };
        let mut host =
            SoloSession::cpu(&gguf, &graph, &OpenOptions { precise: true, ..options.clone() });
        let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
        let device = engine.device("rocm:0").unwrap();
        // Its pages alternate with pages of other sequences.
        let (persistent, probe, paged) = (Persistence::On, Probe::Delays, Some(1024));
        let options = OpenOptions { sequences: 2, persistent, probe, paged, ..options };
        let mut session = Session::on_gpu(&engine, &device, &gguf, graph, &options).unwrap();
        let gpu = session.gpu().unwrap();
        assert_eq!(
            gpu.persistent().map(|(_, most)| most),
            Some(2),
            "{:?}",
            gpu.plan().no_persistent
        );
        for n in [1, 2] {
            Simulated::here().poison(session.gpu().unwrap().plan());
            let seen = side_by_side::scores(&mut session, &mut host, n);
            // Keys and values are f16, as with many launches.
            assert!(seen.iter().all(|x| *x < 4e-3), "{n} sequences: logits are off by {seen:?}");
            let gap = side_by_side::answers(&mut session, &mut host, n, 4);
            assert!(gap < 0.05, "{n} sequences: a token is {gap} below the host's choice");
        }
        assert_eq!(Simulated::here().fault(0), "");
    });
}

/// Two norms in two blocks, each of which waits for `blocks` blocks. Returns the error code for the
/// host and the second result.
fn two_norms(blocks: u32) -> (u32, Vec<f32>) {
    let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
    let device = engine.device("rocm:0").unwrap();
    let spec =
        NormSpec { cols: 64, kind: NormKind::Rms, weights: 1, residual: false, tuning: None };
    let made = Persistent::new(
        &[spec.into()],
        device.target(),
        Probe::None,
        StepContext::of(device.target(), 1, 1),
    )
    .unwrap();
    let kernel = engine
        .load(&device, &made.kernel.job(device.target()))
        .unwrap()
        .kernel("persistent")
        .unwrap();
    let stream = device.stream().unwrap();
    let [x, weight, between, y] =
        [4.0f32, 0.5, f32::NAN, f32::NAN].map(|v| stream.upload(&[v; 64]).unwrap());
    let mut program = vec![];
    for (from, to) in [(&x, &between), (&between, &y)] {
        let end = program.len() + made.words;
        // Step 0 has one share and no wait for other blocks: x, weight, bias, residual, y, eps.
        let (eps, head) = (u64::from(1e-6f32.to_bits()), program.len() + HEAD);
        program.extend([0, 1, 1, 1]);
        program.resize(head, 0);
        program.extend([from.address(), weight.address(), 0, 0, to.address(), eps]);
        program.resize(end, 0);
    }
    // On the simulated device, a launch may access the buffers whose addresses are in the program.
    let program = stream.upload(&program).unwrap();
    let meeting = device.buffer::<u8>(Persistent::MEETING).unwrap();
    stream.fill(&meeting, 0).unwrap();
    let late = device.pinned::<u32>(1).unwrap();
    late.write(|to| to.fill(0)).unwrap();
    let word = late.on_device();
    let limit = 50_000_000u64;
    let args = [
        Arg::from(&program),
        2u32.into(),
        Arg::from(&meeting),
        Arg::from(&word),
        blocks.into(),
        limit.into(),
    ];
    let shape = Geometry::new(2, made.block).shared(made.kernel.shared).cooperative(true);
    stream.put(&kernel, &shape, &args).unwrap();
    let y = stream.read(&y).unwrap();
    (late.peek(0).unwrap(), y)
}

#[test]
fn stalled_block_is_reported_without_hanging() {
    let test = "simulated_persistent::stalled_block_is_reported_without_hanging";
    let setup = Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.run(test, TEMPORARY, || {
        let (late, y) = two_norms(2);
        assert_eq!(late, 0);
        assert!(y.iter().all(|v| (v - 0.5).abs() < 1e-5), "{y:?}");
        // The fault is at the second of the two instructions. The error code is its index plus one,
        // because 0 means success.
        assert_eq!(two_norms(3).0, 2);
    });
}
