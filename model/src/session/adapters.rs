//! LoRA adapters that are loaded while a session runs. They are in host memory, and the session
//! copies them into its places as sequences need them ([`OpenOptions::adapter_slots`]).

use super::{OpenOptions, SequenceId, Session, SessionError};
use crate::gguf::Gguf;
use crate::gguf::adapter::Adapter;
use crate::graph::{Graph, adapter_unit, with_adapter_slots};
use crate::model::OpenError;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// An adapter in host memory. Clones share it.
#[derive(Clone)]
pub struct LoadedAdapter(Arc<Content>);

struct Content {
    adapter: Adapter,
    digest: [u8; 32],
}

/// An adapter and its scale in a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaledAdapter {
    /// Its name, for reports.
    pub name: String,
    /// The adapter.
    pub adapter: LoadedAdapter,
    /// Its scale. At 0 it has no effect and takes no place.
    pub scale: f32,
}

impl LoadedAdapter {
    /// Reads an adapter for a model that is opened with these options.
    ///
    /// # Errors
    /// A file cannot be read, or the adapter does not fit the model or
    /// [`OpenOptions::adapter_slots`].
    pub fn open(
        model: &Path,
        adapter: &Path,
        options: &OpenOptions,
    ) -> Result<LoadedAdapter, OpenError> {
        let base = Gguf::open(model)?;
        let adapter = Adapter::open(adapter, &base)?;
        let graph = crate::arch::build(&base)
            .map_err(|source| OpenError::Graph { path: model.display().to_string(), source })?;
        let (slots, rank) = options.adapter_slots.unwrap_or_default();
        let places = crate::graph::AdapterSlots::of(&graph, slots, rank);
        places.check(&adapter)?;
        let digest = digest(&adapter);
        Ok(LoadedAdapter(Arc::new(Content { adapter, digest })))
    }

    /// SHA-256 of the adapter's elements. Adapters of equal digests compute the same results.
    pub fn digest(&self) -> &[u8; 32] {
        &self.0.digest
    }

    /// Bytes of the adapter in host memory.
    pub fn bytes(&self) -> usize {
        self.0.adapter.pairs.iter().map(|p| 4 * (p.a.len() + p.b.len())).sum()
    }
}

impl PartialEq for LoadedAdapter {
    fn eq(&self, other: &LoadedAdapter) -> bool {
        self.0.digest == other.0.digest
    }
}

impl std::fmt::Debug for LoadedAdapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LoadedAdapter({})", self.0.adapter.path.display())
    }
}

/// The digest of everything in an adapter that its results depend on.
fn digest(adapter: &Adapter) -> [u8; 32] {
    let mut all = Sha256::new();
    for pair in &adapter.pairs {
        all.update(pair.tensor.len().to_le_bytes());
        all.update(pair.tensor.as_bytes());
        all.update(pair.rank.to_le_bytes());
        all.update(pair.scale.to_le_bytes());
        for values in [&pair.a, &pair.b] {
            all.update(values.len().to_le_bytes());
            for some in values.chunks(4096) {
                let bytes: Vec<u8> = some.iter().flat_map(|v| v.to_le_bytes()).collect();
                all.update(bytes);
            }
        }
    }
    all.finalize().into()
}

/// The places for adapters of a session.
#[derive(Default)]
pub(super) struct Places {
    all: Vec<Place>,
    now: u64,
}

#[derive(Default)]
struct Place {
    held: Option<LoadedAdapter>,
    /// Value of the counter at the last use.
    used: u64,
}

impl Places {
    /// The places of a graph, all empty.
    pub fn of(graph: &Graph) -> Places {
        let count = graph.adapter_slots.as_ref().map_or(0, |_| graph.adapters.len());
        Places { all: (0..count).map(|_| Place::default()).collect(), now: 0 }
    }

    fn find(&self, adapter: &LoadedAdapter) -> Option<usize> {
        self.all.iter().position(|place| place.held.as_ref() == Some(adapter))
    }

