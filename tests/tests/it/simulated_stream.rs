//! Layers that are streamed to a simulated AMD device for each step give results that are bit for
//! bit equal to resident layers. The device runs streams and graph nodes in random order, and slots
//! are poisoned before each copy, so a launch or a copy that is too early changes the result.

use crate::common::{TEMPORARY, WORKER};
use kjit_model::gpu::plan_for;
use kjit_model::sample::SampleOptions;
use kjit_model::session::{
    DecodeControl, KvType, OpenOptions, Persistence, SequenceId, Session, StepOutput, Want, Work,
};
use kjit_tests::files::model_path;
use kjit_tests::larger::{spans, traced};
use kjit_tests::several::{Several, setup};
use kjit_tests::simulator::Simulated;

/// A format that kernels read without repacking.
const IN_PLACE: &str = "tiny/tiny-qwen2-f16.gguf";

fn options(sequences: usize) -> OpenOptions {
    OpenOptions {
        context: Some(64),
        kv: KvType::F16,
        precise: false,
        threads: 2,
        prefill_chunk: Some(32),
        sequences,
        ..OpenOptions::default()
    }
}

/// Logits of all kinds of steps: prompts of several chunks, single tokens, several sequences in a
/// step, tokens chosen on the device.
fn all_that_comes(session: &mut Session, sequences: usize) -> (Vec<Vec<u32>>, Vec<u32>) {
    let vocab = session.n_vocab() as u32;
    let ids = |step: u32, n: u32| (0..n).map(|i| (i * step + 5) % vocab).collect::<Vec<u32>>();
    let all: Vec<SequenceId> =
        (0..sequences).map(|_| session.add(SampleOptions::default()).unwrap()).collect();
    let mut rows: Vec<Vec<u32>> = vec![];
    let mut keep = |logits: Vec<f32>| rows.push(logits.iter().map(|x| x.to_bits()).collect());
    // Two chunks, the second with one token. Then a short prompt with all logits.
    keep(session.feed(all[0], &ids(37, 33), Want::Last).unwrap());
    keep(session.feed(all[0], &ids(11, 3), Want::All).unwrap());
    for i in 0..3 {
        keep(session.feed(all[0], &[7 * i + 3], Want::Last).unwrap());
    }
    if sequences > 1 {
        let prompts: Vec<Vec<u32>> =
            (0..sequences as u32).map(|i| ids(13 + 2 * i, 2 + 5 * i)).collect();
        let work = |(sequence, tokens): (&SequenceId, &'static [u32])| Work {
            sequence: *sequence,
            tokens,
            want: Want::Last,
        };
        let prompts: Vec<&'static [u32]> = prompts.into_iter().map(|p| &*p.leak()).collect();
        for given in session.step(&all.iter().zip(prompts).map(work).collect::<Vec<_>>()).unwrap() {
            let StepOutput::Logits(logits) = given else { panic!("no logits") };
            keep(logits);
        }
    }
    let mut tokens = vec![];
    let starts: Vec<(SequenceId, &[u32])> = all.iter().map(|id| (*id, &[9][..])).collect();
    session
        .decode(&starts, &mut |_, token| {
            tokens.push(token);
            if tokens.len() == 5 * sequences { DecodeControl::Pause } else { DecodeControl::Go }
        })
        .unwrap();
    (rows, tokens)
}

/// Decodes and checks that a token is one graph replay, without other allocations, launches, copies
/// or waits.
fn a_token_is_one_replay(session: &mut Session) {
    let device = session.gpu().unwrap().opened().clone();
    let id = session.add(SampleOptions::default()).unwrap();
    let (mut seen, mut counts) = (0, vec![]);
    session
        .decode(&[(id, &[3])], &mut |_, _| {
            seen += 1;
            if seen == 4 || seen == 8 {
                counts.push(device.counts());
            }
            if seen == 10 { DecodeControl::End } else { DecodeControl::Go }
        })
        .unwrap();
    let n = counts[1] - counts[0];
    assert_eq!(n.replays, 4, "{n:?}");
    let rest = [
        n.allocations,
        n.frees,
        n.pinned,
        n.synchronisations,
        n.copies_in,
        n.copies_out,
        n.copies_within,
    ];
    assert_eq!((rest, n.launches, n.captures, n.modules), ([0; 7], 0, 0, 0), "{n:?}");
    session.remove(id).unwrap();
}

