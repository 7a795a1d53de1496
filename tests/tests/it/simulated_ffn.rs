//! Feed-forward parts of layers that the CPU computes, while other layers are streamed to a
//! simulated AMD device.

use crate::common::{TEMPORARY, WORKER};
use kjit_engine::{Config, Engine, Isolation};
use kjit_model::gpu::{jobs_for, plan_for};
use kjit_model::graph::Graph;
use kjit_model::placement::{HostFfnGraph, merge_host_experts};
use kjit_model::sample::SampleOptions;
use kjit_model::session::{DecodeControl, HostPrompts, KvType, OpenOptions, Session, Want};
use kjit_tests::files::model_path;
use kjit_tests::larger::{prompts, spans, traced};
use kjit_tests::several::{Several, options, setup};
use kjit_tests::side_by_side;
use kjit_tests::simulator::Simulated;
use kjit_tests::solo_session::SoloSession;

/// Seven layers, more than the ring has slots.
const MODEL: &str = "tiny/tiny-gemma3-q4_k_m.gguf";
const IN_PLACE: &str = "tiny/tiny-gemma3-f16.gguf";

/// The options with the minimum memory: everything fits when streamed, except the parts of the CPU.
fn tight(all: &Several, options: &OpenOptions) -> OpenOptions {
    let device = all.device();
    let apart = HostFfnGraph::of(&all.graph, options.host_ffn.unwrap()).unwrap();
    let mut plan = plan_for(&all.engine, &apart.graph, device.target(), options).unwrap();
    let least = plan.fit(&apart.graph, 0, false).unwrap_err();
    plan.fit(&apart.graph, least, false).unwrap();
    OpenOptions { memory: Some(least), ..options.clone() }
}

fn beside(test: &str, name: &str, arch: &str, several: bool) {
    if model_path(name).is_none() {
        return;
    }
    setup(arch).run(test, TEMPORARY, || {
        let all = Several::new(name, TEMPORARY, WORKER);
        let before = Simulated::here().alive();
        let layers = all.graph.states.len();
        let here = OpenOptions { sequences: 2, ..options(KvType::F16) };
        let precise = OpenOptions { precise: true, sequences: 1, ..here.clone() };
        let mut host = SoloSession::cpu(&all.gguf, &all.graph, &precise);
        let one = OpenOptions { sequences: 1, ..here.clone() };
        let want = prompts(&mut all.open(&one).unwrap());
        let cases = [(2, 2), (99, layers)];
        for (n, taken) in cases.into_iter().take(if several { 2 } else { 1 }) {
            // Several sequences. With `precise` only the rounding of the device remains.
            let with = OpenOptions {
                host_ffn: Some(n),
                host_prompts: HostPrompts::Compute,
                precise: true,
                ..here.clone()
            };
            if several && n == 2 {
                let mut session = all.open(&tight(&all, &with)).unwrap();
                let gpu = session.gpu().unwrap();
                let said =
                    format!("the CPU computes the feed-forward of {taken} of {layers} layers");
                assert!(gpu.remarks().contains(&said), "{:?}", gpu.remarks());
                assert_eq!(gpu.plan().decode.pauses.len(), taken);
                gpu.poison_ring();
                Simulated::here().poison(gpu.plan());
                let mut seen = side_by_side::scores(&mut session, &mut host, 2);
                seen.extend(side_by_side::mixed(&mut session, &mut host));
                assert!(seen.iter().all(|x| *x < 4e-3), "{n}: logits are off by {seen:?}");
            }
            // A long prompt streams all layers: its logits are bit for bit equal to those on the
            // device alone, before and after single tokens.
            let with =
                OpenOptions { host_ffn: Some(n), host_prompts: HostPrompts::Copy, ..one.clone() };
            let with = tight(&all, &with);
            let mut session = all.open(&with).unwrap();
            let gpu = session.gpu().unwrap();
            let (plan, told) = (gpu.plan(), gpu.statistics());
            let streaming = plan.streaming.as_ref().unwrap();
            let steps = streaming.steps();
            assert_eq!(streaming.layers.len(), steps + taken);
            assert!(n > 2 || steps >= 3, "{steps} layers are streamed beside");
            assert_eq!(told.streamed.map_or(0, |s| s.layers), steps);
            assert!(
                told.streamed.is_none_or(|s| s.bytes == streaming.step_bytes() && s.apart == taken)
            );
            // The copies for each token use the slots one after the other.
            let slots: Vec<usize> =
                streaming.layers.iter().filter(|l| !l.for_prompts).map(|l| l.slot).collect();
            assert!(slots.windows(2).all(|w| w[0] != w[1]), "{slots:?}");
            let off = (plan.memory.total() as f64 - told.peak as f64).abs() / told.peak as f64;
            assert!(off < 0.05, "{:?} were named, {} are in use", plan.memory, told.peak);
            assert!(plan.memory.total() <= with.memory.unwrap());
            gpu.poison_ring();
            Simulated::here().poison(gpu.plan());
            for round in 0..4 - n.min(3) {
                assert!(
                    prompts(&mut session) == want,
                    "{n}, round {round}: copied parts give other numbers"
                );
                let id = session.add(SampleOptions::default()).unwrap();
                let mut tokens = vec![];
                session
                    .decode(&[(id, &[5, 6])], &mut |_, token| {
                        tokens.push(token);
                        if tokens.len() == 6 { DecodeControl::End } else { DecodeControl::Go }
                    })
                    .unwrap();
                let along: Vec<u32> = [5, 6].into_iter().chain(tokens).collect();
                let gap = side_by_side::gap(&mut host, &along, 2);
                assert!(gap < 0.1, "a token is {gap} below the host's choice");
                session.remove(id).unwrap();
            }
        }
        assert_eq!(Simulated::here().fault(0), "");
        assert_eq!(Simulated::here().alive().bytes, before.bytes, "memory is given back");
    });
}

