//! Hybrid layers: a state, attention, or both. The file's list of heads decides for each layer.

use super::layer::Layer;
use super::{attention, mamba};
use crate::{Activation, Builder, GraphError, Part, ValueId};

/// Mamba-2 in layers without heads, attention in the others.
pub fn mamba2(l: &Layer<'_, '_>, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, GraphError> {
    if l.kv_heads() == 0 { mamba::mamba2(l, b, x) } else { attention::heads(l, b, x) }
}

/// Mamba in layers without heads, attention in the others.
pub fn mamba1(l: &Layer<'_, '_>, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, GraphError> {
    if l.kv_heads() == 0 { mamba::mamba1(l, b, x) } else { attention::heads(l, b, x) }
}

/// The sum of attention and Mamba-2 with the same input (Falcon-H1, arXiv 2507.22448).
pub fn side_by_side(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
) -> Result<ValueId, GraphError> {
    let (heads, state) = (attention::heads(l, b, x)?, mamba::mamba2(l, b, x)?);
    Ok(b.add(l.name("mixed"), heads, state))
}

/// A short convolution between two gates in layers without heads, attention in the others (LFM2,
/// Liquid AI 2025).
pub fn short_conv(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
) -> Result<ValueId, GraphError> {
    if l.kv_heads() > 0 {
        return attention::heads(l, b, x);
    }
    let (width, taps) = (l.h().width, l.h().size("shortconv.l_cache")?);
    let mut part = |name: &str, i: usize| {
        let rows = Part { at: i * width, take: width, of: 3 * width };
        l.project_part(b, ("shortconv.in_proj", name), x, rows, width)
    };
    let (into, out, x) = (part("conv_b", 0)?, part("conv_c", 1)?, part("conv_x", 2)?);
    let gated = b.glu(l.name("conv_in"), into, x, Activation::Identity);
    let w = b.matrix(&l.weight_name("shortconv.conv"), width, taps)?;
    let mixed = b.conv(&l.name("conv"), gated, w, None);
    let mixed = b.glu(l.name("conv_out"), out, mixed, Activation::Identity);
    l.project(b, "shortconv.out_proj", mixed, width, width)
}
