//! Cases of attention: positions at the ends of tiles and slices, all storages, groups and head sizes.

use super::{Case, CaseArg, Expect, HALF, Random, SINGLE, Storage, Tolerance, floats, output, words};
use crate::attend::{AttendSpec, AttendTuning, HeadsForm, RopeForm, RopeKvSpec, angles};
use crate::kernel::SpecError;
use crate::kv::{KvLayout, KvStorage};
use kjit_engine::Target;

const EPS: f32 = 1e-6;

/// Exponentials of the hardware and sums in f32.
const ATTENTION: Tolerance =
    Tolerance { norm: 1e-5, each: 1e-4, reason: "scores and exponentials in single precision" };

fn storage_tolerance(storage: KvStorage) -> Tolerance {
    match storage {
        KvStorage::F32 => ATTENTION,
        // One new key and value are rounded; a tie may fall to the other side than the oracle's.
        KvStorage::F16 => {
            Tolerance { norm: 5e-4, each: 2e-3, reason: "the new key and value are rounded to half precision" }
        }
        KvStorage::Q8_0 => Tolerance { norm: 5e-3, each: 2e-2, reason: "the new key and value are rounded to 8 bits" },
    }
}

/// Norm and rotation of a head, in f64.
fn ready(form: &HeadsForm, x: &[f32], norm: &[f32], table: &[f32], position: usize) -> Vec<f64> {
    let mut v: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    if form.qk_norm {
        let mean = v.iter().map(|x| x * x).sum::<f64>() / v.len() as f64;
        let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
        v.iter_mut().zip(norm).for_each(|(x, &w)| *x *= scale * f64::from(w));
    }
    for i in 0..form.rope.dims / 2 {
        let at = 2 * (position * form.rope.dims / 2 + i);
        let (c, s) = (f64::from(table[at]), f64::from(table[at + 1]));
        let (a, b) = if form.rope.halves { (i, i + form.rope.dims / 2) } else { (2 * i, 2 * i + 1) };
        (v[a], v[b]) = (v[a] * c - v[b] * s, v[a] * s + v[b] * c);
    }
    v
}

fn singles(v: &[f64]) -> Vec<f32> {
    v.iter().map(|&x| x as f32).collect()
}

/// What one launch is tried with.
pub(super) struct Sizes {
    /// Positions that the cache has.
    pub capacity: usize,
    /// Tokens before the new one, a number per sequence.
    pub positions: Vec<usize>,
    /// Slices of the context.
    pub splits: u32,
    /// Factor on scores.
    pub scale: f32,
}

