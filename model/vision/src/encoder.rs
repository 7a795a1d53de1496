//! The encoder: a vision transformer, and the projector after it, in f32.

use crate::attention::turn;
use crate::blocks::{Block, Rotation};
use crate::mmproj::{Linear, Norm, Tensors};
use crate::project::{Grid, Projection};
use crate::settings::{Projector, Settings};
use crate::{Picture, Prepared, VisionError};
use kjit_cpu::Dense;
use kjit_gguf::Gguf;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// An encoder of pictures with its projector, opened from an `mmproj` file.
pub struct VisionEncoder {
    tensors: Tensors,
    settings: Settings,
    patches: Linear,
    class: Option<Vec<f32>>,
    /// `None`: queries and keys are rotated.
    positions: Option<Vec<f32>>,
    before: Option<Norm>,
    blocks: Vec<Block>,
    after: Option<Norm>,
    projection: Projection,
    dense: Mutex<Dense>,
}

impl VisionEncoder {
    /// Opens an `mmproj` file. Weights stay in the mapped file. Products use `threads` threads.
    ///
    /// # Errors
    /// The file is no encoder that kjit computes, or its tensors have other shapes than its
    /// metadata say.
    pub fn open(path: impl AsRef<Path>, threads: usize) -> Result<VisionEncoder, VisionError> {
        let path = path.as_ref();
        let tensors = Tensors { gguf: Gguf::open(path)?, path: path.display().to_string() };
        let settings = Settings::read(&tensors.path, &tensors.gguf)?;
        let (width, side) = (settings.width, settings.side());
        let patches = tensors.linear("v.patch_embd", 3 * settings.patch * settings.patch)?;
        if patches.rows != width {
            let rows = patches.rows;
            return Err(tensors.wrong(format!("a matrix makes rows of {rows}, not of {width}")));
        }
        let class = match tensors.gguf.opt_tensor("v.class_embd")? {
            None => None,
            Some(_) => Some(tensors.vector("v.class_embd", width)?),
        };
        let rows = side * side + usize::from(class.is_some());
        let positions = match settings.projector {
            Projector::Pixtral => None,
            _ => Some(tensors.vector("v.position_embd.weight", rows * width)?),
        };
        let block = |i: usize| Block::read(&tensors, i, width);
        let blocks = (0..settings.blocks).map(block).collect::<Result<Vec<_>, _>>()?;
        let projection = Projection::read(&tensors, &settings)?;
        let (before, after) = (tensors.norm("v.pre_ln", width)?, tensors.norm("v.post_ln", width)?);
        let dense = Mutex::new(Dense::new(threads));
        Ok(VisionEncoder {
            tensors,
            settings,
            patches,
            class,
            positions,
            before,
            blocks,
            after,
            projection,
            dense,
        })
    }

    /// Elements of a row that [`VisionEncoder::encode`] makes: those of the model's hidden states.
    pub fn width(&self) -> usize {
        self.projection.width()
    }

    /// Whether the rows of a picture attend to each other in the model, also to later ones.
    pub fn is_bidirectional(&self) -> bool {
        self.settings.projector == Projector::Gemma3
    }

    /// Most rows that a picture or a tile becomes, besides the text around them.
    pub fn rows(&self) -> usize {
        self.settings.rows()
    }

    /// Decodes and preprocesses a picture.
    ///
    /// # Errors
    /// See [`Picture::decode`].
    pub fn prepare(&self, file: &[u8]) -> Result<Prepared, VisionError> {
        Ok(self.prepare_picture(&Picture::decode(file)?))
    }

    /// Preprocesses a decoded picture.
    pub fn prepare_picture(&self, picture: &Picture) -> Prepared {
        Prepared::new(picture, &self.settings)
    }

    /// The rows for the prompt, [`VisionEncoder::width`] elements each, tile by tile. One picture
    /// is computed at a time; other threads wait.
    ///
    /// # Errors
    /// The encoder's file was changed.
    pub fn encode(&self, picture: &Prepared) -> Result<Vec<f32>, VisionError> {
        let mut dense = self.dense.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rows = vec![];
        for tile in &picture.tiles {
            rows.extend(self.tile(&mut dense, tile)?);
        }
        Ok(rows)
    }

    fn tile(&self, dense: &mut Dense, tile: &Picture) -> Result<Vec<f32>, VisionError> {
        let (s, width, with) =
            (&self.settings, self.settings.width, (&self.tensors, &self.settings));
        let grid = Grid { columns: tile.width / s.patch, lines: tile.height / s.patch };
        let mut x = self.tensors.product(dense, &self.patches, &cut(tile, grid, s))?;
        if let Some(class) = &self.class {
            x.splice(0..0, class.iter().copied());
        }
        if let Some(positions) = &self.positions {
            x.iter_mut().zip(positions).for_each(|(x, at)| *x += at);
        }
        if let Some(norm) = &self.before {
            x = norm.apply(dense, &x, s.epsilon);
        }
        let turns = |rows: &mut [f32]| turn(rows, width, width / s.heads, grid.columns);
        let turns: Option<Rotation<'_>> =
            if self.positions.is_none() { Some(&turns) } else { None };
        for block in &self.blocks {
            block.run(dense, with, turns, &mut x)?;
        }
        if let Some(norm) = &self.after {
            x = norm.apply(dense, &x, s.epsilon);
        }
        if self.class.is_some() {
            x.drain(..width);
        }
        self.projection.run(dense, with, grid, &x)
    }
}

/// The patches of a tile, a row for each: all reds, then greens, then blues, scaled.
fn cut(tile: &Picture, grid: Grid, s: &Settings) -> Vec<f32> {
    let (p, patches) = (s.patch, grid.columns * grid.lines);
    let mut all = Vec::with_capacity(patches * 3 * p * p);
    for at in 0..patches {
        let (left, top) = (at % grid.columns * p, at / grid.columns * p);
        for channel in 0..3 {
            let (mean, std) = (s.mean[channel], s.std[channel]);
            for y in top..top + p {
                let line = &tile.rgb[3 * (y * tile.width + left)..][..3 * p];
                let values = line.iter().skip(channel).step_by(3);
                all.extend(values.map(|&x| (f32::from(x) * (1.0 / 255.0) - mean) / std));
            }
        }
    }
    all
}
