//! Plans a whole model: programs, weights, caches, tables, memory.

use super::arena::ALIGN;
use super::batch::{DRAFTED, FEW_ROWS, SEQUENCES, sizes};
use super::build::{Builder, Jobs};
use super::expert_cache::room;
use super::fit;
use super::fuse::{Step, fuse};
use super::lower::{Lower, kv_layout};
use super::persistent::{SIDE_BY_SIDE, default_min_sequences};
use super::reproducible;
use super::states::recurrent_bytes;
use super::{Batch, JobId, Launch, MemoryNeed, Parts, PersistentKernel, Plan, PlanError, Program};
use crate::error::unsupported;
use kjit_engine::Target;
use kjit_exec::{HostPrompts, KvType, OpenOptions, Persistence, why_no_pages};
use kjit_graph::merge_host_experts;
use kjit_graph::{Graph, Op, State, StateId, StateKind, ValueId, WeightId};
use kjit_kernels::Family;
use kjit_kernels::kv::{KvStorage, PAGE};
use kjit_kernels::layout::Layout;
use kjit_kernels::repack::RepackSpec;
use kjit_kernels::tuning::Choices;
use std::collections::HashMap;

/// The input of planning.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The model.
    pub graph: &'a Graph,
    /// The target.
    pub target: &'a Target,
    /// Context, storage of keys and values, chunk sizes.
    pub options: &'a OpenOptions,
    /// Values to keep after each run.
    pub keep: &'a [ValueId],
    /// The measured tunings ([`Shipped`](kjit_kernels::tuning::Shipped): only the tunings in the
    /// package).
    pub tuned: &'a dyn Choices,
}

/// The purpose of a program.
#[derive(Clone, Copy, PartialEq)]
enum ProgramPurpose {
    /// One token of one sequence, with its logits.
    Token,
    /// Tokens of one sequence.
    Prompt(u32),
    /// One token of each of N sequences, with their logits.
    Batch(u32),
    /// Like `Batch`, with one-token products that have a column for each sequence: the program of a
    /// persistent kernel.
    Columns(u32),
    /// A few tokens of one sequence, with the logits of each.
    Drafts,
}

impl Request<'_> {
    /// The context of a sequence.
    pub fn context(&self) -> usize {
        self.options.context_of(self.graph)
    }
}

/// Above this context, prompts share passes of more rows than a context.
const PACKED: usize = 256;

