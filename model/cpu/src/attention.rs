//! Attention of a block of queries over the KV cache.
//!
//! A task is one key head, some of the query heads that share it, and some tokens: `m` rows of
//! queries. It goes through the past in blocks of `KEYS` positions. For each block it decodes keys
//! and values to f32, computes the scores of all rows, and updates a running maximum, sum and
//! weighted value per row: the online softmax (Milakov & Gimelshein 2018, arXiv 1805.02867), in
//! blocks as in FlashAttention (Dao et al. 2022, arXiv 2205.14135). With many rows it uses the
//! matrix kernel. With few rows, as in decoding, it computes scores one by one, since transposing
//! the keys would cost more than it saves. On CPUs with tiles, prompts use [`AttendTiles`].

use super::attend_tiles::AttendTiles;
use super::gemm::{Tile, transpose_panel};
use super::kv::KvStore;
use super::matvec::dot;
use super::pool::Pool;
use super::scratch::Scratch;
use super::shared_mut::SharedMut;
use super::simd::{Isa, Job, LANES, Vector};
use kjit_graph::op::Mask;

/// Positions in a block. With heads of 64 elements, keys and values take 32 KiB each.
pub(super) const KEYS: usize = 128;

/// Minimum number of rows for the matrix kernel.
const MANY: usize = 6;

/// The data that all tasks of one attention operation share.
#[derive(Clone, Copy)]
pub struct Layer<'a> {
    /// Queries, a row of `heads · dim` per token.
    pub q: &'a [f32],
    pub heads: usize,
    /// Elements of a key.
    pub dim: usize,
    /// Elements of a value. For a latent, whose rows are both key and value, the first elements of
    /// the row.
    pub value_dim: usize,
    /// Position of the first row of `q`.
    pub first: usize,
    /// Number of positions.
    pub end: usize,
    pub keys: &'a KvStore,
    pub values: &'a KvStore,
    /// Width of the window in positions, the token's own included.
    pub window: Option<usize>,
    pub mask: Mask,
    pub scale: f32,
    pub soft_cap: Option<f32>,
    /// The attention sink: one score per head without a value.
    pub sinks: Option<&'a [f32]>,
    /// ALiBi: the slope of each head, subtracted from a score per position of distance.
    pub slopes: Option<&'a [f32]>,
    /// The only visible positions, this many per token; negative entries are unused.
    pub only: Option<(&'a [f32], usize)>,
    /// A row of `heads · value_dim` per token.
    pub out: SharedMut<'a>,
}

/// Query heads `head .. head + heads`, all on key head `key_head`, for tokens `token .. token +
/// tokens`.
pub struct Attend<'a> {
    pub layer: Layer<'a>,
    pub key_head: usize,
    pub head: usize,
    pub heads: usize,
    pub token: usize,
    pub tokens: usize,
    /// Blocks of positions begin at fixed multiples, and all numbers of rows use one kernel, so
    /// that results do not depend on the batch.
    pub reproducible: bool,
}

/// Floats of the running softmax state of a row: maximum and sum.
pub(super) const STATE: usize = 2;

/// The layout of rows of `width` elements (a multiple of 32). `together` rows are stored
/// interleaved by runs of 32 elements, as the sums of tiles are; 1 means each row is contiguous.
#[derive(Clone, Copy)]
pub(super) struct RowLayout {
    pub together: usize,
    pub width: usize,
}

impl RowLayout {
    /// Offset of row `i`.
    #[inline(always)]
    pub fn row(self, i: usize) -> usize {
        i / self.together * self.together * self.width + i % self.together * LANES
    }

    /// Offset of element `j` within its row.
    #[inline(always)]
    pub fn element(self, j: usize) -> usize {
        j / LANES * self.together * LANES + j % LANES
    }
}

