//! Cumulative sums and products, sorting, scattering and the indices of nonzero elements on a GPU.
//! The kernels are in `ops/gpu/order.h`; a key has the operation and the dtype.

use super::Gpu;
use super::launch::Grid;
use super::render::{BLOCK, computed, stored};
use crate::dtype::{DType, Kind};
use crate::element::FoldOp;
use crate::error::{Error, Result};
use crate::memory::{Buffer, Store};
use crate::shape::numel;
use kjit_engine::{Arg, DeviceBuffer};
use std::sync::Arc;

/// Length of the longest row that a thread scans.
const SHORT: usize = 32;
/// Elements in a tile of a scan (`SCAN_TILE`).
const SCAN_TILE: usize = 8 * BLOCK as usize;
/// Length of the longest row that a block sorts in shared memory (`SORT_SMALL`).
const SMALL: usize = 2048;
/// Elements in a tile of a radix sort (`SORT_TILE`).
const SORT_TILE: usize = 16 * BLOCK as usize;
/// Blocks that keep a large GPU busy.
const ENOUGH: usize = 1024;

/// The source of a kernel with these parameters and this body.
fn text(name: &str, params: &str, body: &str) -> String {
    format!(
        "#include \"order.h\"\nstruct Numbers {{ i64 n[8]; }};\n\
         KERNEL {name}(Numbers p{params}) {{\n    {body}\n}}\n"
    )
}

/// The type of an accumulator.
fn accumulator(dtype: DType) -> &'static str {
    match dtype.kind() {
        Kind::Float => "f64",
        _ => computed(dtype),
    }
}

pub(super) fn scan_text(dtype: DType, product: bool) -> String {
    let (t, a) = (stored(dtype), accumulator(dtype));
    let params = format!(", {t}* to, {a}* sums, const {t}* from");
    let body = format!(
        "Scan<{t}, {a}, {product}>::step(to, sums, from, p.n[0], p.n[1], p.n[2], (u32)p.n[3], \
         p.n[4] != 0);"
    );
    text("scan", &params, &body)
}

/// The type of a sorting key and its bits.
fn key(dtype: DType) -> (&'static str, u32) {
    let bits = dtype.size() as u32 * 8;
    (if bits == 64 { "u64" } else { "u32" }, bits)
}

pub(super) fn sort_small_text(dtype: DType) -> String {
    let (t, (k, _)) = (stored(dtype), key(dtype));
    let body =
        format!("Sort<{t}, {k}>::small(to, from, p.n[0], (u32)p.n[1], (u32)p.n[2], ({k})p.n[3]);");
    text("sort_small", &format!(", i64* to, const {t}* from"), &body)
}

pub(super) fn sort_count_text(dtype: DType) -> String {
    let (t, (k, _)) = (stored(dtype), key(dtype));
    let params = format!(", u32* counts, const {t}* from, const {k}* keys");
    let body = format!(
        "Sort<{t}, {k}>::count(counts, from, keys, p.n[0], (u32)p.n[1], (u32)p.n[2], \
         ({k})p.n[3], p.n[4] != 0);"
    );
    text("sort_count", &params, &body)
}

pub(super) fn sort_move_text(dtype: DType) -> String {
    let (t, (k, _)) = (stored(dtype), key(dtype));
    let params = format!(
        ", i64* to, {k}* keys_to, u32* ids_to, const {t}* from, const {k}* keys, const u32* ids, \
         const u32* counts, const u32* ends"
    );
    let body = format!(
        "Sort<{t}, {k}>::move(to, keys_to, ids_to, from, keys, ids, counts, ends, p.n[0], \
         (u32)p.n[1], (u32)p.n[2], ({k})p.n[3], p.n[4] != 0, p.n[5] != 0);"
    );
    text("sort_move", &params, &body)
}

/// Marks, for each destination, the last value that is written to it. A destination below 0 is out
/// of range: its index is reported.
pub(super) fn scatter_mark_text() -> String {
    text(
        "scatter_mark",
        ", u32* last, i64* wrong, const i64* places, const i64* index",
        "const i64 i = (i64)block_id() * KJ_BLOCK + thread_id();\n\
         \x20   if (i >= p.n[0]) return;\n\
         \x20   if (places[i] < 0) wrong[p.n[1]] = index[i];\n\
         \x20   else global_max(&last[places[i]], (u32)i + 1);",
    )
}

