//! Placement of a model's layers: a list of *stages*, each a contiguous range of layers on one
//! device.
//!
//! The graph is cut at layer borders ([`Layers`]). A stage's part is a graph too: its input is
//! hidden states of the stage before (token ids for the first stage), its result is hidden states
//! for the next one (logits for the last). A runner treats a part like a whole graph. A session has
//! the last stage's runner, and each runner asks the one before it for hidden states. So tokens are
//! chosen where the logits are, and nothing above knows the number of stages.

mod choose;
mod rank;
mod stage;

pub use crate::graph::{
    CutError, ExpertsError, FfnError, HostFfnGraph, Layers, ShardError, experts_apart,
    experts_here, shard, shard_of_rank,
};
pub use crate::plan::divide::{DivideError, LayerNeed, Room, divide, needs};
pub use crate::plan::expert_places::Apart;
pub use choose::PlacementError;
pub(crate) use choose::Wanted;
pub(crate) use rank::open_rank;
pub use stage::Place;