/// Plans a model for the requested number of sequences, at most 256 (64 with `reproducible`). Each
/// sequence is in a slot with its own context.
///
/// # Errors
/// An operation without a kernel, by name; too many sequences.
pub fn plan(request: &Request) -> Result<Plan, PlanError> {
    let &Request { graph, target, options, .. } = request;
    let sequences = options.sequences.max(1);
    let most = if options.reproducible { FEW_ROWS } else { SEQUENCES };
    if sequences > most {
        let how = if options.reproducible { " with --reproducible" } else { "" };
        return Err(unsupported(
            &format!("{sequences} concurrent sequences"),
            format!("at most {most} are supported{how}"),
        ));
    }
    fit::check(graph)?;
    if options.reproducible {
        reproducible::check(graph)?;
    }
    let pages = pages(request)?;
    let steps = fuse(graph);
    let source = Source::of(graph, &steps)?;
    let mut planner = Planner::new(request, source)?;
    let mut decode = planner.program(ProgramPurpose::Token)?;
    let [adjust, greedy, draw] = choices(graph, &mut decode)?;
    let (mut persistent, no_persistent) = match options.persistent {
        // The persistent kernel has a different order of sums.
        Persistence::On if options.reproducible => {
            (vec![], Some("--reproducible needs separate launches".to_owned()))
        }
        Persistence::Auto | Persistence::Tried
            if options.reproducible || !graph.adapters.is_empty() =>
        {
            (vec![], None)
        }
        Persistence::On if !graph.adapters.is_empty() => {
            (vec![], Some("models with LoRA adapters need separate launches".to_owned()))
        }
        Persistence::On => planner.one_launches(&decode, 1, sequences)?,
        // The kernel is used if it was measured to be faster. It was not requested, so the plan
        // does not report that it is missing.
        Persistence::Auto => match default_min_sequences(graph, target) {
            Some(from) => (planner.one_launches(&decode, from, sequences)?.0, None),
            None => (vec![], None),
        },
        // A trial decides. It does not try two sequences.
        Persistence::Tried => (planner.one_launches(&decode, 1, sequences)?.0, None),
        Persistence::Off => (vec![], None),
    };
    let packets: u64 = persistent.iter().map(|one| one.packets).sum();
    let context = request.context();
    // Chunks of several sequences share a pass, which may then have more rows than a context. (8b
    // Q4_K_M on an H100, 256 clients, contexts of 704 tokens: 2,711 tokens/s with passes of 704
    // rows, which no two prompts of 512 fit, and 3,987 with passes of 1,024.)
    let shared = sequences > 1 && context > PACKED && !graph.is_recurrent();
    let rows = if shared { context.saturating_mul(sequences) } else { context };
    let chunk = if graph.is_bidirectional() { context } else { options.chunk_on_gpu().min(rows) };
    // With more rows a different kernel would be used.
    let chunk = if options.reproducible { chunk.min(FEW_ROWS) } else { chunk };
    let mut copying = planner.copying(chunk)?;
    // If experts are copied for long prompts, the other prompt programs compute experts on the CPU,
    // with at most the CPU's chunk size.
    let chunk = if copying.is_some() { chunk.min(options.chunk_on_cpu()) } else { chunk };
    let (mut prompts, no_prompts) = planner.prompts(chunk)?;
    if let Some(why) = no_prompts.as_ref().filter(|_| graph.is_bidirectional()) {
        return Err(unsupported("a prompt in one pass", why));
    }
    let (mut image, no_image) = match options.image_rows {
        0 => (None, None),
        rows => match planner.image(rows, prompts.last())? {
            Ok(program) => (Some(program), None),
            Err(why) => (None, Some(why)),
        },
    };
    let mut batches = vec![];
    for n in if sequences > 1 { sizes(graph, target, sequences) } else { vec![] } {
        let mut program = planner.program(ProgramPurpose::Batch(n))?;
        let [adjust, greedy, draw] = choices(graph, &mut program)?;
        batches.push(Batch { program, adjust, greedy, draw });
    }
    let mut drafts = if options.drafts { planner.drafts()? } else { None };
    let mut base = decode.base + decode.arena;
    let own = persistent.iter_mut().filter_map(|one| one.own.as_deref_mut());
    let others = batches.iter_mut().chain(&mut drafts).chain(own).map(|b| &mut b.program);
    for p in prompts.iter_mut().chain(others).chain(&mut copying).chain(&mut image) {
        p.base = base;
        base += p.arena;
    }
    let slots = sequences;
    let caches = planner.caches()?;
    let parts: Vec<Parts> =
        graph.states.iter().map(|state| parts(&state.kind, slots, pages)).collect();
    let all = |(each, parts): (&[u64; 2], &Parts)| {
        let of = |bytes: u64| bytes.saturating_mul(parts.count() as u64).saturating_add(ALIGN);
        of(each[0]).saturating_add(of(each[1]))
    };
    let kv = caches.iter().zip(&parts).map(all).sum();
    let ropes: u64 = graph.ropes.iter().map(|r| (r.dims / 2 * 2 * request.context()) as u64).sum();
    let (matrices, matrix_bytes, vectors, weights) = planner.weights()?;
    // Positions, options, slot lists, and a seed for each position.
    let words = slots as u64 * (4 * (request.context() as u64 + 1) + 24) + 4 * ALIGN;
    let tables = pages.map_or(0, |_| 4 * (slots * request.context().div_ceil(PAGE)) as u64 + ALIGN);
    let mut plan = Plan {
        target: target.clone(),
        jobs: planner.jobs.finish(),
        decode,
        adjust,
        greedy,
        draw,
        persistent,
        no_persistent,
        prompts,
        no_prompts,
        image,
        no_image,
        slots,
        batches,
        drafts,
        matrices,
        matrix_bytes,
        streaming: None,
        vectors,
        pages,
        caches,
        parts,
        memory: MemoryNeed { weights, kv, rest: base + 4 * ropes + words + tables + packets },
    };
    plan.memory.rest = plan.memory.rest.saturating_add(plan.inbox()).saturating_add(room(graph));
    if let Some(program) = copying {
        plan.copy_experts(graph, program);
    }
    Ok(plan)
}

/// With pages: the number of saved recurrent states in addition to the states of `slots` slots.
/// There is one for each slot's prompt, and at least eight for the conversations of a few slots.
pub const fn copies_beside(slots: usize) -> usize {
    if slots < 8 { 8 } else { slots }
}

