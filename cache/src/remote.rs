//! A server of entries: a signed pack for each source key, with the builds of that key.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::cache::{Cache, Found, Origin};
use crate::entry::Entry;
use crate::key::Digest;
use crate::lookup::newest;
use crate::pack::{Pack, PublicKey};
use crate::store::Kind;
use crate::warning::Warning;

/// Gets the content of a file of the server. `None`: the server does not have it.
type Fetch = dyn Fn(&str) -> Result<Option<Vec<u8>>, String> + Send + Sync;

/// A server of packs, for [`crate::Config::remote`].
#[derive(Clone)]
pub struct RemotePacks {
    address: String,
    signers: Vec<PublicKey>,
    budget: Duration,
    fetch: Arc<Fetch>,
}

impl fmt::Debug for RemotePacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemotePacks({})", self.address)
    }
}

impl RemotePacks {
    /// A server at `address`. `fetch` gets a file by its name, `SOURCE-KEY.APPpack`; it must return
    /// within a bounded time. One of `signers` must have signed each pack, so without signers
    /// nothing is accepted. After one error, or when the total time of requests reaches `budget`,
    /// the server is not queried again, and there is a warning.
    pub fn new(
        address: impl Into<String>,
        signers: Vec<PublicKey>,
        budget: Duration,
        fetch: impl Fn(&str) -> Result<Option<Vec<u8>>, String> + Send + Sync + 'static,
    ) -> Self {
        Self { address: address.into(), signers, budget, fetch: Arc::new(fetch) }
    }
}

/// The state of a server.
pub(crate) struct Remote {
    packs: RemotePacks,
    /// The answers so far. `None`: the server has no usable pack.
    known: Mutex<HashMap<Digest, Option<Arc<Pack>>>>,
    /// The time of all requests, summed over threads.
    spent: Mutex<Duration>,
    left: AtomicBool,
}

impl Remote {
    pub(crate) fn new(packs: RemotePacks) -> Self {
        Self {
            left: AtomicBool::new(packs.signers.is_empty()),
            packs,
            known: Mutex::default(),
            spent: Mutex::default(),
        }
    }
}

impl Cache {
    /// The newest entry of the server that `picks` and `accept` select. It is stored in the home
    /// directory.
    pub(crate) fn remote_entry(
        &self,
        source: Digest,
        picks: &dyn Fn(Digest) -> bool,
        accept: &dyn Fn(&Entry) -> bool,
    ) -> Option<Found> {
        let pack = self.remote_pack(source)?;
        let entry = |build: Digest| {
            let item = pack.item(build, Kind::Entry).filter(|item| item.source == source)?;
            let entry = pack.entry(item, self.config.entry_limit);
            entry.map_err(|reason| self.report_bad_item(&pack, build, reason)).ok()
        };
        let builds = pack.builds(source).into_iter().filter(|build| picks(*build));
        let entry = newest(builds.filter_map(entry).collect(), accept)?;
        // Without a writable home, the pack stays open and is used again.
        let _ = self.try_publish(&entry);
        Some(Found { entry, origin: Origin::ReadOnly(pack.path().to_owned()) })
    }

    /// The server's pack of a source key.
    fn remote_pack(&self, source: Digest) -> Option<Arc<Pack>> {
        let remote = self.remote.as_ref()?;
        let known = || remote.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = known().get(&source) {
            return answer.clone();
        }
        if remote.left.load(Ordering::Relaxed) {
            return None;
        }
        let leave = |reason: String| {
            if !remote.left.swap(true, Ordering::Relaxed) {
                let address = remote.packs.address.clone();
                self.warnings.push(Warning::RemoteLeft { address, reason });
            }
        };
        let name = format!("{source}.{}pack", self.config.app);
        let began = Instant::now();
        let answer = (remote.packs.fetch)(&name);
        let spent = {
            let mut spent = remote.spent.lock().unwrap_or_else(PoisonError::into_inner);
            *spent = spent.saturating_add(began.elapsed());
            *spent
        };
        if spent > remote.packs.budget {
            leave(format!("its answers took {:.1} s in total", spent.as_secs_f64()));
        }
        let path = || PathBuf::from(format!("{}/{name}", remote.packs.address));
        let pack = match answer {
            Ok(None) => None,
            Ok(Some(bytes)) => match Pack::of_bytes(&path(), &bytes, &remote.packs.signers) {
                Ok(pack) => Some(Arc::new(pack)),
                Err(error) => {
                    let reason = error.to_string();
                    self.warnings.push(Warning::PackRefused { path: path(), reason });
                    None
                }
            },
            Err(reason) => {
                leave(reason);
                return None;
            }
        };
        known().insert(source, pack.clone());
        pack
    }
}