impl Job for Attend<'_> {
    type Out = ();

    /// Also requires: `layer.out` is valid for one row per row of `layer.q`, and no other thread
    /// uses the results of these heads and tokens.
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Layer { dim, value_dim, .. } = self.layer;
        let m = self.tokens * self.heads;
        let padded = value_dim.next_multiple_of(LANES);
        let mut scratch = Scratch::take();
        let [q, k, panel, v, s, acc, state] = scratch.parts([
            m * dim,
            KEYS * dim,
            LANES * dim,
            KEYS * padded,
            m * KEYS,
            m * padded,
            m * STATE,
        ]);
        for (i, q) in q.chunks_exact_mut(dim).enumerate() {
            self.query(i, q);
        }
        acc.fill(0.0);
        v.fill(0.0);
        self.begin(state);
        let end = self.seen_to(self.token + self.tokens - 1);
        let mut at = self.begins_at();
        while at < end {
            let n = KEYS.min(end - at);
            let n32 = n.next_multiple_of(LANES);
            // SAFETY: the caller guarantees the instruction set; the buffers cut above hold KEYS
            // rows of keys and values, and m rows of KEYS scores and of padded results.
            unsafe {
                self.layer.keys.rows(self.key_head, at, n).decode::<V>(k, dim);
                self.layer
                    .values
                    .rows(self.key_head, at, n)
                    .short(value_dim)
                    .decode::<V>(v, padded);
                if m >= MANY || self.reproducible {
                    // Rows past n hold old keys or zeros; their scores are masked.
                    s.fill(0.0);
                    for j in (0..n32).step_by(LANES) {
                        transpose_panel::<V>(&k[j * dim..], dim, panel);
                        let (a, b, c) = (q.as_ptr(), panel.as_ptr(), s.as_mut_ptr().add(j));
                        Tile { n: dim, a, a_stride: dim, b, b_stride: LANES, c, c_stride: KEYS }
                            .rows::<V>(m);
                    }
                } else {
                    for (q, s) in q.chunks_exact(dim).zip(s.chunks_exact_mut(KEYS)) {
                        for (k, s) in k.chunks_exact(dim).zip(&mut s[..n]) {
                            *s = dot::<V>(q, k);
                        }
                    }
                }
                self.softmax_block::<V>(at, n, (s, alone(KEYS)), (acc, alone(padded)), state);
                for j in (0..padded).step_by(LANES) {
                    let (a, b, c) = (s.as_ptr(), v.as_ptr().add(j), acc.as_mut_ptr().add(j));
                    Tile { n, a, a_stride: KEYS, b, b_stride: padded, c, c_stride: padded }
                        .rows::<V>(m);
                }
            }
            at += n;
        }
        // SAFETY: the caller guarantees that `layer.out` has room for these results and no other
        // thread writes them.
        unsafe { self.scatter(acc, alone(padded), state) };
    }
}