fn as_resident(test: &str, name: &str, arch: &str, sequences: usize) {
    if model_path(name).is_none() {
        return;
    }
    setup(arch).run(test, TEMPORARY, || {
        let model = Several::new(name, TEMPORARY, WORKER);
        let graph = &model.graph;
        let before = Simulated::here().alive();
        let resident = options(sequences);
        let mut session = model.open(&resident).unwrap();
        a_token_is_one_replay(&mut session);
        let want = all_that_comes(&mut session, sequences);
        drop(session);
        for round in 0..2 {
            let streamed = OpenOptions { stream: true, ..resident.clone() };
            let mut session = model.open(&streamed).unwrap();
            let gpu = session.gpu().unwrap();
            let told = gpu.statistics().streamed.unwrap();
            assert_eq!((told.layers, told.of), (graph.states.len(), graph.states.len()), "{told}");
            assert!(told.rate > 0.0 && told.bytes > 0, "{told:?}");
            gpu.poison_ring();
            Simulated::here().poison(gpu.plan());
            a_token_is_one_replay(&mut session);
            let got = all_that_comes(&mut session, sequences);
            assert!(
                got == want,
                "{name} on {arch}, round {round}: streamed layers give other numbers"
            );
        }
        assert_eq!(Simulated::here().fault(0), "");
        assert_eq!(Simulated::here().alive().bytes, before.bytes, "memory is given back");
    });
}

#[test]
fn repacked_streamed_layers_on_simulated_gfx1030_are_bit_identical() {
    let test = "simulated_stream::repacked_streamed_layers_on_simulated_gfx1030_are_bit_identical";
    as_resident(test, "tiny/tiny-llama-q4_k_m.gguf", "gfx1030", 3);
}

#[test]
fn in_place_layers_on_simulated_gfx942_are_bit_identical() {
    let test = "simulated_stream::in_place_layers_on_simulated_gfx942_are_bit_identical";
    as_resident(test, IN_PLACE, "gfx942:sramecc+:xnack-", 1);
}

#[test]
fn streamed_experts_on_simulated_gfx90a_are_bit_identical() {
    let test = "simulated_stream::streamed_experts_on_simulated_gfx90a_are_bit_identical";
    as_resident(test, "tiny/tiny-moe-q4_k_m.gguf", "gfx90a:sramecc+:xnack-", 1);
}

#[test]
fn trace_shows_layer_copies_overlapping_previous_layer() {
    let test = "simulated_stream::trace_shows_layer_copies_overlapping_previous_layer";
    if model_path(IN_PLACE).is_none() {
        return;
    }
    setup("gfx942:sramecc+:xnack-").run(test, TEMPORARY, || {
        let mut model = Several::new(IN_PLACE, TEMPORARY, WORKER);
        let (engine, trace) = traced(TEMPORARY, WORKER);
        let untraced = std::mem::replace(&mut model.engine, engine);
        let streamed = OpenOptions { stream: true, ..options(1) };
        let mut session = model.open(&streamed).unwrap();
        let seen = all_that_comes(&mut session, 1);
        let (copies, steps) =
            (spans(&trace, "rocm:0 copies"), spans(&trace, "rocm:0 streamed layers"));
        let layers = model.graph.states.len();
        assert!(
            copies.len() == steps.len() && copies.len() > 5 * layers,
            "{} {}",
            copies.len(),
            steps.len()
        );
        let mut beside = 0;
        for (i, (copy, step)) in copies.iter().zip(&steps).enumerate() {
            assert!(copy.0 == step.0 && copy.2 <= step.1 + 1.0, "{i}: {copy:?} {step:?}");
            // The next layer of the same step.
            if let Some(next) = copies.get(i + 1).filter(|_| (i + 1) % layers > 0) {
                beside += usize::from(next.1 < step.2 && step.1 < next.2);
            }
        }
        assert!(beside > 0, "no copy ran beside a layer: {copies:?} {steps:?}");
        drop(session);
        // Traced steps are submitted as single launches, and compute equal results.
        model.engine = untraced;
        assert!(seen == all_that_comes(&mut model.open(&streamed).unwrap(), 1));
    });
}

