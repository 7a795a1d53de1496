//! Decoding starts before every kernel is compiled, with a slow compiler. Tokens come before
//! compilation ends, the prompt kernels take over between two tokens, logits match the host's
//! before and after, single-launch decoding starts between two tokens, and a kernel that fails to
//! compile is an error.

use crate::common::{TEMPORARY, WORKER};
use kjit_engine::Engine;
use kjit_model::gguf::Gguf;
use kjit_model::gpu::BackgroundCompiling;
use kjit_model::graph::Graph;
use kjit_model::sample::SampleOptions;
use kjit_model::session::{KvType, OpenOptions, Persistence, Probe, Session, SessionError, Want};
use kjit_tests::files::model_path;
use kjit_tests::near::off;
use kjit_tests::simulator::{Setup, Simulated, engine};
use kjit_tests::solo_session::SoloSession;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

// Architectures and options are those of the whole-model tests, so that kernels are compiled for
// the CPU only once.

struct Model {
    gguf: Arc<Gguf>,
    graph: Graph,
    options: OpenOptions,
}

fn model(name: &str) -> Option<Model> {
    let path = model_path(&format!("tiny/{name}"))?;
    let gguf = Arc::new(Gguf::open(&path).unwrap());
    let graph = kjit_model::arch::build(&gguf).unwrap();
    let options = OpenOptions {
        context: Some(64),
        kv: KvType::F16,
        precise: false,
        threads: 2,
        prefill_chunk: Some(32),
        ..OpenOptions::default()
    };
    Some(Model { gguf, graph, options })
}

impl Model {
    /// Opens with the kernels in the cache. With `early` it starts before all are compiled.
    fn open(&self, engine: &Engine, early: bool) -> Result<Session, SessionError> {
        let options = OpenOptions { early, ..self.options.clone() };
        Session::on_gpu(
            engine,
            &engine.device("rocm:0").unwrap(),
            &self.gguf,
            self.graph.clone(),
            &options,
        )
    }

    fn early(&self, cache: &std::path::Path) -> SoloSession {
        SoloSession::of(self.open(&engine(cache, WORKER, "hiprtc"), true).unwrap())
    }

    fn host(&self) -> SoloSession {
        SoloSession::cpu(
            &self.gguf,
            &self.graph,
            &OpenOptions { precise: true, ..self.options.clone() },
        )
    }
}

fn late(gpu: &SoloSession) -> BackgroundCompiling {
    gpu.on_gpu().early().expect("kernels for prompts are still being compiled").clone()
}

fn setup(arch: &str, slow: &str, refuse: &str) -> Setup {
    Setup::devices(arch)
        .set("HIPSIM_CLANG", "none")
        .set("HIPSIM_OPTIMISE", "-Og")
        .set("HIPSIM_SLOW", slow)
        .set("HIPSIM_REFUSE", refuse)
}

/// Computes `probe` until the prompt kernels are in use.
fn compiled(gpu: &mut SoloSession, probe: &[u32]) {
    let until = Instant::now() + Duration::from_secs(60);
    while late(gpu).status().swapped_at.is_none() {
        assert!(
            Instant::now() < until,
            "the kernels for prompts never came: {:?}",
            late(gpu).status()
        );
        let len = gpu.tokens();
        std::thread::sleep(Duration::from_millis(100));
        gpu.feed(probe, Want::Nothing).unwrap();
        gpu.truncate(len);
    }
}

