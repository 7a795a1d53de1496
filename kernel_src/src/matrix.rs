//! One of each kernel at the sizes of real models: what the compile matrix is made of, and what may not spill anywhere.

use crate::activations::{Column, Form, Prologue};
use crate::attend::{AttendSpec, HeadsForm, RopeForm, RopeKvSpec};
use crate::elementwise::{Combine, CombineSpec, RowsSpec};
use crate::embed::EmbedSpec;
use crate::experts::{ExpertFinish, ExpertSumSpec, ExpertsSpec, RouteSpec};
use crate::flash::{FlashSpec, FlashTuning};
use crate::format::{ALL, Format};
use crate::gemm::GemmSpec;
use crate::kernel::{Kernel, SpecError};
use crate::kv::{KvLayout, KvStorage};
use crate::layout::Layout;
use crate::matvec::{MatvecSpec, MatvecTuning};
use crate::moe::{MoeSpec, MoeStep};
use crate::norm::{NormKind, NormSpec, SoftmaxSpec};
use crate::prepare::PrepareSpec;
use crate::repack::RepackSpec;
use crate::sample::{Choice, SampleSpec};
use crate::segments::{Finish, Segment};
use crate::spec::{MoeKernel, Spec};
use crate::strips::{self, StripsSpec};
use crate::tiles::TilesSpec;
use kjit_engine::Target;

/// A kernel at a size of a real model.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Family, formats, sizes.
    pub name: String,
    /// The kernel.
    pub kernel: Kernel,
    /// What it is a specialisation of; none where only the list asks for it so, at another wave width.
    pub spec: Option<Spec>,
    /// What one launch has to do at least.
    pub work: Work,
}

/// What a launch has to do, however it does it: the inputs of a roofline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Bytes of memory that must be read or written.
    pub bytes: u64,
    /// Multiplications and additions.
    pub operations: u64,
}

impl Work {
    /// Microseconds that it takes at least at so many GB/s and TFLOP/s.
    #[must_use]
    pub fn floor_us(&self, gb_per_s: f64, tflop_per_s: f64) -> f64 {
        (self.bytes as f64 / (gb_per_s * 1e3)).max(self.operations as f64 / (tflop_per_s * 1e6))
    }
}

/// Tokens in the context where attention is sampled, and of a prompt.
const CONTEXT: usize = 4096;
const PROMPT: usize = 2048;

/// The kernels for a target: every one at its default wave width, and, where the target has another width, those of each family whose
/// geometry depends on it at that one too.
///
/// # Errors
/// One that cannot be specialised: then the list itself is at fault.
pub fn representative(target: &Target) -> Result<Vec<Sample>, SpecError> {
    let mut list = List { target, all: vec![] };
    for format in ALL {
        let layout = Layout::new(format, 4096)?;
        let matrix = layout.bytes(4096, 1)?;
        list.moves(format!("repack {format}"), RepackSpec { layout }, 2 * matrix)?;
        list.moves(format!("embed {format}"), EmbedSpec { layout, batch: false }, matrix / 4096)?;
        let norm = MatvecSpec { prologue: Prologue::Norm, ..MatvecSpec::new(format, 4096, 4096) };
        list.matvec(format!("matvec {format} norm"), &norm)?;
    }
    products(&mut list)?;
    heads(&mut list)?;
    small(&mut list)?;
    prompts(&mut list)?;
    for &wave in target.waves().iter().filter(|w| **w != target.default_wave()) {
        other_wave(&mut list, wave)?;
    }
    Ok(list.all)
}

struct List<'t> {
    target: &'t Target,
    all: Vec<Sample>,
}

