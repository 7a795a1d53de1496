//! LoRA adapters that are loaded and unloaded while the server runs, by vLLM's routes.
//!
//! They are in host memory. The scheduler copies the adapters of running requests to the model's
//! places for adapters. An adapter that is unloaded stays until its requests have ended.

use crate::caller::Caller;
use crate::fields::Fields;
use crate::options::Served;
use crate::refusal::Refusal;
use crate::service::Service;
use axum::response::{IntoResponse, Response};
use hyper::body::Bytes;
use kjit_model::session::{LoadedAdapter, ScaledAdapter};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum bytes of an adapter's name.
const MAX_NAME: usize = 256;

/// The adapters of a request.
#[derive(Debug, Clone)]
pub enum Adapters {
    /// A scale for each adapter that the model was opened with.
    Scales(Vec<f32>),
    /// Adapters that were loaded later.
    Loaded(Vec<ScaledAdapter>),
}

impl Adapters {
    /// The names of the adapters that have an effect.
    pub fn names<'a>(&'a self, served: &'a Served) -> Box<dyn Iterator<Item = &'a str> + 'a> {
        match self {
            Adapters::Scales(scales) => {
                let all = served.adapters.iter().zip(scales);
                Box::new(all.filter(|(_, scale)| **scale != 0.0).map(|(one, _)| one.name.as_str()))
            }
            Adapters::Loaded(all) => {
                Box::new(all.iter().filter(|one| one.scale != 0.0).map(|one| one.name.as_str()))
            }
        }
    }
}

/// The adapters of a model that was opened with places for them.
#[derive(Debug)]
pub struct AdapterStore {
    /// Maximum number of adapters in host memory.
    most: usize,
    inner: Mutex<Stored>,
    /// Held while an adapter is read: one at a time.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Stored {
    /// The id of the next adapter. Ids are never reused.
    next: usize,
    all: BTreeMap<usize, ScaledAdapter>,
}

