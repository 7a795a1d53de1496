//! One file per command, or per few that are one idea.

pub mod bench;
mod bench_batch;
pub mod cache;
pub mod chat;
pub mod dequant;
pub mod devices;
pub mod doctor;
mod emit;
pub mod inspect;
pub mod kernels;
pub mod logits;
pub mod perplexity;
pub mod run;
pub mod text;
pub mod warm;

use std::io::{self, BufRead};

/// Calls `each` with every line of stdin, without its end, and its number from 1. Lines may hold any bytes.
fn lines(mut each: impl FnMut(usize, &[u8]) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut stdin = io::stdin().lock();
    let mut line = vec![];
    for number in 1.. {
        line.clear();
        if stdin.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        each(number, &line)?;
    }
    Ok(())
}
