//! The bytes of streamed layers in page-locked host memory: the file's own pages, locked where they
//! lie, as long as the model is open (0.05 s a GB on an H200's host). Where the system refuses
//! that, copies of them in page-locked memory; where it has none of that either, the model is not
//! opened, and the error says so: from memory that is not locked, copies wait for the host and
//! cannot be captured. What the CPU computes from the file but for long prompts is not copied: it
//! would lie in the host's memory twice, to save time of prompts.

use super::plan::{StreamedLayer, Streaming};
use super::upload::{CHUNK, Pages};
use kjit_engine::{Device, DeviceBuffer, Error, HostMap, PinnedBuffer, Result, Stream};
use kjit_exec::SessionError;
use kjit_gguf::Gguf;
use kjit_graph::{Graph, WeightId};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A stretch of host memory that goes over in one copy.
#[derive(Clone)]
pub(super) enum Piece {
    Mapped(HostMap, Range<usize>),
    Own(PinnedBuffer<u8>),
}

impl Piece {
    pub fn len(&self) -> usize {
        match self {
            Piece::Mapped(_, range) => range.len(),
            Piece::Own(bytes) => bytes.len(),
        }
    }

    pub fn copy(&self, stream: &Stream, to: &DeviceBuffer<u8>) -> Result<()> {
        match self {
            Piece::Mapped(map, range) => stream.copy_in_mapped(map, range.clone(), to),
            Piece::Own(bytes) => stream.copy_in(bytes, to),
        }
    }
}

/// Where in the file a matrix's bytes are.
struct Found {
    /// From the start of its layer's slot.
    lands: u64,
    part: usize,
    range: Range<usize>,
}

/// All streamed layers' bytes.
pub(super) struct Stock {
    /// By the layer's number: the pieces, and where each lands in the slot.
    layers: HashMap<usize, Vec<(u64, Piece)>>,
    /// Whether layers that travel for prompts alone are among them.
    pub prompts: bool,
    /// Why there are copies.
    pub remark: Option<String>,
}

impl Stock {
    /// Locks or copies what a plan streams.
    pub fn new(
        device: &Device,
        gguf: &Arc<Gguf>,
        graph: &Graph,
        streaming: &Streaming,
    ) -> std::result::Result<Stock, SessionError> {
        let why = match Stock::locked(device, gguf, graph, streaming)? {
            Ok(stock) => return Ok(stock),
            Err(why) => why,
        };
        let step = streaming.layers.iter().filter(|l| !l.for_prompts);
        let all =
            step.map(|l| Ok((l.number, found(gguf, graph, l)?))).collect::<Result<Vec<_>>>()?;
        let bytes = streaming.step_bytes();
        let layers = copied(device, gguf, &all).map_err(|error| match error {
            Error::Pinned { asked, says, .. } => SessionError::Device(format!(
                "page-locked memory for streamed layers on {} could not be had: the file's pages \
                 cannot be locked ({why}), and of \
                 {bytes} bytes of such memory {asked} were refused ({says}); a larger --memory \
                 streams less",
                device.label()
            )),
            other => other.into(),
        })?;
        let prompts = streaming.layers.len() == streaming.steps();
        let remark = format!(
            "the file's pages cannot be locked for {} ({why}): {} MiB of streamed layers were \
             copied into page-locked memory{}",
            device.label(),
            bytes >> 20,
            if prompts { "" } else { ", and the CPU has its part of prompts, too" }
        );
        Ok(Stock { layers, prompts, remark: Some(remark) })
    }

    /// Locks what a plan streams, or says why that cannot be.
    pub fn locked(
        device: &Device,
        gguf: &Arc<Gguf>,
        graph: &Graph,
        streaming: &Streaming,
    ) -> std::result::Result<Result<Stock>, SessionError> {
        let all = all_found(gguf, graph, streaming)?;
        Ok(locked(device, gguf, &all).map(|layers| Stock { layers, prompts: true, remark: None }))
    }

    /// A layer's pieces, each with its place in the slot.
    pub fn pieces(&self, layer: &StreamedLayer) -> Result<Vec<(u64, Piece)>> {
        if layer.for_prompts && !self.prompts {
            return Ok(vec![]);
        }
        let none = || Error::Buffer(format!("layer {} is not in host memory", layer.number));
        self.layers.get(&layer.number).cloned().ok_or_else(none)
    }
}

