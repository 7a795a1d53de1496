//! Measuring and tuning on a simulated AMD device. Its times have no meaning; everything else is
//! tested. Every kernel of a model is checked and timed, variants that fault, hang or kill their
//! process are lines in the record, and later plans use the stored choice.

use crate::common::{TEMPORARY, WORKER};
use kjit_engine::{Device, Engine, Target, TuningSubject};
use kjit_kernels::segments::Finish;
use kjit_kernels::spec::Spec;
use kjit_kernels::tuning::{Choices, Shipped};
use kjit_model::gguf::Gguf;
use kjit_model::gpu::measure::{Limits, MeasuredKernel, measure, of_plan};
use kjit_model::gpu::plan::{Plan, Request, plan};
use kjit_model::gpu::tune::{Options, StoredTunings, Tuned, TuningSet, serve, tune};
use kjit_model::session::{KvType, OpenOptions};
use kjit_tests::files::model_path;
use kjit_tests::simulator::{Setup, cache, engine};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Number of variants to try: if each block size must occur, and if any variants are enough. Each
/// needs a compile.
const VARIANTS: usize = 11;
const FEW: usize = 3;
/// Environment variable of the process that measures for a test.
const CHILD: &str = "TEST_MEASURE";

fn planned(path: &PathBuf, target: &Target, tuned: &dyn Choices) -> Plan {
    let graph = kjit_model::arch::build(&Gguf::open(path).unwrap()).unwrap();
    let options = OpenOptions {
        context: Some(64),
        kv: KvType::F16,
        precise: false,
        threads: 2,
        prefill_chunk: Some(8),
        ..OpenOptions::default()
    };
    plan(&Request { graph: &graph, target, options: &options, keep: &[], tuned }).unwrap()
}

#[test]
fn programs_of_several_sequences_are_timed() {
    let Some(path) = model_path("tiny/tiny-llama-q8_0.gguf") else { return };
    let target = Target::parse("gfx1100").unwrap();
    let gguf = Gguf::open(&path).unwrap();
    let graph = kjit_model::arch::build(&gguf).unwrap();
    let options = OpenOptions { sequences: 9, ..OpenOptions::new(64) };
    let request =
        Request { graph: &graph, target: &target, options: &options, keep: &[], tuned: &Shipped };
    let plan = plan(&request).unwrap();
    assert!(plan.batches.len() > 1, "{}", plan.batches.len());
    let subjects = of_plan(&plan, 20);
    for batch in &plan.batches {
        let name = format!("{} sequences", batch.program.tokens);
        let of_it: Vec<_> = subjects.iter().filter(|s| s.program == name).collect();
        let launched: usize = of_it.iter().map(|s| s.launches).sum();
        let choose = [&batch.adjust, &batch.greedy, &batch.draw].into_iter().flatten().count();
        assert_eq!(choose, 3, "{name}");
        assert_eq!(
            launched,
            batch.program.launches.len() + choose,
            "{name}: its launches, and those that choose"
        );
        assert!(of_it.iter().all(|s| s.size.tokens == batch.program.tokens as usize), "{name}");
    }
}

fn setup(arch: &str) -> Setup {
    Setup::devices(arch).set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og")
}

