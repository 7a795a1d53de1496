//! Tests plans without a device: which kernels are compiled and launched.

use crate::it::support::files::{model_path, tiny_models};
use crate::it::support::shapes::{LLAMA_8B, LLAMA_8B_F16, QWEN3_MOE, SMOLLM2, Shape};
use kjit_engine::Target;
use kjit_kernels::spec::Spec;
use kjit_kernels::tiles::TileLayout;
use kjit_kernels::tuning::Shipped;
use kjit_model::catalogue::COMMON;
use kjit_model::gguf::Gguf;
use kjit_model::gpu::fuse::{Step, fuse};
use kjit_model::gpu::plan::{Bind, Launch, PersistentKernel, Plan, Program, Request, plan};
use kjit_model::graph::op::Embed;
use kjit_model::graph::{Graph, Op};
use kjit_model::placement::{shard, shard_of_rank};
use kjit_model::session::{KvType, OpenOptions, Persistence};

const TARGETS: [&str; 6] = ["sm_75", "sm_86", "sm_90a", "gfx90a", "gfx942", "gfx1100"];

fn options(context: usize) -> OpenOptions {
    OpenOptions {
        context: Some(context),
        kv: KvType::F16,
        precise: false,
        threads: 1,
        prefill_chunk: Some(512),
        ..OpenOptions::default()
    }
}

fn planned(graph: &Graph, target: &str, context: usize) -> Plan {
    let target = Target::parse(target).unwrap();
    plan(&Request {
        graph,
        target: &target,
        options: &options(context),
        keep: &[],
        tuned: &Shipped,
    })
    .unwrap()
}

/// Checks facts that are true for every program.
fn check(name: &str, plan: &Plan, program: &Program) {
    // The launches that choose a token use the buffers of the decode program.
    let mut all: Vec<&Launch> = program.launches.iter().collect();
    if std::ptr::eq(program, &plan.decode) {
        all.extend([&plan.greedy, &plan.draw].into_iter().flatten());
    }
    if let Some(batch) = plan.batches.iter().find(|b| std::ptr::eq(program, &b.program)) {
        all.extend([&batch.greedy, &batch.draw].into_iter().flatten());
    }
    // The range of launches that use a buffer.
    let life = |id: usize| {
        let uses =
            |l: &Launch| l.args.iter().any(|a| matches!(a, Bind::Buffer(b) if b.0 as usize == id));
        let mut at = all.iter().enumerate().filter(|(_, l)| uses(l)).map(|(i, _)| i);
        let first = at.next()?;
        Some((first, at.next_back().unwrap_or(first)))
    };
    for (a, one) in program.buffers.iter().enumerate() {
        let Some(la) = life(a) else { panic!("{name}: no launch binds buffer {}", one.name) };
        assert!(
            one.offset + one.bytes <= program.arena,
            "{name}: {} is outside the arena",
            one.name
        );
        for (b, other) in program.buffers.iter().enumerate().take(a) {
            let Some(lb) = life(b) else { continue };
            let together = one.zeroed || other.zeroed || la.0 <= lb.1 && lb.0 <= la.1;
            let apart =
                one.offset + one.bytes <= other.offset || other.offset + other.bytes <= one.offset;
            assert!(!together || apart, "{name}: {} and {} overlap", one.name, other.name);
        }
    }
    for l in &program.launches {
        assert!(plan.jobs.get(l.job.0 as usize).is_some(), "{name}: {} has no job", l.name);
        for a in &l.args {
            match a {
                Bind::Matrix(w) => {
                    assert!(plan.matrices.iter().any(|(m, _)| m == w), "{name}: {}", l.name)
                }
                Bind::Vector(w) => assert!(plan.vectors.contains(w), "{name}: {}", l.name),
                _ => {}
            }
        }
    }
}