#[test]
fn cpu_ffn_beside_streamed_layers_on_simulated_gfx1030_matches() {
    beside(
        "simulated_ffn::cpu_ffn_beside_streamed_layers_on_simulated_gfx1030_matches",
        MODEL,
        "gfx1030",
        true,
    );
}

#[test]
fn cpu_ffn_with_in_place_simulated_gfx942_matches() {
    let test = "simulated_ffn::cpu_ffn_with_in_place_simulated_gfx942_matches";
    beside(test, IN_PLACE, "gfx942:sramecc+:xnack-", false);
}

#[test]
fn trace_shows_copies_during_cpu_ffn_and_rates_decide() {
    let test = "simulated_ffn::trace_shows_copies_during_cpu_ffn_and_rates_decide";
    if model_path(IN_PLACE).is_none() {
        return;
    }
    setup("gfx1030").run(test, TEMPORARY, || {
        let mut all = Several::new(IN_PLACE, TEMPORARY, WORKER);
        let one = OpenOptions { sequences: 1, ..options(KvType::F16) };
        let with = OpenOptions { host_ffn: Some(3), ..one.clone() };
        let memory = tight(&all, &with).memory;
        let (engine, trace) = traced(TEMPORARY, WORKER);
        let untraced = std::mem::replace(&mut all.engine, engine);
        let mut session = all.open(&OpenOptions { memory, ..with }).unwrap();
        let id = session.add(SampleOptions::default()).unwrap();
        let mut rows = vec![];
        for i in 0..20 {
            rows.push(session.feed(id, &[7 * i + 3], Want::Last).unwrap());
        }
        let (copies, parts) = (spans(&trace, "rocm:0 copies"), spans(&trace, "cpu"));
        assert!(
            parts.len() == 20 * 3 && copies.len() >= 20 * 2,
            "{} {}",
            parts.len(),
            copies.len()
        );
        let meet = |a: &(String, f64, f64)| parts.iter().any(|b| a.1 < b.2 && b.1 < a.2);
        let beside = copies.iter().filter(|copy| meet(copy)).count();
        assert!(beside > 0, "no layer was copied while the CPU computed: {copies:?} {parts:?}");
        drop(session);
        all.engine = untraced;
        // If no number is given, measured rates choose it. The report contains the rates if the CPU
        // has a part.
        let mut alone = all.open(&one).unwrap();
        let whole = alone.gpu().unwrap().plan().memory.total();
        let least = memory.unwrap();
        let budget = least + (whole - least) / 3;
        let memory = Some(budget);
        let mut session = all.open(&OpenOptions { memory, ..one.clone() }).unwrap();
        let gpu = session.gpu().unwrap();
        assert!(gpu.plan().memory.total() <= budget);
        let pauses = gpu.plan().decode.pauses.len();
        let said = format!("the CPU computes the feed-forward of {pauses} of 7 layers: it reads ");
        assert_eq!(
            gpu.remarks().iter().any(|line| line.starts_with(&said)),
            pauses > 0,
            "{:?}",
            gpu.remarks()
        );
        assert!(pauses > 0 || gpu.statistics().streamed.is_some_and(|s| s.layers > 0));
        let [here, there] = [&mut session, &mut alone].map(|s| {
            let id = s.add(SampleOptions::default()).unwrap();
            s.feed(id, &[9], Want::Last).unwrap()
        });
        let off = here.iter().zip(&there).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        assert!(off < 0.3, "a score is off by {off}");
        // With 0 all layers are only copied.
        let with = OpenOptions { memory, host_ffn: Some(0), ..one };
        assert!(all.open(&with).unwrap().gpu().unwrap().plan().decode.pauses.is_empty());
        assert_eq!(Simulated::here().fault(0), "");
    });
}

