//! Host parts: operations that the CPU computes during a GPU's pass. Hidden states are copied from
//! the device and back.
//!
//! In each layer the host waits for the device, then the device waits for the host.
//!
//! For a prompt, the device can compute everything if it has a staging ring through which experts
//! are copied (`streamed.rs`). The time of a copy does not depend on the number of tokens, but the
//! CPU's time grows with it. From some number of tokens on, copying is faster. This number is
//! computed from both rates, which are measured when the model is opened.

use super::expert_cache::{ExpertCache, HostShare};
use super::plan::{BufferId, HostWork, Pause, Plan, Program, Streaming};
use super::streamed::StagingRing;
use crate::source::Source;
use kjit_engine::{Device, DeviceBuffer, Error, PinnedBuffer, Result, Stream};
use kjit_exec::{HostOps, HostPrompts, OpenOptions, SessionError};
use kjit_graph::op::Offload;
use kjit_graph::{Graph, Op, State, StateKind, Weight};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Approximate time limit for measuring the CPU's rates. The number of rows doubles until they take
/// as long as the copies, and no measurement begins after this time. For a 70B model's feed-forward
/// parts, one row took 6 ms on 16 cores, and eight rows took 24 ms.
const BOUND: Duration = Duration::from_millis(200);
/// Maximum number of measured rows. This many rows use all experts of most mixtures.
const ROWS: usize = 64;

/// The prompts for which experts or feed-forward weights are copied to the device, if the CPU
/// computes them for single tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PromptCopy {
    /// Minimum number of tokens of a prompt chunk for which weights are copied.
    pub from: usize,
    /// Bytes copied for a chunk.
    pub bytes: u64,
    /// Bytes per second of these copies.
    pub rate: f64,
    /// `(rows, seconds)` of the CPU for one token and for the largest number of measured rows;
    /// `None` if not measured.
    pub computed: Option<[(usize, f64); 2]>,
}

impl PromptCopy {
    /// Decides by measured rates or by the option. `None` if no prompt chunk is long enough.
    pub(super) fn of(
        aside: &HostPart,
        plan: &Plan,
        ring: &StagingRing,
        asked: HostPrompts,
    ) -> Result<Option<PromptCopy>> {
        let bytes = plan.streaming.as_ref().map_or(0, Streaming::bytes);
        let rate = ring.streamed.rate;
        Ok(match asked {
            HostPrompts::Compute => None,
            // If chunks have one token, no program copies weights.
            HostPrompts::Copy => {
                plan.copying().map(|_| PromptCopy { from: 2, bytes, rate, computed: None })
            }
            HostPrompts::Measured => {
                // The CPU does not compute cached experts. The choices are not known in advance, so
                // the fraction of experts that are not cached is used.
                let missed = aside.hot.as_ref().map_or(1.0, ExpertCache::absent);
                let (parts, copy) = (plan.host_layers() as f64 * missed, bytes as f64 / rate);
                let mut rows = aside.seconds_of_rows(plan, copy / parts)?;
                rows.iter_mut().for_each(|(_, seconds)| *seconds *= parts);
                let from = even(copy, &rows);
                let most = plan.copying().map_or(0, |p| p.tokens as usize);
                let computed = rows.first().zip(rows.last()).map(|(one, many)| [*one, *many]);
                // Longer chunks do not occur.
                (from <= most).then_some(PromptCopy { from, bytes, rate, computed })
            }
        })
    }
}

/// The minimum number of tokens, at least two, for which copying takes no longer than computing,
/// according to the measured rows. Few rows share a pass over the weights: eight rows of a 70B
/// model's parts take four times as long as one.
fn even(copy: f64, rows: &[(usize, f64)]) -> usize {
    let mut before = (0, 0.0);
    let mut tokens = f64::INFINITY;
    for &(n, seconds) in rows {
        if seconds >= copy {
            let (few, less) = before;
            let more = (copy - less) / (seconds - less);
            tokens = if few == 0 { 2.0 } else { few as f64 + more * (n - few) as f64 };
            break;
        }
        // Above the measured range, the time is proportional to the rows.
        tokens = n as f64 * copy / seconds;
        before = (n, seconds);
    }
    if tokens.is_finite() { (tokens.ceil() as usize).max(2) } else { usize::MAX }
}

impl std::fmt::Display for PromptCopy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let PromptCopy { from, bytes, rate, computed } = *self;
        let (gb, rate) = (bytes as f64 / 1e9, rate / 1e9);
        write!(
            f,
            "for prompts of {from} tokens or more they are copied to the GPU, \
             {gb:.1} GB at {rate:.1} GB/s"
        )?;
        let Some([(_, one), (n, many)]) = computed else { return Ok(()) };
        write!(
            f,
            " (the CPU needs {:.1} ms for one token, {:.1} ms for {n})",
            one * 1e3,
            many * 1e3
        )
    }
}

