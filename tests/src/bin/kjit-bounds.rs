//! Computes lower bounds of the time of matrix-vector products (decoding) from their instructions.
//! `kjit-bounds count gfx1100 …` counts the instructions that each product executes on the emulator
//! and prints lines of `kernel_src/src/issue.tsv` (`--only NAME`: one product). `kjit-bounds table`
//! makes the tables of `benches/results/amd-bounds.txt` from that file. `scripts/issue-bounds` runs
//! both.
#![allow(clippy::print_stdout, reason = "a command")]

use gfxemu::machine::{Launch, Machine};
use gfxemu::object::Kernel;
use gfxemu::region::Region;
use gfxemu::target::Target as Emulated;
use gfxemu::text::Text;
use kjit_engine::arch::issue::Executed;
use kjit_engine::arch::{ARCHS, Arch, Card};
use kjit_engine::{Config, Engine, Target};
use kjit_kernel_cases::matrix::{Sample, representative};
use kjit_kernel_cases::{CaseArg, Random};
use kjit_kernels::issue;
use kjit_model::catalogue::{COMMON, Common};
use kjit_tests::dispatch;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

/// Numbers of layers of the catalogue's models. A row of the catalogue describes one layer of each
/// kind.
const LAYERS: [(&str, f64); 11] = [
    ("Llama 3.1 8B Q4_K_M", 32.0),
    ("Llama 3.2 3B Q4_K_M", 28.0),
    ("Llama 3.2 1B Q4_K_M", 16.0),
    ("Mistral 7B v0.3 Q4_K_M", 32.0),
    ("Qwen2.5 7B Q4_K_M", 28.0),
    ("Qwen3 8B Q4_K_M", 36.0),
    ("Qwen3 4B Q4_K_M", 36.0),
    ("Gemma 3 4B Q4_K_M", 34.0),
    ("Llama 3.1 8B Q8_0", 32.0),
    ("Qwen3 30B A3B Q4_K_M", 48.0),
    ("SmolLM2 135M Q4_1", 30.0),
];

/// Number of blocks that are run, spread over the grid. All blocks do equal work, except blocks
/// with the last rows.
const BLOCKS: u32 = 6;

