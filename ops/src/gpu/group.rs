//! Launches of groups. What was prepared for a group's structure is remembered: the kernel, the
//! numbers of the launch, and the places of buffers and constants.

use super::Gpu;
use super::each::each;
use super::fold::{Division, fold};
use crate::element::FoldOp;
use crate::error::Result;
use crate::lower;
use crate::memory::{Buffer, Store};
use crate::node::Node;
use crate::program::{Instr, Map, Program};
use crate::recipe::Structure;
use crate::shape::strides;
use kjit_engine::Kernel;
use std::sync::{Arc, PoisonError};

/// Remembered groups of a device; beyond that all are forgotten.
const MOST: usize = 4096;

/// A prepared launch.
pub(super) struct Recipe {
    kernel: Kernel,
    blocks: usize,
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

impl Gpu {
    /// Computes a node of an element-wise group, or a fold of its only input.
    pub(crate) fn group(
        self: &Arc<Self>,
        node: &Arc<Node>,
        input: &Arc<Node>,
        op: Option<(FoldOp, usize)>,
    ) -> Result<Buffer> {
        let structure = Structure::of(input, op)?;
        let lock = || self.recipes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(s) = &structure {
            let known = lock().get(&s.words[..]).cloned();
            if let Some(recipe) = known {
                let leaves: Vec<_> = recipe
                    .leaves
                    .iter()
                    .filter_map(|i| s.leaves.get(*i).and_then(|n| n.value()))
                    .collect();
                let mut numbers = recipe.numbers.clone();
                for (number, constant) in &recipe.constants {
                    if let (Some(n), Some(c)) =
                        (numbers.get_mut(*number), s.constants.get(*constant))
                    {
                        *n = c.0 as i64;
                    }
                }
                return self.prepared(&recipe, &numbers, &leaves, &node.shape);
            }
        }
        let (program, nodes) = lower::group(input, op.map(|(_, n)| n))?;
        let recipe = Arc::new(self.prepare(&program, &nodes, op, structure.as_ref())?);
        let leaves: Vec<_> = program.leaves.iter().map(|l| &l.buffer).collect();
        let out = self.prepared(&recipe, &recipe.numbers, &leaves, &node.shape)?;
        if let Some(s) = structure
            && recipe.leaves.len() == leaves.len()
        {
            let mut recipes = lock();
            if recipes.len() >= MOST {
                recipes.clear();
            }
            recipes.insert(s.words.into_boxed_slice(), recipe);
        }
        Ok(out)
    }

    fn prepare(
        &self,
        program: &Program,
        nodes: &[Arc<Node>],
        op: Option<(FoldOp, usize)>,
        structure: Option<&Structure>,
    ) -> Result<Recipe> {
        let (kept, _) = program.sizes();
        let (entry, mut rendered, by, dtype) = match op {
            Some((op, _)) => {
                let by = Division::of(program);
                ("fold", fold(program, op, &by), Some(by), op.result(program.dtype()))
            }
            None => {
                let map = Map { offset: 0, strides: strides(&program.shape) };
                ("each", each(program, &map), None, program.dtype())
            }
        };
        let kernel = self.kernel(entry, &rendered.text)?;
        // Lowering may have computed a node of the structure in a launch of its own. Then a buffer
        // is none of the structure's leaves, and the recipe is used once.
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
            looks_up,
            blocks: rendered.blocks,
            constants: rendered.constants.iter().filter_map(constant).collect(),
            numbers: rendered.numbers,
            leaves: nodes.iter().filter_map(leaf).collect(),
            bytes: kept * dtype.size(),
            by,
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
        let mut outputs = Vec::with_capacity(4);
        outputs.push(&to);
        if let Some(parts) = &parts {
            outputs.extend([parts, self.counters()?]);
        }
        if recipe.looks_up {
            outputs.push(self.wrong_indices()?);
        }
        self.send(&recipe.kernel, recipe.blocks, numbers, &outputs, leaves)?;
        Ok(Buffer::packed(Store::Gpu(Arc::clone(self), to), shape))
    }
}
