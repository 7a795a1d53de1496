//! The sizes that every architecture has, read from the file and checked once.

use super::facts::{Facts, LogMultiplier, SectionsKey};
use crate::op::NormKind;
use crate::{GraphError, Pairing, Rope, RopeScaling, Sections, WeightId};
use kjit_gguf::Gguf;

/// Sizes of a model.
pub struct Hparams<'a> {
    gguf: &'a Gguf,
    /// `general.architecture`, the prefix of its keys.
    pub arch: &'a str,
    /// Context length used in training.
    pub context: usize,
    /// Number of layers in the forward pass. Layers of multi-token prediction are not counted.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Query heads of each layer; 0 if it has no attention.
    pub heads: Vec<usize>,
    /// Key and value heads of each layer; 0 if it has no attention.
    pub kv_heads: Vec<usize>,
    /// Number of elements of a head's query or key.
    pub head_dim: usize,
    /// Number of elements of a head's value.
    pub value_dim: usize,
    /// Epsilon of the norms.
    pub eps: f32,
    /// Size of the vocabulary: number of rows of the embedding.
    pub vocab: usize,
}

/// The tensor of the embedding. Some files have only the output matrix.
pub fn table_name(gguf: &Gguf) -> &'static str {
    const EMBEDDING: &str = "token_embd.weight";
    if gguf.tensor_info(EMBEDDING).is_none() && gguf.tensor_info("output.weight").is_some() {
        "output.weight"
    } else {
        EMBEDDING
    }
}

/// The upper limit of any size. It prevents overflow in products of two sizes.
const MAX_SIZE: u32 = 1 << 24;

