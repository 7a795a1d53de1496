//! What a sequence keeps of its past tokens, by kinds.

use std::fmt::{self, Display, Formatter};

/// What one layer keeps of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Name: `blk.0`.
    pub name: String,
    /// What is kept, and how much.
    pub kind: StateKind,
}

/// Keys and values of an attention layer, a row of each per token and head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kv {
    /// Heads stored.
    pub heads: usize,
    /// Elements of a head's key.
    pub key: usize,
    /// Elements of a head's value.
    pub value: usize,
    /// Tokens back that the layer can see, itself included; `None`: all. A layer with a window
    /// needs to keep no more.
    pub window: Option<usize>,
}

/// The kinds of states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateKind {
    /// Keys and values.
    Kv(Kv),
    /// Of latent attention (DeepSeek-V2, arXiv 2405.04434): one row per token, `rank` elements that
    /// are values and, with the `rope` ones behind them, keys of all heads.
    Latent {
        /// Elements of the latent.
        rank: usize,
        /// Elements of the rotated key.
        rope: usize,
    },
    /// So many numbers, whatever the number of tokens: the last inputs of a convolution, the sum of
    /// a linear attention. They start as zeros; going back needs a checkpoint.
    Recurrent {
        /// How many.
        elems: usize,
    },
    /// What a layer of another stage keeps: nothing is kept here.
    Elsewhere,
}

impl State {
    /// Elements that each token adds.
    pub fn elems_per_token(&self) -> usize {
        match self.kind {
            StateKind::Kv(Kv { heads, key, value, .. }) => heads * (key + value),
            StateKind::Latent { rank, rope } => rank + rope,
            StateKind::Recurrent { .. } | StateKind::Elsewhere => 0,
        }
    }

    /// Elements of what a head of attention gives.
    pub fn value_size(&self) -> usize {
        match self.kind {
            StateKind::Kv(kv) => kv.value,
            StateKind::Latent { rank, .. } => rank,
            StateKind::Recurrent { .. } | StateKind::Elsewhere => 0,
        }
    }

    /// Tokens back that can be seen; `None`: all.
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
            StateKind::Elsewhere => write!(f, "elsewhere {}", self.name),
        }
    }
}