pub(super) fn attend(
    spec: &AttendSpec,
    target: &Target,
    sizes: &Sizes,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let form = &spec.form;
    let (kv, dim, n) = (form.kv, form.kv.head_dim, sizes.positions.len());
    let kernel = spec.kernel(target)?;
    let bytes = kv.bytes(sizes.capacity).unwrap_or(0);
    let table = angles(
        &(0..form.rope.dims / 2).map(|i| 10000f64.powf(-2.0 * i as f64 / form.rope.dims as f64)).collect::<Vec<_>>(),
        1.0,
        sizes.capacity,
    );
    let (q, k, v) = (
        random.normals(n * form.heads * dim, 1.5),
        random.normals(n * kv.heads * dim, 1.5),
        random.normals(n * kv.heads * dim, 1.0),
    );
    let norms = if form.qk_norm { [random.normals(dim, 1.0), random.normals(dim, 1.0)] } else { [vec![], vec![]] };
    // Several sequences lie in places of another order, with one place free. Positions behind the end are poisoned: whoever reads them
    // shows it.
    let places = if n > 1 { n + 1 } else { n };
    let slots: Vec<usize> = (0..n).map(|s| places - 1 - s).collect();
    let mut before = [vec![0xffu8; places * bytes], vec![0xffu8; places * bytes]];
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
        let first = spec.window.map_or(0, |w| (here + 1).saturating_sub(w));
        for head in 0..form.heads {
            let kv_head = head / (form.heads / kv.heads);
            let at = (s * form.heads + head) * dim;
            let query = ready(form, &q[at..at + dim], &norms[0], &table, here);
            let scores: Vec<f64> = (first..=here)
                .map(|p| {
                    let key = kv.read_row(&all_keys, sizes.capacity, kv_head, p);
                    let s =
                        f64::from(sizes.scale) * query.iter().zip(&key).map(|(a, &b)| a * f64::from(b)).sum::<f64>();
                    spec.soft_cap.map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh())
                })
                .collect();
            let most = scores.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
            let shares: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let sum: f64 = shares.iter().sum();
            let mut out = vec![0.0; dim];
            for (p, share) in (first..=here).zip(&shares) {
                let value = kv.read_row(&all_values, sizes.capacity, kv_head, p);
                out.iter_mut().zip(&value).for_each(|(o, &v)| *o += share / sum * f64::from(v));
            }
            want.extend(out);
        }
    }
    let optional = |name, v: &[f32]| if v.is_empty() { CaseArg::Null } else { floats(name, v) };
    // The new rows are compared through what comes of them; rows before must be as they were, which the result shows too.
    let [keys, values] = before;
    let cache = |name, before| CaseArg::Buffer { name, before, expect: Expect::Anything };
    let part = vec![0xff; spec.part_bytes(sizes.splits, n as u32)];
    let counters = vec![0; 4 * spec.counters(n as u32)];
    let mut geometry = kernel.launch(1);
    geometry.grid = spec.geometry(target, sizes.splits, n as u32)?.grid;
    let positions: Vec<u32> = sizes.positions.iter().map(|&p| p as u32).collect();
    let mut by_place = vec![u32::MAX; places];
    slots.iter().zip(&positions).for_each(|(&slot, &p)| by_place[slot] = p);
    let slots: Vec<u32> = slots.iter().map(|&s| s as u32).collect();
    let t = spec.tuning(target)?;
    Ok(Case {
        name: format!(
            "attend {}/{} heads of {dim}, {:?}, norm {}, window {:?}, cap {:?}, positions {positions:?}, {} splits, {t:?}",
            form.heads, kv.heads, kv.storage, form.qk_norm, spec.window, spec.soft_cap, sizes.splits
        ),
        kernel,
        geometry,
        args: vec![
            floats("q", &q),
            floats("k", &k),
            floats("v", &v),
            optional("q_norm", &norms[0]),
            optional("k_norm", &norms[1]),
            floats("angles", &table),
            if n > 1 { words("slots", &slots) } else { CaseArg::Null },
            words("position", &by_place),
            cache("keys", keys),
            cache("values", values),
            CaseArg::Buffer { name: "part", before: part, expect: Expect::Anything },
            CaseArg::Buffer { name: "counters", before: counters, expect: Expect::Same },
            output("out", Storage::F32, want, storage_tolerance(kv.storage)),
            CaseArg::F32(sizes.scale),
            CaseArg::F32(EPS),
            CaseArg::U32(sizes.capacity as u32),
            CaseArg::U32(sizes.splits),
            CaseArg::U64(bytes as u64),
        ],
    })
}

