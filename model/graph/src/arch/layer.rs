//! The model while its graph is built: the sizes of the file, the facts of the architecture, and
//! the steps that all layers share.

use super::facts::{Facts, LocalRope, RopeOn, Scale, Width, Windows};
use super::hparams::{Hparams, table_name};
use crate::op::{Mask, NormKind};
use crate::{Builder, GraphError, Pairing, Part, Rope, RopeId, RopeScaling, ValueId, WeightId};
use kjit_gguf::Gguf;

/// Divisors of a rotation's frequencies.
pub const ROPE_FREQS: &str = "rope_freqs";

/// A model: facts, sizes, rotations and windows.
pub struct Model<'a> {
    /// The facts of the architecture.
    pub facts: Facts,
    /// The sizes of the model.
    pub h: Hparams<'a>,
    /// Rotation of layers with full attention.
    pub rope: Option<RopeId>,
    /// Rotation of layers with a window.
    pub local_rope: Option<RopeId>,
    /// The width of the window.
    window: Option<usize>,
    windowed: Vec<bool>,
    rotated_layers: Vec<bool>,
}

/// One layer of the model.
#[derive(Clone, Copy)]
pub struct Layer<'m, 'a> {
    /// The model.
    pub m: &'m Model<'a>,
    /// The index of the layer.
    pub index: usize,
    /// The residual stream at the layer's input.
    pub input: ValueId,
}

impl<'a> Model<'a> {
    /// Reads the sizes, rotations and windows of the file.
    pub fn open(gguf: &'a Gguf, facts: &Facts) -> Result<(Self, Builder<'a>), GraphError> {
        let h = Hparams::read(gguf, facts)?;
        const CAUSAL: &str = "attention.causal";
        if let Some(causal) = h.flag(CAUSAL)?.filter(|causal| *causal == facts.encoder) {
            let why = "kjit does not support this attention mask for this architecture";
            return Err(h.bad(CAUSAL, causal, why));
        }
        let mut b = Builder::new(gguf, h.arch, h.context);
        let (rope, local_rope) = ropes(&mut b, &h, facts)?;
        let (window, windowed) = windows(&h, facts)?;
        let any = windowed.iter().any(|w| *w);
        let rotated_layers = match facts.rope_on {
            RopeOn::All => vec![true; h.layers],
            RopeOn::WindowedIfAny if !any => vec![true; h.layers],
            RopeOn::Windowed | RopeOn::WindowedIfAny => windowed.clone(),
            RopeOn::AllButFirst(n) if any && h.layers != n => {
                (0..h.layers).map(|i| i % n != 0).collect()
            }
            RopeOn::AllButFirst(_) => vec![true; h.layers],
            RopeOn::AllBut(n) => (0..h.layers).map(|i| (i + 1) % n != 0).collect(),
            RopeOn::Key(key) => {
                let list = gguf.opt_bools(&h.key(key))?.unwrap_or_else(|| vec![true; h.layers]);
                checked_list(&h, key, list)?
            }
            RopeOn::Unless(key) => vec![h.flag(key)?.unwrap_or(true); h.layers],
            RopeOn::IfLayers(n) => vec![h.layers == n; h.layers],
        };
        Ok((Model { facts: *facts, h, rope, local_rope, window, windowed, rotated_layers }, b))
    }

    /// A layer that reads the given residual stream.
    pub fn layer(&self, index: usize, input: ValueId) -> Layer<'_, 'a> {
        Layer { m: self, index, input }
    }

    /// The value of a factor; `default` if its key is absent.
    pub fn scale(&self, scale: Scale, default: f32) -> Result<f32, GraphError> {
        Ok(match scale {
            Scale::One => 1.0,
            Scale::Head => 1.0 / (self.h.head_dim.max(1) as f32).sqrt(),
            Scale::Is(x) => x,
            Scale::SqrtWidth => (self.h.width as f32).sqrt(),
            Scale::Key(key) => self.h.factor(key)?.unwrap_or(default),
            Scale::Over(key) => self.h.factor(key)?.map_or(default, |f| 1.0 / f),
            Scale::Of(f) => f(&self.h),
            Scale::Or(key, f) => self.h.factor(key)?.unwrap_or_else(|| f(&self.h)),
            Scale::OverOr(key, f) => 1.0 / self.h.factor(key)?.unwrap_or_else(|| f(&self.h)),
        })
    }