/// The slots or pages of a state.
fn parts(kind: &StateKind, slots: usize, pages: Option<usize>) -> Parts {
    match (kind, pages) {
        (StateKind::Recurrent { .. }, Some(_)) => {
            Parts::Slots { slots, copies: copies_beside(slots) }
        }
        (_, Some(pages)) => Parts::Pages(pages),
        (_, None) => Parts::Slots { slots, copies: 0 },
    }
}

/// The number of pages, if pages are requested.
fn pages(request: &Request) -> Result<Option<usize>, PlanError> {
    let (graph, context) = (request.graph, request.context());
    let Some(tokens) = request.options.paged else { return Ok(None) };
    if let Some(why) = why_no_pages(graph) {
        return Err(unsupported("KV pages", why));
    }
    // At least one full context must fit, so that the oldest sequence can always run.
    if tokens < context {
        return Err(unsupported(
            "KV pages",
            format!("{tokens} tokens are fewer than the context of {context}"),
        ));
    }
    Ok(Some(tokens.div_ceil(PAGE).max(context.div_ceil(PAGE))))
}

/// The graph and steps of a program.
#[derive(Clone, Copy)]
struct Source<'a> {
    graph: &'a Graph,
    steps: &'a [Step],
    /// The input of the steps that compute logits.
    head: ValueId,
    /// Index of the first of these steps.
    first: usize,
}

impl<'a> Source<'a> {
    fn of(graph: &'a Graph, steps: &'a [Step]) -> Result<Source<'a>, PlanError> {
        let (first, head) = head_of(graph, steps)?;
        Ok(Source { graph, steps, head, first })
    }
}

/// State that all programs of a plan share.
struct Planner<'a> {
    request: &'a Request<'a>,
    source: Source<'a>,
    context: u32,
    storage: KvStorage,
    jobs: Jobs,
    matrices: Vec<WeightId>,
    vectors: Vec<WeightId>,
}

/// Matrices with repack jobs, bytes of each, vectors, and total bytes.
type Weights = (Vec<(WeightId, Option<JobId>)>, Vec<u64>, Vec<WeightId>, u64);

impl<'a> Planner<'a> {
    fn new(request: &'a Request<'a>, source: Source<'a>) -> Result<Self, PlanError> {
        let options = request.options;
        let context = request.context();
        let context = u32::try_from(context).map_err(|_| PlanError::Context(context))?;
        // On a GPU `--precise` means f16: prompts use f16 products.
        let storage = match options.kv_stored() {
            KvType::F32 | KvType::F16 => KvStorage::F16,
            KvType::Q8_0 => KvStorage::Q8_0,
        };
        let (jobs, matrices, vectors) = (Jobs::default(), vec![], vec![]);
        Ok(Planner { request, source, context, storage, jobs, matrices, vectors })
    }

    fn program(&mut self, what: ProgramPurpose) -> Result<Program, PlanError> {
        self.program_of(self.source, what)
    }

    fn program_of(
        &mut self,
        source: Source<'_>,
        what: ProgramPurpose,
    ) -> Result<Program, PlanError> {
        let &Request { target, keep, tuned, .. } = self.request;
        let Source { graph, steps: all, head, first } = source;
        // The input of the steps that compute logits must be kept. In prompt programs no other step
        // reads it.
        let (tokens, steps, kept) = match what {
            ProgramPurpose::Token => (1, all, keep.to_vec()),
            ProgramPurpose::Batch(n) | ProgramPurpose::Columns(n) => (n, all, keep.to_vec()),
            ProgramPurpose::Drafts => (DRAFTED, all, keep.to_vec()),
            ProgramPurpose::Prompt(n) => {
                let body = all.get(..first).unwrap_or(all);
                (n, body, keep.iter().copied().chain([head, graph.logits]).collect())
            }
        };
        let mut lower = Lower {
            graph,
            target: target.clone(),
            tuned,
            context: self.context,
            storage: self.storage,
            paged: self.request.options.paged.is_some(),
            jobs: &mut self.jobs,
            matrices: &mut self.matrices,
            vectors: &mut self.vectors,
            program: Builder::new(graph, all, tokens, &kept),
            reproducible: self.request.options.reproducible,
            apart: what == ProgramPurpose::Drafts
                || self.request.options.reproducible && matches!(what, ProgramPurpose::Prompt(_)),
            batch: matches!(
                what,
                ProgramPurpose::Batch(_) | ProgramPurpose::Columns(_) | ProgramPurpose::Drafts
            ),
            drafted: what == ProgramPurpose::Drafts,
            products: vec![],
            in_form: HashMap::new(),
            groups: HashMap::new(),
            later: &[],
        };
        for (i, step) in steps.iter().enumerate() {
            lower.program.step(i);
            lower.later = all.get(i + 1..).unwrap_or(&[]);
            match what {
                _ if lower.reproducible => lower.reproducible_step(step)?,
                ProgramPurpose::Token | ProgramPurpose::Columns(_) => lower.decode_step(step)?,
                ProgramPurpose::Batch(_) | ProgramPurpose::Drafts => lower.batch_step(step)?,
                ProgramPurpose::Prompt(_) => lower.prompt_step(step)?,
            }
        }
        if !matches!(what, ProgramPurpose::Prompt(_)) && !graph.makes_rows() {
            lower.choices()?;
        }
        let head = lower.buffer_of(head)?;
        let products = lower.products.into_iter().map(|(used, ..)| used).collect();
        Ok(lower.program.finish(products, head, first))
    }

