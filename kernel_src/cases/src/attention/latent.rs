//! Cases and samples of `latent`.

use crate::case::{Case, CaseArg, FOLLOWS, floats, output, words};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{Expect, HALF, SINGLE, Storage, Tolerance};
use crate::paged::Pages;
use crate::samples::{CONTEXT, Samples};
use kjit_engine::Target;
use kjit_kernels::kv::{KvLayout, KvStorage};
use kjit_kernels::latent::{LatentArgs, LatentSpec};
use kjit_kernels::top_keys::TopKeysSpec;
use kjit_kernels::{Family, Size, SpecError};

impl Cases for LatentSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        case(self, target, units, &vec![size.past; size.tokens.max(1)], random)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        use KvStorage::{F16, F32, Q8_0};
        // Groups of four, of fewer, of a number that is not a power of two; ranks around the number
        // of threads of a block; one slice and several; the first token, ends of tiles. In pages:
        // the first position of a page, the last, several pages.
        for (heads, head_dim, rank, storage, splits, positions, one, paged, chosen) in [
            (16, 576, 512, F16, 3, vec![70], false, false, None),
            (4, 80, 64, F16, 2, vec![0, 7, 8, 33], false, false, None),
            (5, 96, 96, Q8_0, 4, vec![50], false, false, None),
            (3, 272, 257, F32, 1, vec![23, 40], false, false, None),
            (8, 320, 256, Q8_0, 5, vec![100], false, false, None),
            // More slices than are added together, and than a wave has lanes.
            (4, 80, 64, F16, 40, vec![1290], false, false, None),
            (2, 80, 64, F16, 70, vec![2239], false, true, None),
            (4, 80, 64, F16, 1, vec![0; 11], true, false, None),
            (6, 144, 128, Q8_0, 2, vec![13; 9], true, false, None),
            (16, 576, 512, F16, 3, vec![300], false, true, None),
            (4, 80, 64, F16, 2, vec![0, 127, 128, 143], false, true, None),
            (5, 96, 96, Q8_0, 4, vec![255], false, true, None),
            (4, 80, 64, F16, 1, vec![120; 11], true, true, None),
            // Chosen positions: fewer than the sequence has, as many, more; including the new
            // tokens.
            (16, 576, 512, F16, 3, vec![70], false, false, Some(33)),
            (4, 80, 64, F16, 2, vec![0, 11, 12, 40], false, false, Some(12)),
            (5, 96, 96, Q8_0, 1, vec![50], false, false, Some(20)),
            (6, 144, 128, F16, 2, vec![9; 9], true, false, Some(12)),
        ] {
            let spec = LatentSpec {
                heads,
                kv: KvLayout { heads: 1, head_dim, storage },
                rank,
                one,
                paged,
                chosen,
            };
            let units = splits * spec.groups() * positions.len() as u32;
            into.push(case(&spec, target, units, &positions, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let size = Size { tokens: 1, past: CONTEXT - 1 };
        let kv = KvLayout { heads: 1, head_dim: 576, storage: KvStorage::F16 };
        let plain = LatentSpec { heads: 16, kv, rank: 512, one: false, paged: false, chosen: None };
        list.add("latent 16 × 512 + 64 F16".to_owned(), plain.clone(), size)?;
        list.add(
            "latent 16 × 512 + 64 F16 in pages".to_owned(),
            LatentSpec { paged: true, ..plain.clone() },
            size,
        )?;
        let chosen = LatentSpec { heads: 128, chosen: Some(2048), ..plain };
        list.add("latent 128 × 512 + 64 F16 2048 chosen".to_owned(), chosen, size)
    }
}

/// A list for each token of the positions that it sees: as many as the list holds, in rising order.
pub(crate) fn lists(
    chosen: usize,
    seen: impl Iterator<Item = usize>,
    random: &mut Random,
) -> Vec<u32> {
    let of = |seen: usize| {
        let mut list: Vec<u32> = (0..seen as u32).collect();
        while list.len() > chosen {
            list.swap_remove(random.below(list.len()));
        }
        list.sort_unstable();
        list.resize(chosen, TopKeysSpec::NONE);
        list
    };
    seen.flat_map(of).collect()
}

/// Expected results, in f64, of sequences with these numbers of tokens before the new one, or of
/// one sequence with this number of tokens.
fn case(
    spec: &LatentSpec,
    target: &Target,
    units: u32,
    positions: &[usize],
    random: &mut Random,
) -> Result<Case, SpecError> {
    let (kv, dim, n) = (spec.kv, spec.kv.head_dim, positions.len());
    let capacity = positions.iter().max().unwrap_or(&0) + n + 3;
    let (bytes, scale) = (kv.bytes(capacity).unwrap_or(0), 1.0 / (dim as f32).sqrt());
    let (q, new) = (random.normals(n * spec.heads * dim, 1.5), random.normals(n * dim, 1.0));
    // Several sequences are in permuted slots, with one free slot. Unwritten memory is poison.
    let places = if n > 1 && !spec.one { n + 1 } else { 1 };
    let slots: Vec<u32> =
        (0..n).map(|s| if spec.one { 0 } else { (places - 1 - s) as u32 }).collect();
    let (mut before, mut by_place) = (vec![0xffu8; places * bytes], vec![u32::MAX; places]);
    let seen =
        positions.iter().enumerate().map(|(s, here)| here + 1 + if spec.one { s } else { 0 });
    let lists = spec.chosen.map_or(vec![], |n| lists(n, seen, random));
    let (mut after, mut want) = (before.clone(), vec![]);
    for (s, &here) in positions.iter().enumerate() {
        let at = slots[s] as usize * bytes;
        by_place[slots[s] as usize] = here as u32;
        let (cache, all) = (&mut before[at..at + bytes], &mut after[at..at + bytes]);
        // New rows are used without rounding.
        let first = if spec.one { 0 } else { s };
        if first == s {
            (0..here).for_each(|p| kv.write_row(cache, capacity, 0, p, &random.normals(dim, 1.0)));
            all.copy_from_slice(cache);
        }
        kv.write_row(all, capacity, 0, here + s - first, &new[s * dim..][..dim]);
        // If there are many tokens, the oracle computes some of them.
        if n > 128 && s % 61 > 0 && s + 1 < n {
            want.resize(want.len() + spec.heads * spec.rank, f64::INFINITY);
            continue;
        }
        let old = (0..here).map(|p| kv.read_row(cache, capacity, 0, p));
        let mut rows: Vec<Vec<f32>> =
            old.chain((first..=s).map(|s| new[s * dim..][..dim].to_vec())).collect();
        if let Some(n) = spec.chosen {
            let list = lists[s * n..][..n].iter().filter(|p| **p != TopKeysSpec::NONE);
            rows = list.map(|p| rows[*p as usize].clone()).collect();
        }
        for q in q[s * spec.heads * dim..][..spec.heads * dim].chunks(dim) {
            let dot = |row: &Vec<f32>| {
                q.iter().zip(row).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>()
            };
            let scores: Vec<f64> = rows.iter().map(|row| f64::from(scale) * dot(row)).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - most).exp()).sum();
            let share = |i: usize| (scores[i] - most).exp() / sum;
            want.extend(
                (0..spec.rank).map(|c| {
                    (0..rows.len()).map(|i| share(i) * f64::from(rows[i][c])).sum::<f64>()
                }),
            );
        }
    }
    let pages = spec.paged.then(|| {
        let more = if spec.one { n as u32 } else { 1 };
        let lens: Vec<usize> = by_place.iter().map(|&p| p.wrapping_add(more) as usize).collect();
        Pages::new(&lens, capacity, random)
    });
    let [before, after] = match &pages {
        None => [before, after],
        Some(pages) => [before, after].map(|rows| pages.pool(&kv, &rows, capacity)),
    };
    let real = |storage: Storage, tolerance| Expect::Real {
        storage,
        want: storage.read(&after),
        tolerance,
    };
    let expect = match kv.storage {
        KvStorage::F32 => real(Storage::F32, SINGLE),
        KvStorage::F16 => real(Storage::F16, HALF),
        KvStorage::Q8_0 => Expect::Anything,
    };
    let tolerance =
        Tolerance { norm: 1e-5, each: 1e-4, reason: "scores and exponentials in single precision" };
    let launch = spec.launch(target, units, Size { tokens: n, past: capacity })?;
    let name = format!(
        "latent {} heads of {dim}, values of {}, {:?}, positions {positions:?}, one {}, {} splits{}, {:?} chosen",
        spec.heads,
        spec.rank,
        kv.storage,
        spec.one,
        launch.geometry.grid[0],
        if spec.paged { ", paged" } else { "" },
        spec.chosen
    );
    let args = LatentArgs {
        q: floats("q", &q),
        row: floats("row", &new),
        slots: if n > 1 && !spec.one { words("slots", &slots) } else { CaseArg::Null },
        position: words("position", &by_place),
        rows: CaseArg::Buffer { name: "rows", before: before.into(), expect },
        part: CaseArg::Null,
        counters: CaseArg::Null,
        out: output("out", Storage::F32, want, tolerance),
        scale: CaseArg::F32(scale),
        capacity: CaseArg::U32(capacity as u32),
        splits: FOLLOWS,
        sequence_bytes: CaseArg::U64(if spec.paged { 0 } else { bytes as u64 }),
        table: pages.map_or_else(|| words("chosen", &lists), |pages| words("table", &pages.table)),
    };
    Case::of(name, spec, target, launch, args)
}
