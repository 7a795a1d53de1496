//! Cases and samples of attention: positions at the ends of tiles and slices, all storage types,
//! groups and head sizes.

use crate::case::{Case, CaseArg, FOLLOWS, floats, optional, output, words};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{Expect, HALF, SINGLE, Storage, Tolerance};
use crate::oracle::{HEADS_EPS, ready, shares, sinks};
use crate::paged::Pages;
use crate::samples::{CONTEXT, HEADS, Samples, heads_form, sample_scores};
use kjit_engine::Target;
use kjit_kernels::attend::{AttendArgs, AttendSpec, AttendTuning};
use kjit_kernels::heads::{HeadsForm, RopeForm, Scores, angles};
use kjit_kernels::kv::{KvLayout, KvStorage};
use kjit_kernels::{Family, Size, SpecError};

/// Exponentials of the hardware, and f32 sums.
const ATTENTION: Tolerance =
    Tolerance { norm: 1e-5, each: 1e-4, reason: "scores and exponentials in single precision" };

fn storage_tolerance(storage: KvStorage) -> Tolerance {
    match storage {
        KvStorage::F32 => ATTENTION,
        // The new key and value are rounded; a tie may be rounded differently from the oracle.
        KvStorage::F16 => Tolerance {
            norm: 5e-4,
            each: 2e-3,
            reason: "the new key and value are rounded to half precision",
        },
        KvStorage::Q8_0 => Tolerance {
            norm: 5e-3,
            each: 2e-2,
            reason: "the new key and value are rounded to 8 bits",
        },
    }
}

fn singles(v: &[f64]) -> Vec<f32> {
    v.iter().map(|&x| x as f32).collect()
}

/// Sizes of one launch.
struct Sizes {
    /// Positions of the cache.
    capacity: usize,
    /// Tokens before the new one, a number for each sequence.
    positions: Vec<usize>,
    /// Compute units.
    units: u32,
    /// Factor on scores.
    scale: f32,
}

