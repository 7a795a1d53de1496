//! Tests which architectures run on GPUs. The plans of tiny models must agree with
//! docs/architectures.md.
//!
//! `KJIT_TEST_OUT=FOLDER` writes the whole plan of each tiny model for each target. Two such
//! folders, made before and after a change, show whether the change affects other models.

use crate::it::support::files::model_path;
use crate::it::support::oracle::oracle;
use kjit_engine::Target;
use kjit_kernels::tuning::Shipped;
use kjit_model::gguf::Gguf;
use kjit_model::gpu::plan::{Request, plan};
use kjit_model::graph::Graph;
use kjit_model::session::{OpenOptions, Persistence};
use std::collections::BTreeMap;
use std::path::Path;

const PAGE: &str = "docs/architectures.md";
/// The words used in docs/architectures.md.
const GPU: &str = "GPU";
const SOME: &str = "some files on the GPU";
const CPU: &str = "CPU";
const NOWHERE: &str = "refused";

const TARGETS: [&str; 4] = ["sm_90a", "sm_80", "gfx1100", "gfx942"];

/// The reason why a model has no plan, with or without pages; `None` if it has a plan.
fn refused(graph: &Graph, target: &str, paged: bool) -> Option<String> {
    let target = Target::parse(target).unwrap();
    let paged = paged.then_some(256);
    let options = OpenOptions {
        context: Some(64),
        sequences: 4,
        paged,
        prefill_chunk: Some(32),
        ..OpenOptions::default()
    };
    let request = Request { graph, target: &target, options: &options, keep: &[], tuned: &Shipped };
    plan(&request).err().map(|e| e.to_string())
}

/// The word for a model in the table.
fn word(gguf: &Gguf, name: &str) -> &'static str {
    let Ok(graph) = kjit_model::arch::build(gguf) else { return NOWHERE };
    let all = TARGETS.map(|target| refused(&graph, target, false));
    assert!(all.iter().all(|why| why.is_none() == all[0].is_none()), "{name}: {all:?}");
    if let Some(why) = &all[0] {
        eprintln!("{name}: {why}");
        assert!(why.contains("cannot run on a GPU yet") && !why.contains('\n'), "{name}: {why}");
        return CPU;
    }
    // A model that a server opens with pages by default must have a plan with pages.
    if OpenOptions::default().may_page(&graph).is_ok() {
        let target = TARGETS[name.len() % TARGETS.len()];
        assert_eq!(refused(&graph, target, true), None, "{name} in pages on {target}");
    }
    GPU
}

/// Attention blocks write their results before other blocks have read the input of queries, keys
/// and values. If nothing reads that input after attention, its memory may be reused for the
/// results, so all blocks must synchronise first.
#[test]
fn attention_may_overwrite_input_only_after_synchronising() {
    for (name, handed) in [("llama", true), ("qwen3", true), ("orion", false)] {
        let Some(path) = model_path(&format!("archs/{name}.gguf")) else { return };
        let graph = kjit_model::arch::build(&Gguf::open(path).unwrap()).unwrap();
        let (target, persistent) = (Target::parse("sm_90a").unwrap(), Persistence::On);
        let options = OpenOptions { context: Some(64), persistent, ..OpenOptions::default() };
        let request = Request {
            graph: &graph,
            target: &target,
            options: &options,
            keep: &[],
            tuned: &Shipped,
        };
        let plan = plan(&request).unwrap();
        let Some(one) = plan.persistent.first() else { panic!("{name}: {:?}", plan.no_persistent) };
        let attends: Vec<_> =
            one.instructions.iter().filter(|i| i.name.ends_with(".attn")).collect();
        assert!(
            !attends.is_empty() && attends.iter().all(|i| i.takes.is_some() == handed),
            "{name}: {attends:?}"
        );
    }
}