fn main() -> ExitCode {
    kjit_engine::child_main();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let each = |archs: &[&str], only: Option<&str>| {
        archs.iter().try_for_each(|arch| count(arch, only).map_err(|why| format!("{arch}: {why}")))
    };
    let done = match words.as_slice() {
        ["count", "--only", name, archs @ ..] if !archs.is_empty() => each(archs, Some(name)),
        ["count", archs @ ..] if !archs.is_empty() => each(archs, None),
        ["table"] => table(),
        _ => Err("usage: kjit-bounds count [--only NAME] ARCH …, kjit-bounds table".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn card_of(arch: &str) -> Result<(&'static Arch, &'static Card), String> {
    let row = ARCHS.iter().find(|a| a.id == arch);
    row.and_then(|a| Some((a, a.card.as_ref()?)))
        .ok_or_else(|| "no such architecture, or no card of it".to_owned())
}

fn count(arch: &str, only: Option<&str>) -> Result<(), String> {
    gfxemu::llvm::available()?;
    let (row, card) = card_of(arch)?;
    let target = Target::parse(arch).map_err(|e| e.to_string())?;
    let mut config = Config::new().compiler_kind("clang");
    if let Some(folder) = std::env::var_os("KJIT_CACHE_DIR") {
        config = config.cache_dir(folder);
    }
    let engine = Engine::new(config);
    // On RDNA, HIP counts a pair of CUs as one unit.
    let units = if row.waves.len() > 1 { card.units / 2 } else { card.units };
    let wanted = |name: &str| {
        let ends = [" norm", " gated", " down"].iter().any(|end| name.ends_with(end));
        name.starts_with("matvec ") && ends && only.is_none_or(|only| only == name)
    };
    let all = representative(&target).map_err(|e| e.to_string())?;
    let all: Vec<Sample> = all.into_iter().filter(|s| wanted(&s.name)).collect();
    let jobs: Vec<_> = all.iter().map(|s| s.kernel.job(&target)).collect();
    for (sample, code) in all.iter().zip(engine.compile_all(&jobs)) {
        let code = code.map_err(|e| e.to_string())?;
        let e = executed(&target, units, sample, &code)
            .map_err(|why| format!("{}: {why}", sample.name))?;
        let (bytes, moves, wave) =
            (code.bytes().len(), sample.work.bytes, sample.kernel.options.wave);
        let counts =
            [e.vector, e.slow, e.scalar, e.matrix, e.lds, e.lds_bytes, e.memory, e.memory_bytes]
                .map(|n| format!("{n:.0}"));
        println!("{arch}\t{}\t{bytes}\t{moves}\t{wave}\t{}", sample.name, counts.join("\t"));
    }
    Ok(())
}

/// Number of instructions of a sample launch: some blocks are counted and scaled to all blocks.
fn executed(
    target: &Target,
    units: u32,
    sample: &Sample,
    code: &kjit_engine::CodeObject,
) -> Result<Executed, String> {
    let size = kjit_kernels::Size { tokens: 1, past: 0 };
    let mut random = Random::new(1).sharing(&Arc::default());
    let case = kjit_kernel_cases::case(&sample.spec, target, units, size, &mut random)
        .map_err(|e| e.to_string())?;
    let symbol = case.kernel.entry;
    let info = code
        .kernels()
        .iter()
        .find(|k| k.name == symbol)
        .ok_or("its code object has not its kernel")?;
    let kernel = Kernel::read(code.bytes(), symbol)?;
    let wave = kernel.wave;
    let mut emulated = Emulated::new(target.id(), wave)?;
    // This run only counts instructions. Other tests check for hazards.
    emulated.excused = true;
    let mut machine = Machine::new(emulated, kernel, 0x1000)?;
    let (base, image) = machine.image();
    let mut regions = vec![Region::new("code", base, image.to_vec(), false)];
    let mut at = 0x1_0000_0000u64;
    let mut block = vec![0u8; info.arg_bytes.unwrap_or(4096) as usize + 256];
    for (arg, place) in case.args.iter().zip(&info.args) {
        let value = match arg {
            CaseArg::Buffer { name, before, .. } => {
                regions.push(Region::new(*name, at, before.to_vec(), true));
                let address = at;
                at = (at + before.len() as u64 + 0x10_0000).next_multiple_of(0x10_0000);
                address.to_le_bytes().to_vec()
            }
            CaseArg::Null => vec![0; 8],
            CaseArg::U32(v) => v.to_le_bytes().to_vec(),
            CaseArg::U64(v) => v.to_le_bytes().to_vec(),
            CaseArg::F32(v) => v.to_le_bytes().to_vec(),
        };
        let start = place.offset as usize;
        block
            .get_mut(start..start + value.len())
            .ok_or("arguments behind their block")?
            .copy_from_slice(&value);
    }
    regions.push(Region::new("arguments", 0x4000_0000_0000_0000, block, false));
    let launch = Launch {
        grid: case.geometry.grid,
        block: case.geometry.block,
        lds: machine.static_lds() + case.geometry.shared as usize,
        cooperative: false,
        arguments: 0x4000_0000_0000_0000,
        seed: 1,
        limit: 2_000_000_000,
    };
    let [gx, gy, gz] = launch.grid;
    let (all, run) = (gx * gy * gz, BLOCKS.min(gx * gy * gz));
    let blocks = (0..run)
        .map(|i| i * (all - 1) / (run - 1).max(1))
        .map(|b| [b % gx, b / gx % gy, b / gx / gy]);
    machine.run_blocks(&launch, blocks.collect(), regions).map_err(|fault| fault.to_string())?;
    let mut sum = Executed::default();
    let times = f64::from(all) / f64::from(run);
    for (text, n) in machine.profile() {
        let n = n as f64 * times;
        add(&mut sum, &Text::parse(text), n, f64::from(wave));
    }
    Ok(sum)
}

/// Bytes that a lane loads or stores, from the name of the instruction.
fn bytes(name: &str) -> f64 {
    let wide = [
        ("x4", 16.0),
        ("b128", 16.0),
        ("x3", 12.0),
        ("b96", 12.0),
        ("x2", 8.0),
        ("b64", 8.0),
        ("b16", 2.0),
        ("u16", 2.0),
        ("i16", 2.0),
        ("short", 2.0),
        ("b8", 1.0),
        ("u8", 1.0),
        ("i8", 1.0),
        ("byte", 1.0),
    ];
    // Instructions with two accesses, such as ds_read2_b32.
    let two = if name.contains("2_b") || name.contains("2st64_b") || name.contains("_2addr_") {
        2.0
    } else {
        1.0
    };
    let name = name.trim_end_matches("_d16").trim_end_matches("_d16_hi");
    two * wide.iter().find(|(part, _)| name.contains(part)).map_or(4.0, |(_, n)| *n)
}

fn add(sum: &mut Executed, text: &Text, n: f64, wave: f64) {
    let name = text.name.as_str();
    const SLOW: [&str; 8] =
        ["v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_", "v_s_"];
    // Instructions without an issue slot: waits, and those that the front end of the unit executes.
    const FREE: [&str; 6] = ["s_wait", "s_nop", "s_delay", "s_clause", "s_barrier", "s_endpgm"];
    if name.starts_with("v_wmma") || name.starts_with("v_mfma") || name.starts_with("v_smfmac") {
        sum.matrix += n;
    } else if name.starts_with("v_") {
        sum.vector += n;
        sum.slow += if SLOW.iter().any(|slow| name.starts_with(slow)) { n } else { 0.0 };
    } else if name.starts_with("ds_") {
        sum.lds += n;
        sum.lds_bytes += n * wave * bytes(name);
    } else if ["global_", "flat_", "buffer_", "scratch_"].iter().any(|part| name.starts_with(part))
    {
        if name.contains("load") || name.contains("store") || name.contains("atomic") {
            sum.memory += n;
            sum.memory_bytes += n * wave * bytes(name);
        }
    } else if !FREE.iter().any(|free| name.starts_with(free)) {
        sum.scalar += n;
    }
}

/// Bounds of a launch on its card: µs by memory, µs by issue, and the pipe that limits the issue.
fn bounds(row: &issue::Counted) -> Option<(f64, f64, &'static str)> {
    let (arch, card) = card_of(row.arch).ok()?;
    let by_issue = row.executed.bound(arch, card, row.wave)?;
    Some((row.moves as f64 / (card.gb_per_s * 1e3), by_issue.us, by_issue.by))
}

fn table() -> Result<(), String> {
    let rows: Vec<issue::Counted> = issue::all().collect();
    let mut archs: Vec<&str> = vec![];
    rows.iter().for_each(|r| {
        if !archs.contains(&r.arch) {
            archs.push(r.arch)
        }
    });
    let names: Result<Vec<_>, _> =
        archs.iter().map(|a| card_of(a).map(|(_, card)| card.name)).collect();
    let names = names?;
    println!(
        "Tokens a second at most, with an empty context: by memory alone, and by memory and instructions\n\
         where that is less.\n"
    );
    println!("| model | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
    for model in COMMON {
        let mut line = format!("| {} |", model.name);
        for arch in &archs {
            let (memory, both) = work(model, arch, &rows)?;
            let (memory, both) = (1e6 / memory, 1e6 / both);
            line += &if both < 0.99 * memory {
                format!(" {} → {} |", shown(memory), shown(both))
            } else {
                format!(" {} |", shown(memory))
            };
        }
        println!("{line}");
    }
    println!("\nProducts whose instructions take more than 1.55 times as long as their memory:\n");
    println!(
        "| card | product | by memory µs | by instructions µs | times | busiest \
         |\n|---|---|---|---|---|---|"
    );
    for row in &rows {
        let (_, card) = card_of(row.arch)?;
        let Some((memory, by_issue, by)) = bounds(row) else { continue };
        if by_issue > 1.55 * memory {
            let times = by_issue / memory;
            println!(
                "| {} | {} | {memory:.1} | {by_issue:.1} | {times:.2} | {by} |",
                card.name, row.name
            );
        }
    }
    dispatch_tables(&archs, &rows)
}

/// The cards inside processors, whose instructions were not counted.
const INTEGRATED: [&str; 4] = ["gfx1151", "gfx1150", "gfx1103", "gfx90c"];
/// The cards of the predictions.
const PREDICTED_CARDS: [&str; 6] = ["gfx1100", "gfx1201", "gfx942", "gfx1151", "gfx1030", "gfx90a"];

fn shown(n: f64) -> String {
    if n < 100.0 { format!("{n:.1}") } else { format!("{n:.0}") }
}

fn layers_of(model: &Common) -> Result<f64, String> {
    let layers = LAYERS.iter().find(|(name, _)| *name == model.name).map(|(_, n)| *n);
    layers.ok_or_else(|| format!("{}: its layers are not in the list", model.name))
}

/// Microseconds of a token on an architecture's card: by memory, and by memory and instructions.
fn work(model: &Common, arch: &str, rows: &[issue::Counted]) -> Result<(f64, f64), String> {
    let (_, card) = card_of(arch)?;
    let (mut memory, mut both) = (0.0, 0.0);
    for (format, bytes) in &needs(model, layers_of(model)?)? {
        let time = bytes / (card.gb_per_s * 1e3);
        let name = format!("matvec {format} norm");
        let row = rows.iter().find(|r| r.arch == arch && r.name == name).and_then(bounds);
        let slower = match row {
            Some((by_memory, by_issue, _)) => (by_issue / by_memory).max(1.0),
            // Norms and biases are too small to count.
            None => 1.0,
        };
        memory += time;
        both += time * slower;
    }
    Ok((memory, both))
}

/// The bounds with the cost of launches, and predictions.
fn dispatch_tables(counted: &[&str], rows: &[issue::Counted]) -> Result<(), String> {
    let archs: Vec<&str> = counted.iter().copied().chain(INTEGRATED).collect();
    let names: Result<Vec<_>, _> =
        archs.iter().map(|a| card_of(a).map(|(_, card)| card.name)).collect();
    println!(
        "\nTokens a second at most, with the likely cost of launches (tests/src/dispatch.rs): as a \
         graph, and as one\nlaunch. The better form is bold. Launches of a token are in the second \
         column: gfx1100's graph, barriers of one launch.\n"
    );
    println!(
        "| model | launches | {} |\n|---|---|{}",
        names?.join(" | "),
        "---|".repeat(archs.len())
    );
    for model in COMMON {
        let layers = layers_of(model)? as u32;
        let (launches, meets) = dispatch::counts(model, layers, "gfx1100")?;
        let meets = meets.map_or("–".to_owned(), |n| n.to_string());
        let mut line = format!("| {} | {launches}, {meets} |", model.name);
        for arch in &archs {
            let (_, card) = card_of(arch)?;
            let counts = dispatch::counts(model, layers, arch)?;
            let costs = dispatch::costs(arch, card.gb_per_s);
            let (_, both) = work(model, arch, rows)?;
            line += &format!(" {} |", cell(dispatch::forms(both, counts, &costs, 1)));
        }
        println!("{line}");
    }
    println!(
        "\nPredictions of 2026-11-28, before any card has run kjit: tokens a second of `kjit bench \
         -p 0 -n 128`. Memory\nreads at the fraction of its stated rate in dispatch.rs; in brackets \
         the better form with the highest and the lowest cost of launches.\n"
    );
    println!("| card | model | graph | one launch | better form |\n|---|---|---|---|---|");
    for arch in PREDICTED_CARDS {
        let (_, card) = card_of(arch)?;
        let costs = dispatch::costs(arch, card.gb_per_s);
        for name in ["Llama 3.1 8B Q4_K_M", "Qwen3 30B A3B Q4_K_M", "SmolLM2 135M Q4_1"] {
            let model = COMMON.iter().find(|m| m.name == name).ok_or("no such model")?;
            let counts = dispatch::counts(model, layers_of(model)? as u32, arch)?;
            let (memory, both) = work(model, arch, rows)?;
            let work = both.max(memory / costs.reads);
            let rate = |us: Option<f64>| us.map_or("–".to_owned(), |us| shown(1e6 / us));
            let [graph, one] = dispatch::forms(work, counts, &costs, 1);
            let best = |which| dispatch::forms(work, counts, &costs, which).into_iter().flatten();
            let best = |which| best(which).fold(f64::INFINITY, f64::min);
            let better =
                if one.is_some_and(|one| Some(one) < graph) { "one launch" } else { "graph" };
            let (slow, fast) = (shown(1e6 / best(2)), shown(1e6 / best(0)));
            println!(
                "| {} | {name} | {} | {} | {better} ({slow} to {fast}) |",
                card.name,
                rate(graph),
                rate(one)
            );
        }
    }
    Ok(())
}

/// Rates of both forms, the higher one bold.
fn cell([graph, one]: [Option<f64>; 2]) -> String {
    let rate = |us: Option<f64>| us.map_or("–".to_owned(), |us| shown(1e6 / us));
    match one.is_some_and(|one| Some(one) < graph) {
        true => format!("{} / **{}**", rate(graph), rate(one)),
        false => format!("**{}** / {}", rate(graph), rate(one)),
    }
}

/// Bytes that a model reads for a token, by format.
fn needs(model: &Common, layers: f64) -> Result<BTreeMap<&'static str, f64>, String> {
    let graph = model.graph().map_err(|e| format!("{}: {e}", model.name))?;
    let layer = |name: &str| {
        name.strip_prefix("blk.").and_then(|n| n.split('.').next()?.parse::<u32>().ok())
    };
    let here = graph
        .weights
        .iter()
        .filter_map(|w| layer(&w.name))
        .max()
        .map_or(1.0, |n| f64::from(n) + 1.0);
    let mut needs = BTreeMap::new();
    for op in &graph.ops {
        let weights = op.weights();
        let whole: f64 = weights.iter().map(|w| graph.weight(*w).bytes() as f64).sum();
        for id in weights {
            let w = graph.weight(id);
            // A token reads one row of an embedding, and only the chosen experts: `op.bytes`
            // accounts for both.
            let part = op.bytes(&graph) as f64 * w.bytes() as f64 / whole.max(1.0);
            let times = if layer(&w.name).is_some() { layers / here } else { 1.0 };
            *needs.entry(w.format.name).or_insert(0.0) += part * times;
        }
    }
    Ok(needs)
}
