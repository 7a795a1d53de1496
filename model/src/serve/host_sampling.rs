//! Sampling on the host, for requests with log probabilities or a constraint.

use super::request::{Alternative, Failure, Logprobs};
use super::running::ActiveRequest;
use crate::sample::{Sampler, TokenMask};
use crate::session::{SessionError, check_scores};

/// Chooses the token at `position` from a row of logits, among the tokens that the mask allows.
pub(super) fn choose(
    job: &ActiveRequest,
    sampler: &mut Sampler,
    position: usize,
    mask: Option<TokenMask>,
    mut row: Vec<f32>,
) -> Result<(u32, Option<Logprobs>), Failure> {
    let refused = |e: SessionError| Failure::Request(e.to_string());
    check_scores(&row).map_err(refused)?;
    let known = job.logprobs.map(|n| (log_sum_exp(&row), likeliest(&row, n), row.clone()));
    if mask.is_some() {
        sampler.set_mask(mask);
    }
    if !sampler.restrict(&mut row) {
        return Err(refused(SessionError::NothingAllowed));
    }
    let id = sampler.choose(position, &mut row);
    let logprobs = known.map(|(sum, top, row)| {
        let of = |x: f32| (f64::from(x) - sum) as f32;
        let top = top.into_iter().map(|(id, x)| Alternative { id, logprob: of(x) }).collect();
        Logprobs { chosen: row.get(id as usize).map_or(f32::NEG_INFINITY, |x| of(*x)), top }
    });
    Ok((id, logprobs))
}

/// log Σ e^x.
fn log_sum_exp(row: &[f32]) -> f64 {
    let largest = f64::from(row.iter().copied().fold(f32::MIN, f32::max));
    largest + row.iter().map(|x| (f64::from(*x) - largest).exp()).sum::<f64>().ln()
}

/// The `n` most likely tokens with their logits, most likely first.
fn likeliest(row: &[f32], n: usize) -> Vec<(u32, f32)> {
    let mut all: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
    let first = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if n == 0 {
        return vec![];
    }
    if n < all.len() {
        // Only the first `n` tokens are sorted.
        all.select_nth_unstable_by(n - 1, first);
        all.truncate(n);
    }
    all.sort_unstable_by(first);
    all
}