fn tokens_come_first(test: &str, name: &str, arch: &str) {
    let Some(model) = model(name) else { return };
    setup(arch, "gemm:4", "").run(test, TEMPORARY, || {
        let cache = tempfile::tempdir().unwrap();
        let mut gpu = model.early(cache.path());
        let first = late(&gpu).status();
        assert!(
            first.late > 0 && first.single == 0 && first.swapped_at.is_none(),
            "{name}: {first:?}"
        );
        let mut host = model.host();
        let ids: Vec<u32> = (0..60).map(|i| (i * 101 + 5) % host.n_vocab() as u32).collect();
        // 7 single tokens while the compiler is waiting.
        let (want, got) =
            (host.feed(&ids[..7], Want::Last).unwrap(), gpu.feed(&ids[..7], Want::Last).unwrap());
        let status = late(&gpu).status();
        assert_eq!((status.single, status.swapped_at), (6, None), "{name}: tokens came first");
        let mut seen = vec![off(&got, &want)];
        // The rest of the sequence with the prompt kernels, which read the keys and values of
        // the single tokens.
        compiled(&mut gpu, &ids[7..9]);
        assert_eq!(late(&gpu).status().swapped_at, Some(7), "{name}");
        for part in [&ids[7..50], &ids[50..51], &ids[51..]] {
            let (want, got) =
                (host.feed(part, Want::Last).unwrap(), gpu.feed(part, Want::Last).unwrap());
            seen.push(off(&got, &want));
        }
        let single = late(&gpu).status().single;
        eprintln!("{name}: off by {seen:?} of the norm, {single} tokens one by one");
        // The limits of the whole-model tests, where the effect of f16 and of another expert is
        // explained.
        seen.sort_by(f64::total_cmp);
        assert!(
            seen[1] < 4e-3 && seen[3] < 5e-2,
            "{name}: logits are off by {seen:?} of their norm"
        );
        late(&gpu).finish(Duration::from_secs(30)).unwrap();
        assert_eq!(Simulated::here().fault(0), "");
        // The next start finds all kernels in the cache.
        drop(gpu);
        let engine = engine(cache.path(), WORKER, "hiprtc");
        let again = model.open(&engine, true).unwrap();
        assert!(
            again.gpu().unwrap().early().is_none() && engine.counts().compiled == 0,
            "{name}: {:?}",
            engine.counts()
        );
    });
}

#[test]
fn tokens_come_before_compile_ends_and_kernels_are_swapped() {
    let test = "simulated_early::tokens_come_before_compile_ends_and_kernels_are_swapped";
    tokens_come_first(test, "tiny-llama-q4_k_m.gguf", "gfx1030");
}

#[test]
fn expert_kernels_are_swapped_between_two_tokens() {
    tokens_come_first(
        "simulated_early::expert_kernels_are_swapped_between_two_tokens",
        "tiny-moe-q4_k_m.gguf",
        "gfx90a:sramecc+:xnack-",
    );
}

#[test]
fn window_kernels_are_swapped_between_two_tokens() {
    tokens_come_first(
        "simulated_early::window_kernels_are_swapped_between_two_tokens",
        "tiny-gemma3-q8_0.gguf",
        "gfx1201",
    );
}

#[test]
fn failed_background_compile_is_reported_by_dependent_feed() {
    let test = "simulated_early::failed_background_compile_is_reported_by_dependent_feed";
    let Some(model) = model("tiny-llama-q4_k_m.gguf") else { return };
    setup("gfx1030", "flash:3", "flash").run(test, TEMPORARY, || {
        let cache = tempfile::tempdir().unwrap();
        let mut gpu = model.early(cache.path());
        // Decoding one token at a time works.
        gpu.feed(&[1, 2, 3], Want::Last).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let error = loop {
            std::thread::sleep(Duration::from_millis(100));
            match gpu.feed(&[4, 5], Want::Last) {
                Ok(_) => gpu.truncate(3),
                Err(error) => break error.to_string(),
            }
            assert!(Instant::now() < until, "no error came");
        };
        assert!(
            error.contains("flash") && error.contains("refused") && !error.contains('\n'),
            "{error}"
        );
        assert_eq!(gpu.tokens(), 3, "nothing was fed");
        // The error stays and is also reported at the end.
        assert_eq!(gpu.feed(&[4, 5], Want::Last).unwrap_err().to_string(), error);
        assert_eq!(late(&gpu).finish(Duration::ZERO).unwrap_err().to_string(), error);
        // A caller that waits for the kernels gets the same error.
        let engine = engine(cache.path(), WORKER, "hiprtc");
        let waited = model.open(&engine, false);
        let waited = waited.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(waited.contains("flash") && waited.contains("refused"), "{waited}");
    });
}

#[test]
fn stop_without_waiting_skips_unstarted_compiles() {
    let test = "simulated_early::stop_without_waiting_skips_unstarted_compiles";
    let Some(model) = model("tiny-llama-q4_k_m.gguf") else { return };
    setup("gfx1030", "gemm:30,flash:30", "").run(test, TEMPORARY, || {
        let cache = tempfile::tempdir().unwrap();
        let mut gpu = model.early(cache.path());
        gpu.feed(&[1, 2, 3], Want::Last).unwrap();
        let began = Instant::now();
        late(&gpu).finish(Duration::from_millis(200)).unwrap();
        drop(gpu);
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    });
}

