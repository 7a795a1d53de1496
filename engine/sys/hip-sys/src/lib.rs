//! AMD's HIP runtime as kjit uses it. It is opened at run time, and every call returns a `Result`.
//! If a symbol is missing, only that call returns an error. [`Hip`] below declares the calls;
//! result codes are in [`codes`]. The names are the vendor's names.
//!
//! Signatures are as in ROCm 5.2 (a test compares them with Debian's headers). They are unchanged
//! in ROCm 6 and 7. The documentation of a newer call states its version. `hiprtc-sys` and
//! `rocblas-sys` use this loader and macro.
//!
//! ```
//! use hip_sys::{Error, Hip};
//! match Hip::open(Vec::new) {
//!     // SAFETY: the flags must be 0.
//!     Ok(hip) => match unsafe { hip.hipInit(0) } {
//!         Ok(()) => println!("{} started", hip.opened().place.display()),
//!         Err(error) => println!("no GPU: {error}"), // the code, its name and what it means
//!     },
//!     Err(Error::NotFound { library, tried, package }) => println!("{library}: tried {} places; {package}", tried.len()),
//!     Err(error) => println!("{error}"),
//! }
//! ```

#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing
    )
)]
#![allow(non_camel_case_types, non_upper_case_globals, reason = "the vendor's names")]

mod calls;
pub mod codes;
mod error;
mod loader;
mod tried;

pub use calls::Signature;
pub use error::{CodeName, Error, code, name_in};
pub use loader::{LoadedLibrary, Search, WHEEL_FOLDERS, for_loader, place_by_place, usual_folders};
pub use tried::SearchedPath;

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::PathBuf;

/// A stream: a queue of work.
pub type hipStream_t = *mut c_void;
/// An event: a point in a stream.
pub type hipEvent_t = *mut c_void;
/// A loaded code object.
pub type hipModule_t = *mut c_void;
/// A kernel of a module.
pub type hipFunction_t = *mut c_void;
/// A captured graph.
pub type hipGraph_t = *mut c_void;
/// An executable graph.
pub type hipGraphExec_t = *mut c_void;
/// A node of a graph.
pub type hipGraphNode_t = *mut c_void;
/// A device address.
pub type hipDeviceptr_t = *mut c_void;
/// A device number.
pub type hipDevice_t = c_int;
/// A property of a device: one of [`attribute`].
pub type hipDeviceAttribute_t = c_uint;
/// The mode of a capture: one of [`capture`].
pub type hipStreamCaptureMode = c_uint;
/// The result of a graph update.
pub type hipGraphExecUpdateResult = c_uint;

/// A device's UUID, 16 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct hipUUID {
    /// ROCm fills them with ASCII characters (its tools prepend `GPU-`).
    pub bytes: [u8; 16],
}

/// `hipDeviceProp_t` as bytes. Its layout changed in ROCm 6. So only the architecture name is read,
/// at the offset of the call that filled the struct ([`prop`]). This type is larger than every
/// known version (792 and 1472 bytes).
#[repr(C, align(16))]
pub struct hipDeviceProp_t(pub [u8; 4096]);

/// Offsets in [`hipDeviceProp_t`].
pub mod prop {
    /// Offset of `gcnArchName` with `hipGetDevicePropertiesR0000` and, in every version, with the
    /// plain symbol `hipGetDeviceProperties`.
    pub const ARCH_NAME_R0000: usize = 396;
    /// `sizeof(hipDeviceProp_t)` of that layout.
    pub const SIZE_R0000: usize = 792;
    /// Offset of `gcnArchName` with `hipGetDevicePropertiesR0600`.
    pub const ARCH_NAME_R0600: usize = 1160;
    /// `sizeof(hipDeviceProp_t)` of that layout.
    pub const SIZE_R0600: usize = 1472;
    /// Bytes of `gcnArchName`.
    pub const ARCH_NAME_LEN: usize = 256;
}

