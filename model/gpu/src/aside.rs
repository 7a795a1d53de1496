//! What the CPU computes in the midst of a pass: rows come from the device, and go back to it.
//!
//! The device waits meanwhile, and the host waits for the device before: two waits for each layer.
//!
//! For a prompt the device can do it all, where it has a ring that experts are copied through
//! (`ring.rs`): a copy takes as long for one token as for thousands, and the CPU as long for each.
//! From how many tokens on that is sooner follows from both rates, which are measured when the
//! model is opened.

use super::hot::{Hot, Mine};
use super::open::Source;
use super::plan::{AtPause, BufferId, Pause, Plan, Program, Streaming};
use super::ring::Ring;
use kjit_engine::{Device, DeviceBuffer, Error, PinnedBuffer, Result, Stream};
use kjit_exec::{HostOps, HostPrompts, OpenOptions, SessionError};
use kjit_graph::op::Elsewhere;
use kjit_graph::{Graph, Op, State, StateKind, Weight};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What the CPU's rates are measured in, about: rows are doubled until they take as long as copies,
/// and no more are begun then. Of 70b's parts a row took 16 cores 6 ms, eight 24.
const BOUND: Duration = Duration::from_millis(200);
/// Rows that they are measured with at most: as many have all experts of most mixtures.
const ROWS: usize = 64;

/// When a prompt's experts are copied to the device, where the CPU has them for single tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Copied {
    /// From so many tokens on, of those that go through at once.
    pub from: usize,
    /// Bytes that are copied for them.
    pub bytes: u64,
    /// Bytes a second of these copies.
    pub rate: f64,
    /// Seconds that the CPU takes for one token, and for the most that it was measured with; none
    /// where nobody asked.
    pub computed: Option<[(usize, f64); 2]>,
}

impl Copied {
    /// By measured rates, or as it was asked for; none where no piece of a prompt is long enough.
    pub(super) fn of(
        aside: &Aside,
        plan: &Plan,
        ring: &Ring,
        asked: HostPrompts,
    ) -> Result<Option<Copied>> {
        let bytes = plan.streaming.as_ref().map_or(0, Streaming::bytes);
        let rate = ring.streamed.rate;
        Ok(match asked {
            HostPrompts::Compute => None,
            // Where pieces are of one token, there is no program that copies.
            HostPrompts::Copy => {
                plan.copying().map(|_| Copied { from: 2, bytes, rate, computed: None })
            }
            HostPrompts::Measured => {
                // Of experts that the device has the CPU computes none; which are chosen is not
                // known yet.
                let missed = aside.hot.as_ref().map_or(1.0, Hot::absent);
                let (parts, copy) = (plan.computed_aside() as f64 * missed, bytes as f64 / rate);
                let mut rows = aside.seconds_of_rows(plan, copy / parts)?;
                rows.iter_mut().for_each(|(_, seconds)| *seconds *= parts);
                let from = even(copy, &rows);
                let most = plan.copying().map_or(0, |p| p.tokens as usize);
                let computed = rows.first().zip(rows.last()).map(|(one, many)| [*one, *many]);
                // So many never go through at once.
                (from <= most).then_some(Copied { from, bytes, rate, computed })
            }
        })
    }
}

/// Tokens from which copying takes no longer than computing so many rows was measured to; never
/// one. Rows that are few share a pass over the weights: of 70b's parts eight take four times as
/// long as one.
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
        // Beyond all that was measured a row takes what each of the most takes.
        tokens = n as f64 * copy / seconds;
        before = (n, seconds);
    }
    if tokens.is_finite() { (tokens.ceil() as usize).max(2) } else { usize::MAX }
}

impl std::fmt::Display for Copied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Copied { from, bytes, rate, computed } = *self;
        let (gb, rate) = (bytes as f64 / 1e9, rate / 1e9);
        write!(
            f,
            "prompts of {from} tokens and more have them copied to the card, {gb:.1} GB at \
             {rate:.1} GB/s"
        )?;
        let Some([(_, one), (n, many)]) = computed else { return Ok(()) };
        write!(f, " (the CPU takes {:.1} ms for a token, {:.1} ms for {n})", one * 1e3, many * 1e3)
    }
}

/// The CPU's part of a model whose other parts are on a device.
pub(super) struct Aside {
    host: Mutex<Box<dyn HostOps>>,
    rows: PinnedBuffer<f32>,
    /// Rows that the CPU takes at once.
    chunk: usize,
    /// The experts that the device has, where it has some.
    pub hot: Option<Hot>,
}

