//! Launches of groups. Prepared launches are cached by the structure of the group: the kernel, the
//! numbers of the launch, and the positions of buffers and constants.

use super::Gpu;
use super::elementwise::each;
use super::fold::{Division, fold};
use super::launch::{Grid, job};
use super::render::{BLOCK, Rendered};
use super::rows;
use crate::element::FoldOp;
use crate::error::Result;
use crate::fuse::Readers;
use crate::lower;
use crate::memory::{Buffer, Store};
use crate::node::Node;
use crate::program::{Instr, Map, Program};
use crate::recipe::{Kind, Structure};
use crate::shape::strides;
use kjit_engine::{Arg, Kernel};
use std::sync::{Arc, PoisonError};

/// Maximum number of cached groups of a device. When it is exceeded, the cache is cleared.
const MOST: usize = 4096;

/// A prepared launch.
pub(super) struct Recipe {
    kernel: Kernel,
    grid: Grid,
    numbers: Vec<i64>,
    /// Numbers that are constants of the structure: number, constant.
    constants: Vec<(usize, usize)>,
    /// The structure's leaf of each buffer.
    leaves: Vec<usize>,
    /// Bytes of the result.
    bytes: usize,
    /// The division of a fold.
    by: Option<Division>,
    /// Whether it reports wrong indices.
    looks_up: bool,
}

/// A prepared launch of a structure; `None` if it is not a group of rows.
pub(super) type PreparedLaunch = Option<Arc<Recipe>>;

impl Gpu {
    /// Computes a node of an element-wise group, or a fold of its only input.
    pub(crate) fn group(
        self: &Arc<Self>,
        node: &Arc<Node>,
        input: &Arc<Node>,
        op: Option<(FoldOp, usize)>,
    ) -> Result<Buffer> {
        let kind = op.map_or(Kind::Each, |(op, folded)| Kind::Fold(op, folded));
        let structure = Structure::of(input, kind)?;
        if let Some(s) = &structure
            && let Some(Some(recipe)) = self.known(s)
        {
            return self.again(&recipe, s, &node.shape);
        }
        let (program, nodes) = lower::group(input, op.map(|(_, n)| n))?;
        let (entry, rendered, by, dtype) = match op {
            Some((op, _)) => {
                let by = Division::of(&program);
                ("fold", fold(&program, op, &by), Some(by), op.result(program.dtype()))
            }
            None => {
                let map = Map { offset: 0, strides: strides(&program.shape) };
                ("each", each(&program, &map), None, program.dtype())
            }
        };
        let target = self.device.target();
        let kernel = self.kernel(entry, &rendered.text, |text| job(entry, text, BLOCK, target))?;
        let (grid, bytes) = (Grid::of(rendered.blocks), program.sizes().0 * dtype.size());
        let recipe =
            self.prepare((kernel, grid), rendered, &program, &nodes, structure.as_ref())?;
        self.first(Recipe { bytes, by, ..recipe }, &program, structure, &node.shape)
    }

    /// Computes a node that reads folds of its own rows, in one launch. `None` if it reads none.
    pub(crate) fn rows(self: &Arc<Self>, node: &Arc<Node>) -> Result<Option<Buffer>> {
        let Some(readers) = Readers::of_rows(node) else { return Ok(None) };
        let structure = Structure::of(node, Kind::Rows(&readers))?;
        if let Some(s) = &structure
            && let Some(known) = self.known(s)
        {
            return known.map(|recipe| self.again(&recipe, s, &node.shape)).transpose();
        }
        let Some(group) = lower::rows(node, readers)? else {
            if let Some(s) = structure {
                self.remember(s, None);
            }
            return Ok(None);
        };
        let (program, team) = (&group.program, rows::Team::of(&group.program, &group.to));
        let (count, length) = program.sizes();
        let rendered = rows::render(program, &group.to, team);
        let target = self.device.target();
        let kernel = self.kernel("rows", &rendered.text, |text| rows::job(text, team, target))?;
        let grid = Grid { blocks: rendered.blocks, threads: team.block(), shared: 0 };
        let recipe =
            self.prepare((kernel, grid), rendered, program, &group.nodes, structure.as_ref())?;
        let bytes = count * length * program.dtype().size();
        self.first(Recipe { bytes, ..recipe }, program, structure, &node.shape).map(Some)
    }