/// `hipDeviceAttribute_t`, with equal values in ROCm 5, 6 and 7.
pub mod attribute {
    /// Highest core clock in kHz.
    pub const hipDeviceAttributeClockRate: u32 = 5;
    /// Whether all blocks of a grid can be resident together.
    pub const hipDeviceAttributeCooperativeLaunch: u32 = 10;
    /// Whether the device shares memory with the CPU.
    pub const hipDeviceAttributeIntegrated: u32 = 16;
    /// Bytes of level-2 cache.
    pub const hipDeviceAttributeL2CacheSize: u32 = 19;
    /// Compute units; on RDNA, work-group processors of two compute units each.
    pub const hipDeviceAttributeMultiprocessorCount: u32 = 63;
    /// Default wave width.
    pub const hipDeviceAttributeWarpSize: u32 = 87;
}

/// `hipStreamCaptureMode`.
pub mod capture {
    /// Only calls of the capturing thread are checked.
    pub const hipStreamCaptureModeThreadLocal: u32 = 1;
}

/// Flags of streams, events and page-locked memory.
pub mod flags {
    /// The stream does not synchronise with other streams, including the default stream.
    pub const hipStreamNonBlocking: u32 = 1;
    /// An event that records its time.
    pub const hipEventDefault: u32 = 0;
    /// An event without a time.
    pub const hipEventDisableTiming: u32 = 2;
    /// The memory is page-locked for all devices.
    pub const hipHostMallocPortable: u32 = 1;
    /// The memory is mapped to a device address.
    pub const hipHostMallocMapped: u32 = 2;
    /// The memory is fast to write and slow to read.
    pub const hipHostMallocWriteCombined: u32 = 4;
    /// Writes of a device are visible to other devices while kernels run.
    pub const hipHostMallocCoherent: u32 = 0x4000_0000;
    /// Device memory that other devices can access while kernels run.
    pub const hipDeviceMallocFinegrained: u32 = 1;
    /// The memory is page-locked for all devices.
    pub const hipHostRegisterPortable: u32 = 1;
    /// The memory is mapped to a device address.
    pub const hipHostRegisterMapped: u32 = 2;
}

