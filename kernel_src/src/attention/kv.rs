//! The layout of keys and values on a device. The GPU's code is `gpu/kv.h`.
//!
//! Keys and values of a layer are two buffers of one layout, which has *rows* of `head_dim`
//! elements,
//!
//! ```text
//! row(head, position) = head · capacity + position
//! ```
//!
//! so the past of a key head is contiguous. `F32` and `F16` rows are `head_dim` elements. `Q8_0`
//! rows are `head_dim` signed bytes. The scales, an f16 for each [`KvLayout::group`] elements, row
//! after row, follow the codes of *all* rows. Rows are multiples of 16 bytes (heads are multiples
//! of 16 elements). Positions are absolute: a layer with a window stores all of them and reads the
//! last ones. Each sequence of a batch has a separate buffer, at a fixed distance
//! ([`KvLayout::bytes`]).
//!
//! Keys and values may also be in *pages* (`gpu/paged.h`). A page is such a buffer of [`PAGE`]
//! positions. The pages of a layer are at a fixed distance ([`KvLayout::page_bytes`]), and a table
//! has the page of each [`PAGE`] positions of a sequence.

use crate::vocabulary::kernel::{SpecError, require};
use crate::vocabulary::shape::{Shape, gpu_enum};
use kjit_engine::Constants;

/// Number of positions in a page.
pub const PAGE: usize = 128;

/// The element type of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvStorage {
    /// f32.
    F32,
    /// f16.
    F16,
    /// Signed bytes with an f16 scale for each group.
    Q8_0,
}

gpu_enum!(ENUMS: KvStorage { F32, F16, Q8_0 });

/// The layout of a layer's keys, and of its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvLayout {
    /// Number of key heads.
    pub heads: usize,
    /// Elements of a head: a multiple of 16, 16 to [`KvLayout::WIDEST`].
    pub head_dim: usize,
    /// The element type.
    pub storage: KvStorage,
}

impl KvLayout {
    /// The largest number of elements of a head.
    pub const WIDEST: usize = 512;

    /// Number of elements that share a scale: 32, or 16 if the head is not a multiple of 32.
    #[must_use]
    pub const fn group(&self) -> usize {
        if self.head_dim.is_multiple_of(32) { 32 } else { 16 }
    }

    /// Bytes of a row, without scales.
    #[must_use]
    pub const fn row_bytes(&self) -> usize {
        match self.storage {
            KvStorage::F32 => 4 * self.head_dim,
            KvStorage::F16 => 2 * self.head_dim,
            KvStorage::Q8_0 => self.head_dim,
        }
    }

    /// Byte offset of the scales.
    #[must_use]
    pub const fn scales_at(&self, capacity: usize) -> usize {
        self.heads * capacity * self.row_bytes()
    }

    /// Bytes of the keys (or the values) of `capacity` positions, a multiple of 256; `None` if the
    /// size exceeds the range of addresses.
    #[must_use]
    pub fn bytes(&self, capacity: usize) -> Option<usize> {
        let scales = match self.storage {
            KvStorage::Q8_0 => 2 * (self.head_dim / self.group()),
            KvStorage::F32 | KvStorage::F16 => 0,
        };
        let row = self.row_bytes() + scales;
        self.heads.checked_mul(capacity)?.checked_mul(row)?.checked_next_multiple_of(256)
    }

    /// Bytes from a page to the next one.
    #[must_use]
    pub fn page_bytes(&self) -> Option<usize> {
        self.bytes(PAGE)
    }

    /// Copies the first `positions` positions of a cache of `capacity` positions unchanged into the
    /// pages of `table`.
    ///
    /// # Panics
    /// If a buffer or the table is too short.
    pub fn put_in_pages(
        &self,
        cache: &[u8],
        capacity: usize,
        positions: usize,
        table: &[u32],
        pool: &mut [u8],
    ) {
        let (row, scales, each) =
            (self.row_bytes(), 2 * (self.head_dim / self.group()), self.page_bytes().unwrap_or(0));
        for (head, position) in (0..self.heads).flat_map(|h| (0..positions).map(move |p| (h, p))) {
            let (from, to) = (head * capacity + position, head * PAGE + position % PAGE);
            let page = &mut pool[table[position / PAGE] as usize * each..][..each];
            page[to * row..][..row].copy_from_slice(&cache[from * row..][..row]);
            if self.storage == KvStorage::Q8_0 {
                let of = self.scales_at(capacity) + from * scales;
                page[self.scales_at(PAGE) + to * scales..][..scales]
                    .copy_from_slice(&cache[of..][..scales]);
            }
        }
    }

