//! Multi-head latent attention, MLA (DeepSeek-V2, arXiv 2405.04434): keys and values of all heads
//! are projections of one short row per token, the latent.

use super::attention::{attend, output};
use super::facts::LogMultiplier;
use super::layer::Layer;
use crate::op::NormKind;
use crate::{Builder, GraphError, Kv, Pairing, Rope, RopeScaling, StateKind, ValueId};

/// The epsilon of the norm of an indexer's key. It is not in the files.
const INDEXER_EPS: f32 = 1e-6;

/// Sizes of a layer with latent attention.
struct Sizes {
    /// Number of elements of the latent.
    rank: usize,
    /// Number of elements of a key with rotation.
    rope: usize,
    /// Number of elements of a key without rotation.
    nope: usize,
    /// Number of elements of a head's value.
    value: usize,
}

impl Sizes {
    fn read(l: &Layer<'_, '_>) -> Result<Sizes, GraphError> {
        let h = l.h();
        let rope = h.size("rope.dimension_count")?;
        let key = match h.opt_size("attention.key_length_mla")? {
            Some(n) => n,
            None => h.size("attention.key_length")?,
        };
        let value = match h.opt_size("attention.value_length_mla")? {
            Some(n) => n,
            None => h.opt_size("attention.value_length")?.unwrap_or(h.width / l.heads().max(1)),
        };
        if rope >= key || l.heads() == 0 {
            return Err(h.bad(
                "rope.dimension_count",
                rope,
                &format!("must be less than the {key} elements of a key"),
            ));
        }
        Ok(Sizes { rank: h.size("attention.kv_lora_rank")?, rope, nope: key - rope, value })
    }
}