#[test]
fn every_model_kernel_is_checked_and_timed() {
    let test = "simulated_tuning::every_model_kernel_is_checked_and_timed";
    let Some(path) = model_path("tiny/tiny-llama-q8_0.gguf") else { return };
    setup("gfx1100").run(test, TEMPORARY, || {
        let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
        let device = engine.device("rocm:0").unwrap();
        let plan = planned(&path, device.target(), &StoredTunings::of(&engine));
        let subjects = of_plan(&plan, 20);
        for job in &plan.jobs {
            assert!(subjects.iter().any(|s| s.spec == job.spec), "{} is not measured", job.spec);
        }
        for family in [
            "matvec", "attend", "gemm", "flash", "tiles", "rope_kv", "repack", "embed", "argmax",
            "draw",
        ] {
            assert!(subjects.iter().any(|s| s.spec.family() == family), "no {family}");
        }
        let limits = Limits::measure(&engine, &device).unwrap();
        assert!(limits.read > 0.0 && limits.product.is_some());
        for m in measure(&engine, &device, &subjects, &|_| {}) {
            let name = format!("{} ({}, {})", m.subject.name, m.subject.spec, m.subject.program);
            let timed = m.outcome.unwrap_or_else(|why| panic!("{name}: {why}"));
            assert!(timed.timing.median > 0.0 && timed.work.bytes > 0, "{name}: {timed:?}");
            let (part, _) = timed.of_limit(&limits).unwrap();
            assert!(part > 0.0 && part.is_finite(), "{name}: {part}");
            assert_eq!(m.report.unwrap().wave, 32, "{name}");
        }
    });
}

/// The kernels of a tuned model, for the requesting process and for the measuring process.
fn course(path: &PathBuf, engine: &Engine, device: &Device) -> TuningSet {
    TuningSet::of_plan(&planned(path, device.target(), &StoredTunings::of(engine)), 9)
}

/// Tunes the product of one matrix of a tiny model in a separate cache, in child processes of this
/// test.
fn tuned(
    test: &str,
    path: &PathBuf,
    variants: usize,
    body: impl FnOnce(&Engine, &Device, &[Tuned]),
) {
    let folder = PathBuf::from(TEMPORARY).join(test);
    if std::env::var_os(CHILD).is_none() {
        let _ = std::fs::remove_dir_all(&folder);
    }
    let engine = engine(&folder, WORKER, "hiprtc");
    let device = engine.device("rocm:0").unwrap();
    let course = course(path, &engine, &device);
    if std::env::var_os(CHILD).is_some() {
        // The test harness has already printed a part of this line: the name of the test.
        std::io::stdout().write_all(b"\n").unwrap();
        serve(&engine, &device, &course, std::io::stdin().lock(), std::io::stdout()).unwrap();
        return;
    }
    let spawn = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, "1");
        command
    };
    let options = Options {
        patience: Duration::from_secs(15),
        start: Duration::from_secs(100),
        rounds: 1,
        variants,
        ..Options::default()
    };
    // The down projection of the feed-forward part.
    let down = |s: &MeasuredKernel| {
        let Spec::Matvec(m) = &s.spec else { return false };
        m.finish == Finish::Add && m.cols > m.segments[0].rows
    };
    let all = tune(&engine, &device, &course, &down, &options, &spawn, &|_| {}).unwrap();
    body(&engine, &device, &all);
}

fn block_of(tuning: &str) -> u32 {
    let after = tuning.split("block: ").nth(1).unwrap();
    after.split(',').next().unwrap().parse().unwrap()
}

#[test]
fn crashing_variant_is_recorded_and_others_are_measured() {
    let test = "simulated_tuning::crashing_variant_is_recorded_and_others_are_measured";
    let Some(path) = model_path("tiny/tiny-llama-q8_0.gguf") else { return };
    let breaks = "matvec:512:abort,matvec:1024:hang";
    setup("gfx1100").set("HIPSIM_BREAK", breaks).run(test, TEMPORARY, || {
        tuned(test, &path, VARIANTS, |engine, device, all| {
            let [one] = all else { panic!("{} subjects", all.len()) };
            assert_eq!(one.candidates.len(), VARIANTS);
            let (mut killed, mut hung, mut timed) = (0, 0, 0);
            for c in &one.candidates {
                match (block_of(&c.tuning), &c.outcome) {
                    (512, Err(why)) => {
                        assert!(why.contains("signal 6"), "{why}");
                        killed += 1;
                    }
                    (1024, Err(why)) => {
                        assert!(why.contains("did not answer within"), "{why}");
                        hung += 1;
                    }
                    (256, Ok(t)) => {
                        assert!(t.median > 0.0);
                        timed += 1;
                    }
                    other => panic!("{}: {other:?}", c.tuning),
                }
            }
            assert!(
                killed > 0 && hung > 0 && timed > 1,
                "{killed} killed, {hung} hung, {timed} timed"
            );
            // The whole record is kept, under the driver's version and without the device's number.
            let spec = one.subject.spec.with(None);
            let (what, kernel) = (spec.to_string(), spec.kernel(device.target()).unwrap());
            let subject =
                TuningSubject { target: device.target(), source: &kernel.source, what: &what };
            let record = engine.tuning_timings(&subject, device.info().driver).unwrap().unwrap();
            let record = String::from_utf8(record).unwrap();
            assert!(one.candidates.iter().all(|c| record.contains(&c.tuning)), "{record}");
            assert!(
                record.contains("signal 6") && record.contains("did not answer within"),
                "{record}"
            );
            assert!(!record.contains("rocm:"), "{record}");
        });
    });
}