#[test]
fn unlockable_pages_are_copied_and_refused_memory_is_reported() {
    let test = "simulated_stream::unlockable_pages_are_copied_and_refused_memory_is_reported";
    if model_path(IN_PLACE).is_none() {
        return;
    }
    let setup = setup("gfx942:sramecc+:xnack-").set("HIPSIM_FAIL", "hipHostRegister:*:801");
    setup.run(test, TEMPORARY, || {
        let model = Several::new(IN_PLACE, TEMPORARY, WORKER);
        let want = all_that_comes(&mut model.open(&options(1)).unwrap(), 1);
        let streamed = OpenOptions { stream: true, ..options(1) };
        let mut session = model.open(&streamed).unwrap();
        let gpu = session.gpu().unwrap();
        let said = gpu.remarks().join("; ");
        assert!(said.contains("of streamed layers were copied into page-locked memory"), "{said}");
        gpu.poison_ring();
        assert!(all_that_comes(&mut session, 1) == want);
        drop(session);
        // From here on memory cannot be page-locked.
        for n in 1..200 {
            Simulated::here().fail(c"hipHostMalloc", n, 2);
        }
        let error = model.open(&streamed).err().unwrap().to_string();
        assert!(
            error.starts_with("no page-locked memory for streamed layers on rocm:0"),
            "{error}"
        );
        assert!(
            error.contains("use a larger --memory to stream less") && !error.contains('\n'),
            "{error}"
        );
    });
}

#[test]
fn memory_budget_is_respected_and_minimum_is_named() {
    let test = "simulated_stream::memory_budget_is_respected_and_minimum_is_named";
    if model_path(IN_PLACE).is_none() {
        return;
    }
    setup("gfx942:sramecc+:xnack-").run(test, TEMPORARY, || {
        let model = Several::new(IN_PLACE, TEMPORARY, WORKER);
        let graph = &model.graph;
        let resident =
            plan_for(&model.engine, graph, model.device().target(), &options(1)).unwrap();
        let all = resident.memory.total();
        let least = resident.clone().fit(graph, 0, false).unwrap_err();
        assert!(least < all, "{least} {all}");
        let with = |memory| OpenOptions {
            memory: Some(memory),
            host_ffn: Some(0),
            persistent: Persistence::On,
            ..options(1)
        };
        // All layers are resident if all fit.
        let session = model.open(&with(all)).unwrap();
        assert_eq!(session.gpu().unwrap().statistics().streamed, None);
        drop(session);
        let session = model.open(&with(all - 1)).unwrap();
        let gpu = session.gpu().unwrap();
        let told = gpu.statistics();
        assert!(told.streamed.is_some() && told.peak < all, "{told:?}");
        let need = gpu.plan().memory.total();
        let off = (need as f64 - told.peak as f64).abs() / told.peak as f64;
        assert!(off < 0.05, "{need} were named, {} are in use", told.peak);
        assert!(
            gpu.persistent().is_none()
                && gpu.plan().no_persistent.as_ref().unwrap().contains("streamed")
        );
        drop(session);
        // The amount of memory in the error is enough.
        let refused = |memory| model.open(&with(memory)).err();
        let error = refused(least - 1).unwrap().to_string();
        let named = error
            .split("--memory ")
            .nth(2)
            .and_then(|t| t.split("MiB is enough").next())
            .unwrap_or_default();
        assert!(named.parse::<u64>().is_ok_and(|mib| refused(mib << 20).is_none()), "{error}");
        // With pages the error contains the memory for pages. If not even one context fits, it
        // contains the memory of one context.
        let token = KvType::F16.bytes(graph.kv_elems_per_token());
        let fits = |options: &OpenOptions, budget| {
            plan_for(&model.engine, graph, model.device().target(), options)
                .unwrap()
                .fit(graph, budget, false)
        };
        let after = |error: &str, flag: &str| {
            let word = error
                .split(flag)
                .nth(1)
                .and_then(|rest| rest.split([' ', 'B']).next())
                .unwrap_or_default();
            let (digits, unit) =
                word.split_at(word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len()));
            let unit = if unit == "Mi" { 1 << 20 } else { 1 };
            digits.parse::<u64>().unwrap_or_else(|_| panic!("{flag}: {error}")) * unit
        };
        for (context, tokens, less) in [(64, 64 * 128, 20 * 128), (2048, 2048, 512)] {
            let paged = OpenOptions {
                context: Some(context),
                paged: Some(tokens),
                sequences: 2,
                ..options(1)
            };
            let budget = fits(&paged, 0).unwrap_err() - less * token;
            let with = OpenOptions { memory: Some(budget), host_ffn: Some(0), ..paged.clone() };
            let error = model.open(&with).err().unwrap().to_string();
            let named = after(&error, "--kv-memory ") / token;
            let context =
                if tokens > context { context } else { after(&error, "and -c ") as usize };
            let fewer =
                OpenOptions { context: Some(context), paged: Some(named as usize), ..paged };
            assert_eq!(fits(&fewer, budget), Ok(()), "{error}");
            // At most a few pages below the maximum.
            let most = tokens as u64 - less;
            assert!(named <= most && named + 3 * 128 > most, "{named} of {most}: {error}");
        }
    });
}