pub(super) fn scatter_choose_text(dtype: DType) -> String {
    let t = stored(dtype);
    text(
        "scatter_choose",
        &format!(", {t}* to, const u32* last, const {t}* base, const {t}* values"),
        "const i64 i = (i64)block_id() * KJ_BLOCK + thread_id();\n\
         \x20   if (i >= p.n[0]) return;\n\
         \x20   to[i] = last[i] != 0 ? values[last[i] - 1] : base[i];",
    )
}

/// Adds the values of each destination in order. `order` sorts the destinations. The thread of a
/// destination's first value adds all of them.
pub(super) fn scatter_add_text(dtype: DType) -> String {
    let t = stored(dtype);
    text(
        "scatter_add",
        &format!(
            ", {t}* to, i64* wrong, const i64* order, const i64* places, const i64* index, \
             const {t}* values"
        ),
        &format!(
            "i64 i = (i64)block_id() * KJ_BLOCK + thread_id();\n\
             \x20   if (i >= p.n[0]) return;\n\
             \x20   const i64 place = places[order[i]];\n\
             \x20   if (place < 0) {{\n\
             \x20       wrong[p.n[1]] = index[order[i]];\n\
             \x20       return;\n\
             \x20   }}\n\
             \x20   if (i > 0 && places[order[i - 1]] == place) return;\n\
             \x20   {t} sum = to[place];\n\
             \x20   for (; i < p.n[0] && places[order[i]] == place; i++)\n\
             \x20       sum = scatter_sum(sum, values[order[i]]);\n\
             \x20   to[place] = sum;"
        ),
    )
}

/// Reports an index that is outside of an axis.
pub(super) fn check_text() -> String {
    text(
        "check_index",
        ", i64* wrong, const i64* index",
        "const i64 i = (i64)block_id() * KJ_BLOCK + thread_id(), size = p.n[2];\n\
         \x20   if (i < p.n[0] && (index[i] < -size || index[i] >= size))\n\
         \x20       wrong[p.n[1]] = index[i];",
    )
}

/// The positions of the true elements; `ends` are the cumulative sums of the mask.
pub(super) fn nonzero_text() -> String {
    text(
        "nonzero",
        ", i64* to, const u8* mask, const i64* ends",
        "const i64 i = (i64)block_id() * KJ_BLOCK + thread_id();\n\
         \x20   if (i < p.n[0] && mask[i] != 0) to[ends[i] - 1] = i;",
    )
}

/// The engine's compile jobs of the kernels that sort, scan and scatter elements of a real dtype.
/// Needs no GPU.
#[must_use]
pub fn order_jobs(dtype: DType, target: &kjit_engine::Target) -> Vec<kjit_engine::Job> {
    let mut texts = vec![
        ("sort_small", sort_small_text(dtype)),
        ("sort_count", sort_count_text(dtype)),
        ("sort_move", sort_move_text(dtype)),
        ("scatter_mark", scatter_mark_text()),
        ("scatter_choose", scatter_choose_text(dtype)),
        ("check_index", check_text()),
        ("nonzero", nonzero_text()),
    ];
    if dtype != DType::Bool {
        texts.push(("scan", scan_text(dtype, false)));
        texts.push(("scan", scan_text(dtype, true)));
        texts.push(("scatter_add", scatter_add_text(dtype)));
    }
    let job = |(entry, text): &(&str, String)| super::launch::job(entry, text, BLOCK, target);
    texts.iter().map(job).collect()
}

/// The arguments of a scatter, as on the CPU but with a destination for each value.
pub(crate) struct Scatter<'a> {
    /// Packed.
    pub base: &'a Buffer,
    /// Row-major positions in the result (int64, packed); -1 for an index out of range.
    pub places: &'a Buffer,
    /// The indices (int64, packed), for the error.
    pub index: &'a Buffer,
    /// Packed.
    pub values: &'a Buffer,
    /// Number of values.
    pub count: usize,
    /// The axis and its size, for the error.
    pub axis: (usize, usize),
    /// For a sum: the order that sorts the destinations.
    pub order: Option<&'a Buffer>,
}

impl Gpu {
    /// The memory of a packed buffer from its first element on.
    fn part(&self, buffer: &Buffer, dtype: DType) -> Result<DeviceBuffer<u8>> {
        Ok(self.own_memory(buffer)?.slice(buffer.offset as usize * dtype.size()..)?)
    }

