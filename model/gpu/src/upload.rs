//! Weights from the file to the device: once, through page-locked memory, on a stream of their own;
//! never back.
//!
//! The file's pages are locked where they lie, a chunk at a time, so that the device reads them in
//! place (on the H200, locking 2 GiB of a map takes 0.1 s, copying it into fresh page-locked memory
//! 0.9 s). Where the system refuses that, bytes go through two page-locked slots, and where it
//! gives none of those, as they are. What has another layout on the device lands in a slot there
//! first, and a `repack` kernel spreads it, piece by piece in the stream's order: beside the
//! weights themselves an upload needs 64 MiB. A processor's own GPU reads the host's slot itself:
//! nothing is copied before the kernel.

use super::plan::PlanError;
use kjit_engine::{Device, DeviceBuffer, Error, HostMap, PinnedBuffer, Result, Stream};
use kjit_gguf::Gguf;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of the file that are locked at a time. A power of two, so that chunks begin at pages.
pub(super) const CHUNK: usize = 256 << 20;
/// Chunks that stay locked while their copies are on their way.
const CHUNKS: usize = 2;
/// Bytes of a slot: one copy.
pub(super) const SLOT: usize = 32 << 20;

/// Part of a file, for the engine to lock.
pub(super) struct Pages {
    gguf: Arc<Gguf>,
    part: usize,
    range: Range<usize>,
}

impl Pages {
    pub fn new(gguf: &Arc<Gguf>, part: usize, range: Range<usize>) -> Pages {
        Pages { gguf: Arc::clone(gguf), part, range }
    }
}

impl AsRef<[u8]> for Pages {
    fn as_ref(&self) -> &[u8] {
        self.gguf.part_bytes(self.part).and_then(|b| b.get(self.range.clone())).unwrap_or_default()
    }
}

/// How bytes of the file get to the device.
enum Way {
    /// Locked chunks `(part, index, pages)`, the newest last.
    Locked(VecDeque<(usize, usize, HostMap)>),
    /// Two slots in turn.
    Staged([PinnedBuffer<u8>; 2]),
    /// From the file's pages as they are: each copy is waited for.
    Plain,
}

/// Copies from a model file to a device.
pub struct Uploader {
    device: Device,
    stream: Stream,
    gguf: Arc<Gguf>,
    way: Way,
    /// Where pieces land that are laid out anew.
    slot: DeviceBuffer<u8>,
    /// Bytes of such a piece.
    piece: usize,
    /// Of a device that computes in the system's memory: the slots from which pieces are laid out
    /// anew, without a copy before.
    shared: Option<[PinnedBuffer<u8>; 2]>,
}

/// Launches the kernel that lays so many rows out, from a slot to their place.
pub type Repack<'a> =
    dyn FnMut(&Stream, &DeviceBuffer<u8>, &DeviceBuffer<u8>, usize) -> Result<()> + 'a;

/// One matrix of the file: where its bytes are, and how its rows change on the way.
pub struct Matrix<'a> {
    /// Its name, for errors.
    pub name: &'a str,
    /// Bytes of the tensor that lie before its first.
    pub skip: usize,
    /// Its bytes.
    pub bytes: usize,
    /// Bytes of a row in the file.
    pub raw_row: usize,
    /// Bytes from a row to the next one in the file: more than a row's where each is a part of one.
    pub stride: usize,
    /// Bytes of a row on the device.
    pub row: usize,
    /// Where it goes: a whole number of rows.
    pub to: DeviceBuffer<u8>,
}

impl Uploader {
    /// Copies go through `stream`; beside the weights it takes `piece` bytes of the device.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when not even the slot can be had.
    pub fn new(stream: &Stream, gguf: Arc<Gguf>, piece: usize) -> Result<Uploader> {
        let device = stream.device().clone();
        let shared = if device.info().integrated { slots(&device)? } else { None };
        let piece = piece.min(SLOT);
        let slot = device.buffer(if shared.is_some() { 1 } else { piece })?;
        Ok(Uploader {
            device,
            stream: stream.clone(),
            gguf,
            way: Way::Locked(VecDeque::new()),
            slot,
            piece,
            shared,
        })
    }