fn case(
    spec: &AttendSpec,
    target: &Target,
    sizes: &Sizes,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let form = &spec.form;
    let (kv, dim, n) = (form.kv, form.kv.head_dim, sizes.positions.len());
    let bytes = kv.bytes(sizes.capacity).unwrap_or(0);
    let table = angles(
        &(0..form.rope.dims / 2)
            .map(|i| 10000f64.powf(-2.0 * i as f64 / form.rope.dims as f64))
            .collect::<Vec<_>>(),
        1.0,
        sizes.capacity,
    );
    let (q, k, v) = (
        random.normals(n * form.heads * dim, 1.5),
        random.normals(n * kv.heads * dim, 1.5),
        random.normals(n * kv.heads * dim, 1.0),
    );
    let norms = if form.qk_norm {
        [random.normals(dim, 1.0), random.normals(dim, 1.0)]
    } else {
        [vec![], vec![]]
    };
    let sinks = sinks(&spec.scores, form.heads, random);
    // Several sequences are in permuted slots, with one free slot. Positions after the end contain
    // poison, so reads of them are detected.
    let places = if n > 1 { n + 1 } else { n };
    let slots: Vec<usize> = (0..n).map(|s| places - 1 - s).collect();
    let mut before = [vec![0xffu8; places * bytes], vec![0xffu8; places * bytes]];
    let mut after = before.clone();
    let mut want = vec![];
    for (s, &here) in sizes.positions.iter().enumerate() {
        let [keys, values] = before.each_mut().map(|b| &mut b[slots[s] * bytes..][..bytes]);
        for head in 0..kv.heads {
            for p in 0..here {
                kv.write_row(keys, sizes.capacity, head, p, &random.normals(dim, 1.0));
                kv.write_row(values, sizes.capacity, head, p, &random.normals(dim, 1.0));
            }
        }
        let (mut all_keys, mut all_values) = (keys.to_vec(), values.to_vec());
        for head in 0..kv.heads {
            let at = (s * kv.heads + head) * dim;
            let key = singles(&ready(form, &k[at..at + dim], &norms[1], &table, here));
            kv.write_row(&mut all_keys, sizes.capacity, head, here, &key);
            kv.write_row(&mut all_values, sizes.capacity, head, here, &v[at..at + dim]);
        }
        if form.kept_before {
            keys.copy_from_slice(&all_keys);
            values.copy_from_slice(&all_values);
        }
        for (after, all) in after.iter_mut().zip([&all_keys, &all_values]) {
            after[slots[s] * bytes..][..bytes].copy_from_slice(all);
        }
        let rows = |cache: &[u8]| -> Vec<Vec<f32>> {
            let row = |i: usize| kv.read_row(cache, sizes.capacity, i / (here + 1), i % (here + 1));
            (0..kv.heads * (here + 1)).map(row).collect()
        };
        let (key_rows, value_rows) = (rows(&all_keys), rows(&all_values));
        for head in 0..form.heads {
            let kv_head = head / (form.heads / kv.heads);
            let at = (s * form.heads + head) * dim;
            let query = ready(form, &q[at..at + dim], &norms[0], &table, here);
            let (first, shares) = shares(
                &spec.scores,
                (head, form.heads),
                (here, here + 1),
                sinks.get(head).copied(),
                |p| {
                    let key = &key_rows[kv_head * (here + 1) + p];
                    f64::from(sizes.scale)
                        * query.iter().zip(key).map(|(a, &b)| a * f64::from(b)).sum::<f64>()
                },
            );
            let mut out = vec![0.0; dim];
            for (p, share) in (first..=here).zip(&shares) {
                let value = &value_rows[kv_head * (here + 1) + p];
                out.iter_mut().zip(value).for_each(|(o, &v)| *o += share * f64::from(v));
            }
            want.extend(out);
        }
    }
    // Earlier rows are unchanged, new rows equal the oracle's rows, all other memory stays poison.
    // 8-bit rows with scales are checked through the results: the oracle may round differently.
    let ([keys, values], [keys_after, values_after]) = (before, after);
    let cache = |name, before, after: &[u8]| {
        let real = |storage: Storage, tolerance| Expect::Real {
            storage,
            want: storage.read(after),
            tolerance,
        };
        let expect = match kv.storage {
            KvStorage::F32 => real(Storage::F32, SINGLE),
            KvStorage::F16 => real(Storage::F16, HALF),
            KvStorage::Q8_0 => Expect::Anything,
        };
        CaseArg::Buffer { name, before, expect }
    };
    let positions: Vec<u32> = sizes.positions.iter().map(|&p| p as u32).collect();
    let mut by_place = vec![u32::MAX; places];
    slots.iter().zip(&positions).for_each(|(&slot, &p)| by_place[slot] = p);
    let slots: Vec<u32> = slots.iter().map(|&s| s as u32).collect();
    let t = spec.tuning(target)?;
    let launch = spec.launch(target, sizes.units, Size { tokens: n, past: sizes.capacity })?;
    let name = format!(
        "attend {form}{}, positions {positions:?}, {} splits, {t:?}",
        spec.scores, launch.geometry.grid[0]
    );
    let pages = form.paged.then(|| {
        let lens: Vec<usize> = by_place.iter().map(|&p| p.wrapping_add(1) as usize).collect();
        Pages::new(&lens, sizes.capacity, random)
    });
    let [keys, values, keys_after, values_after] = match &pages {
        None => [keys, values, keys_after, values_after],
        Some(pages) => [keys, values, keys_after, values_after]
            .map(|caches| pages.pool(&kv, &caches, sizes.capacity)),
    };
    let args = AttendArgs {
        q: floats("q", &q),
        k: if form.kept_before { CaseArg::Null } else { floats("k", &k) },
        v: if form.kept_before { CaseArg::Null } else { floats("v", &v) },
        q_norm: optional("q_norm", &norms[0]),
        k_norm: if form.kept_before { CaseArg::Null } else { optional("k_norm", &norms[1]) },
        sinks: optional("sinks", &sinks),
        angles: optional("angles", &table),
        slots: if n > 1 { words("slots", &slots) } else { CaseArg::Null },
        position: words("position", &by_place),
        keys: cache("keys", keys.into(), &keys_after),
        values: cache("values", values.into(), &values_after),
        part: CaseArg::Null,
        counters: CaseArg::Null,
        out: output("out", Storage::F32, want, storage_tolerance(kv.storage)),
        scale: CaseArg::F32(sizes.scale),
        eps: CaseArg::F32(HEADS_EPS),
        capacity: CaseArg::U32(sizes.capacity as u32),
        splits: FOLLOWS,
        sequence_bytes: CaseArg::U64(if form.paged { 0 } else { bytes as u64 }),
        table: pages.map_or(CaseArg::Null, |pages| words("table", &pages.table)),
    };
    Case::of(name, spec, target, launch, args)
}

