//! A case in device memory, in one or many copies, for checks and timings.

use super::content::{aligned, content, put};
use super::sources::Sources;
use crate::launch;
use kjit_engine::{Arena, Arg, Device, DeviceBuffer, Error, Kernel, Result, Stream, Target};
use kjit_kernel_cases::{Case, CaseArg, Content, Expect};
use kjit_kernels::Size;
use kjit_kernels::spec::Spec;
use std::time::Instant;

/// The time of a launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// Median seconds over replays.
    pub median: f64,
    /// Interquartile range in seconds.
    pub spread: f64,
}

impl Timing {
    /// The timing of samples in seconds.
    #[must_use]
    pub fn of(mut samples: Vec<f64>) -> Timing {
        samples.sort_by(f64::total_cmp);
        let at = |part: usize| {
            samples.get((samples.len().saturating_sub(1)) * part / 4).copied().unwrap_or(0.0)
        };
        Timing { median: at(2), spread: at(3) - at(1) }
    }
}

/// A case with its buffers on the device.
pub struct LoadedCase {
    device: Device,
    stream: Stream,
    case: Case,
    /// The buffers of each copy, in the order of arguments.
    copies: Vec<Vec<Option<DeviceBuffer<u8>>>>,
    /// The copy that the next launch uses.
    next: usize,
    /// Whether no launch has written to the first copy yet.
    fresh: bool,
    /// Seconds of the last run, of reading its results back, and of comparing them.
    took: [f64; 3],
}

/// Larger inputs are checked for changes only if `all` is set.
const SMALL_INPUT: usize = 64 << 10;
/// Maximum number of launches in a chain.
const CHAIN: usize = 512;
/// Target seconds of a chain: much more than the time to start it.
const CHAIN_SECONDS: f64 = 2e-3;
/// Maximum seconds of all replays of a chain.
const ALL_SECONDS: f64 = 0.25;
/// The number of measured replays.
const REPLAYS: usize = 11;
/// Bytes of the L2 cache if the driver does not report it.
const CACHE: u64 = 64 << 20;

impl LoadedCase {
    /// Uploads a case.
    ///
    /// # Errors
    /// An allocation failed.
    pub fn new(device: &Device, case: Case) -> Result<LoadedCase> {
        let stream = device.stream()?;
        let mut placed = LoadedCase {
            device: device.clone(),
            stream,
            case,
            copies: vec![],
            next: 0,
            fresh: true,
            took: [0.0; 3],
        };
        let arena = device.arena(placed.room()?)?;
        let copy = placed.copy(&arena)?;
        for (arg, buffer) in placed.case.args.iter().zip(&copy) {
            if let (CaseArg::Buffer { before, .. }, Some(buffer)) = (arg, buffer) {
                put(&placed.stream, buffer, before)?;
            }
        }
        placed.copies.push(copy);
        Ok(placed)
    }

    /// Bytes that [`LoadedCase::within`] needs for a case.
    #[must_use]
    pub fn bytes(case: &Case) -> usize {
        let contents = case.args.iter().filter_map(content);
        contents.fold(0, |bytes, content| bytes.saturating_add(aligned(content.len())))
    }

    /// Writes a case to given memory with copies and fills on the device only.
    ///
    /// # Errors
    /// There is not enough memory (see [`LoadedCase::bytes`]), the case has no sources, or the
    /// device has an error.
    pub fn within(
        stream: &Stream,
        memory: &DeviceBuffer<u8>,
        sources: &Sources,
        case: Case,
    ) -> Result<LoadedCase> {
        let (mut at, mut copy) = (0, vec![]);
        for arg in &case.args {
            let Some(content) = content(arg) else {
                copy.push(None);
                continue;
            };
            let buffer = memory.slice(at..at + content.len())?;
            at += aligned(content.len());
            sources.put(stream, content, &buffer)?;
            copy.push(Some(buffer));
        }
        let device = stream.device().clone();
        Ok(LoadedCase {
            device,
            stream: stream.clone(),
            case,
            copies: vec![copy],
            next: 0,
            fresh: true,
            took: [0.0; 3],
        })
    }