    fn known(&self, s: &Structure) -> Option<PreparedLaunch> {
        let recipes = self.recipes.lock().unwrap_or_else(PoisonError::into_inner);
        recipes.get(&s.words[..]).cloned()
    }

    fn remember(&self, s: Structure, known: PreparedLaunch) {
        let mut recipes = self.recipes.lock().unwrap_or_else(PoisonError::into_inner);
        if recipes.len() >= MOST {
            recipes.clear();
        }
        recipes.insert(s.words.into_boxed_slice(), known);
    }

    /// Launches the cached launch of an equal structure.
    fn again(self: &Arc<Self>, recipe: &Recipe, s: &Structure, shape: &[usize]) -> Result<Buffer> {
        let leaf = |i: &usize| s.leaves.get(*i).and_then(|n| n.value());
        let leaves: Vec<_> = recipe.leaves.iter().filter_map(leaf).collect();
        let mut numbers = recipe.numbers.clone();
        for (number, constant) in &recipe.constants {
            if let (Some(n), Some(c)) = (numbers.get_mut(*number), s.constants.get(*constant)) {
                *n = c.0 as i64;
            }
        }
        self.prepared(recipe, &numbers, &leaves, shape)
    }

    /// Launches the prepared program and caches it.
    fn first(
        self: &Arc<Self>,
        recipe: Recipe,
        program: &Program,
        structure: Option<Structure>,
        shape: &[usize],
    ) -> Result<Buffer> {
        let leaves: Vec<_> = program.leaves.iter().map(|l| &l.buffer).collect();
        let out = self.prepared(&recipe, &recipe.numbers, &leaves, shape)?;
        if let Some(s) = structure
            && recipe.leaves.len() == leaves.len()
        {
            self.remember(s, Some(Arc::new(recipe)));
        }
        Ok(out)
    }

    fn prepare(
        &self,
        (kernel, grid): (Kernel, Grid),
        mut rendered: Rendered,
        program: &Program,
        nodes: &[Arc<Node>],
        structure: Option<&Structure>,
    ) -> Result<Recipe> {
        // Lowering may have computed a node of the structure in a launch of its own. Then a buffer
        // is not a leaf of the structure, and the recipe is used only once.
        let leaf =
            |n: &Arc<Node>| structure.and_then(|s| s.leaves.iter().position(|l| Arc::ptr_eq(l, n)));
        let constant = |(number, reg): &(usize, usize)| {
            let step = program.steps.get(*reg)?;
            let Instr::Constant(bits) = step.instr else { return None };
            let own = (bits, step.dtype);
            Some((*number, structure?.constants.iter().position(|c| *c == own)?))
        };
        let looks_up = self.lookups(&mut rendered)?.is_some();
        Ok(Recipe {
            kernel,
            grid,
            constants: rendered.constants.iter().filter_map(constant).collect(),
            numbers: rendered.numbers,
            leaves: nodes.iter().filter_map(leaf).collect(),
            bytes: 0,
            by: None,
            looks_up,
        })
    }

    fn prepared(
        self: &Arc<Self>,
        recipe: &Recipe,
        numbers: &[i64],
        leaves: &[&Buffer],
        shape: &[usize],
    ) -> Result<Buffer> {
        let to = self.memory(recipe.bytes)?;
        let parts = recipe.by.as_ref().map(|by| self.parts(by)).transpose()?;
        let lane = self.lane();
        let mut args = Vec::with_capacity(4 + leaves.len());
        args.push(Arg::from(&to));
        if let Some(parts) = &parts {
            args.extend([Arg::from(parts), Arg::from(lane.counters()?)]);
        }
        if recipe.looks_up {
            args.push(Arg::from(self.error_slots()?));
        }
        for leaf in leaves {
            args.push(Arg::from(self.own_memory(leaf)?));
        }
        self.send(&recipe.kernel, recipe.grid, numbers, &args)?;
        Ok(Buffer::packed(Store::Gpu(Arc::clone(self), to), shape))
    }
}
