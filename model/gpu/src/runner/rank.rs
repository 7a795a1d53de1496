//! A runner with one device of several processes that compute each layer together. All ranks make
//! the same calls, like the devices of one process (`tensor_parallel.rs`), but send no messages
//! about the calls. The calls depend only on the tokens, and all ranks get and choose the same
//! tokens.

use super::GpuRunner;
use super::rank_shutdown::RankShutdown;
use super::tensor_parallel::prove;
use crate::exchange::Exchange;
use crate::open::plan_for;
use crate::source::Source;
use kjit_engine::{COLLECTIVE_ID, Device, Engine};
use kjit_exec::{OpenOptions, SessionError, Task};
use kjit_gguf::Gguf;
use kjit_graph::Graph;
use kjit_ranks::{DeviceWait, Hello, RankConnections, Ranks, RanksError, RemoteRanks, handshake};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// The time limit for joining the library's group after all ranks are connected.
const JOIN: Duration = Duration::from_secs(60);
impl GpuRunner {
    /// Opens this process's share of a model; `share` is the graph's shard for its rank.
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
        let (id, links) = handshake(ranks, &hello, || {
            library.id().map(Vec::from).map_err(|e| RanksError::Meeting(e.to_string()))
        })
        .map_err(error)?;
        let id = <[u8; COLLECTIVE_ID]>::try_from(id);
        let id = id.map_err(|_| SessionError::Device("rank 0 sent an incomplete id".to_owned()))?;
        let (place, said) = ((ranks.rank, ranks.size), links.1.clone());
        let stop = || RankConnections::gone(&links).map(|rank| format!("rank {rank} has ended"));
        let collective = library.join(&id, place, JOIN, &stop)?;
        let room = plan_for(engine, &share, device.target(), options)?.room().unwrap_or_default();
        let far = |sums| RemoteRanks::new(collective, links, (ranks.rank, ranks.limit), sums);
        let meeting = Exchange::of_rank(device, place, room, far)?;
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
        runner.far = Some(RankShutdown(meeting.clone(), runner.loaded.stream.clone()));
        let proven = prove(std::slice::from_ref(&runner), ranks.rank, ranks.size);
        proven.map_err(|e| match instead(e) {
            lost @ SessionError::Lost(_) => lost,
            e => SessionError::Device(format!("data between ranks does not arrive: {e}")),
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

    /// A seed that all ranks share, for drawing random seeds; `None` with one process.
    pub fn common_seed(&self) -> Option<u64> {
        self.common_seed
    }

    /// On rank 0: waits until the other ranks have confirmed the same inputs. Results of different
    /// inputs are never returned.
    pub(super) fn agreed(&self) -> Result<(), SessionError> {
        match self.loaded.meeting.as_ref().and_then(Exchange::far) {
            Some(far) => far.agreed(self.loaded.stream.device()),
            None => Ok(()),
        }
    }

    /// Adds an input that must be equal on all ranks, because it determines when a rank ends.
    pub fn given_besides(&self, what: &impl Hash) {
        if let Some(far) = self.loaded.meeting.as_ref().and_then(Exchange::far) {
            let mut all = DefaultHasher::new();
            what.hash(&mut all);
            far.given(all.finish());
        }
    }

    /// The error to report for a failed call.
    pub(super) fn instead(&self, error: SessionError) -> SessionError {
        match &self.loaded.meeting {
            Some(meeting) => meeting.instead(self.loaded.stream.device(), error),
            None => error,
        }
    }

    /// Announces this call's inputs, which must be equal on all ranks. Ranks wait for each other
    /// while the returned value exists. `None` with one process.
    pub(super) fn given(&self, tasks: &[Task<'_>]) -> Option<DeviceWait> {
        let far = self.loaded.meeting.as_ref().and_then(Exchange::far)?;
        let mut all = DefaultHasher::new();
        for task in tasks {
            (task.slot, task.first, task.tokens).hash(&mut all);
            // The options include the seed: with different seeds ranks would choose different
            // tokens.
            format!("{:?}", task.sampler.options()).hash(&mut all);
        }
        far.given(all.finish());
        Some(far.waiting())
    }
}

/// Exchanges one word before any rank loads a model, so that a broken link is detected early.
fn first_word(
    device: &Device,
    far: &RemoteRanks,
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
        false => Err(SessionError::Device("data between ranks does not arrive".to_owned())),
    }
}

/// Facts that must be equal on all ranks. Otherwise the ranks launch different work, and wait for
/// sums that never complete.
fn hello(gguf: &Gguf, device: &Device, options: &OpenOptions, library: u32, size: usize) -> Hello {
    let mut model = DefaultHasher::new();
    for no in 0..gguf.paths().count() {
        sampled(gguf.part_bytes(no).unwrap_or_default()).hash(&mut model);
    }
    for tensor in gguf.tensors() {
        format!("{tensor:?}").hash(&mut model);
    }
    let mut setup = DefaultHasher::new();
    let alike =
        OpenOptions { device: kjit_exec::DeviceChoice::Auto, threads: 0, ..options.clone() };
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

/// Bytes at the start of a file that are all hashed: the metadata of a model with the vocabulary.
const START: usize = 8 << 20;
/// Number of samples that are hashed after the start, and bytes of each sample. With 400 tensors,
/// every large tensor has some samples.
const PLACES: usize = 1024;
const SLOT_BYTES: usize = 64;

/// A hash of a file's length, its start, and samples of the rest.
fn sampled(bytes: &[u8]) -> u64 {
    let mut all = DefaultHasher::new();
    let (start, rest) = bytes.split_at(bytes.len().min(START));
    (bytes.len(), start).hash(&mut all);
    let step = rest.len().div_ceil(PLACES).max(SLOT_BYTES);
    rest.chunks(step).for_each(|chunk| chunk.get(..SLOT_BYTES).unwrap_or(chunk).hash(&mut all));
    all.finish()
}

/// A hash of this program's file, which distinguishes builds of one version; "unknown" if the file
/// does not exist.
fn build() -> String {
    std::fs::read("/proc/self/exe")
        .map(|bytes| sampled(&bytes))
        .map_or("unknown".to_owned(), |n| format!("{n:016x}"))
}

#[cfg(test)]
mod tests {
    use super::sampled;

    #[test]
    fn equal_length_files_with_different_bytes_differ() {
        let mut bytes: Vec<u8> =
            (0..20_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let first = sampled(&bytes);
        assert_eq!(sampled(&bytes), first);
        // Changes a thousandth of the file, as fine-tuning would, then one byte of metadata.
        bytes[15_000_000..15_020_000].iter_mut().for_each(|b| *b ^= 1);
        let tuned = sampled(&bytes);
        bytes[1000] ^= 1;
        assert!(
            tuned != first && sampled(&bytes) != tuned && sampled(&bytes[1..]) != sampled(&bytes)
        );
    }
}
