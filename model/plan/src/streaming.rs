//! Streamed layers as data.

use crate::{Bind, JobId, Launch, Program};
use kjit_graph::WeightId;
use std::collections::HashMap;
use std::ops::Range;

/// Staging slots of the ring.
pub const SLOTS: usize = 2;

/// A matrix of a streamed layer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[doc(hidden)]
pub struct StreamedMatrix {
    /// The matrix.
    pub weight: WeightId,
    /// The repack job; `None` if it is read in the slot.
    pub job: Option<JobId>,
    /// The range of its copied bytes in the slot.
    pub lands: Range<u64>,
    /// The range of its repacked bytes in the repack buffer.
    pub laid: Range<u64>,
}

/// A streamed layer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[doc(hidden)]
pub struct StreamedLayer {
    /// The layer's number in the model.
    pub number: usize,
    /// The slot of its bytes.
    pub slot: usize,
    /// Matrices of the layer.
    pub matrices: Vec<StreamedMatrix>,
    /// Whether the CPU computes with these matrices, except for long prompts.
    pub for_prompts: bool,
}

impl StreamedLayer {
    /// Whether a matrix is read in the slot. The slot then stays in use until the layer has been
    /// computed.
    pub fn is_read_in_slot(&self) -> bool {
        self.matrices.iter().any(|m| m.job.is_none())
    }

    /// Bytes of its copies.
    pub fn bytes(&self) -> u64 {
        self.matrices.iter().map(|m| m.lands.end - m.lands.start).sum()
    }
}

/// The streamed layers and their shared memory.
#[derive(Debug, Clone, PartialEq)]
#[doc(hidden)]
pub struct Streaming {
    /// The layers in the model's order.
    pub layers: Vec<StreamedLayer>,
    /// Layers of the model that have matrices.
    pub of: usize,
    /// Bytes of a slot.
    pub slot: u64,
    /// Bytes of the repack buffer.
    pub laid: u64,
    /// Index in `layers` of each matrix.
    pub layer_of: HashMap<WeightId, usize>,
    /// The prompt program that copies weights of host parts. `None` if all programs copy them.
    pub prompt: Option<Program>,
}

/// A range of launches that need one streamed layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub struct LayerLaunches {
    /// Index in [`Streaming::layers`].
    pub layer: usize,
    /// The first launch that reads its matrices.
    pub first: usize,
    /// The last launch that reads them.
    pub last: usize,
}

impl Streaming {
    /// Bytes copied in a pass without host parts.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(StreamedLayer::bytes).sum()
    }

    /// Layers copied for each token.
    pub fn steps(&self) -> usize {
        self.layers.iter().filter(|l| !l.for_prompts).count()
    }

    /// Bytes copied for each token.
    pub fn step_bytes(&self) -> u64 {
        self.layers.iter().filter(|l| !l.for_prompts).map(StreamedLayer::bytes).sum()
    }

    /// Bytes of the ring: slots and repack buffer.
    pub fn ring(&self) -> u64 {
        SLOTS as u64 * self.slot + self.laid
    }

    /// The ranges of these launches, in order.
    pub fn stretches(&self, launches: &[Launch]) -> Vec<LayerLaunches> {
        let mut all: Vec<LayerLaunches> = vec![];
        for (i, launch) in launches.iter().enumerate() {
            let reads = launch.args.iter().find_map(|a| match a {
                Bind::Matrix(w) => self.layer_of.get(w).copied(),
                _ => None,
            });
            match (reads, all.last_mut()) {
                (None, _) => {}
                (Some(layer), Some(last)) if last.layer == layer => last.last = i,
                (Some(layer), _) => all.push(LayerLaunches { layer, first: i, last: i }),
            }
        }
        all
    }
}