impl List<'_> {
    fn add(&mut self, name: String, spec: impl Into<Spec>, bytes: usize, operations: usize) -> Result<(), SpecError> {
        let (spec, work) = (spec.into(), Work { bytes: bytes as u64, operations: operations as u64 });
        self.all.push(Sample { name, kernel: spec.kernel(self.target)?, spec: Some(spec), work });
        Ok(())
    }

    fn moves(&mut self, name: String, spec: impl Into<Spec>, bytes: usize) -> Result<(), SpecError> {
        self.add(name, spec, bytes, 0)
    }

    fn at_wave(&mut self, name: String, kernel: Kernel, bytes: usize) {
        let work = Work { bytes: bytes as u64, operations: 0 };
        self.all.push(Sample { name, kernel, spec: None, work });
    }

    fn matvec(&mut self, name: String, spec: &MatvecSpec) -> Result<(), SpecError> {
        let rows: usize = spec.segments.iter().map(|s| s.rows).sum();
        let ends = 4 * spec.columns * (spec.cols + rows);
        self.add(name, spec.clone(), spec.weight_bytes()? + ends, 2 * rows * spec.cols * spec.columns)
    }

    fn gemm(&mut self, name: String, spec: &GemmSpec) -> Result<(), SpecError> {
        let rows: usize = spec.segments.iter().map(|s| s.rows).sum();
        let mut weights = 0;
        for s in &spec.segments {
            weights += Layout::new(s.format, spec.cols)?.bytes(s.rows, spec.experts)?;
        }
        // With experts every token has eight of them.
        let tokens = if spec.experts > 1 { 8 * PROMPT } else { spec.tokens };
        let each = 2 * spec.cols + if spec.tiled { 2 } else { 4 } * rows;
        self.add(name, spec.clone(), weights + tokens * each, 2 * tokens * rows * spec.cols)
    }

    fn strips(&mut self, name: String, spec: &StripsSpec) -> Result<(), SpecError> {
        let mut bytes = 0;
        for s in &spec.segments {
            bytes += Layout::new(s.format, spec.cols)?.bytes(s.rows, 1)?;
        }
        let rows: usize = spec.segments.iter().map(|s| s.rows).sum();
        let ends = spec.tokens * (2 * spec.cols + 4 * rows);
        self.add(name, spec.clone(), bytes + ends, 2 * spec.tokens * rows * spec.cols)
    }

    fn flash(&mut self, name: String, spec: &FlashSpec) -> Result<(), SpecError> {
        let kv = 2 * spec.kv.bytes(PROMPT).unwrap_or(0);
        let (heads, dim) = (spec.heads, spec.kv.head_dim);
        let seen = spec.window.unwrap_or(PROMPT).min(PROMPT);
        // Queries come in f32 and go out in halves; half of a square is seen, or a band of it.
        let pairs = PROMPT * seen - seen * seen / 2;
        self.add(name, *spec, kv + 6 * PROMPT * heads * dim, 4 * pairs * heads * dim)
    }

    fn attend(&mut self, name: String, spec: &AttendSpec) -> Result<(), SpecError> {
        let seen = spec.window.unwrap_or(CONTEXT).min(CONTEXT);
        let kv = 2 * spec.form.kv.bytes(seen).unwrap_or(0);
        let operations = 4 * seen * spec.form.heads * spec.form.kv.head_dim;
        self.add(name, spec.clone(), kv, operations)
    }
}

fn format(name: &str) -> &'static Format {
    Format::by_name(name).unwrap_or(&ALL[0])
}

fn segment(name: &str, rows: usize) -> Segment {
    Segment { format: format(name), rows, bias: false }
}

