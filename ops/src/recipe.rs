//! The structure of a group as words, before it is lowered: operations, dtypes, shapes and strides,
//! but no values. It is the key of the prepared launches of a device, so a repeated expression is
//! neither lowered nor rendered again.

use crate::dtype::DType;
use crate::element::FoldOp;
use crate::error::Result;
use crate::fuse::Readers;
use crate::memory::Store;
use crate::node::{Node, Op};
use crate::view::View;
use std::sync::Arc;

/// Maximum number of nodes of a group whose structure is cached.
const MOST_NODES: usize = 64;

/// A group's structure, with its buffers and constants in the order of the walk.
#[derive(Default)]
pub(crate) struct Structure {
    pub words: Vec<u64>,
    /// Computed nodes that it reads.
    pub leaves: Vec<Arc<Node>>,
    /// Distinct constants: bits and dtype.
    pub constants: Vec<(u64, DType)>,
    nodes: Vec<*const Node>,
    shared: u64,
}

/// The kind of a group.
#[derive(Clone, Copy)]
pub(crate) enum Kind<'a> {
    /// Element-wise operations.
    Each,
    /// A fold of the last axes of an element-wise group.
    Fold(FoldOp, usize),
    /// Element-wise operations and folds of the same rows.
    Rows(&'a Readers),
}

/// The tags of the words.
mod tag {
    pub const LEAF: u64 = 1;
    pub const CONSTANT: u64 = 2;
    pub const IOTA: u64 = 3;
    pub const UNARY: u64 = 4;
    pub const BINARY: u64 = 5;
    pub const WHERE: u64 = 6;
    pub const CAST: u64 = 7;
    pub const VIEW: u64 = 8;
    pub const RESHAPE: u64 = 9;
    pub const FOLD: u64 = 10;
    pub const GATHER: u64 = 11;
    pub const INNER_FOLD: u64 = 12;
    pub const ROWS: u64 = 13;
}

impl Structure {
    /// The structure of a node's group, or of the node's reduction. Nodes that no such group
    /// contains (products, sorts, folds that are not of its rows) are computed. `None` if the group
    /// is large or has random numbers.
    ///
    /// # Errors
    /// Errors of computing those nodes.
    pub(crate) fn of(node: &Arc<Node>, kind: Kind<'_>) -> Result<Option<Structure>> {
        let mut s = Structure::roomy();
        if s.visit(node, kind)?.is_none() {
            return Ok(None);
        }
        match kind {
            Kind::Each => {}
            Kind::Fold(op, folded) => {
                s.words.push(tag::FOLD | (op as u64) << 8 | (folded as u64) << 16);
            }
            Kind::Rows(_) => s.words.push(tag::ROWS),
        }
        s.shape(&node.shape);
        // Lowering stores a shared node if many nodes are below it (see `lower`).
        s.words.push(if s.nodes.len() > 8 { s.shared } else { 0 });
        Ok(Some(s))
    }

    /// An empty one, with room for most groups.
    fn roomy() -> Structure {
        Structure {
            words: Vec::with_capacity(96),
            leaves: Vec::with_capacity(8),
            constants: Vec::with_capacity(4),
            nodes: Vec::with_capacity(24),
            shared: 0,
        }
    }

    fn shape(&mut self, shape: &[usize]) {
        self.words.push(shape.len() as u64);
        self.words.extend(shape.iter().map(|n| *n as u64));
    }

    fn view(&mut self, view: &View) {
        self.words.push(view.offset.len() as u64);
        self.words.extend(view.offset.iter().map(|n| *n as u64));
        self.words.extend(view.coef.iter().flatten().map(|n| *n as u64));
    }