/// A case of `tokens` tokens behind `start`, in a cache of `capacity`.
pub(super) fn rope_kv(
    spec: &RopeKvSpec,
    target: &Target,
    (wave, [tokens, start, capacity]): (u32, [usize; 3]),
    random: &mut Random,
) -> Result<Case, SpecError> {
    let form = &spec.form;
    let (kv, dim) = (form.kv, form.kv.head_dim);
    let kernel = spec.kernel_at(target, wave)?;
    let table = angles(&(0..form.rope.dims / 2).map(|i| 0.7f64.powi(i as i32)).collect::<Vec<_>>(), 1.25, capacity);
    let q = random.normals(tokens * form.heads * dim, 1.5);
    let (k, v) = (random.normals(tokens * kv.heads * dim, 1.5), random.normals(tokens * kv.heads * dim, 1.0));
    let norms = if form.qk_norm { [random.normals(dim, 1.0), random.normals(dim, 1.0)] } else { [vec![], vec![]] };
    let mut turned = vec![];
    for t in 0..tokens {
        for head in 0..form.heads {
            turned.extend(ready(form, &q[(t * form.heads + head) * dim..][..dim], &norms[0], &table, start + t));
        }
    }
    // Keys and values, in a cache of singles or halves, straight from the oracle; rows of other positions stay poisoned.
    let (storage, size, tolerance) = match kv.storage {
        KvStorage::F32 => (Storage::F32, 4, SINGLE),
        KvStorage::F16 | KvStorage::Q8_0 => (Storage::F16, 2, HALF),
    };
    let elements = kv.bytes(capacity).unwrap_or(0) / size;
    let mut want = [vec![f64::NAN; elements], vec![f64::NAN; elements]];
    for t in 0..tokens {
        // Bytes with scales are held against the oracle where they are read, in the cases of attention.
        for head in 0..if kv.storage == KvStorage::Q8_0 { 0 } else { kv.heads } {
            let at = (t * kv.heads + head) * dim;
            let row = (head * capacity + start + t) * dim;
            want[0][row..row + dim].copy_from_slice(&ready(form, &k[at..at + dim], &norms[1], &table, start + t));
            want[1][row..row + dim].iter_mut().zip(&v[at..at + dim]).for_each(|(w, &v)| *w = f64::from(v));
        }
    }
    let optional = |name, v: &[f32]| if v.is_empty() { CaseArg::Null } else { floats(name, v) };
    let [keys, values] = want;
    let bytes = kv.bytes(capacity).unwrap_or(0);
    let rows = |name, want| match kv.storage {
        KvStorage::Q8_0 => CaseArg::Buffer { name, before: vec![0xff; bytes], expect: Expect::Anything },
        KvStorage::F16 | KvStorage::F32 => output(name, storage, want, tolerance),
    };
    let mut geometry = kernel.launch(1);
    geometry.grid = spec.geometry(target, tokens as u32)?.grid;
    Ok(Case {
        name: format!(
            "rope_kv {}/{} heads of {dim}, {:?}, {:?}, half {}, wave {wave}",
            form.heads, kv.heads, kv.storage, form.rope, spec.half
        ),
        geometry,
        kernel,
        args: vec![
            floats("q", &q),
            floats("k", &k),
            floats("v", &v),
            optional("q_norm", &norms[0]),
            optional("k_norm", &norms[1]),
            floats("angles", &table),
            words("position", &[start as u32]),
            rows("keys", keys),
            rows("values", values),
            if spec.half {
                output("turned", Storage::F16, turned, HALF)
            } else {
                output("turned", Storage::F32, turned, SINGLE)
            },
            CaseArg::F32(EPS),
            CaseArg::U32(capacity as u32),
        ],
    })
}

