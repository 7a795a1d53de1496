//! Plans the tensors of a quantised file before any computation.

use crate::error::QuantizeError;
use crate::imatrix::Imatrix;
use crate::metadata::{Entry, Metadata, StoredValue, header};
use crate::mixture::{Chooser, Mixture, ModelFacts, fallback};
use crate::names::{Kind, is_quantised, order};
use kjit_formats::format::Format;
use kjit_formats::ggml::GgmlType;
use kjit_gguf::{Gguf, TensorInfo};
use regex_lite::Regex;

/// A format for all matrices whose names match an expression.
#[derive(Debug, Clone)]
pub struct Keep {
    /// The expression, which may match any part of a name.
    pub pattern: Regex,
    /// The format.
    pub format: &'static Format,
}

/// How a model is quantised.
#[derive(Debug, Clone)]
pub struct Options {
    /// The formats of matrices.
    pub mixture: &'static Mixture,
    /// Importance of columns.
    pub imatrix: Option<Imatrix>,
    /// Formats of single matrices. The first match is used.
    pub keep: Vec<Keep>,
    /// The format of the output matrix, or of the embeddings if they are also the output matrix.
    pub output: Option<&'static Format>,
    /// Metadata keys to set, as text.
    pub set: Vec<(String, String)>,
    /// Metadata keys to remove.
    pub unset: Vec<String>,
    /// Maximum bytes of a file. The other tensors go into further files.
    pub split: Option<u64>,
}

impl Options {
    /// Options with a mixture only.
    pub fn new(mixture: &'static Mixture) -> Options {
        let (keep, set, unset) = (vec![], vec![], vec![]);
        Options { mixture, imatrix: None, keep, output: None, set, unset, split: None }
    }
}

/// A tensor of the file to write.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedTensor {
    /// Name of the tensor.
    pub name: String,
    /// Dimensions in ggml's order.
    pub dims: Vec<u64>,
    /// The type in the source.
    pub from: &'static GgmlType,
    /// The type in the file.
    pub to: &'static GgmlType,
    /// Size in the file, in bytes.
    pub bytes: u64,
    /// Index of the file, from 0.
    pub part: usize,
}

impl PlannedTensor {
    /// Number of weights.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }
}

/// The contents of the files to write.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(crate) metadata: Metadata,
    /// The tensors in llama.cpp's order: tensors without a layer first, then by layer, each sorted
    /// by name.
    pub tensors: Vec<PlannedTensor>,
    /// Number of files.
    pub parts: usize,
    /// Notes for the user, one line each.
    pub notes: Vec<String>,
}

impl Plan {
    /// Decides the format of every tensor and the metadata.
    ///
    /// # Errors
    /// A tensor has an unknown type, a pattern does not fit or matches nothing, the importance
    /// matrix belongs to another model, or a key cannot be set.
    pub fn of(gguf: &Gguf, options: &Options) -> Result<Plan, QuantizeError> {
        let (mixture, imatrix) = (options.mixture, options.imatrix.as_ref());
        if mixture.name == "Q2_K_S" && imatrix.is_none() {
            return Err(QuantizeError::NeedsImportance(mixture.name));
        }
        let formats = formats(gguf, options)?;
        let (mut tensors, mut again, mut without) = (vec![], 0, 0);
        let mut infos: Vec<_> = gguf.tensors().iter().zip(formats).collect();
        infos.sort_by(|(a, _), (b, _)| order(a.name(), b.name()));
        for (info, format) in infos {
            let from = source_type(info)?;
            let to = match format {
                Some(format) if format.ggml_id != from.id => {
                    if Format::by_id(from.id).is_none() {
                        let (tensor, ty) = (info.name().to_owned(), from.name.to_owned());
                        return Err(QuantizeError::Type { tensor, ty });
                    }
                    again += usize::from(from.block_elems > 1);
                    if let Some(imatrix) = imatrix {
                        without += usize::from(importance(imatrix, info)?.is_none());
                    }
                    GgmlType::by_id(format.ggml_id).unwrap_or(from)
                }
                _ => from,
            };
            let (columns, rows) = shape(info);
            let bytes = to.row_bytes(columns).and_then(|b| b.checked_mul(rows));
            let bytes = bytes.unwrap_or(u64::MAX);
            let (name, dims) = (info.name().to_owned(), info.dims().to_vec());
            tensors.push(PlannedTensor { name, dims, from, to, bytes, part: 0 });
        }
        let mut notes = vec![];
        if again > 0 {
            notes.push(format!(
                "{again} matrices of the source are already quantised, so the errors add up: \
                 use a source of F16 or BF16"
            ));
        }
        if without > 0 {
            notes.push(format!("the importance matrix has no data for {without} matrices"));
        }
        let mut plan = Plan { metadata: metadata(gguf, options)?, tensors, parts: 1, notes };
        plan.split(options.split);
        Ok(plan)
    }

