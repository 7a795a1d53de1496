//! The projector of Gemma 3: the mean of squares of rows, an RMS norm, a product.

use crate::VisionError;
use crate::mmproj::Tensors;
use crate::settings::Settings;
use kjit_cpu::Dense;

/// Weights of the projector.
pub struct SoftTokens {
    norm: Vec<f32>,
    /// A row for each element of the model's hidden states.
    product: Vec<f32>,
    /// Elements of the encoder's rows and of the model's.
    inputs: usize,
    pub outputs: usize,
}

impl SoftTokens {
    /// Reads the weights. The file has the matrix with a row for each *input*.
    pub fn read(tensors: &Tensors, inputs: usize) -> Result<SoftTokens, VisionError> {
        let outputs = tensors.inputs("mm.input_projection.weight")?;
        let elems = inputs.saturating_mul(outputs);
        let stored = tensors.vector("mm.input_projection.weight", elems)?;
        let mut product = vec![0.0; stored.len()];
        for (input, row) in stored.chunks_exact(outputs.max(1)).enumerate() {
            row.iter().enumerate().for_each(|(output, w)| product[output * inputs + input] = *w);
        }
        let norm = tensors.vector("mm.soft_emb_norm.weight", inputs)?;
        Ok(SoftTokens { norm, product, inputs, outputs })
    }

    /// The model's rows for `x`, the encoder's rows.
    pub fn project(&self, dense: &mut Dense, x: &[f32], s: &Settings) -> Vec<f32> {
        let mut rows = pooled(x, s.side(), self.inputs, s.merge);
        dense.rows(&mut rows, self.inputs, &|_, row| {
            let square = row.iter().map(|x| x * x).sum::<f32>() / row.len() as f32;
            let scale = 1.0 / (square + s.epsilon).sqrt();
            row.iter_mut().zip(&self.norm).for_each(|(x, weight)| *x *= scale * weight);
        });
        dense.product(&self.product, self.inputs, &rows)
    }
}

/// The mean of each square of `pool` × `pool` rows.
fn pooled(x: &[f32], side: usize, width: usize, pool: usize) -> Vec<f32> {
    let (each, share) = (side / pool, 1.0 / (pool * pool) as f32);
    let mut out = vec![0.0; each * each * width];
    for (at, row) in x.chunks_exact(width).enumerate() {
        let to = at / side / pool * each + at % side / pool;
        let to = &mut out[to * width..][..width];
        to.iter_mut().zip(row).for_each(|(to, x)| *to += x * share);
    }
    out
}
