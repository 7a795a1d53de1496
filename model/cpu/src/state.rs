//! The states of one sequence on the CPU.
//!
//! Keys, values and latents are stored by position, so going back only changes a length. A
//! recurrent state has no positions. So checkpoints of it are saved while the sequence grows. Going
//! back restores the last checkpoint before the position, and the tokens after it are run again
//! ([`State::replay`]). [`State::keep`] saves a permanent checkpoint at a position from which other
//! sequences are likely to continue.

use super::kv::KvStore;
use crate::kv::KeysAndValues;
use kjit_exec::{KvType, SessionError};
use kjit_graph::{Graph, Kv, StateId, StateKind};
use std::sync::Arc;

/// Maximum number of automatic checkpoints (the newest are kept), and of requested checkpoints. The
/// initial state (zeros) is always available.
const CHECKPOINTS: usize = 4;

/// Minimum number of tokens between two automatic checkpoints. A checkpoint is as large as the
/// recurrent state, which is some megabytes.
const MIN_DISTANCE: usize = 32;

/// The state of one layer.
enum Layer {
    Kv([KvStore; 2], usize),
    Latent(KvStore, usize),
    Recurrent(Vec<f32>),
    /// The layer is in another stage.
    Remote,
}

/// The recurrent states of all layers after `len` tokens.
#[derive(Clone)]
struct Checkpoint {
    len: usize,
    /// Whether [`State::keep`] made it. Sequences with a common prefix share the copy.
    requested: bool,
    layers: Arc<Vec<Vec<f32>>>,
}

/// The states of one sequence.
pub struct State {
    layers: Vec<Layer>,
    /// Number of tokens that the states include.
    len: usize,
    /// Tokens of the sequence. There are more than `len` after going back, until they have been run
    /// again.
    tokens: Vec<u32>,
    recurrent: bool,
    checkpoints: Vec<Checkpoint>,
    /// The factor of each adapter.
    factors: Vec<f32>,
}

impl State {
    /// An empty state for `context` tokens. The system allocates memory at first use.
    ///
    /// # Errors
    /// [`SessionError::Memory`] if the system refuses the memory.
    pub fn new(graph: &Graph, kv: KvType, context: usize) -> Result<State, SessionError> {
        let mut layers = Vec::with_capacity(graph.states.len());
        for s in &graph.states {
            let new = |what: &str, heads, dim| {
                KvStore::new(&format!("{what} of {}", s.name), kv, heads, dim, context)
            };
            layers.push(match s.kind {
                StateKind::Kv(Kv { heads, key, value, .. }) => {
                    Layer::Kv([new("keys", heads, key)?, new("values", heads, value)?], value)
                }
                StateKind::Latent { rank, rope } => {
                    Layer::Latent(new("latents", 1, rank + rope)?, rank)
                }
                StateKind::Recurrent { elems } => Layer::Recurrent(zeros(&s.name, elems)?),
                StateKind::Remote => Layer::Remote,
            });
        }
        Ok(State {
            layers,
            len: 0,
            tokens: vec![],
            recurrent: graph.is_recurrent(),
            checkpoints: vec![],
            factors: graph.adapter_factors(),
        })
    }

    /// The factor of each adapter.
    pub fn factors(&self) -> &[f32] {
        &self.factors
    }

    /// Sets the factor of each adapter for later rows.
    pub fn set_factors(&mut self, factors: &[f32]) {
        self.factors.clear();
        self.factors.extend_from_slice(factors);
    }

    /// Number of tokens in the sequence.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Number of tokens that the states include. This is the position of the next rows.
    pub fn position(&self) -> usize {
        self.len
    }

    /// Tokens that must be run again before others, because the sequence went back.
    pub fn replay(&self) -> &[u32] {
        &self.tokens[self.len..]
    }

    /// Bytes that are mapped or allocated.
    pub fn bytes(&self) -> usize {
        let of = |layer: &Layer| match layer {
            Layer::Kv(stores, _) => stores.iter().map(KvStore::bytes).sum(),
            Layer::Latent(store, _) => store.bytes(),
            Layer::Recurrent(numbers) => 4 * numbers.len(),
            Layer::Remote => 0,
        };
        self.layers.iter().map(of).sum()
    }

    /// Announces that several tokens will run in one pass. Saves a checkpoint if the last one is
    /// old enough.
    pub fn mark(&mut self) {
        let last = self.checkpoints.last().map_or(0, |c| c.len);
        if self.recurrent && self.len >= last + MIN_DISTANCE {
            self.checkpoint(false);
        }
    }

    /// Saves a permanent checkpoint. Returns whether the sequence has a recurrent state.
    pub fn keep(&mut self) -> bool {
        if !self.recurrent || self.len == 0 || !self.replay().is_empty() {
            return false;
        }
        match self.checkpoints.last_mut().filter(|c| c.len == self.len) {
            Some(there) => there.requested = true,
            None => self.checkpoint(true),
        }
        true
    }

    fn checkpoint(&mut self, requested: bool) {
        let layers = self
            .layers
            .iter()
            .filter_map(|l| if let Layer::Recurrent(x) = l { Some(x.clone()) } else { None });
        self.checkpoints.push(Checkpoint {
            len: self.len,
            requested,
            layers: Arc::new(layers.collect()),
        });
        let same: Vec<usize> = (0..)
            .zip(&self.checkpoints)
            .filter(|(_, c)| c.requested == requested)
            .map(|(i, _)| i)
            .collect();
        // The first requested checkpoint stays, because most sequences share it.
        if same.len() > CHECKPOINTS
            && let Some(&old) = same.get(usize::from(requested))
        {
            self.checkpoints.remove(old);
        }
    }

