//! Cases and samples of attention for prompts.

use crate::case::{Case, CaseArg, FOLLOWS, floats, input, optional, output, words};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{Storage, Tolerance};
use crate::oracle::{shares, sinks};
use crate::paged::Pages;
use crate::samples::{HEADS, PROMPT, Samples, sample_scores};
use crate::tiled::want_tiled;
use kjit_engine::Target;
use kjit_kernels::flash::{FlashArgs, FlashSpec, FlashTuning};
use kjit_kernels::heads::Scores;
use kjit_kernels::kv::{KvLayout, KvStorage};
use kjit_kernels::{Family, Size, SpecError};

/// Queries, keys, values, probabilities and results are f16.
const ATTENTION: Tolerance = Tolerance {
    norm: 1.5e-3,
    each: 1.5e-2,
    reason: "queries, keys, values and probabilities are f16",
};

/// A case of `spec` with this size; above 256 tokens the oracle computes some of them.
fn case(
    spec: &FlashSpec,
    target: &Target,
    units: u32,
    size: Size,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let Size { tokens, past } = size;
    let (dim, heads, kv) = (spec.kv.head_dim, spec.heads, spec.kv);
    let capacity = past + tokens + 3;
    let q = random.normals(tokens * heads * dim, 1.0);
    let mut caches = [vec![], vec![]];
    let mut rows = [vec![], vec![]];
    for (cache, rows) in caches.iter_mut().zip(&mut rows) {
        *cache = vec![0xff; kv.bytes(capacity).unwrap_or(0)]; // NaN at positions without a token
        for head in 0..kv.heads {
            for position in 0..past + tokens {
                kv.write_row(cache, capacity, head, position, &random.normals(dim, 1.0));
                rows.push(kv.read_row(cache, capacity, head, position));
            }
        }
    }
    let row = |which: usize, head: usize, position: usize| {
        &rows[which][head * (past + tokens) + position]
    };
    let sinks = sinks(&spec.scores, heads, random);
    let mut want = vec![];
    let step = tokens.div_ceil(256).max(1).pow(2);
    for t in 0..tokens {
        if t % step > 0 && t + 1 < tokens {
            want.push(Some(vec![f64::INFINITY; heads * dim]));
            continue;
        }
        let mut out = vec![];
        for h in 0..heads {
            let q = &q[(t * heads + h) * dim..][..dim];
            let here = past + t;
            let (from, weights) = shares(
                &spec.scores,
                (h, heads),
                (here, past + tokens),
                sinks.get(h).copied(),
                |j| {
                    let k = row(0, h / (heads / kv.heads), j);
                    q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum::<f64>()
                        * f64::from(spec.scale)
                },
            );
            let mut mix = vec![0.0; dim];
            for (i, w) in weights.iter().enumerate() {
                let value = row(1, h / (heads / kv.heads), from + i);
                mix.iter_mut().zip(value).for_each(|(m, &v)| *m += w * f64::from(v));
            }
            out.extend(mix);
        }
        want.push(Some(out));
    }
    let pages = spec.paged.then(|| Pages::new(&[past + tokens], capacity, random));
    let [keys, values] = match &pages {
        None => caches,
        Some(pages) => caches.map(|cache| pages.pool(&kv, &cache, capacity)),
    };
    let name = format!(
        "flash {heads}/{} heads of {dim}, {:?}, {tokens} tokens after {past}{}{}, {:?}",
        kv.heads,
        kv.storage,
        spec.scores,
        if spec.paged { ", paged" } else { "" },
        spec.tuning(target)?
    );
    let args = FlashArgs {
        q: floats("q", &q),
        sinks: optional("sinks", &sinks),
        keys: input("keys", keys),
        values: input("values", values),
        y: output("y", Storage::F16, want_tiled(&want, heads * dim), ATTENTION),
        position: input("position", (past as u32).to_le_bytes().to_vec()),
        tokens: FOLLOWS,
        capacity: CaseArg::U32(capacity as u32),
        table: pages.map_or(CaseArg::Null, |pages| words("table", &pages.table)),
    };
    Case::of(name, spec, target, spec.launch(target, units, size)?, args)
}

/// Cases on targets that have products of warp groups.
fn groups(
    spec: &FlashSpec,
    target: &Target,
    tokens: usize,
    past: usize,
    random: &mut Random,
    into: &mut Vec<Case>,
) -> Result<(), SpecError> {
    for keys in [32, 64, 128] {
        let spec = FlashSpec { tuning: Some(FlashTuning::Groups { keys }), ..*spec };
        if spec.tuning(target).is_ok() {
            into.push(case(&spec, target, 1, Size { tokens, past }, random)?);
        }
    }
    Ok(())
}

