//! State-space layers (Mamba): a convolution over a few tokens, then a recurrence.

use super::layer::Layer;
use crate::op::{NormKind, ScanInputs};
use crate::{Activation, Builder, GraphError, Part, ValueId};

/// Mamba-2 (Dao & Gu 2024, arXiv 2405.21060).
pub fn mamba2(l: &Layer<'_, '_>, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, GraphError> {
    let (h, width) = (l.h(), l.h().width);
    let (inner, n) = (h.size("ssm.inner_size")?, h.size("ssm.state_size")?);
    let (heads, groups) = (h.size("ssm.time_step_rank")?, h.size("ssm.group_count")?);
    if !inner.is_multiple_of(heads) || !heads.is_multiple_of(groups) {
        return Err(h.bad(
            "ssm.time_step_rank",
            heads,
            &format!("must be divisible into {groups} groups of heads ({inner} elements)"),
        ));
    }
    let (mixed, of) = (inner + 2 * groups * n, 2 * inner + 2 * groups * n + heads);
    let z = l.project_part(b, ("ssm_in", "ssm_z"), x, Part { at: 0, take: inner, of }, width)?;
    let all =
        l.project_part(b, ("ssm_in", "ssm_xbc"), x, Part { at: inner, take: mixed, of }, width)?;
    let w = b.matrix_part(
        &l.weight_name("ssm_in"),
        Part { at: inner + mixed, take: heads, of },
        width,
    )?;
    let bias = b.vector(&l.name("ssm_dt.bias"), heads)?;
    let dt = b.matmul(l.name("ssm_dt"), x, w, Some(bias));
    let dt = b.act(l.name("ssm_dt_plus"), dt, Activation::Softplus);
    let all = convolved(l, b, all, mixed)?;
    let inputs = ScanInputs {
        x: b.slice(l.name("ssm_x"), all, 1, 0, inner),
        dt,
        b: b.slice(l.name("ssm_b"), all, 1, inner, groups * n),
        c: b.slice(l.name("ssm_c"), all, 1, inner + groups * n, groups * n),
    };
    let a = b.vector(&l.name("ssm_a"), heads)?;
    let d = b.vector(&l.name("ssm_d"), heads)?;
    let y = b.scan(&l.name("ssm_scan"), inputs, (a, d), n);
    let mut y = b.glu(l.name("ssm_gated"), z, y, Activation::Silu);
    if l.has(b, "ssm_norm") {
        y = l.norm_of(b, "ssm_norm", y, NormKind::Rms, inner / groups)?;
    }
    l.project(b, "ssm_out", y, width, inner)
}

/// Mamba (Gu & Dao 2023, arXiv 2312.00752).
pub fn mamba1(l: &Layer<'_, '_>, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, GraphError> {
    let (h, width) = (l.h(), l.h().width);
    let (inner, n, rank) =
        (h.size("ssm.inner_size")?, h.size("ssm.state_size")?, h.size("ssm.time_step_rank")?);
    let xs = l.project_part(
        b,
        ("ssm_in", "ssm_x_in"),
        x,
        Part { at: 0, take: inner, of: 2 * inner },
        width,
    )?;
    let z = l.project_part(
        b,
        ("ssm_in", "ssm_z"),
        x,
        Part { at: inner, take: inner, of: 2 * inner },
        width,
    )?;
    let xs = convolved(l, b, xs, inner)?;
    let all = l.project(b, "ssm_x", xs, rank + 2 * n, inner)?;
    let plain = h.flag("ssm.dt_b_c_rms")?.unwrap_or(false);
    let mut part = |name: &str, at: usize, take: usize| -> Result<ValueId, GraphError> {
        let norm = format!("{name}_norm");
        let part = b.slice(l.name(&format!("{name}_part")), all, 1, at, take);
        match (l.has(b, &norm), plain) {
            (true, _) => l.norm_of(b, &norm, part, NormKind::Rms, take),
            (false, true) => {
                Ok(b.norm(l.name(&norm), part, NormKind::Rms, take, (None, None), h.eps))
            }
            (false, false) => Ok(part),
        }
    };
    let (dt, into, out) =
        (part("ssm_dt", 0, rank)?, part("ssm_b", rank, n)?, part("ssm_c", rank + n, n)?);
    let dt = l.project(b, "ssm_dt", dt, inner, rank)?;
    let dt = b.act(l.name("ssm_dt_plus"), dt, Activation::Softplus);
    let a = b.vector(&l.name("ssm_a"), inner * n)?;
    let d = b.vector(&l.name("ssm_d"), inner)?;
    let y = b.scan(&l.name("ssm_scan"), ScanInputs { x: xs, dt, b: into, c: out }, (a, d), n);
    let y = b.glu(l.name("ssm_gated"), z, y, Activation::Silu);
    l.project(b, "ssm_out", y, width, inner)
}

/// The convolution before the recurrence, and its SiLU.
pub fn convolved(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
    width: usize,
) -> Result<ValueId, GraphError> {
    let taps = l.h().size("ssm.conv_kernel")?;
    let w = b.matrix(&l.weight_name("ssm_conv1d"), width, taps)?;
    let bias = b.opt_vector(&l.name("ssm_conv1d.bias"), width)?;
    let x = b.conv(&l.name("ssm_conv1d"), x, w, bias);
    Ok(b.act(l.name("ssm_conv1d_silu"), x, Activation::Silu))
}
