//! One of each kernel at the sizes of real models: what the compile matrix is made of, and what may not spill anywhere.

use crate::activations::{Column, Form, Prologue};
use crate::attend::{AttendSpec, HeadsForm, RopeForm, RopeKvSpec};
use crate::elementwise::{Combine, CombineSpec, RowsSpec};
use crate::embed::EmbedSpec;
use crate::experts::{ExpertFinish, ExpertSumSpec, ExpertsSpec, RouteSpec};
use crate::format::{ALL, Format};
use crate::kernel::{Kernel, SpecError};
use crate::kv::{KvLayout, KvStorage};
use crate::layout::Layout;
use crate::matvec::{Finish, MatvecSpec, Segment};
use crate::norm::{NormKind, NormSpec, SoftmaxSpec};
use crate::prepare::PrepareSpec;
use crate::repack::RepackSpec;
use crate::sample::{Choice, SampleSpec};
use kjit_engine::Target;

/// The kernels, by name, for a target.
///
/// # Errors
/// One that cannot be specialised: then the list itself is at fault.
pub fn representative(target: &Target) -> Result<Vec<(String, Kernel)>, SpecError> {
    let mut all = vec![];
    for format in ALL {
        let layout = Layout::new(format, 4096)?;
        all.push((format!("repack {format}"), RepackSpec { layout }.kernel(target)?));
        all.push((format!("embed {format}"), EmbedSpec { layout, batch: false }.kernel(target)?));
        let norm = MatvecSpec { prologue: Prologue::Norm, ..MatvecSpec::new(format, 4096, 4096) };
        all.push((format!("matvec {format} norm"), norm.kernel(target)?));
    }
    products(target, &mut all)?;
    heads(target, &mut all)?;
    small(target, &mut all)?;
    Ok(all)
}

type Named = Vec<(String, Kernel)>;

fn products(target: &Target, all: &mut Named) -> Result<(), SpecError> {
    let format = |name| Format::by_name(name).unwrap_or(&ALL[0]);
    let segment = |name, rows| Segment { format: format(name), rows, bias: false };
    for [q, k, v] in
        [["Q4_K", "Q4_K", "Q6_K"], ["Q8_0", "Q8_0", "Q8_0"], ["F16", "F16", "F16"], ["Q4_0", "Q5_0", "Q8_0"]]
    {
        let spec = MatvecSpec {
            prologue: Prologue::Norm,
            segments: vec![segment(q, 4096), segment(k, 1024), segment(v, 1024)],
            ..MatvecSpec::new(format(q), 4096, 4096)
        };
        all.push((format!("matvec {q} {k} {v} norm"), spec.kernel(target)?));
    }
    for name in ["Q4_K", "Q6_K", "Q8_0", "Q4_0", "IQ4_XS", "F16"] {
        let gated = MatvecSpec {
            prologue: Prologue::Norm,
            segments: vec![segment(name, 14336), segment(name, 14336)],
            finish: Finish::Silu,
            ..MatvecSpec::new(format(name), 14336, 4096)
        };
        all.push((format!("matvec {name} gated"), gated.kernel(target)?));
        let down =
            MatvecSpec { finish: Finish::Add, prepared: name == "F16", ..MatvecSpec::new(format(name), 4096, 14336) };
        all.push((format!("matvec {name} down"), down.kernel(target)?));
        for columns in [2, 4, 8] {
            let batch = MatvecSpec { columns, prepared: true, ..MatvecSpec::new(format(name), 4096, 4096) };
            all.push((format!("matvec {name} × {columns}"), batch.kernel(target)?));
        }
        let small = MatvecSpec { finish: Finish::Add, ..MatvecSpec::new(format(name), 576, 1536) };
        all.push((format!("matvec {name} small"), small.kernel(target)?));
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
        all.push((format!("experts {name} gated"), gated.kernel(target)?));
        let sum = ExpertsSpec {
            rows: 2048,
            cols: 768,
            per_slot: true,
            prologue: Prologue::None,
            finish: ExpertFinish::Sum { residual: true },
            ..gated
        };
        all.push((format!("experts {name} sum"), sum.kernel(target)?));
    }
    for form in [Form::Quantised { split: true }, Form::Plain { unit: 8 }] {
        for prologue in [Prologue::None, Prologue::Norm, Prologue::Silu, Prologue::Gelu] {
            let spec = PrepareSpec { column: Column { cols: 4096, form }, prologue };
            all.push((format!("prepare {form:?} {prologue:?}"), spec.kernel(target)?));
        }
    }
    Ok(())
}

fn heads(target: &Target, all: &mut Named) -> Result<(), SpecError> {
    for (heads, kv_heads, head_dim) in
        [(9, 3, 64), (14, 2, 64), (32, 8, 128), (32, 4, 128), (32, 32, 80), (32, 32, 96), (8, 4, 256)]
    {
        for storage in [KvStorage::F16, KvStorage::Q8_0, KvStorage::F32] {
            let form = HeadsForm {
                heads,
                kv: KvLayout { heads: kv_heads, head_dim, storage },
                qk_norm: head_dim >= 128,
                rope: RopeForm { dims: head_dim, halves: heads != 32 },
            };
            let window = (head_dim == 256).then_some(1024);
            let soft_cap = (head_dim == 96).then_some(50.0);
            let spec = AttendSpec { form, window, soft_cap, tuning: None };
            all.push((format!("attend {heads}/{kv_heads} × {head_dim} {storage:?}"), spec.kernel(target)?));
            let spec = RopeKvSpec { form, half: true };
            all.push((format!("rope_kv {heads}/{kv_heads} × {head_dim} {storage:?}"), spec.kernel(target)?));
        }
    }
    Ok(())
}

fn small(target: &Target, all: &mut Named) -> Result<(), SpecError> {
    for (cols, kind) in [(4096, NormKind::Rms), (16384, NormKind::Rms), (4096, NormKind::Layer { bias: true })] {
        all.push((format!("norm_rows {kind:?} {cols}"), NormSpec { cols, kind, residual: true }.kernel(target)?));
    }
    all.push(("softmax 4096".to_owned(), SoftmaxSpec { cols: 4096 }.kernel(target)?));
    for op in [Combine::Add, Combine::Silu, Combine::Gelu] {
        all.push((format!("combine {op:?}"), CombineSpec { op }.kernel(target)?));
    }
    all.push(("rows".to_owned(), RowsSpec.kernel(target)?));
    all.push(("route 8 of 128".to_owned(), RouteSpec { experts: 128, top: 8, renormalise: true }.kernel(target)?));
    all.push(("expert_sum".to_owned(), ExpertSumSpec { cols: 2048, top: 8, residual: true }.kernel(target)?));
    for choice in [Choice::Largest, Choice::Drawn] {
        all.push((format!("sample {choice:?}"), SampleSpec { vocab: 128_256, choice }.kernel(target)?));
    }
    Ok(())
}
