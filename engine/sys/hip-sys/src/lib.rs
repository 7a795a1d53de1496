//! AMD's HIP runtime as kjit uses it: opened at run time, every call a `Result`, a missing symbol
//! the failure of that call alone. What is called, with its signature, is listed once, in [`Hip`]
//! below; numbers and names of codes stand in [`codes`]. Names are the vendor's.
//!
//! Signatures are those of ROCm 5.2 (Debian's headers, held against this list by a test) and
//! unchanged in ROCm 6 and 7, except for the calls that are newer, which say so. `hiprtc-sys` and
//! `rocblas-sys` use the same loader and macro.
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

pub use calls::Signature;
pub use error::{CodeName, Error, code, name_in};
pub use loader::{Opened, Search, Tried, WHEEL_FOLDERS, for_loader, usual_folders};

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::PathBuf;

/// A queue of work.
pub type hipStream_t = *mut c_void;
/// A point in a stream.
pub type hipEvent_t = *mut c_void;
/// A loaded code object.
pub type hipModule_t = *mut c_void;
/// A kernel of a module.
pub type hipFunction_t = *mut c_void;
/// A recorded graph.
pub type hipGraph_t = *mut c_void;
/// A graph made ready to run.
pub type hipGraphExec_t = *mut c_void;
/// A step of a graph.
pub type hipGraphNode_t = *mut c_void;
/// An address on the device.
pub type hipDeviceptr_t = *mut c_void;
/// A device by its number.
pub type hipDevice_t = c_int;
/// Which fact of a device: one of [`attribute`].
pub type hipDeviceAttribute_t = c_uint;
/// How strict a capture is: one of [`capture`].
pub type hipStreamCaptureMode = c_uint;
/// What came of a graph's update.
pub type hipGraphExecUpdateResult = c_uint;

/// 16 bytes that name a device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct hipUUID {
    /// ROCm fills them with ASCII (`GPU-` is put before them by its tools).
    pub bytes: [u8; 16],
}

/// `hipDeviceProp_t`, as bytes: its layout changed in ROCm 6, so only its name field is ever read,
/// at the offset of the call that filled it ([`prop`]). Large enough for every version (792 and
/// 1472 bytes) with room for later ones.
#[repr(C, align(16))]
pub struct hipDeviceProp_t(pub [u8; 4096]);

/// Where things are in [`hipDeviceProp_t`].
pub mod prop {
    /// Offset of `gcnArchName` as `hipGetDevicePropertiesR0000` and, in every version, the plain
    /// `hipGetDeviceProperties` symbol fill it.
    pub const ARCH_NAME_R0000: usize = 396;
    /// `sizeof(hipDeviceProp_t)` there.
    pub const SIZE_R0000: usize = 792;
    /// Offset of `gcnArchName` as `hipGetDevicePropertiesR0600` fills it.
    pub const ARCH_NAME_R0600: usize = 1160;
    /// `sizeof(hipDeviceProp_t)` there.
    pub const SIZE_R0600: usize = 1472;
    /// Bytes of `gcnArchName`.
    pub const ARCH_NAME_LEN: usize = 256;
}

/// `hipDeviceAttribute_t`: the values are the same in ROCm 5, 6 and 7.
pub mod attribute {
    /// Highest core clock, kHz.
    pub const hipDeviceAttributeClockRate: u32 = 5;
    /// Whether all blocks of a grid can be made resident together.
    pub const hipDeviceAttributeCooperativeLaunch: u32 = 10;
    /// Whether memory is shared with the CPU.
    pub const hipDeviceAttributeIntegrated: u32 = 16;
    /// Bytes of level-2 cache.
    pub const hipDeviceAttributeL2CacheSize: u32 = 19;
    /// Compute units; on RDNA work-group processors, of two compute units each.
    pub const hipDeviceAttributeMultiprocessorCount: u32 = 63;
    /// Default wave width.
    pub const hipDeviceAttributeWarpSize: u32 = 87;
}

/// `hipStreamCaptureMode`.
pub mod capture {
    /// Only calls of the capturing thread are watched.
    pub const hipStreamCaptureModeThreadLocal: u32 = 1;
}

/// Flags of streams, events and page-locked memory.
pub mod flags {
    /// The stream waits for no other, the default stream included.
    pub const hipStreamNonBlocking: u32 = 1;
    /// An event that keeps its time.
    pub const hipEventDefault: u32 = 0;
    /// An event that keeps no time.
    pub const hipEventDisableTiming: u32 = 2;
    /// Page-locked for every device.
    pub const hipHostMallocPortable: u32 = 1;
    /// With an address on the device.
    pub const hipHostMallocMapped: u32 = 2;
    /// Fast to write, slow to read.
    pub const hipHostMallocWriteCombined: u32 = 4;
    /// Devices see each other's writes while kernels run.
    pub const hipHostMallocCoherent: u32 = 0x4000_0000;
    /// Device memory that other devices see while kernels run.
    pub const hipDeviceMallocFinegrained: u32 = 1;
    /// Page-locked for every device.
    pub const hipHostRegisterPortable: u32 = 1;
    /// With an address on the device.
    pub const hipHostRegisterMapped: u32 = 2;
}

