//! Host memory of streamed layers. It is the file's own pages, locked in place while the model is
//! open (0.05 s per GB on an H200's host). If the system cannot lock them, they are copied into
//! page-locked memory. If that also fails, opening fails: copies from unlocked memory wait for the
//! host and cannot be captured. Weights of host parts that are copied only for long prompts have no
//! second copy in host memory.

use super::plan::{StreamedLayer, Streaming};
use super::upload::{CHUNK, Pages};
use kjit_engine::{Device, DeviceBuffer, Error, HostMap, PinnedBuffer, Result, Stream};
use kjit_exec::SessionError;
use kjit_gguf::Gguf;
use kjit_graph::{Graph, WeightId};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A range of host memory that one operation copies.
#[derive(Clone)]
pub(super) enum CopyRange {
    Mapped(HostMap, Range<usize>),
    Own(PinnedBuffer<u8>),
}

impl CopyRange {
    pub fn len(&self) -> usize {
        match self {
            CopyRange::Mapped(_, range) => range.len(),
            CopyRange::Own(bytes) => bytes.len(),
        }
    }

    pub fn copy(&self, stream: &Stream, to: &DeviceBuffer<u8>) -> Result<()> {
        match self {
            CopyRange::Mapped(map, range) => stream.copy_in_mapped(map, range.clone(), to),
            CopyRange::Own(bytes) => stream.copy_in(bytes, to),
        }
    }
}

/// The location of a matrix's bytes in the file.
struct MatrixLocation {
    /// Offset in the slot of its layer.
    lands: u64,
    part: usize,
    range: Range<usize>,
}

/// The bytes of all streamed layers.
pub(super) struct Staging {
    /// The pieces of each layer number, with their offsets in the slot.
    layers: HashMap<usize, Vec<(u64, CopyRange)>>,
    /// Whether layers that are copied only for prompts are included.
    pub prompts: bool,
    /// The reason why the bytes were copied instead of locked.
    pub remark: Option<String>,
}

impl Staging {
    /// Locks or copies the weights that a plan streams.
    pub fn new(
        device: &Device,
        gguf: &Arc<Gguf>,
        graph: &Graph,
        streaming: &Streaming,
    ) -> std::result::Result<Staging, SessionError> {
        let why = match Staging::locked(device, gguf, graph, streaming)? {
            Ok(stock) => return Ok(stock),
            Err(why) => why,
        };
        let step = streaming.layers.iter().filter(|l| !l.for_prompts);
        let all =
            step.map(|l| Ok((l.number, found(gguf, graph, l)?))).collect::<Result<Vec<_>>>()?;
        let bytes = streaming.step_bytes();
        let layers = copied(device, gguf, &all).map_err(|error| match error {
            Error::Pinned { asked, says, .. } => SessionError::Device(format!(
                "no page-locked memory for streamed layers on {}: \
                 the file's pages cannot be locked ({why}), \
                 and {asked} of {bytes} bytes of new page-locked memory were refused ({says}): \
                 use a larger --memory to stream less",
                device.label()
            )),
            other => other.into(),
        })?;
        let prompts = streaming.layers.len() == streaming.steps();
        let remark = format!(
            "the file's pages cannot be locked for {} ({why}): \
             {} MiB of streamed layers were copied into page-locked memory{}",
            device.label(),
            bytes >> 20,
            if prompts { "" } else { ", and the CPU also computes its host parts for prompts" }
        );
        Ok(Staging { layers, prompts, remark: Some(remark) })
    }

    /// Locks the weights that a plan streams. The inner error is the reason why the system cannot
    /// lock them.
    pub fn locked(
        device: &Device,
        gguf: &Arc<Gguf>,
        graph: &Graph,
        streaming: &Streaming,
    ) -> std::result::Result<Result<Staging>, SessionError> {
        let all = all_found(gguf, graph, streaming)?;
        Ok(locked(device, gguf, &all).map(|layers| Staging { layers, prompts: true, remark: None }))
    }