    /// Size of all files in bytes.
    pub fn bytes(&self) -> u64 {
        (0..self.parts).map(|part| self.header(part).len() as u64 + self.data_bytes(part)).sum()
    }

    /// Average bits of a weight over all tensors.
    pub fn bits_per_weight(&self) -> f64 {
        let weights: u64 = self.tensors.iter().map(PlannedTensor::elements).sum();
        let bytes: u64 = self.tensors.iter().map(|t| t.bytes).sum();
        8.0 * bytes as f64 / weights.max(1) as f64
    }

    fn data_bytes(&self, part: usize) -> u64 {
        let of = self.tensors.iter().filter(|t| t.part == part);
        of.map(|t| t.bytes.next_multiple_of(crate::metadata::ALIGNMENT)).sum()
    }

    /// The bytes of a file before its data.
    pub(crate) fn header(&self, part: usize) -> Vec<u8> {
        let of = self.tensors.iter().filter(|t| t.part == part);
        let entries: Vec<Entry<'_>> = of
            .map(|t| Entry { name: &t.name, dims: &t.dims, ty: t.to.id, bytes: t.bytes })
            .collect();
        if self.parts == 1 {
            return header(&self.metadata, &entries);
        }
        let mut metadata = if part == 0 { self.metadata.clone() } else { Metadata::default() };
        metadata.set("split.no", StoredValue::u16(part as u16));
        metadata.set("split.count", StoredValue::u16(self.parts as u16));
        metadata.set("split.tensors.count", StoredValue::i32(self.tensors.len() as i32));
        header(&metadata, &entries)
    }

    /// Distributes the tensors over files. A file has at least one tensor.
    fn split(&mut self, most: Option<u64>) {
        let Some(most) = most else { return };
        let (mut part, mut used) = (0, 0u64);
        for t in &mut self.tensors {
            let bytes = t.bytes.next_multiple_of(crate::metadata::ALIGNMENT);
            if used > 0 && used.saturating_add(bytes) > most && part < 65_534 {
                (part, used) = (part + 1, 0);
            }
            t.part = part;
            used = used.saturating_add(bytes);
        }
        self.parts = part + 1;
    }
}

/// The type of a tensor of the source.
fn source_type(info: &TensorInfo) -> Result<&'static GgmlType, QuantizeError> {
    info.ty().ggml().ok_or_else(|| QuantizeError::Type {
        tensor: info.name().to_owned(),
        ty: info.ty().to_string(),
    })
}

/// Columns, and rows of all matrices.
pub(crate) fn shape(info: &TensorInfo) -> (u64, u64) {
    let columns = info.dims().first().copied().unwrap_or(1);
    (columns, info.elements() / columns.max(1))
}

