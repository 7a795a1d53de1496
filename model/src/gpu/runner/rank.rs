//! One device of several processes that compute each layer together: this process's runner. All of them do the same
//! calls, as the devices of one process do (`together.rs`), but nobody tells one what another does: it follows from
//! the tokens that all are given, and that all choose.

use super::GpuRunner;
use super::together::prove;
use crate::gguf::Gguf;
use crate::gpu::meeting::MeetingPlace;
use crate::gpu::open::plan_for;
use crate::graph::Graph;
use crate::ranks::{Far, Hello, Links, Ranks, RanksError, Waiting, meet};
use crate::session::{OpenOptions, SessionError, Task};
use kjit_engine::{COLLECTIVE_ID, Device, Engine};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// How long the library may take to join ranks that are all there.
const JOIN: Duration = Duration::from_secs(60);

impl GpuRunner {
    /// This process's share of a model: what was made of the graph for its rank.
    pub(crate) fn of_rank(
        engine: &Engine,
        device: &Device,
        gguf: &Arc<Gguf>,
        share: Graph,
        options: &OpenOptions,
        ranks: &Ranks,
    ) -> Result<GpuRunner, SessionError> {
        let error = |error: RanksError| SessionError::Device(error.to_string());
        let library = device.collective_library()?;
        let version = library.version();
        let hello = hello(gguf, device, options, version, ranks.size);
        let (id, links) =
            meet(ranks, &hello, || library.id().map(Vec::from).map_err(|e| RanksError::Meeting(e.to_string())))
                .map_err(error)?;
        let id = <[u8; COLLECTIVE_ID]>::try_from(id);
        let id = id.map_err(|_| SessionError::Device("rank 0 gave no whole id".to_owned()))?;
        let (place, said) = ((ranks.rank, ranks.size), links.1.clone());
        let stop = || Links::gone(&links).map(|rank| format!("rank {rank} has ended"));
        let collective = library.join(&id, place, JOIN, &stop)?;
        let room = plan_for(engine, &share, device.target(), options)?.room().unwrap_or_default();
        let far = |sums| Far::new(collective, links, ranks.rank, sums);
        let meeting = MeetingPlace::of_rank(device, place, room, far)?;
        let instead = |error| meeting.instead(device, error);
        if let Some(far) = meeting.far() {
            first_word(device, far, place).map_err(instead)?;
        }
        let mut runner = GpuRunner::open_at(engine, device, gguf, share, options, (Some(meeting.clone()), None))?;
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

    /// What the ranks may draw random numbers from, which all of them have alike; none where there are none.
    pub fn common_seed(&self) -> Option<u64> {
        self.common_seed
    }

    /// On the first rank: waits until the others have said what they were given, which is then known to be the same.
    /// What was computed of something else is handed out by nobody.
    pub(super) fn agreed(&self) -> Result<(), SessionError> {
        match self.resident.meeting.as_ref().and_then(MeetingPlace::far) {
            Some(far) => far.agreed(self.resident.stream.device()),
            None => Ok(()),
        }
    }

    /// What is to be said of a call that failed.
    pub(super) fn instead(&self, error: SessionError) -> SessionError {
        match &self.resident.meeting {
            Some(meeting) => meeting.instead(self.resident.stream.device(), error),
            None => error,
        }
    }

    /// Says what this rank is given, for all must be given the same; the others are waited for as long as what comes
    /// back lives. Nothing where there are none.
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
fn first_word(device: &Device, far: &Far, (rank, ranks): (usize, usize)) -> Result<(), SessionError> {
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

/// What all ranks must have alike: whoever has another launches something else, and waits for sums that nobody makes.
fn hello(gguf: &Gguf, device: &Device, options: &OpenOptions, library: u32, size: usize) -> Hello {
    let mut model = DefaultHasher::new();
    for path in gguf.paths() {
        std::fs::metadata(path).map_or(0, |m| m.len()).hash(&mut model);
    }
    for tensor in gguf.tensors() {
        format!("{tensor:?}").hash(&mut model);
    }
    let mut setup = DefaultHasher::new();
    let alike = OpenOptions { device: crate::DeviceChoice::Auto, threads: 0, ..options.clone() };
    format!("{alike:?}").hash(&mut setup);
    vec![
        ("number of ranks", size.to_string()),
        ("kjit", env!("CARGO_PKG_VERSION").to_owned()),
        ("kind of device", device.target().id().to_owned()),
        ("version of the library", library.to_string()),
        ("model", format!("{:016x}", model.finish())),
        ("options", format!("{:016x}", setup.finish())),
    ]
}
