//! The pooling of a sentence-transformers folder. `modules.json` lists the steps. The file of the
//! pooling step describes how rows become one vector.

use super::error::FolderError;
use super::fail::fail;
use super::header::Header;
use super::json::{self, Object};
use crate::Error;
use serde::Deserialize;
use std::path::{Component, Path, PathBuf};

/// Supported kinds of pooling with their numbers in GGUF (`pooling_type`). Most versions of the
/// file have a flag for each.
const MODES: &[(&str, u32)] = &[
    ("mean_tokens", 1),
    ("mean", 1),
    ("cls_token", 2),
    ("cls", 2),
    ("lasttoken", 3),
    ("last_token", 3),
];

/// Prefix of the flags.
const FLAG: &str = "pooling_mode_";

/// A step.
#[derive(Deserialize)]
struct Module {
    #[serde(rename = "type")]
    name: String,
    #[serde(default)]
    path: String,
}

/// Writes the kind of pooling. Most folders have none.
pub fn write(folder: &Path, arch: &str, header: &mut Header) -> Result<(), Error> {
    let Some((path, named)) = step(folder)? else { return Ok(()) };
    let file = match Object::read(path.clone())? {
        Some(file) => file,
        None if named => {
            let hint = ", although modules.json lists it as the pooling step";
            return Err(fail(&path, FolderError::NotThere { hint }));
        }
        None => return Ok(()),
    };
    let (key, mode) = match file.str("pooling_mode")? {
        Some(mode) => ("pooling_mode".to_owned(), mode.to_owned()),
        None => {
            let mut on = vec![];
            for key in file.keys() {
                if let Some(mode) = key.strip_prefix(FLAG)
                    && file.bool(key)? == Some(true)
                {
                    on.push((key.to_owned(), mode.to_owned()));
                }
            }
            match (on.pop(), on.pop()) {
                (Some((key, _)), Some(_)) => {
                    return Err(
                        file.bad(&key, "expected exactly one pooling mode, but several are on")
                    );
                }
                (Some(mode), None) => mode,
                (None, _) => {
                    return Err(fail(
                        &path,
                        FolderError::MissingKey { key: format!("{FLAG}mean_tokens") },
                    ));
                }
            }
        }
    };
    match MODES.iter().find(|(name, _)| *name == mode) {
        Some((_, number)) => header.u32(&format!("{arch}.pooling_type"), *number),
        None => {
            return Err(file.bad(&key, "expected pooling by mean, first token (cls) or last token"));
        }
    }
    Ok(())
}

/// The pooling step's file, and whether `modules.json` lists it. Some copies of folders lack
/// `modules.json`.
fn step(folder: &Path) -> Result<Option<(PathBuf, bool)>, Error> {
    let path = folder.join("modules.json");
    let Some(bytes) = json::json_bytes(&path, json::MAX_SETTINGS)? else {
        return Ok(Some((folder.join("1_Pooling").join("config.json"), false)));
    };
    let mut found = None;
    for module in json::parse::<Vec<Module>>(&path, &bytes)? {
        let refuse = |value: String, why: &str| {
            fail(&path, FolderError::Value { key: "type".to_owned(), value, why: why.to_owned() })
        };
        match module.name.rsplit('.').next().unwrap_or_default() {
            // The server always returns vectors of length 1. The command does so on request.
            "Transformer" | "Normalize" => {}
            "Pooling" => {
                let inside = Path::new(&module.path)
                    .components()
                    .all(|part| matches!(part, Component::Normal(_)));
                if !inside {
                    return Err(refuse(module.path, "expected the path of a subfolder"));
                }
                found = Some(folder.join(&module.path).join("config.json"));
            }
            _ => {
                return Err(refuse(
                    module.name,
                    "kjit supports only the steps Transformer, Pooling and Normalize",
                ));
            }
        }
    }
    Ok(found.map(|path| (path, true)))
}
