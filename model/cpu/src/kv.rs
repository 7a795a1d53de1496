//! The KV cache of one layer on the CPU.
//!
//! The layout is `[head][position]`, so that all positions of a head are contiguous. The memory is
//! mapped when the executor is created. The system allocates pages when positions are first
//! written, so a long context costs nothing until it is used.

use super::pool::Pool;
use super::shared_mut::SharedMut;
use super::simd::{Isa, Job, LANES, Vector};
use crate::pool::SERIAL;
use half::f16;
use kjit_exec::{KvType, SessionError as ExecError};
use memmap2::MmapMut;

/// Elements of a [`KvType::Q8_0`] block.
const BLOCK: usize = 32;
/// Bytes of a block: an f16 scale and the elements.
const BLOCK_BYTES: usize = 2 + BLOCK;

/// Minimum number of positions per task and head: about 0.5 µs of a thread.
const RUN: usize = 16;

/// The keys or the values of one layer.
pub struct KvStore {
    map: MmapMut,
    ty: KvType,
    heads: usize,
    dim: usize,
    context: usize,
    row_bytes: usize,
}

impl KvStore {
    /// A store for `context` positions of `heads` rows of `dim` elements.
    ///
    /// # Errors
    /// [`ExecError::Memory`] if the system refuses the memory.
    pub fn new(
        what: &str,
        ty: KvType,
        heads: usize,
        dim: usize,
        context: usize,
    ) -> Result<KvStore, ExecError> {
        let row_bytes = match ty {
            KvType::F32 => dim.checked_mul(4),
            KvType::F16 => dim.checked_mul(2),
            KvType::Q8_0 => dim.div_ceil(BLOCK).checked_mul(BLOCK_BYTES),
        };
        let bytes = row_bytes.and_then(|r| r.checked_mul(heads)?.checked_mul(context.max(1)));
        let refused = |bytes: u64| ExecError::Memory {
            what: format!("the cache of {what} for {context} tokens"),
            bytes,
            hint: "use a smaller -c".into(),
        };
        let (Some(row_bytes), Some(bytes)) = (row_bytes, bytes) else {
            return Err(refused(u64::MAX));
        };
        let map = MmapMut::map_anon(bytes).map_err(|_| refused(bytes as u64))?;
        Ok(KvStore { map, ty, heads, dim, context, row_bytes })
    }

    /// Number of heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Number of mapped bytes.
    pub fn bytes(&self) -> usize {
        self.map.len()
    }

    fn start(&self, head: usize, position: usize) -> usize {
        assert!(head < self.heads && position <= self.context);
        (head * self.context + position) * self.row_bytes
    }

    /// Stores consecutive positions from `first` on. Each of `rows` has the elements of all heads
    /// in order. All threads write if there are many positions: one thread took 6.7 of the 93 ms of
    /// a 512-token prompt (SmolLM2, 16 threads).
    pub fn write(&mut self, pool: &mut Pool, isa: Isa, first: usize, rows: &[f32]) {
        let (width, dim, bytes, ty) = (self.heads * self.dim, self.dim, self.row_bytes, self.ty);
        let positions = rows.len() / width;
        let starts: Vec<usize> = (0..self.heads).map(|head| self.start(head, first)).collect();
        assert!(positions <= self.context - first);
        let each = positions.div_ceil((4 * pool.threads()).div_ceil(self.heads)).max(RUN);
        let runs = positions.div_ceil(each);
        let to = SharedMut::new(&mut self.map[..]);
        let store = |task: usize| {
            let (head, from) = (task / runs, task % runs * each);
            let n = each.min(positions - from);
            // SAFETY: tasks have different heads or positions, so no two write the same bytes.
            let to = unsafe { to.part(starts[head] + from * bytes, n * bytes) };
            // SAFETY: this job has no requirement on its fields.
            unsafe {
                isa.run(Store { x: &rows[from * width + head * dim..], width, dim, ty, bytes, to })
            };
        };
        match rows.len() < SERIAL {
            true => (0..self.heads * runs).for_each(store),
            false => pool.run(self.heads * runs, &store),
        }
    }

    /// Copies the first `rows` positions of a store of the same sizes.
    pub fn copy(&mut self, from: &KvStore, rows: usize) {
        for head in 0..self.heads {
            let (start, end) = (self.start(head, 0), self.start(head, rows));
            self.map[start..end].copy_from_slice(&from.map[start..end]);
        }
    }

    /// Bytes of `rows` positions.
    pub fn bytes_of(&self, rows: usize) -> usize {
        self.heads * rows * self.row_bytes
    }

    /// Appends the bytes of `rows` positions from `first` on, head by head.
    pub fn save(&self, first: usize, rows: usize, to: &mut Vec<u8>) {
        for head in 0..self.heads {
            to.extend_from_slice(
                &self.map[self.start(head, first)..self.start(head, first + rows)],
            );
        }
    }

    /// Sets the bytes that [`KvStore::save`] gave: [`KvStore::bytes_of`] of them.
    pub fn load(&mut self, first: usize, rows: usize, from: &[u8]) {
        let each = (rows * self.row_bytes).max(1);
        for (head, from) in (0..self.heads).zip(from.chunks_exact(each)) {
            let (start, end) = (self.start(head, first), self.start(head, first + rows));
            self.map[start..end].copy_from_slice(from);
        }
    }

