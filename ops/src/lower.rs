//! Lowers nodes to the bytecode of a group. Grouping is greedy and deterministic: element-wise
//! nodes, views, casts and gathers are merged into their consumer; folds, products, sorts and
//! copies are computed first and read.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::eval::force;
use crate::fuse::Readers;
use crate::hash::BuildFast;
use crate::memory::Buffer;
use crate::node::{Node, Op};
use crate::program::{Instr, Leaf, Map, MapId, Program, Reg, Step};
use crate::shape::strides;
use crate::view::View;
use std::collections::HashMap;
use std::sync::Arc;

/// Number of steps beyond which a group reads its remaining inputs from memory.
const MOST_STEPS: usize = 48;
/// Number of buffers beyond which it does so.
const MOST_LEAVES: usize = 16;
/// Number of element-wise nodes beyond which a shared node is computed once and stored.
const MOST_RECOMPUTED: usize = 8;

/// A row beyond this length is folded in the group's kernel only if there are many rows.
const LONGEST_ROW: usize = 1 << 17;
const LEAST_ROWS: usize = 64;

/// The element of a node that belongs to a position of the index space.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ElementPosition {
    /// By an index for each axis of the node.
    Axes(View),
    /// By the row-major index: offset and strides.
    Linear(i64, Vec<i64>),
}

/// A group under construction.
pub(crate) struct Lowering {
    shape: Vec<usize>,
    steps: Vec<Step>,
    known: HashMap<Step, Reg, BuildFast>,
    leaves: Vec<Leaf>,
    leaf_of: HashMap<*const Node, usize, BuildFast>,
    /// The node of each buffer.
    leaf_nodes: Vec<Arc<Node>>,
    maps: Vec<Map>,
    done: HashMap<(*const Node, ElementPosition), Reg, BuildFast>,
    /// The product in whose kernel the group runs.
    product: Option<Arc<Node>>,
    /// The folds that run in the group's own kernel.
    rows: Option<Rows>,
    /// Keeps the nodes of the pointers above alive.
    held: Vec<Arc<Node>>,
}

/// A lowered group of rows.
pub(crate) struct GroupOfRows {
    pub program: Program,
    /// The position of each element in the result.
    pub to: Map,
    /// The node of each buffer.
    pub nodes: Vec<Arc<Node>>,
}

/// Folds over the rows of a group.
struct Rows {
    readers: Readers,
    /// The axes of a row, after the first fold.
    axes: Vec<usize>,
}

/// The bytecode for every element of a node without a value, over its own shape.
pub(crate) fn each(node: &Arc<Node>) -> Result<Program> {
    let mut lowering = Lowering::new(&node.shape);
    let out =
        lowering.node(node, &ElementPosition::Axes(View::identity(node.shape.len())), true)?;
    Ok(lowering.finish(out, 0))
}

/// The bytecode for every element of a node, which reads each element of a product as `Given(0)`.
/// `None` if it cannot: the product is computed then, if the node is not the product itself.
pub(crate) fn after(node: &Arc<Node>, product: &Arc<Node>) -> Result<Option<Program>> {
    if Arc::ptr_eq(node, product) {
        return Ok(None);
    }
    let mut lowering = Lowering::new(&node.shape);
    lowering.product = Some(Arc::clone(product));
    let out =
        lowering.node(node, &ElementPosition::Axes(View::identity(node.shape.len())), true)?;
    Ok(product.value().is_none().then(|| lowering.finish(out, 0)))
}

/// The bytecode for every element of a node that reads folds of its own rows, the map of the
/// positions in memory, and the node of each buffer. A row is the last axes of the program. `None`
/// if there are no such folds.
pub(crate) fn rows(node: &Arc<Node>, readers: Readers) -> Result<Option<GroupOfRows>> {
    let mut lowering = Lowering::new(&node.shape);
    lowering.rows = Some(Rows { readers, axes: Vec::new() });
    let out =
        lowering.node(node, &ElementPosition::Axes(View::identity(node.shape.len())), true)?;
    let axes = lowering.rows.take().map(|r| r.axes).unwrap_or_default();
    if axes.is_empty() {
        return Ok(None);
    }
    lowering.maps.push(Map { offset: 0, strides: strides(&node.shape) });
    let order: Vec<usize> =
        (0..node.shape.len()).filter(|a| !axes.contains(a)).chain(axes.iter().copied()).collect();
    for map in &mut lowering.maps {
        map.strides = order.iter().map(|a| map.strides.get(*a).copied().unwrap_or(0)).collect();
    }
    lowering.shape = order.iter().map(|a| node.shape.get(*a).copied().unwrap_or(1)).collect();
    let nodes = std::mem::take(&mut lowering.leaf_nodes);
    let mut program = lowering.finish(out, axes.len());
    let to = program.maps.pop().ok_or(Error::Inside("a map was lost"))?;
    Ok(Some(GroupOfRows { program, to, nodes }))
}

