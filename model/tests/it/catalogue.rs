//! Tests the catalogue of common models. Every row is a valid model, and the kernels of real files
//! are in the catalogue.

use crate::it::support::shapes::LLAMA_8B;
use kjit_engine::{Config, Engine, Job, Target};
use kjit_model::catalogue::COMMON;
use kjit_model::gguf::Gguf;
use kjit_model::gpu::jobs_for;
use kjit_model::gpu::plan::{Request, plan};
use kjit_model::gpu::tune::StoredTunings;
use kjit_model::graph::Graph;
use kjit_model::session::{KvType, OpenOptions, Persistence};

const TARGETS: [&str; 4] = ["sm_90a", "sm_75", "gfx1100", "gfx942"];

/// The default options of `run` and `warm`, but without the kernel of a whole token, which depends
/// on the mix of steps in the file. Without that kernel a token is many launches.
fn options() -> OpenOptions {
    OpenOptions {
        context: Some(8192),
        kv: KvType::F16,
        precise: false,
        threads: 1,
        prefill_chunk: Some(2048),
        persistent: Persistence::Off,
        ..OpenOptions::default()
    }
}

fn jobs(graph: &Graph, target: &str) -> Vec<Job> {
    let engine = Engine::new(Config::new().no_cache());
    jobs_for(&engine, graph, &Target::parse(target).unwrap(), &options()).unwrap()
}

fn common(target: &str) -> Vec<Job> {
    COMMON.iter().flat_map(|c| jobs(&c.graph().unwrap(), target)).collect()
}

fn assert_covered(what: &str, graph: &Graph) {
    for target in TARGETS {
        let all = common(target);
        for job in jobs(graph, target) {
            let (name, constants) = (job.source.name(), &job.constants);
            assert!(
                all.contains(&job),
                "{what} on {target}: {name} with {constants} is not in the common set"
            );
        }
    }
}

#[test]
fn every_catalogue_row_plans_with_prompt_kernels() {
    let engine = Engine::new(Config::new().no_cache());
    for row in COMMON {
        let graph = row.graph().unwrap_or_else(|e| panic!("{}: {e}", row.name));
        for target in TARGETS {
            let target = Target::parse(target).unwrap();
            let (options, tuned) = (options(), StoredTunings::of(&engine));
            let plan = plan(&Request {
                graph: &graph,
                target: &target,
                options: &options,
                keep: &[],
                tuned: &tuned,
            });
            let plan = plan.unwrap_or_else(|e| panic!("{} on {target}: {e}", row.name));
            assert_eq!(plan.no_prompts, None, "{} on {target}", row.name);
        }
    }
}

#[test]
fn llama_8b_kernels_are_in_common_set() {
    assert_covered("llama 3.1 8B", &kjit_model::arch::build(&LLAMA_8B.open()).unwrap());
}

#[test]
fn quickstart_model_kernels_are_in_common_set() {
    let Some(path) = crate::it::support::files::model_path("SmolLM2-135M-Instruct.Q4_1.gguf")
    else {
        return;
    };
    assert_covered("SmolLM2", &kjit_model::arch::build(&Gguf::open(path).unwrap()).unwrap());
}

/// The kernel `copies` shows whether a compiler copies the accumulation registers of gfx908
/// correctly. A pack contains it, so that a machine without a compiler chooses the same kernels.
#[test]
fn gfx908_copy_check_kernel_is_in_every_model() {
    let graph = COMMON[0].graph().unwrap();
    let asked = |target| jobs(&graph, target).iter().any(|job| job.source.name() == "copies");
    assert!(asked("gfx908") && !asked("gfx90a"));
}