#[test]
fn faulting_default_is_recorded_and_not_replaced() {
    let test = "simulated_tuning::faulting_default_is_recorded_and_not_replaced";
    let Some(path) = model_path("tiny/tiny-llama-q8_0.gguf") else { return };
    setup("gfx1100").set("HIPSIM_BREAK", "matvec:256:fault").run(test, TEMPORARY, || {
        tuned(test, &path, FEW, |engine, device, all| {
            let [one] = all else { panic!("{} subjects", all.len()) };
            for c in &one.candidates {
                // A token includes the default kernels of other products, which also fault.
                assert!(c.outcome.is_err(), "{c:?}");
            }
            assert_eq!((&one.chosen, one.duel), (&one.default, None));
            assert_eq!(
                StoredTunings::of(engine).choice(&one.subject.spec.with(None), device.target()),
                None
            );
        });
    });
}

#[test]
fn chosen_variant_is_used_by_later_plans() {
    let test = "simulated_tuning::chosen_variant_is_used_by_later_plans";
    let Some(path) = model_path("tiny/tiny-llama-q8_0.gguf") else { return };
    setup("gfx1100").run(test, TEMPORARY, || {
        tuned(test, &path, FEW, |engine, device, all| {
            let [one] = all else { panic!("{} subjects", all.len()) };
            assert!(one.candidates.iter().all(|c| c.outcome.is_ok()), "{one:?}");
            // Times are random on the simulator, so the last variant is made the choice.
            let (spec, kept) = (one.subject.spec.with(None), StoredTunings::of(engine));
            let last = &one.candidates.last().unwrap().tuning;
            let tuning = spec.named(device.target(), last).unwrap();
            kept.keep(&spec, device.target(), tuning, "a test").unwrap();
            let has = |p: &Plan, s: &Spec| p.jobs.iter().any(|j| j.spec == *s);
            let plan = planned(&path, device.target(), &StoredTunings::of(engine));
            assert!(has(&plan, &spec.with(Some(tuning))) && !has(&plan, &spec));
            // A run only loads kernels that `warm` compiled.
            let gguf = std::sync::Arc::new(Gguf::open(&path).unwrap());
            let graph = kjit_model::arch::build(&gguf).unwrap();
            let options = OpenOptions {
                context: Some(64),
                kv: KvType::F16,
                precise: false,
                threads: 2,
                prefill_chunk: Some(8),
                ..OpenOptions::default()
            };
            let jobs =
                kjit_model::gpu::jobs_for(engine, &graph, device.target(), &options).unwrap();
            assert!(engine.compile_all(&jobs).iter().all(Result::is_ok));
            let before = engine.counts().compiled;
            let session =
                kjit_model::Session::on_gpu(engine, device, &gguf, graph, &options).unwrap();
            assert_eq!(engine.counts().compiled, before);
            assert_eq!(session.gpu().unwrap().statistics().kernels.compiled, 0);
        });
    });
}
