//! Divides a model that exceeds device memory between CPU and device: some feed-forward parts run
//! on the CPU, and other layers are streamed. Both rates are measured before opening. They are
//! measured at the same time, because CPU and copies share the host's memory.

use super::open::{budget, kept_values, room_in};
use super::plan::{Plan, Request, plan};
use super::staging::cannot_lock;
use super::target_probe::settled;
use super::tune::StoredTunings;
use crate::source::Source;
use kjit_engine::{Device, Engine, Error};
use kjit_exec::{OpenOptions, SessionError};
use kjit_graph::HostFfnGraph;
use kjit_graph::op::{Offload, Operation};
use kjit_graph::{Graph, Op, State, StateKind, WeightId};
use std::sync::Arc;
use std::time::Instant;

/// Maximum bytes of a timed copy, and its maximum part of the budget (`1 / OF_FREE`).
const PIECE: usize = 32 << 20;
const OF_FREE: u64 = 16;
/// Copies that are timed first: 2.3 ms at 55 GB/s.
const COPIES: usize = 4;
/// Rounds in which CPU and copies run at the same time. The best round is used. Single rounds gave
/// 57 to 67 GB/s on one machine.
const ROUNDS: usize = 2;
/// Minimum bytes of the parts with which the CPU is timed, if the model has that many: more than
/// any L3 cache.
const MIN_TIMED_BYTES: u64 = 1 << 30;
/// The CPU computes parts only if the estimated time is at most this fraction of the time without
/// it. The CPU rounds hidden states to eight bits, so tokens may differ from the device's tokens.
/// The estimate counts only bytes: a 70B model reached 4.34 of 5.1 estimated tokens/s (85 %), while
/// copies alone reach 99 %.
const MAX_TIME_FRACTION: f64 = 0.75;

/// Measured rates in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Copies from page-locked memory, with an idle CPU.
    pub copy: f64,
    /// Weights that the CPU multiplies with one hidden state, without copies.
    pub host: f64,
    /// The rates of CPU and copies that run at the same time.
    pub both: [f64; 2],
}

impl std::fmt::Display for Rates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [host, copy] = self.both.map(|rate| rate / 1e9);
        let alone = [self.host, self.copy].map(|rate| rate / 1e9);
        write!(
            f,
            "it reads {host:.1} GB/s beside copies of {copy:.1} GB/s (alone {:.1} and {:.1})",
            alone[0], alone[1]
        )
    }
}

impl Rates {
    /// Seconds per token if the CPU reads `host` bytes and `copied` bytes are copied.
    fn seconds(&self, host: u64, copied: u64) -> f64 {
        let (host, copied) = (host as f64, copied as f64);
        match (host > 0.0, copied > 0.0) {
            (true, true) => (host / self.both[0]).max(copied / self.both[1]),
            _ => host / self.host + copied / self.copy,
        }
    }

    /// Measures the rates with some of these parts.
    fn measure(
        device: &Device,
        source: Source<'_>,
        apart: &Graph,
        options: &OpenOptions,
    ) -> Result<Rates, SessionError> {
        let mut taken = 0;
        let few = apart.ops.iter().filter(|op| matches!(op, Op::Offload(_)));
        let few = few.take_while(|op| {
            let before = taken;
            taken += op.bytes(apart);
            before < MIN_TIMED_BYTES
        });
        let ops: Vec<Op> = few.cloned().collect();
        let states =
            apart.states.iter().map(|s| State { kind: StateKind::Remote, ..s.clone() }).collect();
        let elems = |op: &Op| {
            op.reads().first().map_or(0, |v| apart.value(*v).slots * apart.value(*v).width)
        };
        let (rows, bytes): (Vec<usize>, Vec<u64>) =
            ops.iter().map(|op| (elems(op), op.bytes(apart))).unzip();
        let part = Graph { ops, states, ropes: vec![], feeds_next_stage: true, ..apart.clone() };
        let options_of_one = OpenOptions { context: Some(1), ..options.clone() };
        let mut host = (source.host)(Arc::clone(source.gguf), part, &options_of_one)?;
        // Seconds of all parts on the CPU.
        let mut all = || -> Result<f64, SessionError> {
            let start = Instant::now();
            for (op, width) in rows.iter().enumerate() {
                let row: Vec<f32> =
                    (0..*width).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
                host.run_op(op, 0, &[0], &[&row])?;
            }
            Ok(start.elapsed().as_secs_f64())
        };
        let piece = usize::try_from(budget(device, options)? / OF_FREE)
            .map_or(PIECE, |n| n.clamp(1 << 10, PIECE));
        let (stream, from) = (device.stream()?, device.pinned_for_writing::<u8>(piece)?);
        from.write(|to| to.fill(1))?;
        let to = device.buffer::<u8>(piece)?;
        // Enqueues copies between two events.
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
        // The first run of each touches new pages.
        took(&copies(1)?)?;
        let copy = rate(COPIES, took(&copies(COPIES)?)?);
        all()?;
        let (alone, bytes) = (all()?.max(1e-9), bytes.iter().sum::<u64>() as f64);
        // Copies that take as long as the CPU's parts.
        let count = ((alone * copy / piece as f64).ceil() as usize).clamp(1, 1 << 10);
        let host = bytes / alone;
        let (mut beside, mut copied) = (f64::INFINITY, 0.0f64);
        for _ in 0..ROUNDS {
            let between = copies(count)?;
            beside = beside.min(all()?.max(1e-9));
            copied = copied.max(rate(count, took(&between)?));
        }
        // A disturbed measurement must not exceed the rate that was measured without the other.
        Ok(Rates { copy, host, both: [(bytes / beside).min(host), copied.min(copy)] })
    }
}

