//! Collectives between devices of several processes, by the vendor's library (NCCL, RCCL).
//!
//! The library is loaded at run time. The caller sends the unique id of the group to all ranks.
//! Calls of the library may wait for other processes, possibly forever. So each call that may block
//! runs in a separate thread, which is abandoned after a time limit.

use super::api::{Fault, FaultKind};
use super::device::Device;
use super::memory::DeviceBuffer;
use super::stream::{MemoryUse, Stream};
use crate::arch::Vendor;
use crate::compiler::discover::python_sites;
use crate::error::{Error, Result};
use nccl_sys::{NCCL, Nccl, RCCL, ncclComm_t, ncclFloat32, ncclInProgress, ncclUniqueId};
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of the unique id of a group.
pub const COLLECTIVE_ID: usize = 128;

/// The oldest version that supports graph capture as used here: 2.11.
const OLDEST: u32 = 21_100;
/// The newest possible version, 2.99. A larger number is not a version.
const NEWEST: u32 = 99_999;

/// Time limit for the library to release its resources.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time after which a call counts as stuck.
const STUCK: Duration = Duration::from_secs(1);

/// NVIDIA's library uses NVLink multicast by default; kjit disables it. A process that ends during
/// multicast can leave the machine's switches in a state that only the owner of the machine can
/// repair.
const MULTICAST: &str = "NCCL_NVLS_ENABLE";

/// The vendor's library.
#[derive(Debug, Clone)]
pub struct CollectiveLibrary {
    nccl: Arc<Nccl>,
    device: Device,
    version: u32,
}

/// A rank of a group of processes. Clones share it. It is released after its last clone, and the
/// last captured graph with its work, are dropped.
#[derive(Debug, Clone)]
pub struct Collective {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    library: CollectiveLibrary,
    /// `None` after the communicator was aborted.
    comm: Mutex<Option<Comm>>,
    /// Number of active calls.
    calls: AtomicUsize,
    ranks: usize,
}

/// A communicator handle of the library.
#[derive(Debug, Clone, Copy)]
struct Comm(ncclComm_t);

// SAFETY: a handle may be used from any thread. Only the owner of the stream enqueues work. Other
// threads may query its state, or abort it, which is the documented way to end a stuck call.
unsafe impl Send for Comm {}

fn fault(error: nccl_sys::Error) -> Fault {
    match error {
        nccl_sys::Error::Code { call, code, name, says } => {
            Fault { call, code, says: format!("{name}: {says}"), kind: FaultKind::Other }
        }
        other => Fault { call: "NCCL", code: 0, says: other.to_string(), kind: FaultKind::Other },
    }
}

impl Device {
    /// The library for collectives of this device with devices of other processes.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] with the searched paths, or for an unsupported version.
    pub fn collective_library(&self) -> Result<CollectiveLibrary> {
        let nvidia = self.target().vendor() == Vendor::Nvidia;
        let search = if nvidia { NCCL } else { RCCL };
        let none = |why: String, tried| Error::NoLibrary {
            library: search.library.to_owned(),
            why,
            tried,
            package: search.package.to_owned(),
        };
        if nvidia && std::env::var(MULTICAST).as_deref() != Ok("0") {
            return Err(none(format!("set {MULTICAST}=0: other values are not supported"), vec![]));
        }
        let wheels = || match nvidia {
            true => python_sites().iter().map(|site| site.join(nccl_sys::WHEEL_FOLDER)).collect(),
            false => hip_folders(),
        };
        let nccl = Nccl::open(&search, wheels).map_err(|error| match error {
            nccl_sys::Error::NotFound { tried, .. } => none(
                "the loader finds none".to_owned(),
                tried.iter().map(ToString::to_string).collect(),
            ),
            other => none(other.to_string(), vec![]),
        })?;
        let mut version: c_int = 0;
        // SAFETY: writes one int.
        let result = unsafe { nccl.ncclGetVersion(&mut version) };
        self.ok(result.map_err(fault))?;
        let version = u32::try_from(version).unwrap_or(0);
        if !(OLDEST..=NEWEST).contains(&version) {
            let place = nccl.opened().place.display();
            return Err(none(
                format!("{place} has version code {version}, but 2.11 or newer is needed"),
                vec![],
            ));
        }
        Ok(CollectiveLibrary { nccl: Arc::new(nccl), device: self.clone(), version })
    }
}

