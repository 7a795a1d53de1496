//! Measures a GPU without a model, for `kjit probe`: costs of launches, barriers and events, rates
//! of memory, LDS and matrices, the core's clock, and the memory that can be allocated.
//!
//! Every kernel's result is compared with the expected result, and a wrong result is an error. The
//! work grows until it takes long enough to be measured, so slow devices finish soon as well.

mod costs;
mod rates;
mod room;

use crate::launch;
use kjit_engine::{Arg, Device, Engine, Geometry, Module, Stream};
use kjit_kernels::card;
use std::time::Instant;

/// A measured figure, or the reason why there is none.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Figure {
    /// The name, which is equal in all reports.
    pub name: String,
    /// The value; `None` if it could not be measured.
    pub value: Option<f64>,
    /// The value's unit.
    pub unit: &'static str,
    /// A remark, or the reason why there is no value.
    pub note: String,
}

impl Figure {
    /// A figure with a value.
    #[must_use]
    pub fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Figure {
        Figure { name: name.into(), value: Some(value), unit, note: String::new() }
    }

    /// A figure without a value, for this reason.
    #[must_use]
    pub fn none(name: impl Into<String>, unit: &'static str, why: impl Into<String>) -> Figure {
        Figure { name: name.into(), value: None, unit, note: why.into() }
    }

    /// Adds a remark.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Figure {
        self.note = note.into();
        self
    }

    fn of(name: &str, unit: &'static str, measured: Result<f64, String>) -> Figure {
        match measured {
            Ok(value) => Figure::new(name, value, unit),
            Err(why) => Figure::none(name, unit, why),
        }
    }
}

/// The figures of a card.
///
/// # Errors
/// The kernels cannot be compiled or loaded, or the device is lost. The failure of a single figure
/// is in that figure.
pub fn measure(engine: &Engine, device: &Device, quick: bool) -> Result<Vec<Figure>, String> {
    let module = engine.load(device, &card::job(device.target())).map_err(text)?;
    let stream = device.stream().map_err(text)?;
    let bench = Bench { engine, device, module, stream, quick };
    let mut all = costs::costs(&bench);
    all.extend(rates::rates(&bench));
    all.extend(room::room(&bench));
    // The driver reports a lost device for every later call.
    device.memory().map(|_| all).map_err(text)
}

/// The card, and the kernels that measure it.
struct Bench<'e> {
    engine: &'e Engine,
    device: &'e Device,
    module: Module,
    stream: Stream,
    quick: bool,
}

impl Bench<'_> {
    fn units(&self) -> u32 {
        self.device.info().units.max(1)
    }

    fn launch(
        &self,
        stream: &Stream,
        entry: &str,
        shape: &Geometry,
        args: &[Arg<'_>],
    ) -> kjit_engine::Result<()> {
        launch::launch(stream, &self.module.kernel(entry)?, shape, args)
    }

    /// The seconds of one measurement.
    fn seconds(&self) -> f64 {
        if self.quick { 0.02 } else { 0.2 }
    }

    /// Seconds of one repetition of `work`, which enqueues `n` repetitions. The median of five
    /// measurements, each of as many repetitions as the time allows.
    fn each(&self, work: &dyn Fn(usize) -> kjit_engine::Result<()>) -> Result<f64, String> {
        let timed = |n: usize| {
            let began = Instant::now();
            work(n).and_then(|()| self.stream.synchronize()).map_err(text)?;
            Ok::<f64, String>(began.elapsed().as_secs_f64() / n as f64)
        };
        timed(2)?;
        let once = timed(4)?.max(1e-8);
        let n = ((self.seconds() / 5.0 / once) as usize).clamp(1, 4096);
        let mut all = (0..5).map(|_| timed(n)).collect::<Result<Vec<f64>, String>>()?;
        all.sort_by(f64::total_cmp);
        all.get(2).copied().ok_or_else(|| "nothing was measured".to_owned())
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