    /// The persistent kernels for `from` to two sequences, or the reason why there are none.
    fn one_launches(
        &mut self,
        decode: &Program,
        from: usize,
        sequences: usize,
    ) -> Result<(Vec<PersistentKernel>, Option<String>), PlanError> {
        let &Request { target, options, .. } = self.request;
        if !decode.pauses.is_empty() {
            return Ok((vec![], Some("the CPU computes a part of each token".to_owned())));
        }
        let mut all = vec![];
        for n in from..=sequences.min(SIDE_BY_SIDE) {
            let one = match sequences {
                1 => PersistentKernel::of(decode, self.jobs.all(), target, options.probe),
                _ => self.of_columns(n as u32)?,
            };
            match one {
                Ok(one) => all.push(one),
                Err(why) if n == from => return Ok((vec![], Some(why))),
                // Shared memory is too small for this number of columns.
                Err(_) => break,
            }
        }
        Ok((all, None))
    }

    /// A persistent kernel for one token of each of `n` sequences with slots.
    fn of_columns(&mut self, n: u32) -> Result<Result<PersistentKernel, String>, PlanError> {
        let &Request { graph, target, options, .. } = self.request;
        let before = self.jobs.clone();
        let program = self.program(ProgramPurpose::Columns(n));
        let jobs = std::mem::replace(&mut self.jobs, before);
        let mut program = match program {
            Ok(program) => program,
            Err(PlanError::Unsupported { what, why }) => return Ok(Err(format!("{what}: {why}"))),
            Err(other) => return Err(other),
        };
        let [mut adjust, mut greedy, mut draw] = choices(graph, &mut program)?;
        let one = match PersistentKernel::of(&program, jobs.all(), target, options.probe) {
            Ok(one) => one,
            Err(why) => return Ok(Err(why)),
        };
        // The logits of a prompt's last row and the choice stay separate launches.
        program.launches.drain(..program.head_from.min(program.launches.len()));
        program.head_from = 0;
        for launch in
            program.launches.iter_mut().chain(&mut adjust).chain(&mut greedy).chain(&mut draw)
        {
            let Some(job) = jobs.all().get(launch.job.0 as usize) else { continue };
            launch.job = self.jobs.intern(job.clone());
        }
        let own = Some(Box::new(Batch { program, adjust, greedy, draw }));
        Ok(Ok(PersistentKernel { own, ..one }))
    }

