//! The trial of forms on the simulated device: the first start of a model tries launches, a graph
//! and one launch, keeps the verdict, and later starts obey it.

use crate::common::{TEMPORARY, WORKER};
use kjit_model::gguf::Gguf;
use kjit_model::gpu::{Form, trial_plan};
use kjit_model::sample::SampleOptions;
use kjit_model::session::{KvType, OpenOptions, Persistence};
use kjit_tests::files::model_path;
use kjit_tests::simulator::{Setup, Simulated, cache, trying};
use kjit_tests::solo_session::SoloSession;
use std::sync::Arc;

#[test]
fn the_first_start_tries_each_form_and_later_ones_obey_the_verdict() {
    let test = "simulated_trial::the_first_start_tries_each_form_and_later_ones_obey_the_verdict";
    let Some(path) = model_path("tiny/tiny-llama-q4_k_m.gguf") else { return };
    let setup = Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.run(test, TEMPORARY, || {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let options =
            OpenOptions { prefill_chunk: Some(8), kv: KvType::F16, ..OpenOptions::new(64) };
        let folder = cache(TEMPORARY).join(format!("trial-{}", std::process::id()));
        let engine = trying(&folder, WORKER, "hiprtc");
        let device = engine.device("rocm:0").unwrap();
        let open =
            |options: &OpenOptions| SoloSession::gpu(&engine, &device, &gguf, &graph, options);
        let answer = |one: &mut SoloSession| one.generate(&[5, 9, 2], 4, SampleOptions::default());
        let off = OpenOptions { persistent: Persistence::Off, ..options.clone() };
        let mut graphs = open(&off);
        assert_eq!(graphs.on_gpu().form(), Form::Graph);
        let want = answer(&mut graphs);
        let plan = trial_plan(graphs.on_gpu().plan());
        assert_eq!(engine.launch_form(device.info(), &plan), None, "--persistent off asks nothing");
        drop(graphs);
        // The first start: a verdict with the times of all three.
        let mut first = open(&options);
        let record = engine.launch_form(device.info(), &plan).unwrap();
        let chosen = Form::by_name(record.split(' ').next().unwrap()).unwrap();
        assert_eq!(first.on_gpu().form(), chosen, "{record}");
        let of = |form: Form| {
            let word = format!(" {}=", form.name());
            let (_, rest) =
                record.split_once(&word).unwrap_or_else(|| panic!("{form:?}: {record}"));
            rest.split(' ').next().unwrap().parse::<f64>().unwrap()
        };
        let least = Form::ALL.map(of).into_iter().fold(f64::INFINITY, f64::min);
        assert!(least > 0.0 && of(chosen) <= least / 0.98, "{record}");
        assert_eq!(answer(&mut first), want, "{record}");
        drop(first);
        // Later starts do what the record says, and ask nothing. An unfinished trial leaves a
        // graph.
        let records = [
            ("launches", Form::Launches),
            ("graph graph=1e-3", Form::Graph),
            ("one_launch", Form::OneLaunch),
            ("begun", Form::Graph),
        ];
        for (record, form) in records {
            engine.keep_launch_form(device.info(), &plan, record);
            let replays = Simulated::here().calls(c"hipGraphLaunch");
            let mut later = open(&options);
            assert_eq!(later.on_gpu().form(), form, "{record}");
            assert_eq!(later.on_gpu().persistent().is_some(), form == Form::OneLaunch, "{record}");
            let asked = Simulated::here().calls(c"hipGraphLaunch") - replays;
            assert_eq!(asked, 0, "{record}: tokens before the first request");
            assert_eq!(answer(&mut later), want, "{record}");
            let replayed = Simulated::here().calls(c"hipGraphLaunch") - replays;
            assert_eq!(replayed > 0, form != Form::Launches, "{record}");
            assert_eq!(engine.launch_form(device.info(), &plan).as_deref(), Some(record));
        }
        // A flag overrides the record.
        assert_eq!(open(&off).on_gpu().form(), Form::Graph);
        let on = OpenOptions { persistent: Persistence::On, ..options.clone() };
        assert_eq!(open(&on).on_gpu().form(), Form::OneLaunch);
        assert_eq!(Simulated::here().fault(0), "");
        let _ = std::fs::remove_dir_all(&folder);
    });
}