#[test]
fn every_step_is_launched_without_sharing_live_memory() {
    for path in tiny_models() {
        let gguf = Gguf::open(&path).unwrap();
        let name = path.display();
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let steps = fuse(&graph);
        for target in TARGETS {
            let plan = planned(&graph, target, 256);
            for program in plan.programs() {
                check(&format!("{name} on {target}"), &plan, program);
            }
            for (i, step) in steps.iter().enumerate() {
                assert!(
                    plan.decode.launches.iter().any(|l| l.step == i),
                    "{name} on {target}: no launch for {step:?}"
                );
            }
        }
    }
}

#[test]
fn batched_programs_scale_smoothly_and_extend_single_kernels() {
    for path in tiny_models() {
        let gguf = Gguf::open(&path).unwrap();
        let graph = kjit_model::arch::build(&gguf).unwrap();
        for target in TARGETS {
            let (alone, target) = (planned(&graph, target, 256), Target::parse(target).unwrap());
            let planned_for = |sequences: usize| {
                let options = OpenOptions { sequences, ..options(256) };
                plan(&Request {
                    graph: &graph,
                    target: &target,
                    options: &options,
                    keep: &[],
                    tuned: &Shipped,
                })
            };
            let all = planned_for(256).unwrap();
            let name = format!("{} on {target}", path.display());
            for program in all.programs() {
                check(&name, &all, program);
            }
            let sizes: Vec<usize> = all.batches.iter().map(|b| b.program.tokens as usize).collect();
            assert_eq!(sizes.first(), Some(&1), "{name}");
            // A matrix unit computes eight rows in the time of two (kernel_src's `few_sizes`). In
            // larger programs fewer than half of the rows are idle.
            for n in 2..=256 {
                let size = sizes.iter().copied().find(|&s| s >= n).unwrap();
                assert!(size <= (2 * n - 1).max(8), "{name}: {n} sequences in a program of {size}");
            }
            assert!(
                alone.jobs.iter().all(|j| all.jobs.contains(j)),
                "{name}: warming for many sequences omits a kernel"
            );
            assert!(all.memory.kv >= 256 * (alone.memory.kv - 2048 * graph.states.len() as u64));
            // All kernels for fewer sequences are also needed for more sequences.
            let few = planned_for(5).unwrap();
            assert!(few.jobs.iter().all(|j| all.jobs.contains(j)), "{name}");
            assert!(
                few.batches.len() < all.batches.len()
                    && few.batches.last().unwrap().program.tokens >= 5,
                "{name}"
            );
            let error = planned_for(257).unwrap_err().to_string();
            assert!(error.contains("257") && error.contains("256"), "{error}");
        }
    }
}

/// The layouts in which products read and write activations.
const LAYOUTS: [&str; 3] = ["gemm", "small_gemm", "batch_gemm"];

/// Checks that products read activations in the layout that was written, and counts the layouts.
fn layouts(name: &str, plan: &Plan, program: &Program) -> [usize; 3] {
    let mut written: Vec<Option<&str>> = vec![None; program.buffers.len()];
    let mut count = [0; 3];
    for l in &program.launches {
        let buffer = |at: usize| match l.args.get(at) {
            Some(Bind::Buffer(id)) => id.0 as usize,
            other => panic!("{name}: argument {at} of {} is {other:?}", l.name),
        };
        let spec = &plan.jobs[l.job.0 as usize].spec;
        // The arguments of products: x, the residual, then a weight, a bias and a result.
        let (read, made) = match spec {
            Spec::Tiles(s) => {
                let made = match s.form {
                    TileLayout::Tiles => "gemm",
                    TileLayout::Panels => "small_gemm",
                    TileLayout::Turned => "batch_gemm",
                };
                (None, Some((buffer(2), made)))
            }
            Spec::Flash(_) => (None, Some((buffer(4), "gemm"))),
            Spec::Gemm(s) => (Some("gemm"), s.tiled.then(|| (buffer(4), "gemm"))),
            Spec::SmallGemm(s) => (Some("small_gemm"), s.panels.then(|| (buffer(4), "small_gemm"))),
            Spec::BatchGemm(s) => (Some("batch_gemm"), s.turned.then(|| (buffer(4), "batch_gemm"))),
            _ => (None, None),
        };
        if let Some(read) = read {
            count[LAYOUTS.iter().position(|l| *l == read).unwrap()] += 1;
            assert_eq!(written[buffer(0)], Some(read), "{name}: the input of {}", l.name);
        }
        if let Some((at, made)) = made {
            written[at] = Some(made);
        }
    }
    count
}

