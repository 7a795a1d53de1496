//! An attention task: one key head, some query heads and some tokens.

use crate::gemm::transpose_panel;
use crate::kv::KvStore;
use crate::matvec::dot;
use crate::scratch::Scratch;
use crate::shared_mut::SharedMut;
use crate::simd::{Job, LANES, Tile, Vector};
use kjit_graph::op::Mask;

/// Positions in a block. With heads of 64 elements, keys and values take 32 KiB each.
pub(super) const BLOCK_POSITIONS: usize = 128;

/// Minimum number of rows for the matrix kernel.
pub(super) const MIN_MATRIX_ROWS: usize = 6;

/// The data that all tasks of one attention operation share.
#[derive(Clone, Copy)]
pub struct Layer<'a> {
    /// Queries: a row of `heads · dim` elements per token.
    pub q: &'a [f32],
    pub heads: usize,
    /// Number of elements of a key.
    pub dim: usize,
    /// Number of elements of a value. In a latent, whose rows are both key and value, the value is
    /// the first elements of the row.
    pub value_dim: usize,
    /// Position of the first row of `q`.
    pub first: usize,
    /// Number of positions.
    pub end: usize,
    pub keys: &'a KvStore,
    pub values: &'a KvStore,
    /// Width of the window in positions, including the token's own.
    pub window: Option<usize>,
    pub mask: Mask,
    /// With a mask up to the token's own position: one past the last position that each token
    /// sees, never decreasing. `None`: one past its own.
    pub until: Option<&'a [usize]>,
    pub scale: f32,
    pub soft_cap: Option<f32>,
    /// The attention sink: one score per head without a value.
    pub sinks: Option<&'a [f32]>,
    /// ALiBi: the slope of each head. Slope times distance is subtracted from a score.
    pub slopes: Option<&'a [f32]>,
    /// The only visible positions, and their number per token. Negative entries are unused.
    pub only: Option<(&'a [f32], usize)>,
    /// The result: a row of `heads · value_dim` elements per token.
    pub out: SharedMut<'a>,
}

/// Query heads `head .. head + heads`, which all use key head `key_head`, for tokens `token ..
/// token + tokens`.
pub struct Attend<'a> {
    pub layer: Layer<'a>,
    pub key_head: usize,
    pub head: usize,
    pub heads: usize,
    pub token: usize,
    pub tokens: usize,
    /// If true, blocks of positions begin at fixed multiples, and all numbers of rows use one
    /// kernel. So results do not depend on the batch.
    pub reproducible: bool,
}

/// Floats of the running softmax state of a row: maximum and sum.
pub(super) const STATE: usize = 2;

