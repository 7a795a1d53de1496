//! What a vendor's runtime must offer: the seam behind which CUDA (and HIP) live. Nothing above it
//! knows a vendor.
//!
//! Handles and addresses are plain numbers here. Everything that could be misused (freed twice,
//! used after its end) is an `unsafe fn`; the owners beside this file ([`super::memory`],
//! [`super::stream`], …) hold the obligations, each in one place, and are the only callers.

use super::info::DeviceInfo;
use crate::arch::Vendor;
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use std::ffi::{c_char, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

/// A driver's handle (stream, event, module, function, graph): never null when it came out of a
/// call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Raw(pub usize);

impl Raw {
    /// A handle that a call wrote; a null one beside a success code is a broken driver, said so.
    pub fn of<T>(call: &'static str, handle: *mut T) -> Try<Raw> {
        let broken = || Fault {
            call,
            code: 0,
            says: "success without a handle".to_owned(),
            kind: FaultKind::Other,
        };
        NonNull::new(handle).map(|p| Raw(p.as_ptr() as usize)).ok_or_else(broken)
    }
}

/// A string that a call wrote into a buffer of ours, up to its end mark; all of it where that is
/// missing.
pub(crate) fn text(buffer: &[c_char]) -> String {
    let bytes: &[u8] = bytemuck::cast_slice(buffer);
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or(bytes)).trim().to_owned()
}

/// What kind of failure a driver's code is, as far as the engine acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// Not enough device or pinned memory.
    OutOfMemory,
    /// The image is damaged, for another architecture, or newer than the driver.
    BadImage,
    /// A kernel's fault after which every call fails: the context is lost.
    Lost,
    /// Anything else.
    Other,
}

/// A driver call that failed.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub call: &'static str,
    pub code: u32,
    pub says: String,
    pub kind: FaultKind,
}

impl Fault {
    /// As the engine's error, on a device.
    pub fn on(self, device: &str) -> Error {
        let Fault { call, code, says, kind } = self;
        let device = device.to_owned();
        match kind {
            FaultKind::Lost => Error::DeviceLost { call, device, code, says },
            _ => Error::Driver { call, device, code, says },
        }
    }
}

pub(crate) type Try<T> = std::result::Result<T, Fault>;

/// A vendor's runtime library, opened.
pub(crate) trait Driver: Send + Sync {
    /// Who it belongs to.
    fn vendor(&self) -> Vendor;
    /// Highest version of its API, `(major, minor)`.
    fn version(&self) -> (u32, u32);
    /// The file it was opened from.
    fn library(&self) -> &str;
    /// Devices it shows.
    fn count(&self) -> Result<u32>;
    /// Facts of one device, without opening it.
    fn describe(&self, ordinal: u32) -> Result<DeviceInfo>;
    /// Opens a device for use.
    fn open(&self, ordinal: u32) -> Result<Arc<dyn RawDevice>>;
}

/// A product of matrices for a vendor's library: `out` (n × m, f32) = `x` (n × k, f16) · `w`ᵀ (m ×
/// k, f16), all by rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub m: u32,
    pub n: u32,
    pub k: u32,
    pub w: u64,
    pub x: u64,
    pub out: u64,
}

/// A vendor's matrix library, opened on a device. Calls may come from any thread.
pub(crate) trait RawBlas: Send + Sync {
    /// The file it was opened from.
    fn library(&self) -> &str;
    /// Puts the product into the stream. Safety as for [`RawDevice`]; the stream is not being
    /// recorded.
    unsafe fn product(&self, product: Product, stream: Raw) -> Try<()>;
}

/// One opened device. Calls may come from any thread.
///
/// Safety, for all `unsafe` methods: handles and addresses come from the same device and are alive,
/// ranges lie within their allocation, and host memory stays alive and unaliased until the stream
/// has passed the copy.
pub(crate) trait RawDevice: Send + Sync {
    /// The vendor's matrix library; none where the engine has no route to one.
    fn blas(&self) -> Option<Result<Box<dyn RawBlas>>> {
        None
    }
    /// Lets this device reach another one's memory; false when the two cannot.
    fn reach(&self, _other: u32) -> Try<bool> {
        Ok(false)
    }

