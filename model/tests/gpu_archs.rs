//! Which architectures run on GPUs: what plans say of a tiny model of each is what docs/architectures.md says.

mod support;

use kjit_engine::Target;
use kjit_kernels::tuning::Shipped;
use kjit_model::gguf::Gguf;
use kjit_model::gpu::plan::{Request, plan};
use kjit_model::session::OpenOptions;
use std::collections::BTreeMap;
use std::path::Path;
use support::files::model_path;
use support::oracle::oracle;

const PAGE: &str = "docs/architectures.md";
/// The words of the page.
const GPU: &str = "GPU";
const SLOWLY: &str = "GPU, prompts token by token";
const SOME: &str = "some files on the GPU";
const CPU: &str = "CPU";

const TARGETS: [&str; 4] = ["sm_90a", "sm_80", "gfx1100", "gfx942"];

/// What one model's plan is: how prompts go, or why there is none.
fn planned(gguf: &Gguf, target: &str) -> Result<Option<String>, String> {
    let graph = kjit_model::arch::build(gguf).map_err(|e| format!("no graph: {e}"))?;
    let target = Target::parse(target).unwrap();
    let options = OpenOptions { context: Some(64), sequences: 4, prefill_chunk: Some(32), ..OpenOptions::default() };
    let request = Request { graph: &graph, target: &target, options: &options, keep: &[], tuned: &Shipped };
    plan(&request).map(|plan| plan.no_prompts).map_err(|e| e.to_string())
}

/// The word of the table on a model.
fn word(gguf: &Gguf, name: &str) -> String {
    let all = TARGETS.map(|target| planned(gguf, target));
    assert!(all.iter().all(|p| p.is_ok() == all[0].is_ok()), "{name}: {all:?}");
    if std::env::var_os("KJIT_ARCHS_WHY").is_some() {
        eprintln!("{name}: {:?}", all[0]);
    }
    match all {
        [Ok(None), Ok(None), Ok(None), Ok(None)] => GPU.to_owned(),
        [Ok(_), ..] => SLOWLY.to_owned(),
        _ => CPU.to_owned(),
    }
}

#[test]
fn the_page_on_architectures_says_what_plans_say() {
    if model_path("archs").is_none() {
        return;
    }
    // Of several models of one architecture, each counts.
    let both = |a: &str, b: &str| match (a, b) {
        (a, b) if a == b => a.to_owned(),
        (CPU | SOME, _) | (_, CPU | SOME) => SOME.to_owned(),
        _ => SLOWLY.to_owned(),
    };
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for entry in oracle("archs/archs.json")["models"].as_array().unwrap() {
        let [arch, file] = ["arch", "file"].map(|k| entry[k].as_str().unwrap().to_string());
        let path = model_path(&format!("archs/{file}")).unwrap_or_else(|| panic!("archs/{file} was not made"));
        let word = word(&Gguf::open(path).unwrap(), &file);
        found.entry(arch).and_modify(|w| *w = both(w, &word)).or_insert(word);
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(PAGE);
    let text = std::fs::read_to_string(&page).unwrap_or_default();
    let told: BTreeMap<String, String> = text
        .lines()
        .filter_map(|l| l.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | "))
        .map(|(arch, word)| (arch.to_owned(), word.split(" |").next().unwrap_or_default().to_owned()))
        .collect();
    let rows: Vec<String> = found.iter().map(|(arch, word)| format!("| `{arch}` | {word} |")).collect();
    assert!(told == found, "{PAGE} should have these rows:\n{}", rows.join("\n"));
}
