//! Uploads weights from the file to the device, once, through page-locked memory, on a separate
//! stream.
//!
//! The file's pages are locked in place, one chunk at a time, so that the device reads them
//! directly. (For 2 GiB on an H200's host, locking takes 0.1 s and a copy to new page-locked memory
//! 0.9 s.) If the system cannot lock the pages, bytes are copied through two page-locked staging
//! slots. If these also fail, bytes are copied from unlocked memory. Matrices with a different
//! layout on the device are copied into a slot there, and a `repack` kernel converts them piece by
//! piece in stream order. In addition to the weights, an upload needs 64 MiB. An integrated GPU
//! reads the host's slot directly, without a copy.

use super::plan::PlanError;
use kjit_engine::{Device, DeviceBuffer, Error, HostMap, PinnedBuffer, Result, Stream};
use kjit_gguf::Gguf;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of the file that are locked at a time; a power of two, so that chunks start at page
/// borders.
pub(super) const CHUNK: usize = 256 << 20;
/// Chunks that stay locked while their copies are in flight.
const CHUNKS: usize = 2;
/// Bytes of a slot and of a copy.
pub(super) const SLOT: usize = 32 << 20;

/// A range of a file for the engine to lock.
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

/// The method of copying from the file to the device.
enum UploadPath {
    /// Locked chunks `(part, index, pages)`, newest last.
    Locked(VecDeque<(usize, usize, HostMap)>),
    /// Two staging slots, used in alternation.
    Staged([PinnedBuffer<u8>; 2]),
    /// Unlocked memory. The host waits for each copy.
    Plain,
}

/// Copies matrices from a model file to a device.
pub struct Uploader {
    device: Device,
    stream: Stream,
    gguf: Arc<Gguf>,
    way: UploadPath,
    /// Device memory for pieces that are repacked.
    slot: DeviceBuffer<u8>,
    /// Maximum bytes of such a piece.
    piece: usize,
    /// On an integrated GPU: host slots from which pieces are repacked without a copy.
    shared: Option<[PinnedBuffer<u8>; 2]>,
}

/// Launches the repack kernel for a number of rows, from a slot to their destination.
pub type Repack<'a> =
    dyn FnMut(&Stream, &DeviceBuffer<u8>, &DeviceBuffer<u8>, usize) -> Result<()> + 'a;

/// A matrix of the file: its bytes, and its row sizes on both sides.
pub struct Matrix<'a> {
    /// The tensor's name, for errors.
    pub name: &'a str,
    /// Bytes of the tensor before the matrix.
    pub skip: usize,
    /// Bytes of the matrix.
    pub bytes: usize,
    /// Bytes of a row in the file.
    pub raw_row: usize,
    /// Bytes from one row to the next in the file. They are more than a row for slices of rows.
    pub stride: usize,
    /// Bytes of a row on the device.
    pub row: usize,
    /// The destination, a whole number of rows.
    pub to: DeviceBuffer<u8>,
}

impl Uploader {
    /// An uploader that copies in `stream` and uses up to `piece` bytes of device memory in
    /// addition to the weights.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is not enough memory for the slot.
    pub fn new(stream: &Stream, gguf: Arc<Gguf>, piece: usize) -> Result<Uploader> {
        let device = stream.device().clone();
        let shared = if device.info().integrated { slots(&device)? } else { None };
        let piece = piece.min(SLOT);
        let slot = device.buffer(if shared.is_some() { 1 } else { piece })?;
        Ok(Uploader {
            device,
            stream: stream.clone(),
            gguf,
            way: UploadPath::Locked(VecDeque::new()),
            slot,
            piece,
            shared,
        })
    }