calls! {
    /// The opened HIP runtime.
    pub struct Hip, described by describe;

    /// Starts the runtime; flags are 0. 100 or 101 without a GPU.
    fn hipInit(flags: c_uint);
    /// Version of the driver interface, as `hipRuntimeGetVersion`.
    fn hipDriverGetVersion(version: *mut c_int);
    /// Version as major × 10 000 000 + minor × 100 000 + patch.
    fn hipRuntimeGetVersion(version: *mut c_int);
    /// Number of visible devices; 100 without any.
    fn hipGetDeviceCount(count: *mut c_int);
    /// Makes a device the calling thread's.
    fn hipSetDevice(device: c_int);
    /// One number of a device.
    fn hipDeviceGetAttribute(value: *mut c_int, attribute: hipDeviceAttribute_t, device: c_int);
    /// Marketing name.
    fn hipDeviceGetName(name: *mut c_char, len: c_int, device: hipDevice_t);
    /// 16 bytes that name the device.
    fn hipDeviceGetUuid(uuid: *mut hipUUID, device: hipDevice_t);
    /// Bytes of device memory.
    fn hipDeviceTotalMem(bytes: *mut usize, device: hipDevice_t);
    /// `0000:c1:00.0`.
    fn hipDeviceGetPCIBusId(text: *mut c_char, len: c_int, device: c_int);
    /// Properties in the layout of ROCm 6 and later, which alone have the symbol.
    fn hipGetDevicePropertiesR0600(prop: *mut hipDeviceProp_t, device: c_int);
    /// Properties in the layout of ROCm 5; a symbol of ROCm 6 and later.
    fn hipGetDevicePropertiesR0000(prop: *mut hipDeviceProp_t, device: c_int);
    /// Properties in the layout of ROCm 5, in every version.
    fn hipGetDeviceProperties(prop: *mut hipDeviceProp_t, device: c_int);
    /// Bytes free and in all on the thread's device.
    fn hipMemGetInfo(free: *mut usize, total: *mut usize);
    /// Waits for all streams of the thread's device.
    fn hipDeviceSynchronize();

    /// Ends all that this process has on the thread's device.
    fn hipDeviceReset();

    /// Device memory.
    fn hipMalloc(address: *mut *mut c_void, bytes: usize);
    /// The same by flags: memory that other devices see while kernels run.
    fn hipExtMallocWithFlags(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    /// Waits for its uses and gives it back.
    fn hipFree(address: *mut c_void);
    /// Page-locked host memory.
    fn hipHostMalloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    /// Gives it back.
    fn hipHostFree(address: *mut c_void);
    /// Its address on the device; flags are 0.
    fn hipHostGetDevicePointer(device: *mut *mut c_void, host: *mut c_void, flags: c_uint);
    /// Page-locks existing memory.
    fn hipHostRegister(host: *mut c_void, bytes: usize, flags: c_uint);
    /// Undoes it.
    fn hipHostUnregister(host: *mut c_void);
    /// Copies from host to device.
    fn hipMemcpyHtoDAsync(to: hipDeviceptr_t, from: *mut c_void, bytes: usize, stream: hipStream_t);
    /// Copies from device to host.
    fn hipMemcpyDtoHAsync(to: *mut c_void, from: hipDeviceptr_t, bytes: usize, stream: hipStream_t);
    /// Copies within a device.
    fn hipMemcpyDtoDAsync(to: hipDeviceptr_t, from: hipDeviceptr_t, bytes: usize, stream: hipStream_t);
    /// Copies between two devices, directly where they reach each other.
    fn hipMemcpyPeerAsync(
        to: *mut c_void, to_device: c_int, from: *const c_void, from_device: c_int, bytes: usize, stream: hipStream_t,
    );
    /// Sets every byte.
    fn hipMemsetAsync(to: *mut c_void, byte: c_int, bytes: usize, stream: hipStream_t);
    /// Whether a device can reach another's memory.
    fn hipDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int);
    /// Lets the thread's device reach another's memory; flags are 0.
    fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint);

    /// Lowest and highest priority of streams (the highest is the smallest number).
    fn hipDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    /// A stream on the thread's device.
    fn hipStreamCreateWithPriority(stream: *mut hipStream_t, flags: c_uint, priority: c_int);
    /// Gives it back; what is in it still runs.
    fn hipStreamDestroy(stream: hipStream_t);
    /// The host waits for it.
    fn hipStreamSynchronize(stream: hipStream_t);
    /// 600 while it works.
    fn hipStreamQuery(stream: hipStream_t);
    /// The stream waits for the event; flags are 0.
    fn hipStreamWaitEvent(stream: hipStream_t, event: hipEvent_t, flags: c_uint);
    /// An event on the thread's device.
    fn hipEventCreateWithFlags(event: *mut hipEvent_t, flags: c_uint);
    /// Gives it back.
    fn hipEventDestroy(event: hipEvent_t);
    /// Puts it at the stream's end.
    fn hipEventRecord(event: hipEvent_t, stream: hipStream_t);
    /// 600 until it has passed.
    fn hipEventQuery(event: hipEvent_t);
    /// The host waits for it.
    fn hipEventSynchronize(event: hipEvent_t);
    /// Milliseconds from one to the other.
    fn hipEventElapsedTime(milliseconds: *mut f32, from: hipEvent_t, to: hipEvent_t);

    /// Loads a code object from memory; its length is read from its ELF headers.
    fn hipModuleLoadData(module: *mut hipModule_t, image: *const c_void);
    /// Unloads it.
    fn hipModuleUnload(module: hipModule_t);
    /// A kernel by name.
    fn hipModuleGetFunction(function: *mut hipFunction_t, module: hipModule_t, name: *const c_char);
    /// Blocks of that size that a compute unit holds at once.
    fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int, function: hipFunction_t, threads: c_int, shared: usize,
    );
    /// Launches: `params` points at each argument's value; `extra` is null.
    fn hipModuleLaunchKernel(
        function: hipFunction_t, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: hipStream_t, params: *mut *mut c_void, extra: *mut *mut c_void,
    );
    /// Launches with all blocks resident; ROCm 5.5 and later.
    fn hipModuleLaunchCooperativeKernel(
        function: hipFunction_t, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: hipStream_t, params: *mut *mut c_void,
    );

    /// Records what is put into the stream from here on.
    fn hipStreamBeginCapture(stream: hipStream_t, mode: hipStreamCaptureMode);
    /// Ends it.
    fn hipStreamEndCapture(stream: hipStream_t, graph: *mut hipGraph_t);
    /// Its nodes; their count alone with a null list.
    fn hipGraphGetNodes(graph: hipGraph_t, nodes: *mut hipGraphNode_t, count: *mut usize);
    /// Gives it back.
    fn hipGraphDestroy(graph: hipGraph_t);
    /// Makes it ready; the last three may be null, null and 0.
    fn hipGraphInstantiate(
        exec: *mut hipGraphExec_t, graph: hipGraph_t, error_node: *mut hipGraphNode_t, log: *mut c_char, len: usize,
    );
    /// Moves it to the device ahead of its first run; ROCm 6 and later.
    fn hipGraphUpload(exec: hipGraphExec_t, stream: hipStream_t);
    /// Runs it.
    fn hipGraphLaunch(exec: hipGraphExec_t, stream: hipStream_t);
    /// Puts another graph's parameters into it.
    fn hipGraphExecUpdate(
        exec: hipGraphExec_t, graph: hipGraph_t, error_node: *mut hipGraphNode_t,
        result: *mut hipGraphExecUpdateResult,
    );
    /// Gives it back.
    fn hipGraphExecDestroy(exec: hipGraphExec_t);
}

