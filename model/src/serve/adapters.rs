//! Adapters of requests: which ones share a step, and how a sequence gets them.

use super::running::{ActiveRequest, Running};
use crate::session::{LoadedAdapter, ScaledAdapter, SequenceId, Session, SessionError};

/// Number of different adapters in these lists. Those without effect are not counted.
pub(super) fn distinct<'a>(lists: impl IntoIterator<Item = &'a Vec<ScaledAdapter>>) -> usize {
    let all = lists.into_iter().flatten().filter(|one| one.scale != 0.0);
    let mut digests: Vec<_> = all.map(|one| one.adapter.digest()).collect();
    digests.sort_unstable();
    digests.dedup();
    digests.len()
}

/// Whether a request can run beside the running ones with this number of places.
pub(super) fn fits(slots: usize, running: &[Running], job: &ActiveRequest) -> bool {
    if job.loaded_adapters.is_empty() {
        return true;
    }
    let lists = running.iter().map(|r| &r.job.loaded_adapters);
    distinct(lists.chain([&job.loaded_adapters])) <= slots
}

/// The adapters of running requests.
pub(super) fn busy(running: &[Running]) -> Vec<LoadedAdapter> {
    let all = running.iter().flat_map(|r| &r.job.loaded_adapters);
    all.filter(|one| one.scale != 0.0).map(|one| one.adapter.clone()).collect()
}

/// Gives a sequence the loaded adapters of its request. A sequence that is continued or copied
/// needs it as well: its adapters may have lost their places.
pub(super) fn apply(
    session: &mut Session,
    id: SequenceId,
    job: &ActiveRequest,
    busy: &[LoadedAdapter],
) -> Result<(), SessionError> {
    match job.loaded_adapters.is_empty() {
        true => Ok(()),
        false => session.use_adapters(id, &job.loaded_adapters, busy),
    }
}

/// Names of the adapters of these requests, each once. `opened` are the adapters with which the
/// model was opened.
pub(super) fn names<'a>(
    jobs: impl Iterator<Item = &'a ActiveRequest>,
    opened: &[String],
) -> Vec<String> {
    let mut all = vec![];
    for job in jobs {
        let scales = job.adapters.iter().flatten();
        all.extend(opened.iter().zip(scales).filter(|(_, scale)| **scale != 0.0).map(|(n, _)| n));
        let loaded = job.loaded_adapters.iter().filter(|one| one.scale != 0.0);
        all.extend(loaded.map(|one| &one.name));
    }
    all.sort_unstable();
    all.dedup();
    all.into_iter().cloned().collect()
}