/// The division of a model between CPU and device.
pub struct HostFfn {
    /// The graph with host parts, and the rates that decided. `None` if everything fits, if
    /// streaming alone is about as fast, or if no part can be on the CPU.
    pub apart: Option<(HostFfnGraph, Rates)>,
    /// The reason why rates were not measured although they could have decided.
    pub remark: Option<String>,
    /// The plan, before layers are streamed.
    pub plan: Plan,
}

/// The number of parts that the CPU should compute. `None` if streaming alone is about as fast, or
/// nothing fits.
fn ffn_parts_on_cpu(
    whole: &Plan,
    graph: &Graph,
    room: u64,
    parts: &[Vec<WeightId>],
    rates: &Rates,
) -> Option<usize> {
    let seconds = |host: u64, copied: u64| rates.seconds(host, copied);
    let (n, takes) = whole.share(graph, room, parts, &seconds)?;
    // The time of streaming alone, if it fits.
    let copied = whole.share(graph, room, &[], &seconds).map_or(f64::INFINITY, |(_, takes)| takes);
    (n > 0 && takes < MAX_TIME_FRACTION * copied).then_some(n)
}

/// The matrices of each host part.
fn parts_of(apart: &Graph) -> Vec<Vec<WeightId>> {
    let of = |op: &Op| {
        if let Op::Offload(apart) = op { Some(Offload::matrices(apart)) } else { None }
    };
    apart.ops.iter().filter_map(of).collect()
}

/// The error of a kernel that a plan needs in addition to another plan, if the kernel is not in the
/// cache and cannot be compiled. `None` if all kernels are available.
pub fn lacks(engine: &Engine, plan: &Plan, beside: Option<&Plan>) -> Option<Error> {
    let known: Vec<_> = beside.into_iter().flat_map(Plan::compiled).collect();
    plan.compiled().filter(|job| !known.contains(job)).find_map(|job| engine.cached(job).err())
}

/// Decides the division. If everything fits, nothing is measured.
pub fn divide_with_host(
    engine: &Engine,
    device: &Device,
    source: Source<'_>,
    graph: &Graph,
    options: &OpenOptions,
) -> Result<HostFfn, SessionError> {
    let target = &settled(engine, device.target());
    let (kept, keep) = (StoredTunings::of(engine), kept_values(graph, options)?);
    let request = Request { graph, target, options, keep: &keep, tuned: &kept };
    let whole = plan(&request)?;
    let alone = |plan: Plan, remark: Option<String>| Ok(HostFfn { apart: None, remark, plan });
    let copies = |plan, why: String| {
        alone(plan, Some(format!("layers that do not fit on the GPU are streamed: {why}")))
    };
    if whole.memory.total() <= budget(device, options)? {
        return alone(whole, None);
    }
    let Ok(all) = HostFfnGraph::of(graph, usize::MAX) else { return alone(whole, None) };
    // A model that was warmed without --memory has all kernels for streaming, but none for host
    // parts.
    let missing = |part: &Plan| {
        let why = lacks(engine, part, Some(&whole))?;
        Some(format!(
            "a host part needs one more kernel: {why}; compile it with kjit warm --memory SIZE"
        ))
    };
    // If no plan supports its parts, the model is only streamed.
    let Ok(parts) = plan(&Request { graph: &all.graph, ..request }) else {
        return alone(whole, None);
    };
    if let Some(why) = missing(&parts) {
        return copies(whole, why);
    }
    // Weights of host parts are copied for prompts only from locked pages of the file. Without
    // locked pages the CPU would compute them for all prompts: 2048 tokens of a 70B model would
    // take minutes instead of 0.7 s. An explicit `host_ffn` accepts this.
    let first = parts_of(&all.graph).into_iter().flatten().next();
    if let Some(why) = first.and_then(|weight| cannot_lock(device, source.gguf, &all.graph, weight))
    {
        return copies(whole, format!("the file's pages cannot be locked ({why})"));
    }
    let rates = match Rates::measure(device, source, &all.graph, options) {
        Ok(rates) => rates,
        // A failed measurement must not prevent opening. Everything is streamed instead.
        Err(why) if device.memory().is_ok() => {
            return copies(
                whole,
                format!("the rates of the CPU and of copies cannot be measured ({why})"),
            );
        }
        Err(lost) => return Err(lost),
    };
    let room = room_in(device, options)?;
    let Some(n) = ffn_parts_on_cpu(&whole, graph, room, &parts_of(&all.graph), &rates) else {
        return alone(whole, None);
    };
    // The extra program for long prompts and shorter chunks have other memory needs than the plan
    // of the whole model.
    let Ok(apart) = HostFfnGraph::of(graph, n) else { return alone(whole, None) };
    let Ok(part) = plan(&Request { graph: &apart.graph, ..request }) else {
        return alone(whole, None);
    };
    if part.clone().fit(&apart.graph, room, false).is_err() {
        return alone(whole, None);
    }
    match missing(&part) {
        Some(why) => copies(whole, why),
        None => Ok(HostFfn { apart: Some((apart, rates)), remark: None, plan: part }),
    }
}

