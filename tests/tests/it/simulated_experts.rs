//! Experts on the CPU while a simulated AMD device computes the rest: logits and tokens match the
//! host's, alone and in batches, with less memory on the device.

use crate::common::{TEMPORARY, WORKER};
use kjit_model::gguf::Gguf;
use kjit_model::gpu::plan_for;
use kjit_model::placement::{HostExpertsGraph, merge_host_experts, split_host_experts};
use kjit_model::sample::SampleOptions;
use kjit_model::session::{HostPrompts, KvType, OpenOptions, Want};
use kjit_tests::files::model_path;
use kjit_tests::larger::prompts;
use kjit_tests::several::{Several, options, setup};
use kjit_tests::side_by_side;
use kjit_tests::simulator::Simulated;
use kjit_tests::solo_session::SoloSession;
use std::path::{Path, PathBuf};

const EXPERTS: &str = "tiny/tiny-moe-q4_k_m.gguf";

#[test]
fn cpu_experts_beside_simulated_gfx90a_match_host() {
    let test = "simulated_experts::cpu_experts_beside_simulated_gfx90a_match_host";
    if model_path(EXPERTS).is_none() {
        return;
    }
    setup("gfx90a:sramecc+:xnack-").run(test, TEMPORARY, || {
        let all = Several::new(EXPERTS, TEMPORARY, WORKER);
        let here = options(KvType::F16);
        let precise = OpenOptions { precise: true, sequences: 1, ..here.clone() };
        let mut host = SoloSession::cpu(&all.gguf, &all.graph, &precise);
        let mut alone = all.open(&OpenOptions { precise: true, ..here.clone() }).unwrap();
        let whole = alone.gpu().unwrap().plan().memory.weights;
        let mut off = side_by_side::scores(&mut alone, &mut host, 3);
        off.extend(side_by_side::mixed(&mut alone, &mut host));
        drop(alone);
        let mut weights = whole;
        // The CPU rounds rows to eight bits, as in a CPU-only run. If scores are nearly equal,
        // another expert may be chosen.
        for (n, precise) in [(1, false), (99, true)] {
            let host_prompts = HostPrompts::Compute;
            let with = OpenOptions { host_experts: n, host_prompts, precise, ..here.clone() };
            let mut session = all.open(&with).unwrap();
            let gpu = session.gpu().unwrap();
            let (taken, of) = (n.min(3), 3);
            let said = format!("the CPU computes the experts of {taken} of {of} MoE layers");
            assert!(gpu.remarks().contains(&said), "{:?}", gpu.remarks());
            assert!(
                gpu.plan().no_prompts.is_none(),
                "prompts go in pieces: {:?}",
                gpu.plan().no_prompts
            );
            assert_eq!(gpu.plan().decode.pauses.len(), taken);
            assert!(
                gpu.plan().memory.weights < weights,
                "{n}: {} of {weights}",
                gpu.plan().memory.weights
            );
            weights = gpu.plan().memory.weights;
            let mut seen = side_by_side::scores(&mut session, &mut host, 3);
            if precise {
                // The device alone has the same error: one row has another expert with nearly the
                // same score.
                seen.extend(side_by_side::mixed(&mut session, &mut host));
                let gap = side_by_side::joining(&mut session, &mut host, 2);
                assert!(gap < 0.05, "a token is {gap} below the host's choice");
                assert!(
                    seen.iter().zip(&off).all(|(x, off)| *x < off + 1e-3),
                    "logits are off by {seen:?}, not {off:?}"
                );
            }
            seen.sort_by(f64::total_cmp);
            assert!(seen[seen.len() / 2] < 4e-3, "{n}: logits are off by {seen:?}");
        }
        assert!(weights < whole / 2, "most of a mixture are its experts: {weights} of {whole}");
        assert_eq!(Simulated::here().fault(0), "");
        // Layers that do not fit in this case are not streamed: opening fails.
        let memory = Some(weights / 2);
        let error =
            all.open(&OpenOptions { host_experts: 1, memory, ..here }).err().unwrap().to_string();
        assert!(error.contains("a larger --host-experts"), "{error}");
    });
}