    /// A layer's pieces with their offsets in the slot.
    pub fn pieces(&self, layer: &StreamedLayer) -> Result<Vec<(u64, CopyRange)>> {
        if layer.for_prompts && !self.prompts {
            return Ok(vec![]);
        }
        let none = || Error::Buffer(format!("layer {} is not in host memory", layer.number));
        self.layers.get(&layer.number).cloned().ok_or_else(none)
    }
}

/// Maximum bytes that are locked for a test.
const MAX_TEST_BYTES: usize = 1 << 20;

/// Tries to lock the first pages around a matrix. Returns the error, or `None` if locking works.
pub(super) fn cannot_lock(
    device: &Device,
    gguf: &Arc<Gguf>,
    graph: &Graph,
    weight: WeightId,
) -> Option<Error> {
    let info = gguf.tensor_info(&graph.weight(weight).tensor)?;
    let start = usize::try_from(info.data_offset()).ok()? / CHUNK * CHUNK;
    let end = gguf.part_bytes(info.part())?.len().min(start + MAX_TEST_BYTES);
    device.register(Arc::new(Pages::new(gguf, info.part(), start..end))).err()
}

/// The matrices of each layer number.
type MatrixLocations = Vec<(usize, Vec<MatrixLocation>)>;

fn all_found(gguf: &Gguf, graph: &Graph, streaming: &Streaming) -> Result<MatrixLocations> {
    streaming.layers.iter().map(|l| Ok((l.number, found(gguf, graph, l)?))).collect()
}

fn found(gguf: &Gguf, graph: &Graph, layer: &StreamedLayer) -> Result<Vec<MatrixLocation>> {
    let mut all = vec![];
    for m in &layer.matrices {
        let w = graph.weight(m.weight);
        let missing = || Error::Buffer(format!("tensor '{}' is not in the file", w.tensor));
        let info = gguf.tensor_info(&w.tensor).ok_or_else(missing)?;
        let data = usize::try_from(info.data_offset()).map_err(|_| missing())?;
        // A slice of every expert's matrix consists of separate pieces.
        let pieces = if w.is_whole() { 1 } else { w.experts };
        let each = w.bytes() / pieces.max(1);
        for piece in 0..pieces {
            let at = data + w.bytes_of(piece * w.whole + w.at);
            let range = at..at + each;
            if gguf.part_bytes(info.part()).is_none_or(|b| range.end > b.len()) {
                return Err(missing());
            }
            all.push(MatrixLocation {
                lands: m.lands.start + (piece * each) as u64,
                part: info.part(),
                range,
            });
        }
    }
    Ok(all)
}

type Layers = HashMap<usize, Vec<(u64, CopyRange)>>;

/// Locks the file's pages in chunks. A matrix across two chunks becomes two pieces.
fn locked(
    device: &Device,
    gguf: &Arc<Gguf>,
    all: &[(usize, Vec<MatrixLocation>)],
) -> Result<Layers> {
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
                pieces
                    .push((place, CopyRange::Mapped(map, at - chunk * CHUNK..end - chunk * CHUNK)));
                at = end;
            }
        }
        layers.insert(*number, pieces);
    }
    Ok(layers)
}

/// Copies the matrices into page-locked memory, one piece for each.
fn copied(device: &Device, gguf: &Gguf, all: &[(usize, Vec<MatrixLocation>)]) -> Result<Layers> {
    let mut layers = HashMap::new();
    for (number, matrices) in all {
        let mut pieces = vec![];
        for m in matrices {
            let bytes =
                gguf.part_bytes(m.part).and_then(|b| b.get(m.range.clone())).unwrap_or_default();
            let own = device.pinned_for_writing::<u8>(bytes.len())?;
            own.write(|to| to.copy_from_slice(bytes))?;
            pieces.push((m.lands, CopyRange::Own(own)));
        }
        layers.insert(*number, pieces);
    }
    Ok(layers)
}
