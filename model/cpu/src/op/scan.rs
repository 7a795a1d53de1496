//! The scan of a selective state space model (Mamba).

use super::compute::Compute;
use crate::Run;
use crate::shared_mut::SharedMut;
use kjit_graph::op::Scan;

impl Compute for Scan {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let [x, dt, b, c] = [self.x, self.dt, self.b, self.c].map(|v| host.input(v));
        let (a, d) = (host.weights.vector(self.a), host.weights.vector(self.d));
        let width = |v: &[f32]| v.len() / host.rows;
        let (x_width, heads, b_width) = (width(x), width(dt), width(b));
        let channels = x_width / heads;
        let out = SharedMut::new(outs[0]);
        let mut at = 0;
        for piece in &mut host.pieces {
            let (rows, state) = (piece.rows, piece.state.recurrent(self.state));
            let each = state.len() / heads;
            let n = each / channels;
            let groups = b_width / n;
            let state = SharedMut::new(state);
            host.pool.run(heads, &|head| {
                // SAFETY: each task has a different head, so the parts are disjoint.
                let h = unsafe { state.part(head * each, each) };
                let a = if a.len() == heads { &a[head..=head] } else { &a[head * n..][..n] };
                let from = head * groups / heads * n;
                for t in at..at + rows {
                    let dt = dt[t * heads + head];
                    let (b, c) = (&b[t * b_width + from..][..n], &c[t * b_width + from..][..n]);
                    let x = &x[t * x_width + head * channels..][..channels];
                    // SAFETY: each task has a different head, so the parts are disjoint.
                    let out = unsafe { out.part(t * x_width + head * channels, channels) };
                    let whole = (dt * a[0]).exp();
                    for ((h, &x), out) in h.chunks_exact_mut(n).zip(x).zip(out) {
                        let mut sum = 0.0;
                        for (i, h) in h.iter_mut().enumerate() {
                            let decay = if a.len() == 1 { whole } else { (dt * a[i]).exp() };
                            *h = decay * *h + dt * x * b[i];
                            sum += *h * c[i];
                        }
                        *out = sum + d[head] * x;
                    }
                }
            });
            at += rows;
        }
    }
}
