//! The graph of an expert cache. The most used experts of each host MoE layer are also in GPU
//! memory, in a fixed number of slots. `model/gpu/src/expert_cache.rs` changes the contents of the
//! slots during decoding.

use kjit_exec::OpenOptions;
use kjit_graph::op::{Act, Add, ExpertMatMul, ExpertSum, Glu, Norm, Offload, Placed, Route};
use kjit_graph::{
    Dtype, ExpertsError, Graph, Layers, Op, Value, ValueId, Weight, WeightId, is_expert_op,
    split_host_experts,
};
use kjit_kernels::layout::Layout;
use std::collections::HashMap;
use std::ops::Range;

/// Minimum number of slots of a layer: while one slot is being loaded, the other is usable.
pub const MIN_SLOTS: usize = 2;

/// A graph with the experts of some layers on the CPU.
#[derive(Debug, Clone)]
pub struct HostExpertsGraph {
    /// The graph.
    pub graph: Graph,
    /// Layers whose experts are on the CPU.
    pub taken: usize,
    /// Layers that have experts.
    pub of: usize,
    /// Cache slots on the device in each of those layers; 0 without an expert cache.
    pub places: usize,
    /// Largest number of experts of such a layer.
    pub experts: usize,
}

impl HostExpertsGraph {
    /// Divides a graph according to [`OpenOptions::host_experts`] and [`OpenOptions::hot_experts`].
    ///
    /// # Errors
    /// See [`ExpertsError`] for the reasons.
    pub fn of(graph: &Graph, options: &OpenOptions) -> Result<HostExpertsGraph, ExpertsError> {
        if options.host_experts == 0 && options.hot_experts.is_some() {
            return Err(ExpertsError::HotAlone);
        }
        let (apart, taken, of) = split_host_experts(graph, options.host_experts)?;
        match options.hot_experts {
            None => Ok(HostExpertsGraph { graph: apart, taken, of, places: 0, experts: 0 }),
            Some(bytes) => with_places(graph, (taken, of), bytes),
        }
    }
}

impl std::fmt::Display for HostExpertsGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let HostExpertsGraph { taken, of, places, experts, .. } = self;
        write!(f, "the CPU computes the experts of {taken} of {of} MoE layers")?;
        match places {
            0 => Ok(()),
            n => write!(f, ", the GPU the {n} of {experts} most chosen experts of each"),
        }
    }
}

/// The routed part of a layer.
struct Mixture<'g> {
    /// From the first operation that reads the routing to the sum.
    span: Range<usize>,
    route: &'g Route,
    /// The norm of the experts' input, if there is one.
    norm: Option<&'g Op>,
    /// Input of the CPU: the value before the norm.
    x: ValueId,
    /// The operations of the chosen experts; the sum is last.
    set: Vec<&'g Op>,
    sum: ValueId,
}

/// The first `taken` MoE layers with as many cache slots as fit in `bytes` of device memory.
fn with_places(
    graph: &Graph,
    (taken, of): (usize, usize),
    bytes: u64,
) -> Result<HostExpertsGraph, ExpertsError> {
    let layers = Layers::of(graph)?;
    let routed = |layer: &usize| {
        graph.ops.get(layers.range(graph, *layer)).unwrap_or_default().iter().any(is_expert_op)
    };
    let numbers: Vec<usize> = (0..layers.len()).filter(routed).take(taken).collect();
    let mixtures: Option<Vec<Mixture<'_>>> =
        numbers.iter().map(|&layer| mixture(graph, layers.range(graph, layer))).collect();
    let mixtures = mixtures.ok_or_else(|| ExpertsError::Hot { arch: graph.arch.clone() })?;
    // Bytes of one more slot in each layer.
    let each =
        mixtures.iter().flat_map(|m| matrices(m)).map(|w| bytes_of(graph, w)).sum::<Option<u64>>();
    let each = each.ok_or_else(|| ExpertsError::Hot { arch: graph.arch.clone() })?.max(1);
    let counts: Vec<usize> =
        mixtures.iter().flat_map(|m| matrices(m)).map(|w| graph.weight(w).experts).collect();
    let (fewest, experts) =
        (counts.iter().copied().min().unwrap_or(0), counts.iter().copied().max().unwrap_or(0));
    let places = usize::try_from(bytes / each).unwrap_or(usize::MAX).min(fewest);
    if fewest < MIN_SLOTS {
        return Err(ExpertsError::Hot { arch: graph.arch.clone() });
    }
    if places < MIN_SLOTS {
        return Err(ExpertsError::FewPlaces {
            bytes: (each * MIN_SLOTS as u64).div_ceil(1 << 20),
            given: bytes >> 20,
        });
    }
    let mut new = Graph { ops: vec![], ..graph.clone() };
    let mut at = 0;
    for m in &mixtures {
        new.ops.extend_from_slice(graph.ops.get(at..m.span.start).unwrap_or_default());
        at = m.span.end;
        let ops = divided(graph, m, places, &mut new);
        new.ops.extend(ops);
    }
    new.ops.extend_from_slice(graph.ops.get(at..).unwrap_or_default());
    Ok(HostExpertsGraph { graph: new, taken, of, places, experts })
}