    /// The prompt program for which experts are copied, if the CPU computes them for single tokens.
    /// `None` if it was not requested, or if it has no kernels.
    fn copying(&mut self, chunk: usize) -> Result<Option<Program>, PlanError> {
        let &Request { graph, options, .. } = self.request;
        let whole =
            merge_host_experts(graph).filter(|_| options.host_prompts != HostPrompts::Compute);
        let (Some(whole), Some(&tokens)) = (whole, chunks(chunk).last()) else { return Ok(None) };
        if fit::check(&whole).is_err() {
            return Ok(None);
        }
        let steps = fuse(&whole);
        let source = Source::of(&whole, &steps)?;
        let before = (self.jobs.clone(), self.matrices.clone(), self.vectors.clone());
        match self.program_of(source, ProgramPurpose::Prompt(tokens)) {
            Ok(program) => Ok(Some(program)),
            Err(PlanError::Unsupported { .. }) => {
                (self.jobs, self.matrices, self.vectors) = before;
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }

    /// The prompt programs, or the reason why there are none. If there are none, no prompt kernel
    /// is compiled.
    fn prompts(&mut self, chunk: usize) -> Result<(Vec<Program>, Option<String>), PlanError> {
        let before = self.jobs.clone();
        let (mut prompts, mut none) = (vec![], None);
        for tokens in chunks(chunk) {
            match self.program(ProgramPurpose::Prompt(tokens)) {
                Ok(p) => prompts.push(p),
                Err(PlanError::Unsupported { what, why }) => none = Some(format!("{what}: {why}")),
                Err(other) => return Err(other),
            }
        }
        if none.is_some() {
            prompts.clear();
            self.jobs = before;
        }
        Ok((prompts, none))
    }

    /// The program for the rows of an image that attend to each other, or the reason why there is
    /// none. `longest` is the prompt program for the most tokens.
    fn image(
        &mut self,
        rows: usize,
        longest: Option<&Program>,
    ) -> Result<Result<Program, String>, PlanError> {
        let &Request { graph, options, .. } = self.request;
        let Some(longest) = longest else {
            return Ok(Err("this card has no kernels for prompts of the model".to_owned()));
        };
        if options.reproducible {
            return Ok(Err("--reproducible computes tokens in their order".to_owned()));
        }
        let tokens = u32::try_from(rows).unwrap_or(u32::MAX);
        // Exchanges between devices have room for the longest prompt.
        if tokens > longest.tokens {
            let chunk = longest.tokens;
            let why =
                format!("an image has {rows} rows, a pass {chunk}: give --prefill-chunk {rows}");
            return Ok(Err(why));
        }
        let whole = match graph.with_rows_that_see_each_other(rows) {
            Ok(whole) => whole,
            Err(why) => return Ok(Err(why)),
        };
        let steps = fuse(&whole);
        let source = Source::of(&whole, &steps)?;
        let before = (self.jobs.clone(), self.matrices.clone(), self.vectors.clone());
        match self.program_of(source, ProgramPurpose::Prompt(tokens)) {
            Ok(program) => Ok(Ok(program)),
            Err(PlanError::Unsupported { what, why }) => {
                (self.jobs, self.matrices, self.vectors) = before;
                Ok(Err(format!("{what}: {why}")))
            }
            Err(other) => Err(other),
        }
    }

    /// The program that verifies drafts. `None` for a model whose state is written while it is read
    /// (latents) or that cannot drop rejected tokens, and for a model with several stages.
    fn drafts(&mut self) -> Result<Option<Batch>, PlanError> {
        let graph = self.request.graph;
        let apart = |s: &Step| matches!(s, Step::Latent { .. });
        let whole =
            !graph.feeds_next_stage && !graph.ops.iter().any(|op| matches!(op, Op::InputRows(_)));
        if graph.is_recurrent()
            || !whole
            || self.source.steps.iter().any(apart)
            || self.context <= DRAFTED
        {
            return Ok(None);
        }
        let before = self.jobs.clone();
        let mut program = match self.program(ProgramPurpose::Drafts) {
            Ok(program) => program,
            Err(PlanError::Unsupported { .. }) => {
                self.jobs = before;
                return Ok(None);
            }
            Err(other) => return Err(other),
        };
        // The program can only choose greedily. The host chooses for sequences that draw or adjust
        // logits.
        let [_, greedy, _] = choices(graph, &mut program)?;
        Ok(Some(Batch { program, adjust: None, greedy, draw: None }))
    }

    fn weights(&mut self) -> Result<Weights, PlanError> {
        let &Request { graph, target, .. } = self.request;
        let (mut bytes, mut matrices, mut each) = (0, vec![], vec![]);
        for &id in &self.matrices {
            let w = graph.weight(id);
            let fail = |source| PlanError::Layout { name: w.name.clone(), source };
            let layout = Layout::new(w.format, w.cols).map_err(fail)?;
            let all = layout.bytes(w.rows, w.experts).map_err(fail)? as u64;
            bytes += all.next_multiple_of(ALIGN);
            each.push(all);
            matrices.push((id, repack(&mut self.jobs, w.name.as_str(), layout, target)?));
        }
        let mut vectors = std::mem::take(&mut self.vectors);
        vectors.sort_unstable();
        vectors.dedup();
        for &id in &vectors {
            let w = graph.weight(id);
            bytes += (4 * (w.rows * w.cols) as u64).next_multiple_of(ALIGN);
        }
        Ok((matrices, each, vectors, bytes))
    }

    /// Bytes of keys and of values of each cache, for one slot or page.
    fn caches(&self) -> Result<Vec<[u64; 2]>, PlanError> {
        let graph = self.request.graph;
        let bytes = |(c, id): (&State, u32)| {
            match c.kind {
                StateKind::Remote => return Ok([0, 0]),
                StateKind::Recurrent { elems } => return Ok([recurrent_bytes(elems), 0]),
                StateKind::Kv(_) | StateKind::Latent { .. } => {}
            }
            let positions =
                if self.request.options.paged.is_some() { PAGE } else { self.request.context() };
            let bytes = kv_layout(graph, StateId(id), self.storage).bytes(positions);
            let keys = bytes
                .ok_or_else(|| unsupported(&c.name, "its cache is too large to address"))?
                as u64;
            // Latents are both keys and values.
            Ok([keys, if graph.kv(StateId(id)).is_some() { keys } else { ALIGN }])
        };
        graph.states.iter().zip(0..).map(bytes).collect()
    }
}

/// The first of the steps that compute logits (a projection), and its input. The input is the only
/// value that these steps read from earlier steps. Element-wise steps may follow the projection
/// (factors, a cap). With adapters, the other products of the same input may follow too.
fn head_of(graph: &Graph, steps: &[Step]) -> Result<(usize, ValueId), PlanError> {
    // Only the last stage computes logits.
    if graph.makes_rows() {
        return Ok((steps.len(), graph.logits));
    }
    let not_at_end = || unsupported("logits", "the last step is not a projection");
    let mut projections = steps
        .iter()
        .enumerate()
        .rev()
        .filter_map(|(i, step)| if let Step::Project { .. } = step { Some(i) } else { None })
        .peekable();
    if projections.peek().is_none() {
        return Err(unsupported("the model", "the last projection is missing"));
    }
    for first in projections {
        let tail = steps.get(first..).unwrap_or_default();
        let fits = |step: &Step| {
            let adapted = matches!(step, Step::Single(Op::AdapterScale(_) | Op::Add(_)));
            let mapped = matches!(step, Step::Map { .. } | Step::Reduce { .. });
            matches!(step, Step::Project { .. }) || mapped || adapted
        };
        let made: Vec<ValueId> = tail.iter().flat_map(Step::writes).collect();
        let mut reads: Vec<ValueId> = tail.iter().flat_map(Step::reads).collect();
        reads.retain(|v| !made.contains(v));
        reads.sort_unstable();
        reads.dedup();
        if !tail.iter().all(fits) || made.last() != Some(&graph.logits) {
            return Err(not_at_end());
        }
        match *reads {
            [head] => return Ok((first, head)),
            // A product of an adapter's pair also reads results of earlier products.
            _ if !graph.adapters.is_empty() => {}
            _ => break,
        }
    }
    Err(not_at_end())
}

/// Removes the adjustment and the two choices from the end of a program with logits.
fn choices(graph: &Graph, program: &mut Program) -> Result<[Option<Launch>; 3], PlanError> {
    if graph.makes_rows() {
        return Ok([None, None, None]);
    }
    let (draw, greedy, adjust) =
        (program.launches.pop(), program.launches.pop(), program.launches.pop());
    match (&adjust, &greedy, &draw) {
        (Some(_), Some(_), Some(_)) => Ok([adjust, greedy, draw]),
        _ => Err(unsupported("logits", "the graph has no steps")),
    }
}

/// Sizes of the prompt programs for chunks up to `chunk` tokens: short prompts use smaller tiles.
fn chunks(chunk: usize) -> Vec<u32> {
    const SHORT_PROMPT: u32 = 64;
    match u32::try_from(chunk).unwrap_or(u32::MAX) {
        0 | 1 => vec![],
        n if n <= SHORT_PROMPT => vec![n],
        n => vec![SHORT_PROMPT, n],
    }
}

/// The repack job of a matrix; `None` if the device uses the file's layout.
fn repack(
    jobs: &mut Jobs,
    name: &str,
    layout: Layout,
    target: &Target,
) -> Result<Option<JobId>, PlanError> {
    if layout.block().is_none() && layout.format.row_bytes(layout.cols) == Some(layout.row_bytes) {
        return Ok(None);
    }
    let spec = RepackSpec { layout };
    if let Some(made) = jobs.known(&spec.clone().into()) {
        return Ok(Some(made.job));
    }
    let kernel = spec.kernel(target).map_err(|e| unsupported(name, e))?;
    let job = kernel.job(target);
    Ok(Some(jobs.make(spec.into(), kernel, job).job))
}