/// The layout of rows of `width` elements (a multiple of 32). `together` rows are interleaved by
/// groups of 32 elements, as the sums of tiles are stored. With 1, each row is contiguous.
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

    /// In addition, `layer.out` must be valid for one row per row of `layer.q`, and no other thread
    /// uses the results of these heads and tokens.
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Layer { dim, value_dim, .. } = self.layer;
        let m = self.tokens * self.heads;
        let padded = value_dim.next_multiple_of(LANES);
        let mut scratch = Scratch::take();
        let [q, k, panel, v, s, acc, state] = scratch.parts([
            m * dim,
            BLOCK_POSITIONS * dim,
            LANES * dim,
            BLOCK_POSITIONS * padded,
            m * BLOCK_POSITIONS,
            m * padded,
            m * STATE,
        ]);
        for (i, q) in q.chunks_exact_mut(dim).enumerate() {
            self.query(i, q);
        }
        acc.fill(0.0);
        v.fill(0.0);
        self.begin(state);
        let end = self.visible_end(self.token + self.tokens - 1);
        let mut at = self.first_block();
        while at < end {
            let n = BLOCK_POSITIONS.min(end - at);
            let n32 = n.next_multiple_of(LANES);
            // SAFETY: the caller guarantees the instruction set; the buffers cut above hold
            // BLOCK_POSITIONS rows of keys and values, and m rows of BLOCK_POSITIONS scores and of
            // padded results.
            unsafe {
                self.layer.keys.rows(self.key_head, at, n).decode::<V>(k, dim);
                self.layer
                    .values
                    .rows(self.key_head, at, n)
                    .short(value_dim)
                    .decode::<V>(v, padded);
                if m >= MIN_MATRIX_ROWS || self.reproducible {
                    // Rows past n hold old keys or zeros; their scores are masked.
                    s.fill(0.0);
                    for j in (0..n32).step_by(LANES) {
                        transpose_panel::<V>(&k[j * dim..], dim, panel);
                        let (a, b, c) = (q.as_ptr(), panel.as_ptr(), s.as_mut_ptr().add(j));
                        Tile {
                            n: dim,
                            a,
                            a_stride: dim,
                            b,
                            b_stride: LANES,
                            c,
                            c_stride: BLOCK_POSITIONS,
                        }
                        .rows::<V>(m);
                    }
                } else {
                    for (q, s) in q.chunks_exact(dim).zip(s.chunks_exact_mut(BLOCK_POSITIONS)) {
                        for (k, s) in k.chunks_exact(dim).zip(&mut s[..n]) {
                            *s = dot::<V>(q, k);
                        }
                    }
                }
                self.softmax_block::<V>(
                    at,
                    n,
                    (s, alone(BLOCK_POSITIONS)),
                    (acc, alone(padded)),
                    state,
                );
                for j in (0..padded).step_by(LANES) {
                    let (a, b, c) = (s.as_ptr(), v.as_ptr().add(j), acc.as_mut_ptr().add(j));
                    Tile {
                        n,
                        a,
                        a_stride: BLOCK_POSITIONS,
                        b,
                        b_stride: padded,
                        c,
                        c_stride: padded,
                    }
                    .rows::<V>(m);
                }
            }
            at += n;
        }
        // SAFETY: the caller guarantees that `layer.out` has space for these results and no other
        // thread writes them.
        unsafe { self.scatter(acc, alone(padded), state) };
    }
}

