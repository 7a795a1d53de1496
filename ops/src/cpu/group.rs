//! Programs of groups for the CPU, cached by the structure of the groups.

use crate::dtype::DType;
use crate::element::FoldOp;
use crate::error::Result;
use crate::hash::BuildFast;
use crate::lower;
use crate::node::Node;
use crate::program::{Instr, Leaf, Map, Program, Step};
use crate::recipe::{Kind, Structure};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of cached groups. When it is exceeded, the cache is cleared.
const MOST: usize = 4096;

/// A program without its buffers and constants.
struct Recipe {
    shape: Vec<usize>,
    folded: usize,
    steps: Vec<Step>,
    maps: Vec<Map>,
    out: usize,
    /// The structure's leaf of each buffer, and its dtype.
    leaves: Vec<(usize, DType)>,
    /// Steps that are constants of the structure: step, constant.
    constants: Vec<(usize, usize)>,
}

type Recipes = HashMap<Box<[u64]>, Arc<Recipe>, BuildFast>;

static RECIPES: Mutex<Option<Recipes>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<Recipes>> {
    RECIPES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program for a node's group, or for the node's reduction.
pub(crate) fn program(node: &Arc<Node>, op: Option<(FoldOp, usize)>) -> Result<Program> {
    let kind = op.map_or(Kind::Each, |(op, folded)| Kind::Fold(op, folded));
    let structure = Structure::of(node, kind)?;
    if let Some(s) = &structure {
        let known = lock().as_ref().and_then(|r| r.get(&s.words[..])).cloned();
        if let Some(program) = known.and_then(|recipe| recipe.program(s)) {
            return Ok(program);
        }
    }
    let (program, nodes) = lower::group(node, op.map(|(_, n)| n))?;
    if let Some(s) = structure
        && let Some(recipe) = Recipe::of(&program, &nodes, &s)
    {
        let mut recipes = lock();
        let recipes = recipes.get_or_insert_default();
        if recipes.len() >= MOST {
            recipes.clear();
        }
        recipes.insert(s.words.into_boxed_slice(), Arc::new(recipe));
    }
    Ok(program)
}

impl Recipe {
    /// `None` if a buffer is not a leaf of the structure, because lowering computed a node.
    fn of(program: &Program, nodes: &[Arc<Node>], s: &Structure) -> Option<Recipe> {
        let leaf = |(node, leaf): (&Arc<Node>, &Leaf)| {
            Some((s.leaves.iter().position(|l| Arc::ptr_eq(l, node))?, leaf.dtype))
        };
        let constant = |(at, step): (usize, &Step)| {
            let Instr::Constant(bits) = step.instr else { return None };
            Some((at, s.constants.iter().position(|c| *c == (bits, step.dtype))?))
        };
        Some(Recipe {
            shape: program.shape.clone(),
            folded: program.folded,
            steps: program.steps.clone(),
            maps: program.maps.clone(),
            out: program.out,
            leaves: nodes.iter().zip(&program.leaves).map(leaf).collect::<Option<_>>()?,
            constants: program.steps.iter().enumerate().filter_map(constant).collect(),
        })
    }

    fn program(&self, s: &Structure) -> Option<Program> {
        let leaf = |(at, dtype): &(usize, DType)| {
            let buffer = s.leaves.get(*at)?.value()?.clone();
            Some(Leaf { buffer, dtype: *dtype })
        };
        let mut steps = self.steps.clone();
        for (at, constant) in &self.constants {
            steps.get_mut(*at)?.instr = Instr::Constant(s.constants.get(*constant)?.0);
        }
        Some(Program {
            shape: self.shape.clone(),
            folded: self.folded,
            steps,
            leaves: self.leaves.iter().map(leaf).collect::<Option<_>>()?,
            maps: self.maps.clone(),
            out: self.out,
        })
    }
}
