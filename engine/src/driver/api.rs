//! The interface of a vendor's runtime, implemented for CUDA and HIP. All other code of the engine
//! is vendor-neutral.
//!
//! Handles and addresses are plain numbers here. Every operation that could be misused (double
//! free, use after free) is an `unsafe fn`. Only the owning types in this folder
//! ([`super::memory`], [`super::stream`], …) call them. Each type ensures the safety requirements
//! in one place.

use super::info::DeviceInfo;
use super::tensor_map::Matrices;
use crate::arch::Vendor;
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use std::ffi::{c_char, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

/// A driver's handle (stream, event, module, function, graph). A handle that a call returned is not
/// null.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Raw(pub usize);

impl Raw {
    /// The handle that a call wrote. A null handle with a success code is an error of the driver.
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

/// The string that a call wrote into a buffer, up to the terminator or the end of the buffer.
pub(crate) fn text(buffer: &[c_char]) -> String {
    let bytes: &[u8] = bytemuck::cast_slice(buffer);
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or(bytes)).trim().to_owned()
}

/// The kinds of driver errors that the engine distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// Out of device or page-locked memory.
    OutOfMemory,
    /// The image is damaged, for a different architecture, or newer than the driver supports.
    BadImage,
    /// A kernel fault after which every call fails: the context is lost.
    Lost,
    /// Any other error.
    Other,
}

/// A failed driver call.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub call: &'static str,
    pub code: u32,
    pub says: String,
    pub kind: FaultKind,
}

impl Fault {
    /// Converts to the engine's error, for a device.
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

/// An opened runtime library of a vendor.
pub(crate) trait Driver: Send + Sync {
    /// The vendor.
    fn vendor(&self) -> Vendor;
    /// Highest supported API version, `(major, minor)`.
    fn version(&self) -> (u32, u32);
    /// The library's file.
    fn library(&self) -> &str;
    /// Number of visible devices.
    fn count(&self) -> Result<u32>;
    /// Properties of a device, without opening it.
    fn describe(&self, ordinal: u32) -> Result<DeviceInfo>;
    /// Opens a device.
    fn open(&self, ordinal: u32) -> Result<Arc<dyn RawDevice>>;
}

/// A matrix product for the vendor's library: `out` (n × m, f32) = `x` (n × k, f16) · `w`ᵀ (m × k,
/// f16), all row-major.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub m: u32,
    pub n: u32,
    pub k: u32,
    pub w: u64,
    pub x: u64,
    pub out: u64,
}

/// The vendor's matrix library, opened on a device. Any thread may make calls.
pub(crate) trait RawBlas: Send + Sync {
    /// The library's file.
    fn library(&self) -> &str;
    /// Enqueues the product. Safety: as for [`RawDevice`]; the stream must not be capturing.
    unsafe fn product(&self, product: Product, stream: Raw) -> Try<()>;
}

/// An opened device. Any thread may make calls.
///
/// Safety of all `unsafe` methods: handles and addresses belong to this device and are alive,
/// ranges are inside their allocation, and host memory stays alive and unaliased until the stream
/// has completed the copy.
pub(crate) trait RawDevice: Send + Sync {
    /// The vendor's matrix library; `None` if the engine does not support one.
    fn blas(&self) -> Option<Result<Box<dyn RawBlas>>> {
        None
    }
    /// Enables access to the memory of another device. Returns `false` if that is impossible.
    fn reach(&self, _other: u32) -> Try<bool> {
        Ok(false)
    }

    /// Encodes a description of matrices for the copy engine. `None` if the vendor has no such
    /// engine.
    fn tensor_map(&self, _address: u64, _of: &Matrices) -> Option<Try<[u64; 16]>> {
        None
    }

