//! Kernels of rows: element-wise operations and folds of each row in one launch (softmax, norms).
//! A row of up to 16 elements a thread is held in registers; a longer one is read again for each
//! fold, from the caches if it fits them.

use super::render::{self, Rendered, Writer, computed, stored, to_stored};
use crate::dtype::{DType, Kind};
use crate::element::FoldOp;
use crate::program::{Instr, Map, Program, Reg, Step};
use crate::shape::strides;
use kjit_engine::{Constants, Job, Options, Target};
use std::fmt::Write;

/// Elements of a thread beyond which a row is read again.
const MOST_HELD: usize = 16;

/// How a block's threads share rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Team {
    /// Threads of a row.
    pub threads: u32,
    /// Elements of a thread that are held in registers; 0: none.
    held: u32,
}

impl Team {
    pub(super) fn of(length: usize) -> Team {
        let threads = match length {
            ..=64 => 16,
            65..=512 => 64,
            513..=8192 => 256,
            _ => 1024,
        };
        let each = length.div_ceil(threads as usize).next_power_of_two();
        Team { threads, held: if each <= MOST_HELD { each as u32 } else { 0 } }
    }

    pub(super) const fn block(self) -> u32 {
        if self.threads > 256 { self.threads } else { 256 }
    }
}

/// The registers that an instruction reads.
fn inputs(instr: &Instr) -> Vec<Reg> {
    match *instr {
        Instr::Unary(_, x) | Instr::Cast(x) | Instr::Fold(_, x) => vec![x],
        Instr::Gather { index, .. } => vec![index],
        Instr::Binary(_, a, b) => vec![a, b],
        Instr::Where(c, a, b) => vec![c, a, b],
        Instr::Constant(_)
        | Instr::Load(..)
        | Instr::Index(_)
        | Instr::Random { .. }
        | Instr::Given(_) => Vec::new(),
    }
}

/// Facts about each step of a program of rows.
struct Steps {
    /// Number of folds, one after the other, that a step needs before it.
    level: Vec<usize>,
    /// Whether a step has one value in a row.
    uniform: Vec<bool>,
}

impl Steps {
    fn of(program: &Program) -> Steps {
        let kept = program.shape.len() - program.folded.min(program.shape.len());
        let along = |id: usize| {
            let map = program.maps.get(id);
            map.is_some_and(|m| m.strides.iter().skip(kept).any(|s| *s != 0))
        };
        let mut steps = Steps { level: Vec::new(), uniform: Vec::new() };
        for step in &program.steps {
            let read = inputs(&step.instr);
            let level = read.iter().filter_map(|r| steps.level.get(*r)).max().copied().unwrap_or(0);
            let fold = matches!(step.instr, Instr::Fold(..));
            let own = match step.instr {
                Instr::Load(_, map) | Instr::Index(map) => !along(map),
                Instr::Gather { map, .. } | Instr::Random { map, .. } => !along(map),
                _ => true,
            };
            let read = read.iter().all(|r| steps.uniform.get(*r).copied().unwrap_or(true));
            steps.level.push(level + usize::from(fold));
            steps.uniform.push(fold || (own && read));
        }
        steps
    }

    fn level(&self, reg: Reg) -> usize {
        self.level.get(reg).copied().unwrap_or(0)
    }

    fn is_uniform(&self, reg: Reg) -> bool {
        self.uniform.get(reg).copied().unwrap_or(true)
    }

    /// The steps with one value for each element that `targets` need, in order, without those that
    /// `have` holds already.
    fn needed(&self, program: &Program, targets: &[Reg], have: &[Reg]) -> Vec<Reg> {
        let mut wanted = vec![false; program.steps.len()];
        targets.iter().for_each(|t| mark(&mut wanted, *t));
        for reg in (0..program.steps.len()).rev() {
            if wanted.get(reg) != Some(&true) || have.contains(&reg) || self.is_uniform(reg) {
                continue;
            }
            if let Some(step) = program.steps.get(reg) {
                inputs(&step.instr).iter().for_each(|r| mark(&mut wanted, *r));
            }
        }
        let is = |reg: &Reg| wanted.get(*reg) == Some(&true) && !self.is_uniform(*reg);
        (0..program.steps.len()).filter(is).collect()
    }
}

fn mark(list: &mut [bool], at: usize) {
    if let Some(slot) = list.get_mut(at) {
        *slot = true;
    }
}

/// The accumulator of a fold, its first value, and the expression of `a` and `b`. Extremes start
/// with the first element.
fn joining(op: FoldOp, dtype: DType) -> (&'static str, &'static str, &'static str) {
    let kept = match (dtype.kind(), op) {
        (Kind::Float, FoldOp::Sum | FoldOp::Prod) => "f64",
        _ => computed(dtype),
    };
    match op {
        FoldOp::Sum => (kept, "0", "op_add(a, b)"),
        FoldOp::Prod => (kept, "1", "op_multiply(a, b)"),
        FoldOp::Max => (kept, "", "op_maximum(a, b)"),
        _ => (kept, "", "op_minimum(a, b)"),
    }
}

