//! Where a model's layers are: a list of *stages*, each a contiguous range of layers on one device.
//!
//! The graph is cut at borders of layers ([`Layers`]); a stage's part is a graph, too, whose input
//! is rows that the stage before has made (token ids for the first) and whose result is rows for
//! the next one (logits for the last). What a runner does for a whole graph it does for a part. A
//! session has the last stage's runner, and each runner has the one before it, which it asks for
//! rows: so tokens are chosen where the logits are, and nothing above knows how many stages there
//! are.

mod choose;
mod rank;
mod stage;

pub use crate::graph::{
    CutError, ExpertsError, FfnApart, FfnError, Layers, ShardError, experts_apart, experts_here,
    shard, shard_of_rank,
};
pub use crate::plan::divide::{DivideError, LayerNeed, Room, divide, needs};
pub use crate::plan::expert_places::Apart;
pub use choose::PlacementError;
pub(crate) use choose::Wanted;
pub(crate) use rank::open_rank;
pub use stage::Place;
