//! The tiles of products: which fit a product, how fast each is, and how an operand's elements lie.

use super::elementwise::{Work, longest};
use crate::contract::{Contraction, Operand};
use crate::dtype::DType;
use crate::memory::Store;
use crate::program::Program;
use crate::shape::numel;
use kjit_engine::{Matrices, MatrixUnit, Target, Vendor};

/// How an operand's elements lie (`LIE_…` of product.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperandLayout {
    Depths,
    Rows,
    Across,
    Along,
}

/// The skeleton of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `product.h`: multiplications and additions in f32, of f64 in f64.
    Fma,
    /// `product_mma.h`: matrix units of a wave.
    Mma,
    /// `product_wgmma.h`: those of four warps, operands by the copy engine (sm_90a).
    Wgmma,
}

/// The tiles of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiles {
    pub kind: Kind,
    pub rows: u32,
    pub cols: u32,
    pub waves: (u32, u32),
    pub stages: u32,
    /// (Wgmma) Groups take tiles in turn (`APART`).
    pub apart: bool,
}

impl Tiles {
    /// `wgmma 128x256`: the name in verdicts of tuning.
    pub fn name(self) -> String {
        let Tiles { kind, rows, cols, apart, .. } = self;
        let kind = match kind {
            Kind::Fma => "fma",
            Kind::Mma => "mma",
            Kind::Wgmma => "wgmma",
        };
        format!("{kind} {rows}x{cols}{}", if apart { " apart" } else { "" })
    }

    pub const fn block(self, wave: u32) -> u32 {
        match self.kind {
            Kind::Fma => 256,
            Kind::Mma => self.waves.0 * self.waves.1 * wave,
            Kind::Wgmma => 384,
        }
    }

    pub const fn shared(self) -> u32 {
        let tiles = self.stages * (self.rows + self.cols) * 128;
        match self.kind {
            Kind::Fma => 0,
            Kind::Mma => tiles,
            // Room to align the tiles, and 64 × 64 results of each group.
            Kind::Wgmma => 1024 + tiles + 16384,
        }
    }

    pub fn blocks(self, c: &Contraction) -> usize {
        let tiles = |n: &[usize], of: u32| numel(n).div_ceil(of as usize);
        tiles(&c.rows, self.rows) * tiles(&c.cols, self.cols) * numel(&c.batch)
    }
}

/// Whether the matrix units of a target multiply a dtype (`mma.h`, families 1 to 5).
pub(super) fn has_units(target: &Target, dtype: DType) -> bool {
    let wave = target.default_wave();
    let unit = matches!(
        (target.arch().matrix, wave),
        (MatrixUnit::MmaSync | MatrixUnit::Wgmma, _)
            | (MatrixUnit::Mfma, 64)
            | (MatrixUnit::Wmma | MatrixUnit::Wmma12 | MatrixUnit::Wmma1250, 32)
    );
    match dtype {
        DType::F16 => unit,
        // Elsewhere `mma.h` has products of f16 alone.
        DType::BF16 => unit && target.vendor() == Vendor::Nvidia && copies_ahead(target),
        _ => false,
    }
}

/// sm_80 and later: asynchronous copies, products of bf16, and more than 64 KB for a block.
fn copies_ahead(target: &Target) -> bool {
    target.vendor() == Vendor::Nvidia && target.arch().shared_per_block > 64 << 10
}

pub(super) const fn wgmma(cols: u32, stages: u32) -> Tiles {
    Tiles { kind: Kind::Wgmma, rows: 128, cols, waves: (1, 1), stages, apart: false }
}

const fn mma(rows: u32, cols: u32, waves: (u32, u32), stages: u32) -> Tiles {
    Tiles { kind: Kind::Mma, rows, cols, waves, stages, apart: false }
}

const fn fma(n: u32) -> Tiles {
    Tiles { kind: Kind::Fma, rows: n, cols: n, waves: (1, 1), stages: 1, apart: false }
}

/// Tiles and their speed on a full device, as a share of the fastest of their kind (H100, 4096³,
/// 2026-11-27: 726, 648, 273, 217 TFLOP/s of halves; 42, 32 of f32; the others are estimates).
const MAPS: &[(Tiles, u64)] = &[(wgmma(256, 4), 100), (wgmma(128, 6), 89), (wgmma(64, 8), 70)];
/// With functions of many operations after the product, which a group computes while the other
/// multiplies.
const APART: &[(Tiles, u64)] =
    &[(Tiles { apart: true, ..wgmma(128, 6) }, 100), (wgmma(128, 6), 80), (wgmma(64, 8), 65)];
const AHEAD: &[(Tiles, u64)] =
    &[(mma(128, 128, (2, 4), 3), 37), (mma(64, 128, (2, 4), 3), 33), (mma(64, 64, (2, 2), 3), 30)];
const UNITS: &[(Tiles, u64)] = &[(mma(64, 64, (2, 2), 2), 100)];
const WIDE: &[(Tiles, u64)] = &[(fma(64), 100)];
const PLAIN: &[(Tiles, u64)] = &[(fma(128), 100), (fma(64), 76), (fma(32), 45)];

