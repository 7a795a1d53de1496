//! One device of several processes that compute each layer together: this process's runner. All of
//! them do the same calls, as the devices of one process do (`together.rs`), but nobody tells one
//! what another does: it follows from the tokens that all are given, and that all choose.

use super::GpuRunner;
use super::together::prove;
use crate::meeting::MeetingPlace;
use crate::open::Source;
use crate::open::plan_for;
use kjit_engine::{COLLECTIVE_ID, Device, Engine, Stream};
use kjit_exec::{OpenOptions, SessionError, Task};
use kjit_gguf::Gguf;
use kjit_graph::Graph;
use kjit_ranks::{Far, Hello, Links, Ranks, RanksError, Waiting, meet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// How long the library may take to join ranks that are all there.
const JOIN: Duration = Duration::from_secs(60);
/// How long the device may take to come to rest behind what was given up. The library's kernels
/// look for that all the time; asking it for the end may take it seconds, and a device that is left
/// is left for good.
const REST: Duration = Duration::from_secs(8);

/// The end of a rank's runner. The steps that were launched ahead of the last token are all ranks',
/// but one that was interrupted a token sooner has launched one less: then the device waits for a
/// sum that never comes, and so would whoever gives memory back.
pub(super) struct Leaving(MeetingPlace, Stream);

impl Drop for Leaving {
    fn drop(&mut self) {
        let Leaving(meeting, stream) = self;
        // Its thread gives the sum up: 2 s behind the end of another rank, or 10 s where that one
        // hangs.
        let _waiting = meeting.waiting();
        let mut over = None;
        // A device that fails has nothing under way.
        while matches!(stream.is_idle(), Ok(false)) {
            if over.is_none() && meeting.is_over() {
                over = Some(Instant::now());
            }
            if over.is_some_and(|since: Instant| since.elapsed() > REST) {
                return stream.device().leave();
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        // Recorded work of the library's would be given back to what is not there any more.
        if meeting.is_over() {
            stream.device().leave();
        }
    }
}

impl GpuRunner {
    /// This process's share of a model: what was made of the graph for its rank.
    pub fn of_rank(
        engine: &Engine,
        device: &Device,
        source: Source<'_>,
        share: Graph,
        options: &OpenOptions,
        ranks: &Ranks,
    ) -> Result<GpuRunner, SessionError> {
        let error = |error: RanksError| SessionError::Device(error.to_string());
        let library = device.collective_library()?;
        let version = library.version();
        let hello = hello(source.gguf, device, options, version, ranks.size);
        let (id, links) = meet(ranks, &hello, || {
            library.id().map(Vec::from).map_err(|e| RanksError::Meeting(e.to_string()))
        })
        .map_err(error)?;
        let id = <[u8; COLLECTIVE_ID]>::try_from(id);
        let id = id.map_err(|_| SessionError::Device("rank 0 gave no whole id".to_owned()))?;
        let (place, said) = ((ranks.rank, ranks.size), links.1.clone());
        let stop = || Links::gone(&links).map(|rank| format!("rank {rank} has ended"));
        let collective = library.join(&id, place, JOIN, &stop)?;
        let room = plan_for(engine, &share, device.target(), options)?.room().unwrap_or_default();
        let far = |sums| Far::new(collective, links, (ranks.rank, ranks.limit), sums);
        let meeting = MeetingPlace::of_rank(device, place, room, far)?;
        let instead = |error| meeting.instead(device, error);
        if let Some(far) = meeting.far() {
            first_word(device, far, place).map_err(instead)?;
        }
        let opened = GpuRunner::open_at(
            engine,
            device,
            source,
            share,
            options,
            (Some(meeting.clone()), None),
        );
        let mut runner = opened.map_err(instead)?;
        runner.far = Some(Leaving(meeting.clone(), runner.resident.stream.clone()));
        let proven = prove(std::slice::from_ref(&runner), ranks.rank, ranks.size);
        proven.map_err(|e| match instead(e) {
            lost @ SessionError::Lost(_) => lost,
            e => SessionError::Device(format!("what ranks send each other does not arrive: {e}")),
        })?;
        if let Some(far) = meeting.far() {
            far.opened();
        }
        let mut seed = DefaultHasher::new();
        id.hash(&mut seed);
        runner.common_seed = Some(seed.finish());
        runner.remark(said.into_iter().collect());
        let (rank, size, by) = (ranks.rank, ranks.size, ranks.launcher);
        let vendor = device.target().vendor().name();
        runner.remark(vec![format!(
            "rank {rank} of {size} by {by}; sums by {vendor}'s library, version {}.{}.{}",
            version / 10_000,
            version / 100 % 100,
            version % 100
        )]);
        Ok(runner)
    }

    /// What the ranks may draw random numbers from, which all of them have alike; none where there
    /// are none.
    pub fn common_seed(&self) -> Option<u64> {
        self.common_seed
    }

    /// On the first rank: waits until the others have said what they were given, which is then
    /// known to be the same. What was computed of something else is handed out by nobody.
    pub(super) fn agreed(&self) -> Result<(), SessionError> {
        match self.resident.meeting.as_ref().and_then(MeetingPlace::far) {
            Some(far) => far.agreed(self.resident.stream.device()),
            None => Ok(()),
        }
    }

    /// Says what else all ranks must be given alike: what of it makes one of them end sooner.
    pub fn given_besides(&self, what: &impl Hash) {
        if let Some(far) = self.resident.meeting.as_ref().and_then(MeetingPlace::far) {
            let mut all = DefaultHasher::new();
            what.hash(&mut all);
            far.given(all.finish());
        }
    }

    /// What is to be said of a call that failed.
    pub(super) fn instead(&self, error: SessionError) -> SessionError {
        match &self.resident.meeting {
            Some(meeting) => meeting.instead(self.resident.stream.device(), error),
            None => error,
        }
    }

    /// Says what this rank is given, for all must be given the same; the others are waited for as
    /// long as what comes back lives. Nothing where there are none.
    pub(super) fn given(&self, tasks: &[Task<'_>]) -> Option<Waiting> {
        let far = self.resident.meeting.as_ref().and_then(MeetingPlace::far)?;
        let mut all = DefaultHasher::new();
        for task in tasks {
            (task.slot, task.first, task.tokens).hash(&mut all);
            // The seed is one of them: with another, ranks would go on with tokens of their own.
            format!("{:?}", task.sampler.options()).hash(&mut all);
        }
        far.given(all.finish());
        Some(far.waiting())
    }
}

/// A word of each goes around before anybody loads a model: what does not work shows at once.
fn first_word(
    device: &Device,
    far: &Far,
    (rank, ranks): (usize, usize),
) -> Result<(), SessionError> {
    let (stream, word, all) = (device.stream()?, device.buffer(1)?, device.buffer(ranks)?);
    stream.write(&word, &[rank as f32 + 0.5])?;
    let _waiting = far.waiting();
    far.gather(&stream, &word, &all)?;
    while !stream.is_idle()? {
        far.check(device)?;
        std::thread::sleep(Duration::from_millis(1));
    }
    far.check(device)?;
    let came: Vec<f32> = stream.read(&all)?;
    match came.iter().zip(0u16..).all(|(came, rank)| *came == f32::from(rank) + 0.5) {
        true => Ok(()),
        false => Err(SessionError::Device("what ranks send each other does not arrive".to_owned())),
    }
}

/// What all ranks must have alike: whoever has another launches something else, and waits for sums
/// that nobody makes.
fn hello(gguf: &Gguf, device: &Device, options: &OpenOptions, library: u32, size: usize) -> Hello {
    let mut model = DefaultHasher::new();
    for no in 0..gguf.paths().count() {
        sampled(gguf.part_bytes(no).unwrap_or_default()).hash(&mut model);
    }
    for tensor in gguf.tensors() {
        format!("{tensor:?}").hash(&mut model);
    }
    let mut setup = DefaultHasher::new();
    let alike = OpenOptions { device: kjit_exec::DeviceChoice::Auto, threads: 0, ..options.clone() };
    format!("{alike:?}").hash(&mut setup);
    vec![
        ("number of ranks", size.to_string()),
        ("kjit", format!("{}-{}", env!("CARGO_PKG_VERSION"), build())),
        ("kind of device", device.target().id().to_owned()),
        ("version of the library", library.to_string()),
        ("model", format!("{:016x}", model.finish())),
        ("options", format!("{:016x}", setup.finish())),
    ]
}

/// Bytes from a file's start that are compared in whole: a model's metadata, with the vocabulary.
const START: usize = 8 << 20;
/// Places behind them that are compared, and bytes of each: of 400 tensors each of the large ones
/// has some.
const PLACES: usize = 1024;
const PLACE: usize = 64;

/// A number of a file's length, its start and places all over it.
fn sampled(bytes: &[u8]) -> u64 {
    let mut all = DefaultHasher::new();
    let (start, rest) = bytes.split_at(bytes.len().min(START));
    (bytes.len(), start).hash(&mut all);
    let step = rest.len().div_ceil(PLACES).max(PLACE);
    rest.chunks(step).for_each(|chunk| chunk.get(..PLACE).unwrap_or(chunk).hash(&mut all));
    all.finish()
}

/// Tells builds of one version apart: a number of this program's file. "unknown" where it is not
/// there any more.
fn build() -> String {
    std::fs::read("/proc/self/exe")
        .map(|bytes| sampled(&bytes))
        .map_or("unknown".to_owned(), |n| format!("{n:016x}"))
}

#[cfg(test)]
mod tests {
    use super::sampled;

    #[test]
    fn a_file_of_the_same_length_with_other_bytes_is_another() {
        let mut bytes: Vec<u8> =
            (0..20_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let first = sampled(&bytes);
        assert_eq!(sampled(&bytes), first);
        // A tuned tensor of a thousandth of the file, and a byte of the metadata.
        bytes[15_000_000..15_020_000].iter_mut().for_each(|b| *b ^= 1);
        let tuned = sampled(&bytes);
        bytes[1000] ^= 1;
        assert!(
            tuned != first && sampled(&bytes) != tuned && sampled(&bytes[1..]) != sampled(&bytes)
        );
    }
}