pub(super) fn cases(target: &Target, wave: u32, random: &mut Random, into: &mut Vec<Case>) -> Result<(), SpecError> {
    let form = |heads, kv_heads, head_dim, storage, qk_norm, halves| HeadsForm {
        heads,
        kv: KvLayout { heads: kv_heads, head_dim, storage },
        qk_norm,
        rope: RopeForm { dims: if head_dim == 80 { 32 } else { head_dim }, halves },
    };
    use KvStorage::{F16, F32, Q8_0};
    let tries = [
        // form, window, cap, positions, splits, tile; singles at the tiles that plans give them, since more spill on AMD
        (form(4, 2, 64, F16, false, false), None, None, vec![0, 1, 30], 3, 4),
        (form(9, 3, 64, F16, false, false), None, None, vec![97], 2, 2),
        (form(14, 2, 64, F16, false, true), None, None, vec![64], 4, 1),
        (form(8, 2, 128, F16, true, true), None, None, vec![150, 15], 5, 4),
        (form(8, 2, 128, Q8_0, true, true), Some(33), None, vec![131], 2, 2),
        (form(8, 1, 128, F32, true, true), None, None, vec![67], 3, 1),
        (form(2, 2, 80, F32, false, true), None, Some(20.0), vec![63], 2, 2),
        (form(4, 2, 96, Q8_0, false, false), Some(5), None, vec![47, 3], 1, 4),
        (form(4, 1, 256, F16, true, true), Some(40), Some(50.0), vec![77], 3, 4),
        (form(2, 1, 80, Q8_0, false, true), None, None, vec![20], 1, 4),
        (form(16, 1, 64, F32, false, false), None, None, vec![200], 7, 1),
    ];
    for (form, window, soft_cap, positions, splits, tile) in tries {
        let lanes = (form.kv.head_dim / 8).next_power_of_two() as u32;
        if lanes > wave {
            continue;
        }
        let tuning = Some(AttendTuning::Lanes { wave, block: 2 * wave, tile, blocks_per_unit: 1 });
        let spec = AttendSpec { form, window, soft_cap, tuning };
        let capacity = positions.iter().max().unwrap_or(&0) + 3;
        let scale = 1.0 / (form.kv.head_dim as f32).sqrt();
        into.push(attend(&spec, target, &Sizes { capacity, positions, splits, scale }, random)?);
    }
    // The same by rings: contexts around a tile of sixteen, around a round of all waves, with blocks that have no tile for some waves;
    // groups of one to eight, and of two blocks; scales at odd halves.
    let rings = [
        // form, window, cap, positions, splits, waves, stages, least
        (form(4, 2, 64, F16, false, false), None, None, vec![0, 1, 15, 16, 17], 3, 2, 2, 1),
        (form(9, 3, 64, F16, false, false), None, None, vec![255, 256, 63], 5, 4, 2, 2),
        (form(14, 2, 64, Q8_0, false, true), None, None, vec![300, 0, 14], 4, 4, 3, 1),
        (form(8, 2, 128, F16, true, true), None, None, vec![517, 31], 33, 4, 2, 1),
        (form(8, 2, 128, F16, true, true), None, None, vec![1000], 16, 8, 2, 16),
        (form(8, 1, 128, F16, true, true), Some(33), Some(30.0), vec![131, 32, 33], 2, 4, 1, 1),
        (form(8, 2, 128, Q8_0, true, true), Some(200), None, vec![131, 713], 7, 8, 2, 1),
        (form(8, 2, 128, Q8_0, false, false), None, None, vec![16, 1023], 9, 4, 4, 4),
        (form(2, 2, 80, F16, false, true), None, Some(20.0), vec![63, 64], 2, 2, 2, 1),
        (form(6, 3, 80, Q8_0, false, true), None, None, vec![97, 110, 0], 3, 2, 2, 1),
        (form(5, 5, 96, Q8_0, false, false), Some(50), None, vec![47, 203, 88], 4, 2, 2, 1),
        (form(4, 2, 96, F16, false, false), None, None, vec![333], 64, 4, 2, 1),
        (form(4, 1, 256, F16, true, true), Some(40), Some(50.0), vec![77, 0], 3, 2, 2, 1),
        (form(8, 4, 256, F16, true, true), None, None, vec![401], 5, 4, 1, 1),
        (form(2, 1, 256, Q8_0, false, true), None, None, vec![20, 290], 3, 4, 2, 2),
        (form(16, 1, 64, F16, false, false), None, None, vec![200], 7, 4, 2, 1),
        (form(7, 1, 112, Q8_0, false, false), None, None, vec![66], 2, 4, 2, 1),
        (form(4, 1, 32, F16, false, false), None, None, vec![66], 2, 4, 2, 1),
    ];
    for (form, window, soft_cap, positions, splits, waves, stages, least) in rings {
        let tuning = Some(AttendTuning::Rings { waves, stages, least, blocks_per_unit: 1 });
        let spec = AttendSpec { form, window, soft_cap, tuning };
        if wave != 32 || spec.kernel(target).is_err() {
            continue; // a target without these matrix units, or with less shared memory
        }
        let capacity = positions.iter().max().unwrap_or(&0) + 3;
        let scale = 1.0 / (form.kv.head_dim as f32).sqrt();
        into.push(attend(&spec, target, &Sizes { capacity, positions, splits, scale }, random)?);
    }
    into.push(rope_kv(
        &RopeKvSpec { form: form(5, 1, 64, F16, false, false), half: true },
        target,
        (wave, [5, 3, 11]),
        random,
    )?);
    into.push(rope_kv(
        &RopeKvSpec { form: form(4, 2, 80, F32, true, true), half: false },
        target,
        (wave, [5, 3, 11]),
        random,
    )?);
    into.push(rope_kv(
        &RopeKvSpec { form: form(2, 2, 256, F32, true, false), half: true },
        target,
        (wave, [5, 3, 11]),
        random,
    )?);
    Ok(())
}
