//! How much a model amplifies roundings: its logits on the CPU, computed operation by operation
//! with changed inputs.

use super::near::off;
use super::solo_session::SoloSession;
use kjit_model::graph::{Dtype, Op};
use kjit_model::session::Want;

/// Numbers between −1 and 1.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// The logits of all tokens of an empty sequence. Before an operation runs, `change` may change its
/// inputs.
pub fn logits_with(
    host: &mut SoloSession,
    tokens: &[u32],
    change: &mut dyn FnMut(&Op, &mut [Vec<f32>]),
) -> Vec<f32> {
    // Sets recurrent states to zero.
    host.truncate(0);
    host.feed(&tokens[..1], Want::Nothing).unwrap();
    host.truncate(0);
    let graph = host.session.graph().clone();
    let mut values: Vec<Vec<f32>> = vec![vec![]; graph.values.len()];
    for (i, op) in graph.ops.iter().enumerate() {
        let mut inputs: Vec<Vec<f32>> =
            op.reads().iter().map(|v| values[v.0 as usize].clone()).collect();
        change(op, &mut inputs);
        let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
        let results = host.host().run_op(0, i, 0, tokens, &inputs).unwrap();
        for (v, result) in op.writes().iter().zip(results) {
            values[v.0 as usize] = result;
        }
    }
    values.swap_remove(graph.logits.0 as usize)
}

/// The logits with random changes, up to this relative size, of all numbers that devices round to
/// f16: the inputs of products and of attention, keys and values.
pub fn noisy_logits(host: &mut SoloSession, tokens: &[u32], size: f32, seed: u64) -> Vec<f32> {
    let mut noise = Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let graph = host.session.graph().clone();
    logits_with(host, tokens, &mut |op, inputs| {
        let rounded = matches!(
            op,
            Op::MatMul(_)
                | Op::ExpertMatMul(_)
                | Op::HeadMatMul(_)
                | Op::KvWrite(_)
                | Op::Attention(_)
        );
        for (v, input) in op.reads().iter().zip(inputs).filter(|_| rounded) {
            if graph.value(*v).dtype != Dtype::Index {
                input.iter_mut().for_each(|x| *x *= 1.0 + size * noise.next());
            }
        }
    })
}

/// The largest [`off`] of a row.
pub fn worst_row(got: &[f32], want: &[f32], vocab: usize) -> f64 {
    got.chunks_exact(vocab)
        .zip(want.chunks_exact(vocab))
        .map(|(g, w)| off(g, w))
        .fold(0.0, f64::max)
}
