//! Kernels of rows: element-wise operations and folds of each row in one launch (softmax, norms). A
//! thread reads and writes packs of up to sixteen bytes; all loads of a pass are issued before the
//! first value is used. A row of up to 32 elements a thread is held in registers; a longer one is
//! read again for each fold, from the caches if it fits them.

use super::render::{self, Rendered, Writer, computed, stored, to_stored};
use crate::dtype::{DType, Kind};
use crate::element::FoldOp;
use crate::memory::Store;
use crate::program::{Instr, Map, Program, Reg, Step};
use crate::shape::strides;
use kjit_engine::{Constants, Job, Options, Target};
use std::fmt::Write;

/// Elements of a thread beyond which a row is read again.
const MOST_HELD: usize = 32;
/// Elements of a thread to aim at.
const AIM: usize = 16;
/// Packs of a thread that are read together if the row is not in registers, or already is.
const AT_ONCE: usize = 2;

/// How a block's threads share rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Team {
    /// Threads of a row.
    pub threads: u32,
    /// Elements of a pack, which are neighbours in a row.
    wide: usize,
    /// Packs of a thread that are held in registers; 0: none.
    held: usize,
}

impl Team {
    pub(super) fn of(program: &Program, to: &Map) -> Team {
        let (_, length) = program.sizes();
        let wide = [8, 4, 2].into_iter().find(|w| fits(program, to, *w)).unwrap_or(1);
        let threads = length.div_ceil(AIM).next_power_of_two().clamp(8, 1024);
        let packs = length.div_ceil(threads * wide).next_power_of_two();
        let held = if packs * wide <= MOST_HELD { packs } else { 0 };
        Team { threads: threads as u32, wide, held }
    }

    pub(super) const fn block(self) -> u32 {
        if self.threads > 256 { self.threads } else { 256 }
    }
}

/// Whether a map has neighbours along the row that form packs of `wide` elements.
fn has_packs(map: &Map, wide: usize) -> bool {
    let own = map.strides.split_last().is_some_and(|(last, rest)| {
        *last == 1 && rest.iter().all(|s| s.unsigned_abs().is_multiple_of(wide as u64))
    });
    own && map.offset.unsigned_abs().is_multiple_of(wide as u64)
}

