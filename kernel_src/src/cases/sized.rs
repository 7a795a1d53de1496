//! A case of any spec at the sizes at which it is timed: what must be right before its speed is worth a word.

use super::matvec::{EPS, prologue};
use super::sample::How;
use super::{Case, CaseArg, Expect, QUANTISED, Random, SINGLE, attend, experts, flash, floats, matvec, prompt, repack};
use super::{sample, small, strips};
use crate::activations::{Form, Prologue};
use crate::attend::AttendSpec;
use crate::elementwise::CombineSpec;
use crate::kernel::SpecError;
use crate::moe::{MoeSpec, MoeStep};
use crate::prepare::PrepareSpec;
use crate::read::ReadSpec;
use crate::sample::Choice;
use crate::spec::{MoeKernel, Spec};
use kjit_engine::Target;

/// What a launch depends on that is no part of a spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Size {
    /// New tokens (products with vectors and samplers have one a column); MiB for what only reads.
    pub tokens: usize,
    /// Tokens that are in the cache before them.
    pub past: usize,
}

/// Words of a row for the copies of rows, which know no width.
const WORDS: usize = 4096;
/// Rows of the matrix that is repacked, and of the table of an embedding: enough for every compute unit.
const ROWS: usize = 4096;
/// Positions that a sampler may move on: as often as a case is launched.
const MOVES: u32 = 4096;

/// A case of `spec` on a device of `units` compute units.
///
/// # Errors
/// As the family's.
pub fn sized(spec: &Spec, target: &Target, units: u32, size: Size, random: &mut Random) -> Result<Case, SpecError> {
    let wave = target.default_wave();
    let Size { tokens, past } = size;
    match spec {
        Spec::Matvec(s) => matvec::case(s, target, units, random),
        // Twice as many matrices as are chosen: what is not chosen is not read.
        Spec::Experts(s) => experts::experts(s, target, (units, 2 * s.top * s.tokens + 1), random),
        Spec::Gemm(s) if s.experts > 1 => {
            let tile = s.tuning(target)?.tokens() as usize;
            let tiles = s.experts * s.tokens.div_ceil(tile).max(1);
            let chosen: Vec<Option<usize>> = (0..tiles).map(|t| Some(t * s.experts / tiles)).collect();
            prompt::product(s, target, (0, units), &chosen, random)
        }
        Spec::Gemm(s) => prompt::product(s, target, (tokens, units), &[], random),
        Spec::Strips(s) => strips::product(s, target, s.tokens, random),
        Spec::Attend(s) => attended(s, target, units, size, random),
        Spec::Flash(s) => flash::case(s, target, tokens, past, random),
        Spec::RopeKv(s) => attend::rope_kv(s, target, (wave, [tokens, past, past + tokens + 1]), random),
        Spec::Prepare(s) => prepare(s, target, tokens, random),
        Spec::Tiles(s) => {
            let source: Vec<u32> = if s.gather { (0..tokens as u32).rev().collect() } else { vec![] };
            prompt::tile(s, target, (wave, tokens), &source, random)
        }
        &Spec::Moe(MoeKernel { spec, step }) => {
            let [count, place, sum] = prompt::moe_steps(&spec, target, (wave, tokens), random)?;
            Ok(match step {
                MoeStep::Count => count,
                MoeStep::Place => place,
                MoeStep::Sum => sum,
            })
        }
        Spec::Embed(s) => small::embed(s, target, (tokens, ROWS), random),
        Spec::Repack(s) => repack::case(s, target, (ROWS, s.blocks(ROWS as u64, units)), random),
        Spec::Norm(s) => small::norm(s, target, (wave, tokens), random),
        Spec::Softmax(s) => small::softmax(s.cols, target, (wave, tokens), random),
        Spec::Combine(s) => {
            let n = tokens * WORDS;
            small::combine(s.op, target, (n, CombineSpec::blocks(n as u64, units)), random)
        }
        Spec::Rows(_) => small::rows(target, WORDS, random),
        Spec::Route(s) => experts::route(s, target, (wave, tokens), random),
        Spec::ExpertSum(s) => experts::expert_sum(s, target, tokens, random),
        Spec::Read(s) => read(s, target, units, tokens, random),
        Spec::Sample(s) => {
            let logits = random.normals(s.vocab, 3.0);
            let how = |block| How { wave, block, blocks: s.blocks(units), capacity: MOVES };
            match s.choice {
                Choice::Largest => sample::argmax(target, how(s.kernel(target)?.block), s.vocab, &logits),
                Choice::Drawn => {
                    let usual = (40, 0.8, 0.95, 0.05);
                    sample::draw(target, how(s.kernel(target)?.block), s.vocab, &logits, usual, false, random)
                }
            }
        }
    }
}

fn attended(
    spec: &AttendSpec,
    target: &Target,
    units: u32,
    size: Size,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let sequences = size.tokens.max(1);
    let sizes = attend::Sizes {
        capacity: size.past + 1,
        positions: vec![size.past; sequences],
        splits: spec.splits(target, units, sequences as u32)?,
        scale: 1.0 / (spec.form.kv.head_dim as f32).sqrt(),
    };
    attend::attend(spec, target, &sizes, random)
}