impl AdapterStore {
    /// A store of at most this number of adapters.
    pub fn new(most: usize) -> AdapterStore {
        AdapterStore { most, inner: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Stored> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The adapter with this id.
    pub fn get(&self, id: usize) -> Option<ScaledAdapter> {
        self.lock().all.get(&id).cloned()
    }

    /// The id of the adapter with this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.lock().all.iter().find(|(_, one)| one.name == name).map(|(id, _)| *id)
    }

    /// All adapters with their ids.
    pub fn all(&self) -> Vec<(usize, ScaledAdapter)> {
        self.lock().all.iter().map(|(id, one)| (*id, one.clone())).collect()
    }

    /// Checks whether an adapter of this name may be added.
    fn may_add(&self, name: &str, replace: bool) -> Result<(), Refusal> {
        let inner = self.lock();
        if inner.all.values().any(|one| one.name == name) {
            return match replace {
                true => Ok(()),
                false => Err(Refusal::bad(format!(
                    "the LoRA adapter '{name}' is already loaded: \
                     unload it first, or set load_inplace"
                ))),
            };
        }
        match inner.all.len() < self.most {
            true => Ok(()),
            false => Err(Refusal::bad(format!(
                "{} LoRA adapters are loaded, the most that --max-cpu-loras allows: unload one",
                inner.all.len()
            ))),
        }
    }

    /// Adds an adapter.
    ///
    /// # Errors
    /// The name is in use and `replace` is false, or there are too many adapters.
    pub fn add(&self, one: ScaledAdapter, replace: bool) -> Result<(), Refusal> {
        self.may_add(&one.name, replace)?;
        let mut inner = self.lock();
        inner.all.retain(|_, other| other.name != one.name);
        let id = inner.next;
        inner.next += 1;
        inner.all.insert(id, one);
        Ok(())
    }

    /// Removes an adapter. Returns whether there was one of this name.
    pub fn remove(&self, name: &str) -> bool {
        let mut inner = self.lock();
        let before = inner.all.len();
        inner.all.retain(|_, one| one.name != name);
        inner.all.len() < before
    }
}

/// The model of the routes, and its store. Only the first model can have one.
fn store(service: &Service) -> Result<(&Served, &Arc<AdapterStore>), Refusal> {
    let served = service.options.models.first();
    served.and_then(|served| Some((served, served.store.as_ref()?))).ok_or_else(|| {
        Refusal::bad("this server loads no LoRA adapters: start it with --max-loras N")
    })
}

/// The name in a request, if the caller may load and unload it.
fn name(f: &mut Fields, caller: &Caller) -> Result<String, Refusal> {
    let Some(name) = f.text("lora_name")?.filter(|name| !name.is_empty()) else {
        return Err(f.wrong("lora_name", "is missing"));
    };
    if name.len() > MAX_NAME || name.contains(|c: char| c.is_control() || c == ':') {
        let why = format!("give at most {MAX_NAME} bytes without ':' and control characters");
        return Err(f.wrong("lora_name", why));
    }
    if !caller.loads_adapters {
        return Err(Refusal::foreign(
            "LoRA adapters are loaded with API keys whose line in the key file \
             has load-adapters=yes; without a key file, only on a server that listens on loopback",
        ));
    }
    match &caller.adapters {
        Some(allowed) if !allowed.contains(&name) => {
            Err(Refusal::foreign(format!("this API key may not use the adapter '{name}'")))
        }
        _ => Ok(name),
    }
}

/// `POST /v1/load_lora_adapter`: `{"lora_name", "lora_path", "load_inplace"}`.
///
/// # Errors
/// 400: a field is missing or the adapter does not fit. 403: the caller may not. 404: no such file.
pub async fn load(service: Arc<Service>, body: Bytes, caller: Caller) -> Result<Response, Refusal> {
    let mut f = Fields::parse(&body)?;
    let (served, store) = store(&service)?;
    let name = name(&mut f, &caller)?;
    let Some(path) = f.text("lora_path")?.filter(|path| !path.is_empty()) else {
        return Err(f.wrong("lora_path", "is missing"));
    };
    let replace = f.flag("load_inplace")?.unwrap_or(false);
    f.done()?;
    if served.is(&name) {
        return Err(Refusal::field("lora_name", format_args!("'{name}' is the model's name")));
    }
    let _turn = store.turn.lock().await;
    store.may_add(&name, replace)?;
    let (path, of) = (PathBuf::from(path), served.clone());
    let opened = service.work(move || open(&of, &path)).await?;
    store.add(ScaledAdapter { name: name.clone(), adapter: opened?, scale: 1.0 }, replace)?;
    (service.options.say)(&format!("LoRA adapter '{name}' is loaded"));
    Ok(format!("Success: LoRA adapter '{name}' added successfully.").into_response())
}

fn open(served: &Served, path: &Path) -> Result<LoadedAdapter, Refusal> {
    if !path.exists() {
        let path = path.display().to_string();
        return Err(Refusal::unknown(format!(
            "'lora_path': there is no file or folder '{}' on the server",
            path.escape_debug()
        )));
    }
    LoadedAdapter::open(&served.path, path, &served.open)
        .map_err(|error| Refusal::field("lora_path", error))
}

/// `POST /v1/unload_lora_adapter`: `{"lora_name"}`. Running requests keep the adapter.
///
/// # Errors
/// 400: the name is missing. 403: the caller may not. 404: no such adapter.
pub async fn unload(
    service: Arc<Service>,
    body: Bytes,
    caller: Caller,
) -> Result<Response, Refusal> {
    let mut f = Fields::parse(&body)?;
    let (_, store) = store(&service)?;
    let name = name(&mut f, &caller)?;
    f.ignore(&["lora_int_id"]);
    f.done()?;
    let _turn = store.turn.lock().await;
    if !store.remove(&name) {
        return Err(Refusal::unknown(format!("the LoRA adapter '{name}' cannot be found")));
    }
    (service.options.say)(&format!("LoRA adapter '{name}' is unloaded"));
    Ok(format!("Success: LoRA adapter '{name}' removed successfully.").into_response())
}
