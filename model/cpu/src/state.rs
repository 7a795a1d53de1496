//! What one sequence keeps of its past tokens: one object, made from the graph.
//!
//! Keys, values and latents are by position: going back is forgetting a number. A recurrent state
//! has no positions: some copies of it are kept as the sequence grows, and going back takes the
//! last one before, and the tokens from there on again ([`State::replay`]). Where others are likely
//! to go on, somebody says so ([`State::keep`]): those copies stay.

use super::kv::KvStore;
use super::run::Kept;
use kjit_exec::{KvType, SessionError};
use kjit_graph::{Graph, Kv, StateId, StateKind};
use std::sync::Arc;

/// Copies of the recurrent states that are kept, the newest ones; and of those that somebody asked
/// for. Before the oldest there is always the beginning, which is zeros.
const CHECKPOINTS: usize = 4;

/// Tokens between two of them at least: a copy is as large as a sequence's state, some megabytes.
const APART: usize = 32;

/// One layer's.
enum Layer {
    Kv([KvStore; 2], usize),
    Latent(KvStore, usize),
    Recurrent(Vec<f32>),
    /// Another stage's.
    Elsewhere,
}

/// The recurrent states of all layers after so many tokens.
#[derive(Clone)]
struct Checkpoint {
    len: usize,
    /// Somebody asked for it. Sequences that begin alike have one together.
    asked: bool,
    layers: Arc<Vec<Vec<f32>>>,
}

/// One sequence's past.
pub struct State {
    layers: Vec<Layer>,
    /// Tokens that the layers hold.
    len: usize,
    /// Tokens that the sequence has: more than `len` after going back, until they were run again.
    tokens: Vec<u32>,
    recurrent: bool,
    checkpoints: Vec<Checkpoint>,
}

impl State {
    /// Room for `context` tokens; nothing is in it yet. The system gives memory as it is first
    /// used.
    ///
    /// # Errors
    /// [`SessionError::Memory`] if the system refuses it.
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
                StateKind::Elsewhere => Layer::Elsewhere,
            });
        }
        Ok(State {
            layers,
            len: 0,
            tokens: vec![],
            recurrent: graph.is_recurrent(),
            checkpoints: vec![],
        })
    }

    /// Tokens in the sequence.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Tokens that the layers hold: where the next rows go.
    pub fn position(&self) -> usize {
        self.len
    }

    /// Tokens of the sequence that must be run again before others, because it went back.
    pub fn replay(&self) -> &[u32] {
        &self.tokens[self.len..]
    }

    /// Bytes mapped, and held.
    pub fn bytes(&self) -> usize {
        let of = |layer: &Layer| match layer {
            Layer::Kv(stores, _) => stores.iter().map(KvStore::bytes).sum(),
            Layer::Latent(store, _) => store.bytes(),
            Layer::Recurrent(numbers) => 4 * numbers.len(),
            Layer::Elsewhere => 0,
        };
        self.layers.iter().map(of).sum()
    }

    /// Says that more tokens will be run in one go: the state before them is kept, if none was for
    /// a while.
    pub fn mark(&mut self) {
        let last = self.checkpoints.last().map_or(0, |c| c.len);
        if self.recurrent && self.len >= last + APART {
            self.checkpoint(false);
        }
    }

    /// Keeps a copy of the recurrent states as they are; whether there is anything to keep.
    pub fn keep(&mut self) -> bool {
        if !self.recurrent || self.len == 0 || !self.replay().is_empty() {
            return false;
        }
        match self.checkpoints.last_mut().filter(|c| c.len == self.len) {
            Some(there) => there.asked = true,
            None => self.checkpoint(true),
        }
        true
    }

    fn checkpoint(&mut self, asked: bool) {
        let layers = self
            .layers
            .iter()
            .filter_map(|l| if let Layer::Recurrent(x) = l { Some(x.clone()) } else { None });
        self.checkpoints.push(Checkpoint {
            len: self.len,
            asked,
            layers: Arc::new(layers.collect()),
        });
        let same: Vec<usize> = (0..)
            .zip(&self.checkpoints)
            .filter(|(_, c)| c.asked == asked)
            .map(|(i, _)| i)
            .collect();
        // The first that was asked for stays: it is what most have in common.
        if same.len() > CHECKPOINTS
            && let Some(&old) = same.get(usize::from(asked))
        {
            self.checkpoints.remove(old);
        }
    }

    /// Says that the layers hold these tokens, too: replayed ones, or new ones.
    pub fn advance(&mut self, tokens: &[u32]) {
        self.len += tokens.len();
        let known = self.tokens.len() - (self.len - tokens.len());
        self.tokens.extend(tokens.iter().skip(known));
    }

    /// Becomes what another one of the same model is, as far as its first `len` tokens need it:
    /// [`State::truncate`] leaves no more.
    pub fn copy(&mut self, from: &State, len: usize) {
        let rows = len.min(from.len);
        for (to, from) in self.layers.iter_mut().zip(&from.layers) {
            match (to, from) {
                (Layer::Kv(to, _), Layer::Kv(from, _)) => {
                    to.iter_mut().zip(from).for_each(|(to, from)| to.copy(from, rows));
                }
                (Layer::Latent(to, _), Layer::Latent(from, _)) => to.copy(from, rows),
                (Layer::Recurrent(to), Layer::Recurrent(from)) => to.copy_from_slice(from),
                (Layer::Elsewhere, Layer::Elsewhere) => {}
                _ => other_kind(),
            }
        }
        self.len = from.len;
        self.tokens.clone_from(&from.tokens);
        self.checkpoints.clone_from(&from.checkpoints);
    }

    /// Forgets all tokens from position `len` on.
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

    /// Takes the recurrent states back to the last checkpoint, after rows that were not finished,
    /// too.
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
                numbers.zip(c.layers.iter()).for_each(|(x, kept)| x.copy_from_slice(kept));
            }
            None => {
                self.len = 0;
                numbers.for_each(|x| x.fill(0.0));
            }
        }
    }

    /// What attention reads.
    pub fn kept(&self, id: StateId) -> Kept<'_> {
        match &self.layers[id.0 as usize] {
            Layer::Kv([keys, values], size) => (keys, values, *size),
            Layer::Latent(store, rank) => (store, store, *rank),
            Layer::Recurrent(_) | Layer::Elsewhere => other_kind(),
        }
    }

    /// Where keys (0) and values (1) go.
    pub fn store(&mut self, id: StateId, which: usize) -> &mut KvStore {
        match &mut self.layers[id.0 as usize] {
            Layer::Kv(stores, _) => &mut stores[which],
            Layer::Latent(store, _) => store,
            Layer::Recurrent(_) | Layer::Elsewhere => other_kind(),
        }
    }

    /// Numbers that do not depend on the position.
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
    panic!("an operation uses a state of another kind")
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