impl<'a> Hparams<'a> {
    /// Reads the sizes under `arch.`. The epsilon of the norms is under one of two keys.
    pub fn read(gguf: &'a Gguf, facts: &Facts) -> Result<Self, GraphError> {
        const LAYER: &str = "attention.layer_norm_epsilon";
        let arch = gguf.architecture()?;
        let key = match facts.norm {
            NormKind::Layer => LAYER,
            _ if facts.either_epsilon
                && !gguf.contains(&format!("{arch}.attention.layer_norm_rms_epsilon")) =>
            {
                LAYER
            }
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
            return Err(h.bad(key, h.eps, "expected a small number, not negative"));
        }
        h.context = h.size("context_length")?;
        let layers = h.size("block_count")?;
        let further = h.number("nextn_predict_layers")?.unwrap_or(0);
        if further >= layers {
            return Err(h.bad(
                "nextn_predict_layers",
                further,
                &format!("the model has only {layers} layers"),
            ));
        }
        h.layers = layers - further;
        h.width = h.size("embedding_length")?;
        h.heads = h.per_layer("attention.head_count")?.unwrap_or_else(|| vec![0; h.layers]);
        // The defaults of the format: the same number of key heads as query heads, and a head size
        // of width / heads.
        h.kv_heads = h.per_layer("attention.head_count_kv")?.unwrap_or_else(|| h.heads.clone());
        for (&heads, &kv_heads) in h.heads.iter().zip(&h.kv_heads) {
            if kv_heads > 0 && !heads.is_multiple_of(kv_heads) {
                return Err(h.bad(
                    "attention.head_count_kv",
                    kv_heads,
                    &format!("must divide the {heads} heads"),
                ));
            }
        }
        let heads = h.heads.iter().copied().max().unwrap_or(0);
        h.head_dim = match h.opt_size("attention.key_length")? {
            Some(k) => k,
            None if heads == 0 => 0,
            None if h.width.is_multiple_of(heads) => h.width / heads,
            None => {
                let why = format!(
                    "must divide embedding_length {}, because key_length is missing",
                    h.width
                );
                return Err(h.bad("attention.head_count", heads, &why));
            }
        };
        h.value_dim = h.opt_size("attention.value_length")?.unwrap_or(h.head_dim);
        let embd = gguf.tensor_info(table_name(gguf)).ok_or_else(|| GraphError::MissingTensor {
            name: "token_embd.weight".into(),
            arch: arch.into(),
        })?;
        h.vocab = match *embd.dims() {
            [_, rows] if rows > 0 && rows <= u64::from(MAX_SIZE) => rows as usize,
            _ => {
                let want = vec![h.width as u64, embd.dims().get(1).copied().unwrap_or(0)];
                return Err(GraphError::Shape {
                    name: embd.name().into(),
                    found: embd.dims().to_vec(),
                    want,
                });
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

    /// A size for each layer of the forward pass, if the key exists: one number for all layers, or
    /// a list. 0 is a valid size.
    pub fn per_layer(&self, name: &str) -> Result<Option<Vec<usize>>, GraphError> {
        let all = self.size("block_count")?;
        let Some(list) = self.gguf.opt_per_layer_u32(&self.key(name), all)? else {
            return Ok(None);
        };
        if let Some(&v) = list.iter().find(|&&v| v > MAX_SIZE) {
            return Err(self.bad(name, v, &format!("kjit supports at most {MAX_SIZE}")));
        }
        Ok(Some(list.into_iter().take(self.layers).map(|v| v as usize).collect()))
    }

    /// The size of one layer, if it exists and is not 0.
    pub fn size_at(&self, name: &str, layer: usize) -> Result<Option<usize>, GraphError> {
        Ok(self.per_layer(name)?.and_then(|all| all.get(layer).copied()).filter(|n| *n > 0))
    }

    /// The size of one layer, which is required.
    pub fn need_at(&self, name: &str, layer: usize) -> Result<usize, GraphError> {
        match self.size_at(name, layer)? {
            Some(n) => Ok(n),
            None if self.gguf.contains(&self.key(name)) => {
                Err(self.bad(name, 0, "must be above 0"))
            }
            // Returns the error of a missing key.
            None => self.size(name),
        }
    }

    /// A size, if the key exists. 0 is valid.
    pub fn number(&self, name: &str) -> Result<Option<usize>, GraphError> {
        match self.gguf.opt_u32(&self.key(name))? {
            Some(v) if v > MAX_SIZE => {
                Err(self.bad(name, v, &format!("kjit supports at most {MAX_SIZE}")))
            }
            v => Ok(v.map(|v| v as usize)),
        }
    }

    /// A finite number, if the key exists.
    pub fn real(&self, name: &str) -> Result<Option<f32>, GraphError> {
        match self.gguf.opt_f32(&self.key(name))? {
            Some(v) if !v.is_finite() => Err(self.bad(name, v, "expected a number")),
            v => Ok(v),
        }
    }

    /// A finite number; `None` if it is absent or 0.
    pub fn factor(&self, name: &str) -> Result<Option<f32>, GraphError> {
        Ok(self.real(name)?.filter(|v| *v != 0.0))
    }

    /// A boolean, if the key exists.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, GraphError> {
        Ok(self.gguf.opt_bool(&self.key(name))?)
    }

    /// A size that must exist and be above zero.
    pub fn size(&self, name: &str) -> Result<usize, GraphError> {
        let v = self.gguf.require_u32(&self.key(name))?;
        self.checked(name, v)
    }

    /// A size above zero, if the key exists.
    pub fn opt_size(&self, name: &str) -> Result<Option<usize>, GraphError> {
        self.gguf.opt_u32(&self.key(name))?.map(|v| self.checked(name, v)).transpose()
    }

    fn checked(&self, name: &str, v: u32) -> Result<usize, GraphError> {
        match v {
            0 => Err(self.bad(name, v, "must be above 0")),
            1..=MAX_SIZE => Ok(v as usize),
            _ => Err(self.bad(name, v, &format!("kjit supports at most {MAX_SIZE}"))),
        }
    }

    /// The error for an invalid value.
    pub fn bad(&self, name: &str, value: impl ToString, why: &str) -> GraphError {
        GraphError::Value { key: self.key(name), value: value.to_string(), why: why.into() }
    }

    /// The rotation that the keys describe, for heads of `head` elements; `factors` divide its
    /// frequencies. The second rotation is for layers with their own base. It is not scaled.
    pub fn ropes(
        &self,
        facts: &Facts,
        pairing: Pairing,
        head: usize,
        factors: Option<WeightId>,
    ) -> Result<(Rope, Rope), GraphError> {
        // 10000 is the format's documented default.
        let mut base = self.rope_base("rope.freq_base")?.unwrap_or(10000.0);
        if let Some(alpha) =
            self.real("rope.scaling.alpha")?.filter(|a| facts.rope_alpha && *a > 0.0 && head > 2)
        {
            base *= alpha.powf(head as f32 / (head - 2) as f32);
        }
        let (scaling, magnitude, sharpened) = self.rope_scaling(facts)?;
        let (dims, sections) = (self.rope_dims(head)?, self.sections(facts)?);
        let pairing = if sections.is_some() { Pairing::Halves } else { pairing };
        let full = Rope { dims, pairing, base, scaling, magnitude, sections, factors, long: None };
        let local =
            Rope { scaling: RopeScaling::None, magnitude: magnitude / sharpened, ..full.clone() };
        Ok((full, local))
    }

    /// The sections of multimodal positions, if the architecture has them.
    fn sections(&self, facts: &Facts) -> Result<Option<Sections>, GraphError> {
        const KEY: &str = "rope.dimension_sections";
        let interleaved = match facts.sections {
            SectionsKey::Unread => return Ok(None),
            SectionsKey::Interleaved => true,
            SectionsKey::Blocks | SectionsKey::IfTwo => false,
        };
        let Some(list) = self.gguf.opt_u32s(&self.key(KEY))? else { return Ok(None) };
        let mut sizes = [0; 4];
        for (size, &n) in sizes.iter_mut().zip(&list) {
            *size = n.min(MAX_SIZE) as usize;
        }
        let [time, height, ..] = sizes;
        Ok((facts.sections != SectionsKey::IfTwo || time > 0 && height > 0)
            .then_some(Sections { sizes, interleaved }))
    }

    /// The base of a rotation, if the key exists.
    pub fn rope_base(&self, name: &str) -> Result<Option<f32>, GraphError> {
        match self.gguf.opt_f32(&self.key(name))? {
            Some(base) if !(base.is_finite() && base > 1.0) => {
                Err(self.bad(name, base, "must be above 1"))
            }
            base => Ok(base),
        }
    }

    /// Number of elements of the rotated part: a head, or the RoPE part of latent attention.
    pub fn rope_head(&self) -> Result<usize, GraphError> {
        match self.opt_size("attention.kv_lora_rank")? {
            Some(_) => self.size("rope.dimension_count"),
            None => Ok(self.head_dim),
        }
    }

    /// Number of elements of a head that are rotated.
    pub fn rope_dims(&self, head: usize) -> Result<usize, GraphError> {
        let dims = self.opt_size("rope.dimension_count")?.unwrap_or(head);
        if !dims.is_multiple_of(2) || dims > head {
            let why = format!("must be even and at most the {head} elements of a head");
            return Err(self.bad("rope.dimension_count", dims, &why));
        }
        Ok(dims)
    }

    /// The scaling factor of positions; 1 means no scaling.
    pub fn rope_factor(&self) -> Result<f32, GraphError> {
        let positive = |name: &str| match self.real(name)? {
            Some(v) if v < 0.0 => Err(self.bad(name, v, "must not be negative")),
            v => Ok(v),
        };
        // Files that are older than the typed keys have only `rope.scale_linear`; 0 means no
        // scaling.
        let factor = match positive("rope.scaling.factor")? {
            Some(f) => Some(f),
            None => positive("rope.scale_linear")?,
        };
        Ok(factor.filter(|f| *f > 0.0).unwrap_or(1.0))
    }

    /// The scaling of rotations, the factor on rotated values, and the part of that factor that
    /// comes from the scaling.
    fn rope_scaling(&self, facts: &Facts) -> Result<(RopeScaling, f32, f32), GraphError> {
        let number = |name: &str, default: f32| match self.factor(name)? {
            Some(v) if v < 0.0 => Err(self.bad(name, v, "must not be negative")),
            v => Ok(v.unwrap_or(default)),
        };
        let kind = self.gguf.opt_str(&self.key("rope.scaling.type"))?.unwrap_or("linear");
        let yarn = match kind {
            "yarn" => true,
            // The factors of longrope are tensors, one factor per frequency.
            "none" | "linear" | "longrope" => false,
            other => {
                return Err(self.bad(
                    "rope.scaling.type",
                    other,
                    "expected none, linear, yarn or longrope",
                ));
            }
        };
        let (factor, own) = (self.rope_factor()?, number("rope.scaling.attn_factor", 1.0)?);
        // In Grok's files this number enables YaRN.
        let yarn = match self
            .real("rope.scaling.yarn_ext_factor")?
            .filter(|n| facts.yarn_keys && *n >= 0.0)
        {
            None => yarn,
            Some(0.0) => false,
            Some(1.0) => true,
            Some(part) => {
                return Err(self.bad("rope.scaling.yarn_ext_factor", part, "expected 0 or 1"));
            }
        };
        if !yarn {
            let own = if facts.yarn_keys {
                own * number("rope.scaling.yarn_attn_factor", 1.0)?
            } else {
                own
            };
            let plain = kind == "none" || factor == 1.0;
            return Ok((
                if plain { RopeScaling::None } else { RopeScaling::Linear(factor) },
                own,
                1.0,
            ));
        }
        let scaling = RopeScaling::Yarn {
            factor,
            original_context: self
                .opt_size("rope.scaling.original_context_length")?
                .unwrap_or(self.context),
            beta_fast: number(
                "rope.scaling.yarn_beta_fast",
                if facts.yarn_keys { 8.0 } else { 32.0 },
            )?,
            beta_slow: number("rope.scaling.yarn_beta_slow", 1.0)?,
        };
        // YaRN multiplies rotated values by 1 + 0.1 · ln(factor). The multiplier may move a part of
        // that to the scores.
        let grown = |part: f32| if factor > 1.0 { 1.0 + 0.1 * part * factor.ln() } else { 1.0 };
        let sharpened = match self.log_multiplier(facts)? {
            0.0 => grown(1.0),
            _ if facts.log_multiplier == LogMultiplier::Scores => 1.0,
            part => grown(1.0) / grown(part),
        };
        Ok((scaling, own * sharpened, 1.0 + 0.1 * factor.ln()))
    }

    /// The part of YaRN's attention factor that is applied to scores instead of rotations; 0 if the
    /// file has none.
    pub fn log_multiplier(&self, facts: &Facts) -> Result<f32, GraphError> {
        let number = || Ok(self.factor("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0));
        match facts.log_multiplier {
            LogMultiplier::Unread => Ok(0.0),
            LogMultiplier::Unscaled => number(),
            // Converters multiply it by 0.1.
            LogMultiplier::Tenths | LogMultiplier::Scores => number().map(|n: f32| n / 0.1),
        }
    }
}