impl Attend<'_> {
    /// The first position of the first block. If `reproducible`, it is a multiple of KEYS, so that
    /// it does not depend on the task's tokens. Positions that a token does not see do not change
    /// its results.
    pub(super) fn begins_at(&self) -> usize {
        let first = self.seen_from(self.token);
        if self.reproducible { first / KEYS * KEYS } else { first }
    }

    /// The first position that a token sees.
    pub(super) fn seen_from(&self, token: usize) -> usize {
        let own = self.layer.first + token;
        match self.layer.mask {
            Mask::Causal => self.layer.window.map_or(0, |w| (own + 1).saturating_sub(w)),
            Mask::Chunk(n) => own / n * n,
            Mask::All => 0,
            Mask::Around(n) => own.saturating_sub(n / 2),
        }
    }

    /// One past the last position that a token sees.
    pub(super) fn seen_to(&self, token: usize) -> usize {
        let own = self.layer.first + token;
        match self.layer.mask {
            Mask::Causal | Mask::Chunk(_) => own + 1,
            Mask::All => self.layer.end,
            Mask::Around(n) => (own + n / 2 + 1).min(self.layer.end),
        }
    }

    /// Index of row `i` of the task among the heads of all tokens.
    fn place(&self, i: usize) -> usize {
        let (token, head) = (self.token + i / self.heads, self.head + i % self.heads);
        token * self.layer.heads + head
    }

    /// Writes the scaled query of row `i`. Elements past its end are left unchanged.
    #[inline(always)]
    pub(super) fn query(&self, i: usize, to: &mut [f32]) {
        let from = &self.layer.q[self.place(i) * self.layer.dim..][..self.layer.dim];
        to.iter_mut().zip(from).for_each(|(q, x)| *q = x * self.layer.scale);
    }

    /// Turns the scores of `n` positions from `at` on into softmax weights, up to the next multiple
    /// of 64, and rescales running maxima, sums and results.
    ///
    /// # Safety
    /// The CPU has `V`'s instruction set, as for [`Job::run`].
    #[inline(always)]
    pub(super) unsafe fn softmax_block<V: Vector>(
        &self,
        at: usize,
        n: usize,
        (scores, lie): (&mut [f32], RowLayout),
        (results, results_lie): (&mut [f32], RowLayout),
        state: &mut [f32],
    ) {
        let whole = n.next_multiple_of(2 * LANES);
        for (i, [largest, sum]) in state.as_chunks_mut::<STATE>().0.iter_mut().enumerate() {
            let (s, acc) = (&mut scores[lie.row(i)..], &mut results[results_lie.row(i)..]);
            let token = self.token + i / self.heads;
            let (from, to) = (self.seen_from(token).saturating_sub(at), self.seen_to(token));
            let (from, to) = (from.min(n), to.saturating_sub(at).min(n));
            assert!(
                lie.element(whole - 1) < s.len()
                    && results_lie.element(results_lie.width - 1) < acc.len()
            );
            // SAFETY: the caller guarantees the instruction set; the assertion above shows that
            // runs of 32 below `whole` are in `s`, and those of a row of results in `acc`.
            unsafe {
                if let Some(cap) = self.layer.soft_cap {
                    for j in (0..whole).step_by(LANES) {
                        let p = s.as_mut_ptr().add(lie.element(j));
                        soft_cap(V::load(p), cap).store(p);
                    }
                }
                if let Some(slopes) = self.layer.slopes {
                    let (slope, own) =
                        (slopes[self.head + i % self.heads], self.layer.first + token);
                    for j in 0..n {
                        s[lie.element(j)] -= slope * own.abs_diff(at + j) as f32;
                    }
                }
                if let Some((all, width)) = self.layer.only {
                    let mut seen = [false; KEYS];
                    for &position in &all[token * width..][..width] {
                        let j = position as usize;
                        if position >= 0.0 && (at..at + n).contains(&j) {
                            seen[j - at] = true;
                        }
                    }
                    (0..n)
                        .filter(|j| !seen[*j])
                        .for_each(|j| s[lie.element(j)] = f32::NEG_INFINITY);
                }
                for j in (0..from).chain(to.max(from)..whole) {
                    s[lie.element(j)] = f32::NEG_INFINITY;
                }
                let mut m = V::splat(*largest);
                for j in (0..whole).step_by(LANES) {
                    m = V::load(s.as_ptr().add(lie.element(j))).max(m);
                }
                let m = m.largest();
                if m == f32::NEG_INFINITY {
                    // No position is visible yet.
                    for j in (0..whole).step_by(LANES) {
                        V::splat(0.0).store(s.as_mut_ptr().add(lie.element(j)));
                    }
                    continue;
                }
                let mut total = V::splat(0.0);
                for j in (0..whole).step_by(LANES) {
                    let p = s.as_mut_ptr().add(lie.element(j));
                    let e = V::load(p).sub(V::splat(m)).exp();
                    e.store(p);
                    total = total.add(e);
                }
                if self.reproducible {
                    // `exp` of the least score is not exactly 0, and values of masked positions
                    // must not matter.
                    (0..from).chain(to.max(from)..whole).for_each(|j| s[lie.element(j)] = 0.0);
                }
                if m != *largest {
                    let shrink = (*largest - m).exp();
                    *sum *= shrink;
                    for j in (0..results_lie.width).step_by(LANES) {
                        let p = acc.as_mut_ptr().add(results_lie.element(j));
                        V::load(p).mul(V::splat(shrink)).store(p);
                    }
                    *largest = m;
                }
                *sum += total.sum();
            }
        }
    }

    /// Initialises the running softmax states.
    pub(super) fn begin(&self, state: &mut [f32]) {
        for (i, state) in state.as_chunks_mut::<STATE>().0.iter_mut().enumerate() {
            *state = self
                .layer
                .sinks
                .map_or([f32::NEG_INFINITY, 0.0], |s| [s[self.head + i % self.heads], 1.0]);
        }
    }

    /// # Safety
    /// `layer.out` is valid for one row per row of `layer.q`, and no other thread uses these heads
    /// and tokens of it.
    #[inline(always)]
    pub(super) unsafe fn scatter(&self, acc: &[f32], lie: RowLayout, state: &[f32]) {
        let dim = self.layer.value_dim;
        for (i, [_, sum]) in state.as_chunks::<STATE>().0.iter().enumerate() {
            for (j, run) in
                (0..dim).step_by(LANES).zip(acc[lie.row(i)..].chunks(lie.together * LANES))
            {
                for (x, j) in run[..LANES.min(dim - j)].iter().zip(j..) {
                    // SAFETY: inside the row's head, which the caller guarantees to be valid and
                    // unshared.
                    unsafe { *self.layer.out.start().add(self.place(i) * dim + j) = x / sum };
                }
            }
        }
    }
}