#[test]
fn missing_part_kernels_or_rates_copy_all_with_remark() {
    let test = "simulated_ffn::missing_part_kernels_or_rates_copy_all_with_remark";
    if model_path(IN_PLACE).is_none() {
        return;
    }
    setup("gfx1030").run(test, TEMPORARY, || {
        let mut all = Several::new(IN_PLACE, TEMPORARY, WORKER);
        let one = OpenOptions { sequences: 1, ..options(KvType::F16) };
        let target = all.device().target().clone();
        let whole = plan_for(&all.engine, &all.graph, &target, &one).unwrap().memory;
        // All layers except a few are resident.
        let with = OpenOptions { memory: Some(whole.total() - whole.weights / 8), ..one };
        let pauses = |session: &Session| session.gpu().unwrap().plan().decode.pauses.len();
        let said = |session: &Session| session.gpu().unwrap().remarks().join("; ");
        // The rates cannot be measured because creating the first event fails.
        Simulated::here().fail(c"hipEventCreateWithFlags", 1, 2);
        let session = all.open(&with).unwrap();
        let line = said(&session);
        assert!(pauses(&session) == 0 && session.gpu().unwrap().statistics().streamed.is_some());
        let why = "layers that do not fit on the GPU are streamed: \
             the rates of the CPU and of copies cannot be measured (";
        assert!(line.starts_with(why) && line.contains("hipEventCreateWithFlags"), "{line}");
        drop(session);
        // The cache has the kernels for a card on which the whole model fits. No more kernels can
        // be compiled.
        let dir = tempfile::tempdir().unwrap();
        let config = |kind: &str| {
            let cache = kjit_cache::Config::for_app("kjit").ignore_environment().dir(dir.path());
            Config::new()
                .cache(cache)
                .isolation(Isolation::Worker(WORKER.into()))
                .compiler_kind(kind)
                .without_trial()
        };
        let warm = |graph: &Graph| {
            let compiling = Engine::new(config("hiprtc"));
            let jobs = jobs_for(&compiling, graph, &target, &with).unwrap();
            assert!(compiling.compile_all(&jobs).iter().all(Result::is_ok));
        };
        warm(&all.graph);
        all.engine = Engine::new(config("none"));
        let mut session = all.open(&with).unwrap();
        let line = said(&session);
        let why = "layers that do not fit on the GPU are streamed: \
            a host part needs one more kernel: kernel '";
        assert!(pauses(&session) == 0 && line.starts_with(why), "{line}");
        assert!(line.contains("kjit warm --memory SIZE") && !line.contains('\n'), "{line}");
        let id = session.add(SampleOptions::default()).unwrap();
        assert!(session.feed(id, &[7, 8, 9], Want::Last).unwrap().iter().all(|x| x.is_finite()));
        drop(session);
        // If CPU parts are requested, the error names the missing kernel and the solution.
        let asked = OpenOptions { host_ffn: Some(2), ..with.clone() };
        let error = all.open(&asked).err().unwrap().to_string();
        assert!(error.starts_with("--host-ffn 2: kernel '") && !error.contains('\n'), "{error}");
        assert!(error.contains("run kjit warm --host-ffn 2 on a machine"), "{error}");
        warm(&HostFfnGraph::of(&all.graph, 2).unwrap().graph);
        all.engine = Engine::new(config("none"));
        assert_eq!(pauses(&all.open(&asked).unwrap()), 2);
        // With these kernels in the cache the rates are measured. Their result does not matter.
        warm(&HostFfnGraph::of(&all.graph, 99).unwrap().graph);
        all.engine = Engine::new(config("none"));
        assert!(!said(&all.open(&with).unwrap()).contains("are streamed: "));
        assert_eq!(Simulated::here().fault(0), "");
    });
}