fn products(list: &mut List<'_>) -> Result<(), SpecError> {
    for [q, k, v] in
        [["Q4_K", "Q4_K", "Q6_K"], ["Q8_0", "Q8_0", "Q8_0"], ["F16", "F16", "F16"], ["Q4_0", "Q5_0", "Q8_0"]]
    {
        let spec = MatvecSpec {
            prologue: Prologue::Norm,
            segments: vec![segment(q, 4096), segment(k, 1024), segment(v, 1024)],
            ..MatvecSpec::new(format(q), 4096, 4096)
        };
        list.matvec(format!("matvec {q} {k} {v} norm"), &spec)?;
    }
    for name in ["Q4_K", "Q6_K", "Q8_0", "Q4_0", "IQ4_XS", "F16"] {
        let gated = MatvecSpec {
            prologue: Prologue::Norm,
            segments: vec![segment(name, 14336), segment(name, 14336)],
            finish: Finish::Silu,
            ..MatvecSpec::new(format(name), 14336, 4096)
        };
        list.matvec(format!("matvec {name} gated"), &gated)?;
        let down =
            MatvecSpec { finish: Finish::Add, prepared: name == "F16", ..MatvecSpec::new(format(name), 4096, 14336) };
        list.matvec(format!("matvec {name} down"), &down)?;
        for columns in [2, 4, 8] {
            let batch = MatvecSpec { columns, prepared: true, ..MatvecSpec::new(format(name), 4096, 4096) };
            list.matvec(format!("matvec {name} × {columns}"), &batch)?;
        }
        // From 40 rows on a lane spills up to a dozen words, and was the fastest so (`docs/performance.md`): not held against the rule here.
        for tokens in if strips::covers(list.target) { vec![8, 16, 32] } else { vec![] } {
            let spec = StripsSpec { finish: Finish::Add, ..StripsSpec::new(format(name), 4096, 4096, tokens) };
            list.strips(format!("strips {name} × {tokens}"), &spec)?;
        }
        let small = MatvecSpec { finish: Finish::Add, ..MatvecSpec::new(format(name), 576, 1536) };
        list.matvec(format!("matvec {name} small"), &small)?;
    }
    for name in ["Q4_K", "Q6_K", "Q8_0"] {
        let gated = ExpertsSpec {
            format: format(name),
            rows: 768,
            cols: 2048,
            tokens: 1,
            top: 8,
            per_slot: false,
            prologue: Prologue::Norm,
            prepared: false,
            finish: ExpertFinish::Silu,
            tuning: None,
        };
        let chosen = 8 * 768 * 2048;
        let bytes = 8 * Layout::new(format(name), 2048)?.bytes(768, 1)?;
        list.add(format!("experts {name} gated"), gated.clone(), 2 * bytes, 4 * chosen)?;
        let sum = ExpertsSpec {
            rows: 2048,
            cols: 768,
            per_slot: true,
            prologue: Prologue::None,
            finish: ExpertFinish::Sum { residual: true },
            ..gated
        };
        let bytes = 8 * Layout::new(format(name), 768)?.bytes(2048, 1)?;
        list.add(format!("experts {name} sum"), sum, bytes, 2 * chosen)?;
    }
    for form in [Form::Quantised { split: true }, Form::Plain { unit: 8 }] {
        for prologue in [Prologue::None, Prologue::Norm, Prologue::Silu, Prologue::Gelu] {
            let spec = PrepareSpec { column: Column { cols: 4096, form }, prologue };
            list.moves(format!("prepare {form:?} {prologue:?}"), spec, 2 * 4 * 4096)?;
        }
    }
    Ok(())
}

/// Query heads, key heads and head sizes of real models.
const HEADS: [(usize, usize, usize); 7] =
    [(9, 3, 64), (14, 2, 64), (32, 8, 128), (32, 4, 128), (32, 32, 80), (32, 32, 96), (8, 4, 256)];

fn heads_form(heads: usize, kv: KvLayout) -> HeadsForm {
    let head_dim = kv.head_dim;
    HeadsForm { heads, kv, qk_norm: head_dim >= 128, rope: RopeForm { dims: head_dim, halves: heads != 32 } }
}

fn heads(list: &mut List<'_>) -> Result<(), SpecError> {
    for (heads, kv_heads, head_dim) in HEADS {
        for storage in [KvStorage::F16, KvStorage::Q8_0, KvStorage::F32] {
            let kv = KvLayout { heads: kv_heads, head_dim, storage };
            let form = heads_form(heads, kv);
            let window = (head_dim == 256).then_some(1024);
            let soft_cap = (head_dim == 96).then_some(50.0);
            let name = format!("{heads}/{kv_heads} × {head_dim} {storage:?}");
            list.attend(format!("attend {name}"), &AttendSpec { form, window, soft_cap, tuning: None })?;
            let rope = RopeKvSpec { form, half: true };
            list.moves(format!("rope_kv {name}"), rope, 6 * (heads + 2 * kv_heads) * head_dim)?;
            let flash = FlashSpec { heads, kv, scale: 1.0 / (head_dim as f32).sqrt(), window, soft_cap, tuning: None };
            list.flash(format!("flash {name}"), &flash)?;
        }
    }
    Ok(())
}