fn prepare(spec: &PrepareSpec, target: &Target, columns: usize, random: &mut Random) -> Result<Case, SpecError> {
    let cols = spec.column.cols;
    let x = random.activations(columns * cols);
    let aux = match spec.prologue {
        Prologue::None => vec![],
        Prologue::Norm => random.normals(cols, 1.0),
        Prologue::Silu | Prologue::Gelu => random.normals(columns * cols, 1.0),
    };
    let mut want = vec![];
    for (i, x) in x.chunks(cols).enumerate() {
        let at = if spec.prologue == Prologue::Norm { 0 } else { i * cols };
        want.extend(prologue(spec.prologue, x, aux.get(at..).unwrap_or(&[])));
    }
    let tolerance = match spec.column.form {
        Form::Quantised { .. } => QUANTISED,
        Form::Plain { .. } => SINGLE,
    };
    let kernel = spec.kernel(target)?;
    Ok(Case {
        name: format!("prepare {columns} × {cols}, {:?}, {:?}", spec.column.form, spec.prologue),
        geometry: kernel.launch(columns as u32),
        kernel,
        args: vec![
            floats("x", &x),
            if aux.is_empty() { CaseArg::Null } else { floats("aux", &aux) },
            CaseArg::Buffer {
                name: "out",
                before: vec![0xff; columns * spec.column.bytes()],
                expect: Expect::Columns { column: spec.column, want, tolerance },
            },
            CaseArg::F32(EPS),
        ],
    })
}

/// `tokens` MiB, or as many vectors as a test wants.
fn read(
    spec: &ReadSpec,
    target: &Target,
    units: u32,
    mebibytes: usize,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let vectors = mebibytes << 16;
    let (kernel, blocks) = (spec.kernel(target)?, spec.blocks(vectors as u64, units));
    // A prime number of words in turn.
    let some: Vec<u8> = (0..4099).flat_map(|_| (random.bits() as u32).to_le_bytes()).collect();
    let mut x = some.repeat((16 * vectors).div_ceil(some.len()));
    x.truncate(16 * vectors);
    let threads = (blocks * kernel.block) as usize;
    let mut want = vec![0u32; threads];
    for (i, vector) in x.as_chunks::<16>().0.iter().enumerate() {
        want[i % threads] ^= vector.as_chunks::<4>().0.iter().fold(0, |all, word| all ^ u32::from_le_bytes(*word));
    }
    let bytes = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    Ok(Case {
        name: format!("read {mebibytes} MiB, {blocks} blocks"),
        geometry: kernel.launch(blocks),
        kernel,
        args: vec![
            super::input("x", x),
            CaseArg::Buffer { name: "out", before: vec![0xff; 4 * threads], expect: Expect::Bytes(bytes(&want)) },
            CaseArg::U64(vectors as u64),
            CaseArg::U32(blocks),
        ],
    })
}

/// What a launch must move and compute, at the least.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// Bytes of memory, each once.
    pub bytes: f64,
    /// Floating-point operations of products.
    pub operations: f64,
}

impl Spec {
    /// What a launch of a case of this size must move and compute.
    #[must_use]
    pub fn work(&self, case: &Case, size: Size) -> Work {
        let (tokens, past) = (size.tokens as f64, size.past as f64);
        let all = |case: &Case| -> f64 {
            let bytes = case.args.iter().map(|a| if let CaseArg::Buffer { before, .. } = a { before.len() } else { 0 });
            bytes.sum::<usize>() as f64
        };
        // Of the buffers that are only read in part, what is read.
        let (bytes, operations) = match self {
            Spec::Matvec(s) => {
                let rows: usize = s.segments.iter().map(|g| g.rows).sum();
                (all(case), 2.0 * (rows * s.cols * s.columns) as f64)
            }
            Spec::Experts(s) => {
                let lists = case.args.iter().filter(|a| matches!(a, CaseArg::Buffer { name: "w0" | "w1", .. })).count();
                let weights = |a: &CaseArg| match a {
                    CaseArg::Buffer { name: "w0" | "w1", before, .. } => before.len(),
                    _ => 0,
                };
                let stack = 2 * s.top * s.tokens + 1;
                let unread = case.args.iter().map(weights).sum::<usize>() as f64 / stack as f64;
                let read = (s.top * s.tokens) as f64;
                (all(case) - unread * (stack as f64 - read), 2.0 * read * (lists * s.rows * s.cols) as f64)
            }
            Spec::Gemm(s) => {
                let rows = if s.experts > 1 { s.experts as f64 * s.tokens as f64 } else { tokens };
                let each: usize = s.segments.iter().map(|g| g.rows).sum();
                (all(case), 2.0 * rows * (each * s.cols) as f64)
            }
            Spec::Attend(s) => {
                let seen = s.window.map_or(past + 1.0, |w| (past + 1.0).min(w as f64));
                let (heads, dim) = (s.form.heads as f64, s.form.kv.head_dim as f64);
                let kv = s.form.kv.bytes(seen as usize).unwrap_or(0) as f64;
                (2.0 * kv * tokens.max(1.0), 4.0 * heads * dim * seen * tokens.max(1.0))
            }
            Spec::Flash(s) => {
                let seen = |t: usize| s.window.map_or(size.past + t + 1, |w| (size.past + t + 1).min(w)) as f64;
                let pairs: f64 = (0..size.tokens).map(seen).sum();
                (all(case), 4.0 * s.heads as f64 * s.kv.head_dim as f64 * pairs)
            }
            Spec::Embed(s) => {
                let row = s.layout.row_bytes as f64 + 4.0 * s.layout.cols as f64;
                (tokens * row, 0.0)
            }
            Spec::Sample(s) => (4.0 * s.vocab as f64, 0.0),
            Spec::Moe(MoeKernel { spec: MoeSpec { top, cols, .. }, step: MoeStep::Sum }) => {
                (tokens * 4.0 * ((top + 2) * cols) as f64, 0.0)
            }
            Spec::Rows(_) => (8.0 * 4.0 * WORDS as f64, 0.0),
            _ => (all(case), 0.0),
        };
        Work { bytes, operations }
    }
}
