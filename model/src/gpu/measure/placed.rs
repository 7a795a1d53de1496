//! A case on the device: its buffers, once or many times over; checked, and timed.

use super::sources::Sources;
use crate::gpu::ours;
use kjit_engine::{Arena, Arg, Device, DeviceBuffer, Error, Kernel, Result, Stream, Target};
use kjit_kernels::Size;
use kjit_kernel_cases::{Case, CaseArg, Content, Expect};
use kjit_kernels::spec::Spec;
use std::time::Instant;

/// Time of a launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// Seconds: the median over replays.
    pub median: f64,
    /// Seconds between the quarter of replays that were fastest and the quarter that were slowest.
    pub spread: f64,
}

impl Timing {
    /// Of so many samples, in seconds.
    #[must_use]
    pub fn of(mut samples: Vec<f64>) -> Timing {
        samples.sort_by(f64::total_cmp);
        let at = |part: usize| {
            samples.get((samples.len().saturating_sub(1)) * part / 4).copied().unwrap_or(0.0)
        };
        Timing { median: at(2), spread: at(3) - at(1) }
    }
}

/// A case whose buffers are on the device.
pub struct Placed {
    device: Device,
    stream: Stream,
    case: Case,
    /// Buffers of each copy, in the order of the arguments.
    copies: Vec<Vec<Option<DeviceBuffer<u8>>>>,
    /// Which copy the next launch gets.
    next: usize,
    /// No launch has written to the first copy.
    fresh: bool,
    /// Seconds of the last run, of reading back what came of it, and of holding that against the
    /// oracle's.
    took: [f64; 3],
}

/// What is read back of inputs that must not change, when not all of it is.
const GLANCE: usize = 64 << 10;
/// A chain's launches at most.
const CHAIN: usize = 512;
/// Seconds that a chain should take: far more than starting it does.
const CHAIN_SECONDS: f64 = 2e-3;
/// Seconds that all replays of a chain may take.
const ALL_SECONDS: f64 = 0.25;
/// Where buffers begin in memory that is given: what any load of a kernel wants, and the drivers'
/// own allocations have.
const ALIGNED: usize = 256;
/// Replays that count.
const REPLAYS: usize = 11;
/// Bytes of the second cache where the driver does not tell.
const CACHE: u64 = 64 << 20;

