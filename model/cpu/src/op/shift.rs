//! The previous token's row.

use super::compute::Compute;
use crate::Run;
use kjit_graph::op::Shift;

impl Compute for Shift {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let x = host.input(self.x);
        let width = x.len() / host.rows;
        let mut at = 0;
        for piece in &mut host.pieces {
            let last = piece.state.recurrent(self.state);
            let rows = at * width..(at + piece.rows) * width;
            let (x, out) = (&x[rows.clone()], &mut outs[0][rows]);
            out[..width].copy_from_slice(last);
            out[width..].copy_from_slice(&x[..x.len() - width]);
            last.copy_from_slice(&x[x.len() - width..]);
            at += piece.rows;
        }
    }
}