    fn order(
        &self,
        entry: &'static str,
        text: &str,
        blocks: usize,
        numbers: &[i64],
        buffers: &[&DeviceBuffer<u8>],
    ) -> Result<()> {
        let mut all = [0; 8];
        all.iter_mut().zip(numbers).for_each(|(a, n)| *a = *n);
        let target = self.device.target();
        let kernel =
            self.kernel(entry, text, |text| super::launch::job(entry, text, BLOCK, target))?;
        let args: Vec<_> = buffers.iter().map(|b| Arg::from(*b)).collect();
        self.send(&kernel, Grid::of(blocks), &all, &args)
    }

    fn scan_rows(
        &self,
        (to, from): (&DeviceBuffer<u8>, &DeviceBuffer<u8>),
        dtype: DType,
        (rows, row): (usize, usize),
        product: bool,
    ) -> Result<()> {
        let most = row.div_ceil(2 * SCAN_TILE);
        let chunks = match row {
            0..=SHORT => 0,
            _ => (ENOUGH / rows.max(1)).clamp(1, most),
        };
        let chunk = row.div_ceil(chunks.max(1)).next_multiple_of(SCAN_TILE);
        let chunks = if chunks == 0 { 0 } else { row.div_ceil(chunk) };
        let blocks = match chunks {
            0 => rows.div_ceil(BLOCK as usize),
            n => rows * n,
        };
        let sums = self.memory(if chunks > 1 { blocks * 8 } else { 1 })?;
        let text = scan_text(dtype, product);
        for finish in [false, true] {
            if finish || chunks > 1 {
                let numbers =
                    [rows as i64, row as i64, chunk as i64, chunks as i64, i64::from(finish)];
                self.order("scan", &text, blocks, &numbers, &[to, &sums, from])?;
            }
        }
        Ok(())
    }

    /// Cumulative sum or product of the last axis of a packed buffer.
    pub(crate) fn scan(
        self: &Arc<Self>,
        from: &Buffer,
        dtype: DType,
        shape: &[usize],
        op: FoldOp,
    ) -> Result<Buffer> {
        let (n, row) = (numel(shape), shape.last().copied().unwrap_or(1));
        let to = self.memory(n * dtype.size())?;
        let from = self.part(from, dtype)?;
        self.scan_rows((&to, &from), dtype, (n / row.max(1), row), op == FoldOp::Prod)?;
        Ok(Buffer::packed(Store::Gpu(Arc::clone(self), to), shape))
    }

    /// The indices that sort the last axis of a packed buffer: stable, NaN last (first if
    /// descending), -0 equal to 0. Of unsigned integers only the low `bits` are compared, if given.
    pub(crate) fn arg_sort(
        self: &Arc<Self>,
        from: &Buffer,
        dtype: DType,
        shape: &[usize],
        descending: bool,
        bits: Option<u32>,
    ) -> Result<Buffer> {
        let (n, row) = (numel(shape), shape.last().copied().unwrap_or(1));
        let rows = n / row.max(1);
        if row > u32::MAX as usize {
            let why = format!("the axis has {row} elements, but a GPU can sort at most 4294967295");
            return Err(Error::value("argsort", why));
        }
        let to = self.memory(n * 8)?;
        let from = self.part(from, dtype)?;
        let (_, all) = key(dtype);
        let flip = match (descending, all) {
            (false, _) => 0,
            (true, 64) => -1,
            (true, bits) => (1i64 << bits) - 1,
        };
        if row <= SMALL {
            let wide = row.next_power_of_two();
            let blocks = rows.div_ceil(SMALL / wide);
            let numbers = [rows as i64, row as i64, wide as i64, flip];
            self.order("sort_small", &sort_small_text(dtype), blocks, &numbers, &[&to, &from])?;
            return Ok(Buffer::packed(Store::Gpu(Arc::clone(self), to), shape));
        }
        let tiles = row.div_ceil(SORT_TILE);
        let width = if all == 64 { 8 } else { 4 };
        let new = |bytes: usize| self.memory(bytes);
        let (mut keys, mut keys_to) = (new(n * width)?, new(n * width)?);
        let (mut ids, mut ids_to) = (new(n * 4)?, new(n * 4)?);
        let (counts, ends) = (new(rows * tiles * 1024)?, new(rows * tiles * 1024)?);
        let passes = bits.unwrap_or(all).div_ceil(8).max(1);
        let (count, moves) = (sort_count_text(dtype), sort_move_text(dtype));
        for pass in 0..passes {
            let (first, last) = (i64::from(pass == 0), i64::from(pass + 1 == passes));
            let numbers = [row as i64, tiles as i64, i64::from(pass * 8), flip, first, last];
            let blocks = rows * tiles;
            self.order("sort_count", &count, blocks, &numbers, &[&counts, &from, &keys])?;
            self.scan_rows((&ends, &counts), DType::U32, (rows, tiles * 256), false)?;
            let buffers = [&to, &keys_to, &ids_to, &from, &keys, &ids, &counts, &ends];
            self.order("sort_move", &moves, blocks, &numbers, &buffers)?;
            std::mem::swap(&mut keys, &mut keys_to);
            std::mem::swap(&mut ids, &mut ids_to);
        }
        Ok(Buffer::packed(Store::Gpu(Arc::clone(self), to), shape))
    }