/// The bytecode of a node, or of a fold of its last `folded` axes, and the node of each buffer.
pub(crate) fn group(node: &Arc<Node>, folded: Option<usize>) -> Result<(Program, Vec<Arc<Node>>)> {
    let mut lowering = Lowering::new(&node.shape);
    let place = ElementPosition::Axes(View::identity(node.shape.len()));
    let out = lowering.node(node, &place, folded.is_none())?;
    let nodes = std::mem::take(&mut lowering.leaf_nodes);
    Ok((lowering.finish(out, folded.unwrap_or(0)), nodes))
}

/// The bytecode for a fold's input, whose last `folded` axes are reduced.
pub(crate) fn fold(input: &Arc<Node>, folded: usize) -> Result<Program> {
    let mut lowering = Lowering::new(&input.shape);
    let out =
        lowering.node(input, &ElementPosition::Axes(View::identity(input.shape.len())), false)?;
    Ok(lowering.finish(out, folded))
}

/// The bytecode for a node's elements, and the map of their positions in a larger buffer.
pub(crate) fn copy(node: &Arc<Node>, to: Map) -> Result<(Program, Map)> {
    let mut lowering = Lowering::new(&node.shape);
    let out =
        lowering.node(node, &ElementPosition::Axes(View::identity(node.shape.len())), false)?;
    lowering.maps.push(to);
    let mut program = lowering.finish(out, 0);
    let to = program.maps.pop().ok_or(Error::Inside("a map was lost"))?;
    Ok((program, to))
}

/// Number of element-wise nodes below this one, counted up to a limit.
fn cost(node: &Node, left: usize) -> usize {
    if left == 0 || node.value().is_some() {
        return 0;
    }
    let Some(def) = node.def() else { return 0 };
    let own = match def.op {
        Op::Unary(_) | Op::Binary(_) | Op::Where | Op::Cast | Op::Gather { .. } => 1,
        Op::View(_) | Op::Reshape => 0,
        _ => return 0,
    };
    def.inputs.iter().fold(own, |sum, n| sum + cost(n, left.saturating_sub(sum)))
}

impl Lowering {
    fn new(shape: &[usize]) -> Lowering {
        Lowering {
            shape: shape.to_vec(),
            steps: Vec::new(),
            known: HashMap::default(),
            leaves: Vec::new(),
            leaf_of: HashMap::default(),
            leaf_nodes: Vec::new(),
            maps: Vec::new(),
            done: HashMap::default(),
            product: None,
            rows: None,
            held: Vec::new(),
        }
    }

    fn finish(self, out: Reg, folded: usize) -> Program {
        let Lowering { shape, steps, leaves, maps, .. } = self;
        let mut program = Program { shape, folded, steps, leaves, maps, out };
        program.collapse();
        program
    }

    fn push(&mut self, instr: Instr, dtype: DType) -> Reg {
        let step = Step { instr, dtype };
        if let Some(reg) = self.known.get(&step) {
            return *reg;
        }
        let reg = self.steps.len();
        self.steps.push(step);
        self.known.insert(step, reg);
        reg
    }

    fn map(&mut self, offset: i64, mut steps: Vec<i64>) -> MapId {
        // The stride of an axis with one element does not matter, so equal maps become identical.
        for (s, &n) in steps.iter_mut().zip(&self.shape) {
            if n == 1 {
                *s = 0;
            }
        }
        let map = Map { offset, strides: steps };
        self.maps.iter().position(|m| *m == map).unwrap_or_else(|| {
            self.maps.push(map);
            self.maps.len() - 1
        })
    }

    fn leaf(&mut self, node: &Arc<Node>, buffer: &Buffer) -> usize {
        let (leaves, nodes) = (&mut self.leaves, &mut self.leaf_nodes);
        *self.leaf_of.entry(Arc::as_ptr(node)).or_insert_with(|| {
            leaves.push(Leaf { buffer: buffer.clone(), dtype: node.dtype });
            nodes.push(Arc::clone(node));
            leaves.len() - 1
        })
    }

    /// The offset and strides of a position, in row-major order.
    fn linear(&self, place: &ElementPosition, shape: &[usize]) -> (i64, Vec<i64>) {
        match place {
            ElementPosition::Axes(view) => view.strided(0, &strides(shape), self.shape.len()),
            ElementPosition::Linear(offset, steps) => (*offset, steps.clone()),
        }
    }

    /// Whether a position is the group's own position in row-major order.
    fn in_order(&self, place: &ElementPosition, shape: &[usize]) -> bool {
        let (offset, steps) = self.linear(place, shape);
        let own = strides(&self.shape);
        let alike = |((s, o), n): ((&i64, &i64), &usize)| s == o || *n == 1;
        offset == 0 && steps.iter().zip(&own).zip(&self.shape).all(alike)
    }