/// A model for single-launch decoding. Its kernel is also used in the test of delayed waves, so
/// that it is compiled for the CPU only once.
fn one_launch() -> Option<Model> {
    let model = model("tiny-llama-q4_k_m.gguf")?;
    let (persistent, probe, prefill_chunk) = (Persistence::On, Probe::Delays, Some(8));
    Some(Model {
        options: OpenOptions { persistent, probe, prefill_chunk, ..model.options },
        ..model
    })
}

#[test]
fn persistent_kernel_is_swapped_in_after_its_compile() {
    let test = "simulated_early::persistent_kernel_is_swapped_in_after_its_compile";
    let Some(model) = one_launch() else { return };
    setup("gfx1100", "persistent:8", "").run(test, TEMPORARY, || {
        const TOKENS: usize = 16;
        let [all, none] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let greedy = SampleOptions::default();
        let launches = OpenOptions { persistent: Persistence::Off, ..model.options.clone() };
        let launches =
            Model { gguf: Arc::clone(&model.gguf), graph: model.graph.clone(), options: launches };
        let mut launches =
            SoloSession::of(launches.open(&engine(all.path(), WORKER, "hiprtc"), false).unwrap());
        let want = launches.generate(&[5], TOKENS, greedy.clone());

        let mut gpu = model.early(none.path());
        assert!(late(&gpu).status().one_launch_late && gpu.on_gpu().persistent().is_none());
        let (early, mut ids, mut first) = (late(&gpu), vec![], None);
        gpu.decode(&[5], greedy.clone(), &mut |id| {
            ids.push(id);
            first.get_or_insert((early.status().one_launch_at, early.compiles()));
            // Reading a result waits; without a read the device continues.
            while early.compiles() {
                std::thread::sleep(Duration::from_millis(50));
            }
            if ids.len() == TOKENS { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        let at = early.status().one_launch_at;
        assert_eq!(
            (first, ids),
            (Some((None, true)), want.clone()),
            "tokens came first, and are those of launches"
        );
        assert!(
            at.is_some_and(|at| (1..TOKENS).contains(&at)),
            "it took over: {:?}",
            early.status()
        );
        assert!(gpu.on_gpu().persistent().is_some());
        // Later tokens remain single launches.
        gpu.truncate(0);
        assert_eq!(gpu.generate(&[5], TOKENS, greedy), want);
        early.finish(Duration::from_secs(30)).unwrap();
        assert_eq!((early.status().one_launch_at, Simulated::here().fault(0)), (at, String::new()));
        // The next start finds the kernel in the cache.
        drop(gpu);
        let engine = engine(none.path(), WORKER, "hiprtc");
        let again = model.open(&engine, true).unwrap();
        let gpu = again.gpu().unwrap();
        assert!(
            gpu.persistent().is_some()
                && !gpu.early().is_some_and(|early| early.status().one_launch_late)
        );
    });
}

#[test]
fn failed_persistent_kernel_compile_is_reported_by_a_token() {
    let test = "simulated_early::failed_persistent_kernel_compile_is_reported_by_a_token";
    let Some(model) = one_launch() else { return };
    setup("gfx1100", "persistent:8", "persistent").run(test, TEMPORARY, || {
        let cache = tempfile::tempdir().unwrap();
        let mut gpu = model.early(cache.path());
        gpu.feed(&[1], Want::Last).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let error = loop {
            std::thread::sleep(Duration::from_millis(100));
            match gpu.feed(&[4], Want::Last) {
                Ok(_) => gpu.truncate(1),
                Err(error) => break error.to_string(),
            }
            assert!(Instant::now() < until, "no error came");
        };
        assert!(
            error.contains("persistent") && error.contains("refused") && !error.contains('\n'),
            "{error}"
        );
        assert_eq!(gpu.tokens(), 1, "nothing was fed");
        assert_eq!(gpu.feed(&[4], Want::Last).unwrap_err().to_string(), error);
        assert_eq!(late(&gpu).finish(Duration::ZERO).unwrap_err().to_string(), error);
    });
}
