//! The feed-forward part of a layer: dense, or a mixture of experts.

use super::facts::{Experts, Ffn, FfnSize};
use super::layer::Layer;
use crate::op::{Gating, Groups, NormKind};
use crate::{Activation, Builder, GraphError, Part, ValueId, WeightId};

/// Experts if the layer has a router tensor, otherwise the dense part.
pub fn feed_forward(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
) -> Result<ValueId, GraphError> {
    match (l.m.facts.experts, l.has(b, "ffn_gate_inp")) {
        (Some(_), true) => experts(l, b, x, x),
        _ => dense(l, b, x),
    }
}

/// Experts whose router reads the layer's input.
pub fn routed_by_input(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
) -> Result<ValueId, GraphError> {
    experts(l, b, x, l.input)
}

/// GroveMoE (arXiv 2508.07785): each group of experts has a small shared expert. A token also uses
/// the shared experts of the groups of its chosen experts. The input of a shared expert is the
/// output of the chosen experts, as in llama.cpp.
pub fn with_shared_by_groups(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
) -> Result<ValueId, GraphError> {
    let (h, width, e) = (l.h(), l.h().width, Mixture::read(l)?);
    let each = h.size("experts_per_group")?;
    let ffn = h.opt_size("expert_chunk_feed_forward_length")?.unwrap_or(h.head_dim);
    if !e.count.is_multiple_of(each) {
        return Err(h.bad(
            "experts_per_group",
            each,
            &format!("must divide the {} experts", e.count),
        ));
    }
    let (count, scale) = (e.count / each, h.factor("expert_group_scale")?.unwrap_or(1.0));
    let scores = l.project(b, "ffn_gate_inp", x, e.count, width)?;
    let own = mixture(l, b, &e, x, scores)?;
    let name = l.name("ffn_chunk_route");
    let (chosen, shares) =
        b.route(&name, scores, e.used.min(count), (true, 1.0), |r| r.each = each);
    let product = |b: &mut Builder<'_>, name: &str, x, rows, cols| {
        let weight = stack(l, b, name, (count, Part::all(rows), cols))?;
        Ok::<_, GraphError>(b.expert_matmul(l.name(name), x, chosen, weight, None))
    };
    let gate = product(b, "ffn_gate_chexps", own, ffn, width)?;
    let up = product(b, "ffn_up_chexps", own, ffn, width)?;
    let hidden = b.glu(l.name("ffn_chunk_glu"), gate, up, e.facts.act);
    let down = product(b, "ffn_down_chexps", hidden, width, ffn)?;
    let sum = b.expert_sum(l.name("ffn_chunks"), down, shares);
    let scaled = b.affine(l.name("ffn_chunks_scaled"), sum, scale, (None, None));
    Ok(b.add(l.name("ffn_grove"), own, scaled))
}

/// The sum of the dense part and of experts. The experts read the layer's input through a different
/// norm.
pub fn dense_and_experts(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
) -> Result<ValueId, GraphError> {
    let out = dense(l, b, x)?;
    let from = l.norm(b, "ffn_norm_exps", l.input)?;
    let chosen = experts(l, b, from, from)?;
    Ok(b.add(l.name("ffn_sum"), out, chosen))
}

/// Experts, and the dense part if there is one, with the same input: `(dense + experts) / √2`.
pub fn with_experts(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
) -> Result<ValueId, GraphError> {
    let chosen = experts(l, b, x, x)?;
    if !l.has(b, "ffn_up") {
        return Ok(chosen);
    }
    let out = dense(l, b, x)?;
    let sum = b.add(l.name("ffn_sum"), out, chosen);
    Ok(b.affine(l.name("ffn_mean"), sum, std::f32::consts::FRAC_1_SQRT_2, (None, None)))
}

