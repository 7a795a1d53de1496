//! The models and numbers of sequences for which a token is one launch.

use kjit_engine::{MatrixUnit, Target};
use kjit_graph::{Graph, Op, State, StateKind};

/// Minimum bytes of a layer's weights for which one launch is the default.
const MIN_LAYER_BYTES: usize = 50 << 20;

/// Formats with faster products. At least half of a layer's bytes must have one of these formats.
const FASTER_FORMATS: [&str; 6] = ["Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K", "Q8_0"];

/// Maximum head size for which one launch is the default.
const HEAD: usize = 128;

/// Minimum number of sequences for which a token is one launch by default. `None`: never.
///
/// Measured tokens/s with one launch and with separate launches (docs/performance.md), H100: 8b
/// Q4_0 574 and 509, Q4_K_M 544 and 483, Q5_K_M 469 and 420, Q6_K 420 and 384, Q8_0 353 and 328,
/// 70b Q4_K_M 65.1 and 59.1, 3b Q4_K_M (60 MB per layer) 969 and 871. Not faster: F16 189 and 191,
/// 1b (34 MB) 2161 and 2261, 135m; 30b-a3b 614 and 588, but after 4k positions 465 and 496.
/// gemma3-12b (heads of 256) was not faster on an H200 with the previous kernel. Other GPUs were
/// not measured.
///
/// Tensor split on two H200: 8b Q8_0 (116 MB per layer) 733 and 664, 70b Q4_K_M (257 MB) 146 and
/// 143; 8b Q4_K_M (66 MB) 840 and 880, with two sequences 1500 and 1125. On two H100: 608 and 535,
/// 119 and 109; 795 and 748, 1433 and 1075. More devices were not measured.
pub(crate) fn default_min_sequences(graph: &Graph, target: &Target) -> Option<usize> {
    let heads = |state: &State| matches!(&state.kind, StateKind::Kv(kv) if kv.key <= HEAD && kv.value <= HEAD);
    if target.arch().matrix != MatrixUnit::Wgmma
        || graph.states.is_empty()
        // Models with adapters were not measured.
        || !graph.adapters.is_empty()
        || !graph.states.iter().all(heads)
    {
        return None;
    }
    let (mut bytes, mut gaining) = (0, 0);
    // Only weights that operations read. A shard's graph also lists the weights of the whole model.
    let mut read: Vec<_> = graph.ops.iter().flat_map(|op| op.weights()).collect();
    read.sort_unstable();
    read.dedup();
    for weight in read
        .into_iter()
        .map(|id| graph.weight(id))
        .filter(|w| w.tensor.starts_with("blk.") && w.rows > 1)
    {
        if weight.experts > 1 {
            return None;
        }
        bytes += weight.bytes();
        gaining += if FASTER_FORMATS.contains(&weight.format.name) { weight.bytes() } else { 0 };
    }
    let each = bytes / graph.states.len();
    let ranks = graph
        .ops
        .iter()
        .find_map(|op| if let Op::Reduce(sum) = op { Some(sum.ranks) } else { None });
    let from = match ranks {
        None => 1,
        Some(2) if each >= 2 * MIN_LAYER_BYTES => 1,
        Some(2) => 2,
        Some(_) => return None,
    };
    (each >= MIN_LAYER_BYTES && 2 * gaining >= bytes).then_some(from)
}

/// Maximum number of sequences with a token in one launch. H100, 8b Q4_K_M, tokens/s with one
/// launch and with separate launches: one sequence 545 and 484, two 930 and 764, three 1165 and
/// 1144 (the gain is too small for another kernel), four 1228 and 1511. In one launch, the products
/// of each column use vector units; separate launches use matrix units.
pub(crate) const SIDE_BY_SIDE: usize = 2;