    /// A position as one index per axis, if it has that form.
    fn by_axes(&self, place: &ElementPosition, shape: &[usize]) -> Option<View> {
        let (offset, steps) = match place {
            ElementPosition::Axes(view) => return Some(view.clone()),
            ElementPosition::Linear(offset, steps) => (*offset, steps),
        };
        let rank = self.shape.len();
        let rows = strides(shape);
        let mut view = View { offset: Vec::new(), coef: vec![vec![0; rank]; shape.len()] };
        let mut rest = offset;
        for r in &rows {
            view.offset.push(rest.div_euclid(*r));
            rest = rest.rem_euclid(*r);
        }
        for (k, &step) in steps.iter().enumerate() {
            if step == 0 || self.shape.get(k).is_some_and(|n| *n <= 1) {
                continue;
            }
            let a = rows.iter().zip(shape).position(|(r, n)| step % r == 0 && *n > 1)?;
            *view.coef.get_mut(a)?.get_mut(k)? = step / rows.get(a)?;
        }
        // The two forms are equal if every index stays inside its axis.
        let fits = view.offset.iter().zip(&view.coef).zip(shape).all(|((o, row), n)| {
            let reach = |sign: fn(i64) -> i64| -> i64 {
                row.iter().zip(&self.shape).map(|(c, &m)| sign(*c) * (m as i64 - 1)).sum()
            };
            o + reach(|c| c.min(0)) >= 0 && o + reach(|c| c.max(0)) < *n as i64
        });
        fits.then_some(view)
    }

    /// Reads a node with a value.
    fn read(&mut self, node: &Arc<Node>, place: &ElementPosition) -> Result<Reg> {
        let buffer = node.value().ok_or(Error::Inside("a node without a value was read"))?.clone();
        let (offset, steps) = if buffer.is_packed(&node.shape) {
            let (offset, steps) = self.linear(place, &node.shape);
            (offset + buffer.offset, steps)
        } else if let Some(view) = self.by_axes(place, &node.shape) {
            view.strided(buffer.offset, &buffer.strides, self.shape.len())
        } else {
            let packed = crate::eval::packed(node)?;
            return self.read(&packed, place);
        };
        let leaf = self.leaf(node, &buffer);
        self.held.push(Arc::clone(node));
        let map = self.map(offset, steps);
        Ok(self.push(Instr::Load(leaf, map), node.dtype))
    }

    /// The register with the node's element at a position. The group's own node is not computed
    /// separately.
    fn node(&mut self, node: &Arc<Node>, place: &ElementPosition, own: bool) -> Result<Reg> {
        if let Some(reg) = self.done.get(&(Arc::as_ptr(node), place.clone())) {
            return Ok(*reg);
        }
        let Some(def) = node.def().filter(|_| node.value().is_none()) else {
            return self.read(node, place);
        };
        if self.product.as_ref().is_some_and(|p| Arc::ptr_eq(p, node))
            && self.in_order(place, &node.shape)
        {
            return Ok(self.push(Instr::Given(0), node.dtype));
        }
        let full = self.steps.len() > MOST_STEPS || self.leaves.len() > MOST_LEAVES;
        let again = || node.shared() && cost(node, MOST_RECOMPUTED + 1) > MOST_RECOMPUTED;
        let element = matches!(
            def.op,
            Op::Unary(_) | Op::Binary(_) | Op::Where | Op::Cast | Op::Gather { .. }
        );
        if element && !own && (full || again()) {
            force(node)?;
            return self.read(node, place);
        }
        self.held.push(Arc::clone(node));
        let input = |i: usize| def.inputs.get(i).ok_or(Error::Inside("a node lacks an input"));
        let reg = match &def.op {
            Op::Constant(bits) => self.push(Instr::Constant(*bits), node.dtype),
            Op::Iota => {
                let (offset, steps) = self.linear(place, &node.shape);
                let map = self.map(offset, steps);
                self.push(Instr::Index(map), DType::I64)
            }
            Op::Random(key, first) => {
                let (offset, steps) = self.linear(place, &node.shape);
                let map = self.map(offset, steps);
                self.push(Instr::Random { key: *key, first: *first, map }, DType::U32)
            }
            Op::Unary(op) => {
                let x = self.node(input(0)?, place, false)?;
                self.push(Instr::Unary(*op, x), node.dtype)
            }
            Op::Binary(op) => {
                let (a, b) =
                    (self.node(input(0)?, place, false)?, self.node(input(1)?, place, false)?);
                self.push(Instr::Binary(*op, a, b), node.dtype)
            }
            Op::Where => {
                let c = self.node(input(0)?, place, false)?;
                let (a, b) =
                    (self.node(input(1)?, place, false)?, self.node(input(2)?, place, false)?);
                self.push(Instr::Where(c, a, b), node.dtype)
            }
            Op::Cast => {
                let x = self.node(input(0)?, place, false)?;
                self.push(Instr::Cast(x), node.dtype)
            }
            Op::View(view) => match self.by_axes(place, &node.shape) {
                Some(outer) => {
                    self.node(input(0)?, &ElementPosition::Axes(view.then(&outer)), false)?
                }
                None => return self.cut(node, place, own),
            },
            Op::Reshape => {
                let (offset, steps) = self.linear(place, &node.shape);
                self.node(input(0)?, &ElementPosition::Linear(offset, steps), false)?
            }
            Op::Gather { axis, size } => match self.by_axes(place, &node.shape) {
                Some(view) => self.gather(input(0)?, input(1)?, &view, *axis, *size)?,
                None => return self.cut(node, place, own),
            },
            Op::Fold { op, folded } => match self.row_place(node, input(0)?, place, *folded) {
                Some(inner) if op.fits_row_kernels() => {
                    let x = self.node(input(0)?, &inner, false)?;
                    self.push(Instr::Fold(*op, x), node.dtype)
                }
                _ => return self.cut(node, place, own),
            },
            Op::Product
            | Op::Contract(_)
            | Op::Attention { .. }
            | Op::Scan(_)
            | Op::ArgSort { .. }
            | Op::Assemble(_)
            | Op::Scatter { .. } => return self.cut(node, place, own),
        };
        self.done.insert((Arc::as_ptr(node), place.clone()), reg);
        Ok(reg)
    }

