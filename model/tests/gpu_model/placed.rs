//! Tests models that are not completely on one GPU: streamed layers, parts on the CPU, layers on
//! two GPUs.

use super::{SMOLLM2, asked, device, engine, open, options, tiny_models};
use crate::support::files::model_path;
use crate::support::near::off;
use crate::support::side_by_side;
use crate::support::solo_session::SoloSession;
use crate::support::story::{same, story};
use kjit_engine::{Device, Engine};
use kjit_model::gguf::Gguf;
use kjit_model::placement::{Layers, StageDevice};
use kjit_model::sample::SampleOptions;
use kjit_model::session::{OpenOptions, Persistence, Probe, Session, Want};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

#[test]
#[ignore = "needs an NVIDIA GPU (scripts/gpu-suite)"]
fn streamed_layers_are_bit_identical_in_one_replay() {
    let mut models = tiny_models();
    models.extend(model_path(SMOLLM2));
    let bits = |row: Vec<f32>| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for path in models {
        let label = path.file_name().unwrap().to_string_lossy().into_owned();
        let (all, one) = (options(512, 64), SampleOptions::default());
        let mut resident = open(&path, &all);
        let need = resident.on_gpu().plan().memory;
        // One run streams all layers; another, if the memory suffices, only some of them.
        let some = OpenOptions {
            memory: Some(need.total() - need.weights / 3),
            host_ffn: Some(0),
            ..all.clone()
        };
        let mut ways = vec![OpenOptions { stream: true, ..all }];
        ways.extend(label.starts_with("SmolLM2").then_some(some));
        let prompt: Vec<u32> = (0..100).map(|i| (i * 37 + 11) % 2000).collect();
        let want = (
            bits(resident.feed(&prompt, Want::Last).unwrap()),
            resident.generate(&[5], 40, one.clone()),
        );
        for way in ways {
            let mut gpu = open(&path, &way);
            gpu.on_gpu().poison_ring();
            gpu.on_gpu().poison().unwrap();
            let told = gpu.on_gpu().statistics().streamed.unwrap();
            for round in 0..3 {
                let got = (
                    bits(gpu.feed(&prompt, Want::Last).unwrap()),
                    gpu.generate(&[5], 40, one.clone()),
                );
                assert!(got == want, "{label}, round {round}: {told}");
                gpu.truncate(0);
            }
            let device = gpu.on_gpu().opened().clone();
            let (mut seen, counts) = (0, std::cell::RefCell::new(vec![]));
            gpu.decode(&[1, 2, 3], one.clone(), &mut |_| {
                seen += 1;
                if seen == 10 || seen == 110 {
                    counts.borrow_mut().push(device.counts());
                }
                if seen == 120 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
            let n = counts.borrow()[1] - counts.borrow()[0];
            let rest =
                [n.allocations, n.pinned, n.synchronisations, n.copies_in, n.launches, n.captures];
            assert_eq!((n.replays, rest), (100, [0; 6]), "{label}: {n:?}");
            eprintln!("{label}: {told}");
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU (scripts/gpu-suite)"]
fn cpu_ffn_parts_match_gpu_except_near_ties() {
    let precise = OpenOptions { precise: true, ..options(512, 64) };
    let moe = tiny_models().into_iter().find(|path| path.ends_with("tiny-moe-q4_k_m.gguf"));
    let ffn = OpenOptions { host_ffn: Some(7), ..precise.clone() };
    let hot = OpenOptions { host_experts: 99, hot_experts: Some(2 << 20), ..precise.clone() };
    let all = [(model_path(SMOLLM2), ffn, true), (moe, hot, false)];
    for (path, mut with, streams) in
        all.into_iter().filter_map(|(path, with, streams)| Some((path?, with, streams)))
    {
        let mut card = open(&path, &precise);
        let need = card.on_gpu().plan().memory;
        with.memory = streams.then_some(need.total() - need.weights / 3);
        let mut gpu = open(&path, &with);
        gpu.on_gpu().poison_ring();
        gpu.on_gpu().poison().unwrap();
        let told = gpu.on_gpu().statistics().streamed;
        assert_eq!(told.is_some_and(|s| s.layers > 3), streams, "{told:?}");
        assert!(!gpu.on_gpu().plan().decode.pauses.is_empty());
        // A prompt, then the tokens of the GPU's own answer.
        let prompt: Vec<u32> = (0..100).map(|i| (i * 37 + 11) % 2000).collect();
        let (mut want, mut got) =
            (card.feed(&prompt, Want::Last).unwrap(), gpu.feed(&prompt, Want::Last).unwrap());
        for at in 0..40 {
            let best = |row: &[f32]| (0..).zip(row).max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
            let (token, chosen) = (best(&want), best(&got));
            let gap = want[token as usize] - want[chosen as usize];
            assert!(gap < 0.05, "{}, token {at}: {gap} below the card's", path.display());
            (want, got) =
                (card.feed(&[token], Want::Last).unwrap(), gpu.feed(&[token], Want::Last).unwrap());
        }
        if let Some(counts) = gpu.on_gpu().hot() {
            assert!(counts.chosen > 0 && counts.hit > 0, "{counts}");
        }
    }
}

/// The device after the tested one, of the same vendor; `None`, with a message, if there is only
/// one.
fn second(engine: &Engine) -> Option<Device> {
    let (word, number) =
        asked().split_once(':').map(|(w, n)| (w.to_owned(), n.parse::<u32>().unwrap())).unwrap();
    let label = format!("{word}:{}", number + 1);
    if !engine.devices().devices.iter().any(|d| d.label() == label) {
        eprintln!("SKIPPED: there is no {label} beside {}", asked());
        return None;
    }
    Some(engine.device(&label).unwrap())
}

#[test]
#[ignore = "needs two NVIDIA GPUs (scripts/gpu-suite)"]
fn layers_on_two_gpus_are_bit_identical_to_one() {
    let engine = engine();
    let Some(second) = second(&engine) else { return };
    let first = device(&engine);
    for path in tiny_models() {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let options = OpenOptions { sequences: 3, ..options(96, 64) };
        let mut one = Session::on_gpu(&engine, &first, &gguf, graph.clone(), &options).unwrap();
        let want = story(&mut one);
        drop(one);
        let layers = Layers::of(&graph).unwrap().len();
        let gpu = |device: &Device, n: usize| (StageDevice::Gpu(device.clone()), n);
        let stages = [gpu(&first, layers / 2), gpu(&second, layers - layers / 2)];
        let mut two = Session::on_stages(&engine, &stages, &gguf, graph.clone(), &options).unwrap();
        eprintln!("{}: rows come {:?}", path.display(), two.gpu().unwrap().link());
        assert_eq!(two.gpu().unwrap().link(), Some("device to device"));
        same(&path.display().to_string(), &want, &story(&mut two));
        drop(two);
        // The first stage is on the CPU, before the GPUs.
        let stages = [(StageDevice::Cpu, 1), gpu(&first, 1), gpu(&second, layers - 2)];
        if layers > 2 {
            let mut three =
                Session::on_stages(&engine, &stages, &gguf, graph.clone(), &options).unwrap();
            let precise = OpenOptions { precise: true, sequences: 1, ..options.clone() };
            let mut host = SoloSession::cpu(&gguf, &graph, &precise);
            let mut seen = side_by_side::scores(&mut three, &mut host, 3);
            seen.sort_by(f64::total_cmp);
            assert!(seen[seen.len() / 2] < 2e-2, "{}: {seen:?}", path.display());
        }
    }
}

/// Devices compute each layer together. Each computes its share of a token in one launch that
/// contains the sums over the devices. Logits and tokens equal the results with many launches, with
/// prompts in between. They are bit for bit equal regardless of which waves are delayed on either
/// device.
#[test]
#[ignore = "needs two NVIDIA GPUs (scripts/gpu-suite)"]
fn persistent_kernel_on_two_gpus_matches_many_launches() {
    let engine = engine();
    let Some(second) = second(&engine) else { return };
    let devices = [device(&engine), second];
    let mut whole = 0;
    // Each model needs more than three sessions with their own kernels, so few models are tested.
    let some =
        ["tiny-llama-q4_0", "tiny-llama-q8_0", "tiny-qwen3-f16", "tiny-moe-q8_0", "tiny-tied-q8_0"];
    let taken = |path: &PathBuf| some.iter().any(|name| path.ends_with(format!("{name}.gguf")));
    for path in tiny_models().into_iter().filter(taken) {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let label = path.file_name().unwrap().to_string_lossy().into_owned();
        let made = |persistent, probe, sequences| {
            let o = OpenOptions { persistent, probe, sequences, ..options(64, 16) };
            Session::on_gpus(&engine, &devices, &gguf, graph.clone(), &o).ok()
        };
        // One session is open at a time: two models on the same devices would use many launches.
        let said = |s: &mut SoloSession| {
            let vocab = s.n_vocab() as u32;
            let mut rows = vec![];
            for round in 0..3 {
                let prompt: Vec<u32> = (0..20).map(|i| (i * 37 + 5 + round) % vocab).collect();
                rows.push(s.feed(&prompt, Want::Last).unwrap());
                for i in 0..24 {
                    s.on_gpu().poison().unwrap();
                    rows.push(s.feed(&[(i * 41 + 3 + round) % vocab], Want::Last).unwrap());
                }
                s.truncate(0);
            }
            rows
        };
        let answer = |s: &mut SoloSession| {
            s.truncate(0);
            s.generate(&[5, 9, 2], 12, SampleOptions::default())
        };
        let Some(many) = made(Persistence::Off, Probe::None, 1) else { continue };
        let mut many = SoloSession::of(many);
        let (want, tokens) = (said(&mut many), answer(&mut many));
        drop(many);
        let mut one = SoloSession::of(made(Persistence::On, Probe::None, 1).unwrap());
        let gpu = one.on_gpu();
        if gpu.persistent().is_none() {
            eprintln!("{label}: {:?}", gpu.plan().no_persistent);
            continue;
        }
        assert_eq!(gpu.sums_go(), Some("from device to device"));
        let (shares, launches) =
            (gpu.plan().persistent[0].instructions.len(), gpu.plan().decode.launches.len());
        eprintln!("{label}: {launches} launches as {shares} steps");
        whole += 1;
        let rows = said(&mut one);
        for (i, (got, want)) in rows.iter().zip(&want).enumerate() {
            assert!(off(got, want) < 5e-4, "{label}, row {i}: off by {}", off(got, want));
        }
        assert_eq!(answer(&mut one), tokens, "{label}");
        // Another model opens on the devices during an answer. Both use many launches from the next
        // token on.
        one.truncate(0);
        let mut seen = vec![];
        let mut beside = std::thread::scope(|scope| {
            let mut opening = None;
            one.decode(&[5, 9, 2], SampleOptions::default(), &mut |token| {
                seen.push(token);
                let open = || {
                    scope.spawn(|| SoloSession::of(made(Persistence::On, Probe::None, 1).unwrap()))
                };
                let opened = opening.get_or_insert_with(open).is_finished();
                std::thread::sleep(std::time::Duration::from_millis(20));
                let end = opened && seen.len() >= 12 || seen.len() == 60;
                if end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
            opening.unwrap().join().unwrap()
        });
        assert!(seen.starts_with(&tokens), "{label}: got {seen:?}, expected {tokens:?}");
        assert_eq!(beside.on_gpu().persistent(), None);
        assert_eq!(
            (answer(&mut beside), answer(&mut one)),
            (tokens.clone(), tokens.clone()),
            "{label}"
        );
        assert_eq!(one.on_gpu().persistent(), None);
        drop((one, beside));
        let mut late = SoloSession::of(made(Persistence::On, Probe::Delays, 1).unwrap());
        assert!(said(&mut late) == rows, "{label}: other bits with delayed waves");
        for round in 0..20 {
            assert_eq!(answer(&mut late), tokens, "{label}, round {round}");
        }
        drop(late);
        // One token of each of two sequences.
        let mut two = made(Persistence::On, Probe::Delays, 3).unwrap();
        let most = two.gpu().unwrap().persistent().map(|(_, most)| most);
        let o = OpenOptions { precise: true, ..options(64, 16) };
        let mut host = SoloSession::cpu(&gguf, &graph, &o);
        for n in [1, 2, 3, 2] {
            let seen = side_by_side::scores(&mut two, &mut host, n);
            assert!(
                seen.iter().all(|x| *x < 2e-2),
                "{label}, {n} sequences, {most:?} in one launch: off by {seen:?}"
            );
        }
    }
    assert_eq!(whole, some.len(), "tiny models that run in one launch on each of two");
}