#[cfg(test)]
mod tests {
    use super::{Rates, ffn_parts_on_cpu, parts_of};
    use kjit_engine::Target;
    use kjit_exec::OpenOptions;
    use kjit_graph::HostFfnGraph;
    use kjit_graph::catalogue::COMMON;
    use kjit_kernels::tuning::Shipped;
    use kjit_plan::{Request, plan};

    #[test]
    fn cpu_computes_ffn_parts_only_if_faster() {
        let llama = COMMON.iter().find(|row| row.name == "Llama 3.1 8B Q4_K_M").unwrap();
        let graph = llama.with_layers(32).unwrap();
        let (target, options) = (Target::parse("sm_90").unwrap(), OpenOptions::default());
        let whole = plan(&Request {
            graph: &graph,
            target: &target,
            options: &options,
            keep: &[],
            tuned: &Shipped,
        });
        let whole = whole.unwrap();
        let parts = parts_of(&HostFfnGraph::of(&graph, usize::MAX).unwrap().graph);
        assert_eq!(parts.len(), 32);
        let room = whole.memory.total() - whole.memory.weights / 2;
        // GB/s of the CPU alone, and of CPU and copies together.
        let chosen = |host: f64, both: [f64; 2]| {
            let rates = Rates { copy: 55e9, host: host * 1e9, both: both.map(|rate| rate * 1e9) };
            ffn_parts_on_cpu(&whole, &graph, room, &parts, &rates)
        };
        let many = chosen(120.0, [100.0, 50.0]).unwrap();
        let few = chosen(60.0, [50.0, 50.0]).unwrap();
        assert!(
            few > 3 && few < many && many < 32,
            "{few} of a slower one, {many} of a faster one"
        );
        // A concurrent rate of 65 GB/s is less than a quarter above 55 GB/s. The same holds for 73
        // GB/s without a mutual slowdown. 80 are more.
        assert_eq!(chosen(20.0, [15.0, 50.0]), None);
        assert_eq!(chosen(18.0, [18.0, 55.0]), None);
        assert!(chosen(25.0, [25.0, 55.0]).is_some());
        // CPU and copies that only share one memory's rate have no gain, unless the CPU alone is
        // much faster than copies.
        assert_eq!(chosen(60.0, [30.0, 25.0]), None);
        assert!(chosen(120.0, [30.0, 25.0]).is_some_and(|n| n > many));
        // No part is chosen if the model does not fit even with all parts on the CPU.
        let rates = Rates { copy: 55e9, host: 120e9, both: [100e9, 50e9] };
        assert_eq!(ffn_parts_on_cpu(&whole, &graph, 1 << 20, &parts, &rates), None);
    }

    #[test]
    fn token_time_is_slower_of_copy_and_host() {
        let rates = Rates { copy: 55e9, host: 83e9, both: [70e9, 50e9] };
        let near = |x: f64, y: f64| assert!((x - y).abs() < 1e-12, "{x} is not {y}");
        near(rates.seconds(7_000_000_000, 2_500_000_000), 0.1);
        near(rates.seconds(3_500_000_000, 10_000_000_000), 0.2);
        near(rates.seconds(0, 5_500_000_000), 0.1);
        near(rates.seconds(8_300_000_000, 0), 0.1);
    }
}