#[test]
fn products_read_activations_in_the_layout_that_was_written() {
    // With 41 to 64 rows the gated unit has enough weights for the product of a batch, but its
    // result is read by a product of few rows.
    let one = Shape { layers: 2, width: 2048, ffn: 8192, head_dim: 64, ..LLAMA_8B };
    let eight = Shape { layers: 2, ..LLAMA_8B };
    let halves = Shape { layers: 2, ..LLAMA_8B_F16 };
    let target = Target::parse("sm_90a").unwrap();
    let mut all = [0; 3];
    for (name, shape) in [("1b", one), ("8b", eight), ("8b f16", halves)] {
        let graph = kjit_model::arch::build(&shape.open()).unwrap();
        let options = OpenOptions { sequences: 256, prefill_chunk: Some(2048), ..options(4096) };
        let (graph, target, options) = (&graph, &target, &options);
        let plan = plan(&Request { graph, target, options, keep: &[], tuned: &Shipped }).unwrap();
        for program in plan.programs() {
            let counts = layouts(&format!("{name}, {} rows", program.tokens), &plan, program);
            all = std::array::from_fn(|i| all[i] + counts[i]);
        }
        // A prompt's products except that of attention's result unpack weights into registers.
        let prompt = plan.prompts.last().unwrap();
        let expected = if name == "8b f16" { [8, 0, 0] } else { [2, 0, 6] };
        assert_eq!(layouts(name, &plan, prompt), expected, "{name}");
    }
    assert!(all.iter().all(|n| *n > 0), "{all:?}");
}

#[test]
fn llama_layer_is_five_launches() {
    for shape in [&LLAMA_8B, &LLAMA_8B_F16, &SMOLLM2] {
        let graph = kjit_model::arch::build(&shape.open()).unwrap();
        let plan = planned(&graph, "sm_90a", 4096);
        check("a real shape", &plan, &plan.decode);
        // There are two more launches than those of the layers: the embedding, and the final norm
        // with the head.
        assert_eq!(plan.decode.launches.len(), 5 * shape.layers as usize + 2, "{plan}");
    }
}

/// Launches of a token, per layer, of every dense model in the catalogue on every family of cards.
/// Gemma 3 has a norm after attention and one after the FFN: each is one more launch.
#[test]
fn layer_of_dense_model_is_at_most_five_launches() {
    let targets = [
        "sm_75", "sm_90a", "gfx803", "gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx950",
        "gfx1010", "gfx1030", "gfx1100", "gfx1151", "gfx1201", "gfx1250",
    ];
    let mut more = vec![];
    for model in COMMON {
        let graphs = [2, 4].map(|layers| model.with_layers(layers).unwrap());
        if graphs[0].ops.iter().any(|op| matches!(op, Op::ExpertMatMul(_))) {
            continue;
        }
        for target in targets {
            // With a long context many blocks share a head, and one of them merges their results.
            for context in [64, 4096, 131_072] {
                let plans = graphs.each_ref().map(|graph| planned(graph, target, context));
                check(model.name, &plans[0], &plans[0].decode);
                let [two, four] = plans.each_ref().map(|plan| plan.decode.launches.len());
                // Two more launches than those of the layers: the embedding, and the final norm
                // with the head.
                assert_eq!(two - (four - two), 2, "{} on {target}: {}", model.name, plans[0]);
                let most = if model.name.starts_with("Gemma") { 7 } else { 5 };
                if four - two > 2 * most {
                    more.push(format!("{} on {target}: {}", model.name, (four - two) / 2));
                }
            }
        }
    }
    assert!(more.is_empty(), "launches of a layer:\n{}", more.join("\n"));
}

