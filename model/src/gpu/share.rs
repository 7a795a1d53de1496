//! How much of a model that a device does not hold the CPU computes, while the rest is copied: by rates that are
//! measured before it is opened, of both at once, since they read the same memory.

use super::open::{budget, room_in};
use super::plan::{Request, plan};
use super::settle::settled;
use super::tune::Kept;
use crate::gguf::Gguf;
use crate::graph::op::{Elsewhere, Operation};
use crate::graph::{Graph, Op, State, StateKind};
use crate::host::{HostRunner, Isa};
use crate::placement::FfnApart;
use crate::session::{OpenOptions, SessionError};
use kjit_engine::{Device, Engine};
use std::sync::Arc;
use std::time::Instant;

/// Bytes of a copy that is timed, at most; and of the memory that is free, one part in so many.
const PIECE: usize = 32 << 20;
const OF_FREE: u64 = 16;
/// Copies that are timed at first: 2.3 ms of 55 GB/s.
const COPIES: usize = 4;
/// How often both are timed at once; the best counts. One alone gave 57 to 67 GB/s of the same machine.
const ROUNDS: usize = 2;
/// Bytes of parts that the CPU is timed with, at least, if there are so many: more than any third cache holds.
const ENOUGH: u64 = 1 << 30;
/// What a token must become shorter by, at least, so that the CPU takes part: it rounds rows to eight bits, so the tokens
/// are no longer those of the device alone to the last bit. And bytes alone are counted: of 70b's 5.1 tokens a second by
/// rates 4.34 came, 85 %, where copies alone reach 99 % of theirs.
const WORTH: f64 = 0.75;

/// Bytes a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rates {
    /// Of copies from page-locked memory, alone.
    pub copy: f64,
    /// Of weights that the CPU multiplies by a row, alone.
    pub host: f64,
    /// Of both, while the other is at work.
    pub both: [f64; 2],
}

impl std::fmt::Display for Rates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [host, copy] = self.both.map(|rate| rate / 1e9);
        let alone = [self.host, self.copy].map(|rate| rate / 1e9);
        write!(f, "it reads {host:.1} GB/s beside copies of {copy:.1} GB/s (alone {:.1} and {:.1})", alone[0], alone[1])
    }
}

impl Rates {
    /// Seconds of a token for which the CPU reads so many bytes, and so many are copied.
    fn seconds(&self, host: u64, copied: u64) -> f64 {
        let (host, copied) = (host as f64, copied as f64);
        match (host > 0.0, copied > 0.0) {
            (true, true) => (host / self.both[0]).max(copied / self.both[1]),
            _ => host / self.host + copied / self.copy,
        }
    }

    /// Measures them with some of these parts.
    fn measure(device: &Device, gguf: &Arc<Gguf>, apart: &Graph, options: &OpenOptions) -> Result<Rates, SessionError> {
        let mut taken = 0;
        let few = apart.ops.iter().filter(|op| matches!(op, Op::Elsewhere(_)));
        let few = few.take_while(|op| {
            let before = taken;
            taken += op.bytes(apart);
            before < ENOUGH
        });
        let ops: Vec<Op> = few.cloned().collect();
        let states = apart.states.iter().map(|s| State { kind: StateKind::Elsewhere, ..s.clone() }).collect();
        let elems = |op: &Op| op.reads().first().map_or(0, |v| apart.value(*v).slots * apart.value(*v).width);
        let (rows, bytes): (Vec<usize>, Vec<u64>) = ops.iter().map(|op| (elems(op), op.bytes(apart))).unzip();
        let part = Graph { ops, states, ropes: vec![], hands_on: true, ..apart.clone() };
        let mut host =
            HostRunner::new(Arc::clone(gguf), part, &OpenOptions { context: Some(1), ..options.clone() }, Isa::best())?;
        host.add(0)?;
        host.be_patient();
        // Seconds that all of them take.
        let mut all = || -> Result<f64, SessionError> {
            let start = Instant::now();
            for (op, width) in rows.iter().enumerate() {
                let row: Vec<f32> = (0..*width).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
                host.run_op(0, op, 0, &[0], &[&row])?;
            }
            Ok(start.elapsed().as_secs_f64())
        };
        let piece = usize::try_from(budget(device, options)? / OF_FREE).map_or(PIECE, |n| n.clamp(1 << 10, PIECE));
        let (stream, from) = (device.stream()?, device.pinned_for_writing::<u8>(piece)?);
        from.write(|to| to.fill(1))?;
        let to = device.buffer::<u8>(piece)?;
        // Puts so many copies into the stream, between two events.
        let copies = |count: usize| -> Result<_, SessionError> {
            let (start, end) = (device.timed_event()?, device.timed_event()?);
            stream.record(&start)?;
            (0..count).try_for_each(|_| stream.copy_in(&from, &to))?;
            stream.record(&end)?;
            Ok((start, end))
        };
        let took = |(start, end): &(_, _)| -> Result<f64, SessionError> {
            let end: &kjit_engine::Event = end;
            end.synchronize()?;
            Ok((f64::from(end.milliseconds_since(start)?) * 1e-3).max(1e-9))
        };
        let rate = |count: usize, seconds: f64| (count * piece) as f64 / seconds;
        // The first of each finds pages that nobody has touched.
        took(&copies(1)?)?;
        let copy = rate(COPIES, took(&copies(COPIES)?)?);
        all()?;
        let (alone, bytes) = (all()?.max(1e-9), bytes.iter().sum::<u64>() as f64);
        // As many as take as long as the CPU does.
        let count = ((alone * copy / piece as f64).ceil() as usize).clamp(1, 1 << 10);
        let host = bytes / alone;
        let (mut beside, mut copied) = (f64::INFINITY, 0.0f64);
        for _ in 0..ROUNDS {
            let between = copies(count)?;
            beside = beside.min(all()?.max(1e-9));
            copied = copied.max(rate(count, took(&between)?));
        }
        // A measurement that was disturbed makes nothing faster than it is alone.
        Ok(Rates { copy, host, both: [(bytes / beside).min(host), copied.min(copy)] })
    }
}

