//! Adapters in GGUF, as llama.cpp's `convert_lora_to_gguf.py` writes them.

use super::{AdapterError, LowRank, Order, Side, pair, reorder};
use crate::{Gguf, Value};
use kjit_formats::format::Format;
use std::collections::BTreeMap;
use std::path::Path;

const A: &str = ".lora_a";
const B: &str = ".lora_b";

/// The types that the converter writes. Other types are refused: decoded, they would take many
/// times the size of the file.
const TYPES: [&str; 4] = ["F32", "F16", "BF16", "Q8_0"];

/// Reads a file.
pub(super) fn read(path: &Path, base: &Gguf) -> Result<Vec<LowRank>, AdapterError> {
    let file = Gguf::open(path)?;
    let said = |key: &str| -> Result<String, AdapterError> {
        Ok(file.opt_str(key)?.unwrap_or("missing").to_owned())
    };
    let unsupported = |key: &str, value: String, why| AdapterError::Unsupported {
        path: path.to_owned(),
        key: key.to_owned(),
        value,
        why,
    };
    let found = said("general.type")?;
    if found != "adapter" {
        return Err(AdapterError::NoAdapter { path: path.to_owned(), found });
    }
    let kind = said("adapter.type")?;
    if kind != "lora" {
        return Err(unsupported("adapter.type", kind, "kjit applies adapters of type 'lora'"));
    }
    if file.contains("adapter.alora.invocation_tokens") {
        let why =
            "kjit does not support activated LoRA (aLoRA), which starts at a token of the prompt";
        return Err(unsupported("adapter.alora.invocation_tokens", "present".to_owned(), why));
    }
    let (arch, of) = (file.architecture()?, base.architecture()?);
    if arch != of {
        return Err(AdapterError::Architecture {
            path: path.to_owned(),
            adapter: arch.to_owned(),
            base: of.to_owned(),
        });
    }
    let alpha = match file.value("adapter.lora.alpha") {
        Some(Value::Int(alpha)) => alpha as f32,
        _ => file.require_f32("adapter.lora.alpha")?,
    };
    if !alpha.is_finite() {
        let why = "expected a finite number";
        return Err(unsupported("adapter.lora.alpha", alpha.to_string(), why));
    }
    let mut halves: BTreeMap<&str, [Option<&str>; 2]> = BTreeMap::new();
    for tensor in file.tensors() {
        let name = tensor.name();
        let (of, side) = match (name.strip_suffix(A), name.strip_suffix(B)) {
            (Some(of), _) => (of, 0),
            (_, Some(of)) => (of, 1),
            _ => {
                let (path, tensor) = (path.to_owned(), name.to_owned());
                return Err(AdapterError::UnknownTensor { path, tensor, hint: "" });
            }
        };
        if let Some(half) = halves.entry(of).or_default().get_mut(side) {
            *half = Some(name);
        }
    }
    let mut pairs = vec![];
    for (tensor, sides) in halves {
        let [a, b] = match sides {
            [Some(a), Some(b)] => [a, b],
            [a, b] => {
                return Err(AdapterError::Half {
                    path: path.to_owned(),
                    tensor: a.or(b).unwrap_or_default().to_owned(),
                    missing: format!("{tensor}{}", if a.is_none() { A } else { B }),
                });
            }
        };
        let (a, b) = (side(path, &file, a)?, side(path, &file, b)?);
        // llama.cpp uses a scale of 1 if alpha is 0.
        let scale = |rank: usize| if alpha == 0.0 { 1.0 } else { alpha / rank as f32 };
        let mut one = pair(path, base, tensor, [a, b], scale)?;
        reorder(path, base, &mut one, Order::Adjacent)?;
        pairs.push(one);
    }
    Ok(pairs)
}

/// One tensor, decoded.
fn side(path: &Path, file: &Gguf, name: &str) -> Result<Side, AdapterError> {
    let tensor = file.tensor(name)?;
    let &[cols, rows] = tensor.dims else {
        return Err(AdapterError::Shape {
            path: path.to_owned(),
            tensor: name.to_owned(),
            found: tensor.dims.iter().rev().map(|d| *d as usize).collect(),
            want: vec![0, 0],
        });
    };
    let unknown = || AdapterError::Type {
        path: path.to_owned(),
        tensor: name.to_owned(),
        ty: tensor.ty.name.to_owned(),
    };
    if !TYPES.contains(&tensor.ty.name) {
        return Err(unknown());
    }
    let format = Format::by_id(tensor.ty.id).ok_or_else(unknown)?;
    let (rows, cols) = (rows as usize, cols as usize);
    let mut values = vec![0.0; rows * cols];
    format.decode(tensor.data, &mut values).map_err(|_| unknown())?;
    Ok(Side { name: name.to_owned(), rows, cols, values })
}
