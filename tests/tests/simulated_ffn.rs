//! Feed-forward parts of layers that the CPU computes beside a simulated AMD device, while other layers are copied to it.

use kjit_engine::{Config, Engine, Isolation, Trace};
use kjit_model::gpu::plan_for;
use kjit_model::placement::{FfnApart, experts_here};
use kjit_model::sample::SampleOptions;
use kjit_model::session::{After, HostPrompts, KvType, OpenOptions, Session, SessionError, Want};
use kjit_tests::files::model_path;
use kjit_tests::one::One;
use kjit_tests::several::{Several, options, setup};
use kjit_tests::side_by_side;
use kjit_tests::simulator::{Simulated, cache};

const WORKER: &str = env!("CARGO_BIN_EXE_kjit-tests-cc");
const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");
/// Seven layers: more than slots of the ring.
const MODEL: &str = "tiny/tiny-gemma3-q4_k_m.gguf";
const IN_PLACE: &str = "tiny/tiny-gemma3-f16.gguf";

fn open(all: &Several, options: &OpenOptions) -> Result<Session, SessionError> {
    let device = all.engine.device("rocm:0").unwrap();
    Session::on_gpu(&all.engine, &device, &all.gguf, all.graph.clone(), options)
}

/// The same with as little memory as all but the CPU's parts take when they are streamed.
fn tight(all: &Several, options: &OpenOptions) -> OpenOptions {
    let device = all.engine.device("rocm:0").unwrap();
    let apart = FfnApart::of(&all.graph, options.host_ffn.unwrap()).unwrap();
    let mut plan = plan_for(&all.engine, &apart.graph, device.target(), options).unwrap();
    let least = plan.fit(&apart.graph, 0, false).unwrap_err();
    plan.fit(&apart.graph, least, false).unwrap();
    OpenOptions { memory: Some(least), ..options.clone() }
}

