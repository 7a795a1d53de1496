//! Reads rows of a table by token or by position. Rows of images replace the rows of their
//! placeholder tokens.

use super::compute::Compute;
use crate::Run;
use kjit_graph::op::{By, Embed};

impl Compute for Embed {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let w = host.weights.matrix(host.graph, self.table, 0);
        let images = if self.by == By::Token { host.images } else { &[] };
        let one = |row: u32, out: &mut [f32]| {
            // A model scales the embeddings of tokens, not those of images.
            if let Some(image) = images.iter().find_map(|image| image.row(row)) {
                return out.copy_from_slice(image);
            }
            // The lengths agree because the graph checks that a row consists of whole blocks.
            // `feed` checked tokens and positions.
            let decoded = w.format.decode(w.part(row as usize, 0, w.cols), out);
            debug_assert!(decoded.is_ok());
            if self.scale != 1.0 {
                out.iter_mut().for_each(|x| *x *= self.scale);
            }
        };
        let which: Vec<u32> = match self.by {
            By::Token => host.tokens.to_vec(),
            By::Position => host.positions().map(|at| at as u32).collect(),
        };
        let out = &mut outs[0][..which.len() * w.cols];
        host.by_rows(out, &|at, out| {
            which[at / w.cols..]
                .iter()
                .zip(out.chunks_exact_mut(w.cols))
                .for_each(|(&row, out)| one(row, out));
        });
    }
}