fn matrices<'a>(m: &'a Mixture<'_>) -> impl Iterator<Item = WeightId> + 'a {
    m.set.iter().filter_map(|op| {
        if let Op::ExpertMatMul(product) = op { Some(product.weight) } else { None }
    })
}

/// Bytes of one expert's matrix on a device; `None` without a device layout.
fn bytes_of(graph: &Graph, weight: WeightId) -> Option<u64> {
    let w = graph.weight(weight);
    Layout::new(w.format, w.cols).ok()?.bytes(w.rows, 1).ok().map(|n| n as u64)
}

/// The mixture of a layer if a device can compute a part of it: one routing, and experts without
/// biases whose results are summed with weights.
fn mixture(graph: &Graph, range: Range<usize>) -> Option<Mixture<'_>> {
    let ops = graph.ops.get(range.clone())?;
    let mut routes = ops.iter().enumerate().filter_map(|(i, op)| match op {
        Op::Route(route) => Some((i, route)),
        _ => None,
    });
    let (at, route) = routes.next().filter(|(_, route)| route.each == 1)?;
    if routes.next().is_some() {
        return None;
    }
    let end = ops
        .iter()
        .position(|op| matches!(op, Op::ExpertSum(s) if s.shares == Some(route.shares)))?;
    let mut made = vec![route.experts, route.shares];
    let (mut set, mut first) = (vec![], None);
    for (i, op) in ops.iter().enumerate().take(end + 1).skip(at + 1) {
        if op.reads().iter().any(|v| made.contains(v)) {
            let plain = match op {
                Op::ExpertMatMul(ExpertMatMul { bias, weight, .. }) => {
                    bias.is_none() && !graph.weight(*weight).is_of_columns()
                }
                Op::Glu(_) | Op::Act(_) => true,
                Op::ExpertSum(_) => i == end,
                _ => false,
            };
            if !plain {
                return None;
            }
            made.extend(op.writes());
            first = first.or(Some(i));
            set.push(op);
        }
    }
    let &Op::ExpertSum(ExpertSum { out: sum, .. }) = ops.get(end)? else { return None };
    // No other operation may read the routing or the result of an expert.
    let inside = |op: &Op| set.iter().any(|s| std::ptr::eq(*s, op));
    let others = graph.ops.iter().filter(|op| !inside(op)).flat_map(Op::reads);
    if others.into_iter().any(|v| v != sum && made.contains(&v)) || made.contains(&graph.logits) {
        return None;
    }
    let mut from: Vec<ValueId> =
        set.iter().flat_map(|op| op.reads()).filter(|v| !made.contains(v)).collect();
    from.sort_unstable();
    from.dedup();
    let &[row] = &*from else { return None };
    let norm =
        ops.iter().take(at).find(|op| matches!(op, Op::Norm(Norm { out, .. }) if *out == row));
    let x = match norm {
        Some(Op::Norm(norm)) => norm.x,
        _ => row,
    };
    let value = graph.value(x);
    let span = range.start + first?..range.start + end + 1;
    (value.slots == 1 && value.dtype == Dtype::Real).then_some(Mixture {
        span,
        route,
        norm,
        x,
        set,
        sum,
    })
}

