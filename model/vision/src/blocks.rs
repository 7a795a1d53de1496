//! The blocks of a vision transformer.

use crate::VisionError;
use crate::activation::activated;
use crate::attention::attention;
use crate::mmproj::{Linear, Norm, Tensors};
use crate::settings::Settings;
use kjit_cpu::Dense;

/// Rotates rows of queries or keys by their positions.
pub type Rotation<'a> = &'a dyn Fn(&mut [f32]);

/// A block: attention, then products, each added to its input.
pub struct Block {
    before_attention: Norm,
    query: Linear,
    key: Linear,
    value: Linear,
    /// Norms of whole rows of queries and keys (InternViT-6B).
    query_norm: Option<Norm>,
    key_norm: Option<Norm>,
    out: Linear,
    /// Factors on what is added (InternViT).
    attention_scale: Option<Vec<f32>>,
    before_products: Norm,
    /// The gate of gated products (Pixtral).
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    products_scale: Option<Vec<f32>>,
}

impl Block {
    /// Reads block `i`.
    pub fn read(tensors: &Tensors, i: usize, width: usize) -> Result<Block, VisionError> {
        let name = |part: &str| format!("v.blk.{i}.{part}");
        let has =
            |part: &str| Ok::<_, VisionError>(tensors.gguf.opt_tensor(&name(part))?.is_some());
        let linear = |part: &str, cols: usize| tensors.linear(&name(part), cols);
        let gated = has("ffn_gate.weight")?;
        // Older files name the two products the other way round.
        let swapped = !gated
            && tensors.inputs(&name("ffn_down.weight"))? == width
            && tensors.inputs(&name("ffn_up.weight"))? != width;
        let (up, down) = if swapped { ("ffn_down", "ffn_up") } else { ("ffn_up", "ffn_down") };
        let up = linear(up, width)?;
        let down = linear(down, up.rows)?;
        let gate = if gated { Some(linear("ffn_gate", width)?) } else { None };
        let scale = |part: &str| match has(&format!("{part}.weight"))? {
            true => Ok(Some(tensors.vector(&name(&format!("{part}.weight")), width)?)),
            false => Ok::<_, VisionError>(None),
        };
        let block = Block {
            before_attention: tensors.needed_norm(&name("ln1"), width)?,
            query: linear("attn_q", width)?,
            key: linear("attn_k", width)?,
            value: linear("attn_v", width)?,
            query_norm: tensors.norm(&name("attn_q_norm"), width)?,
            key_norm: tensors.norm(&name("attn_k_norm"), width)?,
            out: linear("attn_out", width)?,
            attention_scale: scale("ls1")?,
            before_products: tensors.needed_norm(&name("ln2"), width)?,
            gate,
            up,
            down,
            products_scale: scale("ls2")?,
        };
        let same = [&block.query, &block.key, &block.value, &block.out, &block.down];
        if let Some(odd) = same.into_iter().find(|linear| linear.rows != width) {
            return Err(
                tensors.wrong(format!("a matrix makes rows of {}, not of {width}", odd.rows))
            );
        }
        if block.gate.as_ref().is_some_and(|gate| gate.rows != block.up.rows) {
            return Err(
                tensors.wrong(format!("'{}' has another width than its gate", name("ffn_up")))
            );
        }
        Ok(block)
    }

    /// Applies the block to rows. `turn` rotates queries and keys.
    pub fn run(
        &self,
        dense: &mut Dense,
        (tensors, s): (&Tensors, &Settings),
        turn: Option<Rotation<'_>>,
        x: &mut [f32],
    ) -> Result<(), VisionError> {
        let y = self.before_attention.apply(dense, x, s.epsilon);
        let mut q = tensors.product(dense, &self.query, &y)?;
        let mut k = tensors.product(dense, &self.key, &y)?;
        let v = tensors.product(dense, &self.value, &y)?;
        for (rows, norm) in [(&mut q, &self.query_norm), (&mut k, &self.key_norm)] {
            if let Some(norm) = norm {
                *rows = norm.apply(dense, rows, s.epsilon);
            }
            if let Some(turn) = turn {
                turn(rows);
            }
        }
        let y = attention(dense, &q, &k, &v, s.width, s.heads);
        add(x, tensors.product(dense, &self.out, &y)?, self.attention_scale.as_deref());
        let y = self.before_products.apply(dense, x, s.epsilon);
        let up = tensors.product(dense, &self.up, &y)?;
        let mut z = match &self.gate {
            Some(gate) => tensors.product(dense, gate, &y)?,
            None => vec![],
        };
        let (plain, width) = (z.is_empty(), self.up.rows);
        if plain {
            z = up.clone();
        }
        dense.rows(&mut z, width, &|at, row| {
            row.iter_mut().for_each(|x| *x = activated(*x, s.activation));
            if !plain {
                row.iter_mut().zip(&up[at * width..]).for_each(|(x, up)| *x *= up);
            }
        });
        add(x, tensors.product(dense, &self.down, &z)?, self.products_scale.as_deref());
        Ok(())
    }
}

fn add(x: &mut [f32], y: Vec<f32>, scale: Option<&[f32]>) {
    match scale {
        None => x.iter_mut().zip(y).for_each(|(x, y)| *x += y),
        Some(scale) => {
            x.iter_mut().zip(y).zip(scale.iter().cycle()).for_each(|((x, y), s)| *x += y * s);
        }
    }
}