/// The layout of contiguous rows.
fn alone(width: usize) -> RowLayout {
    RowLayout { together: 1, width }
}

/// `cap · tanh(s / cap) = cap − 2 cap / (1 + e^(2 s / cap))`.
///
/// # Safety
/// The CPU has `V`'s instruction set, as for [`Job::run`].
#[inline(always)]
unsafe fn soft_cap<V: Vector>(s: V, cap: f32) -> V {
    // SAFETY: this function's safety contract, which the caller upholds, covers the call.
    unsafe {
        V::splat(cap)
            .sub(V::splat(2.0 * cap).div(s.mul(V::splat(2.0 / cap)).exp().add(V::splat(1.0))))
    }
}

/// Attention of `rows` tokens. A task is a key head with its query heads and a run of tokens, or,
/// if there are few of these (decoding), a single query head. `precise`: all in f32.
/// `reproducible`: a token's results have the same bits for any batch.
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
        // Later tokens see most positions and go first, so that the last tasks are short.
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
    use super::super::simd::Isa;
    use super::super::testing::Rng;
    use super::*;
    use kjit_exec::KvType;

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

    /// All features of a layer, including keys that are also the values. The scratch buffers are
    /// poisoned with NaN.
    #[test]
    fn tiles_agree_with_f32_for_masks_sinks_slopes_and_chosen_positions() {
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
                                "{heads} heads of {dim}, {value_dim}, case {case}, all {all}, {} \
                                 at {i}: {got}, not {want}; {rng}",
                                isa.name()
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn tiles_give_the_same_bits_however_many_threads_there_are() {
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
    fn attention_agrees_with_f64_for_windows_caps_shared_heads_and_odd_sizes() {
        let mut rng = Rng::new();
        for (heads, key_heads, dim, before, tokens, window, soft_cap) in CASES {
            // f16 keeps 11 bits of a key or value. q8_0 keeps seven bits and a sign, relative to
            // the block's largest.
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
                    // Written in two calls, each split among three threads.
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
                        // errors, of both signs.
                        let tolerance = if tiles { tolerance + 2e-5 } else { tolerance };
                        assert!(
                            off <= tolerance,
                            "{case:?} {kv:?} {}, tiles {tiles}, at {i}: {got}, not {want}; {rng}",
                            isa.name()
                        );
                    }
                }
            }
        }
    }
}