    /// Records that the states now include these tokens, replayed or new.
    pub fn advance(&mut self, tokens: &[u32]) {
        self.len += tokens.len();
        let known = self.tokens.len() - (self.len - tokens.len());
        self.tokens.extend(tokens.iter().skip(known));
    }

    /// Copies another state of the same model, but only the rows of its first `len` tokens. The
    /// caller then truncates to `len`.
    pub fn copy(&mut self, from: &State, len: usize) {
        let rows = len.min(from.len);
        for (to, from) in self.layers.iter_mut().zip(&from.layers) {
            match (to, from) {
                (Layer::Kv(to, _), Layer::Kv(from, _)) => {
                    to.iter_mut().zip(from).for_each(|(to, from)| to.copy(from, rows));
                }
                (Layer::Latent(to, _), Layer::Latent(from, _)) => to.copy(from, rows),
                (Layer::Recurrent(to), Layer::Recurrent(from)) => to.copy_from_slice(from),
                (Layer::Remote, Layer::Remote) => {}
                _ => other_kind(),
            }
        }
        self.len = from.len;
        self.tokens.clone_from(&from.tokens);
        self.checkpoints.clone_from(&from.checkpoints);
    }

    /// The stores of keys, values and latents; `None` if there are other states.
    fn stores(&mut self) -> Option<Vec<&mut KvStore>> {
        let mut all = vec![];
        for layer in &mut self.layers {
            match layer {
                Layer::Kv(stores, _) => all.extend(stores),
                Layer::Latent(store, _) => all.push(store),
                Layer::Recurrent(_) | Layer::Remote => return None,
            }
        }
        Some(all)
    }

    /// The bytes of `rows` positions from `first` on; `None` if the states are not stores of
    /// positions, or do not include them.
    pub fn save(&mut self, first: usize, rows: usize) -> Option<Vec<u8>> {
        let mut out = vec![];
        if first + rows > self.len {
            return None;
        }
        self.stores()?.iter().for_each(|store| store.save(first, rows, &mut out));
        Some(out)
    }

    /// Appends these tokens with the bytes of [`State::save`]. Returns `false`, without any change,
    /// if the bytes have a different size.
    pub fn load(&mut self, tokens: &[u32], bytes: &[u8]) -> bool {
        let (first, rows) = (self.len, tokens.len());
        if self.tokens.len() != first {
            return false;
        }
        let Some(stores) = self.stores() else { return false };
        if bytes.len() != stores.iter().map(|store| store.bytes_of(rows)).sum::<usize>() {
            return false;
        }
        let mut rest = bytes;
        for store in stores {
            let (here, after) = rest.split_at(store.bytes_of(rows));
            store.load(first, rows, here);
            rest = after;
        }
        self.advance(tokens);
        true
    }

    /// Removes all tokens from position `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        if self.len <= len {
            return;
        }
        self.len = len;
        if !self.recurrent {
            return;
        }
        self.checkpoints.retain(|c| c.len <= len);
        self.restore();
    }

    /// Restores the recurrent states from the last checkpoint. It is also used after a step that
    /// failed.
    pub fn restore(&mut self) {
        if !self.recurrent {
            return;
        }
        let numbers = self
            .layers
            .iter_mut()
            .filter_map(|l| if let Layer::Recurrent(x) = l { Some(x) } else { None });
        match self.checkpoints.last() {
            Some(c) => {
                self.len = c.len;
                numbers
                    .zip(c.layers.iter())
                    .for_each(|(x, attention_inputs)| x.copy_from_slice(attention_inputs));
            }
            None => {
                self.len = 0;
                numbers.for_each(|x| x.fill(0.0));
            }
        }
    }

    /// The inputs of attention.
    pub fn attention_inputs(&self, id: StateId) -> KeysAndValues<'_> {
        match &self.layers[id.0 as usize] {
            Layer::Kv([keys, values], size) => (keys, values, *size),
            Layer::Latent(store, rank) => (store, store, *rank),
            Layer::Recurrent(_) | Layer::Remote => other_kind(),
        }
    }

    /// The store of keys (0) or values (1).
    pub fn store(&mut self, id: StateId, which: usize) -> &mut KvStore {
        match &mut self.layers[id.0 as usize] {
            Layer::Kv(stores, _) => &mut stores[which],
            Layer::Latent(store, _) => store,
            Layer::Recurrent(_) | Layer::Remote => other_kind(),
        }
    }

    /// The elements of a recurrent state.
    pub fn recurrent(&mut self, id: StateId) -> &mut [f32] {
        match &mut self.layers[id.0 as usize] {
            Layer::Recurrent(numbers) => numbers,
            _ => other_kind(),
        }
    }
}

#[cold]
#[expect(clippy::panic, reason = "the builder makes a state of the kind that its operation uses")]
fn other_kind() -> ! {
    panic!("an operation uses a state of a different kind")
}

fn zeros(name: &str, elems: usize) -> Result<Vec<f32>, SessionError> {
    let mut numbers = vec![];
    numbers.try_reserve_exact(elems).map_err(|_| SessionError::Memory {
        what: format!("the state of {name}"),
        bytes: 4 * elems as u64,
        hint: "close other programs".into(),
    })?;
    numbers.resize(elems, 0.0);
    Ok(numbers)
}
