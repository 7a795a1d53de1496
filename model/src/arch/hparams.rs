//! The sizes that every architecture here has, read and checked once.

use crate::gguf::Gguf;
use crate::graph::op::NormKind;
use crate::graph::{GraphError, Pairing, Rope, RopeScaling, WeightId};

/// Sizes of a model.
pub struct Hparams<'a> {
    gguf: &'a Gguf,
    /// `general.architecture`, the prefix of its keys.
    pub arch: &'a str,
    /// Tokens seen in training.
    pub context: usize,
    /// Layers of the forward pass: those that predict further tokens are not among them.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Query heads of each layer; 0 where it has no attention.
    pub heads: Vec<usize>,
    /// Key and value heads of each layer; 0 where it has no attention.
    pub kv_heads: Vec<usize>,
    /// Elements of a head's query and key.
    pub head_dim: usize,
    /// Elements of a head's value.
    pub value_dim: usize,
    /// Epsilon of the norms.
    pub eps: f32,
    /// Size of the vocabulary: rows of the embedding.
    pub vocab: usize,
}

/// No model has a size above this; it keeps products of two sizes far from overflow.
const LARGEST: u32 = 1 << 24;

impl<'a> Hparams<'a> {
    /// Reads the sizes under `arch.`; the norms' epsilon stands under one of two keys.
    pub fn read(gguf: &'a Gguf, norm: NormKind) -> Result<Self, GraphError> {
        let arch = gguf.architecture()?;
        let key = match norm {
            NormKind::Layer => "attention.layer_norm_epsilon",
            _ => "attention.layer_norm_rms_epsilon",
        };
        let mut h = Hparams {
            gguf,
            arch,
            context: 0,
            layers: 0,
            width: 0,
            heads: vec![],
            kv_heads: vec![],
            head_dim: 0,
            value_dim: 0,
            eps: gguf.require_f32(&format!("{arch}.{key}"))?,
            vocab: 0,
        };
        if !(h.eps.is_finite() && h.eps >= 0.0) {
            return Err(h.bad(key, h.eps, "it must be a small number, not negative"));
        }
        h.context = h.size("context_length")?;
        let layers = h.size("block_count")?;
        let further = h.number("nextn_predict_layers")?.unwrap_or(0);
        if further >= layers {
            return Err(h.bad("nextn_predict_layers", further, &format!("there are only {layers} layers")));
        }
        h.layers = layers - further;
        h.width = h.size("embedding_length")?;
        h.heads = h.per_layer("attention.head_count")?.unwrap_or_else(|| vec![0; h.layers]);
        // The format's documented defaults: as many key heads as query heads, and heads that share the width.
        h.kv_heads = h.per_layer("attention.head_count_kv")?.unwrap_or_else(|| h.heads.clone());
        for (&heads, &kv_heads) in h.heads.iter().zip(&h.kv_heads) {
            if kv_heads > 0 && !heads.is_multiple_of(kv_heads) {
                return Err(h.bad("attention.head_count_kv", kv_heads, &format!("it must divide {heads} heads")));
            }
        }
        let heads = h.heads.iter().copied().max().unwrap_or(0);
        h.head_dim = match h.opt_size("attention.key_length")? {
            Some(k) => k,
            None if heads == 0 => 0,
            None if h.width.is_multiple_of(heads) => h.width / heads,
            None => {
                let why = format!("it must divide embedding_length {} where no key_length is given", h.width);
                return Err(h.bad("attention.head_count", heads, &why));
            }
        };
        h.value_dim = h.opt_size("attention.value_length")?.unwrap_or(h.head_dim);
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

    /// The file.
    pub fn gguf(&self) -> &'a Gguf {
        self.gguf
    }

    /// A size per layer of the forward pass, one for all or a list, if it is there; 0 is a size.
    pub fn per_layer(&self, name: &str) -> Result<Option<Vec<usize>>, GraphError> {
        let all = self.size("block_count")?;
        let Some(list) = self.gguf.opt_per_layer_u32(&self.key(name), all)? else { return Ok(None) };
        if let Some(&v) = list.iter().find(|&&v| v > LARGEST) {
            return Err(self.bad(name, v, &format!("no model is larger than {LARGEST} there")));
        }
        Ok(Some(list.into_iter().take(self.layers).map(|v| v as usize).collect()))
    }