/// Library folders of ROCm's Python packages.
fn hip_folders() -> Vec<std::path::PathBuf> {
    python_sites()
        .iter()
        .flat_map(|site| hip_sys::WHEEL_FOLDERS.iter().map(move |f| site.join(f)))
        .collect()
}

impl CollectiveLibrary {
    /// Version code of the library. It must be equal on all ranks. 21804 is 2.18.4.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Creates the unique id of a group. One rank calls this and sends the id to the others.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn id(&self) -> Result<[u8; COLLECTIVE_ID]> {
        let mut id = ncclUniqueId { internal: [0; COLLECTIVE_ID] };
        self.device.ok(self.device.raw().make_current())?;
        // SAFETY: writes one id.
        self.device.ok(unsafe { self.nccl.ncclGetUniqueId(&mut id) }.map_err(fault))?;
        Ok(id.internal.map(|c| c as u8))
    }

    /// Joins the other ranks. Waits for them until `limit` passes or `stop` returns a reason.
    ///
    /// # Errors
    /// [`Error::Driver`] with the message of the library, or with the reason that `stop` returned.
    pub fn join(
        &self,
        id: &[u8; COLLECTIVE_ID],
        (rank, ranks): (usize, usize),
        limit: Duration,
        stop: &dyn Fn() -> Option<String>,
    ) -> Result<Collective> {
        let int = |n: usize| c_int::try_from(n).unwrap_or(c_int::MAX);
        let id = ncclUniqueId { internal: id.map(|b| b as c_char) };
        let (tell, told) = channel();
        let (nccl, device) = (Arc::clone(&self.nccl), self.device.clone());
        std::thread::spawn(move || {
            let joined = device.raw().make_current().and_then(|()| {
                let mut comm = null_mut();
                // SAFETY: writes one handle; the device is current in this thread.
                unsafe { nccl.ncclCommInitRank(&mut comm, int(ranks), id, int(rank)) }
                    .map_err(fault)?;
                Ok(Comm(comm))
            });
            // If the receiver stopped waiting, it does not need the result.
            let _ = tell.send(joined);
        });
        let end = Instant::now() + limit;
        let failed = |says: String| Fault {
            call: "ncclCommInitRank",
            code: 0,
            says,
            kind: FaultKind::Other,
        };
        let comm = loop {
            match told.recv_timeout(Duration::from_millis(50)) {
                Ok(joined) => break joined,
                Err(RecvTimeoutError::Disconnected) => {
                    break Err(failed("the thread of the call ended early".to_owned()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(why) = stop() {
                break Err(failed(why));
            }
            if Instant::now() > end {
                break Err(failed(format!(
                    "the ranks did not join each other within {} s",
                    limit.as_secs()
                )));
            }
        };
        let comm = Mutex::new(Some(self.device.ok(comm)?));
        let calls = AtomicUsize::new(0);
        Ok(Collective { inner: Arc::new(Inner { library: self.clone(), comm, calls, ranks }) })
    }
}

impl Collective {
    /// The library's message for the first error since joining.
    #[must_use]
    pub fn failed(&self) -> Option<String> {
        let Some(call) = self.inner.call() else {
            return Some("the communicator was aborted".to_owned());
        };
        let mut code = 0;
        // SAFETY: the handle is alive as long as `call` is; writes one number.
        match unsafe { self.inner.library.nccl.ncclCommGetAsyncError(call.handle, &mut code) } {
            Err(error) => Some(error.to_string()),
            Ok(()) if code == 0 || code == ncclInProgress => None,
            Ok(()) => {
                let (name, says) = nccl_sys::name_and_meaning(code);
                Some(format!("{name}: {says}"))
            }
        }
    }

    /// Aborts all active work on this rank. Streams continue with undefined values, and later
    /// collectives fail.
    pub fn give_up(&self) {
        let taken = self.inner.comm().take();
        if let Some(comm) = taken {
            super::device::LEFT.store(true, Ordering::Relaxed);
            let end = Instant::now() + STUCK;
            while self.inner.calls.load(Ordering::Acquire) > 0 && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.inner.apart(comm, |nccl, Comm(handle)| {
                // SAFETY: the handle was taken out, so no new call uses it. Abort ends a call that
                // is stuck, as the library documents.
                let _ = unsafe { nccl.ncclCommAbort(handle) };
            });
        }
    }
}

/// An active call with a valid handle.
struct Call<'a> {
    inner: &'a Inner,
    handle: ncclComm_t,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.inner.calls.fetch_sub(1, Ordering::Release);
    }
}

impl Inner {
    /// Starts a call; `None` if the communicator was aborted.
    fn call(&self) -> Option<Call<'_>> {
        let comm = self.comm();
        let Comm(handle) = (*comm)?;
        // The call is counted under the lock, so that a thread that takes the handle sees it.
        self.calls.fetch_add(1, Ordering::Acquire);
        Some(Call { inner: self, handle })
    }

    fn comm(&self) -> std::sync::MutexGuard<'_, Option<Comm>> {
        self.comm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a function with a handle for the last time, and waits for it for a limited time.
    fn apart(&self, comm: Comm, call: impl FnOnce(&Nccl, Comm) + Send + 'static) {
        let (nccl, device) = (Arc::clone(&self.library.nccl), self.library.device.clone());
        let (tell, told) = channel();
        std::thread::spawn(move || {
            if device.raw().make_current().is_ok() {
                call(&nccl, comm);
            }
            let _ = tell.send(());
        });
        let _ = told.recv_timeout(PATIENCE);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let taken = self.comm().take();
        if let Some(comm) = taken {
            self.apart(comm, |nccl, Comm(handle)| {
                // SAFETY: the handle was taken out, so no call uses it. Streams and graphs own a
                // reference to the rank while they have its work.
                let _ = unsafe { nccl.ncclCommDestroy(handle) };
            });
        }
    }
}