    /// Uploads a matrix. `repack` launches the kernel that lays `rows` rows out, from a slot to
    /// their place; none where the device keeps rows as the file has them. `pause` is called before
    /// each piece sets out.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn matrix(
        &mut self,
        m: &Matrix,
        mut repack: Option<&mut Repack<'_>>,
        pause: &dyn Fn(),
    ) -> Result<()> {
        let (part, at, all) = self.place(m.name)?;
        let (at, bytes) = (at + m.skip, m.bytes);
        let gaps = bytes.checked_div(m.raw_row).unwrap_or(0).saturating_sub(1)
            * m.stride.saturating_sub(m.raw_row);
        if m.skip.saturating_add(bytes).saturating_add(gaps) > all {
            return Err(Error::Buffer(format!(
                "tensor '{}' has {all} bytes, not {} + {bytes}",
                m.name, m.skip
            )));
        }
        let rows = bytes.checked_div(m.raw_row).unwrap_or(0);
        if rows * m.raw_row != bytes || rows * m.row != m.to.len() {
            let (row, room) = (m.raw_row, m.to.len());
            return Err(Error::Buffer(format!(
                "tensor '{}' has {bytes} bytes in rows of {row}, its place on the device {room}",
                m.name
            )));
        }
        // A row that no slot holds, on a device that has its own in the system's memory, goes
        // through a buffer as large as itself.
        let step = match repack {
            None if m.stride == m.raw_row => rows,
            _ => (self.piece / m.raw_row.max(1)).max(1),
        };
        let mut first = 0;
        while first < rows {
            pause();
            let count = step.min(rows - first);
            let from = at + first * m.raw_row..at + (first + count) * m.raw_row;
            let place = m.to.slice(first * m.row..(first + count) * m.row)?;
            if m.stride != m.raw_row {
                let gathered = self.gathered(part, at + first * m.stride, count, m)?;
                match repack.as_deref_mut() {
                    None => self.stream.write(&place, &gathered)?,
                    Some(repack) => {
                        let slot = self.device.buffer(gathered.len())?;
                        self.stream.write(&slot, &gathered)?;
                        repack(&self.stream, &slot, &place, count)?;
                        // Before the slot goes.
                        self.stream.synchronize()?;
                    }
                }
                first += count;
                continue;
            }
            match repack.as_deref_mut() {
                None => self.copy(part, from, &place, pause)?,
                Some(repack) if self.shared.is_some() && from.len() <= SLOT => {
                    let slot = self.filled(part, from)?;
                    repack(&self.stream, &slot, &place, count)?;
                }
                Some(repack) => {
                    // A single row beyond a slot's size: no model has one, but a file may.
                    let slot = match from.len() <= self.slot.len() {
                        true => self.slot.slice(..from.len())?,
                        false => self.device.buffer(from.len())?,
                    };
                    self.copy(part, from, &slot, pause)?;
                    repack(&self.stream, &slot, &place, count)?;
                }
            }
            first += count;
        }
        Ok(())
    }

    /// So many rows that are parts of rows of the file, one behind the other: the host puts them
    /// together.
    fn gathered(&self, part: usize, at: usize, rows: usize, m: &Matrix) -> Result<Vec<u8>> {
        let none = || Error::Buffer(format!("rows of tensor '{}' are not in the file", m.name));
        let bytes = self.gguf.part_bytes(part).ok_or_else(none)?;
        let mut all = Vec::with_capacity(rows * m.raw_row);
        for row in 0..rows {
            let from = at + row * m.stride;
            all.extend_from_slice(bytes.get(from..from + m.raw_row).ok_or_else(none)?);
        }
        Ok(all)
    }

    /// Part, offset in it and size of a tensor's data.
    fn place(&self, name: &str) -> Result<(usize, usize, usize)> {
        let missing = || Error::Buffer(format!("tensor '{name}' is not in the file"));
        let info = self.gguf.tensor_info(name).ok_or_else(missing)?;
        let bytes = info.bytes().and_then(|b| usize::try_from(b).ok()).ok_or_else(missing)?;
        let at = usize::try_from(info.data_offset()).map_err(|_| missing())?;
        Ok((info.part(), at, bytes))
    }

    /// A range of a part in one of the shared slots, as the device addresses it; the kernel that
    /// reads it holds the slot until it is done.
    fn filled(&mut self, part: usize, range: Range<usize>) -> Result<DeviceBuffer<u8>> {
        let bytes = self.gguf.part_bytes(part).and_then(|b| b.get(range.clone()));
        let none = || Error::Buffer(format!("bytes {range:?} of part {part} are not in the file"));
        let (bytes, [slot, other]) =
            (bytes.ok_or_else(none)?, self.shared.as_mut().ok_or_else(none)?);
        std::mem::swap(slot, other);
        let slot = slot.slice(..bytes.len())?;
        slot.write(|to| to.copy_from_slice(bytes))?;
        Ok(slot.on_device())
    }

    /// Copies a range of a part, in pieces that lie in one chunk.
    fn copy(
        &mut self,
        part: usize,
        range: Range<usize>,
        to: &DeviceBuffer<u8>,
        pause: &dyn Fn(),
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            pause();
            let end = range.end.min((at / CHUNK + 1) * CHUNK);
            let place = to.slice(at - range.start..end - range.start)?;
            self.copy_piece(part, at..end, &place)?;
            at = end;
        }
        Ok(())
    }

    fn copy_piece(
        &mut self,
        part: usize,
        range: Range<usize>,
        to: &DeviceBuffer<u8>,
    ) -> Result<()> {
        let chunk = range.start / CHUNK;
        if let Way::Locked(chunks) = &mut self.way
            && !chunks.iter().any(|(p, c, _)| (*p, *c) == (part, chunk))
        {
            let end = self.gguf.part_bytes(part).map_or(0, <[u8]>::len).min((chunk + 1) * CHUNK);
            let pages = Pages::new(&self.gguf, part, chunk * CHUNK..end);
            match self.device.register(Arc::new(pages)) {
                Ok(map) => {
                    // Dropping the oldest waits for its copies, while the newer one's are on their
                    // way.
                    chunks.push_back((part, chunk, map));
                    if chunks.len() > CHUNKS {
                        chunks.pop_front();
                    }
                }
                Err(_) => self.way = slots(&self.device)?.map_or(Way::Plain, Way::Staged),
            }
        }
        match &mut self.way {
            Way::Locked(chunks) => {
                let found = chunks.iter().find(|(p, c, _)| (*p, *c) == (part, chunk));
                let (_, _, map) = found
                    .ok_or_else(|| Error::Buffer("a chunk of the file is not locked".to_owned()))?;
                self.stream.copy_in_mapped(
                    map,
                    range.start - chunk * CHUNK..range.end - chunk * CHUNK,
                    to,
                )
            }
            Way::Plain => {
                let bytes = self.gguf.part_bytes(part).and_then(|b| b.get(range.clone()));
                let bytes = bytes.ok_or_else(|| {
                    Error::Buffer(format!("bytes {range:?} of part {part} are not in the file"))
                })?;
                self.stream.write(to, bytes)
            }
            Way::Staged(slots) => {
                let gguf = Arc::clone(&self.gguf);
                let bytes = gguf.part_bytes(part).and_then(|b| b.get(range.clone()));
                let bytes = bytes.ok_or_else(|| {
                    Error::Buffer(format!("bytes {range:?} of part {part} are not in the file"))
                })?;
                for (i, piece) in bytes.chunks(SLOT).enumerate() {
                    // In turns: one is filled while the other is on its way.
                    let [slot, other] = slots;
                    std::mem::swap(slot, other);
                    let slot = slot.slice(..piece.len())?;
                    slot.write(|to| to.copy_from_slice(piece))?;
                    self.stream.copy_in(&slot, &to.slice(i * SLOT..i * SLOT + piece.len())?)?;
                }
                Ok(())
            }
        }
    }
}