    /// Computes a node before the group and reads it.
    fn cut(&mut self, node: &Arc<Node>, place: &ElementPosition, own: bool) -> Result<Reg> {
        if own {
            return Err(Error::Inside("a group reads its own result"));
        }
        force(node)?;
        self.read(node, place)
    }

    /// The position of a reduction's input in a group of rows: that of the result, and along the
    /// row. `None` if the fold is not one over the group's rows.
    fn row_place(
        &mut self,
        node: &Arc<Node>,
        input: &Arc<Node>,
        place: &ElementPosition,
        folded: usize,
    ) -> Option<ElementPosition> {
        if !self.rows.as_ref()?.readers.is_private(node) {
            return None;
        }
        let mut view = self.by_axes(place, &node.shape)?;
        let constant = |a: usize| view.coef.iter().all(|row| row.get(a).is_none_or(|c| *c == 0));
        let sizes = self.shape.iter().copied().enumerate();
        let axes: Vec<usize> =
            sizes.filter(|(a, n)| *n > 1 && constant(*a)).map(|(a, _)| a).collect();
        let row = input.shape.get(input.shape.len().checked_sub(folded)?..)?;
        let long: Vec<usize> = row.iter().copied().filter(|n| *n > 1).collect();
        let own: Vec<usize> = axes.iter().filter_map(|a| self.shape.get(*a).copied()).collect();
        let length: usize = own.iter().product();
        let rows = self.shape.iter().product::<usize>() / length.max(1);
        // Few long rows are folded by more than one block each.
        if axes.is_empty() || own != long || (length > LONGEST_ROW && rows < LEAST_ROWS) {
            return None;
        }
        let known = &mut self.rows.as_mut()?.axes;
        if known.is_empty() {
            known.clone_from(&axes);
        } else if *known != axes {
            return None;
        }
        let mut next = axes.iter();
        for n in row {
            let mut coef = vec![0; self.shape.len()];
            if *n > 1 {
                *coef.get_mut(*next.next()?)? = 1;
            }
            view.offset.push(0);
            view.coef.push(coef);
        }
        Some(ElementPosition::Axes(view))
    }

    fn gather(
        &mut self,
        source: &Arc<Node>,
        index: &Arc<Node>,
        view: &View,
        axis: usize,
        size: usize,
    ) -> Result<Reg> {
        let reg = self.node(index, &ElementPosition::Axes(view.clone()), false)?;
        force(source)?;
        let buffer = source.value().ok_or(Error::Inside("a source has no value"))?.clone();
        let mut rest = view.clone();
        if let (Some(o), Some(row)) = (rest.offset.get_mut(axis), rest.coef.get_mut(axis)) {
            *o = 0;
            row.fill(0);
        }
        let (offset, steps) = rest.strided(buffer.offset, &buffer.strides, self.shape.len());
        let leaf = self.leaf(source, &buffer);
        self.held.push(Arc::clone(source));
        let map = self.map(offset, steps);
        let stride = buffer.strides.get(axis).copied().unwrap_or(0);
        let instr = Instr::Gather { leaf, map, index: reg, stride, size: size as i64, axis };
        Ok(self.push(instr, source.dtype))
    }
}