    /// The place for an adapter that has none: an empty one, or the least recently used one whose
    /// adapter is not in `keep`.
    fn room(&self, keep: &[&LoadedAdapter]) -> Option<usize> {
        let free = |place: &Place| place.held.as_ref().is_none_or(|held| !keep.contains(&held));
        let free = self.all.iter().enumerate().filter(|(_, place)| free(place));
        free.min_by_key(|(_, place)| (place.held.is_some(), place.used)).map(|(at, _)| at)
    }
}

impl Session {
    /// Number of places for adapters that are loaded later.
    pub fn adapter_slots(&self) -> usize {
        self.places.all.len()
    }

    /// Sets the adapters of a sequence, and copies those that have no place into one. The least
    /// recently used adapters outside of `busy` give up their places. The tokens of the sequence,
    /// if it has any, must have been computed with the same adapters and scales. Later steps of
    /// sequences whose adapters lost their places need this call first.
    ///
    /// # Errors
    /// [`SessionError::NoSequence`]; [`SessionError::AdapterSlots`] if the adapters of the sequence
    /// and the busy ones need more places; errors of the device.
    pub fn use_adapters(
        &mut self,
        id: SequenceId,
        adapters: &[ScaledAdapter],
        busy: &[LoadedAdapter],
    ) -> Result<(), SessionError> {
        self.sequence(id)?;
        let slots = self.places.all.len();
        if slots == 0 && adapters.is_empty() {
            return Ok(());
        }
        let wanted: Vec<_> = adapters.iter().filter(|one| one.scale != 0.0).collect();
        let keep: Vec<&LoadedAdapter> = wanted.iter().map(|one| &one.adapter).chain(busy).collect();
        let mut factors = vec![0.0; slots];
        for one in &wanted {
            let at = match self.places.find(&one.adapter) {
                Some(at) => at,
                None => {
                    let at = self.places.room(&keep).ok_or(SessionError::AdapterSlots { slots })?;
                    self.page_in(at, &one.adapter)?;
                    at
                }
            };
            self.places.now += 1;
            let now = self.places.now;
            self.places.all.get_mut(at).into_iter().for_each(|place| place.used = now);
            if let Some(factor) = factors.get_mut(at) {
                *factor += adapter_unit(&one.adapter.0.adapter) * one.scale;
            }
        }
        self.runner.adapt(id.slot(), &factors)?;
        self.sequence_mut(id)?.factors = factors;
        Ok(())
    }

    /// Copies an adapter into a place.
    fn page_in(&mut self, at: usize, adapter: &LoadedAdapter) -> Result<(), SessionError> {
        let Some(place) = self.places.all.get_mut(at) else { return Ok(()) };
        let old = place.held.take();
        let both = old.iter().chain([adapter]);
        let tensors: BTreeSet<&str> =
            both.flat_map(|a| a.0.adapter.pairs.iter().map(|p| p.tensor.as_str())).collect();
        let held = |(i, place): (usize, &Place)| {
            let here = if i == at { Some(adapter) } else { place.held.as_ref() };
            here.map(|a| Arc::clone(&a.0))
        };
        let held: Vec<Option<Arc<Content>>> =
            self.places.all.iter().enumerate().map(held).collect();
        let held: Vec<Option<&Adapter>> =
            held.iter().map(|one| one.as_ref().map(|content| &content.adapter)).collect();
        for tensor in tensors {
            let stacks = self.graph().adapter_slots.as_ref().map(|s| s.stacked(tensor, &held));
            for (name, bytes) in stacks.unwrap_or_default() {
                self.runner.write_tensor(&name, &bytes)?;
            }
        }
        if let Some(place) = self.places.all.get_mut(at) {
            place.held = Some(adapter.clone());
        }
        Ok(())
    }
}

/// Adds the places of the options to a graph and its file.
pub(crate) fn with_places(
    graph: Graph,
    gguf: Gguf,
    options: &OpenOptions,
) -> Result<(Graph, Gguf), OpenError> {
    match options.adapter_slots {
        Some((slots, rank)) => Ok(with_adapter_slots(graph, gguf, slots, rank)?),
        None => Ok((graph, gguf)),
    }
}