impl Aside {
    /// For a graph's operations that are elsewhere; none where there are none.
    pub fn new(
        device: &Device,
        source: Source<'_>,
        graph: &Graph,
        plan: &Plan,
        options: &OpenOptions,
        hot: Option<Hot>,
    ) -> std::result::Result<Option<Aside>, SessionError> {
        let ops: Vec<Op> =
            graph.ops.iter().filter(|op| matches!(op, Op::Elsewhere(_))).cloned().collect();
        let widths = ops.iter().flat_map(|op| [op.reads(), op.writes()]).flatten();
        let Some(width) = widths.map(|v| graph.value(v).width).max() else { return Ok(None) };
        let tokens = plan.programs().iter().map(|p| p.tokens as usize).max().unwrap_or(1);
        let states = graph
            .states
            .iter()
            .map(|s| State { kind: StateKind::Elsewhere, ..s.clone() })
            .collect();
        // The CPU has all experts, also where a weight stands for those of the device's places.
        let all = |w: &Weight| {
            let same =
                |o: &&Weight| o.experts > w.experts && (&o.tensor, o.at) == (&w.tensor, w.at);
            graph.weights.iter().find(same).unwrap_or(w).clone()
        };
        let weights = graph.weights.iter().map(all).collect();
        let part = Graph { ops, states, weights, ropes: vec![], hands_on: true, ..graph.clone() };
        // As many positions as a piece has rows: an operation without a state knows no other.
        let options = OpenOptions { context: Some(tokens), ..options.clone() };
        let host = (source.host)(Arc::clone(source.gguf), part, &options)?;
        let (rows, chunk) = (device.pinned(tokens * width)?, options.chunk_on_cpu());
        Ok(Some(Aside { host: Mutex::new(host), rows, chunk, hot }))
    }

    /// Seconds that 1, 2, 4 and more rows take in the first layer of this plan that is the CPU's:
    /// up to as many as take `enough`, as far as that can be told in [`BOUND`].
    fn seconds_of_rows(&self, plan: &Plan, enough: f64) -> Result<Vec<(usize, f64)>> {
        let Some(pause) = plan.decode.pauses.first() else { return Ok(vec![]) };
        let mut host = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        let width = host.graph().ops.get(pause.op).and_then(|op| op.reads().first().copied());
        let width = width.map_or(0, |v| host.graph().value(v).width);
        let most = ROWS.min(self.chunk).min(host.context()).max(1);
        // Rows that differ, so that their experts do.
        let mut seed = 1u64;
        let x = std::iter::repeat_with(|| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 40) as f32 / (1 << 23) as f32 - 1.0
        });
        let x: Vec<f32> = x.take(most * width).collect();
        // Where it is told which experts: others for each row, all of them its own.
        let with = match host.graph().ops.get(pause.op) {
            Some(Op::Elsewhere(elsewhere)) if !elsewhere.with.is_empty() => elsewhere.clone(),
            _ => Elsewhere {
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
            // The first of all finds pages that nobody has touched, and any may be disturbed.
            let took = once()?.min(once()?).as_secs_f64();
            seen.push((rows, took));
            if took >= enough || start.elapsed() >= BOUND {
                break;
            }
        }
        Ok(seen)
    }

    /// Does what comes at a pause, for so many rows: `part` gives those of a buffer.
    pub fn compute(
        &self,
        stream: &Stream,
        pause: &Pause,
        rows: usize,
        part: &dyn Fn(BufferId) -> Result<DeviceBuffer<f32>>,
    ) -> Result<()> {
        let hot = || {
            self.hot.as_ref().ok_or_else(|| Error::Buffer("no expert is on the device".to_owned()))
        };
        match pause.what {
            AtPause::All { from } => {
                let from = part(from)?;
                let here = self.rows.slice(..from.len())?;
                stream.copy_out(&from, &here)?;
                stream.synchronize()?;
                let x = here.read(<[f32]>::to_vec)?;
                self.run(stream, (pause.op, rows), &[&x]).map(|_| ())
            }
            AtPause::Divide { from: [x, experts, shares], to: [places, own] } => {
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
            AtPause::Rest { to } => {
                let (Mine { x, experts, shares, any }, to) = (hot()?.mine()?, part(to)?);
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

    /// Where the device finds what was made last.
    pub fn rows(&self) -> DeviceBuffer<f32> {
        self.rows.on_device()
    }

    /// Runs one of the host's operations over so many rows; where what it makes lies then.
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

/// Elements of a buffer's rows of singles, of which a program has so many.
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
    fn a_prompt_is_copied_from_where_that_takes_no_longer() {
        // 17 GB of experts at 55 GB/s; 14.4 ms a token.
        assert_eq!(even(0.31, &[(1, 0.0144), (16, 0.2304)]), 22);
        assert_eq!(even(0.31, &[(1, 0.31)]), 2);
        assert_eq!(even(0.0, &[(1, 0.1)]), 2);
        // Feed-forward parts of 70b, 22.7 GB at 55 GB/s, of which a row takes 160 ms and eight 620.
        assert_eq!(even(0.412, &[(1, 0.16), (2, 0.21), (4, 0.34), (8, 0.62)]), 6);
        assert_eq!(even(0.245, &[(1, 0.24), (2, 0.25)]), 2);
        // What is disturbed is no reason to divide by nothing.
        assert_eq!(even(0.3, &[(1, 0.2), (2, 0.1), (4, 0.3)]), 4);
        // A rate that could not be measured.
        assert_eq!(even(f64::INFINITY, &[(1, 0.1)]), usize::MAX);
        assert_eq!(even(0.1, &[]), usize::MAX);
    }
}