    /// A soft cap; 0 means none.
    pub fn cap(&self, key: &str, default: f32) -> Result<Option<f32>, GraphError> {
        Ok(Some(self.h.real(key)?.unwrap_or(default)).filter(|cap| *cap != 0.0))
    }

    /// A norm over the whole width outside the layers. Its bias is added if the file has one.
    pub fn norm(&self, b: &mut Builder<'_>, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
        let (kind, eps) = (self.facts.norm, self.h.eps);
        match self.facts.plain_norms {
            true => Ok(b.norm(name, x, kind, self.h.width, (None, None), eps)),
            false => norm(b, name, name.to_string(), x, (kind, eps), self.h.width),
        }
    }

    /// The token embedding.
    pub fn embedding(&self, b: &mut Builder<'_>) -> Result<(ValueId, WeightId), GraphError> {
        let table = b.matrix(table_name(self.h.gguf()), self.h.vocab, self.h.width)?;
        let scale = self.scale(self.facts.embed_scale, 1.0)?;
        Ok((b.embed("embed", table, crate::op::By::Token, scale), table))
    }
}

impl Layer<'_, '_> {
    /// The sizes of the model.
    pub fn h(&self) -> &Hparams<'_> {
        &self.m.h
    }

    /// The name of a value: `blk.3.name`.
    pub fn name(&self, name: &str) -> String {
        format!("blk.{}.{name}", self.index)
    }

    /// The name of a tensor: `blk.3.name.weight`.
    pub fn weight_name(&self, name: &str) -> String {
        format!("blk.{}.{name}.weight", self.index)
    }

    /// Whether the file has the tensor `blk.3.name.weight`.
    pub fn has(&self, b: &Builder<'_>, name: &str) -> bool {
        b.has(&self.weight_name(name))
    }

    /// The size of an axis of a tensor of the layer, if the tensor exists.
    pub fn width_of(&self, b: &Builder<'_>, name: &str, axis: usize) -> Option<usize> {
        b.dims(&self.weight_name(name)).and_then(|dims| dims.get(axis)).map(|&n| n as usize)
    }

    /// Number of query heads.
    pub fn heads(&self) -> usize {
        self.h().heads.get(self.index).copied().unwrap_or(0)
    }

    /// Number of key and value heads.
    pub fn kv_heads(&self) -> usize {
        self.h().kv_heads.get(self.index).copied().unwrap_or(0)
    }

    /// Whether the layer has a window.
    pub fn is_windowed(&self) -> bool {
        self.m.windowed.get(self.index).copied().unwrap_or(false)
    }

    /// The window and the mask of the layer.
    pub fn window(&self) -> (Option<usize>, Mask) {
        match (self.m.facts.windows, self.is_windowed()) {
            (_, false) if self.m.facts.encoder => (None, Mask::All),
            (_, true) if self.m.facts.encoder => {
                (None, self.m.window.map_or(Mask::All, Mask::Around))
            }
            (_, false) => (None, Mask::Causal),
            (Windows::Chunks(n, _), true) => (None, Mask::Chunk(n)),
            (_, true) => (self.m.window, Mask::Causal),
        }
    }

    /// The rotation of the layer, if it has one.
    pub fn rope(&self) -> Option<RopeId> {
        let rotated_layers = self.m.rotated_layers.get(self.index).copied().unwrap_or(false);
        let rope = if self.is_windowed() { self.m.local_rope } else { self.m.rope };
        rope.filter(|_| rotated_layers)
    }

    /// The architecture's norm over the whole width. Its bias is added if the file has one.
    pub fn norm(&self, b: &mut Builder<'_>, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
        let (kind, width) = (self.m.facts.norm, self.h().width);
        match self.m.facts.plain_norms {
            true => Ok(b.norm(self.name(name), x, kind, width, (None, None), self.h().eps)),
            false => self.norm_of(b, name, x, kind, width),
        }
    }

    /// The bias of some rows of a projection: a part of the bias of its tensor, or a separate
    /// tensor for these rows.
    fn bias(
        &self,
        b: &mut Builder<'_>,
        tensor: &str,
        part: &str,
        rows: Part,
    ) -> Result<Option<WeightId>, GraphError> {
        let [whole, own] = [tensor, part].map(|n| self.name(&format!("{n}.bias")));
        let unused = |name: &str| self.m.facts.unused.iter().any(|part| name.contains(part));
        match (b.has(&whole), b.has(&own)) {
            (true, _) if !unused(&whole) => b.vector_part(&whole, rows).map(Some),
            (false, true) if !unused(&own) => b.vector(&own, rows.take).map(Some),
            _ => Ok(None),
        }
    }

    /// A norm of groups of elements.
    pub fn norm_of(
        &self,
        b: &mut Builder<'_>,
        name: &str,
        x: ValueId,
        kind: NormKind,
        group: usize,
    ) -> Result<ValueId, GraphError> {
        self.norm_with(b, name, x, (kind, self.h().eps), group)
    }

    /// A norm of groups of elements with a given epsilon.
    pub fn norm_with(
        &self,
        b: &mut Builder<'_>,
        name: &str,
        x: ValueId,
        how: (NormKind, f32),
        group: usize,
    ) -> Result<ValueId, GraphError> {
        norm(b, &self.name(name), self.name(name), x, how, group)
    }

    /// A projection, with its bias and its scale if the file has them.
    pub fn project(
        &self,
        b: &mut Builder<'_>,
        name: &str,
        x: ValueId,
        rows: usize,
        cols: usize,
    ) -> Result<ValueId, GraphError> {
        self.project_part(b, (name, name), x, Part::all(rows), cols)
    }

    /// Some rows of a projection of one tensor, written to a value of a different name.
    pub fn project_part(
        &self,
        b: &mut Builder<'_>,
        (tensor, name): (&str, &str),
        x: ValueId,
        rows: Part,
        cols: usize,
    ) -> Result<ValueId, GraphError> {
        let w = b.matrix_part(&self.weight_name(tensor), rows, cols)?;
        let bias = self.bias(b, tensor, name, rows)?;
        let scale = self.name(&format!("{tensor}.scale"));
        let one = b.dims(&scale).is_some_and(|d| d.iter().product::<u64>() == 1);
        if !one {
            return Ok(b.matmul(self.name(name), x, w, bias));
        }
        let scale = Some(b.vector(&scale, 1)?);
        // In a feed-forward part, the scale also applies to the bias.
        let (inside, behind) = if tensor.starts_with("ffn_") { (bias, None) } else { (None, bias) };
        let out = b.matmul(self.name(name), x, w, inside);
        Ok(b.affine(self.name(&format!("{name}_scaled")), out, 1.0, (scale, behind)))
    }
}

