//! The choice of a product's tiles: a verdict of an earlier measurement, a new measurement if
//! exhaustive tuning is on, otherwise the table of `tiles.rs`.

use super::Gpu;
use super::product::job;
use super::tiles::{Tiles, candidates, tiles};
use crate::contract::Contraction;
use crate::error::{Error, Result};
use crate::program::Program;
use crate::tuning::{self, Measured, Verdict};
use kjit_engine::{DeviceBuffer, Event, TuningSubject};

/// A candidate runs for at least this long in each of its repetitions.
const LEAST_MS: f32 = 1.0;
/// Most launches of a repetition.
const MOST_LAUNCHES: u32 = 50;
const REPETITIONS: u32 = 3;

/// The computation of a verdict: sizes and strides, without the operations that follow, which are
/// in the kernel's text.
fn subject(c: &Contraction) -> String {
    let one = |n: &[usize]| match n {
        [] => "1".to_owned(),
        n => n.iter().map(usize::to_string).collect::<Vec<_>>().join("·"),
    };
    let strides = |o: &crate::contract::Operand| format!("{:?}{:?}{:?}", o.batch, o.own, o.depth);
    format!(
        "{} {} × {} × {} × {} {} {}",
        c.dtype,
        one(&c.batch),
        one(&c.rows),
        one(&c.cols),
        one(&c.depth),
        strides(&c.left),
        strides(&c.right)
    )
}

impl Gpu {
    /// The tiles of a product, whose results go to `to`.
    pub(super) fn chosen(
        &self,
        c: &Contraction,
        program: &Program,
        to: &DeviceBuffer<u8>,
    ) -> Result<Tiles> {
        let target = self.device.target();
        let usual = tiles(c, program, target, self.device.info().units as usize);
        let fitting = candidates(c, program, target);
        if fitting.len() < 2 {
            return Ok(usual);
        }
        let job = job(&self.product_text(c, program, usual), usual, target);
        let what = format!("{}{}", tuning::PREFIX, subject(c));
        let by = TuningSubject { target, source: &job.source, what: &what };
        let named = |name: &str| fitting.iter().find(|t| t.name() == name).copied();
        let is_one = |choice: &str| named(choice).is_some();
        if let Some(verdict) = tuning::verdict(&self.engine, &by, is_one)?
            && let Some(tiles) = named(&verdict.choice)
        {
            return Ok(tiles);
        }
        if !tuning::is_exhaustive() {
            return Ok(usual);
        }
        let mut measured = Vec::new();
        for tiles in &fitting {
            // A kernel that the compiler refuses is not chosen; the verdict says so.
            let took = match self.time(c, program, *tiles, to) {
                Ok(took) => Measured::Microseconds(took),
                Err(error) if error.is_lost() => return Err(error),
                Err(error) => Measured::Refused(error.to_string()),
            };
            measured.push((tiles.name(), took));
        }
        let took = |m: &Measured| match m {
            Measured::Microseconds(t) => *t,
            Measured::Refused(_) => f32::INFINITY,
        };
        let best = measured.iter().min_by(|a, b| took(&a.1).total_cmp(&took(&b.1)));
        let choice = best.map(|(name, _)| name.clone()).unwrap_or_default();
        let tiles = named(&choice).ok_or(Error::Inside("no tiles were measured"))?;
        let device = target.id().to_owned();
        let verdict = Verdict { device, subject: subject(c), choice, measured };
        tuning::keep(&self.engine, &by, &verdict)?;
        Ok(tiles)
    }

    /// Microseconds of a launch: the least of some repetitions.
    fn time(
        &self,
        c: &Contraction,
        program: &Program,
        tiles: Tiles,
        to: &DeviceBuffer<u8>,
    ) -> Result<f32> {
        let prepared = self.prepare_product(c, program, tiles)?;
        let lane = self.lane();
        let (start, end) = (self.event(true)?, self.event(true)?);
        let run = |launches: u32| -> Result<f32> {
            lane.stream.record(&start)?;
            for _ in 0..launches {
                self.launch_product(&prepared, c, program, to)?;
            }
            lane.stream.record(&end)?;
            end.synchronize()?;
            Ok(Event::milliseconds_since(&end, &start)?)
        };
        run(1)?;
        let once = run(1)?.max(1e-3);
        let launches = ((LEAST_MS / once).ceil() as u32).clamp(1, MOST_LAUNCHES);
        let mut least = f32::INFINITY;
        for _ in 0..REPETITIONS {
            least = least.min(run(launches)? / launches as f32);
        }
        Ok(least * 1e3)
    }
}