#[test]
fn expert_launches_do_not_depend_on_expert_count() {
    let graph = kjit_model::arch::build(&QWEN3_MOE.open()).unwrap();
    let plan = planned(&graph, "sm_90a", 4096);
    check("qwen3-30b-a3b", &plan, &plan.decode);
    let a_layer = plan.decode.launches.iter().filter(|l| l.name.starts_with("blk.7.")).count();
    assert!(a_layer <= 8, "{a_layer} launches in a layer");
}

#[test]
fn indexer_runs_in_chunks_for_long_contexts() {
    let Some(path) = model_path("archs/deepseek32-wide.gguf") else { return };
    let graph = kjit_model::arch::build(&Gguf::open(path).unwrap()).unwrap();
    let layers = graph.ops.iter().filter(|op| matches!(op, Op::TopKeys(_))).count();
    assert!(layers > 1);
    for (target, context, goes) in TARGETS.iter().flat_map(|t| [(t, 4096, 1), (t, 163_840, 6)]) {
        let plan = planned(&graph, target, context);
        let count = |program: &Program, family: &str| {
            let of = |l: &&Launch| plan.jobs[l.job.0 as usize].spec.family() == family;
            program.launches.iter().filter(of).count() / layers
        };
        assert_eq!(
            ["keep", "indexer_scores", "top_keys", "latent"].map(|f| count(&plan.decode, f)),
            [1; 4],
            "{target}"
        );
        // A prompt stores keys and values before attention.
        let prompts: Vec<_> = plan
            .prompts
            .iter()
            .map(|p| (p.tokens, ["keep", "top_keys"].map(|f| count(p, f))))
            .collect();
        assert_eq!(prompts, [(64, [2, 1]), (512, [2, goes])], "{target}");
        plan.programs().into_iter().for_each(|program| check(target, &plan, program));
    }
}

#[test]
fn planned_weights_are_within_four_percent_of_file() {
    for shape in [&LLAMA_8B, &LLAMA_8B_F16, &SMOLLM2, &QWEN3_MOE] {
        let gguf = shape.open();
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let plan = planned(&graph, "gfx1100", 4096);
        let file = gguf.file_bytes() as f64;
        let ratio = plan.memory.weights as f64 / file;
        assert!((0.99..1.04).contains(&ratio), "{}: {ratio}", shape.arch);
        let per_token = graph.kv_elems_per_token() as u64 * 2;
        assert!(
            plan.memory.kv >= per_token * 4096 && plan.memory.kv < per_token * 4096 + (1 << 20)
        );
        assert!(plan.memory.rest < 1 << 30, "{}", plan.memory.rest);
    }
}

#[test]
fn equal_requests_give_equal_plans_and_layers_share_kernels() {
    let graph = kjit_model::arch::build(&LLAMA_8B.open()).unwrap();
    let plan = planned(&graph, "sm_90a", 4096);
    assert_eq!(plan, planned(&graph, "sm_90", 4096), "sm_90 and sm_90a are one target");
    assert!(plan.jobs.len() < 40, "{} kernels for a model with one kind of layer", plan.jobs.len());
    // The context is an argument, not a constant. So another -c finds every kernel in the cache.
    assert_eq!(plan.jobs, planned(&graph, "sm_90a", 8192).jobs);
}

#[test]
fn plan_prints_its_kernels_and_launches() {
    let graph = kjit_model::arch::build(&SMOLLM2.open()).unwrap();
    let text = planned(&graph, "sm_90a", 4096).to_string();
    assert!(
        text.contains("plan for sm_90a") && text.contains("blk.29.attn") && text.contains("logits"),
        "{text}"
    );
}

#[test]
fn steps_are_ordered_after_their_inputs() {
    let graph = kjit_model::arch::build(&QWEN3_MOE.open()).unwrap();
    let mut made = vec![];
    for step in fuse(&graph) {
        for v in step.reads() {
            assert!(made.contains(&v), "{} is read before it is written", graph.value(v).name);
        }
        made.extend(step.writes());
        if let Step::Single(Op::Embed(Embed { out, .. })) = step {
            assert_eq!(made, [out]);
        }
    }
}