/// The CPU's part of a model whose other parts are on a device.
pub(super) struct HostPart {
    host: Mutex<Box<dyn HostOps>>,
    rows: PinnedBuffer<f32>,
    /// Rows that the CPU computes together.
    chunk: usize,
    /// The expert cache, if there is one.
    pub hot: Option<ExpertCache>,
}

impl HostPart {
    /// Prepares a graph's host parts. `None` if it has none.
    pub fn new(
        device: &Device,
        source: Source<'_>,
        graph: &Graph,
        plan: &Plan,
        options: &OpenOptions,
        hot: Option<ExpertCache>,
    ) -> std::result::Result<Option<HostPart>, SessionError> {
        let ops: Vec<Op> =
            graph.ops.iter().filter(|op| matches!(op, Op::Offload(_))).cloned().collect();
        let widths = ops.iter().flat_map(|op| [op.reads(), op.writes()]).flatten();
        let Some(width) = widths.map(|v| graph.value(v).width).max() else { return Ok(None) };
        let tokens = plan.programs().iter().map(|p| p.tokens as usize).max().unwrap_or(1);
        let states =
            graph.states.iter().map(|s| State { kind: StateKind::Remote, ..s.clone() }).collect();
        // The CPU has all experts, even if the device's weight has only cache slots.
        let all = |w: &Weight| {
            let same =
                |o: &&Weight| o.experts > w.experts && (&o.tensor, o.at) == (&w.tensor, w.at);
            graph.weights.iter().find(same).unwrap_or(w).clone()
        };
        let weights = graph.weights.iter().map(all).collect();
        let part =
            Graph { ops, states, weights, ropes: vec![], feeds_next_stage: true, ..graph.clone() };
        // The context is the length of a chunk, because an operation without state has no other
        // positions.
        let options = OpenOptions { context: Some(tokens), ..options.clone() };
        let host = (source.host)(Arc::clone(source.gguf), part, &options)?;
        let (rows, chunk) = (device.pinned(tokens * width)?, options.chunk_on_cpu());
        Ok(Some(HostPart { host: Mutex::new(host), rows, chunk, hot }))
    }

