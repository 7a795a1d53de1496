//! Stores keys and values in the cache.

use super::compute::Compute;
use crate::Run;
use kjit_graph::op::KvWrite;

impl Compute for KvWrite {
    fn run(&self, host: &mut Run<'_>, _outs: &mut [&mut [f32]]) {
        let (isa, rows) = (host.isa, host.rows);
        let inputs = [Some(self.k), self.v].map(|x| x.map(|x| host.input(x)));
        let pool = &mut *host.pool;
        let mut at = 0;
        for piece in &mut host.pieces {
            for (which, x) in inputs.iter().enumerate() {
                let Some(x) = x else { continue };
                let width = x.len() / rows;
                let rows = &x[at * width..][..piece.rows * width];
                piece.state.store(self.state, which).write(pool, isa, piece.first, rows);
            }
            at += piece.rows;
        }
    }
}
