//! The whole plan of a model: programs, weights, caches, tables, memory.

use super::arena::ALIGN;
use super::batch::{SEQUENCES, sizes};
use super::build::{Builder, Jobs};
use super::decode::Attend;
use super::lower::{Lower, unsupported};
use super::prompt::Prompt;
use super::{Batch, Job, JobId, Launch, MemoryNeed, Plan, PlanError, Program};
use crate::exec::{ExecOptions, KvType};
use crate::gpu::fuse::{Step, fuse};
use crate::graph::{Graph, ValueId};
use kjit_engine::Target;
use kjit_kernels::kv::{KvLayout, KvStorage};
use kjit_kernels::layout::Layout;
use kjit_kernels::repack::RepackSpec;
use kjit_kernels::tuning::Choices;

/// What a plan is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The model.
    pub graph: &'a Graph,
    /// What for.
    pub target: &'a Target,
    /// Context, storage of keys and values, tokens at once.
    pub options: &'a ExecOptions,
    /// Values that must be there after each run.
    pub keep: &'a [ValueId],
    /// Which tunings were measured best ([`Shipped`](kjit_kernels::tuning::Shipped): none but the shipped ones).
    pub tuned: &'a dyn Choices,
}

/// What a program is for.
#[derive(Clone, Copy, PartialEq)]
enum For {
    /// One token of one sequence, and its logits.
    Token,
    /// Tokens of one sequence.
    Prompt(u32),
    /// One token of each of so many sequences, and their logits.
    Batch(u32),
}

/// Plans a model for one sequence.
///
/// # Errors
/// What the kernels do not cover, by name.
pub fn plan(request: &Request) -> Result<Plan, PlanError> {
    plan_batch(request, 0)
}

/// Plans a model for one sequence, and for up to so many decoded side by side (0: none, 64 at most), each in a slot with a context of its
/// own.
///
/// # Errors
/// What the kernels do not cover, by name; more sequences than 64.
pub fn plan_batch(request: &Request, sequences: usize) -> Result<Plan, PlanError> {
    let &Request { graph, target, options, keep, tuned } = request;
    let steps = fuse(graph);
    if sequences > SEQUENCES {
        return Err(unsupported(
            &format!("{sequences} sequences side by side"),
            format!("up to {SEQUENCES} are covered"),
        ));
    }
    let context = u32::try_from(options.context).map_err(|_| PlanError::Context(options.context))?;
    // Halves are what `--precise` promises on a GPU: its prompts go through them.
    let storage = match options.kv_stored() {
        KvType::F32 | KvType::F16 => KvStorage::F16,
        KvType::Q8_0 => KvStorage::Q8_0,
    };
    let Some((last, body)) = steps.split_last() else { return Err(unsupported("the model", "it has no operations")) };
    let head = match last {
        Step::Project { input, .. } if last.writes() == [graph.logits] => input.value(),
        _ => return Err(unsupported("logits", "they are not made by a projection at the end")),
    };
    let (mut jobs, mut matrices, mut vectors) = (Jobs::default(), vec![], vec![]);
    let mut program = |jobs: &mut Jobs, what: For| -> Result<Program, PlanError> {
        let (tokens, prompt) = match what {
            For::Token => (1, false),
            For::Prompt(n) => (n, true),
            For::Batch(n) => (n, false),
        };
        // What the last step reads, and for prompts nothing else does, stays.
        let kept: Vec<ValueId> = keep.iter().copied().chain([head, graph.logits]).collect();
        let mut lower = Lower {
            graph,
            target: target.clone(),
            tuned,
            context,
            storage,
            jobs,
            matrices: &mut matrices,
            vectors: &mut vectors,
            program: Builder::new(
                graph,
                &steps,
                tokens,
                if prompt { &kept } else { kept.get(..keep.len()).unwrap_or(&[]) },
            ),
            batch: matches!(what, For::Batch(_)),
            products: vec![],
        };
        let mut state = Prompt::default();
        for (i, step) in steps.iter().enumerate() {
            lower.program.step(i);
            let rest = steps.get(i + 1..).unwrap_or(&[]);
            match what {
                For::Token => lower.step(step)?,
                For::Batch(_) => lower.batch_step(step, rest, &mut state)?,
                For::Prompt(_) if i < body.len() => lower.prompt_step(step, rest, &mut state)?,
                For::Prompt(_) => {}
            }
        }
        if !prompt {
            lower.choices()?;
        }
        let head = lower.buffer_of(head)?;
        let products = lower.products.into_iter().map(|(used, ..)| used).collect();
        Ok(lower.program.finish(products, head))
    };
    let mut decode = program(&mut jobs, For::Token)?;
    let [greedy, draw] = choices(&mut decode)?;
    let (mut prompts, mut no_prompts) = (vec![], None);
    let mut more = jobs.clone();
    for tokens in chunks(options.batch.min(options.context)) {
        match program(&mut more, For::Prompt(tokens)) {
            Ok(p) => prompts.push(p),
            Err(PlanError::Unsupported { what, why }) => no_prompts = Some(format!("{what}: {why}")),
            Err(other) => return Err(other),
        }
    }
    match no_prompts {
        None => jobs = more,
        Some(_) => prompts.clear(),
    }
    let mut batches = vec![];
    for n in if sequences > 0 { sizes(graph, target, sequences) } else { vec![] } {
        let mut program = program(&mut jobs, For::Batch(n))?;
        let [greedy, draw] = choices(&mut program)?;
        batches.push(Batch { program, greedy, draw });
    }
    let mut base = decode.base + decode.arena;
    for p in prompts.iter_mut().chain(batches.iter_mut().map(|b| &mut b.program)) {
        p.base = base;
        base += p.arena;
    }
    vectors.sort_unstable();
    vectors.dedup();
    let mut weights = 0;
    let mut placed = vec![];
    for id in matrices {
        let w = graph.weight(id);
        let fail = |source| PlanError::Layout { name: w.name.clone(), source };
        let layout = Layout::new(w.format, w.cols).map_err(fail)?;
        weights += (layout.bytes(w.rows, w.experts).map_err(fail)? as u64).next_multiple_of(ALIGN);
        let job = repack(&mut jobs, w.name.as_str(), layout, target)?;
        placed.push((id, job));
    }
    for &id in &vectors {
        let w = graph.weight(id);
        weights += (4 * (w.rows * w.cols) as u64).next_multiple_of(ALIGN);
    }
    let caches = graph.caches.iter().map(|c| {
        let layout = KvLayout { heads: c.heads, head_dim: c.head_dim, storage };
        let bytes =
            layout.bytes(options.context).ok_or_else(|| unsupported(&c.name, "its cache cannot be addressed"))?;
        Ok(bytes as u64)
    });
    let caches = caches.collect::<Result<Vec<u64>, PlanError>>()?;
    let ropes: u64 = graph.ropes.iter().map(|r| (r.dims / 2 * 2 * options.context) as u64).sum();
    let slots = sequences.max(1);
    let kv = caches.iter().map(|c| 2 * c.saturating_mul(slots as u64).saturating_add(ALIGN)).sum();
    let rest = base + 4 * ropes;
    let memory = MemoryNeed { weights, kv, rest };
    let (target, jobs) = (target.clone(), jobs.finish());
    Ok(Plan {
        target,
        jobs,
        decode,
        greedy,
        draw,
        prompts,
        no_prompts,
        slots,
        batches,
        matrices: placed,
        vectors,
        caches,
        memory,
    })
}

