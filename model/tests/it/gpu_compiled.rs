//! Compares plans with compiled code, without a device: every launch binds the arguments that its
//! kernel takes. Without nvrtc a message is printed and the test is skipped.

use crate::it::support::shapes::{QWEN3_MOE, SMOLLM2, Shape};
use kjit_engine::{Config, Engine, Isolation, Target};
use kjit_kernels::tuning::Shipped;
use kjit_model::gpu::plan::{Bind, Launch, Request, plan};
use kjit_model::session::{KvType, OpenOptions};

fn size(bind: &Bind) -> u32 {
    match bind {
        Bind::Dim(_) | Bind::U32(_) | Bind::F32(_) | Bind::Chosen(_) => 4,
        _ => 8,
    }
}

fn check(shape: &Shape, target: &str) {
    let engine = Engine::new(Config::new().no_cache().isolation(Isolation::InProcess));
    let target = Target::parse(target).unwrap();
    let report = engine.compilers(target.vendor());
    if report.found.is_empty() {
        eprintln!("SKIPPED: no nvrtc (pip install nvidia-cuda-nvrtc), so nothing was compiled");
        return;
    }
    let graph = kjit_model::arch::build(&shape.open()).unwrap();
    let options = OpenOptions {
        context: Some(4096),
        kv: KvType::F16,
        precise: false,
        threads: 1,
        prefill_chunk: Some(512),
        sequences: 64,
        ..OpenOptions::default()
    };
    let request =
        Request { graph: &graph, target: &target, options: &options, keep: &[], tuned: &Shipped };
    let plan = plan(&request).unwrap();
    assert_eq!(plan.no_prompts, None);
    let jobs: Vec<_> = plan.jobs.iter().map(|j| j.job.clone()).collect();
    let codes: Vec<_> = engine
        .compile_all(&jobs)
        .into_iter()
        .map(|c| c.unwrap_or_else(|e| panic!("{e}")))
        .collect();
    let choices = plan
        .batches
        .iter()
        .flat_map(|b| [&b.greedy, &b.draw])
        .chain([&plan.greedy, &plan.draw])
        .flatten();
    let launches: Vec<&Launch> =
        plan.programs().into_iter().flat_map(|p| &p.launches).chain(choices).collect();
    for launch in launches {
        let (job, code) = (&plan.jobs[launch.job.0 as usize], &codes[launch.job.0 as usize]);
        let kernel = code.kernels().iter().find(|k| k.name == job.entry).unwrap();
        let takes: Vec<u32> = kernel.args.iter().map(|a| a.size).collect();
        let given: Vec<u32> = launch.args.iter().map(size).collect();
        assert_eq!(given, takes, "{}: arguments of {}", launch.name, job.entry);
        let arch = target.arch();
        assert!(
            launch.block <= arch.max_threads
                && launch.shared + kernel.shared <= arch.shared_per_block
        );
    }
}

#[test]
fn dense_model_launches_bind_all_kernel_arguments() {
    check(&SMOLLM2, "sm_90a");
}

#[test]
fn expert_model_launches_bind_all_kernel_arguments() {
    check(&QWEN3_MOE, "sm_90a");
}
