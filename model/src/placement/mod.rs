//! Placement of a model's layers: a list of *stages*, each a contiguous range of layers on one
//! device.
//!
//! The graph is cut between layers ([`Layers`]). The part of a stage is also a graph. Its input is
//! hidden states of the previous stage (token ids for the first stage). Its result is hidden states
//! for the next stage (logits for the last stage). A runner treats a part like a whole graph. A
//! session has the runner of the last stage, and each runner requests hidden states from the
//! previous runner. So tokens are chosen on the stage with the logits, and the callers do not
//! depend on the number of stages.

mod choose;
mod rank;
mod stage;

pub use crate::graph::{
    CutError, ExpertsError, FfnError, HostFfnGraph, Layers, ShardError, merge_host_experts, shard,
    shard_of_rank, split_host_experts,
};
pub use crate::plan::divide::{DeviceMemory, DivideError, LayerNeed, divide, needs};
pub use crate::plan::expert_cache::HostExpertsGraph;
pub use choose::PlacementError;
pub(crate) use choose::RequestedDevices;
pub(crate) use rank::open_rank;
pub use stage::StageDevice;