/// Two page-locked slots; none where the system gives none.
fn slots(device: &Device) -> Result<Option<[PinnedBuffer<u8>; 2]>> {
    let two =
        device.pinned_for_writing(SLOT).and_then(|one| Ok([one, device.pinned_for_writing(SLOT)?]));
    match two {
        Ok(slots) => Ok(Some(slots)),
        Err(Error::Pinned { .. }) => Ok(None),
        Err(other) => Err(other),
    }
}

/// A vector of the file, as singles.
///
/// # Errors
/// [`PlanError::Unsupported`] where the tensor cannot be decoded: the graph's builder has let only
/// plain floats through.
pub fn vector(
    gguf: &Gguf,
    graph: &kjit_graph::Graph,
    id: kjit_graph::WeightId,
) -> Result<Vec<f32>, PlanError> {
    let weight = graph.weight(id);
    let fail =
        |why: String| PlanError::Unsupported { what: format!("tensor '{}'", weight.name), why };
    let tensor = gguf.tensor(&weight.tensor).map_err(|e| fail(e.to_string()))?;
    let mut out = vec![0.0; weight.rows * weight.cols];
    let from = weight.bytes_of(weight.at);
    let bytes = tensor.data.get(from..from.saturating_add(weight.bytes())).unwrap_or_default();
    weight.format.decode(bytes, &mut out).map_err(|e| fail(e.to_string()))?;
    Ok(out)
}