    /// Adds a node's words and returns its index. `None` if the group is large or has random
    /// numbers.
    fn visit(&mut self, node: &Arc<Node>, kind: Kind<'_>) -> Result<Option<u64>> {
        let pointer = Arc::as_ptr(node);
        if let Some(at) = self.nodes.iter().position(|n| *n == pointer) {
            return Ok(Some(at as u64));
        }
        let head = |tag: u64, op: u64| tag | op << 8 | (node.dtype as u64) << 16;
        let def = match node.value() {
            Some(_) => None,
            None => node.def(),
        };
        let mut inputs = [0; 3];
        if self.nodes.len() >= MOST_NODES {
            return Ok(None);
        }
        if let Some(def) = &def {
            let inner = matches!(kind, Kind::Rows(readers) if readers.is_private(node));
            match def.op {
                Op::Random(..) => return Ok(None),
                Op::Fold { .. } if !inner => crate::eval::force(node)?,
                Op::Constant(_)
                | Op::Iota
                | Op::Unary(_)
                | Op::Binary(_)
                | Op::Where
                | Op::Cast
                | Op::View(_)
                | Op::Reshape
                | Op::Fold { .. }
                | Op::Gather { .. } => {
                    // A gather reads its source from memory.
                    if let (Op::Gather { .. }, Some(source)) = (&def.op, def.inputs.first()) {
                        crate::eval::force(source)?;
                    }
                    for (slot, input) in inputs.iter_mut().zip(&def.inputs) {
                        let Some(number) = self.visit(input, kind)? else { return Ok(None) };
                        *slot = number;
                    }
                }
                _ => crate::eval::force(node)?,
            }
        }
        let from = inputs.iter().fold(0, |all, n| all << 8 | n) << 32;
        match (node.value(), def.as_ref().map(|d| &d.op)) {
            (Some(buffer), _) => {
                // Kernels read memory of other libraries differently if it is not aligned.
                let odd = match &buffer.store {
                    Store::Gpu(_, memory) => !memory.address().is_multiple_of(16),
                    Store::Host(_) => false,
                };
                self.words.push(head(tag::LEAF, u64::from(odd)));
                self.shape(&node.shape);
                self.words.extend(buffer.strides.iter().map(|s| *s as u64));
                self.words.push(buffer.offset as u64);
                self.leaves.push(Arc::clone(node));
            }
            (None, Some(Op::Constant(bits))) => {
                let own = (*bits, node.dtype);
                let at = self.constants.iter().position(|c| *c == own);
                let at = at.unwrap_or_else(|| {
                    self.constants.push(own);
                    self.constants.len() - 1
                });
                self.words.push(head(tag::CONSTANT, 0) | (at as u64) << 32);
            }
            (None, Some(Op::Iota)) => {
                self.words.push(head(tag::IOTA, 0));
                self.shape(&node.shape);
            }
            (None, Some(Op::Unary(op))) => self.words.push(head(tag::UNARY, *op as u64) | from),
            (None, Some(Op::Binary(op))) => self.words.push(head(tag::BINARY, *op as u64) | from),
            (None, Some(Op::Where)) => self.words.push(head(tag::WHERE, 0) | from),
            (None, Some(Op::Cast)) => self.words.push(head(tag::CAST, 0) | from),
            (None, Some(Op::View(view))) => {
                self.words.push(head(tag::VIEW, 0) | from);
                self.view(view);
                self.shape(&node.shape);
            }
            (None, Some(Op::Gather { axis, size })) => {
                self.words.push(head(tag::GATHER, *axis as u64) | from);
                self.words.push(*size as u64);
                self.shape(&node.shape);
            }
            (None, Some(Op::Fold { op, folded })) => {
                self.words.push(head(tag::INNER_FOLD, *op as u64) | from);
                self.words.push(*folded as u64);
                self.shape(&node.shape);
            }
            (None, Some(Op::Reshape)) => {
                self.words.push(head(tag::RESHAPE, 0) | from);
                self.shape(&node.shape);
            }
            _ => return Ok(None),
        }
        let at = self.nodes.len();
        if at >= MOST_NODES {
            return Ok(None);
        }
        self.nodes.push(pointer);
        self.shared |= u64::from(node.shared()) << at;
        Ok(Some(at as u64))
    }
}