    /// Reads a row, as the kernels do.
    ///
    /// # Panics
    /// If the buffer is shorter than [`KvLayout::bytes`].
    #[must_use]
    pub fn read_row(
        &self,
        cache: &[u8],
        capacity: usize,
        head: usize,
        position: usize,
    ) -> Vec<f32> {
        let row = head * capacity + position;
        let bytes = &cache[row * self.row_bytes()..][..self.row_bytes()];
        match self.storage {
            KvStorage::F32 => {
                bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
            }
            KvStorage::F16 => bytes
                .as_chunks::<2>()
                .0
                .iter()
                .map(|b| half::f16::from_le_bytes(*b).to_f32())
                .collect(),
            KvStorage::Q8_0 => {
                let scale = |i: usize| {
                    let at = self.scales_at(capacity)
                        + 2 * (row * (self.head_dim / self.group()) + i / self.group());
                    half::f16::from_le_bytes([cache[at], cache[at + 1]]).to_f32()
                };
                bytes.iter().enumerate().map(|(i, &b)| scale(i) * f32::from(b as i8)).collect()
            }
        }
    }

    /// Writes a row, as the kernels do.
    ///
    /// # Panics
    /// If the buffer is shorter than [`KvLayout::bytes`] or the row does not have `head_dim`
    /// elements.
    pub fn write_row(
        &self,
        cache: &mut [u8],
        capacity: usize,
        head: usize,
        position: usize,
        x: &[f32],
    ) {
        assert_eq!(x.len(), self.head_dim);
        let row = head * capacity + position;
        let at = row * self.row_bytes();
        match self.storage {
            KvStorage::F32 => x
                .iter()
                .enumerate()
                .for_each(|(i, v)| cache[at + 4 * i..][..4].copy_from_slice(&v.to_le_bytes())),
            KvStorage::F16 => x.iter().enumerate().for_each(|(i, &v)| {
                cache[at + 2 * i..][..2].copy_from_slice(&half::f16::from_f32(v).to_le_bytes());
            }),
            KvStorage::Q8_0 => {
                for (g, part) in x.chunks(self.group()).enumerate() {
                    let most = part.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                    let d = half::f16::from_f32(most / 127.0);
                    let inverse = if d.to_f32() > 0.0 { 1.0 / d.to_f32() } else { 0.0 };
                    for (i, v) in part.iter().enumerate() {
                        cache[at + g * self.group() + i] =
                            (v * inverse).round_ties_even().clamp(-127.0, 127.0) as i8 as u8;
                    }
                    let to =
                        self.scales_at(capacity) + 2 * (row * (self.head_dim / self.group()) + g);
                    cache[to..to + 2].copy_from_slice(&d.to_le_bytes());
                }
            }
        }
    }

    pub(crate) fn check(&self, kernel: &'static str) -> Result<(), SpecError> {
        let fine = self.head_dim.is_multiple_of(16)
            && (16..=KvLayout::WIDEST).contains(&self.head_dim)
            && self.heads > 0;
        require(fine, kernel, || {
            let (heads, size, most) = (self.heads, self.head_dim, KvLayout::WIDEST);
            format!("{heads} heads of {size} elements: sizes must be multiples of 16 up to {most}")
        })
    }

    /// The macro of `gpu/paged.h`.
    pub(crate) fn macros(paged: bool, macros: Constants) -> Constants {
        if paged { macros.set("KJ_PAGE", PAGE as u32) } else { macros }
    }

    /// The constants of `gpu/kv.h`, and the number of heads.
    pub(crate) fn shape(&self) -> Shape {
        let shape = Shape::new().number("HEAD_DIM", self.head_dim).number("KV_HEADS", self.heads);
        shape.choice("KV_STORAGE", &self.storage)
    }
}