/// The format of each tensor, in the order of the file; `None` for tensors that are not quantised.
fn formats(gguf: &Gguf, options: &Options) -> Result<Vec<Option<&'static Format>>, QuantizeError> {
    let facts = ModelFacts::of(gguf)?;
    let infos = gguf.tensors();
    let tied = gguf.tensor_info("output.weight").is_none();
    let mut sorted: Vec<usize> = (0..infos.len()).collect();
    sorted.sort_by(|a, b| order(infos[*a].name(), infos[*b].name()));
    let mut chooser = Chooser::new(options.mixture, &facts, options.imatrix.is_some());
    let mut formats = vec![None; infos.len()];
    let mut matched = vec![false; options.keep.len()];
    for i in sorted {
        let (name, dims) = (infos[i].name(), infos[i].dims());
        let columns = dims.first().copied().unwrap_or(1);
        let keep = options.keep.iter().position(|keep| keep.pattern.is_match(name));
        if let Some((at, keep)) = keep.and_then(|at| Some((at, options.keep.get(at)?)))
            && dims.len() >= 2
        {
            matched[at] = true;
            if !columns.is_multiple_of(keep.format.block_elems() as u64) {
                return Err(QuantizeError::Columns {
                    pattern: keep.pattern.to_string(),
                    format: keep.format.name,
                    tensor: name.to_owned(),
                    columns,
                });
            }
            formats[i] = Some(keep.format);
            continue;
        }
        if !is_quantised(name, dims) {
            continue;
        }
        let kind = Kind::of(name);
        let is_output = kind == Kind::Output || tied && name == "token_embd.weight";
        let format = match options.output.filter(|_| is_output) {
            Some(format) => Some(format),
            None => Format::by_name(chooser.choose(name, dims)),
        };
        formats[i] = format.and_then(|format| fallback(format, columns));
    }
    match matched.iter().position(|matched| !matched) {
        Some(at) => Err(QuantizeError::Unmatched(options.keep[at].pattern.to_string())),
        None => Ok(formats),
    }
}

/// The importance of a tensor's columns, of all experts; `None` if the file does not contain the
/// tensor.
pub(crate) fn importance<'a>(
    imatrix: &'a Imatrix,
    info: &TensorInfo,
) -> Result<Option<&'a [f32]>, QuantizeError> {
    let Some(values) = imatrix.entries.get(info.name()) else { return Ok(None) };
    let (columns, matrices) = (shape(info).0, info.dims().get(2).copied().unwrap_or(1));
    let want = columns.saturating_mul(matrices);
    if values.len() as u64 != want {
        if Kind::of(info.name()) == Kind::Embeddings {
            return Ok(None);
        }
        let (file, tensor) = (imatrix.file.clone(), info.name().to_owned());
        return Err(QuantizeError::Importance { file, tensor, found: values.len(), want });
    }
    Ok(Some(values))
}

fn metadata(gguf: &Gguf, options: &Options) -> Result<Metadata, QuantizeError> {
    let mut metadata = Metadata::of(gguf);
    // These two keys come last, as in llama.cpp's files.
    for key in ["general.alignment", "general.quantization_version", "general.file_type"] {
        metadata.remove(key);
    }
    metadata.set("general.quantization_version", StoredValue::u32(2));
    metadata.set("general.file_type", StoredValue::u32(options.mixture.file_type));
    if let Some(imatrix) = &options.imatrix {
        metadata.set("quantize.imatrix.file", StoredValue::string(&imatrix.file));
        if let Some(dataset) = imatrix.datasets.first() {
            metadata.set("quantize.imatrix.dataset", StoredValue::string(dataset));
        }
        let count = imatrix.entries.len() as u32;
        metadata.set("quantize.imatrix.entries_count", StoredValue::u32(count));
        metadata.set("quantize.imatrix.chunks_count", StoredValue::u32(imatrix.chunks));
    }
    let fail = |key: &str, why: &str| QuantizeError::Key { key: key.to_owned(), why: why.into() };
    for (key, text) in &options.set {
        if key.is_empty() || key.len() > 65_535 {
            return Err(fail(key, "a key must have 1 to 65535 bytes"));
        }
        if key == "general.alignment" || key.starts_with("split.") {
            return Err(fail(key, "kjit sets this key"));
        }
        let like = metadata.get(key).map(|old| old.ty);
        let value = StoredValue::parse(text, like).ok_or_else(|| match like {
            Some(9) => fail(key, "setting an array is not supported"),
            _ => fail(key, &format!("'{text}' does not have the type of the current value")),
        })?;
        metadata.set(key, value);
    }
    for key in &options.unset {
        if !metadata.remove(key) {
            return Err(fail(
                key,
                "the source does not have this key: list the keys with kjit inspect",
            ));
        }
    }
    Ok(metadata)
}
