//! Linear attention: the past is one matrix per head.

use super::{Op, Operation, maybe};
use crate::graph::{Builder, Graph, StateId, ValueId, WeightId};
use crate::host::Run;
use crate::host::share::Shared;

/// Linear attention with decay, and with a correction if `a` and `b` are given. For each head, with
/// keys of length `K` and values of length `V`:
///
/// ```text
/// S'[i][v] = w[i] · S[i][v] + b[i] · Σ_j a[j] · S[j][v] + k[i] · v[v]
/// out[v]   = Σ_i q[i] · S'[i][v]
/// ```
///
/// With a bonus `u`, as in RWKV-6 (arXiv 2404.05892): `out[v] = Σ_i q[i] · (S[i][v] + u[i] · k[i] ·
/// v[v])`. RWKV-7 (arXiv 2503.14456) uses general `a` and `b`. The delta rule (Yang et al. 2024,
/// arXiv 2412.06464) is `a = −w k`, `b = β k`, with `β k` for `k`.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearAttention {
    /// Queries, `heads · K` wide.
    pub q: ValueId,
    /// Keys, `heads · K` wide.
    pub k: ValueId,
    /// Values, `heads · V` wide.
    pub v: ValueId,
    /// Decay factor of the state: one per head, or K per head.
    pub w: ValueId,
    /// The vectors `a` and `b` of the correction, `heads · K` wide each.
    pub correction: Option<(ValueId, ValueId)>,
    /// Factor on the token's own key, K per head.
    pub bonus: Option<WeightId>,
    /// Heads.
    pub heads: usize,
    /// `heads · K · V` numbers.
    pub state: StateId,
    /// The result, of the shape of `v`.
    pub out: ValueId,
}

impl Operation for LinearAttention {
    fn reads(&self) -> Vec<ValueId> {
        let (a, b) = self.correction.unzip();
        [self.q, self.k, self.v, self.w].into_iter().chain(a).chain(b).collect()
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn vectors(&self) -> Vec<WeightId> {
        self.bonus.into_iter().collect()
    }

    fn keeps(&self) -> Option<StateId> {
        Some(self.state)
    }

    fn name(&self) -> &'static str {
        "linear_attention"
    }

    fn args(&self, graph: &Graph) -> Vec<String> {
        let mut args: Vec<String> =
            self.reads().iter().map(|v| graph.value(*v).name.clone()).collect();
        args.extend(maybe("bonus", graph, self.bonus));
        args.push(format!("heads {}", self.heads));
        args.push(format!("state {}", graph.state(self.state).name));
        args
    }

    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (heads, rows) = (self.heads, host.rows);
        let [q, k, v, w] = [self.q, self.k, self.v, self.w].map(|v| host.input(v));
        let correction = self.correction.map(|(a, b)| (host.input(a), host.input(b)));
        let bonus = self.bonus.map(|u| host.weights.vector(u));
        let each = |x: &[f32]| x.len() / rows / heads;
        let (keys, values, decays) = (each(k), each(v), each(w));
        let out = Shared::new(outs[0]);
        let mut at = 0;
        for piece in &mut host.pieces {
            let state = Shared::new(piece.state.recurrent(self.state));
            let tokens = at..at + piece.rows;
            host.pool.run(heads, &|head| {
                // SAFETY: tasks have different heads, so no two use the same elements.
                #[allow(unsafe_code, reason = "threads write disjoint parts of one result")]
                let s = unsafe { state.part(head * keys * values, keys * values) };
                let mut corrected = vec![0.0; values];
                for t in tokens.clone() {
                    let i = t * heads + head;
                    let key = |x: &'_ [f32], j: usize| x[i * keys + j];
                    let v = &v[i * values..][..values];
                    // SAFETY: tasks have different heads, so no two use the same elements.
                    #[allow(unsafe_code, reason = "threads write disjoint parts of one result")]
                    let out = unsafe { out.part(i * values, values) };
                    out.fill(0.0);
                    corrected.fill(0.0);
                    if let Some((a, _)) = correction {
                        for (j, s) in s.chunks_exact(values).enumerate() {
                            corrected.iter_mut().zip(s).for_each(|(c, s)| *c += key(a, j) * s);
                        }
                    }
                    for (j, s) in s.chunks_exact_mut(values).enumerate() {
                        let (q, k) = (key(q, j), key(k, j));
                        let w = w[i * decays + if decays == 1 { 0 } else { j }];
                        let b = correction.map_or(0.0, |(_, b)| key(b, j));
                        let u = bonus.map(|u| u[head * keys + j]);
                        for (((s, out), v), c) in s.iter_mut().zip(&mut *out).zip(v).zip(&corrected)
                        {
                            let before = *s;
                            *s = w * *s + b * c + k * v;
                            *out += q * u.map_or(*s, |u| before + u * k * v);
                        }
                    }
                }
            });
            at += piece.rows;
        }
    }
}

/// The inputs of a [`LinearAttention`].
#[derive(Debug, Clone, Copy)]
pub struct LinearInputs {
    /// See [`LinearAttention::q`].
    pub q: ValueId,
    /// See [`LinearAttention::k`].
    pub k: ValueId,
    /// See [`LinearAttention::v`].
    pub v: ValueId,
    /// See [`LinearAttention::w`].
    pub w: ValueId,
    /// See [`LinearAttention::correction`].
    pub correction: Option<(ValueId, ValueId)>,
    /// See [`LinearAttention::bonus`].
    pub bonus: Option<WeightId>,
}

impl Builder<'_> {
    /// Appends a [`LinearAttention`] with its state.
    pub fn linear_attention(&mut self, name: &str, inputs: LinearInputs, heads: usize) -> ValueId {
        let LinearInputs { q, k, v, w, correction, bonus } = inputs;
        let elems = self.graph().value(k).width / heads * self.graph().value(v).width;
        let state = self.recurrent(name.to_string(), elems);
        let out = self.like(name.to_string(), v);
        self.push(
            Op::LinearAttention(LinearAttention {
                q,
                k,
                v,
                w,
                correction,
                bonus,
                heads,
                state,
                out,
            }),
            out,
        )
    }
}