/// What is locked to see whether the file's pages can be, at most.
const TRIED: usize = 1 << 20;

/// Why the file's pages cannot be locked, tried with the first of those around a matrix; none where
/// they can.
pub(super) fn cannot_lock(
    device: &Device,
    gguf: &Arc<Gguf>,
    graph: &Graph,
    weight: WeightId,
) -> Option<Error> {
    let info = gguf.tensor_info(&graph.weight(weight).tensor)?;
    let start = usize::try_from(info.data_offset()).ok()? / CHUNK * CHUNK;
    let end = gguf.part_bytes(info.part())?.len().min(start + TRIED);
    device.register(Arc::new(Pages::new(gguf, info.part(), start..end))).err()
}

/// By layer: its number, and its matrices.
type AllFound = Vec<(usize, Vec<Found>)>;

fn all_found(gguf: &Gguf, graph: &Graph, streaming: &Streaming) -> Result<AllFound> {
    streaming.layers.iter().map(|l| Ok((l.number, found(gguf, graph, l)?))).collect()
}

fn found(gguf: &Gguf, graph: &Graph, layer: &StreamedLayer) -> Result<Vec<Found>> {
    let mut all = vec![];
    for m in &layer.matrices {
        let w = graph.weight(m.weight);
        let missing = || Error::Buffer(format!("tensor '{}' is not in the file", w.tensor));
        let info = gguf.tensor_info(&w.tensor).ok_or_else(missing)?;
        let data = usize::try_from(info.data_offset()).map_err(|_| missing())?;
        // A part of each expert's matrix lies in as many pieces.
        let pieces = if w.is_whole() { 1 } else { w.experts };
        let each = w.bytes() / pieces.max(1);
        for piece in 0..pieces {
            let at = data + w.bytes_of(piece * w.whole + w.at);
            let range = at..at + each;
            if gguf.part_bytes(info.part()).is_none_or(|b| range.end > b.len()) {
                return Err(missing());
            }
            all.push(Found {
                lands: m.lands.start + (piece * each) as u64,
                part: info.part(),
                range,
            });
        }
    }
    Ok(all)
}

type Layers = HashMap<usize, Vec<(u64, Piece)>>;

/// The file's pages, locked chunk by chunk: a matrix that lies in two goes over in two pieces.
fn locked(device: &Device, gguf: &Arc<Gguf>, all: &[(usize, Vec<Found>)]) -> Result<Layers> {
    let mut chunks: HashMap<(usize, usize), HostMap> = HashMap::new();
    let mut layers = HashMap::new();
    for (number, matrices) in all {
        let mut pieces = vec![];
        for m in matrices {
            let mut at = m.range.start;
            while at < m.range.end {
                let chunk = at / CHUNK;
                let end = m.range.end.min((chunk + 1) * CHUNK);
                let map = match chunks.get(&(m.part, chunk)) {
                    Some(map) => map.clone(),
                    None => {
                        let end =
                            gguf.part_bytes(m.part).map_or(0, <[u8]>::len).min((chunk + 1) * CHUNK);
                        let map = device.register(Arc::new(Pages::new(
                            gguf,
                            m.part,
                            chunk * CHUNK..end,
                        )))?;
                        chunks.insert((m.part, chunk), map.clone());
                        map
                    }
                };
                let place = m.lands + (at - m.range.start) as u64;
                pieces.push((place, Piece::Mapped(map, at - chunk * CHUNK..end - chunk * CHUNK)));
                at = end;
            }
        }
        layers.insert(*number, pieces);
    }
    Ok(layers)
}

/// Copies in page-locked memory, a piece for each matrix.
fn copied(device: &Device, gguf: &Gguf, all: &[(usize, Vec<Found>)]) -> Result<Layers> {
    let mut layers = HashMap::new();
    for (number, matrices) in all {
        let mut pieces = vec![];
        for m in matrices {
            let bytes =
                gguf.part_bytes(m.part).and_then(|b| b.get(m.range.clone())).unwrap_or_default();
            let own = device.pinned_for_writing::<u8>(bytes.len())?;
            own.write(|to| to.copy_from_slice(bytes))?;
            pieces.push((m.lands, Piece::Own(own)));
        }
        layers.insert(*number, pieces);
    }
    Ok(layers)
}
