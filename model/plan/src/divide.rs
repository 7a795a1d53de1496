//! Divides layers among devices.

use kjit_exec::OpenOptions;
use kjit_graph::{Graph, Layers, Op, WeightId};

/// Bytes that a layer needs on its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LayerNeed {
    /// Weights in the file's layout; some formats take a few percent more on a device.
    pub weights: u64,
    /// State of all sequences with full contexts.
    pub state: u64,
}

impl LayerNeed {
    /// Weights and state.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.state)
    }
}

/// A device's memory for layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMemory {
    /// The device's label, such as `cuda:0`.
    pub label: String,
    /// Bytes for weights and states: free memory or the budget, minus a stage's other needs.
    pub bytes: u64,
}

/// The reason why layers cannot be divided.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DivideError {
    /// Fewer layers than devices.
    #[error("the model has {layers} layers, fewer than the {devices} devices")]
    Few {
        /// Layers.
        layers: usize,
        /// Devices.
        devices: usize,
    },
    /// The layers do not fit.
    #[error(
        "{layers} layers with their keys and values need {need} MiB, \
         but {room} MiB are free on {devices}: use a smaller -c, \
         fewer sequences, another device, or more layers on the CPU (--host-layers)"
    )]
    Room {
        /// Layers.
        layers: usize,
        /// MiB that the layers need.
        need: u64,
        /// MiB available.
        room: u64,
        /// The devices.
        devices: String,
    },
}

/// The bytes that each layer needs.
pub fn needs(graph: &Graph, layers: &Layers, options: &OpenOptions) -> Vec<LayerNeed> {
    let tokens = (options.context_of(graph) as u64).saturating_mul(options.sequences.max(1) as u64);
    let of = |ops: &[Op]| {
        let mut ids: Vec<WeightId> = ops.iter().flat_map(Op::weights).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut states: Vec<_> = ops.iter().flat_map(Op::states).collect();
        states.sort_unstable();
        states.dedup();
        let elems: usize = states.iter().map(|s| graph.state(*s).elems_per_token()).sum();
        LayerNeed {
            weights: ids.iter().map(|id| graph.weight(*id).bytes() as u64).sum(),
            state: options.kv_stored().bytes(elems).saturating_mul(tokens),
        }
    };
    (0..layers.len()).map(|layer| of(layers.ops(graph, layer..layer + 1))).collect()
}

/// Divides layers among devices in order. All devices are filled to nearly the same fraction, and
/// each device gets at least one layer.
///
/// # Errors
/// Fewer layers than devices, or less memory than the layers need.
pub fn divide(needs: &[LayerNeed], rooms: &[DeviceMemory]) -> Result<Vec<usize>, DivideError> {
    let (layers, devices) = (needs.len(), rooms.len());
    if layers < devices || devices == 0 {
        return Err(DivideError::Few { layers, devices });
    }
    let room: u64 = rooms.iter().map(|r| r.bytes).fold(0, u64::saturating_add);
    let need: u64 = needs.iter().map(LayerNeed::total).fold(0, u64::saturating_add);
    let mut counts = vec![];
    let (mut first, mut filled, mut behind) = (0, 0u128, 0u128);
    for (i, r) in rooms.iter().enumerate() {
        behind += u128::from(r.bytes);
        // The target: the fraction of the model in the layers so far equals the fraction of the
        // memory in the devices so far.
        let want = u128::from(need) * behind / u128::from(room.max(1));
        let most = layers - (devices - i - 1);
        let mut end = if i + 1 == devices { layers } else { first };
        while end < most && i + 1 < devices {
            let next = needs.get(end).map_or(0, |n| u128::from(n.total()));
            // The border nearest to the target, after at least one layer.
            if end > first && filled + next / 2 > want {
                break;
            }
            filled += next;
            end += 1;
        }
        let taken =
            needs.get(first..end).unwrap_or_default().iter().map(LayerNeed::total).sum::<u64>();
        if taken > r.bytes {
            let devices = rooms.iter().map(|r| r.label.as_str()).collect::<Vec<_>>().join(", ");
            return Err(DivideError::Room { layers, need: need >> 20, room: room >> 20, devices });
        }
        counts.push(end - first);
        first = end;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(each: &[u64]) -> Vec<LayerNeed> {
        each.iter().map(|&weights| LayerNeed { weights, state: 0 }).collect()
    }

    fn rooms(each: &[u64]) -> Vec<DeviceMemory> {
        each.iter().map(|&bytes| DeviceMemory { label: format!("cuda:{bytes}"), bytes }).collect()
    }

    #[test]
    fn layers_are_divided_by_free_memory_with_one_minimum() {
        let counts = |needs: &[u64], room: &[u64]| divide(&layers(needs), &rooms(room)).unwrap();
        assert_eq!(counts(&[10; 8], &[100, 100]), [4, 4]);
        assert_eq!(counts(&[10; 8], &[300, 100]), [6, 2]);
        assert_eq!(counts(&[10; 9], &[100, 100, 100]), [3, 3, 3]);
        assert_eq!(counts(&[10, 10], &[10_000, 10]), [1, 1], "each device has a layer");
        assert_eq!(
            counts(&[1, 1, 1, 97], &[100, 100]),
            [3, 1],
            "an output matrix that is larger than all layers"
        );
        assert_eq!(counts(&[10; 5], &[100]), [5]);
    }

    #[test]
    fn division_error_lists_available_memory() {
        assert_eq!(
            divide(&layers(&[1]), &rooms(&[9, 9])),
            Err(DivideError::Few { layers: 1, devices: 2 })
        );
        let error =
            divide(&layers(&[3 << 20; 4]), &rooms(&[5 << 20, 5 << 20])).unwrap_err().to_string();
        assert!(error.contains("4 layers") && error.contains("12 MiB, but 10 MiB"), "{error}");
    }
}
