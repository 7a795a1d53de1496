//! LoRA adapters in PEFT's format: a folder with `adapter_config.json` and
//! `adapter_model.safetensors`.

use super::json::{self, one_line};
use super::kind::architectures;
use super::{names, shards};
use crate::Gguf;
use crate::adapter::{AdapterError, EMBEDDING, LowRank, Order, Side, pair, reorder};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// The path of the model within PEFT's object.
const PREFIX: &str = "base_model.model.";

/// The ends of the tensor names: the two halves of a matrix, and the two halves of an embedding
/// table.
const ENDS: [(&str, usize, bool); 4] = [
    (".lora_A", 0, false),
    (".lora_B", 1, false),
    (".lora_embedding_A", 0, true),
    (".lora_embedding_B", 1, true),
];

/// Unsupported keys that change the result, and the reason for the refusal. They are accepted if
/// they are missing, null, false or empty.
const REFUSED: [(&str, &str); 9] = [
    ("use_dora", "kjit does not support DoRA: merge the adapter with PEFT"),
    ("use_qalora", "kjit does not support QA-LoRA"),
    ("lora_bias", "kjit does not support biases of LoRA matrices"),
    ("fan_in_fan_out", "kjit does not support transposed matrices"),
    ("alpha_pattern", "kjit supports only one lora_alpha for all matrices"),
    ("layer_replication", "kjit does not support repeated layers"),
    ("modules_to_save", "kjit supports only low-rank pairs, not whole trained modules"),
    ("trainable_token_indices", "kjit does not support replaced rows of the embedding"),
    ("alora_invocation_tokens", "kjit does not support activated LoRA (aLoRA)"),
];

/// Whether a value is missing, null, false or empty.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        _ => false,
    }
}

/// Reads a folder.
pub(crate) fn read(folder: &Path, base: &Gguf) -> Result<Vec<LowRank>, AdapterError> {
    let arch = base.architecture()?;
    let known = architectures();
    if !known.contains(&arch) {
        let (path, arch) = (folder.to_owned(), arch.to_owned());
        return Err(AdapterError::UnknownArchitecture { path, arch, known: known.join(", ") });
    }
    let scaling = Scaling::read(folder)?;
    let path = folder.join(WEIGHTS);
    if !path.exists() && folder.join("adapter_model.bin").exists() {
        return Err(AdapterError::Unsupported {
            path: folder.to_owned(),
            key: "adapter_model.bin".to_owned(),
            value: "a pickled file".to_owned(),
            why: "kjit reads only adapter_model.safetensors: save the adapter again with PEFT",
        });
    }
    let shard = shards::open((path, vec![]))?;
    let path = &shard.path;
    let unknown = |tensor: &str, hint| AdapterError::UnknownTensor {
        path: path.clone(),
        tensor: tensor.to_owned(),
        hint,
    };
    let mut halves: BTreeMap<String, [Option<Side>; 2]> = BTreeMap::new();
    for found in &shard.tensors {
        let name = found.name.as_str();
        if name.contains("lora_magnitude_vector") {
            return Err(unknown(name, ": it belongs to DoRA, merge the adapter with PEFT"));
        }
        // Names end with `.weight`. In some versions this follows the adapter's name.
        let module = name.strip_prefix(PREFIX).unwrap_or(name);
        let end = ENDS.iter().find_map(|(end, side, embedding)| {
            let (module, rest) = module.split_once(end)?;
            let rest = rest.strip_suffix(".weight").unwrap_or(rest);
            let fine = rest.is_empty() || (rest.starts_with('.') && !rest[1..].contains('.'));
            fine.then_some((module, *side, *embedding))
        });
        let hint = ": modules_to_save and other whole tensors are not supported";
        let (module, side, embedding) = end.ok_or_else(|| unknown(name, hint))?;
        let hint = ": its module does not exist in GGUF";
        let ours = names::matrix(&format!("{module}.weight")).ok_or_else(|| unknown(name, hint))?;
        if embedding != (ours == EMBEDDING) {
            return Err(unknown(name, ": its module has a different kind"));
        }
        let half = halves.entry(ours).or_default().get_mut(side);
        let half =
            half.filter(|half| half.is_none()).ok_or_else(|| unknown(name, ", or occurs twice"))?;
        let found = read_side(&shard, found)?;
        // PEFT has a column of A for each token.
        *half = Some(if embedding && side == 0 { found.transposed() } else { found });
    }
    let mut pairs = vec![];
    for (tensor, sides) in halves {
        let [a, b] = match sides {
            [Some(a), Some(b)] => [a, b],
            [a, b] => {
                let missing = if a.is_none() { "lora_A" } else { "lora_B" }.to_owned();
                let tensor = a.or(b).map_or(tensor, |side| side.name);
                return Err(AdapterError::Half { path: path.clone(), tensor, missing });
            }
        };
        let mut one = pair(path, base, &tensor, [a, b], |rank| scaling.of(rank))?;
        reorder(path, base, &mut one, Order::Trained)?;
        pairs.push(one);
    }
    Ok(pairs)
}