    /// Waits until all buffers are filled.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn settle(&self) -> Result<()> {
        self.stream.synchronize()
    }

    /// The case.
    #[must_use]
    pub fn case(&self) -> &Case {
        &self.case
    }

    /// Bytes of one copy.
    fn room(&self) -> Result<u64> {
        let buffers = self.case.args.iter().map(|a| match a {
            CaseArg::Buffer { before, .. } => Arena::room::<u8>(before.len()),
            _ => Ok(0),
        });
        buffers.sum::<Result<u64>>().map(|n| n.max(256))
    }

    fn copy(&self, arena: &Arena) -> Result<Vec<Option<DeviceBuffer<u8>>>> {
        let buffers = self.case.args.iter().map(|a| match a {
            CaseArg::Buffer { before, .. } => arena.buffer::<u8>(before.len()).map(Some),
            _ => Ok(None),
        });
        buffers.collect()
    }

    /// Runs the case once and compares the results with the oracle. Without `all`, large inputs are
    /// not checked for changes.
    ///
    /// # Errors
    /// The difference or failure, as text.
    pub fn check(&mut self, kernel: &Kernel, all: bool) -> std::result::Result<(), String> {
        self.judge(kernel, all).map_err(|e| e.to_string())?
    }

    /// Like [`LoadedCase::check`], with device errors separate from wrong results.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn judge(&mut self, kernel: &Kernel, all: bool) -> Result<std::result::Result<(), String>> {
        let after = self.run_once(kernel, all)?;
        let began = Instant::now();
        let checked = self.case.check_some(&after);
        self.took[2] = began.elapsed().as_secs_f64();
        Ok(checked)
    }

    /// Seconds of the last run, of reading its results back, and of comparing them.
    #[must_use]
    pub fn took(&self) -> [f64; 3] {
        self.took
    }

    fn run_once(&mut self, kernel: &Kernel, all: bool) -> Result<Vec<Option<Vec<u8>>>> {
        self.next = 0;
        let Some(first) = self.copies.first() else {
            return Err(Error::Buffer("the case has no buffers".to_owned()));
        };
        let buffers = || {
            self.case.args.iter().zip(first).filter_map(|(arg, buffer)| match (arg, buffer) {
                (CaseArg::Buffer { before, expect, .. }, Some(buffer)) => {
                    Some((before, expect, buffer))
                }
                _ => None,
            })
        };
        // Outputs are filled with poison again, because an earlier kernel has written them.
        for (before, expect, buffer) in buffers().filter(|_| !self.fresh) {
            if !matches!(expect, Expect::Same) {
                put(&self.stream, buffer, before)?;
            }
        }
        let began = Instant::now();
        self.launch(kernel, false, 0)?;
        self.stream.synchronize()?;
        self.took[0] = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let back = |(before, expect, buffer): (&Content, &Expect, &DeviceBuffer<u8>)| {
            let skip = match expect {
                Expect::Same => !all && before.len() > SMALL_INPUT,
                Expect::Anything => true,
                _ => false,
            };
            if skip { Ok(None) } else { self.stream.read(buffer).map(Some) }
        };
        let after = buffers().map(back).collect();
        self.took[1] = began.elapsed().as_secs_f64();
        self.fresh = false;
        after
    }

    /// Creates copies until a chain of launches exceeds the L2 cache, within `most` bytes. Returns
    /// whether the chain exceeds it.
    ///
    /// # Errors
    /// See [`LoadedCase::new`].
    pub fn spread_out(&mut self, launches: usize, most: u64) -> Result<bool> {
        let (each, cache) = (
            self.room()?,
            if self.device.info().l2_bytes > 0 { self.device.info().l2_bytes } else { CACHE },
        );
        let wanted = (4 * cache).div_ceil(each).clamp(1, launches.max(1) as u64);
        let wanted = usize::try_from(wanted.min(most / each).max(1)).unwrap_or(1);
        if wanted > self.copies.len() {
            let arena = self.device.arena(each * (wanted - self.copies.len()) as u64)?;
            while self.copies.len() < wanted {
                let copy = self.copy(&arena)?;
                let first = self.copies.first().map_or(&[][..], Vec::as_slice);
                for (from, to) in first.iter().flatten().zip(copy.iter().flatten()) {
                    self.stream.copy(from, to)?;
                }
                self.copies.push(copy);
            }
            self.stream.synchronize()?;
        }
        Ok(each * self.copies.len() as u64 >= 2 * cache)
    }

    /// Launches `kernel` in the case's stream, with copy `copy`'s buffers.
    fn launch(&self, kernel: &Kernel, dependent: bool, copy: usize) -> Result<()> {
        self.launch_into(&self.stream, kernel, &self.case, dependent, copy)
    }

    fn launch_into(
        &self,
        stream: &Stream,
        kernel: &Kernel,
        case: &Case,
        dependent: bool,
        copy: usize,
    ) -> Result<()> {
        let buffers = self.copies.get(copy).map_or(&[][..], Vec::as_slice);
        let args: Vec<Arg<'_>> = case
            .args
            .iter()
            .enumerate()
            .map(|(i, arg)| match arg {
                CaseArg::Buffer { .. } => Arg::from(buffers.get(i).and_then(Option::as_ref)),
                CaseArg::Null => Arg::Null,
                CaseArg::U32(v) => Arg::from(*v),
                CaseArg::U64(v) => Arg::from(*v),
                CaseArg::F32(v) => Arg::from(*v),
            })
            .collect();
        launch::launch(stream, kernel, &case.geometry.dependent(dependent), &args)
    }

    /// Launches in a stream being captured, as part of a chain.
    ///
    /// # Errors
    /// See [`Stream::launch`].
    pub fn chain(&mut self, stream: &Stream, kernel: &Kernel) -> Result<()> {
        self.fresh = false;
        let copy = self.next;
        self.next = (copy + 1) % self.copies.len().max(1);
        self.launch_into(stream, kernel, &self.case, self.case.geometry.dependent, copy)
    }

    /// Times a chain of launches of this kernel. The flag is true if its copies may fit in the L2
    /// cache.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn alone(&mut self, kernel: &Kernel) -> Result<(Timing, bool)> {
        self.fresh = false;
        let once = self.seconds(|placed| placed.launch(kernel, false, 0))?.max(1e-7);
        // A simulated device is a thousand times slower: one launch, two replays, no copies.
        let most = (ALL_SECONDS / once / (REPLAYS + 2) as f64) as usize;
        let slow = most < 8;
        let (free, _) = self.device.memory()?;
        // A chain of launches of one microsecond needs hundreds of copies.
        let past = if slow { false } else { self.spread_out(most.min(CHAIN), free / 3)? };
        let launches = ((CHAIN_SECONDS / once) as usize)
            .max(8)
            .max(self.copies.len())
            .min(most.min(CHAIN))
            .max(1);
        self.next = 0;
        let stream = self.device.stream()?;
        let graph =
            stream.capture(|| (0..launches).try_for_each(|_| self.chain(&stream, kernel)))?;
        let samples = time(&stream, &graph, if slow { 1 } else { REPLAYS })?;
        Ok((Timing::of(samples.into_iter().map(|s| s / launches as f64).collect()), !past))
    }

    /// Seconds of work in the stream.
    fn seconds(&self, work: impl FnOnce(&LoadedCase) -> Result<()>) -> Result<f64> {
        let (from, to) = (self.device.timed_event()?, self.device.timed_event()?);
        self.stream.record(&from)?;
        work(self)?;
        self.stream.record(&to)?;
        self.stream.synchronize()?;
        Ok(f64::from(to.milliseconds_since(&from)?) * 1e-3)
    }

    /// Switches to another variant of the kernel. The buffers stay.
    ///
    /// # Errors
    /// See [`Case::vary`]; also a variant that needs more working memory.
    pub fn vary(
        &mut self,
        spec: &Spec,
        target: &Target,
        size: Size,
    ) -> std::result::Result<(), String> {
        let units = self.device.info().units;
        let bytes = |case: &Case| -> usize {
            case.args
                .iter()
                .map(|a| if let CaseArg::Buffer { before, .. } = a { before.len() } else { 0 })
                .sum()
        };
        let placed = bytes(&self.case);
        self.case.vary(spec, target, units, size).map_err(|e| e.to_string())?;
        if bytes(&self.case) == placed {
            Ok(())
        } else {
            Err(format!("{spec}: the variant needs more memory"))
        }
    }
}

/// Seconds of each replay, after two replays that are not counted.
///
/// # Errors
/// Errors of the device.
pub fn time(stream: &Stream, graph: &kjit_engine::Graph, replays: usize) -> Result<Vec<f64>> {
    let device = stream.device();
    let mut samples = vec![];
    for i in 0..replays + 2 {
        let (from, to) = (device.timed_event()?, device.timed_event()?);
        stream.record(&from)?;
        stream.replay(graph)?;
        stream.record(&to)?;
        stream.synchronize()?;
        if i >= 2 {
            samples.push(f64::from(to.milliseconds_since(&from)?) * 1e-3);
        }
    }
    Ok(samples)
}