/// A norm with the weights of a tensor. The tensor has the length of a group or of the row. The
/// norm has no weights if the file has none for the whole norm.
fn norm(
    b: &mut Builder<'_>,
    tensor: &str,
    name: String,
    x: ValueId,
    (kind, eps): (NormKind, f32),
    group: usize,
) -> Result<ValueId, GraphError> {
    // Some files name a norm's weights without `.weight`.
    let bare = b.has(tensor);
    let name_of = |part: &str| {
        if bare && part == "weight" { tensor.to_string() } else { format!("{tensor}.{part}") }
    };
    let width = b.graph().value(x).width;
    let mut find = |part: &str| -> Result<Option<WeightId>, GraphError> {
        let name = name_of(part);
        let elems = b.dims(&name).map(|d| d.iter().product::<u64>());
        match elems {
            None => Ok(None),
            Some(n) if n == width as u64 => b.vector(&name, width).map(Some),
            Some(_) => b.vector(&name, group).map(Some),
        }
    };
    let weight = match find("weight")? {
        Some(w) => Some(w),
        None => Some(b.vector(&name_of("weight"), group)?),
    };
    let bias = match kind {
        _ if b.has(&name_of("bias")) => {
            let n = b.dims(&name_of("bias")).map_or(0, |d| d.iter().product::<u64>() as usize);
            Some(b.vector(&name_of("bias"), if n == width { width } else { group })?)
        }
        _ => None,
    };
    Ok(b.norm(name, x, kind, group, (weight, bias), eps))
}