/// The dense part, with the layer's own width.
pub fn dense(l: &Layer<'_, '_>, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, GraphError> {
    let size = l.h().need_at("feed_forward_length", l.index)?;
    let size = match l.m.facts.ffn_size {
        FfnSize::Key => size,
        FfnSize::HalfKey => size / 2,
        FfnSize::Width => l.h().width,
    };
    unit(l, b, x, ("", kind(l)?), size)
}

/// The kind of the layer's dense part.
fn kind(l: &Layer<'_, '_>) -> Result<Ffn, GraphError> {
    const KEY: &str = "hidden_activation";
    let (h, facts) = (l.h(), &l.m.facts);
    match h.gguf().opt_str(&h.key(KEY))?.filter(|_| facts.activation_key) {
        None => Ok(facts.ffn),
        Some("gelu" | "geglu") => Ok(Ffn::Fused(Activation::GeluTanh)),
        Some("silu" | "swish" | "swiglu") => Ok(Ffn::Fused(Activation::Silu)),
        Some("reglu") => Ok(Ffn::Fused(Activation::Relu)),
        Some(other) => Err(h.bad(KEY, other, "expected gelu, silu or reglu")),
    }
}

/// The xIELU parameters of the layer. Their keys do not have the architecture's prefix.
fn xielu(l: &Layer<'_, '_>) -> Result<Activation, GraphError> {
    let h = l.h();
    let number = |name: &str| -> Result<f32, GraphError> {
        let key = format!("xielu.{name}");
        let all = match h.gguf().value(&key) {
            Some(kjit_gguf::Value::Array(_)) => h.gguf().f32s(&key)?,
            _ => vec![h.gguf().require_f32(&key)?; h.layers],
        };
        let bad = |value: String, why: &str| GraphError::Value {
            key: key.clone(),
            value,
            why: why.to_string(),
        };
        match all.get(l.index) {
            Some(v) if v.is_finite() => Ok(*v),
            Some(v) => Err(bad(v.to_string(), "expected a number")),
            None => {
                Err(bad(format!("a list of {}", all.len()), "there are more layers than entries"))
            }
        }
    };
    // The file has the learned parameters. The slopes are the softplus of these parameters, and the
    // negative slope is increased by beta.
    let (positive, negative) =
        (Activation::Softplus.of(number("alpha_p")?), Activation::Softplus.of(number("alpha_n")?));
    let beta = number("beta")?;
    Ok(Activation::Xielu { positive, negative: beta + negative, beta, eps: number("eps")? })
}

/// A feed-forward part whose tensors are `ffn_gate…`, `ffn_up…`, `ffn_down…` with a suffix.
pub fn unit(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
    (suffix, ffn): (&str, Ffn),
    size: usize,
) -> Result<ValueId, GraphError> {
    let (width, [gate, up, down]) =
        (l.h().width, ["gate", "up", "down"].map(|n| format!("ffn_{n}{suffix}")));
    let mut hidden = match ffn {
        Ffn::Gated(act) => {
            let g = l.project(b, &gate, x, size, width)?;
            let u = l.project(b, &up, x, size, width)?;
            b.glu(l.name(&format!("ffn_glu{suffix}")), g, u, act)
        }
        Ffn::Fused(act) => {
            let part = |at| Part { at, take: size, of: 2 * size };
            let g = l.project_part(b, (&up, &gate), x, part(0), width)?;
            let u = l.project_part(b, (&up, &up), x, part(size), width)?;
            b.glu(l.name(&format!("ffn_glu{suffix}")), g, u, act)
        }
        // If there is no gate tensor, the up matrix may contain the gate.
        Ffn::PlainOrFused(act) if l.width_of(b, &up, 1) == Some(2 * size) => {
            return unit(l, b, x, (suffix, Ffn::Fused(act)), size);
        }
        Ffn::PlainOrFused(act) if l.has(b, &gate) => {
            return unit(l, b, x, (suffix, Ffn::Gated(act)), size);
        }
        Ffn::Plain(act) | Ffn::PlainOrFused(act) => {
            let u = l.project(b, &up, x, size, width)?;
            b.act(l.name(&format!("ffn_act{suffix}")), u, act)
        }
        Ffn::Xielu => {
            let (u, act) = (l.project(b, &up, x, size, width)?, xielu(l)?);
            b.act(l.name(&format!("ffn_act{suffix}")), u, act)
        }
    };
    if l.m.facts.act_scales {
        let divisors = b.opt_divisors(&l.name("ffn.act.scales"), size)?;
        hidden = b.affine(l.name("ffn_scaled"), hidden, 1.0, (divisors, None));
    }
    if l.has(b, "ffn_sub_norm") {
        hidden = l.norm_of(b, "ffn_sub_norm", hidden, NormKind::Rms, size)?;
    }
    l.project(b, &down, hidden, width, size)
}

/// The number of experts of a layer, the number of chosen experts per token, and their kind.
struct Mixture {
    facts: Experts,
    count: usize,
    used: usize,
}

impl Mixture {
    fn read(l: &Layer<'_, '_>) -> Result<Mixture, GraphError> {
        let h = l.h();
        let Some(facts) = l.m.facts.experts else {
            return Err(h.bad("expert_count", "present", "this architecture has no experts"));
        };
        let (count, used) = (h.size("expert_count")?, h.need_at("expert_used_count", l.index)?);
        if used > count {
            return Err(h.bad(
                "expert_used_count",
                used,
                &format!("the model has only {count} experts"),
            ));
        }
        Ok(Mixture { facts, count, used })
    }

    fn gating(&self, l: &Layer<'_, '_>) -> Result<Gating, GraphError> {
        match l.h().number("expert_gating_func")? {
            None | Some(0) => Ok(self.facts.gating),
            Some(1) => Ok(Gating::Softmax),
            Some(2) => Ok(Gating::Sigmoid),
            Some(3) => Ok(Gating::Chosen),
            Some(n) => Err(l.h().bad(
                "expert_gating_func",
                n,
                "expected 1 (softmax), 2 (sigmoid) or 3 (softmax of the chosen scores)",
            )),
        }
    }

    fn groups(&self, l: &Layer<'_, '_>) -> Result<Option<Groups>, GraphError> {
        let h = l.h();
        let Some(count) = h.number("expert_group_count")?.filter(|n| *n > 1) else {
            return Ok(None);
        };
        let used = h.size("expert_group_used_count")?;
        let (all, chosen) = (self.count, self.used);
        let bad = |why: String| Err(h.bad("expert_group_count", count, &why));
        if !all.is_multiple_of(count) {
            return bad(format!("must divide the {all} experts"));
        }
        if used > count {
            return bad(format!(
                "expert_group_used_count is {used}, more than the number of groups"
            ));
        }
        if used * (all / count) < chosen {
            return bad(format!(
                "{used} groups contain fewer experts than the {chosen} chosen experts"
            ));
        }
        Ok(Some(Groups { count, used }))
    }
}

/// The weighted sum of the chosen experts, plus the shared experts. The router reads `scored`.
pub fn experts(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
    scored: ValueId,
) -> Result<ValueId, GraphError> {
    let e = Mixture::read(l)?;
    let scores = l.project(b, "ffn_gate_inp", scored, e.count, l.h().width)?;
    mixture(l, b, &e, x, scores)
}

/// Like [`experts`], with router scores that are already computed.
fn mixture(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    e: &Mixture,
    x: ValueId,
    scores: ValueId,
) -> Result<ValueId, GraphError> {
    let width = l.h().width;
    let (chosen, shares) = routed(l, b, e, scores)?;
    let mut from = x;
    if e.facts.share_input {
        from = b.spread(l.name("ffn_spread"), x, shares);
    }
    // The width of the experts' result is the output width of their down matrices: the width of the
    // residual stream, or of a narrower latent.
    let inner = l.width_of(b, "ffn_down_exps", 1).unwrap_or(width);
    if let Some(rank) = Some(inner).filter(|n| *n != width) {
        from = l.project(b, "ffn_latent_down", from, rank, width)?;
    }
    let ffn = l.width_of(b, "ffn_down_exps", 0).unwrap_or(width);
    let hidden = expert_units(l, b, e, (from, inner, ffn), chosen)?;
    let down = stack(l, b, "ffn_down_exps", (e.count, Part::all(inner), ffn))?;
    let bias = expert_bias(l, b, "ffn_down_exps", e.count, inner)?;
    let out = b.expert_matmul(l.name("ffn_down_exps"), hidden, chosen, down, bias);
    let sum = match e.facts.share_input {
        true => b.slot_sum(l.name("ffn_experts"), out),
        false => b.expert_sum(l.name("ffn_experts"), out, shares),
    };
    let sum = if inner == width { sum } else { l.project(b, "ffn_latent_up", sum, width, inner)? };
    match shared(l, b, x)? {
        Some(shared) => Ok(b.add(l.name("ffn_out"), sum, shared)),
        None => Ok(sum),
    }
}

/// The chosen experts and their weights.
fn routed(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    e: &Mixture,
    scores: ValueId,
) -> Result<(ValueId, ValueId), GraphError> {
    let h = l.h();
    let renormalise = h.flag("expert_weights_norm")?.unwrap_or(e.facts.renormalise);
    let scale = h.factor("expert_weights_scale")?.unwrap_or(1.0);
    let (gating, groups) = (e.gating(l)?, e.groups(l)?);
    let bias = b.opt_vector(&l.name("exp_probs_b.bias"), e.count)?;
    let factors = b.opt_vector(&l.name("ffn_down_exps.scale"), e.count)?;
    Ok(b.route(&l.name("ffn_route"), scores, e.used, (renormalise, scale), |r| {
        (r.gating, r.groups, r.bias, r.factors) = (gating, groups, bias, factors);
    }))
}

/// The hidden values of the experts: the input of their down matrices.
fn expert_units(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    e: &Mixture,
    (x, width, ffn): (ValueId, usize, usize),
    chosen: ValueId,
) -> Result<ValueId, GraphError> {
    let act = e.facts.act;
    let fused = l.has(b, "ffn_gate_up_exps");
    if !fused && !l.has(b, "ffn_gate_exps") {
        let up = stack(l, b, "ffn_up_exps", (e.count, Part::all(ffn), width))?;
        let bias = expert_bias(l, b, "ffn_up_exps", e.count, ffn)?;
        let up = b.expert_matmul(l.name("ffn_up_exps"), x, chosen, up, bias);
        return Ok(b.act(l.name("ffn_act"), up, act));
    }
    let (gate, up) = match fused {
        true => {
            let mut part = |at| {
                stack(
                    l,
                    b,
                    "ffn_gate_up_exps",
                    (e.count, Part { at, take: ffn, of: 2 * ffn }, width),
                )
            };
            (part(0)?, part(ffn)?)
        }
        false => {
            let mut all = |name| stack(l, b, name, (e.count, Part::all(ffn), width));
            (all("ffn_gate_exps")?, all("ffn_up_exps")?)
        }
    };
    let gate_bias = expert_bias(l, b, "ffn_gate_exps", e.count, ffn)?;
    let up_bias = expert_bias(l, b, "ffn_up_exps", e.count, ffn)?;
    let gate = b.expert_matmul(l.name("ffn_gate_exps"), x, chosen, gate, gate_bias);
    let up = b.expert_matmul(l.name("ffn_up_exps"), x, chosen, up, up_bias);
    Ok(b.glu(l.name("ffn_glu"), gate, up, act))
}

/// A tensor with one matrix per expert.
fn stack(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    name: &str,
    (count, rows, cols): (usize, Part, usize),
) -> Result<WeightId, GraphError> {
    b.experts_part(&l.weight_name(name), count, rows, cols)
}

/// A tensor with one row per expert, if the file has it.
fn expert_bias(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    name: &str,
    count: usize,
    rows: usize,
) -> Result<Option<WeightId>, GraphError> {
    b.opt_vector(&l.name(&format!("{name}.bias")), count * rows)
}

/// The shared experts, if the layer has them. Every token uses them. Their width is in the shapes
/// of their tensors.
fn shared(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
) -> Result<Option<ValueId>, GraphError> {
    // The input length of the down projection is the hidden width.
    let Some(size) = l.width_of(b, "ffn_down_shexp", 0) else { return Ok(None) };
    let ffn = match l.m.facts.ffn {
        Ffn::Gated(act) if !l.has(b, "ffn_gate_shexp") => Ffn::Fused(act),
        ffn => ffn,
    };
    let mut out = unit(l, b, x, ("_shexp", ffn), size)?;
    if l.has(b, "ffn_gate_inp_shexp") {
        let gate = l.project(b, "ffn_gate_inp_shexp", x, 1, l.h().width)?;
        out = b.glu(l.name("ffn_shared"), gate, out, Activation::Sigmoid);
    }
    Ok(Some(out))
}
