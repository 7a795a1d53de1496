//! Mixtures: the format of each tensor of a model, by llama.cpp's rules.

use crate::names::{Kind, layer};
use kjit_formats::format::Format;
use kjit_gguf::{Error, Gguf};

/// A mixture of formats by name, such as `Q4_K_M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mixture {
    /// llama.cpp's name.
    pub name: &'static str,
    /// `general.file_type` in the file.
    pub file_type: u32,
    /// Name of the format of most matrices.
    base: &'static str,
}

const fn of(name: &'static str, file_type: u32, base: &'static str) -> Mixture {
    Mixture { name, file_type, base }
}

/// All mixtures that can be written.
pub const MIXTURES: &[Mixture] = &[
    of("F32", 0, "F32"),
    of("F16", 1, "F16"),
    of("BF16", 32, "BF16"),
    of("Q8_0", 7, "Q8_0"),
    of("Q6_K", 18, "Q6_K"),
    of("Q5_K_M", 17, "Q5_K"),
    of("Q5_K_S", 16, "Q5_K"),
    of("Q5_1", 9, "Q5_1"),
    of("Q5_0", 8, "Q5_0"),
    of("Q4_K_M", 15, "Q4_K"),
    of("Q4_K_S", 14, "Q4_K"),
    of("IQ4_NL", 25, "IQ4_NL"),
    of("IQ4_XS", 30, "IQ4_XS"),
    of("Q4_1", 3, "Q4_1"),
    of("Q4_0", 2, "Q4_0"),
    of("MXFP4_MOE", 38, "MXFP4"),
    of("Q3_K_L", 13, "Q3_K"),
    of("Q3_K_M", 12, "Q3_K"),
    of("Q3_K_S", 11, "Q3_K"),
    of("Q2_K", 10, "Q2_K"),
    of("Q2_K_S", 21, "Q2_K"),
    of("TQ2_0", 37, "TQ2_0"),
    of("TQ1_0", 36, "TQ1_0"),
    of("Q2_0", 41, "Q2_0"),
    of("Q1_0", 40, "Q1_0"),
];

/// Other names of mixtures.
const ALIASES: [(&str, &str); 4] =
    [("Q4_K", "Q4_K_M"), ("Q5_K", "Q5_K_M"), ("Q3_K", "Q3_K_M"), ("MXFP4", "MXFP4_MOE")];

impl Mixture {
    /// The mixture of this name, in upper or lower case. `Q4_K` means `Q4_K_M`, as in llama.cpp.
    pub fn by_name(name: &str) -> Option<&'static Mixture> {
        let alias = ALIASES.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(name));
        let name = alias.map_or(name, |(_, name)| name);
        MIXTURES.iter().find(|m| m.name.eq_ignore_ascii_case(name))
    }

    /// The format of most matrices. It is `Some` for every mixture of [`MIXTURES`].
    pub fn base(&self) -> Option<&'static Format> {
        Format::by_name(self.base)
    }

    /// Whether the matrices are not quantised (floats).
    pub fn is_float(&self) -> bool {
        matches!(self.base, "F32" | "F16" | "BF16")
    }
}

/// Facts of a model that the rules use.
#[derive(Debug, Clone, Default)]
pub struct ModelFacts {
    arch: String,
    layers: usize,
    /// Number of query heads for each key head of the first layer.
    queries_per_key: u32,
    experts: u32,
    /// Whether llama.cpp treats the model as a 70B model.
    is_70b: bool,
    /// Whether the embeddings are also the output matrix.
    tied: bool,
    /// Number of matrices that compute values (`attn_v`, `attn_qkv`, `attn_kv_b`).
    values: usize,
}