#[test]
fn unlockable_pages_do_not_duplicate_cpu_parts() {
    let test = "simulated_ffn::unlockable_pages_do_not_duplicate_cpu_parts";
    if model_path(IN_PLACE).is_none() {
        return;
    }
    setup("gfx1030").run(test, TEMPORARY, || {
        let all = Several::new(IN_PLACE, TEMPORARY, WORKER);
        let one = OpenOptions { sequences: 1, ..options(KvType::F16) };
        let want = prompts(&mut all.open(&one).unwrap());
        let with = OpenOptions { host_ffn: Some(3), host_prompts: HostPrompts::Copy, ..one };
        let with = tight(&all, &with);
        let before = Simulated::here().alive().bytes;
        let session = all.open(&with).unwrap();
        let streaming = session.gpu().unwrap().plan().streaming.clone().unwrap();
        let (step, parts) = (streaming.step_bytes(), streaming.bytes() - streaming.step_bytes());
        assert!(step > 0 && parts > 0 && session.gpu().unwrap().copied().is_some());
        drop(session);
        (1..400).for_each(|n| Simulated::here().fail(c"hipHostRegister", n, 801));
        let mut session = all.open(&with).unwrap();
        let gpu = session.gpu().unwrap();
        let in_host = Simulated::here().alive().bytes - before - gpu.statistics().peak;
        assert!(
            (step..step + parts).contains(&in_host),
            "{in_host} bytes are locked, {step} and {parts} are copied"
        );
        assert!(gpu.copied().is_none());
        let said = gpu.remarks().join("; ");
        assert!(
            said.contains(
                "copied into page-locked memory, \
                 and the CPU also computes its host parts for prompts"
            ),
            "{said}"
        );
        gpu.poison_ring();
        Simulated::here().poison(gpu.plan());
        for (row, want) in prompts(&mut session).iter().flatten().zip(want.iter().flatten()) {
            let (x, y) = (f32::from_bits(*row), f32::from_bits(*want));
            assert!((x - y).abs() < 0.3, "{x} is not {y}");
        }
        assert_eq!(Simulated::here().fault(0), "");
    });
}

#[test]
fn split_ffn_graph_rejoins_and_mixture_has_none() {
    let Some(path) = model_path(MODEL) else { return };
    let build =
        |path| kjit_model::arch::build(&kjit_model::gguf::Gguf::open(path).unwrap()).unwrap();
    let graph = build(&path);
    for n in [1, 3, 99] {
        let apart = HostFfnGraph::of(&graph, n).unwrap();
        assert_eq!((apart.taken, apart.of), (n.min(7), 7));
        assert!(merge_host_experts(&apart.graph).unwrap() == graph);
    }
    let Some(path) = model_path("tiny/tiny-moe-q4_k_m.gguf") else { return };
    let error = HostFfnGraph::of(&build(&path), 1).unwrap_err().to_string();
    assert!(error.contains("or --host-experts for experts") && !error.contains('\n'), "{error}");
}
