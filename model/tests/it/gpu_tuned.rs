//! Tests tuned choices in the cache: plans use valid ones and ignore invalid ones.

use crate::it::support::shapes::{QWEN3_MOE, SMOLLM2, Shape};
use kjit_engine::{Config, Engine, Target, TuningSubject};
use kjit_kernels::spec::Spec;
use kjit_kernels::tuning::{Choices, Shipped, Tuning};
use kjit_model::gpu::jobs_for;
use kjit_model::gpu::plan::{Plan, Request, plan};
use kjit_model::gpu::tune::StoredTunings;
use kjit_model::graph::Graph;
use kjit_model::session::{KvType, OpenOptions, Persistence};

fn options() -> OpenOptions {
    OpenOptions {
        context: Some(256),
        kv: KvType::F16,
        precise: false,
        threads: 1,
        prefill_chunk: Some(512),
        // `Auto` on AMD adds the kernel of a whole token for its trial.
        persistent: Persistence::Off,
        ..OpenOptions::default()
    }
}

fn graph(shape: &Shape) -> Graph {
    kjit_model::arch::build(&shape.open()).unwrap()
}

fn planned(graph: &Graph, target: &Target, tuned: &dyn Choices) -> Plan {
    plan(&Request { graph, target, options: &options(), keep: &[], tuned }).unwrap()
}

fn engine(folder: &tempfile::TempDir) -> Engine {
    Engine::new(Config::new().cache_dir(folder.path()))
}

/// The distinct specs of a plan that have a tuning, each with a variant that is not the default.
fn others(plan: &Plan, target: &Target) -> Vec<(Spec, Tuning)> {
    let specs = plan.jobs.iter().map(|j| j.spec.with(None));
    specs
        .filter_map(|s| {
            s.space(target).last().copied().filter(|t| Some(*t) != s.tuning(target)).map(|t| (s, t))
        })
        .collect()
}

#[test]
fn stored_tuning_is_used_by_every_later_plan() {
    for (shape, arch) in
        [(&SMOLLM2, "sm_90"), (&SMOLLM2, "gfx1100"), (&QWEN3_MOE, "sm_90"), (&QWEN3_MOE, "gfx942")]
    {
        let (folder, target, graph) =
            (tempfile::tempdir().unwrap(), Target::parse(arch).unwrap(), graph(shape));
        let plain = planned(&graph, &target, &Shipped);
        let wanted = others(&plain, &target);
        assert!(wanted.len() > 4, "{arch}: {} specs have several variants", wanted.len());
        let writer = engine(&folder);
        for (spec, tuning) in &wanted {
            StoredTunings::of(&writer).keep(spec, &target, *tuning, "a test").unwrap();
        }
        // Another engine, as in another process. `warm` compiles exactly the kernels that `run`
        // plans.
        let reader = engine(&folder);
        let tuned = planned(&graph, &target, &StoredTunings::of(&reader));
        for (spec, tuning) in &wanted {
            let job = tuned.jobs.iter().find(|j| j.spec.to_string() == spec.to_string());
            assert_eq!(job.and_then(|j| j.spec.tuning(&target)), Some(*tuning), "{spec} on {arch}");
        }
        let jobs: Vec<_> = tuned.jobs.into_iter().map(|j| j.job).collect();
        assert_eq!(jobs, jobs_for(&reader, &graph, &target, &options()).unwrap());
        assert_eq!(reader.cache().warnings(), []);
    }
}

#[test]
fn tuning_for_one_architecture_changes_no_other() {
    let (folder, graph) = (tempfile::tempdir().unwrap(), graph(&SMOLLM2));
    let [here, there] = ["sm_90", "sm_86"].map(|t| Target::parse(t).unwrap());
    let engine = engine(&folder);
    for (spec, tuning) in others(&planned(&graph, &here, &Shipped), &here) {
        StoredTunings::of(&engine).keep(&spec, &here, tuning, "a test").unwrap();
    }
    assert_ne!(
        planned(&graph, &here, &Shipped).jobs,
        planned(&graph, &here, &StoredTunings::of(&engine)).jobs
    );
    assert_eq!(
        planned(&graph, &there, &Shipped).jobs,
        planned(&graph, &there, &StoredTunings::of(&engine)).jobs
    );
}

#[test]
fn record_without_valid_variant_is_ignored_with_one_warning() {
    let target = Target::parse("sm_90").unwrap();
    let graph = graph(&SMOLLM2);
    let plain = planned(&graph, &target, &Shipped);
    let (spec, tuning) = others(&plain, &target).remove(0);
    let good = tuning.to_string();
    let bad = |text: &str| serde_json::json!({ "tuning": text }).to_string().into_bytes();
    let garbage = [
        vec![],
        b"\xff\xfe\x00garbage".to_vec(),
        b"{}".to_vec(),
        b"{\"tuning\": 7}".to_vec(),
        bad(""),
        bad(&good.replace("block: ", "block: 1")),
        bad(&format!("{good}, more: 1")),
        bad("wave: 32, block: 4294967295, team: \
             1, rows: 1, batch: 1, blocks_per_unit: 1, alone: false"),
        good.into_bytes(),
        vec![b'['; 100_000],
    ];
    for record in garbage {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(&folder);
        let (what, kernel) = (spec.to_string(), spec.kernel(&target).unwrap());
        let subject = TuningSubject { target: &target, source: &kernel.source, what: &what };
        engine.keep_tuning_choice(&subject, &record).unwrap();
        for _ in 0..2 {
            assert_eq!(
                planned(&graph, &target, &StoredTunings::of(&engine)),
                plain,
                "{:?}",
                String::from_utf8_lossy(&record)
            );
        }
        let warnings = engine.cache().warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].to_string().contains(&what), "{warnings:?}");
        assert_eq!(engine.tuning_choice(&subject).unwrap(), None, "the record is ignored");
    }
}