fn small(list: &mut List<'_>) -> Result<(), SpecError> {
    for (cols, kind) in [(4096, NormKind::Rms), (16384, NormKind::Rms), (4096, NormKind::Layer { bias: true })] {
        let kernel = NormSpec { cols, kind, residual: true };
        list.moves(format!("norm_rows {kind:?} {cols}"), kernel, 16 * cols)?;
    }
    list.moves("softmax 4096".to_owned(), SoftmaxSpec { cols: 4096 }, 8 * 4096)?;
    for op in [Combine::Add, Combine::Silu, Combine::Gelu] {
        list.moves(format!("combine {op:?}"), CombineSpec { op }, 12 * 4096)?;
    }
    list.moves("rows".to_owned(), RowsSpec, 8 * 4096)?;
    let route = RouteSpec { experts: 128, top: 8, renormalise: true };
    list.moves("route 8 of 128".to_owned(), route, 4 * 128)?;
    let sum = ExpertSumSpec { cols: 2048, top: 8, residual: true };
    list.moves("expert_sum".to_owned(), sum, 40 * 2048)?;
    for choice in [Choice::Largest, Choice::Drawn] {
        let kernel = SampleSpec { vocab: 128_256, choice };
        list.moves(format!("sample {choice:?}"), kernel, 4 * 128_256)?;
    }
    Ok(())
}

fn prompts(list: &mut List<'_>) -> Result<(), SpecError> {
    for format in ALL {
        list.gemm(format!("gemm {format} · {PROMPT} tokens"), &GemmSpec::new(format, 4096, 4096, PROMPT))?;
    }
    for name in ["Q4_K", "Q6_K", "Q8_0", "F16"] {
        for tokens in [16, 32] {
            list.gemm(format!("gemm {name} · {tokens} tokens"), &GemmSpec::new(format(name), 4096, 4096, tokens))?;
        }
        let gated = GemmSpec {
            segments: vec![segment(name, 14336), segment(name, 14336)],
            finish: Finish::Silu,
            tiled: true,
            ..GemmSpec::new(format(name), 14336, 4096, PROMPT)
        };
        list.gemm(format!("gemm {name} gated"), &gated)?;
        let down = GemmSpec { finish: Finish::Add, ..GemmSpec::new(format(name), 4096, 14336, PROMPT) };
        list.gemm(format!("gemm {name} down"), &down)?;
    }
    for [q, k, v] in [["Q4_K", "Q4_K", "Q6_K"], ["Q8_0", "Q8_0", "Q8_0"], ["F16", "F16", "F16"]] {
        let biased = |name, rows| Segment { bias: true, ..segment(name, rows) };
        let spec = GemmSpec {
            segments: vec![biased(q, 4096), biased(k, 1024), biased(v, 1024)],
            ..GemmSpec::new(format(q), 4096, 4096, PROMPT)
        };
        list.gemm(format!("gemm {q} {k} {v}"), &spec)?;
    }
    for name in ["Q4_K", "Q8_0"] {
        let gated = GemmSpec {
            segments: vec![segment(name, 768), segment(name, 768)],
            finish: Finish::Silu,
            tiled: true,
            experts: 128,
            ..GemmSpec::new(format(name), 768, 2048, 8 * PROMPT / 128)
        };
        list.gemm(format!("gemm {name} experts gated"), &gated)?;
        let down = GemmSpec { experts: 128, ..GemmSpec::new(format(name), 2048, 768, 8 * PROMPT / 128) };
        list.gemm(format!("gemm {name} experts down"), &down)?;
    }
    for (cols, prologue, gather) in [
        (4096, Prologue::None, false),
        (4096, Prologue::Norm, false),
        (14336, Prologue::Silu, false),
        (14336, Prologue::Gelu, false),
        (2048, Prologue::Norm, true),
    ] {
        let kernel = TilesSpec { cols, prologue, gather, strips: false };
        let gathered = if gather { " gathered" } else { "" };
        list.moves(format!("tiles {cols} {prologue:?}{gathered}"), kernel, 6 * PROMPT * cols)?;
    }
    let moe = MoeSpec { experts: 128, top: 8, tile: 64, cols: 2048 };
    let pairs = 8 * PROMPT;
    for (step, bytes) in [(MoeStep::Count, 4 * pairs), (MoeStep::Place, 12 * pairs), (MoeStep::Sum, 4 * pairs * 2048)] {
        list.moves(format!("moe {step:?}"), MoeKernel { spec: moe, step }, bytes)?;
    }
    Ok(())
}