/// The state of the fold that is step `reg`.
fn state(reg: Reg, op: FoldOp, dtype: DType) -> String {
    let (kept, first, join) = joining(op, dtype);
    let (first, test) = match first {
        "" => ("0", "if (!y.any) return x;\n    if (!x.any) return y;\n    "),
        first => (first, ""),
    };
    // `any` has the width of a word, and the state that of whole words.
    let any = if matches!(kept, "f64" | "i64" | "u64") { "u64" } else { "u32" };
    let pad = if matches!(kept, "u8" | "i8" | "u16" | "i16") { "alignas(4) " } else { "" };
    format!(
        "struct State{reg} {{ {pad}{kept} v; {any} any; }};\n\
         STEP State{reg} join(State{reg} x, State{reg} y) {{\n\
         \x20   {test}const {kept} a = x.v, b = y.v;\n\
         \x20   return State{reg}{{{join}, 1}};\n}}\n\
         STEP State{reg} none{reg}() {{ return State{reg}{{({kept}){first}, 0}}; }}\n\
         STEP State{reg} one{reg}({c} v) {{ return State{reg}{{({kept})v, 1}}; }}\n",
        c = computed(dtype)
    )
}

/// A kernel of rows during rendering.
struct Kernel<'a> {
    w: Writer<'a>,
    program: &'a Program,
    steps: Steps,
    team: Team,
    body: String,
    /// Steps whose values are in registers, for each element of a thread.
    held: Vec<Reg>,
    /// The expressions of the row's length and of the axes of a row.
    length: String,
    along: String,
}

impl Kernel<'_> {
    fn step(&self, reg: Reg) -> Option<Step> {
        self.program.steps.get(reg).copied()
    }

    /// The steps with one value in the row, of one level.
    fn uniform(&mut self, level: usize) {
        for reg in 0..self.program.steps.len() {
            let Some(step) = self.step(reg) else { continue };
            let fold = matches!(step.instr, Instr::Fold(..));
            if self.steps.level(reg) == level && self.steps.is_uniform(reg) && !fold {
                let value = self.w.rounded(reg, &step);
                let of = computed(step.dtype);
                _ = writeln!(self.body, "    const {of} v{reg} = {value};");
            }
        }
    }

    /// A loop over the row that computes `targets`; `each` uses them. Values that `later` needs
    /// are held.
    fn pass(&mut self, targets: &[Reg], later: &[Reg], each: &str) {
        let needed = self.steps.needed(self.program, targets, &self.held);
        let keeps: Vec<Reg> = match self.team.held {
            0 => Vec::new(),
            _ => needed.iter().copied().filter(|r| later.contains(r)).collect(),
        };
        let held = self.team.held;
        for reg in keeps.iter().filter(|r| !self.held.contains(r)) {
            let of = self.step(*reg).map_or("float", |s| computed(s.dtype));
            _ = writeln!(self.body, "    {of} h{reg}[{held}];");
        }
        let (team, index) = (self.team.threads, self.w.index());
        let (open, first) = match held {
            0 => (
                format!(
                    "    for ({index} k = lane; live && k < {}; k += {team}) {{\n",
                    self.length
                ),
                String::new(),
            ),
            n => (
                format!("    UNROLL for (u32 i = 0; i < {n}; i++) {{\n"),
                format!(
                    "        const {index} k = lane + i * {team};\n\
                     \x20       if (!live || k >= {}) break;\n",
                    self.length
                ),
            ),
        };
        self.body += &(open + &first + &self.along);
        for reg in needed {
            let Some(step) = self.step(reg) else { continue };
            let of = computed(step.dtype);
            if self.held.contains(&reg) {
                _ = writeln!(self.body, "        const {of} v{reg} = h{reg}[i];");
                continue;
            }
            let value = self.w.rounded(reg, &step);
            _ = writeln!(self.body, "        const {of} v{reg} = {value};");
            if keeps.contains(&reg) {
                _ = writeln!(self.body, "        h{reg}[i] = v{reg};");
            }
        }
        self.body += each;
        self.body += "    }\n";
        for reg in keeps {
            if !self.held.contains(&reg) {
                self.held.push(reg);
            }
        }
    }
}

