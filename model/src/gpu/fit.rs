//! What of a graph kernels can run: all that the rest of the GPU side takes for granted. What is not there is
//! refused here, by name.

use super::plan::PlanError;
use crate::graph::op::{Attention, By, Embed, ExpertMatMul, Gating, Glu, Mask, Norm, NormKind, Route};
use crate::graph::{Activation, Graph, Op, StateKind};

/// Checks a graph.
///
/// # Errors
/// The first state, weight or operation that no kernel has, with the architecture.
pub fn check(graph: &Graph) -> Result<(), PlanError> {
    let refuse = |why: String| PlanError::Unsupported { what: format!("architecture '{}'", graph.arch), why };
    if graph.pooling.is_some() {
        return Err(refuse("vectors of texts are made on the CPU (--device cpu)".to_owned()));
    }
    for s in &graph.states {
        match &s.kind {
            StateKind::Kv(kv) if kv.key == kv.value => {}
            StateKind::Kv(_) => return Err(refuse(format!("keys and values of '{}' differ in size", s.name))),
            StateKind::Latent { .. } => return Err(refuse(format!("no kernel reads the latents of '{}'", s.name))),
            StateKind::Recurrent { .. } => return Err(refuse(format!("no kernel keeps the state '{}'", s.name))),
        }
    }
    if let Some(w) = graph.weights.iter().find(|w| w.experts > 1 && !w.is_whole()) {
        return Err(refuse(format!("no kernel reads '{}', a part of each expert", w.name)));
    }
    for op in &graph.ops {
        if let Some(why) = missing(graph, op) {
            let made = op.writes().first().map_or(String::new(), |v| format!(" ('{}')", graph.value(*v).name));
            return Err(refuse(format!("no kernel has {why}{made}")));
        }
    }
    Ok(())
}

/// What no kernel has of an operation; `None` where one has it.
fn missing(graph: &Graph, op: &Op) -> Option<String> {
    match op {
        Op::Embed(Embed { by: By::Token, .. }) | Op::Add(_) | Op::MatMul(_) | Op::Rope(_) => None,
        Op::KvWrite(_) => None,
        Op::ExpertSum(sum) if sum.shares.is_some() => None,
        Op::Norm(Norm { kind, weight: Some(w), bias, group, .. })
            if graph.weight(*w).elems() == *group
                && (*kind == NormKind::Layer || *kind == NormKind::Rms && bias.is_none()) =>
        {
            None
        }
        Op::Norm(_) => Some("a norm of this kind".to_owned()),
        Op::Glu(Glu { gate, up, .. }) if graph.value(*gate).width != graph.value(*up).width => {
            Some("a gate narrower than what it gates".to_owned())
        }
        Op::Glu(Glu { act: Activation::Silu | Activation::GeluTanh, .. }) => None,
        Op::Glu(Glu { act, .. }) => Some(format!("the activation {act:?}")),
        Op::Attention(Attention { mask: Mask::Causal, sinks: None, alibi: None, only: None, .. }) => None,
        Op::Attention(_) => Some("attention with sinks, slopes or another mask".to_owned()),
        Op::Route(Route { gating: Gating::Softmax, bias: None, groups: None, factors: None, .. }) => None,
        Op::Route(_) => Some("a routing of this kind".to_owned()),
        Op::ExpertMatMul(ExpertMatMul { bias: None, .. }) => None,
        Op::ExpertMatMul(_) => Some("experts with biases".to_owned()),
        other => Some(format!("the operation '{}'", other.name())),
    }
}