impl ModelFacts {
    /// The facts of a model. Missing keys count as 0.
    ///
    /// # Errors
    /// `general.architecture` is missing, or a key has a wrong type.
    pub fn of(gguf: &Gguf) -> Result<ModelFacts, Error> {
        let arch = gguf.architecture()?.to_owned();
        let key = |name: &str| format!("{arch}.{name}");
        let layers = gguf.opt_u32(&key("block_count"))?.unwrap_or(0) as usize;
        // A huge number of layers means that the file is damaged. It is not used as the length of a
        // list.
        let first = |name: &str| -> Result<Option<u32>, Error> {
            let listed = gguf.opt_per_layer_u32(&key(name), layers.min(4096))?;
            Ok(listed.and_then(|list| list.first().copied()))
        };
        let heads = first("attention.head_count")?.unwrap_or(0);
        let key_heads = first("attention.head_count_kv")?.unwrap_or(heads);
        let experts = gguf.opt_u32(&key("expert_count"))?.unwrap_or(0);
        let is_70b = match (arch.as_str(), layers) {
            ("llama", 80) => heads != key_heads,
            ("deci" | "olmo" | "qwen2", 80) | ("jais2", 68) => true,
            _ => false,
        };
        let names = || gguf.tensors().iter().map(|t| t.name());
        Ok(ModelFacts {
            layers,
            queries_per_key: heads.checked_div(key_heads).unwrap_or(0),
            experts,
            is_70b,
            tied: !names().any(|name| name == "output.weight"),
            values: names().filter(|name| Kind::of(name).is_values()).count(),
            arch,
        })
    }
}

/// Chooses formats. The tensors must come in llama.cpp's order ([`crate::names::order`]).
#[derive(Debug, Clone)]
pub struct Chooser<'a> {
    mixture: &'a Mixture,
    facts: &'a ModelFacts,
    importance: bool,
    /// Tensors of each kind so far.
    values: usize,
    downs: usize,
}

