//! Checks that kernels exist for every operation of a graph. The rest of the GPU code relies on
//! this check. The error names the missing feature.

use super::PlanError;
use super::map::function_of;
use kjit_graph::op::{Act, Attention, Glu, Mask, Norm, NormKind};
use kjit_graph::{Activation, Graph, Op, ValueId};

/// Checks a graph for missing kernels.
///
/// # Errors
/// The first unsupported state, weight or operation, by name, and the architecture.
pub fn check(graph: &Graph) -> Result<(), PlanError> {
    let refuse = |why: String| PlanError::Unsupported {
        what: format!("architecture '{}'", graph.arch),
        why,
    };
    // A recurrent state is recomputed from the start. With several stages, the other stages would
    // have to be rewound too.
    let part = graph.feeds_next_stage || graph.ops.iter().any(|op| matches!(op, Op::InputRows(_)));
    if part && graph.is_recurrent() {
        return Err(refuse("recurrent states do not support a split by layers".to_owned()));
    }
    for op in &graph.ops {
        if let Some(why) = missing(graph, op) {
            let made = op
                .writes()
                .first()
                .map_or(String::new(), |v| format!(" ('{}')", graph.value(*v).name));
            return Err(refuse(format!("no kernel supports {why}{made}")));
        }
    }
    Ok(())
}

/// The feature of an operation that no kernel supports, if any.
fn missing(graph: &Graph, op: &Op) -> Option<String> {
    let width = |v: ValueId| graph.value(v).slots * graph.value(v).width;
    match op {
        Op::Reduce(_) => None,
        Op::Offload(_)
        | Op::Placed(_)
        | Op::InputRows(_)
        | Op::Embed(_)
        | Op::Add(_)
        | Op::MatMul(_)
        | Op::Rope(_)
        | Op::KvWrite(_) => None,
        Op::Route(_)
        | Op::ExpertMatMul(_)
        | Op::HeadMatMul(_)
        | Op::Concat(_)
        | Op::Dot(_)
        | Op::Repeat(_) => None,
        Op::Conv(_) | Op::Shift(_) | Op::Scan(_) | Op::LinearAttention(_) => None,
        Op::Act(Act { act: Activation::Exp, .. }) => None,
        Op::AdapterScale(_)
        | Op::Affine(_)
        | Op::AttentionTemperature(_)
        | Op::Slice(_)
        | Op::Spread(_)
        | Op::ExpertSum(_) => None,
        Op::Norm(Norm { kind: NormKind::Length, weight, bias, .. })
            if weight.is_some() || bias.is_some() =>
        {
            Some("a length norm with factors".to_owned())
        }
        Op::Norm(_) => None,
        Op::Glu(Glu { gate, up, .. }) if !width(*up).is_multiple_of(width(*gate).max(1)) => {
            Some("a gate whose width does not divide the gated width".to_owned())
        }
        Op::Glu(Glu { act, .. }) | Op::Act(Act { act, .. }) => {
            function_of(*act).is_none().then(|| format!("the activation {act:?}"))
        }
        Op::TopKeys(_) => None,
        Op::Attention(a) if graph.kv(a.state).is_none() => {
            let plain = (a.mask, a.soft_cap, a.sinks, a.alibi) == (Mask::Causal, None, None, None);
            let readers = graph
                .ops
                .iter()
                .filter(|op| matches!(op, Op::Attention(b) if b.state == a.state))
                .count();
            (!plain || readers > 1).then(|| {
                "attention to latents, except plain causal attention of one layer".to_owned()
            })
        }
        Op::Attention(Attention { only: None, state, .. }) => {
            let written =
                graph.ops.iter().any(|op| matches!(op, Op::KvWrite(w) if w.state == *state));
            (!written).then(|| "attention to keys and values that are not cached".to_owned())
        }
        Op::Attention(Attention { only: Some(_), .. }) => {
            Some("sparse attention to keys and values".to_owned())
        }
    }
}