#[test]
fn architectures_page_matches_plans() {
    if model_path("archs").is_none() {
        return;
    }
    // An architecture's entry covers all of its models.
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for entry in oracle("archs/archs.json")["models"].as_array().unwrap() {
        let [arch, file] = ["arch", "file"].map(|k| entry[k].as_str().unwrap().to_string());
        let path = model_path(&format!("archs/{file}")).unwrap_or_else(|| {
            panic!("archs/{file} is missing: run scripts/fetch-test-models --archs")
        });
        let word = word(&Gguf::open(path).unwrap(), &file);
        let before = found.entry(arch).or_insert_with(|| word.to_owned());
        if *before != word {
            *before = SOME.to_owned();
        }
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(PAGE);
    let text = std::fs::read_to_string(&page).unwrap_or_default();
    // Items of a list: `- **WORD**: ` and the names.
    let list = text.split("## Devices of each architecture").nth(1).unwrap_or_default();
    let listed: BTreeMap<String, String> = list
        .split("- **")
        .filter_map(|item| item.split_once("**:"))
        .flat_map(|(word, names)| {
            names.split('`').skip(1).step_by(2).map(|arch| (arch.to_owned(), word.to_owned()))
        })
        .collect();
    let mut items: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (arch, word) in &found {
        items.entry(word).or_default().push(format!("`{arch}`"));
    }
    let items: Vec<String> =
        items.iter().map(|(word, names)| format!("- **{word}**: {}", names.join(", "))).collect();
    assert!(listed == found, "{PAGE} should have this list:\n{}", items.join("\n"));
}

/// The whole plan as text: compile jobs by key, memory, launches with their arguments.
fn told(graph: &Graph, target: &str, sequences: usize) -> String {
    let target = Target::parse(target).unwrap();
    let options = OpenOptions {
        context: Some(64),
        sequences,
        prefill_chunk: Some(32),
        persistent: if sequences == 1 { Persistence::On } else { Persistence::Off },
        ..OpenOptions::default()
    };
    let mut plan = match plan(&Request {
        graph,
        target: &target,
        options: &options,
        keep: &[],
        tuned: &Shipped,
    }) {
        Ok(plan) => plan,
        Err(why) => return format!("refused: {why}\n"),
    };
    let mut text = String::new();
    for job in std::mem::take(&mut plan.jobs) {
        let (key, spec) = (job.job.source_key().unwrap().digest(), job.spec.to_string());
        text += &format!("{} {} {spec} {:?}\n", key.hex(), job.entry, job.spec.tuning(&target));
    }
    for one in std::mem::take(&mut plan.persistent) {
        text += &format!(
            "persistent {} {:?}\n",
            one.job.source_key().unwrap().digest().hex(),
            one.instructions
        );
    }
    for program in plan.programs() {
        let launches: String = program.launches.iter().map(|l| format!("{l:?}\n")).collect();
        text += &format!("{:?} {} {}\n{launches}", program.buffers, program.base, program.arena);
    }
    text + &format!("{plan:#?}\n")
}

#[test]
fn plans_are_written_on_request() {
    let Some(folder) = std::env::var_os("KJIT_TEST_OUT") else {
        eprintln!("SKIPPED: KJIT_TEST_OUT=FOLDER writes all plans there");
        return;
    };
    let Some(models) = model_path("archs") else { return };
    std::fs::create_dir_all(&folder).unwrap();
    for entry in std::fs::read_dir(models).unwrap() {
        let path = entry.unwrap().path();
        let Some(name) = path.file_stem().filter(|_| path.extension().is_some_and(|e| e == "gguf"))
        else {
            continue;
        };
        let Ok(graph) = kjit_model::arch::build(&Gguf::open(&path).unwrap()) else { continue };
        for target in TARGETS {
            for sequences in [1, 4] {
                let file = format!("{}.{target}.{sequences}", name.to_string_lossy());
                std::fs::write(Path::new(&folder).join(file), told(&graph, target, sequences))
                    .unwrap();
            }
        }
    }
}