    /// Measures the seconds of 1, 2, 4 and more rows in the plan's first host part, until they take
    /// `enough` or [`BOUND`] has passed.
    fn seconds_of_rows(&self, plan: &Plan, enough: f64) -> Result<Vec<(usize, f64)>> {
        let Some(pause) = plan.decode.pauses.first() else { return Ok(vec![]) };
        let mut host = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        let width = host.graph().ops.get(pause.op).and_then(|op| op.reads().first().copied());
        let width = width.map_or(0, |v| host.graph().value(v).width);
        let most = ROWS.min(self.chunk).min(host.context()).max(1);
        // The rows differ, so that they choose different experts.
        let mut seed = 1u64;
        let x = std::iter::repeat_with(|| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 40) as f32 / (1 << 23) as f32 - 1.0
        });
        let x: Vec<f32> = x.take(most * width).collect();
        // If the routing is an input, each row gets different experts.
        let with = match host.graph().ops.get(pause.op) {
            Some(Op::Offload(rest)) if !rest.with.is_empty() => rest.clone(),
            _ => Offload {
                x: host.graph().logits,
                with: vec![],
                ops: vec![],
                out: host.graph().logits,
            },
        };
        let top = with.with.first().map_or(0, |v| host.graph().value(*v).width);
        let all = with.ops.iter().find_map(|op| match op {
            Op::ExpertMatMul(product) => Some(host.graph().weight(product.weight).experts),
            _ => None,
        });
        let experts: Vec<f32> =
            (0..most * top).map(|i| (i % all.unwrap_or(1).max(1)) as f32).collect();
        let shares = vec![1.0 / top.max(1) as f32; most * top];
        let start = Instant::now();
        let mut seen = vec![];
        for rows in
            std::iter::successors(Some(1), |rows| Some(2 * rows)).take_while(|rows| *rows <= most)
        {
            let part = x.get(..rows * width).unwrap_or_default();
            let [experts, shares] =
                [&experts, &shares].map(|of| of.get(..rows * top).unwrap_or_default());
            let inputs = [part, experts, shares];
            let inputs = inputs.get(..1 + with.with.len()).unwrap_or_default();
            let ids = vec![0; rows];
            let mut once = || {
                let now = Instant::now();
                let done = host.run_op(pause.op, 0, &ids, inputs);
                done.map_err(|e| Error::Buffer(e.to_string()))?;
                Ok::<_, Error>(now.elapsed())
            };
            // The minimum of two runs. The first run touches new pages, and any run may be
            // disturbed.
            let took = once()?.min(once()?).as_secs_f64();
            seen.push((rows, took));
            if took >= enough || start.elapsed() >= BOUND {
                break;
            }
        }
        Ok(seen)
    }

    /// Computes the host part of a pause for `rows` rows. `part` returns the rows of a buffer.
    pub fn compute(
        &self,
        stream: &Stream,
        pause: &Pause,
        rows: usize,
        part: &dyn Fn(BufferId) -> Result<DeviceBuffer<f32>>,
    ) -> Result<()> {
        let hot = || {
            self.hot
                .as_ref()
                .ok_or_else(|| Error::Buffer("no expert cache on the device".to_owned()))
        };
        match pause.what {
            HostWork::All { from } => {
                let from = part(from)?;
                let here = self.rows.slice(..from.len())?;
                stream.copy_out(&from, &here)?;
                stream.synchronize()?;
                let x = here.read(<[f32]>::to_vec)?;
                self.run(stream, (pause.op, rows), &[&x]).map(|_| ())
            }
            HostWork::Divide { from: [x, experts, shares], to: [places, own] } => {
                let (x, chosen, to) =
                    (part(x)?, [part(experts)?, part(shares)?], [part(places)?, part(own)?]);
                let here = self.rows.slice(..x.len())?;
                hot()?.divide(
                    (stream, pause.op, rows),
                    (&x, &here),
                    chosen.each_ref(),
                    to.each_ref(),
                )
            }
            HostWork::Rest { to } => {
                let (HostShare { x, experts, shares, any }, to) = (hot()?.mine()?, part(to)?);
                match any {
                    true => {
                        let here = self.run(stream, (pause.op, rows), &[&x, &experts, &shares])?;
                        stream.copy_in(&here, &to)
                    }
                    false => stream.fill(&to.cast::<u8>()?, 0),
                }
            }
        }
    }

    /// The device's view of the last result.
    pub fn rows(&self) -> DeviceBuffer<f32> {
        self.rows.on_device()
    }

    /// Runs a host operation over `rows` rows. Returns its result in page-locked memory.
    fn run(
        &self,
        stream: &Stream,
        (op, rows): (usize, usize),
        inputs: &[&[f32]],
    ) -> Result<PinnedBuffer<f32>> {
        let _span =
            stream.device().trace().map(|t| t.span("cpu", format!("part {op} of {rows} rows")));
        let mut host = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        let ids = vec![0; self.chunk.min(rows)];
        let mut made = vec![];
        for first in (0..rows).step_by(self.chunk.max(1)) {
            let end = rows.min(first + self.chunk.max(1));
            let of = |all: &&'_ [f32]| {
                let each = all.len() / rows.max(1);
                all.get(first * each..end * each).unwrap_or_default().to_vec()
            };
            let parts: Vec<Vec<f32>> = inputs.iter().map(of).collect();
            let parts: Vec<&[f32]> = parts.iter().map(Vec::as_slice).collect();
            let out = host.run_op(op, 0, ids.get(..end - first).unwrap_or_default(), &parts);
            made.extend(out.map_err(|e| Error::Buffer(e.to_string()))?.into_iter().flatten());
        }
        let here = self.rows.slice(..made.len())?;
        here.write(|there| there.iter_mut().zip(&made).for_each(|(there, x)| *there = *x))?;
        Ok(here)
    }
}

/// The first `rows` rows of a buffer that has the rows of a program.
pub(super) fn rows_of(
    program: &Program,
    buffer: &DeviceBuffer<f32>,
    rows: usize,
) -> Result<DeviceBuffer<f32>> {
    buffer.slice(..buffer.len() / (program.tokens as usize).max(1) * rows)
}

#[cfg(test)]
mod tests {
    use super::even;

    #[test]
    fn prompt_copies_weights_once_copying_is_not_slower() {
        // 17 GB of experts at 55 GB/s; 14.4 ms per token.
        assert_eq!(even(0.31, &[(1, 0.0144), (16, 0.2304)]), 22);
        assert_eq!(even(0.31, &[(1, 0.31)]), 2);
        assert_eq!(even(0.0, &[(1, 0.1)]), 2);
        // Feed-forward parts of a 70B model: 22.7 GB at 55 GB/s; 160 ms for a row, 620 for eight.
        assert_eq!(even(0.412, &[(1, 0.16), (2, 0.21), (4, 0.34), (8, 0.62)]), 6);
        assert_eq!(even(0.245, &[(1, 0.24), (2, 0.25)]), 2);
        // A disturbed measurement must not divide by zero.
        assert_eq!(even(0.3, &[(1, 0.2), (2, 0.1), (4, 0.3)]), 4);
        // A rate that could not be measured is infinite here.
        assert_eq!(even(f64::INFINITY, &[(1, 0.1)]), usize::MAX);
        assert_eq!(even(0.1, &[]), usize::MAX);
    }
}
