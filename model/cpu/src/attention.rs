//! Attention of a block of queries over the KV cache.
//!
//! A task is one key head, some of the query heads that share it, and some tokens: `m` rows of
//! queries. The past is processed in blocks of `BLOCK_POSITIONS` positions. For each block the task
//! decodes keys and values to f32, computes the scores of all rows, and updates a running maximum,
//! sum and weighted value per row. This is the online softmax (Milakov & Gimelshein 2018, arXiv
//! 1805.02867), in blocks as in FlashAttention (Dao et al. 2022, arXiv 2205.14135). With many rows
//! the task uses the matrix kernel. With few rows, as in decoding, it computes scores one by one:
//! transposing the keys would cost more than it saves. On CPUs with tiles, prompts use
//! [`AttendTiles`].

use super::attend_tiles::AttendTiles;
use super::pool::Pool;
use super::simd::Isa;
use crate::attend::{Attend, Layer};

/// Attention of `rows` tokens. A task is a key head with its query heads and a range of tokens. If
/// there are few such tasks (decoding), a task is a single query head. With `precise`, all values
/// are f32. With `reproducible`, the results of a token are bit for bit equal in any batch.
pub fn attend(
    pool: &mut Pool,
    isa: Isa,
    layer: Layer,
    rows: usize,
    (precise, reproducible): (bool, bool),
) {
    /// Tokens of a task. With three query heads per key head these are 96 rows.
    const TOKENS: usize = 32;
    let key_heads = layer.keys.heads();
    let group = layer.heads / key_heads;
    let token_runs = rows.div_ceil(TOKENS);
    let tiles = isa.has_tiles() && !precise && !reproducible && rows >= TOKENS;
    // Tiles split keys and values once per task, which costs as much as the products. So tasks keep
    // all query heads of a key head, unless there are fewer tasks than threads.
    let wanted = if tiles { pool.threads() } else { 4 * pool.threads() };
    let apart = key_heads * token_runs < wanted;
    let (per_task, tasks) = match apart {
        true => (1, layer.heads * token_runs),
        false => (group, key_heads * token_runs),
    };
    let head_runs = tasks / token_runs;
    pool.run(tasks, &|task| {
        // Later tokens see most positions. Their tasks start first, so that the last tasks are
        // short.
        let token = (token_runs - 1 - task / head_runs) * TOKENS;
        let head = task % head_runs * per_task;
        let tokens = TOKENS.min(rows - token);
        let task = Attend {
            layer,
            key_head: head / group,
            head,
            heads: per_task,
            token,
            tokens,
            reproducible,
        };
        // SAFETY: tasks have different heads or tokens, so no two write the same results.
        unsafe {
            match tiles {
                true => isa.run_tiles(AttendTiles(task)),
                false => isa.run(task),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::KvStore;
    use crate::scratch::Scratch;
    use crate::shared_mut::SharedMut;
    use crate::testing::Rng;
    use kjit_exec::KvType;
    use kjit_graph::op::Mask;

    /// A case: query heads, key heads, elements of a head, tokens in the cache, new tokens, window,
    /// soft cap.
    type Case = (usize, usize, usize, usize, usize, Option<usize>, Option<f32>);

    const CASES: [Case; 9] = [
        (1, 1, 32, 0, 1, None, None),
        (4, 2, 64, 0, 33, None, None),
        (3, 1, 64, 200, 1, None, None),
        (6, 2, 40, 127, 9, Some(24), None),
        (2, 2, 33, 61, 65, Some(1), Some(5.0)),
        (8, 1, 80, 300, 3, Some(129), Some(1.5)),
        (5, 5, 16, 250, 2, None, None),
        (6, 2, 96, 190, 37, None, None),
        (7, 1, 256, 3, 31, Some(200), None),
    ];

    /// Tests all features of a layer, including keys that are also the values. The scratch buffers
    /// are filled with NaN.
    #[test]
    fn attention_tiles_match_f32_for_all_options() {
        let mut rng = Rng::new();
        for (heads, dim, value_dim, before, tokens) in [
            (6, 96, 64, 70, 45),
            (2, 40, 40, 131, 33),
            (5, 33, 20, 0, 70),
            (3, 576, 512, 200, 32),
            (1, 64, 64, 1, 32),
        ] {
            let (end, width) = (before + tokens, 9);
            let x = rng.reals(end * dim);
            let q = rng.reals(tokens * heads * dim);
            let (sinks, slopes) = (
                rng.reals(heads),
                rng.reals(heads).iter().map(|x| x.abs() / 50.0).collect::<Vec<_>>(),
            );
            // Each token sees its own position and earlier ones; some list entries are unused.
            let only: Vec<f32> = (0..tokens)
                .flat_map(|t| (0..width).map(move |i| (before + t) as f32 - (i * i) as f32))
                .map(|position| position.max(-1.0))
                .collect();
            let mut pool = Pool::new(1);
            let mut store = KvStore::new("test", KvType::F32, 1, dim, end).unwrap();
            store.write(&mut pool, Isa::best(), 0, &x);
            for (case, mask) in
                [Mask::Causal, Mask::Chunk(50), Mask::All, Mask::Around(37)].into_iter().enumerate()
            {
                for all in [false, true] {
                    let mut run = |isa: Isa, precise: bool| {
                        let mut out = vec![f32::NAN; tokens * heads * value_dim];
                        let layer = Layer {
                            q: &q,
                            heads,
                            dim,
                            value_dim,
                            first: before,
                            end,
                            keys: &store,
                            values: &store,
                            window: None,
                            mask,
                            until: None,
                            scale: 0.3,
                            soft_cap: (case == 2).then_some(4.0),
                            sinks: all.then_some(&sinks),
                            slopes: all.then_some(&slopes),
                            only: (all && case == 0).then_some((&only, width)),
                            out: SharedMut::new(&mut out),
                        };
                        Scratch::take().parts([1 << 20])[0].fill(f32::NAN);
                        attend(&mut pool, isa, layer, tokens, (precise, false));
                        out
                    };
                    let want = run(Isa::best(), true);
                    for isa in Isa::with_tiles() {
                        for (i, (got, want)) in run(isa, false).iter().zip(&want).enumerate() {
                            let off = (got - want).abs();
                            assert!(
                                off <= 5e-5,
                                "{heads} heads of {dim}, {value_dim}, case {case}, \
                                 all {all}, {} at {i}: got {got}, expected {want}; {rng}",
                                isa.name()
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn attention_tiles_are_identical_for_any_thread_count() {
        let (mut rng, heads, key_heads, dim, before, tokens) = (Rng::new(), 6, 2, 48, 70, 75);
        let end = before + tokens;
        let x = [(); 2].map(|()| rng.reals(end * key_heads * dim));
        let q = rng.reals(tokens * heads * dim);
        for isa in Isa::with_tiles() {
            let mut all = vec![];
            for threads in [1, 3, 9] {
                let mut pool = Pool::new(threads);
                let mut stores = [(); 2]
                    .map(|()| KvStore::new("test", KvType::F16, key_heads, dim, end).unwrap());
                stores.iter_mut().zip(&x).for_each(|(store, x)| store.write(&mut pool, isa, 0, x));
                let mut out = vec![f32::NAN; q.len()];
                let [keys, values] = &stores;
                let layer = Layer {
                    q: &q,
                    heads,
                    dim,
                    value_dim: dim,
                    first: before,
                    end,
                    keys,
                    values,
                    window: None,
                    mask: Mask::Causal,
                    until: None,
                    scale: 0.2,
                    soft_cap: None,
                    sinks: None,
                    slopes: None,
                    only: None,
                    out: SharedMut::new(&mut out),
                };
                attend(&mut pool, isa, layer, tokens, (false, false));
                assert!(
                    out.iter().all(|x| x.is_finite()),
                    "{}, {threads} threads; {rng}",
                    isa.name()
                );
                all.push(out.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
            }
            assert!(all.windows(2).all(|two| two[0] == two[1]), "{}; {rng}", isa.name());
        }
    }

    #[test]
    fn attention_matches_f64_for_all_options_and_odd_sizes() {
        let mut rng = Rng::new();
        for (heads, key_heads, dim, before, tokens, window, soft_cap) in CASES {
            // f16 stores 11 bits of a key or value. q8_0 stores seven bits and a sign, relative to
            // the largest element of the block.
            for (kv, tolerance) in [(KvType::F32, 2e-6), (KvType::F16, 1e-3), (KvType::Q8_0, 2e-2)]
            {
                let others = Isa::available().into_iter().map(|isa| (isa, false));
                for (isa, tiles) in
                    others.chain(Isa::with_tiles().into_iter().map(|isa| (isa, true)))
                {
                    let end = before + tokens;
                    let (k, v) =
                        (rng.reals(end * key_heads * dim), rng.reals(end * key_heads * dim));
                    let mut stores = [(); 2]
                        .map(|()| KvStore::new("test", kv, key_heads, dim, end + 3).unwrap());
                    // Keys and values are written in two calls, each split over three threads.
                    let (mut pool, half) = (Pool::new(3), end / 2 * key_heads * dim);
                    for (store, x) in stores.iter_mut().zip([&k, &v]) {
                        store.write(&mut pool, isa, 0, &x[..half]);
                        store.write(&mut pool, isa, end / 2, &x[half..]);
                    }
                    let q = rng.reals(tokens * heads * dim);
                    let mut out = vec![f32::NAN; q.len()];
                    let [keys, values] = &stores;
                    let scale = 1.0 / (dim as f32).sqrt();
                    let shared = SharedMut::new(&mut out);
                    let layer = Layer {
                        q: &q,
                        heads,
                        dim,
                        value_dim: dim,
                        first: before,
                        end,
                        keys,
                        values,
                        window,
                        mask: Mask::Causal,
                        until: None,
                        scale,
                        soft_cap,
                        sinks: None,
                        slopes: None,
                        only: None,
                        out: shared,
                    };
                    let group = heads / key_heads;
                    for key_head in 0..key_heads {
                        let (head, reproducible) = (key_head * group, false);
                        let all = Attend {
                            layer,
                            key_head,
                            head,
                            heads: group,
                            token: 0,
                            tokens,
                            reproducible,
                        };
                        // SAFETY: only this thread runs, and `out` has a row per token.
                        unsafe {
                            match tiles {
                                true => isa.run_tiles(AttendTiles(all)),
                                false => isa.run(all),
                            }
                        }
                    }
                    for (i, got) in out.iter().enumerate() {
                        let (t, head, j) = (i / (heads * dim), i / dim % heads, i % dim);
                        let last = before + t;
                        let first = window.map_or(0, |w| (last + 1).saturating_sub(w));
                        let at = |p: usize| (p * key_heads + head / group) * dim;
                        let scores: Vec<f64> = (first..=last)
                            .map(|p| {
                                let q = &q[(t * heads + head) * dim..][..dim];
                                let s: f64 = q
                                    .iter()
                                    .zip(&k[at(p)..])
                                    .map(|(a, b)| f64::from(*a) * f64::from(*b))
                                    .sum();
                                let s = s * f64::from(scale);
                                soft_cap
                                    .map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh())
                                    .exp()
                            })
                            .collect();
                        let sum: f64 = scores.iter().sum();
                        let want: f64 = scores
                            .iter()
                            .zip(first..)
                            .map(|(s, p)| s / sum * f64::from(v[at(p) + j]))
                            .sum();
                        let off = (f64::from(*got) - want).abs();
                        let case = (heads, key_heads, dim, before, tokens, window, soft_cap);
                        // Split bf16 is off by 2^-16 of each factor. A score sums `dim` of these
                        // errors, which have both signs.
                        let tolerance = if tiles { tolerance + 2e-5 } else { tolerance };
                        assert!(
                            off <= tolerance,
                            "{case:?} {kv:?} {}, tiles {tiles}, at {i}: \
                             got {got}, expected {want}; {rng}",
                            isa.name()
                        );
                    }
                }
            }
        }
    }
}