impl Placed {
    /// Uploads a case.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn new(device: &Device, case: Case) -> Result<Placed> {
        let stream = device.stream()?;
        let mut placed = Placed {
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

    /// Bytes that [`Placed::within`] takes for a case.
    #[must_use]
    pub fn bytes(case: &Case) -> usize {
        let contents = case.args.iter().filter_map(content);
        contents.fold(0, |bytes, content| bytes.saturating_add(aligned(content.len())))
    }

    /// Puts a case into memory that is there: by copies and fills on the device alone.
    ///
    /// # Errors
    /// Memory of less than [`Placed::bytes`], or a case that is not among the sources; what the
    /// device says.
    pub fn within(
        stream: &Stream,
        memory: &DeviceBuffer<u8>,
        sources: &Sources,
        case: Case,
    ) -> Result<Placed> {
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
        Ok(Placed {
            device,
            stream: stream.clone(),
            case,
            copies: vec![copy],
            next: 0,
            fresh: true,
            took: [0.0; 3],
        })
    }

    /// Waits until everything lies in its place.
    ///
    /// # Errors
    /// What the device says.
    pub fn settle(&self) -> Result<()> {
        self.stream.synchronize()
    }

    /// The case.
    #[must_use]
    pub fn case(&self) -> &Case {
        &self.case
    }

    /// Bytes of a copy.
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

    /// Runs it once and holds what comes of it against the oracle. Without `all`, large inputs are
    /// not looked at for changes.
    ///
    /// # Errors
    /// What is wrong, as a sentence.
    pub fn check(&mut self, kernel: &Kernel, all: bool) -> std::result::Result<(), String> {
        self.judge(kernel, all).map_err(|e| e.to_string())?
    }

    /// The same, with what the device said apart from what its results are.
    ///
    /// # Errors
    /// What the device says.
    pub fn judge(&mut self, kernel: &Kernel, all: bool) -> Result<std::result::Result<(), String>> {
        let after = self.run_once(kernel, all)?;
        let began = Instant::now();
        let checked = self.case.check_some(&after);
        self.took[2] = began.elapsed().as_secs_f64();
        Ok(checked)
    }

    /// Seconds of the last run, of reading back what came of it, and of holding that against the
    /// oracle's.
    #[must_use]
    pub fn took(&self) -> [f64; 3] {
        self.took
    }

    fn run_once(&mut self, kernel: &Kernel, all: bool) -> Result<Vec<Option<Vec<u8>>>> {
        self.next = 0;
        let Some(first) = self.copies.first() else {
            return Err(Error::Buffer("a case without buffers".to_owned()));
        };
        let buffers = || {
            self.case.args.iter().zip(first).filter_map(|(arg, buffer)| match (arg, buffer) {
                (CaseArg::Buffer { before, expect, .. }, Some(buffer)) => {
                    Some((before, expect, buffer))
                }
                _ => None,
            })
        };
        // Outputs are poisoned again: a kernel before this one has filled them.
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
                Expect::Same => !all && before.len() > GLANCE,
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

    /// As many copies as let a chain of launches read past the second cache, within `most` bytes;
    /// whether there are.
    ///
    /// # Errors
    /// As of [`Placed::new`].
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

    /// Puts a launch of `kernel` into the placed stream, with the next copy's buffers.
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
        ours::launch(stream, kernel, &case.geometry.dependent(dependent), &args)
    }

    /// A launch into a stream that is being captured, in a chain with others.
    ///
    /// # Errors
    /// As of [`Stream::launch`].
    pub fn chain(&mut self, stream: &Stream, kernel: &Kernel) -> Result<()> {
        self.fresh = false;
        let copy = self.next;
        self.next = (copy + 1) % self.copies.len().max(1);
        self.launch_into(stream, kernel, &self.case, self.case.geometry.dependent, copy)
    }

    /// Times a chain of launches of this kernel alone; and whether its copies were too few to get
    /// past the second cache.
    ///
    /// # Errors
    /// What the device says.
    pub fn alone(&mut self, kernel: &Kernel) -> Result<(Timing, bool)> {
        self.fresh = false;
        let once = self.seconds(|placed| placed.launch(kernel, false, 0))?.max(1e-7);
        // A simulated device takes a thousand times as long: one launch, two replays, and no
        // copies.
        let most = (ALL_SECONDS / once / (REPLAYS + 2) as f64) as usize;
        let slow = most < 8;
        let (free, _) = self.device.memory()?;
        // A chain of launches that each take a microsecond needs hundreds of copies.
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

    /// Seconds of what is put into the stream.
    fn seconds(&self, work: impl FnOnce(&Placed) -> Result<()>) -> Result<f64> {
        let (from, to) = (self.device.timed_event()?, self.device.timed_event()?);
        self.stream.record(&from)?;
        work(self)?;
        self.stream.record(&to)?;
        self.stream.synchronize()?;
        Ok(f64::from(to.milliseconds_since(&from)?) * 1e-3)
    }

    /// Launches go by another variant of the kernel from now on; the buffers stay.
    ///
    /// # Errors
    /// As of [`Case::vary`]; working memory that it was not placed with.
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
            Err(format!("{spec}: a variant that needs more memory"))
        }
    }
}

/// What is in an argument that is a buffer.
pub(super) fn content(arg: &CaseArg) -> Option<&Content> {
    if let CaseArg::Buffer { before, .. } = arg { Some(before) } else { None }
}

/// Bytes of memory for so many.
pub(super) const fn aligned(bytes: usize) -> usize {
    bytes.saturating_add(ALIGNED - 1) / ALIGNED * ALIGNED
}

/// Writes what is to be in a buffer.
fn put(stream: &Stream, buffer: &DeviceBuffer<u8>, content: &Content) -> Result<()> {
    match content.uniform() {
        Some(byte) => stream.fill(buffer, byte),
        None => {
            let mut there = 0;
            for piece in content.pieces() {
                stream.write(&buffer.slice(there..there + piece.len())?, piece)?;
                there += piece.len();
            }
            repeat(stream, buffer, there)
        }
    }
}

/// Repeats the first bytes of a buffer to its end.
pub(super) fn repeat(stream: &Stream, buffer: &DeviceBuffer<u8>, part: usize) -> Result<()> {
    let mut there = part;
    while there > 0 && there < buffer.len() {
        // A whole number of parts each time, but for the last.
        let more = there.min(buffer.len() - there);
        stream.copy(&buffer.slice(0..more)?, &buffer.slice(there..there + more)?)?;
        there += more;
    }
    Ok(())
}

/// Seconds of each replay, after two that do not count.
///
/// # Errors
/// What the device says.
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