    /// Decodes consecutive positions of a head, from `first` on, until `out` is full.
    pub fn read(&self, isa: Isa, head: usize, first: usize, out: &mut [f32]) {
        let rows = self.rows(head, first, out.len() / self.dim);
        // SAFETY: this job has no requirement on its fields.
        unsafe { isa.run(Read(rows, out)) };
    }

    /// The stored bytes of `n` positions of a head.
    pub fn rows(&self, head: usize, first: usize, n: usize) -> Rows<'_> {
        let (from, to) = (self.start(head, first), self.start(head, first + n));
        Rows { bytes: &self.map[from..to], ty: self.ty, dim: self.dim, row_bytes: self.row_bytes }
    }
}

/// The stored bytes of consecutive positions of a head.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    bytes: &'a [u8],
    ty: KvType,
    dim: usize,
    row_bytes: usize,
}

impl Rows<'_> {
    /// The first `dim` elements of each row.
    pub fn short(self, dim: usize) -> Self {
        Rows { dim: dim.min(self.dim), ..self }
    }

    /// Decodes the positions to rows of floats, `stride` apart.
    ///
    /// # Safety
    /// The CPU has `V`'s instruction set, as for [`Job::run`].
    #[inline(always)]
    pub unsafe fn decode<V: Vector>(&self, out: &mut [f32], stride: usize) {
        let dim = self.dim;
        for (bytes, out) in self.bytes.chunks_exact(self.row_bytes).zip(out.chunks_mut(stride)) {
            let out = &mut out[..dim];
            match self.ty {
                KvType::F32 => out
                    .iter_mut()
                    .zip(bytes.as_chunks().0)
                    .for_each(|(o, b)| *o = f32::from_ne_bytes(*b)),
                KvType::F16 => {
                    let whole = dim / LANES * LANES;
                    for i in (0..whole).step_by(LANES) {
                        // SAFETY: 32 elements from i on are in both buffers.
                        unsafe {
                            V::load_f16(bytes.as_ptr().add(2 * i).cast())
                                .store(out.as_mut_ptr().add(i))
                        };
                    }
                    for i in whole..dim {
                        out[i] = f16::from_ne_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32();
                    }
                }
                KvType::Q8_0 => {
                    for (b, o) in bytes.chunks_exact(BLOCK_BYTES).zip(out.chunks_mut(BLOCK)) {
                        let d = f16::from_ne_bytes([b[0], b[1]]).to_f32();
                        if o.len() == BLOCK {
                            // SAFETY: the block has 32 bytes after the scale, and `o` 32 elements.
                            unsafe {
                                V::load_i8(b.as_ptr().add(2).cast())
                                    .mul(V::splat(d))
                                    .store(o.as_mut_ptr())
                            };
                        } else {
                            o.iter_mut()
                                .zip(&b[2..])
                                .for_each(|(o, &q)| *o = f32::from(q as i8) * d);
                        }
                    }
                }
            }
        }
    }
}

struct Read<'a>(Rows<'a>, &'a mut [f32]);

impl Job for Read<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let dim = self.0.dim;
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe { self.0.decode::<V>(self.1, dim) };
    }
}

/// A job that encodes positions of one head. The first `dim` of each `width` elements are encoded
/// to `bytes` bytes.
struct Store<'a> {
    x: &'a [f32],
    width: usize,
    dim: usize,
    ty: KvType,
    bytes: usize,
    to: &'a mut [u8],
}

impl Job for Store<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        for (x, to) in self.x.chunks(self.width).zip(self.to.chunks_exact_mut(self.bytes)) {
            let x = &x[..self.dim];
            match self.ty {
                // SAFETY: the caller guarantees the instruction set.
                KvType::F16 => unsafe { to_half::<V>(x, to) },
                KvType::F32 => to
                    .as_chunks_mut::<4>()
                    .0
                    .iter_mut()
                    .zip(x)
                    .for_each(|(b, x)| *b = x.to_ne_bytes()),
                KvType::Q8_0 => quantise(x, to),
            }
        }
    }
}

/// # Safety
/// The CPU has `V`'s instruction set, as for [`Job::run`].
#[inline(always)]
unsafe fn to_half<V: Vector>(x: &[f32], to: &mut [u8]) {
    let whole = x.len().min(to.len() / 2) / LANES * LANES;
    for i in (0..whole).step_by(LANES) {
        // SAFETY: 32 elements from i on are in both buffers.
        unsafe { V::load(x.as_ptr().add(i)).store_f16(to.as_mut_ptr().add(2 * i).cast()) };
    }
    for i in whole..x.len() {
        to[2 * i..2 * i + 2].copy_from_slice(&f16::from_f32(x[i]).to_ne_bytes());
    }
}

/// Encodes blocks of 32: the scale `max |x| / 127` as f16, elements rounded to nearest. A short
/// last block is padded with zeros.
fn quantise(x: &[f32], to: &mut [u8]) {
    for (x, b) in x.chunks(BLOCK).zip(to.chunks_exact_mut(BLOCK_BYTES)) {
        let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let d = f16::from_f32(largest / 127.0);
        let inverse = if d.to_f32() > 0.0 { 1.0 / d.to_f32() } else { 0.0 };
        b[..2].copy_from_slice(&d.to_ne_bytes());
        for i in 0..BLOCK {
            b[2 + i] = x.get(i).map_or(0, |x| (x * inverse).round_ties_even() as i8) as u8;
        }
    }
}

/// The inputs of attention: keys, values, and the elements of a value.
pub type KeysAndValues<'a> = (&'a KvStore, &'a KvStore, usize);