impl Attend<'_> {
    /// The first position of the first block. If `reproducible`, it is a multiple of
    /// [`BLOCK_POSITIONS`], so that it is independent of the task's tokens. Positions that a token
    /// does not see do not change its results.
    pub(super) fn first_block(&self) -> usize {
        let first = self.first_visible(self.token);
        if self.reproducible { first / BLOCK_POSITIONS * BLOCK_POSITIONS } else { first }
    }

    /// The first position that a token sees.
    pub(super) fn first_visible(&self, token: usize) -> usize {
        let own = self.layer.first + token;
        match self.layer.mask {
            Mask::Causal => self.layer.window.map_or(0, |w| (own + 1).saturating_sub(w)),
            Mask::Chunk(n) => own / n * n,
            Mask::All => 0,
            Mask::Around(n) => own.saturating_sub(n / 2),
        }
    }

    /// One past the last position that a token sees.
    pub(super) fn visible_end(&self, token: usize) -> usize {
        let own = self.layer.first + token;
        match self.layer.mask {
            Mask::Causal | Mask::Chunk(_) => {
                let until = self.layer.until.and_then(|until| until.get(token).copied());
                until.unwrap_or(own + 1)
            }
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

    /// Converts the scores of `n` positions from `at` on to softmax weights, up to the next
    /// multiple of 64. Rescales running maxima, sums and results.
    ///
    /// # Safety
    /// The CPU has `V`'s instruction set, as for [`Job::run`].
    #[inline(always)]
    pub(super) unsafe fn softmax_block<V: Vector>(
        &self,
        at: usize,
        n: usize,
        (scores, layout): (&mut [f32], RowLayout),
        (results, results_layout): (&mut [f32], RowLayout),
        state: &mut [f32],
    ) {
        let whole = n.next_multiple_of(2 * LANES);
        for (i, [largest, sum]) in state.as_chunks_mut::<STATE>().0.iter_mut().enumerate() {
            let (s, acc) = (&mut scores[layout.row(i)..], &mut results[results_layout.row(i)..]);
            let token = self.token + i / self.heads;
            let (from, to) =
                (self.first_visible(token).saturating_sub(at), self.visible_end(token));
            let (from, to) = (from.min(n), to.saturating_sub(at).min(n));
            assert!(
                layout.element(whole - 1) < s.len()
                    && results_layout.element(results_layout.width - 1) < acc.len()
            );
            // SAFETY: the caller guarantees the instruction set. The assertion above shows that
            // groups of 32 below `whole` are in `s`, and groups of 32 of a result row in `acc`.
            unsafe {
                if let Some(cap) = self.layer.soft_cap {
                    for j in (0..whole).step_by(LANES) {
                        let p = s.as_mut_ptr().add(layout.element(j));
                        soft_cap(V::load(p), cap).store(p);
                    }
                }
                if let Some(slopes) = self.layer.slopes {
                    let (slope, own) =
                        (slopes[self.head + i % self.heads], self.layer.first + token);
                    for j in 0..n {
                        s[layout.element(j)] -= slope * own.abs_diff(at + j) as f32;
                    }
                }
                if let Some((all, width)) = self.layer.only {
                    let mut seen = [false; BLOCK_POSITIONS];
                    for &position in &all[token * width..][..width] {
                        let j = position as usize;
                        if position >= 0.0 && (at..at + n).contains(&j) {
                            seen[j - at] = true;
                        }
                    }
                    (0..n)
                        .filter(|j| !seen[*j])
                        .for_each(|j| s[layout.element(j)] = f32::NEG_INFINITY);
                }
                for j in (0..from).chain(to.max(from)..whole) {
                    s[layout.element(j)] = f32::NEG_INFINITY;
                }
                let mut m = V::splat(*largest);
                for j in (0..whole).step_by(LANES) {
                    m = V::load(s.as_ptr().add(layout.element(j))).max(m);
                }
                let m = m.largest();
                if m == f32::NEG_INFINITY {
                    // No position is visible yet.
                    for j in (0..whole).step_by(LANES) {
                        V::splat(0.0).store(s.as_mut_ptr().add(layout.element(j)));
                    }
                    continue;
                }
                let mut total = V::splat(0.0);
                for j in (0..whole).step_by(LANES) {
                    let p = s.as_mut_ptr().add(layout.element(j));
                    let e = V::load(p).sub(V::splat(m)).exp();
                    e.store(p);
                    total = total.add(e);
                }
                if self.reproducible {
                    // `exp` of the lowest score is not exactly 0, and values of masked positions
                    // must have no effect.
                    (0..from).chain(to.max(from)..whole).for_each(|j| s[layout.element(j)] = 0.0);
                }
                if m != *largest {
                    let shrink = (*largest - m).exp();
                    *sum *= shrink;
                    for j in (0..results_layout.width).step_by(LANES) {
                        let p = acc.as_mut_ptr().add(results_layout.element(j));
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
    pub(super) unsafe fn scatter(&self, acc: &[f32], layout: RowLayout, state: &[f32]) {
        let dim = self.layer.value_dim;
        for (i, [_, sum]) in state.as_chunks::<STATE>().0.iter().enumerate() {
            for (j, run) in
                (0..dim).step_by(LANES).zip(acc[layout.row(i)..].chunks(layout.together * LANES))
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
pub(super) fn alone(width: usize) -> RowLayout {
    RowLayout { together: 1, width }
}

/// `cap · tanh(s / cap) = cap − 2 cap / (1 + e^(2 s / cap))`.
///
/// # Safety
/// The CPU has `V`'s instruction set, as for [`Job::run`].
#[inline(always)]
pub(super) unsafe fn soft_cap<V: Vector>(s: V, cap: f32) -> V {
    // SAFETY: this function's safety contract, which the caller upholds, covers the call.
    unsafe {
        V::splat(cap)
            .sub(V::splat(2.0 * cap).div(s.mul(V::splat(2.0 / cap)).exp().add(V::splat(1.0))))
    }
}
