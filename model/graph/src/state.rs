//! The states of a sequence: data about its past tokens.

use std::fmt::{self, Display, Formatter};

/// The state of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Name, such as `blk.0`.
    pub name: String,
    /// Kind and size of the state.
    pub kind: StateKind,
}

/// Keys and values of an attention layer, one row each per token and head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kv {
    /// Number of key heads.
    pub heads: usize,
    /// Number of elements of a head's key.
    pub key: usize,
    /// Number of elements of a head's value.
    pub value: usize,
    /// Number of tokens that the layer reads, including the current token; `None`: all. Older
    /// tokens may be dropped.
    pub window: Option<usize>,
}

/// The kinds of states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateKind {
    /// Keys and values.
    Kv(Kv),
    /// Latent attention (DeepSeek-V2, arXiv 2405.04434): one row per token. The first `rank`
    /// elements are the value. Together with the next `rope` elements they are the key of all
    /// heads.
    Latent {
        /// Number of elements of the latent.
        rank: usize,
        /// Number of elements of the rotated key.
        rope: usize,
    },
    /// A fixed number of elements, independent of the number of tokens: the last inputs of a
    /// convolution, or the matrix of a linear attention. It starts as zeros. Rewinding needs a
    /// checkpoint.
    Recurrent {
        /// Number of elements.
        elems: usize,
    },
    /// The state of a layer in another stage (see [`Layers`](crate::Layers)). It takes no memory in
    /// this stage.
    Remote,
}

impl State {
    /// Elements per token.
    pub fn elems_per_token(&self) -> usize {
        match self.kind {
            StateKind::Kv(Kv { heads, key, value, .. }) => heads * (key + value),
            StateKind::Latent { rank, rope } => rank + rope,
            StateKind::Recurrent { .. } | StateKind::Remote => 0,
        }
    }

    /// Number of elements of a head's attention result.
    pub fn value_size(&self) -> usize {
        match self.kind {
            StateKind::Kv(kv) => kv.value,
            StateKind::Latent { rank, .. } => rank,
            StateKind::Recurrent { .. } | StateKind::Remote => 0,
        }
    }

    /// Number of visible tokens; `None`: all.
    pub fn window(&self) -> Option<usize> {
        match self.kind {
            StateKind::Kv(kv) => kv.window,
            _ => None,
        }
    }
}

impl Display for State {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.kind {
            StateKind::Kv(Kv { heads, key, value, window }) => {
                write!(f, "cache {}: heads {heads} x {key}", self.name)?;
                if key != value {
                    write!(f, " keys, {value} values")?;
                }
                window.map_or(Ok(()), |w| write!(f, " window {w}"))
            }
            StateKind::Latent { rank, rope } => {
                write!(f, "latent {}: {rank} + rope {rope}", self.name)
            }
            StateKind::Recurrent { elems } => write!(f, "recurrent {}: {elems}", self.name),
            StateKind::Remote => write!(f, "elsewhere {}", self.name),
        }
    }
}

/// Index of a [`State`] in [`Graph::states`](crate::Graph::states).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub u32);