    /// A copy of the base with values written, or added in their order. The result is
    /// deterministic: of several values for one destination the last one is stored, and sums are
    /// added in the order of the values. An index out of range is reported at the next
    /// synchronisation.
    pub(crate) fn scatter(
        self: &Arc<Self>,
        s: &Scatter<'_>,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Buffer> {
        let n = numel(shape);
        if s.count >= u32::MAX as usize {
            let why =
                format!("{} values are too many: a GPU can scatter at most 4294967294", s.count);
            return Err(Error::value("scatter", why));
        }
        let to = self.memory(n * dtype.size())?;
        let [base, values] = [s.base, s.values].map(|b| self.part(b, dtype));
        let (base, values) = (base?, values?);
        let [places, index] = [s.places, s.index].map(|b| self.part(b, DType::I64));
        let (places, index) = (places?, index?);
        let blocks = |n: usize| n.div_ceil(BLOCK as usize);
        let (slot, wrong) = self.error_slot("scatter", s.axis.0, s.axis.1)?;
        if let Some(order) = s.order {
            self.lane().stream.copy(&base.slice(..n * dtype.size())?, &to)?;
            let order = self.part(order, DType::I64)?;
            let numbers = [s.count as i64, slot];
            let buffers = [&to, wrong, &order, &places, &index, &values];
            let text = scatter_add_text(dtype);
            self.order("scatter_add", &text, blocks(s.count), &numbers, &buffers)?;
            return Ok(Buffer::packed(Store::Gpu(Arc::clone(self), to), shape));
        }
        let last = self.memory(n * 4)?;
        self.lane().stream.fill(&last, 0)?;
        let numbers = [s.count as i64, slot];
        let buffers = [&last, wrong, &places, &index];
        self.order("scatter_mark", &scatter_mark_text(), blocks(s.count), &numbers, &buffers)?;
        let buffers = [&to, &last, &base, &values];
        let text = scatter_choose_text(dtype);
        self.order("scatter_choose", &text, blocks(n), &[n as i64], &buffers)?;
        Ok(Buffer::packed(Store::Gpu(Arc::clone(self), to), shape))
    }

    /// The row-major positions (int64) of the true elements of a packed mask of `n` elements. Waits
    /// for their number.
    pub(crate) fn nonzero(
        self: &Arc<Self>,
        mask: &Buffer,
        ends: &Buffer,
        n: usize,
    ) -> Result<(Buffer, usize)> {
        let (mask, ends) = (self.part(mask, DType::Bool)?, self.part(ends, DType::I64)?);
        let last = self.read(&ends, n.saturating_sub(1) * 8, 8)?;
        let found = i64::from_le_bytes(last.try_into().unwrap_or_default()) as usize;
        let to = self.memory(found * 8)?;
        let blocks = n.div_ceil(BLOCK as usize);
        self.order("nonzero", &nonzero_text(), blocks, &[n as i64], &[&to, &mask, &ends])?;
        Ok((Buffer::packed(Store::Gpu(Arc::clone(self), to), &[found]), found))
    }

    /// Checks `n` indices (int64, packed) of an axis; one out of range is reported at the next
    /// synchronisation.
    pub(crate) fn check(
        &self,
        op: &'static str,
        index: &Buffer,
        n: usize,
        axis: usize,
        size: usize,
    ) -> Result<()> {
        let index = self.part(index, DType::I64)?;
        let (slot, wrong) = self.error_slot(op, axis, size)?;
        let numbers = [n as i64, slot, size as i64];
        let blocks = n.div_ceil(BLOCK as usize);
        self.order("check_index", &check_text(), blocks, &numbers, &[wrong, &index])
    }
}