/// Scores of prompts of several pieces, and of each row of one, none of them a single token.
fn prompts(session: &mut Session) -> Vec<Vec<u32>> {
    let vocab = session.n_vocab() as u32;
    let ids = |step: u32, n: u32| (0..n).map(|i| (i * step + 5) % vocab).collect::<Vec<u32>>();
    let id = session.add(SampleOptions::default()).unwrap();
    let mut rows = vec![];
    for (tokens, want) in [(ids(37, 37), Want::Last), (ids(11, 5), Want::All), (ids(3, 2), Want::Last)] {
        let logits = session.feed(id, &tokens, want).unwrap();
        rows.push(logits.iter().map(|x| x.to_bits()).collect());
    }
    session.remove(id).unwrap();
    rows
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
        let mut host = One::cpu(&all.gguf, &all.graph, &precise);
        let one = OpenOptions { sequences: 1, ..here.clone() };
        let want = prompts(&mut open(&all, &one).unwrap());
        let cases = [(2, 2), (99, layers)];
        for (n, taken) in cases.into_iter().take(if several { 2 } else { 1 }) {
            // Several sequences, no numbers but the device's own rounding.
            let with =
                OpenOptions { host_ffn: Some(n), host_prompts: HostPrompts::Compute, precise: true, ..here.clone() };
            if several && n == 2 {
                let mut session = open(&all, &tight(&all, &with)).unwrap();
                let gpu = session.gpu().unwrap();
                let said = format!("the CPU computes the feed-forward of {taken} of {layers} layers");
                assert!(gpu.remarks().contains(&said), "{:?}", gpu.remarks());
                assert_eq!(gpu.plan().decode.pauses.len(), taken);
                gpu.poison_ring();
                Simulated::here().poison(gpu.plan());
                let mut seen = side_by_side::scores(&mut session, &mut host, 2);
                seen.extend(side_by_side::mixed(&mut session, &mut host));
                assert!(seen.iter().all(|x| *x < 4e-3), "{n}: logits are off by {seen:?}");
            }
            // A long prompt has all copied: the bits of the device alone, before tokens and after them.
            let with = OpenOptions { host_ffn: Some(n), host_prompts: HostPrompts::Copy, ..one.clone() };
            let with = tight(&all, &with);
            let mut session = open(&all, &with).unwrap();
            let gpu = session.gpu().unwrap();
            let (plan, told) = (gpu.plan(), gpu.statistics());
            let streaming = plan.streaming.as_ref().unwrap();
            let steps = streaming.steps();
            assert_eq!(streaming.layers.len(), steps + taken);
            assert!(n > 2 || steps >= 3, "{steps} layers are streamed beside");
            assert_eq!(told.streamed.map_or(0, |s| s.layers), steps);
            assert!(told.streamed.is_none_or(|s| s.bytes == streaming.step_bytes() && s.apart == taken));
            // Those of every token take the slots in turn.
            let slots: Vec<usize> = streaming.layers.iter().filter(|l| !l.for_prompts).map(|l| l.slot).collect();
            assert!(slots.windows(2).all(|w| w[0] != w[1]), "{slots:?}");
            let off = (plan.memory.total() as f64 - told.peak as f64).abs() / told.peak as f64;
            assert!(off < 0.05, "{:?} were named, {} are in use", plan.memory, told.peak);
            assert!(plan.memory.total() <= with.memory.unwrap());
            gpu.poison_ring();
            Simulated::here().poison(gpu.plan());
            for round in 0..4 - n.min(3) {
                assert!(prompts(&mut session) == want, "{n}, round {round}: copied parts give other numbers");
                let id = session.add(SampleOptions::default()).unwrap();
                let mut tokens = vec![];
                session
                    .decode(&[(id, &[5, 6])], &mut |_, token| {
                        tokens.push(token);
                        if tokens.len() == 6 { After::End } else { After::Go }
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
fn feed_forward_on_the_cpu_beside_layers_streamed_to_simulated_gfx1030() {
    beside("feed_forward_on_the_cpu_beside_layers_streamed_to_simulated_gfx1030", MODEL, "gfx1030", true);
}

#[test]
fn feed_forward_on_the_cpu_beside_layers_that_simulated_gfx942_reads_where_they_land() {
    let test = "feed_forward_on_the_cpu_beside_layers_that_simulated_gfx942_reads_where_they_land";
    beside(test, IN_PLACE, "gfx942:sramecc+:xnack-", false);
}

/// Spans of a row of the trace: where they begin and end.
fn spans(trace: &serde_json::Value, row: &str) -> Vec<(f64, f64)> {
    let events = trace["traceEvents"].as_array().unwrap();
    let mut names = events.iter().filter(|e| e["ph"] == "M" && e["args"]["name"] == row);
    let tid = &names.next().unwrap_or_else(|| panic!("no row {row}"))["tid"];
    let of = events.iter().filter(|e| e["ph"] == "X" && e["tid"] == *tid);
    of.map(|e| (e["ts"].as_f64().unwrap(), e["ts"].as_f64().unwrap() + e["dur"].as_f64().unwrap())).collect()
}

#[test]
fn a_trace_shows_layers_copied_while_the_cpu_computes_and_rates_decide_by_themselves() {
    let test = "a_trace_shows_layers_copied_while_the_cpu_computes_and_rates_decide_by_themselves";
    if model_path(IN_PLACE).is_none() {
        return;
    }
    setup("gfx1030").run(test, TEMPORARY, || {
        let mut all = Several::new(IN_PLACE, TEMPORARY, WORKER);
        let one = OpenOptions { sequences: 1, ..options(KvType::F16) };
        let with = OpenOptions { host_ffn: Some(3), ..one.clone() };
        let memory = tight(&all, &with).memory;
        let trace = Trace::new();
        let config = Config::new()
            .cache(kjit_cache::Config::for_app("kjit").ignore_environment().dir(cache(TEMPORARY).join("none")))
            .isolation(Isolation::Worker(WORKER.into()))
            .compiler_kind("hiprtc")
            .trace(trace.clone());
        let untraced = std::mem::replace(&mut all.engine, Engine::new(config));
        let mut session = open(&all, &OpenOptions { memory, ..with }).unwrap();
        let id = session.add(SampleOptions::default()).unwrap();
        let mut rows = vec![];
        for i in 0..20 {
            rows.push(session.feed(id, &[7 * i + 3], Want::Last).unwrap());
        }
        let json = serde_json::from_str(&trace.to_json()).unwrap();
        let (copies, parts) = (spans(&json, "rocm:0 copies"), spans(&json, "cpu"));
        assert!(parts.len() == 20 * 3 && copies.len() >= 20 * 2, "{} {}", parts.len(), copies.len());
        let meet = |a: &(f64, f64)| parts.iter().any(|b| a.0 < b.1 && b.0 < a.1);
        let beside = copies.iter().filter(|copy| meet(copy)).count();
        assert!(beside > 0, "no layer was copied while the CPU computed: {copies:?} {parts:?}");
        drop(session);
        all.engine = untraced;
        // Nobody says how many: rates do, and what they are is said where the CPU has a part.
        let mut alone = open(&all, &one).unwrap();
        let whole = alone.gpu().unwrap().plan().memory.total();
        let least = memory.unwrap();
        let budget = least + (whole - least) / 3;
        let memory = Some(budget);
        let mut session = open(&all, &OpenOptions { memory, ..one.clone() }).unwrap();
        let gpu = session.gpu().unwrap();
        assert!(gpu.plan().memory.total() <= budget);
        let pauses = gpu.plan().decode.pauses.len();
        let said = format!("the CPU computes the feed-forward of {pauses} of 7 layers: it reads ");
        assert_eq!(gpu.remarks().iter().any(|line| line.starts_with(&said)), pauses > 0, "{:?}", gpu.remarks());
        assert!(pauses > 0 || gpu.statistics().streamed.is_some_and(|s| s.layers > 0));
        let [here, there] = [&mut session, &mut alone].map(|s| {
            let id = s.add(SampleOptions::default()).unwrap();
            s.feed(id, &[9], Want::Last).unwrap()
        });
        let off = here.iter().zip(&there).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        assert!(off < 0.3, "a score is off by {off}");
        // Copies alone where that is asked for.
        let with = OpenOptions { memory, host_ffn: Some(0), ..one };
        assert!(open(&all, &with).unwrap().gpu().unwrap().plan().decode.pauses.is_empty());
        assert_eq!(Simulated::here().fault(0), "");
    });
}

#[test]
fn what_was_taken_apart_is_the_same_graph_together_and_a_mixture_has_none() {
    let Some(path) = model_path(MODEL) else { return };
    let build = |path| kjit_model::arch::build(&kjit_model::gguf::Gguf::open(path).unwrap()).unwrap();
    let graph = build(&path);
    for n in [1, 3, 99] {
        let apart = FfnApart::of(&graph, n).unwrap();
        assert_eq!((apart.taken, apart.of), (n.min(7), 7));
        assert!(experts_here(&apart.graph).unwrap() == graph);
    }
    let Some(path) = model_path("tiny/tiny-moe-q4_k_m.gguf") else { return };
    let error = FfnApart::of(&build(&path), 1).unwrap_err().to_string();
    assert!(error.contains("--host-experts a mixture's experts") && !error.contains('\n'), "{error}");
}