#[test]
fn prompt_experts_copied_to_simulated_gfx90a_are_bit_identical() {
    let test = "simulated_experts::prompt_experts_copied_to_simulated_gfx90a_are_bit_identical";
    if model_path(EXPERTS).is_none() {
        return;
    }
    setup("gfx90a:sramecc+:xnack-").run(test, TEMPORARY, || {
        let all = Several::new(EXPERTS, TEMPORARY, WORKER);
        let here = OpenOptions { sequences: 1, ..options(KvType::F16) };
        let before = Simulated::here().alive();
        let want = prompts(&mut all.open(&here).unwrap());
        let apart = |n, host_prompts| OpenOptions { host_experts: n, host_prompts, ..here.clone() };
        for n in [1, 99] {
            let copying = apart(n, HostPrompts::Copy);
            let mut session = all.open(&copying).unwrap();
            let gpu = session.gpu().unwrap();
            let (plan, told) = (gpu.plan(), gpu.statistics());
            let streaming = plan.streaming.as_ref().unwrap();
            assert_eq!(streaming.layers.len(), n.min(3));
            assert_eq!(gpu.copied().unwrap().bytes, streaming.bytes());
            assert_eq!(told.streamed, None, "a token's step copies nothing");
            // The plan counts the memory of the ring before the model is opened.
            let (part, ..) = split_host_experts(&all.graph, n).unwrap();
            let named =
                plan_for(&all.engine, &part, &plan.target, &copying).unwrap().memory.total();
            let off = (named as f64 - told.peak as f64).abs() / told.peak as f64;
            assert!(off < 0.05, "{named} were named, {} are in use", told.peak);
            gpu.poison_ring();
            Simulated::here().poison(gpu.plan());
            assert!(prompts(&mut session) == want, "{n}: copied experts give other numbers");
            // Single tokens between the prompts. The CPU computes a part of them.
            let id = session.add(SampleOptions::default()).unwrap();
            let row = session.feed(id, &[7], Want::Last).unwrap();
            assert!(row.iter().all(|x| x.is_finite()));
            session.remove(id).unwrap();
            assert!(prompts(&mut session) == want, "{n}: and after the CPU's part");
        }
        // The choice is made by measured rates, and the report contains them.
        let session = all.open(&apart(99, HostPrompts::Measured)).unwrap();
        let gpu = session.gpu().unwrap();
        let copied = gpu.copied().unwrap();
        assert!(copied.from >= 2 && copied.rate > 0.0, "{copied:?}");
        let [(one, takes), (most, longest)] = copied.computed.unwrap();
        assert!(one == 1 && most >= 1 && takes > 0.0 && longest > 0.0, "{copied:?}");
        let said =
            format!("for prompts of {} tokens or more they are copied to the GPU", copied.from);
        assert!(gpu.remarks().iter().any(|line| line.contains(&said)), "{:?}", gpu.remarks());
        let total = gpu.plan().memory.total();
        drop(session);
        // If the ring does not fit, the CPU also computes prompts.
        let memory = Some(total - 1);
        let session =
            all.open(&OpenOptions { memory, ..apart(99, HostPrompts::Measured) }).unwrap();
        let gpu = session.gpu().unwrap();
        assert!(gpu.copied().is_none() && gpu.plan().memory.total() < total);
        assert!(
            gpu.remarks().iter().any(|line| line.contains("MiB of GPU memory")),
            "{:?}",
            gpu.remarks()
        );
        drop(session);
        // The experts are not copied a second time in host memory.
        (1..200).for_each(|n| Simulated::here().fail(c"hipHostRegister", n, 801));
        let mut session = all.open(&apart(99, HostPrompts::Copy)).unwrap();
        let gpu = session.gpu().unwrap();
        assert!(gpu.copied().is_none());
        assert!(
            gpu.remarks().iter().any(|line| line.contains("cannot be locked")),
            "{:?}",
            gpu.remarks()
        );
        assert_eq!(prompts(&mut session).len(), want.len());
        drop(session);
        assert_eq!(Simulated::here().fault(0), "");
        assert_eq!(Simulated::here().alive().bytes, before.bytes, "memory is given back");
    });
}