/// One or some of each family whose geometry depends on the wave, at a width that is not the target's default.
fn other_wave(list: &mut List<'_>, wave: u32) -> Result<(), SpecError> {
    let target = list.target;
    for name in ["F16", "Q8_0", "Q4_K", "Q6_K"] {
        let spec = MatvecSpec { prologue: Prologue::Norm, ..MatvecSpec::new(format(name), 4096, 4096) };
        let usual = spec.tuning(target)?;
        let team = if usual.team == usual.wave { wave } else { usual.team };
        let tuning = Some(MatvecTuning { wave, team, ..usual });
        list.matvec(format!("matvec {name} norm @ wave {wave}"), &MatvecSpec { tuning, ..spec })?;
        for tokens in [16, PROMPT] {
            let tuning = Some(GemmSpec::waves(tokens, target, wave));
            let spec = GemmSpec { tuning, ..GemmSpec::new(format(name), 4096, 4096, tokens) };
            list.gemm(format!("gemm {name} · {tokens} tokens @ wave {wave}"), &spec)?;
        }
    }
    for (heads, kv_heads, head_dim) in [(9, 3, 64), (32, 8, 128), (8, 4, 256)] {
        for storage in [KvStorage::F16, KvStorage::Q8_0] {
            let kv = KvLayout { heads: kv_heads, head_dim, storage };
            let name = format!("{heads}/{kv_heads} × {head_dim} {storage:?} @ wave {wave}");
            let scale = 1.0 / (head_dim as f32).sqrt();
            let tuning = Some(FlashTuning::waves(target, wave, &kv));
            let flash = FlashSpec { heads, kv, scale, window: None, soft_cap: None, tuning };
            list.flash(format!("flash {name}"), &flash)?;
            let spec = AttendSpec { form: heads_form(heads, kv), window: None, soft_cap: None, tuning: None };
            let tuning = Some(spec.by_lanes(wave));
            list.attend(format!("attend {name}"), &AttendSpec { tuning, ..spec })?;
        }
    }
    let norm = NormSpec { cols: 4096, kind: NormKind::Rms, residual: true }.kernel_at(target, wave)?;
    list.at_wave(format!("norm_rows Rms 4096 @ wave {wave}"), norm, 16 * 4096);
    let tiles =
        TilesSpec { cols: 4096, prologue: Prologue::Norm, gather: false, strips: false }.kernel_at(target, wave)?;
    list.at_wave(format!("tiles 4096 Norm @ wave {wave}"), tiles, 6 * PROMPT * 4096);
    let drawn = SampleSpec { vocab: 128_256, choice: Choice::Drawn };
    let drawn = drawn.kernel_at(target, wave, drawn.block(wave))?;
    list.at_wave(format!("sample Drawn @ wave {wave}"), drawn, 4 * 128_256);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_has_a_name_of_its_own_and_work_to_do() {
        for arch in kjit_engine::arch::ARCHS {
            let target = Target::parse(arch.id).unwrap();
            let all = representative(&target).unwrap();
            let names: std::collections::BTreeSet<&str> = all.iter().map(|s| s.name.as_str()).collect();
            assert_eq!(names.len(), all.len(), "{target}");
            assert!(all.iter().all(|s| s.work.bytes > 0 && !s.name.contains(',')), "{target}: names go into CSV files");
            let widths: std::collections::BTreeSet<u32> = all.iter().map(|s| s.kernel.options.wave).collect();
            assert_eq!(widths.into_iter().collect::<Vec<_>>(), target.waves(), "{target}");
        }
    }

    #[test]
    fn the_floor_is_the_slower_of_memory_and_arithmetic() {
        let work = Work { bytes: 1_000_000, operations: 4_000_000 };
        assert!((work.floor_us(1000.0, 1.0) - 4.0).abs() < 1e-9);
        assert!((work.floor_us(100.0, 1000.0) - 10.0).abs() < 1e-9);
    }
}
