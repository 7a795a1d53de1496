//! The graph of a tensor and the operations of each launch that computed it.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::node::{Def, Node, Op};
use crate::tensor::Tensor;
use std::collections::HashMap;
use std::sync::Arc;

/// How the elements of an operation were computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// They were in memory already.
    Given,
    /// A group computed them and wrote them to memory.
    Stored,
    /// They are a view of memory: nothing was computed or copied.
    View,
    /// They were computed inside the group of a consumer and were not stored.
    Fused,
}

/// An operation of the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name: `add`, `fold max`, `view`.
    pub operation: String,
    /// Dtype of its elements.
    pub dtype: DType,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Indices of its inputs in [`Explanation::parts`].
    pub inputs: Vec<usize>,
    /// How its elements were computed.
    pub role: Role,
}

/// A tensor's graph and the launches that computed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The operations, inputs before their readers.
    pub parts: Vec<Part>,
    /// Launches of kernels on a GPU; on the CPU the number of groups.
    pub launches: u64,
    /// The device.
    pub device: String,
}

impl Explanation {
    /// The operations of a group, in order; the last one is stored. Empty unless the part is
    /// [`Role::Stored`].
    #[must_use]
    pub fn group(&self, of: usize) -> Vec<usize> {
        let (mut found, mut open) = (Vec::new(), vec![of]);
        if self.parts.get(of).is_none_or(|p| p.role != Role::Stored) {
            return found;
        }
        while let Some(at) = open.pop() {
            if found.contains(&at) {
                continue;
            }
            found.push(at);
            let inputs = self.parts.get(at).map(|p| p.inputs.as_slice()).unwrap_or_default();
            let fused = |i: &&usize| self.parts.get(**i).is_some_and(|p| p.role == Role::Fused);
            open.extend(inputs.iter().filter(fused));
        }
        found.sort_unstable();
        found
    }
}

impl Tensor {
    /// Computes the tensor and reports the operations of each launch. Operations that were computed
    /// before are [`Role::Given`].
    ///
    /// # Errors
    /// Errors of the computation.
    pub fn explain(&self) -> Result<Explanation> {
        let mut walk = GraphWalk::default();
        for node in [Some(&self.re), self.im.as_ref()].into_iter().flatten() {
            walk.node(node);
        }
        let before = self.device().launches();
        self.eval()?;
        let launched = self.device().launches() - before;
        let parts: Vec<Part> = walk.found.iter().map(|(n, d, inputs)| part(n, d, inputs)).collect();
        let stored = parts.iter().filter(|p| p.role == Role::Stored).count() as u64;
        let launches = if matches!(self.device(), Device::Cpu) { stored } else { launched };
        Ok(Explanation { parts, launches, device: self.device().label().to_owned() })
    }
}

/// A node, its definition before the computation, and its inputs' positions.
type ComputedNode = (Arc<Node>, Option<Arc<Def>>, Vec<usize>);

#[derive(Default)]
struct GraphWalk {
    found: Vec<ComputedNode>,
    place: HashMap<*const Node, usize>,
}

impl GraphWalk {
    /// Adds a node after its inputs. The depth of uncomputed graphs has a bound.
    fn node(&mut self, node: &Arc<Node>) -> usize {
        if let Some(place) = self.place.get(&Arc::as_ptr(node)) {
            return *place;
        }
        let def = node.def();
        let inputs = def.as_ref().map_or_else(Vec::new, |d| {
            d.inputs.iter().map(|input| self.node(input)).collect::<Vec<_>>()
        });
        let place = self.found.len();
        self.found.push((Arc::clone(node), def, inputs));
        self.place.insert(Arc::as_ptr(node), place);
        place
    }
}

fn part(node: &Arc<Node>, def: &Option<Arc<Def>>, inputs: &[usize]) -> Part {
    let role = match def.as_ref().map(|d| &d.op) {
        None => Role::Given,
        Some(_) if node.value().is_none() => Role::Fused,
        Some(Op::View(_) | Op::Reshape)
            if def.iter().flat_map(|d| &d.inputs).all(|i| i.value().is_some()) =>
        {
            Role::View
        }
        Some(_) => Role::Stored,
    };
    Part {
        operation: def.as_ref().map_or_else(|| "memory".to_owned(), |d| name(&d.op)),
        dtype: node.dtype,
        shape: node.shape.clone(),
        inputs: inputs.to_vec(),
        role,
    }
}

fn name(op: &Op) -> String {
    match op {
        Op::Unary(op) => op.name().to_owned(),
        Op::Binary(op) => op.name().to_owned(),
        Op::Fold { op, .. } => format!("fold {}", format!("{op:?}").to_lowercase()),
        Op::Scan(op) => format!("scan {}", format!("{op:?}").to_lowercase()),
        other => {
            let text = format!("{other:?}");
            let word = text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            word.to_lowercase()
        }
    }
}