/// Calls that not every version has (5.2 is the oldest supported): what uses them must do without.
pub const NEWER_CALLS: &[&str] = &[
    "hipGetDevicePropertiesR0600",
    "hipGetDevicePropertiesR0000",
    "hipModuleLaunchCooperativeKernel",
    "hipGraphUpload",
];

/// How the runtime is looked for.
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
    /// Opens the runtime. `more` lists further folders, asked for only when nothing else opens.
    ///
    /// # Errors
    /// [`Error::NotFound`] with every place tried; [`Error::Missing`] when what opens is no HIP
    /// runtime at all.
    pub fn open(more: impl FnOnce() -> Vec<PathBuf>) -> Result<Hip, Error> {
        let hip = Hip::over(SEARCH.open(more)?);
        if hip.missing().contains(&"hipInit") {
            return Err(Error::Missing { symbol: "hipInit", library: hip.opened.place });
        }
        Ok(hip)
    }
}

/// Name and sentence of a code: ours, else the library's.
fn describe(hip: &Hip, code: u32) -> (String, String) {
    if let Some(row) = name_in(codes::CODES, code) {
        return (row.name.to_owned(), row.says.to_owned());
    }
    type Text = unsafe extern "C" fn(u32) -> *const c_char;
    let text = |name: &str| {
        // SAFETY: both calls have this signature in every version.
        let call = unsafe { hip.opened.symbol::<Text>(name) }?;
        // SAFETY: any number may be asked; the answer is a static, terminated string or null.
        let text = unsafe { call(code) };
        // SAFETY: as above.
        (!text.is_null())
            .then(|| unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    let name = text("hipGetErrorName").unwrap_or_else(|| "no name".to_owned());
    let says = text("hipGetErrorString")
        .unwrap_or_else(|| "a failure that this runtime does not name".to_owned());
    (name, says)
}

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