/// Takes the two ways to choose a token off the end of a program.
fn choices(program: &mut Program) -> Result<[Launch; 2], PlanError> {
    let (draw, greedy) = (program.launches.pop(), program.launches.pop());
    let both = greedy.zip(draw).map(|(greedy, draw)| [greedy, draw]);
    both.ok_or_else(|| unsupported("logits", "there are no steps"))
}

/// Tokens that the programs for prompts take at most, for chunks of up to `batch`: short questions go through tiles of their own size.
fn chunks(batch: usize) -> Vec<u32> {
    const SHORT: u32 = 64;
    match u32::try_from(batch).unwrap_or(u32::MAX) {
        0 | 1 => vec![],
        n if n <= SHORT => vec![n],
        n => vec![SHORT, n],
    }
}

/// The job that lays a matrix's rows out; none where the device keeps them as the file has them.
fn repack(jobs: &mut Jobs, name: &str, layout: Layout, target: &Target) -> Result<Option<JobId>, PlanError> {
    if layout.block().is_none() && layout.format.row_bytes(layout.cols) == Some(layout.row_bytes) {
        return Ok(None);
    }
    let spec = RepackSpec { layout };
    let kernel = spec.kernel(target).map_err(|e| unsupported(name, e))?;
    let job = kjit_engine::Job::new(kernel.source, kernel.constants, kernel.options, target.clone());
    Ok(Some(jobs.intern(Job { job, entry: kernel.entry, spec: spec.into() })))
}

impl Lower<'_> {
    pub(super) fn step(&mut self, step: &Step) -> Result<(), PlanError> {
        match step {
            Step::Embed { table, scale, out } => self.embed(*table, *scale, *out),
            Step::Project { input, segments, finish } => self.project(input, segments, finish),
            Step::Experts { input, experts, segments, finish } => self.experts(input, *experts, segments, finish),
            &Step::Attend { q, k, v, q_norm, k_norm, rope, cache, heads, scale, soft_cap, out } => {
                self.attend(&Attend { q, k, v, q_norm, k_norm, rope, cache, heads, scale, soft_cap, out })
            }
            Step::Norm { x, weight, eps, residual, out } => self.norm(*x, *weight, None, *eps, *residual, *out),
            Step::ExpertSum { x, shares, residual, out } => {
                let (from, top) = (self.value(*x)?, self.graph.value(*x).slots);
                self.expert_sum(from, top, *shares, *residual, *out)
            }
            Step::Single(op) => self.single(op),
        }
    }
}
