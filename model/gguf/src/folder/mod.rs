//! Opens a folder with `config.json`, `*.safetensors` and `tokenizer.json` as a model. The result
//! is a [`Gguf`](crate::Gguf), so the rest of kjit does not depend on the file format.
//!
//! Matrices are views of the mapped files. Parts that differ in GGUF are built in memory: metadata
//! from the JSON files, and vectors (norms, biases) in f32. In llama's architecture, GGUF
//! converters reorder the rows of queries and keys. Here the rows keep their order. Instead the
//! rotation pairs element i with i + n/2, not adjacent elements (`rope.pairing`). The sums have the
//! same terms in a different order.

mod config;
mod error;
mod fail;
mod header;
mod json;
mod kind;
mod names;
pub(crate) mod peft;
mod pooling;
mod pretokenizer;
mod rotation;
mod shards;
mod template;
mod vocabulary;

pub use error::FolderError;

use crate::{Error, TensorInfo};
use config::Config;
use fail::fail;
use header::Header;
use kind::Kind;
use memmap2::Mmap;
use names::{ExpectedTensor, Meaning, Names};
use shards::{Shard, ShardTensor};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// Alignment of a tensor's data in bytes ([`crate::Tensor::data`]).
const ALIGNMENT: u64 = 8;

/// The files of a folder, from which a [`Gguf`](crate::Gguf) is created.
pub(crate) struct Folder {
    /// `config.json`.
    pub config: PathBuf,
    /// A file that was built in memory: metadata, and tensors that need conversion.
    pub made: Vec<u8>,
    /// Files whose tensors have known offsets.
    pub files: Vec<(PathBuf, Mmap, Vec<TensorInfo>)>,
    /// Warnings about ignored parts.
    pub remarks: Vec<String>,
}

/// Opens a folder.
///
/// # Errors
/// The message is one line that names the file, and the key or tensor.
pub(crate) fn open(folder: &Path) -> Result<Folder, Error> {
    let path = folder.join("config.json");
    let Some(config) = Config::read(path.clone())? else {
        return Err(fail(folder, FolderError::NoModel));
    };
    let (mut header, mut remarks) = (Header::default(), vec![]);
    config.write(&name(folder), &mut header)?;
    remarks.extend(vocabulary::write(folder, &config, &mut header)?);
    template::write(folder, &mut header)?;
    pooling::write(folder, config.kind.arch(), &mut header)?;
    let names = Names::new(&config);
    let (mut parts, mut beside) = (vec![], BTreeMap::<&str, usize>::new());
    let mut here = HashSet::new();
    let (files, said) = shards::files(folder)?;
    remarks.extend(said);
    for file in files {
        let shard = shards::open(file)?;
        let refuse = |e| fail(&shard.path, e);
        let mut placed = vec![];
        for found in &shard.tensors {
            let tensor = || found.name.clone();
            match names.find(&found.name) {
                Meaning::Redundant => {}
                Meaning::OtherPart(part) => *beside.entry(part).or_default() += 1,
                Meaning::Unknown => {
                    let model_type = config.kind.name();
                    return Err(refuse(FolderError::UnknownTensor {
                        tensor: tensor(),
                        model_type,
                    }));
                }
                Meaning::Tensor(wanted) => {
                    if !here.insert(wanted.ours.as_str()) {
                        return Err(refuse(FolderError::Twice { tensor: tensor() }));
                    }
                    placed.extend(
                        place(&shard, found, wanted, config.kind, &mut header).map_err(refuse)?,
                    );
                }
            }
        }
        parts.push((shard.path, shard.map, placed));
    }
    if let Some(missing) = names.wanted().iter().find(|wanted| !here.contains(wanted.ours.as_str()))
    {
        return Err(fail(folder, FolderError::MissingTensor { tensor: missing.theirs.clone() }));
    }
    if !beside.is_empty() {
        let parts: Vec<String> =
            beside.iter().map(|(part, n)| format!("{n} tensors of {part}")).collect();
        remarks.push(format!("{} are ignored: kjit runs only the text model", parts.join(" and ")));
    }
    Ok(Folder { config: path, made: header.bytes(), files: parts, remarks })
}

/// The location of a tensor in its file; `None` if it was converted in memory.
fn place(
    shard: &Shard,
    found: &ShardTensor,
    wanted: &ExpectedTensor,
    kind: Kind,
    header: &mut Header,
) -> Result<Option<TensorInfo>, FolderError> {
    let tensor = || found.name.clone();
    let Some((ty, each)) = shards::ggml(found.dtype) else {
        return Err(FolderError::Dtype { tensor: tensor(), dtype: format!("{:?}", found.dtype) });
    };
    if found.shape != wanted.shape {
        let (found, want) = (found.shape.clone(), wanted.shape.clone());
        return Err(FolderError::Shape { tensor: tensor(), found, want });
    }
    let want =
        wanted.shape.iter().try_fold(each, |bytes, d| bytes.checked_mul(*d)).unwrap_or(u64::MAX);
    if found.bytes != want {
        return Err(FolderError::Bytes { tensor: tensor(), found: found.bytes, want });
    }
    let range = usize::try_from(found.at).ok().zip(usize::try_from(found.at + found.bytes).ok());
    let bytes = range.and_then(|(at, end)| shard.map.get(at..end)).unwrap_or_default();
    let dims: Vec<u64> = wanted.shape.iter().rev().copied().collect();
    if let [_] = *dims {
        let mut values = shards::singles(found.dtype, bytes);
        // Gemma's norms multiply by the stored value plus one.
        if kind == Kind::Gemma3 && wanted.ours.ends_with("norm.weight") {
            values.iter_mut().for_each(|v| *v += 1.0);
        }
        header.vector(&wanted.ours, &values);
        return Ok(None);
    }
    if !found.at.is_multiple_of(ALIGNMENT) {
        // Old writers did not align the data. An unaligned tensor is copied.
        header.tensor(&wanted.ours, &dims, ty, bytes.to_vec());
        return Ok(None);
    }
    Ok(Some(TensorInfo::placed(&wanted.ours, &dims, ty, found.bytes, found.at)))
}

/// The model name of a folder. For a snapshot in the hub's cache
/// (`models--ORG--REPO/snapshots/COMMIT`) it is the name of the repository, otherwise the name of
/// the folder.
pub fn name(folder: &Path) -> String {
    let whole = folder.canonicalize();
    let path = whole.as_deref().unwrap_or(folder);
    let called = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let above = path
        .parent()
        .filter(|above| above.ends_with("snapshots"))
        .and_then(Path::parent)
        .map(called);
    match above.as_deref().and_then(|name| name.strip_prefix("models--")) {
        Some(repository) => {
            repository.split_once("--").map_or(repository, |(_, repository)| repository).to_owned()
        }
        None => called(path),
    }
}