/// The operations that replace a mixture's span if some of its experts are cached.
fn divided(graph: &Graph, m: &Mixture<'_>, places: usize, new: &mut Graph) -> Vec<Op> {
    let mut value = |from: ValueId, what: &str| {
        let old = graph.value(from);
        new.values.push(Value { name: format!("{}.{what}", old.name), ..old.clone() });
        ValueId(new.values.len() as u32 - 1)
    };
    let (experts, shares) = (m.route.experts, m.route.shares);
    let (there, own) = (value(experts, "places"), value(shares, "own"));
    let mut renamed: HashMap<ValueId, ValueId> = HashMap::from([(experts, there), (shares, own)]);
    for made in m.set.iter().flat_map(|op| op.writes()) {
        renamed.insert(made, value(made, "hot"));
    }
    let rest = value(m.sum, "rest");
    let mut stack = |id: WeightId| {
        let w = graph.weight(id);
        new.weights.push(Weight {
            name: format!("{}[{places} places]", w.name),
            experts: places,
            ..w.clone()
        });
        WeightId(new.weights.len() as u32 - 1)
    };
    let of = |v: ValueId| renamed.get(&v).copied().unwrap_or(v);
    let hot = m.set.iter().map(|op| match op {
        Op::ExpertMatMul(p) => {
            let (x, experts, out) = (of(p.x), of(p.experts), of(p.out));
            ExpertMatMul { x, experts, weight: stack(p.weight), bias: None, out }.into()
        }
        Op::Glu(glu) => Glu { gate: of(glu.gate), up: of(glu.up), out: of(glu.out), ..*glu }.into(),
        Op::Act(act) => Act { x: of(act.x), out: of(act.out), ..act.clone() }.into(),
        Op::ExpertSum(s) => {
            ExpertSum { x: of(s.x), shares: s.shares.map(of), out: of(s.out) }.into()
        }
        other => (*other).clone(),
    });
    let hot: Vec<Op> = hot.collect();
    let span = graph.ops.get(m.span.clone()).unwrap_or_default();
    let beside = span.iter().filter(|op| !m.set.iter().any(|s| std::ptr::eq(*s, *op))).cloned();
    let ops = m.norm.into_iter().chain(m.set.iter().copied()).map(|op| match op {
        Op::ExpertSum(s) => ExpertSum { out: rest, ..*s }.into(),
        other => other.clone(),
    });
    let aside = Offload { x: m.x, with: vec![experts, shares], ops: ops.collect(), out: rest };
    let both = Add { a: of(m.sum), b: rest, out: m.sum };
    let behind: Vec<Op> =
        hot.into_iter().chain(beside).chain([aside.into(), both.into()]).collect();
    let (whole, instead) = (span.to_vec(), behind.len());
    let first = Placed { x: m.x, experts, shares, places: there, own, whole, instead };
    std::iter::once(first.into()).chain(behind).collect()
}

/// The layers that have cache slots, with the products of the cached experts.
pub fn layers(graph: &Graph) -> Vec<(&Placed, Vec<&ExpertMatMul>)> {
    let mut all = vec![];
    for (at, op) in graph.ops.iter().enumerate() {
        if let Op::Placed(placed) = op {
            let behind = graph.ops.iter().skip(at + 1).take(placed.instead);
            let products = behind.filter_map(|op| match op {
                Op::ExpertMatMul(product) if product.experts == placed.places => Some(product),
                _ => None,
            });
            all.push((placed, products.collect()));
        }
    }
    all
}

/// Bytes of device memory in addition to the weights, if experts are loaded to the device: enough
/// for a matrix in the file's layout.
pub fn room(graph: &Graph) -> u64 {
    let products = layers(graph).into_iter().flat_map(|(_, products)| products);
    let bytes =
        products.map(|p| graph.weight(p.weight)).map(|w| (w.bytes() / w.experts.max(1)) as u64);
    bytes.max().unwrap_or(0)
}