/// The factor of a pair.
struct Scaling {
    alpha: f64,
    /// alpha / √rank instead of alpha / rank.
    by_root: bool,
}

impl Scaling {
    /// Reads the settings. Unsupported settings are an error.
    fn read(folder: &Path) -> Result<Scaling, AdapterError> {
        let path = folder.join(CONFIG);
        let refuse = |key: &str, value: &Value, why| AdapterError::Unsupported {
            path: path.clone(),
            key: key.to_owned(),
            value: one_line(&value.to_string()),
            why,
        };
        let bytes = json::json_bytes(&path, json::MAX_SETTINGS)?.ok_or_else(|| {
            AdapterError::Unsupported {
                path: folder.to_owned(),
                key: CONFIG.to_owned(),
                value: "missing".to_owned(),
                why: "a PEFT adapter needs this file and adapter_model.safetensors",
            }
        })?;
        let config: Map<String, Value> = json::parse(&path, &bytes)?;
        let of = |key: &str| config.get(key).unwrap_or(&Value::Null);
        let kind = of("peft_type");
        if kind.as_str() != Some("LORA") {
            return Err(refuse("peft_type", kind, "kjit supports only adapters of type LORA"));
        }
        for (key, why) in REFUSED {
            if !is_off(of(key)) {
                return Err(refuse(key, of(key), why));
            }
        }
        let bias = of("bias");
        if !matches!(bias.as_str(), None | Some("none")) {
            return Err(refuse("bias", bias, "kjit does not support trained biases"));
        }
        let init = of("init_lora_weights");
        let changes = |word: &str| {
            let word = word.to_lowercase();
            ["pissa", "olora", "corda", "loftq"].iter().any(|one| word.starts_with(one))
        };
        if init.as_str().is_some_and(changes) {
            let why = "its training changed the base's matrices too: \
                       save it with PEFT's path_initial_model_for_weight_conversion";
            return Err(refuse("init_lora_weights", init, why));
        }
        let alpha = of("lora_alpha");
        let number = alpha.as_f64().filter(|a| a.is_finite());
        let number = number.ok_or_else(|| refuse("lora_alpha", alpha, "expected a number"))?;
        let by_root = of("use_rslora");
        let by_root = match by_root {
            Value::Null => false,
            Value::Bool(by_root) => *by_root,
            other => return Err(refuse("use_rslora", other, "expected true or false")),
        };
        Ok(Scaling { alpha: number, by_root })
    }

    fn of(&self, rank: usize) -> f32 {
        let rank = rank as f64;
        (self.alpha / if self.by_root { rank.sqrt() } else { rank }) as f32
    }
}

/// One tensor as f32.
fn read_side(shard: &shards::Shard, found: &shards::ShardTensor) -> Result<Side, AdapterError> {
    let name = || found.name.clone();
    let path = || shard.path.clone();
    let shape = || found.shape.iter().map(|d| *d as usize).collect::<Vec<_>>();
    let Some((_, each)) = shards::ggml(found.dtype) else {
        let ty = format!("{:?}", found.dtype);
        return Err(AdapterError::Type { path: path(), tensor: name(), ty });
    };
    let wrong =
        || AdapterError::Shape { path: path(), tensor: name(), found: shape(), want: vec![] };
    let &[rows, cols] = found.shape.as_slice() else { return Err(wrong()) };
    let bytes = rows.checked_mul(cols).and_then(|n| n.checked_mul(each));
    if bytes != Some(found.bytes) || rows == 0 || cols == 0 {
        return Err(wrong());
    }
    let range = usize::try_from(found.at).ok().zip(usize::try_from(found.at + found.bytes).ok());
    let bytes = range.and_then(|(at, end)| shard.map.get(at..end)).unwrap_or_default();
    let values = shards::singles(found.dtype, bytes);
    Ok(Side { name: name(), rows: rows as usize, cols: cols as usize, values })
}