impl<'a> Chooser<'a> {
    /// A chooser before the first tensor. `importance`: whether there is an importance matrix.
    pub fn new(mixture: &'a Mixture, facts: &'a ModelFacts, importance: bool) -> Chooser<'a> {
        Chooser { mixture, facts, importance, values: 0, downs: 0 }
    }

    /// The name of the format of the next matrix, before its shape is considered. `dims` are in
    /// ggml's order.
    pub fn choose(&mut self, name: &str, dims: &[u64]) -> &'static str {
        let (base, kind, facts) = (self.mixture.base, Kind::of(name), self.facts);
        if self.mixture.is_float() {
            return base;
        }
        let is_output = kind == Kind::Output || facts.tied && kind == Kind::Embeddings;
        let falcon = facts.arch == "falcon";
        if is_output {
            let block = self.mixture.base().map_or(1, |f| f.block_elems() as u64);
            let columns = dims.first().copied().unwrap_or(0);
            let bytes = falcon
                || base == "Q8_0"
                || self.mixture.name == "MXFP4_MOE"
                || !columns.is_multiple_of(block);
            return if bytes { "Q8_0" } else { "Q6_K" };
        }
        if self.mixture.name == "MXFP4_MOE" {
            return if dims.get(2).is_some_and(|n| *n > 1) { "MXFP4" } else { "Q8_0" };
        }
        match kind {
            Kind::Embeddings => match self.mixture.name {
                "TQ1_0" | "TQ2_0" | "Q2_0" => "Q4_K",
                _ => base,
            },
            kind if kind.is_values() => {
                let at = self.values;
                self.values += 1;
                self.values_format(at)
            }
            Kind::Key if facts.experts == 8 => "Q8_0",
            Kind::Down => {
                let at = self.downs;
                self.downs += 1;
                // Experts may be in any order, so the layer number in the name is used.
                let at = if facts.experts > 1 { layer(name).unwrap_or(at) } else { at };
                self.down_format(at, falcon)
            }
            Kind::AttentionOutput => self.attention_output_format(falcon),
            _ => base,
        }
    }

    /// The matrices that compute values. Errors in these matrices have the largest effect.
    fn values_format(&self, at: usize) -> &'static str {
        let (facts, grouped) = (self.facts, self.facts.queries_per_key >= 4);
        let format = match self.mixture.name {
            "Q2_K" if grouped => "Q4_K",
            "Q2_K" => "Q3_K",
            "Q2_K_S" if grouped => "Q4_K",
            "Q3_K_M" if at < 2 => "Q5_K",
            "Q3_K_M" => "Q4_K",
            "Q3_K_L" => "Q5_K",
            "IQ4_NL" | "IQ4_XS" if grouped => "Q5_K",
            "Q4_K_M" | "Q5_K_M" if more_bits(at, facts.values) => "Q6_K",
            "Q4_K_S" if at < 4 => "Q5_K",
            _ => self.mixture.base,
        };
        match format {
            _ if facts.experts == 8 => "Q8_0",
            "Q3_K" | "Q4_K" if facts.is_70b => "Q5_K",
            format => format,
        }
    }

    fn down_format(&self, at: usize, falcon: bool) -> &'static str {
        let layers = self.facts.layers;
        let more = more_bits(at, layers);
        match self.mixture.name {
            "Q2_K" => "Q3_K",
            "Q2_K_S" if at < layers / 8 => "Q4_K",
            "Q3_K_M" if at < layers / 16 => "Q5_K",
            "Q3_K_M" if !falcon || more => "Q4_K",
            "Q3_K_L" if falcon => "Q4_K",
            "Q3_K_L" => "Q5_K",
            "Q4_K_M" if falcon && at < layers / 16 => "Q6_K",
            "Q4_K_M" if falcon && more => "Q5_K",
            "Q4_K_M" if !falcon && more => "Q6_K",
            "IQ4_NL" | "IQ4_XS" if at < layers / 8 && !self.importance => "Q5_K",
            "Q5_K_M" if more => "Q6_K",
            "Q4_K_S" if !falcon && at < layers / 8 => "Q5_K",
            "Q4_0" if self.importance && at < layers / 8 => "Q4_1",
            "Q5_0" if self.importance && at < layers / 8 => "Q5_1",
            _ => self.mixture.base,
        }
    }

    fn attention_output_format(&self, falcon: bool) -> &'static str {
        match (self.mixture.name, falcon, self.facts.experts == 8) {
            ("Q3_K_L", true, _) => "Q4_K",
            (_, true, _) => self.mixture.base,
            (
                "Q2_K" | "Q3_K_S" | "Q3_K_M" | "Q4_K_S" | "Q4_K_M" | "IQ4_NL" | "IQ4_XS",
                false,
                true,
            ) => "Q5_K",
            ("Q2_K", false, false) => "Q3_K",
            ("Q3_K_M", false, false) => "Q4_K",
            ("Q3_K_L", false, false) => "Q5_K",
            _ => self.mixture.base,
        }
    }
}

/// The layers that get more bits: the first eighth, the last eighth, and every third layer between
/// them.
fn more_bits(at: usize, of: usize) -> bool {
    at < of / 8 || at >= 7 * of / 8 || (at - of / 8) % 3 == 2
}

/// The format that replaces a format whose blocks do not divide a row.
pub fn fallback(format: &'static Format, columns: u64) -> Option<&'static Format> {
    let fits = |f: &Format| columns.is_multiple_of(f.block_elems() as u64);
    if fits(format) {
        return Some(format);
    }
    let smaller = match format.name {
        "Q2_K" | "Q3_K" | "TQ1_0" | "TQ2_0" | "Q2_0" | "Q1_0" => "Q4_0",
        "IQ4_XS" => "IQ4_NL",
        "Q4_K" => "Q5_0",
        "Q5_K" => "Q5_1",
        "Q6_K" => "Q8_0",
        _ => "F16",
    };
    Format::by_name(smaller).filter(|f| fits(f)).or_else(|| Format::by_name("F16"))
}
