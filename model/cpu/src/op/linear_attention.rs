//! Linear attention: the state of each head is one matrix.

use super::compute::Compute;
use crate::Run;
use crate::shared_mut::SharedMut;
use kjit_graph::op::LinearAttention;

impl Compute for LinearAttention {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (heads, rows) = (self.heads, host.rows);
        let [q, k, v, w] = [self.q, self.k, self.v, self.w].map(|v| host.input(v));
        let correction = self.correction.map(|(a, b)| (host.input(a), host.input(b)));
        let bonus = self.bonus.map(|u| host.weights.vector(u));
        let each = |x: &[f32]| x.len() / rows / heads;
        let (keys, values, decays) = (each(k), each(v), each(w));
        let out = SharedMut::new(outs[0]);
        let mut at = 0;
        for piece in &mut host.pieces {
            let state = SharedMut::new(piece.state.recurrent(self.state));
            let tokens = at..at + piece.rows;
            host.pool.run(heads, &|head| {
                // SAFETY: each task has a different head, so the parts are disjoint.
                let s = unsafe { state.part(head * keys * values, keys * values) };
                let mut corrected = vec![0.0; values];
                for t in tokens.clone() {
                    let i = t * heads + head;
                    let key = |x: &'_ [f32], j: usize| x[i * keys + j];
                    let v = &v[i * values..][..values];
                    // SAFETY: each task has a different head, so the parts are disjoint.
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
