//! The costs of launches, graph nodes, events and grid barriers.

use super::{Bench, Figure, text};
use kjit_engine::{Arg, DeviceBuffer, Geometry};
use kjit_kernels::card;
use kjit_kernels::persistent::Persistent;
use std::cell::Cell;
use std::time::Instant;

/// Nodes of the long graph.
const NODES: usize = 128;
/// Nanoseconds after which a block stops waiting for the other blocks.
const LIMIT: u64 = 2_000_000_000;
/// Minimum seconds of barriers for the computation of their cost.
const MIN_SECONDS: f64 = 2e-3;

pub(super) fn costs(bench: &Bench<'_>) -> Vec<Figure> {
    let units = "µs";
    let counted = match Counted::new(bench) {
        Ok(counted) => counted,
        Err(why) => {
            let names = ["launch in a row", "launch and wait", "graph node", "graph and wait"];
            let names = names.into_iter().chain(["launch behind an event", "grid barrier"]);
            return names.map(|name| Figure::none(name, units, why.clone())).collect();
        }
    };
    let micro = |seconds: Result<f64, String>| seconds.map(|s| s * 1e6);
    let mut all = vec![
        Figure::of("launch in a row", units, micro(counted.in_a_row())),
        Figure::of("launch and wait", units, micro(counted.and_wait())),
    ];
    let (node, whole) = match counted.graph() {
        Ok((node, whole)) => (Ok(node), Ok(whole)),
        Err(why) => (Err(why.clone()), Err(why)),
    };
    all.push(Figure::of("graph node", units, micro(node)));
    all.push(Figure::of("graph and wait", units, micro(whole)));
    all.push(Figure::of("launch behind an event", units, micro(counted.events())));
    all.push(Figure::of("grid barrier", units, micro(barrier(bench))));
    all
}

/// Launches that are counted on the device and on the host.
struct Counted<'b, 'e> {
    bench: &'b Bench<'e>,
    count: DeviceBuffer<u32>,
    launched: Cell<u32>,
}

impl<'b, 'e> Counted<'b, 'e> {
    fn new(bench: &'b Bench<'e>) -> Result<Counted<'b, 'e>, String> {
        let count = bench.stream.upload(&[0u32]).map_err(text)?;
        bench.stream.synchronize().map_err(text)?;
        Ok(Counted { bench, count, launched: Cell::new(0) })
    }

    fn one(&self, stream: &kjit_engine::Stream) -> kjit_engine::Result<()> {
        let shape = Geometry::new(self.bench.units(), card::BLOCK);
        self.bench.launch(stream, card::COUNT, &shape, &[Arg::from(&self.count)])
    }

    fn more(&self, n: usize) {
        self.launched.set(self.launched.get().wrapping_add(n as u32));
    }

    /// A measurement is valid if the device has counted every launch.
    fn checked(&self, seconds: f64) -> Result<f64, String> {
        let got = self.bench.stream.read(&self.count).map_err(text)?;
        match got.first() {
            Some(n) if *n == self.launched.get() => Ok(seconds),
            Some(n) => Err(format!("{} launches, but the device counted {n}", self.launched.get())),
            None => Err("the count cannot be read".to_owned()),
        }
    }

    fn in_a_row(&self) -> Result<f64, String> {
        self.checked(self.bench.each(&|n| {
            self.more(n);
            (0..n).try_for_each(|_| self.one(&self.bench.stream))
        })?)
    }

    fn and_wait(&self) -> Result<f64, String> {
        self.checked(self.bench.each(&|n| {
            self.more(n);
            (0..n).try_for_each(|_| {
                self.one(&self.bench.stream)?;
                self.bench.stream.synchronize()
            })
        })?)
    }

    /// The cost of a node in a long graph, and of a graph of one node with a wait.
    fn graph(&self) -> Result<(f64, f64), String> {
        let stream = &self.bench.stream;
        let of = |nodes: usize| {
            stream.capture(|| (0..nodes).try_for_each(|_| self.one(stream))).map_err(text)
        };
        let (short, long) = (of(1)?, of(NODES)?);
        let replay = |graph: &kjit_engine::Graph, nodes: usize, wait: bool| {
            self.bench.each(&|n| {
                self.more(n * nodes);
                (0..n).try_for_each(|_| {
                    stream.replay(graph)?;
                    if wait { stream.synchronize() } else { Ok(()) }
                })
            })
        };
        let (one, all) = (replay(&short, 1, true)?, replay(&long, NODES, true)?);
        let node = (all - one) / (NODES - 1) as f64;
        self.checked(node.max(0.0)).map(|node| (node, one))
    }

    /// Two streams that launch in turn, each after an event of the other.
    fn events(&self) -> Result<f64, String> {
        let (here, device) = (&self.bench.stream, self.bench.device);
        let there = device.stream().map_err(text)?;
        let (mine, its) = (device.event().map_err(text)?, device.event().map_err(text)?);
        let pair = self.bench.each(&|n| {
            self.more(2 * n);
            (0..n).try_for_each(|_| {
                self.one(here)?;
                here.record(&mine)?;
                there.wait(&mine)?;
                self.one(&there)?;
                there.record(&its)?;
                here.wait(&its)
            })
        })?;
        self.checked(pair / 2.0)
    }
}

/// The cost of a barrier of one block on each unit.
fn barrier(bench: &Bench<'_>) -> Result<f64, String> {
    if !bench.device.info().cooperative {
        return Err("the runtime does not support cooperative launches".to_owned());
    }
    let (stream, blocks) = (&bench.stream, bench.units());
    let meeting = stream.upload(&[0u8; Persistent::MEETING]).map_err(text)?;
    let count = stream.upload(&[0u32]).map_err(text)?;
    let late = bench.device.pinned::<u32>(1).map_err(text)?;
    let word = late.on_device();
    let shape = Geometry::new(blocks, card::BLOCK).cooperative(true);
    let mut launches = 0;
    let mut timed = |rounds: u32| {
        let args = [
            Arg::from(&meeting),
            Arg::from(&word),
            LIMIT.into(),
            blocks.into(),
            rounds.into(),
            Arg::from(&count),
        ];
        let began = Instant::now();
        bench.launch(stream, card::MEET, &shape, &args).map_err(text)?;
        stream.synchronize().map_err(text)?;
        launches += 1;
        Ok::<f64, String>(began.elapsed().as_secs_f64())
    };
    timed(1)?;
    let mut rounds = 4;
    let (none, mut some) = (timed(0)?, timed(rounds)?);
    while some < MIN_SECONDS && rounds < 1 << 16 {
        rounds *= 4;
        some = timed(rounds)?;
    }
    let (none, some) = (none.min(timed(0)?), some.min(timed(rounds)?));
    let late = late.peek(0).map_err(text)?;
    let got = stream.read(&count).map_err(text)?.first().copied();
    if late != 0 || got != Some(launches * blocks) {
        return Err(format!("the barrier failed: {got:?} of {} blocks ended", launches * blocks));
    }
    Ok((some - none).max(0.0) / f64::from(rounds))
}
