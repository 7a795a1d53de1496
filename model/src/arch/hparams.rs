//! The sizes that every architecture here has, read and checked once.

use crate::gguf::Gguf;
use crate::graph::{GraphError, Pairing, Rope, RopeScaling, WeightId};

/// Sizes of a transformer.
pub struct Hparams<'a> {
    gguf: &'a Gguf,
    /// `general.architecture`, the prefix of its keys.
    pub arch: &'static str,
    /// Tokens seen in training.
    pub context: usize,
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Epsilon of the RMS norms.
    pub eps: f32,
    /// Size of the vocabulary: rows of the embedding.
    pub vocab: usize,
}

/// No model has a size above this; it keeps products of two sizes far from overflow.
const LARGEST: u32 = 1 << 24;

impl<'a> Hparams<'a> {
    /// Reads the sizes under `arch.`.
    pub fn read(gguf: &'a Gguf, arch: &'static str) -> Result<Self, GraphError> {
        let mut h = Hparams {
            gguf,
            arch,
            context: 0,
            layers: 0,
            width: 0,
            heads: 0,
            kv_heads: 0,
            head_dim: 0,
            eps: gguf.require_f32(&format!("{arch}.attention.layer_norm_rms_epsilon"))?,
            vocab: 0,
        };
        if !(h.eps.is_finite() && h.eps >= 0.0) {
            return Err(h.bad("attention.layer_norm_rms_epsilon", h.eps, "it must be a small number, not negative"));
        }
        h.context = h.size("context_length")?;
        h.layers = h.size("block_count")?;
        h.width = h.size("embedding_length")?;
        h.heads = h.size("attention.head_count")?;
        // The format's documented defaults: as many key heads as query heads, and heads that share the width.
        h.kv_heads = h.opt_size("attention.head_count_kv")?.unwrap_or(h.heads);
        if !h.heads.is_multiple_of(h.kv_heads) {
            return Err(h.bad("attention.head_count_kv", h.kv_heads, &format!("it must divide {} heads", h.heads)));
        }
        h.head_dim = match h.opt_size("attention.key_length")? {
            Some(k) => k,
            None if h.width.is_multiple_of(h.heads) => h.width / h.heads,
            None => {
                let why = format!("it must divide embedding_length {} where no key_length is given", h.width);
                return Err(h.bad("attention.head_count", h.heads, &why));
            }
        };
        if let Some(v) = h.opt_size("attention.value_length")?
            && v != h.head_dim
        {
            let why = format!("kjit runs only values as long as keys ({})", h.head_dim);
            return Err(h.bad("attention.value_length", v, &why));
        }
        let embd = gguf
            .tensor_info("token_embd.weight")
            .ok_or_else(|| GraphError::MissingTensor { name: "token_embd.weight".into(), arch: arch.into() })?;
        h.vocab = match *embd.dims() {
            [_, rows] if rows > 0 && rows <= u64::from(LARGEST) => rows as usize,
            _ => {
                let want = vec![h.width as u64, embd.dims().get(1).copied().unwrap_or(0)];
                return Err(GraphError::Shape { name: embd.name().into(), found: embd.dims().to_vec(), want });
            }
        };
        Ok(h)
    }

    /// The key under this architecture's prefix.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    /// A size that must be there and above zero.
    pub fn size(&self, name: &str) -> Result<usize, GraphError> {
        let v = self.gguf.require_u32(&self.key(name))?;
        self.checked(name, v)
    }

    /// A size above zero, if it is there.
    pub fn opt_size(&self, name: &str) -> Result<Option<usize>, GraphError> {
        self.gguf.opt_u32(&self.key(name))?.map(|v| self.checked(name, v)).transpose()
    }

    fn checked(&self, name: &str, v: u32) -> Result<usize, GraphError> {
        match v {
            0 => Err(self.bad(name, v, "it must be above zero")),
            1..=LARGEST => Ok(v as usize),
            _ => Err(self.bad(name, v, &format!("no model is larger than {LARGEST} there"))),
        }
    }

    /// The error for a value that makes no sense.
    pub fn bad(&self, name: &str, value: impl ToString, why: &str) -> GraphError {
        GraphError::Value { key: self.key(name), value: value.to_string(), why: why.into() }
    }

    /// The rotation that the keys describe; `factors` are the tensor's `rope_freqs`, `base` stands in where the file has none.
    pub fn rope(&self, pairing: Pairing, factors: Option<WeightId>) -> Result<Rope, GraphError> {
        // 10000 is the format's documented default.
        let base = self.gguf.opt_f32(&self.key("rope.freq_base"))?.unwrap_or(10000.0);
        if !(base.is_finite() && base > 1.0) {
            return Err(self.bad("rope.freq_base", base, "it must be above one"));
        }
        let dims = self.rope_dims()?;
        Ok(Rope { dims, pairing, base, scaling: self.rope_scaling()?, factors })
    }

    /// Elements of a head that turn.
    pub fn rope_dims(&self) -> Result<usize, GraphError> {
        let dims = self.opt_size("rope.dimension_count")?.unwrap_or(self.head_dim);
        if !dims.is_multiple_of(2) || dims > self.head_dim {
            let why = format!("it must be even and no more than a head's {} elements", self.head_dim);
            return Err(self.bad("rope.dimension_count", dims, &why));
        }
        Ok(dims)
    }

    fn rope_scaling(&self) -> Result<RopeScaling, GraphError> {
        let positive = |name: &str| -> Result<Option<f32>, GraphError> {
            match self.gguf.opt_f32(&self.key(name))? {
                Some(v) if !(v.is_finite() && v > 0.0) => Err(self.bad(name, v, "it must be above zero")),
                v => Ok(v),
            }
        };
        let kind = self.gguf.opt_str(&self.key("rope.scaling.type"))?;
        // Files older than the typed keys have `rope.scale_linear` alone.
        let factor = match positive("rope.scaling.factor")? {
            Some(f) => Some(f),
            None => positive("rope.scale_linear")?,
        };
        match (kind, factor) {
            (None | Some("linear"), Some(f)) if f != 1.0 => Ok(RopeScaling::Linear(f)),
            (None | Some("none" | "linear"), _) => Ok(RopeScaling::None),
            (Some("yarn"), Some(factor)) => Ok(RopeScaling::Yarn {
                factor,
                original_context: self.opt_size("rope.scaling.original_context_length")?.unwrap_or(self.context),
                beta_fast: positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                attention_factor: positive("rope.scaling.attn_factor")?.unwrap_or(1.0),
            }),
            (Some("yarn"), None) => Err(self.bad("rope.scaling.type", "yarn", "rope.scaling.factor is missing")),
            (Some(other), _) => Err(self.bad("rope.scaling.type", other, "kjit knows none, linear and yarn")),
        }
    }
}