impl Stream {
    /// Enqueues an all-gather: `to` on all ranks is the concatenation of every rank's `from`, in
    /// rank order. All ranks must make the same calls in the same order.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the lengths do not match; [`Error::Driver`].
    pub fn all_gather(
        &self,
        all: &Collective,
        from: &DeviceBuffer<f32>,
        to: &DeviceBuffer<f32>,
    ) -> Result<()> {
        self.here(&all.inner.library.device, "the rank")?;
        self.here(from.memory().device(), "a part")?;
        self.here(to.memory().device(), "the output of the all-gather")?;
        if from.len().checked_mul(all.inner.ranks).is_none_or(|all| all > to.len()) {
            let (each, ranks, room) = (from.len(), all.inner.ranks, to.len());
            return Err(Error::Buffer(format!(
                "all-gather: {ranks} × {each} values do not fit in {room}"
            )));
        }
        let memory = [from.shared(), to.shared()];
        let used = MemoryUse::of(self, memory.into_iter(), std::iter::empty())?;
        used.keep(|| {
            let inner: Arc<Inner> = Arc::clone(&all.inner);
            inner
        });
        let sent = match all.inner.call() {
            None => Err(Fault {
                call: "ncclAllGather",
                code: 0,
                says: "the communicator was aborted".to_owned(),
                kind: FaultKind::Other,
            }),
            Some(call) => self.device().raw().make_current().and_then(|()| {
                // SAFETY: handle, stream and memory are alive, the lengths were checked, and `used`
                // owns all of them while the work may run.
                unsafe {
                    all.inner.library.nccl.ncclAllGather(
                        from.address() as *const _,
                        to.address() as *mut _,
                        from.len(),
                        ncclFloat32,
                        call.handle,
                        self.inner().raw().0 as *mut _,
                    )
                }
                .map_err(fault)
            }),
        };
        self.device().ok(sent)?;
        used.done()
    }
}