/// The model with scaled router rows: some experts are chosen far more often.
fn skewed() -> PathBuf {
    let path = model_path(EXPERTS).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    for layer in 0..3 {
        let info = gguf.tensor_info(&format!("blk.{layer}.ffn_gate_inp.weight")).unwrap();
        let (at, size) = (info.data_offset() as usize, info.bytes().unwrap() as usize);
        // The hot experts have indices in the middle, not the first ones.
        for (expert, row) in bytes[at..at + size].chunks_exact_mut(size / 16).enumerate() {
            let factor = if (6..11).contains(&expert) { 3.0 } else { 0.7 };
            for x in row.chunks_exact_mut(4) {
                let value = f32::from_le_bytes(x.try_into().unwrap()) * factor;
                x.copy_from_slice(&value.to_le_bytes());
            }
        }
    }
    let to = Path::new(TEMPORARY).join(format!("skewed-{}.gguf", std::process::id()));
    std::fs::write(&to, bytes).unwrap();
    to
}

#[test]
fn cached_experts_on_simulated_gfx90a_keep_tokens() {
    let test = "simulated_experts::cached_experts_on_simulated_gfx90a_keep_tokens";
    if model_path(EXPERTS).is_none() {
        return;
    }
    setup("gfx90a:sramecc+:xnack-").run(test, TEMPORARY, || {
        let path = skewed();
        let all = Several::of(&path, TEMPORARY, WORKER);
        let before = Simulated::here().alive();
        let here = OpenOptions { precise: true, sequences: 1, ..options(KvType::F16) };
        // Greedy decoding that follows the device's own answer.
        let (mut alone, mut ids, mut want) = (all.open(&here).unwrap(), vec![5u32], vec![]);
        let id = alone.add(SampleOptions::default()).unwrap();
        for at in 0..80 {
            let row = alone.feed(id, &[ids[at]], Want::Last).unwrap();
            ids.push((0..).zip(&row).max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0);
            want.push(row);
        }
        alone.remove(id).unwrap();
        let whole = prompts(&mut alone);
        drop(alone);
        for host_prompts in [HostPrompts::Compute, HostPrompts::Copy] {
            let hot_experts = Some(2 << 20);
            let with = OpenOptions { host_experts: 99, hot_experts, host_prompts, ..here.clone() };
            let apart = HostExpertsGraph::of(&all.graph, &with).unwrap();
            assert!((5..9).contains(&apart.places), "{apart}");
            assert!(merge_host_experts(&apart.graph).unwrap().ops == all.graph.ops);
            let mut session = all.open(&with).unwrap();
            let gpu = session.gpu().unwrap();
            assert!(
                gpu.remarks().iter().any(|line| line.starts_with(&apart.to_string())),
                "{:?}",
                gpu.remarks()
            );
            let counts = gpu.hot().unwrap();
            assert_eq!((counts.layers, counts.places, counts.chosen), (3, apart.places, 0));
            // The plan counts the memory of hot experts before the model is opened.
            let named = plan_for(&all.engine, &apart.graph, &gpu.plan().target, &with)
                .unwrap()
                .memory
                .total();
            let peak = gpu.statistics().peak;
            let off = (named as f64 - peak as f64).abs() / peak as f64;
            assert!(off < 0.05, "{named} were named, {peak} are in use");
            Simulated::here().poison(gpu.plan());
            let id = session.add(SampleOptions::default()).unwrap();
            let (mut worst, mut first) = (0f32, None);
            for (at, want) in want.iter().enumerate() {
                let row = session.feed(id, &[ids[at]], Want::Last).unwrap();
                let gap = want[ids[at + 1] as usize]
                    - want[(0..).zip(&row).max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0];
                worst = worst.max(gap);
                if at == 11 {
                    first = session.gpu().unwrap().hot();
                }
                // Experts are copied while tokens are computed. On the simulator a token takes
                // almost no time.
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            // A sum of two parts rounds differently from one sum.
            assert!(worst < 0.02, "a token is {worst} below that of the device alone");
            let (first, last) = (first.unwrap(), session.gpu().unwrap().hot().unwrap());
            assert_eq!(last.chosen, 80 * 3 * 4);
            assert!(last.brought >= 5, "{last}");
            let rate = |from: u64, to: u64, of: u64| (to - from) as f64 / of as f64;
            let (early, late) = (
                rate(0, first.hit, first.chosen),
                rate(first.hit, last.hit, last.chosen - first.chosen),
            );
            assert!(
                late > early + 0.1 && late > 0.6,
                "{early} of them were there at first, then {late}"
            );
            // Prompts with copied experts or with both ways, then tokens again.
            session.remove(id).unwrap();
            let rows = prompts(&mut session);
            for (row, whole) in rows.iter().flatten().zip(whole.iter().flatten()) {
                let (x, y) = (f32::from_bits(*row), f32::from_bits(*whole));
                assert!((x - y).abs() < 0.05, "{x} is not {y}");
            }
        }
        // Fewer than two slots per layer are useless.
        let little = OpenOptions { host_experts: 99, hot_experts: Some(1 << 16), ..here.clone() };
        let error = all.open(&little).err().unwrap().to_string();
        assert!(error.contains("--hot-experts: 0 MiB are not enough"), "{error}");
        let alone = OpenOptions { hot_experts: Some(1 << 20), ..here.clone() };
        let error = all.open(&alone).err().unwrap().to_string();
        assert!(error.contains("--hot-experts needs --host-experts N"), "{error}");
        assert_eq!(Simulated::here().fault(0), "");
        assert_eq!(Simulated::here().alive().bytes, before.bytes, "memory is given back");
        std::fs::remove_file(&path).unwrap();
    });
}

#[test]
fn partly_cached_experts_on_simulated_gfx90a_serve_batches() {
    let test = "simulated_experts::partly_cached_experts_on_simulated_gfx90a_serve_batches";
    if model_path(EXPERTS).is_none() {
        return;
    }
    setup("gfx90a:sramecc+:xnack-").run(test, TEMPORARY, || {
        let all = Several::new(EXPERTS, TEMPORARY, WORKER);
        let here = OpenOptions {
            precise: true,
            host_prompts: HostPrompts::Compute,
            ..options(KvType::F16)
        };
        let mut host =
            SoloSession::cpu(&all.gguf, &all.graph, &OpenOptions { sequences: 1, ..here.clone() });
        let off = side_by_side::scores(&mut all.open(&here).unwrap(), &mut host, 3);
        // The CPU computes the experts of two of three layers; the device computes those of the
        // third.
        let with = OpenOptions { host_experts: 2, hot_experts: Some(1 << 20), ..here };
        let apart = HostExpertsGraph::of(&all.graph, &with).unwrap();
        assert!((2..16).contains(&apart.places) && (apart.taken, apart.of) == (2, 3), "{apart}");
        let mut session = all.open(&with).unwrap();
        let gpu = session.gpu().unwrap();
        assert_eq!(gpu.plan().host_layers(), 2);
        Simulated::here().poison(gpu.plan());
        let seen = side_by_side::scores(&mut session, &mut host, 3);
        // The device alone has the same error: if scores are nearly equal, another expert is
        // chosen.
        assert!(
            seen.iter().zip(&off).all(|(x, off)| *x < off + 1e-3),
            "logits are off by {seen:?}, not {off:?}"
        );
        let gap = side_by_side::joining(&mut session, &mut host, 2);
        assert!(gap < 0.05, "a token is {gap} below the host's choice");
        let counts = session.gpu().unwrap().hot().unwrap();
        assert_eq!((counts.layers, counts.places), (2, apart.places));
        // Each token chooses four experts in each of the two layers. The device has some of them;
        // the CPU computes the rest.
        assert!(
            counts.chosen.is_multiple_of(8) && counts.hit > 0 && counts.hit < counts.chosen,
            "{counts}"
        );
        assert_eq!(Simulated::here().fault(0), "");
    });
}

#[test]
fn split_expert_graph_rejoins_to_the_original() {
    let Some(path) = model_path(EXPERTS) else { return };
    let graph = kjit_model::arch::build(&kjit_model::gguf::Gguf::open(&path).unwrap()).unwrap();
    for n in [1, 2, 99] {
        assert!(merge_host_experts(&split_host_experts(&graph, n).unwrap().0).unwrap() == graph);
    }
    assert!(merge_host_experts(&graph).is_none());
}

#[test]
fn graph_without_experts_is_reported() {
    let Some(path) = model_path("tiny/tiny-llama-q4_k_m.gguf") else { return };
    let gguf = kjit_model::gguf::Gguf::open(&path).unwrap();
    let graph = kjit_model::arch::build(&gguf).unwrap();
    let error = split_host_experts(&graph, 1).unwrap_err().to_string();
    assert!(error.contains("architecture 'llama' has no experts"), "{error}");
}