    /// A size, if it is there; 0 is one.
    pub fn number(&self, name: &str) -> Result<Option<usize>, GraphError> {
        match self.gguf.opt_u32(&self.key(name))? {
            Some(v) if v > LARGEST => Err(self.bad(name, v, &format!("no model is larger than {LARGEST} there"))),
            v => Ok(v.map(|v| v as usize)),
        }
    }

    /// A finite number, if it is there.
    pub fn real(&self, name: &str) -> Result<Option<f32>, GraphError> {
        match self.gguf.opt_f32(&self.key(name))? {
            Some(v) if !v.is_finite() => Err(self.bad(name, v, "it must be a number")),
            v => Ok(v),
        }
    }

    /// A finite number that is there and not 0, which means the same as absent.
    pub fn factor(&self, name: &str) -> Result<Option<f32>, GraphError> {
        Ok(self.real(name)?.filter(|v| *v != 0.0))
    }

    /// Yes or no, if it is there.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, GraphError> {
        Ok(self.gguf.opt_bool(&self.key(name))?)
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

    /// The rotation that the keys describe, of heads of so many elements; `factors` are the divisors of its
    /// frequencies.
    pub fn rope(&self, pairing: Pairing, head: usize, factors: Option<WeightId>) -> Result<Rope, GraphError> {
        // 10000 is the format's documented default.
        let base = self.rope_base("rope.freq_base")?.unwrap_or(10000.0);
        Ok(Rope { dims: self.rope_dims(head)?, pairing, base, scaling: self.rope_scaling()?, factors, long: None })
    }

    /// The base of a rotation, if it is there.
    pub fn rope_base(&self, name: &str) -> Result<Option<f32>, GraphError> {
        match self.gguf.opt_f32(&self.key(name))? {
            Some(base) if !(base.is_finite() && base > 1.0) => Err(self.bad(name, base, "it must be above one")),
            base => Ok(base),
        }
    }

    /// Elements of what turns: a head, or of latent attention the part of it that turns.
    pub fn rope_head(&self) -> Result<usize, GraphError> {
        match self.opt_size("attention.kv_lora_rank")? {
            Some(_) => self.size("rope.dimension_count"),
            None => Ok(self.head_dim),
        }
    }

    /// Elements of a head that turn.
    pub fn rope_dims(&self, head: usize) -> Result<usize, GraphError> {
        let dims = self.opt_size("rope.dimension_count")?.unwrap_or(head);
        if !dims.is_multiple_of(2) || dims > head {
            let why = format!("it must be even and no more than a head's {head} elements");
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
            // Factors of single frequencies are tensors; what this kind of stretching has besides is a factor
            // on what turns.
            (None | Some("none" | "longrope"), _)
                if positive("rope.scaling.attn_factor")?.is_some_and(|f| f != 1.0) =>
            {
                let magnitude = positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
                Ok(RopeScaling::Magnitude(magnitude))
            }
            (None | Some("none" | "linear" | "longrope"), _) => Ok(RopeScaling::None),
            (Some("yarn"), Some(factor)) => Ok(RopeScaling::Yarn {
                factor,
                original_context: self.opt_size("rope.scaling.original_context_length")?.unwrap_or(self.context),
                beta_fast: positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                attention_factor: positive("rope.scaling.attn_factor")?.unwrap_or(1.0),
                sharpen: self.factor("rope.scaling.yarn_log_multiplier")?.is_none(),
            }),
            (Some("yarn"), None) => Err(self.bad("rope.scaling.type", "yarn", "rope.scaling.factor is missing")),
            (Some(other), _) => Err(self.bad("rope.scaling.type", other, "kjit knows none, linear, yarn and longrope")),
        }
    }
}