#[test]
fn persistent_kernel_is_default_if_measured_faster() {
    let one =
        |shape: &crate::it::support::shapes::Shape, target: &str, change: fn(&mut OpenOptions)| {
            let graph = kjit_model::arch::build(&shape.open()).unwrap();
            let (target, mut options) = (Target::parse(target).unwrap(), options(4096));
            change(&mut options);
            let plan = plan(&Request {
                graph: &graph,
                target: &target,
                options: &options,
                keep: &[],
                tuned: &Shipped,
            })
            .unwrap();
            // If one launch was not requested, there is no reason for its absence.
            assert_eq!(plan.no_persistent, None);
            plan.persistent.iter().map(|one| one.rows).collect::<Vec<_>>()
        };
    assert_eq!(one(&LLAMA_8B, "sm_90a", |_| {}), [1]);
    assert!(one(&LLAMA_8B, "sm_90a", |o| o.persistent = Persistence::Off).is_empty());
    assert_eq!(one(&LLAMA_8B, "sm_90a", |o| o.sequences = 2), [1, 2]);
    assert_eq!(one(&LLAMA_8B, "sm_90a", |o| (o.sequences, o.paged) = (16, Some(8192))), [1, 2]);
    assert!(one(&LLAMA_8B_F16, "sm_90a", |_| {}).is_empty());
    assert!(one(&QWEN3_MOE, "sm_90a", |_| {}).is_empty());
    assert!(one(&SMOLLM2, "sm_90a", |_| {}).is_empty());
    for target in ["sm_75", "sm_86", "gfx90a", "gfx942", "gfx1100"] {
        assert!(
            one(&LLAMA_8B, target, |_| {}).is_empty(),
            "{target}: it was not measured on this device"
        );
    }
}

/// A few sequences have their own program. It adds only the kernels that compute logits and choose
/// tokens, and passes the same number of values.
#[test]
fn persistent_kernel_has_a_column_per_sequence() {
    let graph = kjit_model::arch::build(&LLAMA_8B.open()).unwrap();
    let target = Target::parse("sm_90a").unwrap();
    let planned = |persistent| {
        let options = OpenOptions { persistent, sequences: 8, ..options(4096) };
        plan(&Request {
            graph: &graph,
            target: &target,
            options: &options,
            keep: &[],
            tuned: &Shipped,
        })
        .unwrap()
    };
    let (plan, launches) = (planned(Persistence::On), planned(Persistence::Off));
    // Each further program adds one kernel: the product of the logits, with two columns.
    assert_eq!(plan.jobs.len(), launches.jobs.len() + plan.persistent.len() - 1);
    let first = &plan.persistent[0];
    for one in &plan.persistent {
        let own = one.own.as_ref().unwrap();
        assert_eq!(
            (one.rows, own.program.tokens as usize, own.program.head_from),
            (one.rows, one.rows, 0)
        );
        assert_eq!(own.program.launches.len(), 1, "{:?}", own.program.launches);
        assert_eq!(one.instructions.len(), first.instructions.len());
        let meets = |one: &PersistentKernel| one.instructions.iter().filter(|i| i.meets).count();
        assert_eq!((meets(one), one.packets > first.packets), (meets(first), one.rows > 1));
    }
}