/// A case for timing: all sequences have equally many tokens in the cache.
fn sized(
    spec: &AttendSpec,
    target: &Target,
    units: u32,
    size: Size,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let scale = 1.0 / (spec.form.kv.head_dim as f32).sqrt();
    let positions = vec![size.past; size.tokens.max(1)];
    case(spec, target, &Sizes { capacity: size.past + 1, positions, units, scale }, random)
}

impl Cases for AttendSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        sized(self, target, units, size, random)
    }

    fn cases(
        target: &Target,
        wave: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        let form = |heads, kv_heads, head_dim, storage, qk_norm, halves| HeadsForm {
            heads,
            kv: KvLayout { heads: kv_heads, head_dim, storage },
            qk_norm,
            rope: RopeForm { dims: if head_dim == 80 { 32 } else { head_dim }, halves },
            kept_before: false,
            paged: false,
        };
        use KvStorage::{F16, F32, Q8_0};
        let all = Scores::default();
        let window = |w: usize| Scores { window: Some(w), ..all };
        let cap = |c: f32| Scores { soft_cap: Some(c), ..all };
        let sinks = Scores { sinks: true, ..all };
        let alibi = |most: f32| Scores { alibi: Some(most), ..all };
        let chunk = |n: usize| Scores { chunk: Some(n), ..all };
        let kept = |form| HeadsForm { kept_before: true, ..form };
        let paged = |form| HeadsForm { paged: true, ..form };
        // Heads without rotation, or already rotated.
        let unturned = |form| HeadsForm { rope: RopeForm { dims: 0, halves: false }, ..form };
        let tries = [
            // form, scores, positions, splits, tile; f32 with the tiles of plans, since larger
            // tiles spill on AMD
            (form(4, 2, 64, F16, false, false), all, vec![0, 1, 30], 3, 4),
            (form(9, 3, 64, F16, false, false), all, vec![97], 2, 2),
            (form(14, 2, 64, F16, false, true), all, vec![64], 4, 1),
            (form(8, 2, 128, F16, true, true), all, vec![150, 15], 5, 4),
            (form(8, 2, 128, Q8_0, true, true), window(33), vec![131], 2, 2),
            (form(8, 1, 128, F32, true, true), all, vec![67], 3, 1),
            (form(2, 2, 80, F32, false, true), cap(20.0), vec![63], 2, 2),
            (form(4, 2, 96, Q8_0, false, false), window(5), vec![47, 3], 1, 4),
            (
                form(4, 1, 256, F16, true, true),
                Scores { soft_cap: Some(50.0), ..window(40) },
                vec![77],
                3,
                4,
            ),
            (form(2, 1, 80, Q8_0, false, true), all, vec![20], 1, 4),
            (form(16, 1, 64, F32, false, false), all, vec![200], 7, 1),
            (unturned(form(4, 2, 64, F16, true, false)), all, vec![45], 2, 2),
            // A score without a value: one slice and several; a window; sequences that end in a
            // full and in a partial tile.
            (form(8, 2, 64, F16, false, true), sinks, vec![0, 150, 9], 3, 2),
            (
                form(6, 2, 128, Q8_0, true, true),
                Scores { window: Some(33), ..sinks },
                vec![131],
                2,
                2,
            ),
            // Slopes: head counts that are and are not powers of two; groups of heads split over
            // blocks; several slices.
            (unturned(form(8, 8, 64, F16, false, false)), alibi(8.0), vec![200], 4, 4),
            (
                unturned(form(12, 4, 32, F32, false, false)),
                Scores { soft_cap: Some(20.0), ..alibi(8.0) },
                vec![75, 3],
                2,
                1,
            ),
            (
                unturned(form(13, 1, 64, F16, false, false)),
                Scores { sinks: true, ..alibi(4.0) },
                vec![90],
                3,
                4,
            ),
            // Chunks: positions in the first chunk, at the start of a chunk, and after it.
            (form(4, 2, 64, F16, false, false), chunk(32), vec![30, 64, 97], 2, 2),
            (form(4, 2, 64, Q8_0, false, false), chunk(50), vec![149], 3, 4),
            // Keys and values are those of an earlier layer.
            (kept(form(4, 2, 64, F16, true, true)), window(20), vec![0, 33], 2, 2),
            (kept(form(4, 1, 96, Q8_0, false, true)), all, vec![70], 3, 4),
            // Pages: the first and the last position of a page, several pages; slices that end
            // within a page; windows.
            (paged(form(8, 4, 64, F16, false, false)), all, vec![0, 127, 128, 129, 300], 3, 4),
            (paged(form(8, 2, 128, Q8_0, true, true)), window(33), vec![131, 400], 2, 2),
            (paged(form(9, 3, 64, F16, false, false)), all, vec![391], 4, 2),
            (paged(form(2, 1, 80, F32, false, true)), cap(20.0), vec![255, 256], 2, 1),
            (paged(form(4, 1, 96, Q8_0, false, false)), chunk(50), vec![149, 513], 3, 4),
            (paged(kept(form(4, 1, 256, F16, true, true))), all, vec![140], 2, 4),
        ];
        for (form, scores, positions, splits, tile) in tries {
            let lanes = (form.kv.head_dim / 8).next_power_of_two() as u32;
            if lanes > wave {
                continue;
            }
            let tuning =
                Some(AttendTuning::Lanes { wave, block: 2 * wave, tile, blocks_per_unit: 1 });
            let spec = AttendSpec { form, scores, tuning };
            let capacity = positions.iter().max().unwrap_or(&0) + 3;
            let scale = 1.0 / (form.kv.head_dim as f32).sqrt();
            // The number of units that gives this number of slices.
            let units = splits * spec.groups() * positions.len() as u32;
            into.push(case(&spec, target, &Sizes { capacity, positions, units, scale }, random)?);
        }
        // Wide heads: one part of a block and several; chunks for all lanes and for some; ends of
        // tiles and slices.
        let wide = [
            (form(4, 1, 512, F16, true, true), all, vec![0, 31, 32, 70], 2),
            (
                form(8, 1, 512, F16, false, true),
                Scores { soft_cap: Some(30.0), ..window(40) },
                vec![133],
                3,
            ),
            (form(3, 3, 272, F32, false, false), all, vec![67, 5], 2),
            (form(6, 2, 320, Q8_0, true, false), sinks, vec![97], 3),
            (unturned(form(2, 1, 400, F16, false, false)), alibi(8.0), vec![64], 1),
            (kept(form(4, 2, 512, Q8_0, true, true)), chunk(50), vec![149], 4),
            (paged(form(4, 2, 512, F16, true, true)), all, vec![0, 127, 128, 300], 3),
            // More slices than are added together (cases of `latent` have more than a wave has
            // lanes).
            (form(2, 1, 272, F16, false, false), all, vec![287], 9),
        ];
        for (form, scores, positions, splits) in wide {
            let spec = AttendSpec {
                form,
                scores,
                tuning: Some(AttendTuning::Wide { wave, blocks_per_unit: 1 }),
            };
            let capacity = positions.iter().max().unwrap_or(&0) + 3;
            let scale = 1.0 / (form.kv.head_dim as f32).sqrt();
            let units = splits * spec.groups() * positions.len() as u32;
            into.push(case(&spec, target, &Sizes { capacity, positions, units, scale }, random)?);
        }
        // Rings: contexts around a tile of sixteen and around a round of all waves; waves without a
        // tile; groups of one to eight, and of two blocks; scales at odd f16 offsets.
        let rings = [
            // form, scores, positions, splits, waves, stages, least
            (form(4, 2, 64, F16, false, false), all, vec![0, 1, 15, 16, 17], 3, 2, 2, 1),
            (form(9, 3, 64, F16, false, false), all, vec![255, 256, 63], 5, 4, 2, 2),
            (form(14, 2, 64, Q8_0, false, true), all, vec![300, 0, 14], 4, 4, 3, 1),
            (form(8, 2, 128, F16, true, true), all, vec![517, 31], 33, 4, 2, 1),
            (form(8, 2, 128, F16, true, true), all, vec![1000], 16, 8, 2, 16),
            (
                form(8, 1, 128, F16, true, true),
                Scores { soft_cap: Some(30.0), ..window(33) },
                vec![131, 32, 33],
                2,
                4,
                1,
                1,
            ),
            (form(8, 2, 128, Q8_0, true, true), window(200), vec![131, 713], 7, 8, 2, 1),
            (form(8, 2, 128, Q8_0, false, false), all, vec![16, 1023], 9, 4, 4, 4),
            (form(2, 2, 80, F16, false, true), cap(20.0), vec![63, 64], 2, 2, 2, 1),
            (form(6, 3, 80, Q8_0, false, true), all, vec![97, 110, 0], 3, 2, 2, 1),
            (form(5, 5, 96, Q8_0, false, false), window(50), vec![47, 203, 88], 4, 2, 2, 1),
            (form(4, 2, 96, F16, false, false), all, vec![333], 64, 4, 2, 1),
            (unturned(form(4, 2, 64, F16, false, false)), all, vec![45, 16], 2, 2, 2, 1),
            (
                form(4, 1, 256, F16, true, true),
                Scores { soft_cap: Some(50.0), ..window(40) },
                vec![77, 0],
                3,
                2,
                2,
                1,
            ),
            (form(8, 4, 256, F16, true, true), all, vec![401], 5, 4, 1, 1),
            (form(2, 1, 256, Q8_0, false, true), all, vec![20, 290], 3, 4, 2, 2),
            (form(16, 1, 64, F16, false, false), all, vec![200], 7, 4, 2, 1),
            (form(7, 1, 112, Q8_0, false, false), all, vec![66], 2, 4, 2, 1),
            (form(4, 1, 32, F16, false, false), all, vec![66], 2, 4, 2, 1),
            (form(8, 2, 64, F16, false, true), sinks, vec![0, 150, 9, 16], 3, 2, 2, 1),
            (
                form(16, 2, 64, F16, false, true),
                Scores { window: Some(128), ..sinks },
                vec![517, 127],
                4,
                4,
                2,
                1,
            ),
            (
                form(6, 2, 128, Q8_0, true, true),
                Scores { window: Some(33), ..sinks },
                vec![131],
                2,
                4,
                2,
                1,
            ),
            (unturned(form(8, 8, 64, F16, false, false)), alibi(8.0), vec![200, 16], 4, 4, 2, 1),
            (unturned(form(12, 4, 32, F16, false, false)), alibi(8.0), vec![75, 3], 2, 4, 1, 1),
            (
                unturned(form(13, 1, 64, Q8_0, false, false)),
                Scores { sinks: true, ..alibi(4.0) },
                vec![90],
                3,
                4,
                2,
                1,
            ),
            (form(4, 2, 64, F16, false, false), chunk(32), vec![30, 64, 97], 2, 2, 2, 1),
            (form(4, 2, 64, Q8_0, false, false), chunk(50), vec![149, 150], 3, 4, 1, 1),
            (kept(form(4, 2, 64, F16, true, true)), window(20), vec![0, 33, 16], 2, 2, 2, 1),
            (kept(form(4, 1, 96, Q8_0, false, true)), all, vec![70, 15], 3, 4, 2, 1),
            (
                paged(form(8, 4, 64, F16, false, false)),
                all,
                vec![0, 15, 127, 128, 129, 143, 144, 300],
                3,
                2,
                2,
                1,
            ),
            (paged(form(8, 2, 128, F16, true, true)), all, vec![1000, 517, 31], 16, 8, 2, 16),
            (paged(form(32, 8, 128, F16, true, true)), all, vec![2047, 2048, 640], 5, 8, 2, 8),
            (paged(form(8, 2, 128, Q8_0, true, true)), window(200), vec![131, 713], 7, 8, 2, 1),
            (paged(form(6, 3, 80, Q8_0, false, true)), all, vec![97, 383, 0], 3, 2, 2, 1),
            (paged(form(5, 5, 96, Q8_0, false, false)), window(50), vec![47, 203, 129], 4, 2, 2, 1),
            (paged(form(4, 1, 256, F16, true, true)), chunk(200), vec![401, 399], 3, 4, 1, 1),
            (paged(kept(form(7, 1, 112, Q8_0, false, false))), all, vec![266, 127], 2, 4, 2, 1),
            (
                paged(form(16, 2, 64, F16, false, true)),
                Scores { window: Some(128), ..sinks },
                vec![517, 127],
                4,
                4,
                2,
                1,
            ),
        ];
        for (form, scores, positions, splits, waves, stages, least) in rings {
            let tuning = Some(AttendTuning::Rings { waves, stages, least, blocks_per_unit: 1 });
            let spec = AttendSpec { form, scores, tuning };
            if wave != 32 || !spec.covered(target) {
                continue; // a target without these matrix units, or with less shared memory
            }
            let capacity = positions.iter().max().unwrap_or(&0) + 3;
            let scale = 1.0 / (form.kv.head_dim as f32).sqrt();
            // The number of units that gives this number of slices.
            let units = splits * spec.groups() * positions.len() as u32;
            into.push(case(&spec, target, &Sizes { capacity, positions, units, scale }, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let size = Size { tokens: 1, past: CONTEXT - 1 };
        for (heads, kv_heads, head_dim) in HEADS {
            for storage in [KvStorage::F16, KvStorage::Q8_0, KvStorage::F32] {
                let form = heads_form(heads, KvLayout { heads: kv_heads, head_dim, storage });
                let spec = AttendSpec { form, scores: sample_scores(head_dim), tuning: None };
                list.add(
                    format!("attend {heads}/{kv_heads} × {head_dim} {storage:?}"),
                    spec,
                    size,
                )?;
            }
        }
        let form = heads_form(16, KvLayout { heads: 4, head_dim: 512, storage: KvStorage::F16 });
        let spec = AttendSpec { form, scores: Scores::default(), tuning: None };
        list.add("attend 16/4 × 512 F16".to_owned(), spec, size)?;
        for storage in [KvStorage::F16, KvStorage::Q8_0] {
            let form = heads_form(32, KvLayout { heads: 8, head_dim: 128, storage });
            let form = HeadsForm { paged: true, ..form };
            let spec = AttendSpec { form, scores: Scores::default(), tuning: None };
            list.add(format!("attend 32/8 × 128 {storage:?} in pages"), spec, size)?;
        }
        for wave in list.other_waves() {
            for (heads, kv_heads, head_dim) in [(9, 3, 64), (32, 8, 128), (8, 4, 256)] {
                for storage in [KvStorage::F16, KvStorage::Q8_0] {
                    let form = heads_form(heads, KvLayout { heads: kv_heads, head_dim, storage });
                    let spec = AttendSpec { form, scores: Scores::default(), tuning: None };
                    let spec = AttendSpec { tuning: Some(spec.by_lanes(wave)), ..spec };
                    list.add(
                        format!("attend {heads}/{kv_heads} × {head_dim} {storage:?} @ wave {wave}"),
                        spec,
                        size,
                    )?;
                }
            }
        }
        Ok(())
    }
}
