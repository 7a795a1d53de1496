//! Finds what a group can be fused with: a product whose results it reads element by element, or
//! reductions (folds) of its rows.

use crate::hash::BuildFast;
use crate::node::{Def, Node, Op};
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum number of visited nodes.
const MOST_NODES: usize = 256;

/// The nodes of a group that are not computed yet, and how often the group reads each.
#[derive(Default)]
pub(crate) struct Readers {
    /// Whether nodes below folds belong to the group.
    folds: bool,
    reads: HashMap<*const Node, usize, BuildFast>,
    /// The owners of each: readers and tensors.
    owners: HashMap<*const Node, usize, BuildFast>,
    defs: HashMap<*const Node, Arc<Def>, BuildFast>,
}

/// Whether this is an element-wise operation.
fn is_element(op: &Op) -> bool {
    matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Where | Op::Cast)
}

/// Whether a group computes this node itself, so that nodes below it may join the group.
fn joins(op: &Op) -> bool {
    is_element(op) || matches!(op, Op::View(_) | Op::Reshape)
}

/// Whether a group reads a product, and a fold, that is not computed yet, so that it may run in the
/// product's kernel or in one of rows.
pub(crate) fn reads_apart(root: &Arc<Node>) -> (bool, bool) {
    let (mut product, mut fold) = (false, false);
    let mut open = vec![Arc::clone(root)];
    let mut seen: Vec<*const Node> = Vec::with_capacity(16);
    while let Some(node) = open.pop() {
        if node.value().is_some() || seen.contains(&Arc::as_ptr(&node)) {
            continue;
        }
        let Some(def) = node.def() else { continue };
        match &def.op {
            Op::Product | Op::Contract(_) => product = true,
            Op::Fold { .. } => fold = true,
            // Large groups are looked at more closely.
            _ if seen.len() >= 64 => return (true, true),
            op if joins(op) => {
                seen.push(Arc::as_ptr(&node));
                open.extend(def.inputs.iter().cloned());
            }
            _ => {}
        }
        if product && fold {
            break;
        }
    }
    (product, fold)
}

impl Readers {
    /// The nodes of a group of rows, including the inputs of folds. `None` without a fold, or if
    /// the root is neither an element-wise operation nor a view of one.
    pub(crate) fn of_rows(root: &Arc<Node>) -> Option<Readers> {
        let def = root.def()?;
        let inner = || def.inputs.first().and_then(|n| n.def());
        let view = matches!(def.op, Op::View(_)) && inner().is_some_and(|d| is_element(&d.op));
        if !is_element(&def.op) && !view {
            return None;
        }
        let mut readers = Readers { folds: true, ..Readers::default() };
        readers.count(root);
        let some = readers.defs.values().any(|def| matches!(def.op, Op::Fold { .. }));
        some.then_some(readers)
    }

    fn count(&mut self, node: &Arc<Node>) {
        let Some(def) = node.def() else { return };
        if self.defs.len() > MOST_NODES || self.defs.contains_key(&Arc::as_ptr(node)) {
            return;
        }
        self.owners.insert(Arc::as_ptr(node), Arc::strong_count(node));
        let inner = joins(&def.op) || (self.folds && matches!(def.op, Op::Fold { .. }));
        self.defs.insert(Arc::as_ptr(node), Arc::clone(&def));
        if inner {
            for input in &def.inputs {
                *self.reads.entry(Arc::as_ptr(input)).or_default() += 1;
                self.count(input);
            }
        }
    }

    /// Whether all consumers of this node are inside the group.
    pub(crate) fn is_private(&self, node: &Arc<Node>) -> bool {
        let node = Arc::as_ptr(node);
        self.reads.get(&node).is_some_and(|n| self.owners.get(&node) == Some(n))
    }

    /// Finds the product with `found.elements` elements below a node. Returns whether the node
    /// depends on it.
    fn products<'a>(
        &'a self,
        node: &'a Arc<Node>,
        root: bool,
        found: &mut GroupCandidate<'a>,
    ) -> bool {
        let Some(def) = self.defs.get(&Arc::as_ptr(node)) else { return false };
        if let Some(known) = found.leads.get(&Arc::as_ptr(node)) {
            return *known;
        }
        let leads = match &def.op {
            Op::Product | Op::Contract(_) if node.numel() == found.elements => {
                found.product.get_or_insert(node);
                found.product.is_some_and(|p| Arc::ptr_eq(p, node))
            }
            op if joins(op) => {
                // All inputs are visited.
                let lead: Vec<bool> =
                    def.inputs.iter().map(|n| self.products(n, false, found)).collect();
                lead.contains(&true)
            }
            _ => false,
        };
        found.private &= root || !leads || self.is_private(node);
        found.leads.insert(Arc::as_ptr(node), leads);
        leads
    }
}

struct GroupCandidate<'a> {
    elements: usize,
    product: Option<&'a Arc<Node>>,
    /// Whether all nodes between root and product are private.
    private: bool,
    leads: HashMap<*const Node, bool, BuildFast>,
}

/// The product that can be fused with a node's group: the group reads its result element by
/// element, and has its only readers. A product itself is returned.
pub(crate) fn product(node: &Arc<Node>) -> Option<Arc<Node>> {
    let mut readers = Readers::default();
    readers.count(node);
    let mut found = GroupCandidate {
        elements: node.numel(),
        product: None,
        private: true,
        leads: HashMap::default(),
    };
    readers.products(node, true, &mut found);
    found.product.filter(|_| found.private).map(Arc::clone)
}
