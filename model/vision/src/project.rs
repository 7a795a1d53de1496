//! Projectors: the encoder's rows become the model's.

use crate::VisionError;
use crate::activation::exact_gelu;
use crate::mmproj::{Linear, Norm, Tensors};
use crate::settings::{Projector, Settings};
use crate::soft::SoftTokens;
use kjit_cpu::Dense;

/// Epsilon of PyTorch's layer norms, in the projector of InternVL.
const EPSILON: f32 = 1e-5;

/// The patches of a tile.
#[derive(Debug, Clone, Copy)]
pub struct Grid {
    pub columns: usize,
    pub lines: usize,
}

/// The weights of a projector. There is one of them, so the size of its variants does not matter.
#[allow(clippy::large_enum_variant)]
pub enum Projection {
    /// Two products with GELU between them, after an optional norm.
    Mlp {
        norm: Option<Norm>,
        /// Squares of rows become one row before.
        squares: Squares,
        first: Linear,
        second: Linear,
    },
    /// Squares of rows become one row, then one product.
    One(Linear),
    /// Gemma 3.
    Soft(SoftTokens),
}

/// The way from squares of rows to rows, before two products.
pub enum Squares {
    /// Rows stay.
    None,
    /// All rows of a square one after another (InternVL).
    Joined,
    /// Mistral 3: a norm, then a product with all elements of a square, whose last dimension is the
    /// row.
    Merged(Norm, Linear),
}

impl Projection {
    pub fn read(tensors: &Tensors, s: &Settings) -> Result<Projection, VisionError> {
        let (width, square) = (s.width, s.width * s.merge * s.merge);
        let mlp = |norm, squares, names: [&str; 2], inputs: usize| {
            let first = tensors.linear(names[0], inputs)?;
            let second = tensors.linear(names[1], first.rows)?;
            Ok(Projection::Mlp { norm, squares, first, second })
        };
        match s.projector {
            Projector::Mlp => mlp(None, Squares::None, ["mm.0", "mm.2"], width),
            Projector::Idefics3 => Ok(Projection::One(tensors.linear("mm.model.fc", square)?)),
            Projector::Gemma3 => Ok(Projection::Soft(SoftTokens::read(tensors, width)?)),
            Projector::InternVl => {
                let norm = tensors.needed_norm("mm.model.mlp.0", square)?;
                let names = ["mm.model.mlp.1", "mm.model.mlp.3"];
                mlp(Some(norm), Squares::Joined, names, square)
            }
            Projector::Pixtral => {
                let squares = match tensors.gguf.opt_tensor("mm.patch_merger.weight")? {
                    None => Squares::None,
                    Some(_) => {
                        let merger = tensors.linear("mm.patch_merger", square)?;
                        if merger.rows != width {
                            let rows = merger.rows;
                            let why =
                                format!("'mm.patch_merger' makes rows of {rows}, not {width}");
                            return Err(tensors.wrong(why));
                        }
                        Squares::Merged(tensors.needed_norm("mm.input_norm", width)?, merger)
                    }
                };
                mlp(None, squares, ["mm.1", "mm.2"], width)
            }
        }
    }

    /// Elements of a row of the model.
    pub fn width(&self) -> usize {
        match self {
            Projection::Mlp { second: last, .. } | Projection::One(last) => last.rows,
            Projection::Soft(soft) => soft.outputs,
        }
    }

    /// The model's rows for `x`, the encoder's rows of a tile.
    pub fn run(
        &self,
        dense: &mut Dense,
        (tensors, s): (&Tensors, &Settings),
        grid: Grid,
        x: &[f32],
    ) -> Result<Vec<f32>, VisionError> {
        match self {
            Projection::Soft(soft) => Ok(soft.project(dense, x, s)),
            Projection::One(product) => {
                tensors.product(dense, product, &joined(x, grid, s.width, s.merge))
            }
            Projection::Mlp { norm, squares, first, second } => {
                let mut x = match squares {
                    Squares::None => x.to_vec(),
                    Squares::Joined => joined(x, grid, s.width, s.merge),
                    Squares::Merged(norm, merger) => {
                        let x = norm.apply(dense, x, s.epsilon);
                        let x = joined(&x, grid, s.width, s.merge);
                        tensors.product(dense, merger, &turned(&x, s.width, s.merge))?
                    }
                };
                if let Some(norm) = norm {
                    x = norm.apply(dense, &x, EPSILON);
                }
                let mut y = tensors.product(dense, first, &x)?;
                dense.rows(&mut y, first.rows, &|_, row| {
                    row.iter_mut().for_each(|x| *x = exact_gelu(*x));
                });
                tensors.product(dense, second, &y)
            }
        }
    }
}

/// Squares of `merge` × `merge` rows become one row each: the pixel shuffle of Idefics 3.
fn joined(x: &[f32], grid: Grid, width: usize, merge: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for top in (0..grid.lines).step_by(merge) {
        for left in (0..grid.columns).step_by(merge) {
            for y in top..top + merge {
                out.extend_from_slice(&x[(y * grid.columns + left) * width..][..merge * width]);
            }
        }
    }
    out
}

/// Joined squares with the rows as the last dimension, as PyTorch's `unfold` has them.
fn turned(x: &[f32], width: usize, merge: usize) -> Vec<f32> {
    let rows = merge * merge;
    let mut out = Vec::with_capacity(x.len());
    for square in x.chunks_exact(width * rows) {
        out.extend((0..width * rows).map(|i| square[i % rows * width + i / rows]));
    }
    out
}
