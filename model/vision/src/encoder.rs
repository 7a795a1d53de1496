//! The encoder: a vision transformer, and the projector after it, in f32.

use crate::mmproj::{Linear, Norm, Tensors};
use crate::settings::{Activation, Projector, Settings};
use crate::soft::SoftTokens;
use crate::{Picture, Prepared, VisionError};
use kjit_cpu::Dense;
use kjit_gguf::Gguf;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Rows of queries whose scores are in memory at the same time.
const QUERIES: usize = 512;

struct Block {
    before_attention: Norm,
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    before_products: Norm,
    up: Linear,
    down: Linear,
}

/// An encoder of pictures with its projector, opened from an `mmproj` file.
pub struct VisionEncoder {
    tensors: Tensors,
    settings: Settings,
    patches: Linear,
    class: Option<Vec<f32>>,
    positions: Vec<f32>,
    before: Option<Norm>,
    blocks: Vec<Block>,
    after: Option<Norm>,
    projections: Vec<Linear>,
    soft: Option<SoftTokens>,
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
        let class = match tensors.gguf.opt_tensor("v.class_embd")? {
            None => None,
            Some(_) => Some(tensors.vector("v.class_embd", width)?),
        };
        let rows = side * side + usize::from(class.is_some());
        let positions = tensors.vector("v.position_embd.weight", rows * width)?;
        let block = |i: usize| {
            let name = |part: &str| format!("v.blk.{i}.{part}");
            let linear = |part: &str, cols: usize| tensors.linear(&name(part), cols);
            // Older files name the two products the other way round.
            let swapped = tensors.inputs(&name("ffn_down.weight"))? == width
                && tensors.inputs(&name("ffn_up.weight"))? != width;
            let (up, down) = if swapped { ("ffn_down", "ffn_up") } else { ("ffn_up", "ffn_down") };
            let up = linear(up, width)?;
            let down = linear(down, up.rows)?;
            Ok::<_, VisionError>(Block {
                before_attention: tensors.needed_norm(&name("ln1"), width)?,
                query: linear("attn_q", width)?,
                key: linear("attn_k", width)?,
                value: linear("attn_v", width)?,
                out: linear("attn_out", width)?,
                before_products: tensors.needed_norm(&name("ln2"), width)?,
                up,
                down,
            })
        };
        let blocks = (0..settings.blocks).map(block).collect::<Result<Vec<_>, _>>()?;
        let projections = match settings.projector {
            Projector::Mlp => {
                let first = tensors.linear("mm.0", width)?;
                let second = tensors.linear("mm.2", first.rows)?;
                vec![first, second]
            }
            Projector::Idefics3 => {
                vec![tensors.linear("mm.model.fc", width * settings.merge.pow(2))?]
            }
            Projector::Gemma3 => vec![],
        };
        let soft = match settings.projector {
            Projector::Gemma3 => Some(SoftTokens::read(&tensors, width)?),
            Projector::Mlp | Projector::Idefics3 => None,
        };
        let (before, after) = (tensors.norm("v.pre_ln", width)?, tensors.norm("v.post_ln", width)?);
        let all = blocks.iter().flat_map(|b| [&b.query, &b.key, &b.value, &b.out, &b.down]);
        if let Some(odd) = all.chain([&patches]).find(|linear| linear.rows != width) {
            let why = format!("a matrix makes rows of {}, not of {width}", odd.rows);
            return Err(VisionError::Encoder { path: tensors.path, why });
        }
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
            projections,
            soft,
            dense,
        })
    }

    /// Elements of a row that [`VisionEncoder::encode`] makes: those of the model's hidden states.
    pub fn width(&self) -> usize {
        match &self.soft {
            Some(soft) => soft.outputs,
            None => self.projections.last().map_or(0, |last| last.rows),
        }
    }

    /// Whether the rows of a picture attend to each other in the model, also to later ones.
    pub fn is_bidirectional(&self) -> bool {
        self.settings.projector == Projector::Gemma3
    }

    /// Most rows that a picture becomes, besides the text around them.
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
        let (s, width) = (&self.settings, self.settings.width);
        let mut x = self.linear(dense, &self.patches, &cut(tile, s))?;
        if let Some(class) = &self.class {
            x.splice(0..0, class.iter().copied());
        }
        x.iter_mut().zip(&self.positions).for_each(|(x, at)| *x += at);
        if let Some(norm) = &self.before {
            x = self.norm(dense, norm, &x);
        }
        for block in &self.blocks {
            let y = self.norm(dense, &block.before_attention, &x);
            let [q, k, v] = [&block.query, &block.key, &block.value];
            let [q, k, v] = [
                self.linear(dense, q, &y)?,
                self.linear(dense, k, &y)?,
                self.linear(dense, v, &y)?,
            ];
            let y = attention(dense, &q, &k, &v, width, s.heads);
            add(&mut x, &self.linear(dense, &block.out, &y)?);
            let y = self.norm(dense, &block.before_products, &x);
            let mut y = self.linear(dense, &block.up, &y)?;
            let activation = s.activation;
            dense.rows(&mut y, block.up.rows, &|_, row| {
                row.iter_mut().for_each(|x| *x = activated(*x, activation));
            });
            add(&mut x, &self.linear(dense, &block.down, &y)?);
        }
        if let Some(norm) = &self.after {
            x = self.norm(dense, norm, &x);
        }
        if self.class.is_some() {
            x.drain(..width);
        }
        if let Some(soft) = &self.soft {
            return Ok(soft.project(dense, &x, s));
        }
        match s.projector {
            Projector::Mlp => {
                let mut y = self.linear(dense, &self.projections[0], &x)?;
                dense.rows(&mut y, self.projections[0].rows, &|_, row| {
                    row.iter_mut().for_each(|x| *x = exact_gelu(*x));
                });
                self.linear(dense, &self.projections[1], &y)
            }
            Projector::Gemma3 | Projector::Idefics3 => {
                self.linear(dense, &self.projections[0], &merged(&x, s.side(), width, s.merge))
            }
        }
    }

    fn linear(
        &self,
        dense: &mut Dense,
        linear: &Linear,
        x: &[f32],
    ) -> Result<Vec<f32>, VisionError> {
        Ok(dense.linear(self.tensors.matrix(linear)?, linear.bias.as_deref(), x))
    }

    fn norm(&self, dense: &mut Dense, norm: &Norm, x: &[f32]) -> Vec<f32> {
        let (mut out, epsilon) = (x.to_vec(), self.settings.epsilon);
        dense.rows(&mut out, norm.weight.len(), &|_, row| {
            let n = row.len() as f32;
            let mean = row.iter().sum::<f32>() / n;
            let square = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / n;
            let scale = 1.0 / (square + epsilon).sqrt();
            let weights = norm.weight.iter().zip(&norm.bias);
            for (x, (weight, bias)) in row.iter_mut().zip(weights) {
                *x = (*x - mean) * scale * weight + bias;
            }
        });
        out
    }
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// The patches of a tile, a row for each: all reds, then greens, then blues, scaled.
fn cut(tile: &Picture, s: &Settings) -> Vec<f32> {
    let (p, side) = (s.patch, s.side());
    let mut all = Vec::with_capacity(side * side * 3 * p * p);
    for at in 0..side * side {
        let (left, top) = (at % side * p, at / side * p);
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

/// Attention of every row to all rows.
fn attention(
    dense: &mut Dense,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    width: usize,
    heads: usize,
) -> Vec<f32> {
    let (rows, each) = (q.len() / width, width / heads);
    let scale = 1.0 / (each as f32).sqrt();
    let mut out = vec![0.0; q.len()];
    let head = |x: &[f32], at: usize| -> Vec<f32> {
        x.chunks_exact(width).flat_map(|row| &row[at..at + each]).copied().collect()
    };
    for at in (0..width).step_by(each) {
        let (q, k, v) = (head(q, at), head(k, at), head(v, at));
        let mut turned = vec![0.0; v.len()];
        for (row, v) in v.chunks_exact(each).enumerate() {
            v.iter().enumerate().for_each(|(i, v)| turned[i * rows + row] = *v);
        }
        for first in (0..rows).step_by(QUERIES) {
            let q = &q[first * each..((first + QUERIES) * each).min(q.len())];
            let mut scores = dense.product(&k, each, q);
            dense.rows(&mut scores, rows, &|_, row| softmax(row, scale));
            let made = dense.product(&turned, rows, &scores);
            for (row, made) in made.chunks_exact(each).enumerate() {
                out[(first + row) * width + at..][..each].copy_from_slice(made);
            }
        }
    }
    out
}

fn softmax(row: &mut [f32], scale: f32) {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|x| *x = ((*x - most) * scale).exp());
    let sum: f32 = row.iter().sum();
    row.iter_mut().for_each(|x| *x /= sum);
}

/// Squares of `merge` × `merge` rows become one row: the pixel shuffle of Idefics 3.
fn merged(x: &[f32], side: usize, width: usize, merge: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for top in (0..side).step_by(merge) {
        for left in (0..side).step_by(merge) {
            for y in top..top + merge {
                out.extend_from_slice(&x[(y * side + left) * width..][..merge * width]);
            }
        }
    }
    out
}

fn activated(x: f32, activation: Activation) -> f32 {
    match activation {
        Activation::Gelu => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::QuickGelu => x / (1.0 + (-1.702 * x).exp()),
        Activation::Silu => x / (1.0 + (-x).exp()),
    }
}

/// GELU with the error function, as the projector of LLaVA has it.
fn exact_gelu(x: f32) -> f32 {
    (0.5 * f64::from(x) * (1.0 + erf(f64::from(x) * std::f64::consts::FRAC_1_SQRT_2))) as f32
}

/// The error function, to 1.5e-7 (Abramowitz and Stegun, 7.1.26).
fn erf(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let poly = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    let sum = poly.iter().fold(0.0, |sum, c| (sum + c) * t);
    (1.0 - sum * (-x * x).exp()).copysign(x)
}