/// The graph of a model that does not fit the device's memory, with as many layers' feed-forward parts apart as the CPU
/// should compute, and the rates that say so; none where all fits, where copies alone are as fast, or where the CPU can
/// have none.
pub(crate) fn shared(
    engine: &Engine,
    device: &Device,
    gguf: &Arc<Gguf>,
    graph: &Graph,
    options: &OpenOptions,
) -> Result<Option<(FfnApart, Rates)>, SessionError> {
    let target = &settled(engine, device.target());
    let kept = Kept::of(engine);
    let whole = plan(&Request { graph, target, options, keep: &[], tuned: &kept })?;
    if whole.memory.total() <= budget(device, options)? {
        return Ok(None);
    }
    let Ok(all) = FfnApart::of(graph, usize::MAX) else { return Ok(None) };
    let apart = |op: &Op| if let Op::Elsewhere(apart) = op { Some(Elsewhere::matrices(apart)) } else { None };
    let parts: Vec<_> = all.graph.ops.iter().filter_map(apart).collect();
    let rates = match Rates::measure(device, gguf, &all.graph, options) {
        Ok(rates) => rates,
        // What is only measured to be faster ends no opening: without a page to lock, say, all is copied.
        Err(_) if device.memory().is_ok() => return Ok(None),
        Err(lost) => return Err(lost),
    };
    let seconds = |host: u64, copied: u64| rates.seconds(host, copied);
    let room = room_in(device, options)?;
    let Some((n, takes)) = whole.share(graph, room, &parts, &seconds) else { return Ok(None) };
    // With none of the CPU's: what copies alone take, where that fits at all.
    let copied = whole.share(graph, room, &[], &seconds).map_or(f64::INFINITY, |(_, takes)| takes);
    if n == 0 || takes >= WORTH * copied {
        return Ok(None);
    }
    // A program more, for long prompts, and shorter pieces take other memory than the whole model's plan says.
    let Ok(apart) = FfnApart::of(graph, n) else { return Ok(None) };
    let mut part = plan(&Request { graph: &apart.graph, target, options, keep: &[], tuned: &kept })?;
    let fits = part.fit(&apart.graph, room, false).is_ok();
    Ok(fits.then_some((apart, rates)))
}

#[cfg(test)]
mod tests {
    use super::Rates;

    #[test]
    fn a_token_takes_as_long_as_the_slower_of_both() {
        let rates = Rates { copy: 55e9, host: 83e9, both: [70e9, 50e9] };
        let near = |x: f64, y: f64| assert!((x - y).abs() < 1e-12, "{x} is not {y}");
        near(rates.seconds(7_000_000_000, 2_500_000_000), 0.1);
        near(rates.seconds(3_500_000_000, 10_000_000_000), 0.2);
        near(rates.seconds(0, 5_500_000_000), 0.1);
        near(rates.seconds(8_300_000_000, 0), 0.1);
    }
}