/// Uses one projection from the latent for all heads, or projections of single heads. The tensors
/// of the layer decide.
pub fn either(l: &Layer<'_, '_>, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, GraphError> {
    if l.has(b, "attn_kv_b") { expanded(l, b, x) } else { absorbed(l, b, x) }
}

/// The absorbed variant (DeepSeek-V2, section 2.1.2): the projections of keys and values are
/// applied to queries and results. Heads read the latent, so one row per token is cached.
pub fn absorbed(l: &Layer<'_, '_>, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, GraphError> {
    let s = Sizes::read(l)?;
    let heads = l.heads();
    let (q_nope, q_rope, low) = queries(l, b, x, &s)?;
    let (latent, k_rope) = compressed(l, b, x, &s)?;
    let only =
        low.filter(|_| l.has(b, "indexer.proj")).map(|low| indexed(l, b, x, low)).transpose()?;
    let k_b = b.experts(&l.weight_name("attn_k_b"), heads, s.rank, s.nope)?;
    let q = b.head_matmul(l.name("attn_q_absorbed"), q_nope, k_b);
    let q = b.concat(l.name("attn_q_all"), q, q_rope, heads, s.rope);
    let q = super::attention::with_temperature(l, b, q)?;
    let row = b.concat(l.name("attn_latent"), latent, k_rope, 1, s.rope);
    let state =
        b.state(format!("blk.{}", l.index), StateKind::Latent { rank: s.rank, rope: s.rope });
    b.latent_write(row, state);
    let scale = scale(l, b, &s)?;
    let mixed = attend(l, b, q, state, |a| (a.scale, a.only) = (scale, only))?;
    let v_b = b.experts(&l.weight_name("attn_v_b"), heads, s.value, s.rank)?;
    let mixed = b.head_matmul(l.name("attn_v_absorbed"), mixed, v_b);
    output(l, b, x, mixed, heads * s.value)
}

/// The expanded variant: keys and values are computed from the latent and cached.
pub fn expanded(l: &Layer<'_, '_>, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, GraphError> {
    let heads = l.heads();
    let s = Sizes::read(l)?;
    let (q_nope, q_rope, _) = queries(l, b, x, &s)?;
    let (latent, k_rope) = compressed(l, b, x, &s)?;
    let both = l.project(b, "attn_kv_b", latent, heads * (s.nope + s.value), s.rank)?;
    let k_nope = b.slice(l.name("attn_k_nope"), both, heads, 0, s.nope);
    let v = b.slice(l.name("attn_v"), both, heads, s.nope, s.value);
    let k = b.concat(l.name("attn_k"), k_nope, k_rope, heads, s.rope);
    let q = b.concat(l.name("attn_q_all"), q_nope, q_rope, heads, s.rope);
    let q = super::attention::with_temperature(l, b, q)?;
    let kind = StateKind::Kv(Kv { heads, key: s.nope + s.rope, value: s.value, window: None });
    let state = b.state(format!("blk.{}", l.index), kind);
    b.kv_write(k, v, state);
    let scale = scale(l, b, &s)?;
    let mixed = attend(l, b, q, state, |a| a.scale = scale)?;
    output(l, b, x, mixed, heads * s.value)
}

/// Queries: the part without rotation, the rotated part, and the low-rank row that they are
/// computed from, if there is one.
fn queries(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
    s: &Sizes,
) -> Result<(ValueId, ValueId, Option<ValueId>), GraphError> {
    let (h, heads) = (l.h(), l.heads());
    let size = heads * (s.nope + s.rope);
    let mut short = None;
    let q = match l.has(b, "attn_q_a") {
        true => {
            let rank = h.size("attention.q_lora_rank")?;
            let low = l.project(b, "attn_q_a", x, rank, h.width)?;
            let low = l.norm_of(b, "attn_q_a_norm", low, NormKind::Rms, rank)?;
            short = Some(low);
            l.project(b, "attn_q_b", low, size, rank)?
        }
        false => l.project(b, "attn_q", x, size, h.width)?,
    };
    let nope = b.slice(l.name("attn_q_nope"), q, heads, 0, s.nope);
    let turns = b.slice(l.name("attn_q_pe"), q, heads, s.nope, s.rope);
    let turns = l.rope().map_or(turns, |rope| b.rope(l.name("attn_q_rope"), turns, heads, rope));
    Ok((nope, turns, short))
}

/// The positions that the indexer (with small heads) chooses for this layer. Its keys and queries
/// are rotated at their start, with NeoX pairing.
fn indexed(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
    low: ValueId,
) -> Result<ValueId, GraphError> {
    let (h, width) = (l.h(), l.h().width);
    let heads = h.size("attention.indexer.head_count")?;
    let size = h.size("attention.indexer.key_length")?;
    let (top, rank) = (h.size("attention.indexer.top_k")?, h.size("attention.q_lora_rank")?);
    let rope =
        l.rope().map(|rope| Rope { pairing: Pairing::Halves, ..b.graph().rope(rope).clone() });
    let rope = rope.map(|rope| b.rope_table(rope));
    let rotated = |b: &mut Builder<'_>, name: &str, x, heads| {
        rope.map_or(x, |r| b.rope(l.name(name), x, heads, r))
    };
    let q = l.project(b, "indexer.attn_q_b", low, heads * size, rank)?;
    let q = rotated(b, "indexer.q_rope", q, heads);
    let k = l.project(b, "indexer.attn_k", x, size, width)?;
    let k = l.norm_with(b, "indexer.k_norm", k, (NormKind::Layer, INDEXER_EPS), size)?;
    let k = rotated(b, "indexer.k_rope", k, 1);
    let state = b.state(l.name("indexer"), StateKind::Latent { rank: size, rope: 0 });
    b.latent_write(k, state);
    let w = l.project(b, "indexer.proj", x, heads, width)?;
    Ok(b.top_keys(l.name("indexer.top"), q, w, state, top))
}

/// The normalised latent, and the rotated part of the key.
fn compressed(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
    s: &Sizes,
) -> Result<(ValueId, ValueId), GraphError> {
    let both = l.project(b, "attn_kv_a_mqa", x, s.rank + s.rope, l.h().width)?;
    let latent = b.slice(l.name("attn_kv_a"), both, 1, 0, s.rank);
    let latent = l.norm_of(b, "attn_kv_a_norm", latent, NormKind::Rms, s.rank)?;
    let turns = b.slice(l.name("attn_k_pe"), both, 1, s.rank, s.rope);
    let turns = l.rope().map_or(turns, |rope| b.rope(l.name("attn_k_rope"), turns, 1, rope));
    Ok((latent, turns))
}

/// The factor on scores, `m² / √key`. `m` is the magnitude of the rotations times the part of
/// YaRN's attention factor that the multiplier moves to scores. With linear scaling, `m` also
/// includes the factor that YaRN would apply to rotations.
fn scale(l: &Layer<'_, '_>, b: &Builder<'_>, s: &Sizes) -> Result<f32, GraphError> {
    let (h, facts) = (l.h(), &l.m.facts);
    let key = ((s.nope + s.rope) as f32).sqrt();
    let Some(rope) = l.m.rope.filter(|_| facts.log_multiplier != LogMultiplier::Unread) else {
        return Ok(1.0 / key);
    };
    let rope = b.graph().rope(rope);
    let grown = match rope.scaling {
        RopeScaling::Linear(factor) => 1.0 + 0.1 * factor.ln(),
        _ => 1.0,
    };
    let part = match rope.scaling {
        RopeScaling::Linear(factor) | RopeScaling::Yarn { factor, .. } => {
            1.0 + 0.1 * h.log_multiplier(facts)? * factor.ln()
        }
        RopeScaling::None => 1.0,
    };
    let m = rope.magnitude * grown * part;
    Ok(m * m / key)
}