/// The kernel of a program of rows; `to` is the position of each element in the result.
pub(super) fn render(program: &Program, to: &Map, team: Team) -> Rendered {
    let mut w = Writer::new(program, render::narrow(program, &[to]));
    let index = w.index();
    let (count, length) = program.sizes();
    let (rows, length) = (w.size(count as i64), w.size(length as i64));
    let split = program.shape.len() - program.folded.min(program.shape.len());
    // Indices of the axes of the rows, and along a row; the last axis varies fastest.
    let mut digits = |range: std::ops::Range<usize>, indent: &str, from: &str| {
        let mut text = format!("{indent}{index} rest{} = {from};\n", range.start);
        for (k, n) in program.shape.iter().enumerate().take(range.end).skip(range.start).rev() {
            if k == range.start {
                _ = writeln!(text, "{indent}const {index} x{k} = rest{};", range.start);
            } else {
                let n = w.size(*n as i64);
                _ = writeln!(
                    text,
                    "{indent}const {index} x{k} = index_rest(rest{}, {n});",
                    range.start
                );
            }
        }
        text + &format!("{indent}(void)rest{};\n", range.start)
    };
    let across = if split > 0 { digits(0..split, "    ", "live ? row : 0") } else { String::new() };
    let along = digits(split..program.shape.len(), "        ", "k");
    let steps = Steps::of(program);
    let folds: Vec<(Reg, FoldOp, Reg)> = program
        .steps
        .iter()
        .enumerate()
        .filter_map(|(at, s)| match s.instr {
            Instr::Fold(op, x) => Some((at, op, x)),
            _ => None,
        })
        .collect();
    let states: String =
        folds.iter().map(|(at, op, x)| state(*at, *op, program.dtype_of(*x))).collect();
    w.line("#include \"rows.h\"");
    w.line(&states);
    let mut k =
        Kernel { w, program, steps, team, body: String::new(), held: Vec::new(), length, along };
    let last = folds.iter().map(|(at, ..)| k.steps.level(*at)).max().unwrap_or(0);
    for level in 0..last {
        k.uniform(level);
        let now: Vec<_> = folds.iter().filter(|f| k.steps.level(f.0) == level + 1).collect();
        let mut each = String::new();
        for (at, _, x) in &now {
            _ = writeln!(k.body, "    State{at} s{at} = none{at}();");
            _ = writeln!(each, "        s{at} = join(s{at}, one{at}(v{x}));");
        }
        let targets: Vec<Reg> = now.iter().map(|f| f.2).collect();
        // Values of this level that later passes need.
        let mut later: Vec<Reg> = folds
            .iter()
            .filter(|f| k.steps.level(f.0) > level + 1)
            .map(|f| f.2)
            .chain([program.out])
            .collect();
        later = k.steps.needed(program, &later, &k.held);
        k.pass(&targets, &later, &each);
        for (at, op, x) in now {
            let of = program.dtype_of(*x);
            let sum =
                format!("({})team_fold<{}>(s{at}, (State{at}*)pool).v", computed(of), team.threads);
            let value = match (of, op) {
                (DType::F16, FoldOp::Sum | FoldOp::Prod) => format!("round_half({sum})"),
                (DType::BF16, FoldOp::Sum | FoldOp::Prod) => format!("round_bfloat({sum})"),
                _ => sum,
            };
            _ = writeln!(k.body, "    const {} v{at} = {value};", computed(of));
        }
    }
    k.uniform(last);
    let dtype = program.dtype();
    let packed = to.offset == 0 && to.strides == strides(&program.shape);
    let place = match packed {
        true => format!("row * {} + k", k.length),
        false => k.w.place(to),
    };
    let store =
        format!("        to[{place}] = {};\n", to_stored(dtype, &format!("v{}", program.out)));
    k.pass(&[program.out], &[], &store);
    let (threads, out) = (team.threads, stored(dtype));
    let kernel = format!(
        "KERNEL rows(Numbers p, {out}* to{types}) {{\n\
         \x20   LDS_ARRAY(u64, pool, 2 * kj_waves);\n\
         \x20   const u32 team = thread_id() / {threads}, lane = thread_id() % {threads};\n\
         \x20   const {index} row = ({index})block_id() * (KJ_BLOCK / {threads}) + team;\n\
         \x20   const bool live = row < {rows};\n{across}{body}    (void)pool;\n}}\n",
        types = render::buffers(program, true),
        body = k.body,
    );
    let blocks = count.div_ceil((team.block() / team.threads) as usize);
    render::whole(k.w, &kernel, blocks)
}

/// The compile job of a rendered text.
pub(super) fn job(text: &str, team: Team, target: &Target) -> Job {
    let source =
        super::launch::source("rows", text).file("rows.h", include_str!("../../gpu/rows.h"));
    let constants = Constants::new().set("KJ_BLOCK", team.block());
    Job::new(source, constants, Options::wave(target.default_wave()), target.clone())
}

/// The compile job of a program of rows.
pub(super) fn rows_job(program: &Program, to: &Map, target: &Target) -> Job {
    let team = Team::of(program.sizes().1);
    job(&render(program, to, team).text, team, target)
}