impl Cases for FlashSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        case(self, target, units, size, random)
    }

    fn cases(
        target: &Target,
        wave: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        use KvStorage::{F16, F32, Q8_0};
        let all = Scores::default();
        let window = |w: usize| Scores { window: Some(w), ..all };
        let cap = |c: f32| Scores { soft_cap: Some(c), ..all };
        let sinks = Scores { sinks: true, ..all };
        let alibi = |most: f32| Scores { alibi: Some(most), ..all };
        let around = |n: usize| Scores { around: Some(n), ..all };
        let chunk = |n: usize| Scores { chunk: Some(n), ..all };
        // Head sizes, storage types, one token and many, a past that is not a multiple of a tile,
        // windows shorter and longer than a tile.
        let shapes = [
            (64, F16, 4, 2, 1, 0, all),
            (64, Q8_0, 4, 2, 65, 31, all),
            (80, F16, 3, 1, 33, 5, window(20)),
            (80, Q8_0, 2, 2, 31, 40, cap(20.0)),
            (96, F16, 2, 1, 63, 0, cap(30.0)),
            (128, F16, 2, 2, 67, 64, window(70)),
            (128, Q8_0, 2, 1, 31, 3, Scores { soft_cap: Some(50.0), ..window(9) }),
            (256, F16, 2, 1, 33, 31, all),
            (256, Q8_0, 1, 1, 9, 100, window(64)),
            (64, F32, 2, 1, 5, 60, all),
            (64, F16, 4, 2, 65, 31, sinks),
            (64, Q8_0, 4, 1, 33, 70, Scores { window: Some(40), ..sinks }),
            (64, F16, 6, 6, 37, 40, alibi(8.0)),
            (80, Q8_0, 3, 1, 40, 9, Scores { sinks: true, ..alibi(4.0) }),
            (64, F16, 2, 1, 67, 35, chunk(48)),
            (128, Q8_0, 2, 1, 33, 64, chunk(32)),
            (64, F16, 2, 1, 131, 0, around(Scores::ALL)),
            (64, F16, 6, 6, 70, 0, Scores { around: Some(Scores::ALL), ..alibi(8.0) }),
            (80, Q8_0, 2, 2, 97, 0, around(13)),
            (256, F16, 1, 1, 45, 0, around(Scores::ALL)),
            (512, F16, 2, 1, 33, 31, all),
            (512, Q8_0, 1, 1, 9, 100, window(64)),
            (320, F16, 2, 2, 17, 40, cap(30.0)),
        ];
        // In pages: a context that ends at the end of a page, inside a page, an empty context; a
        // window that begins in an earlier page.
        let in_pages = [
            (64, F16, 8, 4, 65, 128, all),
            (64, Q8_0, 2, 1, 37, 260, all),
            (80, Q8_0, 3, 1, 131, 5, window(70)),
            (96, F16, 2, 1, 150, 0, cap(30.0)),
            (128, F16, 2, 2, 67, 120, window(70)),
            (256, F16, 2, 1, 33, 131, all),
            (64, F32, 2, 1, 9, 125, all),
            (512, F16, 1, 1, 20, 131, all),
        ];
        let with = shapes
            .map(|shape| (shape, false))
            .into_iter()
            .chain(in_pages.map(|shape| (shape, true)));
        for ((dim, storage, heads, kv_heads, tokens, past, scores), paged) in with {
            let kv = KvLayout { heads: kv_heads, head_dim: dim, storage };
            let scale = 1.0 / (dim as f32).sqrt();
            let tuning = Some(FlashTuning::waves(target, wave, &kv));
            let spec = FlashSpec { heads, kv, scale, scores, paged, tuning };
            // Without matrix units wide heads do not fit in the memory of a block.
            if dim <= 256 || spec.covered(target) {
                into.push(case(&spec, target, 1, Size { tokens, past }, random)?);
            }
            groups(&spec, target, tokens, past, random, into)?;
        }
        // More tokens than the 128 of warp groups, with lengths and pasts that are not multiples of
        // a tile, for every head size that warp groups support.
        let more = [
            (64, F16, 4, 2, 257, 77, window(100)),
            (64, Q8_0, 2, 2, 131, 0, cap(30.0)),
            (80, F16, 3, 1, 193, 5, all),
            (80, Q8_0, 5, 5, 131, 67, window(70)),
            (96, F16, 2, 1, 129, 131, cap(50.0)),
            (96, Q8_0, 3, 3, 200, 1, all),
            (128, F16, 2, 1, 321, 129, all),
            (128, Q8_0, 2, 1, 127, 191, Scores { soft_cap: Some(20.0), ..window(150) }),
            (256, F16, 2, 1, 191, 65, cap(50.0)),
            (256, F16, 1, 1, 130, 300, window(133)),
            (256, Q8_0, 2, 2, 150, 33, all),
            (64, F16, 4, 2, 257, 77, Scores { window: Some(128), ..sinks }),
            (64, Q8_0, 2, 2, 131, 0, sinks),
            (96, F16, 3, 3, 193, 5, alibi(8.0)),
            (128, Q8_0, 5, 5, 131, 67, Scores { sinks: true, ..alibi(4.0) }),
            (128, F16, 2, 1, 321, 129, chunk(200)),
            (64, Q8_0, 2, 1, 200, 64, chunk(64)),
        ];
        let more_in_pages = [
            (64, F16, 4, 2, 257, 77, window(100)),
            (64, Q8_0, 2, 2, 131, 0, cap(30.0)),
            (80, F16, 3, 1, 193, 5, all),
            (96, Q8_0, 3, 3, 200, 1, all),
            (128, F16, 2, 1, 321, 129, all),
            (128, Q8_0, 2, 1, 127, 191, window(150)),
            (256, F16, 1, 1, 130, 300, window(133)),
            (256, Q8_0, 2, 2, 150, 33, all),
        ];
        let with = more
            .map(|shape| (shape, false))
            .into_iter()
            .chain(more_in_pages.map(|shape| (shape, true)));
        for ((dim, storage, heads, kv_heads, tokens, past, scores), paged) in with {
            let kv = KvLayout { heads: kv_heads, head_dim: dim, storage };
            let spec = FlashSpec {
                heads,
                kv,
                scale: 1.0 / (dim as f32).sqrt(),
                scores,
                paged,
                tuning: None,
            };
            if wave == 32 {
                groups(&spec, target, tokens, past, random, into)?;
            }
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let size = Size { tokens: PROMPT, past: 0 };
        for (heads, kv_heads, head_dim) in HEADS {
            for storage in [KvStorage::F16, KvStorage::Q8_0, KvStorage::F32] {
                let kv = KvLayout { heads: kv_heads, head_dim, storage };
                let (scale, scores) = (1.0 / (head_dim as f32).sqrt(), sample_scores(head_dim));
                let spec = FlashSpec { heads, kv, scale, scores, paged: false, tuning: None };
                list.add(format!("flash {heads}/{kv_heads} × {head_dim} {storage:?}"), spec, size)?;
            }
        }
        let kv = KvLayout { heads: 4, head_dim: 512, storage: KvStorage::F16 };
        let spec = FlashSpec {
            heads: 16,
            kv,
            scale: 0.05,
            scores: Scores::default(),
            paged: false,
            tuning: None,
        };
        if spec.covered(list.target) {
            list.add("flash 16/4 × 512 F16".to_owned(), spec, size)?;
        }
        for storage in [KvStorage::F16, KvStorage::Q8_0] {
            let (kv, scores) = (KvLayout { heads: 8, head_dim: 128, storage }, Scores::default());
            let spec = FlashSpec { heads: 32, kv, scale: 0.1, scores, paged: true, tuning: None };
            list.add(format!("flash 32/8 × 128 {storage:?} in pages"), spec, size)?;
        }
        for wave in list.other_waves() {
            for (heads, kv_heads, head_dim) in [(9, 3, 64), (32, 8, 128), (8, 4, 256)] {
                for storage in [KvStorage::F16, KvStorage::Q8_0] {
                    let kv = KvLayout { heads: kv_heads, head_dim, storage };
                    let scale = 1.0 / (head_dim as f32).sqrt();
                    let tuning = Some(FlashTuning::waves(list.target, wave, &kv));
                    let spec = FlashSpec {
                        heads,
                        kv,
                        scale,
                        scores: Scores::default(),
                        paged: false,
                        tuning,
                    };
                    list.add(
                        format!("flash {heads}/{kv_heads} × {head_dim} {storage:?} @ wave {wave}"),
                        spec,
                        size,
                    )?;
                }
            }
        }
        Ok(())
    }
}