    /// Makes it the calling thread's device, for a library of the vendor's.
    fn make_current(&self) -> Try<()>;
    /// Makes no call any more: each is refused, as on a device that is lost.
    fn leave(&self);
    /// Free and total bytes.
    fn memory(&self) -> Try<(u64, u64)>;
    /// Makes the host wait for everything on the device.
    fn wait_all(&self) -> Try<()>;
    /// Device memory, aligned to 256 bytes at least.
    fn alloc(&self, bytes: u64) -> Try<u64>;
    /// The same, which other devices may read and write while kernels run.
    fn alloc_shared(&self, bytes: u64) -> Try<u64> {
        self.alloc(bytes)
    }
    /// Waits for work that uses it, as the vendor does, and gives it back.
    unsafe fn free(&self, address: u64) -> Try<()>;
    /// Page-locked host memory and its address on the device; `write_combined` is fast to write and
    /// slow to read.
    fn alloc_host(&self, bytes: u64, write_combined: bool) -> Try<(*mut u8, u64)>;
    /// Page-locked host memory that all devices of the vendor address, each as
    /// [`RawDevice::host_address`] says, and that they write and read while kernels run.
    fn alloc_host_shared(&self, bytes: u64) -> Try<*mut u8>;
    /// Where this device has page-locked memory of any device of the vendor.
    unsafe fn host_address(&self, at: *mut u8) -> Try<u64>;
    unsafe fn free_host(&self, at: *mut u8) -> Try<()>;
    /// Page-locks an existing mapping for reading by the device.
    unsafe fn register_host(&self, at: *const u8, bytes: usize) -> Try<()>;
    unsafe fn unregister_host(&self, at: *const u8) -> Try<()>;

    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize, stream: Raw) -> Try<()>;
    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize, stream: Raw) -> Try<()>;
    unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize, stream: Raw) -> Try<()>;
    /// From memory of another device of the vendor, into this one's.
    unsafe fn copy_peer(
        &self,
        _to: u64,
        _from: u64,
        _from_device: u32,
        _bytes: usize,
        _stream: Raw,
    ) -> Try<()> {
        Err(Fault {
            call: "a copy between devices",
            code: 0,
            says: "the engine has none for this vendor: copy through the host".to_owned(),
            kind: FaultKind::Other,
        })
    }
    unsafe fn fill(&self, to: u64, byte: u8, bytes: usize, stream: Raw) -> Try<()>;

    /// A stream that waits for no other. Higher `urgency` (0 or 1) is scheduled first.
    fn stream(&self, urgency: u32) -> Try<Raw>;
    unsafe fn stream_destroy(&self, stream: Raw) -> Try<()>;
    unsafe fn stream_wait_host(&self, stream: Raw) -> Try<()>;
    /// Whether everything in it is done.
    unsafe fn stream_idle(&self, stream: Raw) -> Try<bool>;
    unsafe fn stream_wait_event(&self, stream: Raw, event: Raw) -> Try<()>;

    fn event(&self, timed: bool) -> Try<Raw>;
    unsafe fn event_destroy(&self, event: Raw) -> Try<()>;
    unsafe fn event_record(&self, event: Raw, stream: Raw) -> Try<()>;
    unsafe fn event_done(&self, event: Raw) -> Try<bool>;
    unsafe fn event_wait_host(&self, event: Raw) -> Try<()>;
    /// Milliseconds between two timed events that are done.
    unsafe fn event_elapsed(&self, from: Raw, to: Raw) -> Try<f32>;

    /// Loads machine code. Unsafe because the driver runs what it is given: the bytes were checked
    /// by hash.
    unsafe fn module(&self, image: &[u8]) -> Try<Raw>;
    unsafe fn module_unload(&self, module: Raw) -> Try<()>;
    unsafe fn function(&self, module: Raw, name: &std::ffi::CStr) -> Try<Raw>;
    /// Lets a function have that much dynamic shared memory.
    unsafe fn function_shared(&self, function: Raw, bytes: u32) -> Try<()>;
    /// Blocks of that size that a unit holds at once.
    unsafe fn function_blocks(&self, function: Raw, threads: u32, shared: u32) -> Try<u32>;
    /// `args` points at each argument's value, in order.
    unsafe fn launch(
        &self,
        function: Raw,
        shape: &Geometry,
        args: &mut [*mut c_void],
        stream: Raw,
    ) -> Try<()>;

    unsafe fn capture_begin(&self, stream: Raw) -> Try<()>;
    /// Ends it; the graph recorded.
    unsafe fn capture_end(&self, stream: Raw) -> Try<Raw>;
    unsafe fn graph_nodes(&self, graph: Raw) -> Try<usize>;
    unsafe fn graph_destroy(&self, graph: Raw) -> Try<()>;
    /// An executable of the graph, which does not need the graph any more.
    unsafe fn graph_instantiate(&self, graph: Raw) -> Try<Raw>;
    /// Moves what can be moved to the device before the first replay.
    unsafe fn graph_upload(&self, exec: Raw, stream: Raw) -> Try<()>;
    unsafe fn graph_launch(&self, exec: Raw, stream: Raw) -> Try<()>;
    /// Puts the new graph's parameters into the executable; false when their shapes differ and a
    /// new one is needed.
    unsafe fn graph_update(&self, exec: Raw, graph: Raw) -> Try<bool>;
    unsafe fn graph_exec_destroy(&self, exec: Raw) -> Try<()>;
}