/// In a device's share of a model, products whose rows are summed over the devices also compute the
/// sums. A token has the steps and synchronisations of one device, and one more step that joins the
/// logits.
#[test]
fn shard_is_one_launch_with_sums_inside() {
    let whole = kjit_model::arch::build(&LLAMA_8B.open()).unwrap();
    let target = Target::parse("sm_90a").unwrap();
    let planned = |graph: &Graph, sequences| {
        let options = OpenOptions { persistent: Persistence::On, sequences, ..options(4096) };
        plan(&Request { graph, target: &target, options: &options, keep: &[], tuned: &Shipped })
            .unwrap()
    };
    let layers = whole.states.len();
    for (ranks, sequences) in [(2, 1), (4, 1), (2, 2)] {
        let alone = planned(&whole, sequences);
        for rank in [0, ranks - 1] {
            let plan = planned(&shard(&whole, rank, ranks).unwrap(), sequences);
            for (one, alone) in plan.persistent.iter().zip(&alone.persistent) {
                assert_eq!((one.among, one.sums as usize), ((ranks, rank), 2 * layers + 1));
                let sums: Vec<u32> = one.instructions.iter().filter_map(|i| i.sum).collect();
                assert!(sums.iter().copied().eq(0..one.sums), "each has its number, in order");
                assert_eq!(one.instructions.len(), alone.instructions.len() + 1);
                let meets =
                    |one: &PersistentKernel| one.instructions.iter().filter(|i| i.meets).count();
                assert_eq!(meets(one), meets(alone) + 1, "the sums are passed on");
                assert_eq!((alone.among, alone.sums), ((1, 0), 0));
            }
            assert_eq!(plan.persistent.len(), sequences);
        }
    }
    // By default one launch is used where it was measured to be faster: shares of two devices, with
    // small layers only from two sequences on.
    let auto = |graph: &Graph, sequences| {
        let options = OpenOptions { sequences, ..options(4096) };
        let plan = plan(&Request {
            graph,
            target: &target,
            options: &options,
            keep: &[],
            tuned: &Shipped,
        })
        .unwrap();
        plan.persistent.iter().map(|one| one.rows).collect::<Vec<_>>()
    };
    let large = kjit_model::arch::build(&Shape { types: |_| "Q8_0", ..LLAMA_8B }.open()).unwrap();
    let share = |graph: &Graph, ranks| shard(graph, 0, ranks).unwrap();
    assert_eq!((auto(&share(&large, 2), 1), auto(&share(&large, 2), 8)), (vec![1], vec![1, 2]));
    assert_eq!((auto(&share(&whole, 2), 1), auto(&share(&whole, 2), 8)), (vec![], vec![2]));
    assert!(auto(&share(&whole, 4), 8).is_empty(), "it was not measured on this device");
    // The vendor's library adds between launches, so there cannot be one launch.
    let gathered = planned(&shard_of_rank(&whole, 0, 2).unwrap(), 1);
    assert!(gathered.persistent.is_empty() && gathered.no_persistent.unwrap().contains("library"));
}

/// Each block of a mixture of experts chooses the experts itself. All values are passed as packets.
/// Blocks synchronise only after the embedding and at the end.
#[test]
fn mixture_of_experts_launch_needs_no_grid_synchronisation() {
    let graph = kjit_model::arch::build(&QWEN3_MOE.open()).unwrap();
    let target = Target::parse("sm_90a").unwrap();
    let options = OpenOptions { persistent: Persistence::On, ..options(4096) };
    let plan = plan(&Request {
        graph: &graph,
        target: &target,
        options: &options,
        keep: &[],
        tuned: &Shipped,
    })
    .unwrap();
    let one = &plan.persistent[0];
    let meets: Vec<&str> =
        one.instructions.iter().filter(|i| i.meets).map(|i| i.name.as_str()).collect();
    assert_eq!(meets.len(), 2, "{meets:?}");
    // The experts' input, from which the scores are computed, is passed as packets. The steps that
    // choose pass the scores one by one.
    let choices = one
        .instructions
        .iter()
        .enumerate()
        .filter(|(_, i)| i.hands.is_none() && i.values.is_none() && !i.meets);
    let choices: Vec<usize> = choices.map(|(n, _)| n).collect();
    assert_eq!(choices.len(), graph.states.len());
    for n in choices {
        let [input, scores, choice, up, down] =
            [0, 1, 2, 3, 4].map(|at| &one.instructions[n + at - 2]);
        assert_eq!((scores.takes, choice.takes), (input.values, scores.values), "{}", choice.name);
        assert_eq!(
            (up.takes, down.takes),
            (input.hands.map(|h| h.0), up.hands.map(|h| h.0)),
            "{}",
            choice.name
        );
        assert!(
            scores.takes.is_some()
                && choice.takes.is_some()
                && up.takes.is_some()
                && down.takes.is_some()
        );
    }
}