/// Whether the rows of a program are whole packs: all that it reads and writes along a row.
fn fits(program: &Program, to: &Map, wide: usize) -> bool {
    let mut smallest = program.dtype().size();
    let mut any = false;
    for step in &program.steps {
        let Instr::Load(leaf, map) = step.instr else { continue };
        let (Some(leaf), Some(map)) = (program.leaves.get(leaf), program.maps.get(map)) else {
            return false;
        };
        if map.strides.last() != Some(&1) {
            continue;
        }
        smallest = smallest.min(leaf.dtype.size());
        any = true;
        // Device memory starts at a multiple of 256 bytes; memory of other libraries may not.
        let base = match &leaf.buffer.store {
            Store::Gpu(_, memory) => memory.address().is_multiple_of(16),
            Store::Host(_) => true,
        };
        if !base || !has_packs(map, wide) {
            return false;
        }
    }
    let whole = program.shape.last().is_some_and(|n| n.is_multiple_of(wide));
    any && whole && wide * smallest <= 16 && has_packs(to, wide)
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

    /// The steps per element that `targets` need and `have` lacks, in order.
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

/// The accumulator of a fold, its neutral value, and the function of two values.
fn joining(op: FoldOp, dtype: DType) -> (&'static str, String, &'static str) {
    let (own, float) = (computed(dtype), dtype.kind() == Kind::Float);
    let kept = match op {
        FoldOp::Sum | FoldOp::Prod if float => "f64",
        _ => own,
    };
    let limit = |sign: &str, end: &str| match float {
        true => format!("({own})({sign}m_inf())"),
        false => format!("Limits<{own}>::{end}()"),
    };
    match op {
        FoldOp::Sum => (kept, "0".to_owned(), "op_add"),
        FoldOp::Prod => (kept, "1".to_owned(), "op_multiply"),
        FoldOp::Max => (kept, limit("-", "low"), "op_maximum"),
        _ => (kept, limit("", "high"), "op_minimum"),
    }
}

/// The state of the fold that is step `reg`. A pack is joined in the dtype of its elements, packs
/// in that of the state.
fn state(reg: Reg, op: FoldOp, dtype: DType) -> String {
    let (kept, first, join) = joining(op, dtype);
    let c = computed(dtype);
    // Lanes exchange whole words.
    let pad = if matches!(kept, "u8" | "i8" | "u16" | "i16") { "alignas(4) " } else { "" };
    format!(
        "struct State{reg} {{ {pad}{kept} v; }};\n\
         STEP State{reg} join(State{reg} x, State{reg} y) {{\n\
         \x20   return State{reg}{{{join}(x.v, y.v)}};\n}}\n\
         STEP {c} join{reg}({c} a, {c} b) {{ return {join}(a, b); }}\n\
         STEP State{reg} none{reg}() {{ return State{reg}{{({kept}){first}}}; }}\n\
         template <u32 N> STEP State{reg} all{reg}(const {c} (&v)[N]) {{\n\
         \x20   {c} t[N];\n\
         \x20   UNROLL for (u32 i = 0; i < N; i++) t[i] = v[i];\n\
         \x20   UNROLL for (u32 n = N / 2; n > 0; n /= 2)\n\
         \x20       UNROLL for (u32 i = 0; i < n; i++) t[i] = join{reg}(t[i], t[i + n]);\n\
         \x20   return State{reg}{{({kept})t[0]}};\n}}\n"
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
    /// The expression of the row's length.
    length: String,
    /// The lines that find the index in each axis of a row from `k`; the last is that of a pack's
    /// first element.
    along: String,
    /// The last axis.
    last: usize,
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

    /// Whether a step is a load of packs: its leaf and its map.
    fn is_pack(&self, reg: Reg) -> Option<(usize, Map)> {
        let Instr::Load(leaf, map) = self.step(reg)?.instr else { return None };
        let map = self.program.maps.get(map)?;
        (map.strides.last() == Some(&1)).then(|| (leaf, map.clone()))
    }

    /// A loop over the row that computes `targets`. `each` uses an element's values and `behind`
    /// the values of a pack. Values that `later` needs are stored in registers.
    fn pass(&mut self, targets: &[Reg], later: &[Reg], [before, each, behind]: [&str; 3]) {
        let needed = self.steps.needed(self.program, targets, &self.held);
        let Team { threads, wide, held } = self.team;
        let keeps: Vec<Reg> = match held {
            0 => Vec::new(),
            _ => needed.iter().copied().filter(|r| later.contains(r)).collect(),
        };
        let new: Vec<Reg> = keeps.iter().copied().filter(|r| !self.held.contains(r)).collect();
        for reg in &new {
            let of = self.step(*reg).map_or("float", |s| computed(s.dtype));
            _ = writeln!(self.body, "    {of} h{reg}[{held}][{wide}];");
        }
        // All loads of the first pass are issued together.
        let first = self.held.is_empty();
        let packs = match held {
            0 => AT_ONCE * 8usize.div_ceil(wide).min(4),
            n if first => n,
            n => n.min(AT_ONCE),
        };
        let (index, length) = (self.w.index(), self.length.clone());
        let open = match held {
            0 => format!(
                "    for ({index} from = 0; from < {length}; from += {}) {{\n\
                 \x20       const {index} begin = from + lane * {wide};\n",
                packs * wide * threads as usize
            ),
            n => format!(
                "    UNROLL for (u32 pack = 0; pack < {n}; pack += {packs}) {{\n\
                 \x20       const {index} begin = (pack * {threads} + lane) * {wide};\n"
            ),
        };
        let place = format!(
            "            const {index} own = begin + u * {},\n\
             \x20               k = own < {length} ? own : {length} - {wide};\n",
            threads as usize * wide
        );
        self.body += &open;
        let loads: Vec<(Reg, usize, Map)> = needed
            .iter()
            .filter(|r| !self.held.contains(r))
            .filter_map(|r| self.is_pack(*r).map(|(leaf, map)| (*r, leaf, map)))
            .collect();
        let (last, along) = (self.last, self.along.clone());
        for (reg, leaf, _) in &loads {
            let of = self.program.leaves.get(*leaf).map_or("float", |l| stored(l.dtype));
            _ = writeln!(self.body, "        Pack<{of}, {wide}> l{reg}[{packs}];");
        }
        if !loads.is_empty() {
            _ = write!(
                self.body,
                "        UNROLL for (u32 u = 0; u < {packs}; u++) {{\n{place}{along}\
                 \x20           const {index} x{last} = first;\n            (void)x{last};\n"
            );
            for (reg, leaf, map) in &loads {
                let of = self.program.leaves.get(*leaf).map_or("float", |l| stored(l.dtype));
                let at = self.w.place(map);
                _ = writeln!(
                    self.body,
                    "            l{reg}[u] = *(const Pack<{of}, {wide}>*)(b{leaf} + ({at}));"
                );
            }
            self.body += "        }\n";
        }
        _ = write!(
            self.body,
            "        UNROLL for (u32 u = 0; u < {packs}; u++) {{\n{place}{along}\
             \x20           const {index} x{last} = first;\n\
             \x20           const bool inside = own < {length};\n\
             \x20           (void)x{last}, (void)inside;\n{before}\
             \x20           UNROLL for (u32 e = 0; e < {wide}; e++) {{\n\
             \x20           const {index} x{last} = first + e;\n            (void)x{last};\n"
        );
        let row = if held == 0 { "u" } else { "pack + u" };
        for reg in needed {
            let Some(step) = self.step(reg) else { continue };
            let of = computed(step.dtype);
            let value = if self.held.contains(&reg) {
                format!("h{reg}[{row}][e]")
            } else if loads.iter().any(|l| l.0 == reg) {
                match step.dtype {
                    DType::F16 | DType::BF16 => format!("load(l{reg}[u].v[e])"),
                    _ => format!("l{reg}[u].v[e]"),
                }
            } else {
                self.w.rounded(reg, &step)
            };
            _ = writeln!(self.body, "            const {of} v{reg} = {value};");
            if new.contains(&reg) {
                _ = writeln!(self.body, "            h{reg}[{row}][e] = v{reg};");
            }
        }
        _ = write!(self.body, "{each}            }}\n{behind}        }}\n    }}\n");
        self.held.extend(new);
    }
}

/// The kernel of a program of rows; `to` is the position of each element in the result.
pub(super) fn render(program: &Program, to: &Map, team: Team) -> Rendered {
    let mut w = Writer::new(program, render::narrow(program, &[to]));
    let index = w.index();
    let (count, length) = program.sizes();
    let (rows, length) = (w.size(count as i64), w.size(length as i64));
    let split = program.shape.len() - program.folded.min(program.shape.len());
    let last = program.shape.len().saturating_sub(1);
    // Indices of the axes across rows, and of the axes along a row. The last axis varies fastest.
    let mut digits = |range: std::ops::Range<usize>, indent: &str, from: &str| {
        let mut text = format!("{indent}{index} rest{} = {from};\n", range.start);
        for (k, n) in program.shape.iter().enumerate().take(range.end).skip(range.start).rev() {
            let name = if k == last { "first".to_owned() } else { format!("x{k}") };
            if k == range.start {
                _ = writeln!(text, "{indent}const {index} {name} = rest{};", range.start);
            } else {
                let n = w.size(*n as i64);
                _ = writeln!(
                    text,
                    "{indent}const {index} {name} = index_rest(rest{}, {n});",
                    range.start
                );
            }
        }
        text + &format!("{indent}(void)rest{};\n", range.start)
    };
    let across = if split > 0 { digits(0..split, "    ", "live ? row : 0") } else { String::new() };
    let along = digits(split..program.shape.len(), "            ", "k");
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
    let (body, held) = (String::new(), Vec::new());
    let mut k = Kernel { w, program, steps, team, body, held, length, along, last };
    let levels = folds.iter().map(|(at, ..)| k.steps.level(*at)).max().unwrap_or(0);
    for level in 0..levels {
        k.uniform(level);
        let now: Vec<_> = folds.iter().filter(|f| k.steps.level(f.0) == level + 1).collect();
        let [mut before, mut each, mut behind] = [const { String::new() }; 3];
        for (at, _, x) in &now {
            let of = computed(program.dtype_of(*x));
            _ = writeln!(k.body, "    State{at} s{at} = none{at}();");
            _ = writeln!(before, "            {of} f{at}[{}];", team.wide);
            _ = writeln!(each, "            f{at}[e] = v{x};");
            _ = writeln!(behind, "            if (inside) s{at} = join(s{at}, all{at}(f{at}));");
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
        k.pass(&targets, &later, [&before, &each, &behind]);
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
    k.uniform(levels);
    let (dtype, wide) = (program.dtype(), team.wide);
    let packed = to.offset == 0 && to.strides == strides(&program.shape);
    let (threads, out) = (team.threads, stored(dtype));
    let value = to_stored(dtype, &format!("v{}", program.out));
    // Whole packs are stored; `fits` has checked that they are contiguous in the result.
    let place = match packed {
        true => format!("row * {} + k", k.length),
        false => k.w.place(to),
    };
    let before = format!("            Pack<{out}, {wide}> result;\n");
    let each = format!("            result.v[e] = {value};\n");
    let behind = format!(
        "            if (live && inside) *(Pack<{out}, {wide}>*)(to + ({place})) = result;\n"
    );
    k.pass(&[program.out], &[], [&before, &each, &behind]);
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

/// The compile job of a rendered kernel.
pub(super) fn job(text: &str, team: Team, target: &Target) -> Job {
    let source =
        super::launch::source("rows", text).file("rows.h", include_str!("../../gpu/rows.h"));
    let constants = Constants::new().set("KJ_BLOCK", team.block());
    Job::new(source, constants, Options::wave(target.default_wave()), target.clone())
}

/// The compile job of a program of rows.
pub(super) fn rows_job(program: &Program, to: &Map, target: &Target) -> Job {
    let team = Team::of(program, to);
    job(&render(program, to, team).text, team, target)
}