    /// Uploads a matrix. `repack` launches the kernel that converts rows from a slot to their
    /// destination; `None` if the device uses the file's layout. `pause` is called before each
    /// piece.
    ///
    /// # Errors
    /// Errors of the engine.
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
                "tensor '{}' has {bytes} bytes in rows of {row}, \
                 but its device buffer has {room} bytes",
                m.name
            )));
        }
        // On an integrated GPU, a row that is larger than a slot is copied through a buffer of its
        // own size.
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
                        // The slot must exist until the kernel has read it.
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
                    // A single row is larger than a slot. Models do not have such rows, but a file
                    // may.
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

    /// Gathers rows that are slices of the file's rows, on the host.
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

    /// The file part of a tensor, its offset in that part, and its size.
    fn place(&self, name: &str) -> Result<(usize, usize, usize)> {
        let missing = || Error::Buffer(format!("tensor '{name}' is not in the file"));
        let info = self.gguf.tensor_info(name).ok_or_else(missing)?;
        let bytes = info.bytes().and_then(|b| usize::try_from(b).ok()).ok_or_else(missing)?;
        let at = usize::try_from(info.data_offset()).map_err(|_| missing())?;
        Ok((info.part(), at, bytes))
    }

    /// Copies a range of a part into one of the shared slots, and returns its device address. The
    /// slot is in use until the kernel that reads it has ended.
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

    /// Copies a range of a part in pieces, each within one chunk.
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
        if let UploadPath::Locked(chunks) = &mut self.way
            && !chunks.iter().any(|(p, c, _)| (*p, *c) == (part, chunk))
        {
            let end = self.gguf.part_bytes(part).map_or(0, <[u8]>::len).min((chunk + 1) * CHUNK);
            let pages = Pages::new(&self.gguf, part, chunk * CHUNK..end);
            match self.device.register(Arc::new(pages)) {
                Ok(map) => {
                    // Dropping the oldest chunk waits for its copies, while copies of the newer
                    // chunk are in flight.
                    chunks.push_back((part, chunk, map));
                    if chunks.len() > CHUNKS {
                        chunks.pop_front();
                    }
                }
                Err(_) => {
                    self.way = slots(&self.device)?.map_or(UploadPath::Plain, UploadPath::Staged)
                }
            }
        }
        match &mut self.way {
            UploadPath::Locked(chunks) => {
                let found = chunks.iter().find(|(p, c, _)| (*p, *c) == (part, chunk));
                let (_, _, map) = found
                    .ok_or_else(|| Error::Buffer("a chunk of the file is not locked".to_owned()))?;
                self.stream.copy_in_mapped(
                    map,
                    range.start - chunk * CHUNK..range.end - chunk * CHUNK,
                    to,
                )
            }
            UploadPath::Plain => {
                let bytes = self.gguf.part_bytes(part).and_then(|b| b.get(range.clone()));
                let bytes = bytes.ok_or_else(|| {
                    Error::Buffer(format!("bytes {range:?} of part {part} are not in the file"))
                })?;
                self.stream.write(to, bytes)
            }
            UploadPath::Staged(slots) => {
                let gguf = Arc::clone(&self.gguf);
                let bytes = gguf.part_bytes(part).and_then(|b| b.get(range.clone()));
                let bytes = bytes.ok_or_else(|| {
                    Error::Buffer(format!("bytes {range:?} of part {part} are not in the file"))
                })?;
                for (i, piece) in bytes.chunks(SLOT).enumerate() {
                    // The slots alternate: one is filled while the other is copied.
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

/// Two page-locked slots. `None` if the system has no page-locked memory.
fn slots(device: &Device) -> Result<Option<[PinnedBuffer<u8>; 2]>> {
    let two =
        device.pinned_for_writing(SLOT).and_then(|one| Ok([one, device.pinned_for_writing(SLOT)?]));
    match two {
        Ok(slots) => Ok(Some(slots)),
        Err(Error::Pinned { .. }) => Ok(None),
        Err(other) => Err(other),
    }
}

/// A vector of the file as f32.
///
/// # Errors
/// [`PlanError::Unsupported`] if the tensor cannot be decoded. The graph builder accepts only plain
/// floats.
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
    weight.decode_vector(bytes, &mut out).map_err(|e| fail(e.to_string()))?;
    Ok(out)
}