/// The rotations of layers with full attention and of layers with a window.
fn ropes(
    b: &mut Builder<'_>,
    h: &Hparams<'_>,
    facts: &Facts,
) -> Result<(Option<RopeId>, Option<RopeId>), GraphError> {
    let Some(pairing) = facts.rope else { return Ok((None, None)) };
    // GGUF files never have this key. Folders of safetensors have it, because their rows are not
    // reordered.
    let pairing = match h.gguf().opt_str(&h.key("rope.pairing"))? {
        None => pairing,
        Some("halves") => Pairing::Halves,
        Some(other) => return Err(h.bad("rope.pairing", other, "kjit supports only 'halves'")),
    };
    let head = h.rope_head()?;
    let half = h.rope_dims(head)? / 2;
    // Divisors of frequencies: one set for all contexts, or two sets. The second set is for
    // contexts longer than the original one.
    let factors = match b.opt_vector(&format!("{ROPE_FREQS}.weight"), half)? {
        _ if facts.unused.contains(&ROPE_FREQS) => None,
        None => b.opt_vector("rope_factors_short.weight", half)?,
        all => all,
    };
    let original = h.opt_size("rope.scaling.original_context_length")?.unwrap_or(h.context);
    let long = match facts.unused.contains(&ROPE_FREQS) {
        true => None,
        false => b.opt_vector("rope_factors_long.weight", half)?.map(|w| (original, w)),
    };
    let (full, plain) = h.ropes(facts, pairing, head, factors)?;
    let full = Rope { long, ..full };
    let own_base = h.rope_base("rope.freq_base_swa")?;
    let local = match facts.local_rope {
        LocalRope::Same => full.clone(),
        LocalRope::OwnBase => {
            // llama.cpp applies the type `none` to the other layers only.
            let none = h.gguf().opt_str(&h.key("rope.scaling.type"))? == Some("none");
            let factor = h.rope_factor()?;
            let scaling =
                if none && factor != 1.0 { RopeScaling::Linear(factor) } else { full.scaling };
            Rope { base: own_base.unwrap_or(full.base), scaling, ..full.clone() }
        }
        LocalRope::Plain => Rope { scaling: RopeScaling::None, magnitude: 1.0, ..full.clone() },
        LocalRope::Base(base) => {
            let dims = h.opt_size("rope.dimension_count_swa")?.unwrap_or(full.dims);
            Rope { dims, base: own_base.unwrap_or(base), factors: None, ..plain }
        }
    };
    // Rotations are in the order of their first use by a layer.
    let first_local = windows(h, facts)?.1.first() == Some(&true);
    let (first, second) = if first_local { (local, full) } else { (full, local) };
    let (first, second) = (b.rope_table(first), b.rope_table(second));
    Ok(if first_local { (Some(second), Some(first)) } else { (Some(first), Some(second)) })
}

/// The width of the window, and whether each layer has it.
fn windows(h: &Hparams<'_>, facts: &Facts) -> Result<(Option<usize>, Vec<bool>), GraphError> {
    const KEY: &str = "attention.sliding_window";
    const PATTERN: &str = "attention.sliding_window_pattern";
    let none = Ok((None, vec![false; h.layers]));
    let (period, first) = match facts.windows {
        Windows::None => return none,
        Windows::IfLayers(layers, _) if h.layers != layers => return none,
        Windows::IfKey(_) | Windows::AllButFirst(_) if h.number(KEY)?.unwrap_or(0) == 0 => {
            return none;
        }
        Windows::AllBut(n)
        | Windows::IfKey(n)
        | Windows::IfLayers(_, n)
        | Windows::Chunks(_, n) => (n, false),
        Windows::AllButFirst(n) => (n, true),
    };
    let window = match (facts.windows, facts.width) {
        (Windows::Chunks(n, _), _) | (_, Width::Is(n)) => n,
        (_, Width::Or(n)) => h.opt_size(KEY)?.unwrap_or(n),
        (_, Width::Key) => h.size(KEY)?,
    };
    let gguf = h.gguf();
    let list = match gguf.value(&h.key(PATTERN)) {
        Some(kjit_gguf::Value::Array(_)) => {
            let list = gguf.opt_bools(&h.key(PATTERN))?.unwrap_or_default();
            checked_list(h, PATTERN, list)?
        }
        _ => {
            let period = h.number(PATTERN)?.unwrap_or(period);
            let last = usize::from(!first);
            (0..h.layers).map(|i| period == 0 || (i + last) % period != 0).collect()
        }
    };
    Ok((Some(window), list))
}

/// Checks that a list has an entry for each layer of the forward pass.
fn checked_list(h: &Hparams<'_>, key: &str, mut list: Vec<bool>) -> Result<Vec<bool>, GraphError> {
    if list.len() < h.layers {
        return Err(h.bad(
            key,
            format!("a list of {}", list.len()),
            &format!("expected one entry for each of the {} layers", h.layers),
        ));
    }
    list.truncate(h.layers);
    Ok(list)
}