calls! {
    /// The opened HIP runtime.
    pub struct Hip, described by describe;

    /// Initialises the runtime; flags are 0. Returns 100 or 101 without a GPU.
    fn hipInit(flags: c_uint);
    /// Version of the driver interface, in the format of `hipRuntimeGetVersion`.
    fn hipDriverGetVersion(version: *mut c_int);
    /// Version as major × 10 000 000 + minor × 100 000 + patch.
    fn hipRuntimeGetVersion(version: *mut c_int);
    /// Number of visible devices; returns 100 if it is zero.
    fn hipGetDeviceCount(count: *mut c_int);
    /// Makes a device current in the calling thread.
    fn hipSetDevice(device: c_int);
    /// A property of a device.
    fn hipDeviceGetAttribute(value: *mut c_int, attribute: hipDeviceAttribute_t, device: c_int);
    /// Marketing name.
    fn hipDeviceGetName(name: *mut c_char, len: c_int, device: hipDevice_t);
    /// UUID of the device, 16 bytes.
    fn hipDeviceGetUuid(uuid: *mut hipUUID, device: hipDevice_t);
    /// Bytes of device memory.
    fn hipDeviceTotalMem(bytes: *mut usize, device: hipDevice_t);
    /// PCI address such as `0000:c1:00.0`.
    fn hipDeviceGetPCIBusId(text: *mut c_char, len: c_int, device: c_int);
    /// Properties in the layout of ROCm 6 and later; a symbol of these versions.
    fn hipGetDevicePropertiesR0600(prop: *mut hipDeviceProp_t, device: c_int);
    /// Properties in the layout of ROCm 5; a symbol of ROCm 6 and later.
    fn hipGetDevicePropertiesR0000(prop: *mut hipDeviceProp_t, device: c_int);
    /// Properties in the layout of ROCm 5, in every version.
    fn hipGetDeviceProperties(prop: *mut hipDeviceProp_t, device: c_int);
    /// Free and total memory of the current device in bytes.
    fn hipMemGetInfo(free: *mut usize, total: *mut usize);
    /// Waits for all streams of the current device.
    fn hipDeviceSynchronize();

    /// Destroys everything of this process on the current device.
    fn hipDeviceReset();

    /// Allocates device memory.
    fn hipMalloc(address: *mut *mut c_void, bytes: usize);
    /// Allocates device memory with flags, for access by other devices while kernels run.
    fn hipExtMallocWithFlags(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    /// Waits for work that uses the memory, and frees it.
    fn hipFree(address: *mut c_void);
    /// Allocates page-locked host memory.
    fn hipHostMalloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    /// Frees page-locked host memory.
    fn hipHostFree(address: *mut c_void);
    /// The device address of page-locked memory; flags are 0.
    fn hipHostGetDevicePointer(device: *mut *mut c_void, host: *mut c_void, flags: c_uint);
    /// Page-locks existing host memory.
    fn hipHostRegister(host: *mut c_void, bytes: usize, flags: c_uint);
    /// Undoes `hipHostRegister`.
    fn hipHostUnregister(host: *mut c_void);
    /// Copies from host to device.
    fn hipMemcpyHtoDAsync(to: hipDeviceptr_t, from: *mut c_void, bytes: usize, stream: hipStream_t);
    /// Copies from device to host.
    fn hipMemcpyDtoHAsync(to: *mut c_void, from: hipDeviceptr_t, bytes: usize, stream: hipStream_t);
    /// Copies within a device.
    fn hipMemcpyDtoDAsync(to: hipDeviceptr_t, from: hipDeviceptr_t, bytes: usize, stream: hipStream_t);
    /// Copies between two devices, directly if peer access is enabled.
    fn hipMemcpyPeerAsync(
        to: *mut c_void, to_device: c_int, from: *const c_void, from_device: c_int, bytes: usize, stream: hipStream_t,
    );
    /// Sets every byte of a range.
    fn hipMemsetAsync(to: *mut c_void, byte: c_int, bytes: usize, stream: hipStream_t);
    /// Whether a device can access the memory of another device.
    fn hipDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int);
    /// Enables access from the current device to the memory of another device; flags are 0.
    fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint);

    /// Lowest and highest stream priority; the highest is the smallest number.
    fn hipDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    /// Creates a stream on the current device.
    fn hipStreamCreateWithPriority(stream: *mut hipStream_t, flags: c_uint, priority: c_int);
    /// Destroys a stream. Work in it still completes.
    fn hipStreamDestroy(stream: hipStream_t);
    /// Blocks the host until the stream's work is done.
    fn hipStreamSynchronize(stream: hipStream_t);
    /// Returns 600 if the stream has unfinished work.
    fn hipStreamQuery(stream: hipStream_t);
    /// Makes the stream wait for the event; flags are 0.
    fn hipStreamWaitEvent(stream: hipStream_t, event: hipEvent_t, flags: c_uint);
    /// Creates an event on the current device.
    fn hipEventCreateWithFlags(event: *mut hipEvent_t, flags: c_uint);
    /// Destroys an event.
    fn hipEventDestroy(event: hipEvent_t);
    /// Records the event at the end of the stream.
    fn hipEventRecord(event: hipEvent_t, stream: hipStream_t);
    /// Returns 600 until the event has completed.
    fn hipEventQuery(event: hipEvent_t);
    /// Blocks the host until the event has completed.
    fn hipEventSynchronize(event: hipEvent_t);
    /// Milliseconds between two events.
    fn hipEventElapsedTime(milliseconds: *mut f32, from: hipEvent_t, to: hipEvent_t);

    /// Loads a code object from memory; its length is read from its ELF headers.
    fn hipModuleLoadData(module: *mut hipModule_t, image: *const c_void);
    /// Unloads a module.
    fn hipModuleUnload(module: hipModule_t);
    /// Returns a kernel by its name.
    fn hipModuleGetFunction(function: *mut hipFunction_t, module: hipModule_t, name: *const c_char);
    /// Number of blocks of this size that can be resident on a compute unit.
    fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int, function: hipFunction_t, threads: c_int, shared: usize,
    );
    /// Launches a kernel. `params` points to the value of each argument; `extra` is null.
    fn hipModuleLaunchKernel(
        function: hipFunction_t, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: hipStream_t, params: *mut *mut c_void, extra: *mut *mut c_void,
    );
    /// Launches a kernel with all blocks resident. ROCm 5.5 and later.
    fn hipModuleLaunchCooperativeKernel(
        function: hipFunction_t, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: hipStream_t, params: *mut *mut c_void,
    );

    /// Starts to capture the stream.
    fn hipStreamBeginCapture(stream: hipStream_t, mode: hipStreamCaptureMode);
    /// Ends the capture.
    fn hipStreamEndCapture(stream: hipStream_t, graph: *mut hipGraph_t);
    /// Returns the nodes of a graph; only their number if the list is null.
    fn hipGraphGetNodes(graph: hipGraph_t, nodes: *mut hipGraphNode_t, count: *mut usize);
    /// Destroys a graph.
    fn hipGraphDestroy(graph: hipGraph_t);
    /// Creates an executable graph; the last three arguments may be null, null and 0.
    fn hipGraphInstantiate(
        exec: *mut hipGraphExec_t, graph: hipGraph_t, error_node: *mut hipGraphNode_t, log: *mut c_char, len: usize,
    );
    /// Uploads an executable graph before its first replay; ROCm 6 and later.
    fn hipGraphUpload(exec: hipGraphExec_t, stream: hipStream_t);
    /// Replays an executable graph.
    fn hipGraphLaunch(exec: hipGraphExec_t, stream: hipStream_t);
    /// Updates an executable graph with the parameters of another graph.
    fn hipGraphExecUpdate(
        exec: hipGraphExec_t, graph: hipGraph_t, error_node: *mut hipGraphNode_t,
        result: *mut hipGraphExecUpdateResult,
    );
    /// Destroys an executable graph.
    fn hipGraphExecDestroy(exec: hipGraphExec_t);
}

