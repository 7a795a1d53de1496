//! A model as data: a list of operations over named values, with shapes and weight names.
//!
//! A [`Graph`] describes one step over T tokens. Every value has one row per token. The executors
//! determine device, precision, memory layout and method of computation. The executor in `kjit_cpu`
//! runs a graph unchanged; all others are compared with it. The operations are in a valid order of
//! execution.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing
    )
)]

mod activation;
mod adapt;
pub mod arch;
mod build;
pub mod catalogue;
mod cut;
mod experts;
mod ffn;
mod graph;
pub mod op;
mod pooling;
mod print;
mod rope;
mod shard;
mod state;
mod value;
mod weight;

pub use activation::Activation;
pub use adapt::{AdapterSlots, MAX_ADAPTERS, adapt, unit as adapter_unit, with_adapter_slots};
pub use build::{Builder, GraphError, Part};
pub use cut::{CutError, Layers};
pub use experts::{ExpertsError, is_expert_op, merge_host_experts, split_host_experts};
pub use ffn::{FfnError, HostFfnGraph, is_host_ffn, spread, spread_from_first};
pub use op::Op;
pub use rope::{Pairing, Rope, RopeScaling, Sections};
pub use shard::{RANKS, ShardError, shard, shard_of_rank};
pub use state::{Kv, State, StateKind};

pub use graph::{Graph, GraphAdapter};
pub use pooling::Pooling;
pub use rope::RopeId;
pub use state::StateId;
pub use value::{Dtype, Value, ValueId};
pub use weight::{Weight, WeightId};