    /// Makes this device current in the calling thread, for a library of the vendor.
    fn make_current(&self) -> Try<()>;
    /// Refuses all further calls, as for a lost device.
    fn leave(&self);
    /// Free and total memory in bytes.
    fn memory(&self) -> Try<(u64, u64)>;
    /// Blocks the host until all work on the device is done.
    fn wait_all(&self) -> Try<()>;
    /// Allocates device memory, aligned to at least 256 bytes.
    fn alloc(&self, bytes: u64) -> Try<u64>;
    /// Allocates memory that other devices may access while kernels run.
    fn alloc_shared(&self, bytes: u64) -> Try<u64> {
        self.alloc(bytes)
    }
    /// Frees memory. Waits for work that uses it, as the vendor's call does.
    unsafe fn free(&self, address: u64) -> Try<()>;
    /// Allocates page-locked host memory. Returns its host and device addresses. `write_combined`
    /// memory is fast to write and slow to read.
    fn alloc_host(&self, bytes: u64, write_combined: bool) -> Try<(*mut u8, u64)>;
    /// Allocates page-locked host memory that all devices of the vendor can access, even while
    /// kernels run. Their addresses are given by [`RawDevice::host_address`].
    fn alloc_host_shared(&self, bytes: u64) -> Try<*mut u8>;
    /// This device's address of page-locked memory of any device of the vendor.
    unsafe fn host_address(&self, at: *mut u8) -> Try<u64>;
    unsafe fn free_host(&self, at: *mut u8) -> Try<()>;
    /// Page-locks an existing mapping for reads by the device.
    unsafe fn register_host(&self, at: *const u8, bytes: usize) -> Try<()>;
    unsafe fn unregister_host(&self, at: *const u8) -> Try<()>;

    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize, stream: Raw) -> Try<()>;
    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize, stream: Raw) -> Try<()>;
    unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize, stream: Raw) -> Try<()>;
    /// Copies from memory of another device of the vendor.
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
            says: "not supported for this vendor: copy through the host".to_owned(),
            kind: FaultKind::Other,
        })
    }
    unsafe fn fill(&self, to: u64, byte: u8, bytes: usize, stream: Raw) -> Try<()>;

    /// Creates a stream that does not synchronise with others. Streams with higher `urgency` (0 or
    /// 1) are scheduled first.
    fn stream(&self, urgency: u32) -> Try<Raw>;
    unsafe fn stream_destroy(&self, stream: Raw) -> Try<()>;
    unsafe fn stream_wait_host(&self, stream: Raw) -> Try<()>;
    /// Whether all work in the stream is done.
    unsafe fn stream_idle(&self, stream: Raw) -> Try<bool>;
    unsafe fn stream_wait_event(&self, stream: Raw, event: Raw) -> Try<()>;

    fn event(&self, timed: bool) -> Try<Raw>;
    unsafe fn event_destroy(&self, event: Raw) -> Try<()>;
    unsafe fn event_record(&self, event: Raw, stream: Raw) -> Try<()>;
    unsafe fn event_done(&self, event: Raw) -> Try<bool>;
    unsafe fn event_wait_host(&self, event: Raw) -> Try<()>;
    /// Milliseconds between two timed events that have completed.
    unsafe fn event_elapsed(&self, from: Raw, to: Raw) -> Try<f32>;

    /// Loads machine code. It is unsafe because the driver executes the code; the bytes were
    /// verified by hash.
    unsafe fn module(&self, image: &[u8]) -> Try<Raw>;
    unsafe fn module_unload(&self, module: Raw) -> Try<()>;
    unsafe fn function(&self, module: Raw, name: &std::ffi::CStr) -> Try<Raw>;
    /// Allows a function to use this much dynamic shared memory.
    unsafe fn function_shared(&self, function: Raw, bytes: u32) -> Try<()>;
    /// Number of blocks of this size that can be resident on a compute unit.
    unsafe fn function_blocks(&self, function: Raw, threads: u32, shared: u32) -> Try<u32>;
    /// `args` points to the value of each argument, in order.
    unsafe fn launch(
        &self,
        function: Raw,
        shape: &Geometry,
        args: &mut [*mut c_void],
        stream: Raw,
    ) -> Try<()>;

    unsafe fn capture_begin(&self, stream: Raw) -> Try<()>;
    /// Ends the capture and returns the graph.
    unsafe fn capture_end(&self, stream: Raw) -> Try<Raw>;
    unsafe fn graph_nodes(&self, graph: Raw) -> Try<usize>;
    unsafe fn graph_destroy(&self, graph: Raw) -> Try<()>;
    /// Creates an executable graph, which does not need the graph afterwards.
    unsafe fn graph_instantiate(&self, graph: Raw) -> Try<Raw>;
    /// Uploads the executable before its first replay.
    unsafe fn graph_upload(&self, exec: Raw, stream: Raw) -> Try<()>;
    unsafe fn graph_launch(&self, exec: Raw, stream: Raw) -> Try<()>;
    /// Updates the executable with the parameters of a new graph. Returns `false` if their
    /// structure differs.
    unsafe fn graph_update(&self, exec: Raw, graph: Raw) -> Try<bool>;
    unsafe fn graph_exec_destroy(&self, exec: Raw) -> Try<()>;
}