/// The tiles that fit a product, with their speeds.
fn fitting(
    c: &Contraction,
    program: &Program,
    target: &Target,
) -> impl Iterator<Item = &'static (Tiles, u64)> {
    let maps: &[(Tiles, u64)] = match has_maps(c, target) {
        true if longest(program) > Work::Short => APART,
        true => MAPS,
        false => &[],
    };
    let list = match has_units(target, c.dtype) {
        true if copies_ahead(target) => AHEAD,
        true => UNITS,
        false if c.dtype == DType::F64 => WIDE,
        false => PLAIN,
    };
    maps.iter().chain(list)
}

/// The tiles that fit a product.
pub(super) fn candidates(c: &Contraction, program: &Program, target: &Target) -> Vec<Tiles> {
    fitting(c, program, target).map(|(tiles, _)| *tiles).collect()
}

/// The tiles that take the least time by the table: rounds of blocks on all compute units, times
/// their size.
pub(super) fn tiles(c: &Contraction, program: &Program, target: &Target, units: usize) -> Tiles {
    let time = |(t, speed): &&(Tiles, u64)| {
        let rounds = t.blocks(c).div_ceil(units.max(1)) as u64;
        rounds.saturating_mul(u64::from(t.rows * t.cols) * 1000) / speed
    };
    fitting(c, program, target).min_by_key(time).map_or(fma(32), |(t, _)| *t)
}

/// Whether the copy engine of sm_90a can bring both operands.
pub(super) fn has_maps(c: &Contraction, target: &Target) -> bool {
    let map = |o: &Operand, own: &[usize]| {
        let strides = [&o.batch[..], &o.own, &o.depth];
        matches!(
            layout_of(o, own, &c.depth, c.dtype, wgmma(128, 6)),
            OperandLayout::Depths | OperandLayout::Rows
        ) && strides.iter().all(|s| s.len() <= 1)
            && strides.iter().all(|s| s.iter().all(|s| (0..1 << 38).contains(s)))
            && [&o.own, &o.depth].iter().all(|s| !s.contains(&0))
    };
    target.arch().matrix == MatrixUnit::Wgmma
        && has_units(target, c.dtype)
        && map(&c.left, &c.rows)
        && map(&c.right, &c.cols)
        && numel(&c.depth) >= 64
}

/// The description of an operand for the copy engine, of which a box has `tile` rows.
pub(super) fn matrices(
    o: &Operand,
    own: &[usize],
    c: &Contraction,
    lie: OperandLayout,
    tile: u32,
) -> Matrices {
    let first = |list: &[i64]| list.first().map_or(0, |s| s.unsigned_abs());
    let (across, deep) = (numel(own) as u64, numel(&c.depth) as u64);
    let step = first(&o.batch);
    let (width, rows, row, tile) = match lie {
        OperandLayout::Rows => (across, deep, first(&o.depth), 64),
        _ => (deep, across, first(&o.own), tile),
    };
    // A matrix of one row, or one matrix, has no distance to the next.
    let bytes = |step: u64, count: u64| if count > 1 { step * 2 } else { 16 };
    let count = if step == 0 { 1 } else { numel(&c.batch) as u64 };
    let (row_bytes, matrix_bytes) = (bytes(row, rows), bytes(step, count));
    Matrices { width, rows, count, row_bytes, matrix_bytes, tile }
}

/// How an operand lies. `own` are the sizes of its rows or columns.
pub(super) fn layout_of(
    o: &Operand,
    own: &[usize],
    depth: &[usize],
    dtype: DType,
    tiles: Tiles,
) -> OperandLayout {
    let wide = 16 / dtype.size() as i64;
    let vectors = tiles.kind != Kind::Fma || dtype == DType::F32;
    let aligned = |list: &[i64]| list.iter().all(|s| s % wide == 0);
    let base = match &o.buffer.store {
        Store::Gpu(_, memory) => memory.address() % 16 == 0,
        Store::Host(_) => true,
    };
    let whole = base && o.buffer.offset % wide == 0 && aligned(&o.batch);
    // The copy engine leaves out what is behind the end.
    let whole_runs = |n: usize| tiles.kind == Kind::Wgmma || n as i64 % wide == 0;
    // Neighbours in the last axis, in whole vectors; other axes start at vectors.
    let runs = |sizes: &[usize], strides: &[i64]| match (sizes, strides) {
        ([n], [1]) => whole_runs(*n),
        ([.., n], [rest @ .., 1]) => *n as i64 % wide == 0 && aligned(rest),
        _ => false,
    };
    if vectors && whole && runs(depth, &o.depth) && aligned(&o.own) {
        return OperandLayout::Depths;
    }
    if vectors && whole && runs(own, &o.own) && aligned(&o.depth) {
        return OperandLayout::Rows;
    }
    // Neighbours along the depth, at least a sector of 32 bytes of them.
    match (depth.last(), o.depth.last(), o.own.last()) {
        (Some(16..), Some(1), last) if last != Some(&1) => OperandLayout::Along,
        _ => OperandLayout::Across,
    }
}