/// Calls that some supported versions lack (the oldest is 5.2). Callers must handle their absence.
pub const NEWER_CALLS: &[&str] = &[
    "hipGetDevicePropertiesR0600",
    "hipGetDevicePropertiesR0000",
    "hipModuleLaunchCooperativeKernel",
    "hipGraphUpload",
];

/// The search for the runtime.
pub const SEARCH: Search = Search {
    library: "the HIP runtime (libamdhip64.so)",
    names: &[
        "libamdhip64.so.10",
        "libamdhip64.so.9",
        "libamdhip64.so.8",
        "libamdhip64.so.7",
        "libamdhip64.so.6",
        "libamdhip64.so.5",
        "libamdhip64.so",
    ],
    variable: "KJIT_HIP_LIBRARY",
    package: "it comes with AMD's ROCm (Debian: libamdhip64-5); KJIT_HIP_LIBRARY names the file",
};

impl Hip {
    /// Opens the runtime. `more` lists further folders; it is called only if no other library
    /// opens.
    ///
    /// # Errors
    /// [`Error::NotFound`] with all searched paths; [`Error::Missing`] if the library is not a HIP
    /// runtime.
    pub fn open(more: impl FnOnce() -> Vec<PathBuf>) -> Result<Hip, Error> {
        let hip = Hip::over(SEARCH.open(more)?);
        if hip.missing().contains(&"hipInit") {
            return Err(Error::Missing { symbol: "hipInit", library: hip.opened.place });
        }
        Ok(hip)
    }
}

/// The name and meaning of a code: from [`codes`] if listed, otherwise from the library.
fn describe(hip: &Hip, code: u32) -> (String, String) {
    if let Some(row) = name_in(codes::CODES, code) {
        return (row.name.to_owned(), row.says.to_owned());
    }
    type Text = unsafe extern "C" fn(u32) -> *const c_char;
    let text = |name: &str| {
        // SAFETY: both calls have this signature in every version.
        let call = unsafe { hip.opened.symbol::<Text>(name) }?;
        // SAFETY: any code is allowed; the result is a static, terminated string or null.
        let text = unsafe { call(code) };
        // SAFETY: not null, so it is a static, terminated string.
        (!text.is_null())
            .then(|| unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    let name = text("hipGetErrorName").unwrap_or_else(|| "no name".to_owned());
    let says = text("hipGetErrorString")
        .unwrap_or_else(|| "a failure that this runtime does not name".to_owned());
    (name, says)
}

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
