//! An AMD device and its driver calls.
//!
//! Every call first makes the device current in the calling thread (the runtime stores it per
//! thread). So a device can be used from any thread.

use super::super::api::{Fault, FaultKind, Raw, RawBlas, RawDevice, Try};
use super::super::lost::Context;
use super::blas::RocblasHandle;
use super::runtime::{HipRuntime, fault};
use crate::error::Result;
use crate::geometry::Geometry;
use hip_sys::{Hip, capture, codes, flags};
use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

pub(super) struct HipDevice {
    runtime: Arc<HipRuntime>,
    ordinal: c_int,
    /// Whether the device's state is still valid.
    state: Context,
    /// The range `(lowest, highest)` of stream priorities.
    priorities: (c_int, c_int),
    /// Page-locked memory that this program mapped because the runtime refused to allocate it:
    /// bytes by address.
    ours: Mutex<HashMap<usize, usize>>,
}

/// Converts a `Raw` to the runtime's handle.
macro_rules! h {
    ($raw:expr) => {
        $raw.0 as *mut c_void
    };
}

/// Calls `f` with this device current.
macro_rules! call {
    ($self:ident.$name:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: out-parameters are locals; the rest is valid by the contract of `RawDevice`.
        unsafe { $self.current()?.$name($($arg),*) }.map_err(|e| $self.fault(e))
    };
}

/// A call whose first parameter receives a new handle.
macro_rules! made {
    ($self:ident.$name:ident($($arg:expr),* $(,)?)) => {{
        let mut handle = null_mut();
        call!($self.$name(&mut handle, $($arg),*))?;
        Raw::of(stringify!($name), handle)
    }};
}

/// `hipErrorPeerAccessUnsupported`.
const PEER_UNSUPPORTED: u32 = 217;

impl HipDevice {
    pub fn open(runtime: Arc<HipRuntime>, ordinal: u32) -> Try<HipDevice> {
        let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        let renew = || {
            // SAFETY: selects the device, then destroys everything on it; `join` calls this only
            // after all its objects were dropped.
            unsafe { runtime.hip.hipSetDevice(number).and_then(|()| runtime.hip.hipDeviceReset()) }
                .map_err(fault)
        };
        let state = runtime.contexts.join(ordinal, renew)?;
        let mut opened = HipDevice {
            runtime,
            ordinal: number,
            state,
            priorities: (0, 0),
            ours: Mutex::default(),
        };
        let (mut low, mut high) = (0, 0);
        // SAFETY: writes two ints.
        unsafe { opened.current()?.hipDeviceGetStreamPriorityRange(&mut low, &mut high) }
            .map_err(|e| opened.fault(e))?;
        opened.priorities = (low, high);
        Ok(opened)
    }

    /// The functions, after this device was made current in this thread.
    fn current(&self) -> Try<&Hip> {
        self.state.check()?;
        let hip = &self.runtime.hip;
        // SAFETY: takes a number.
        unsafe { hip.hipSetDevice(self.ordinal) }.map_err(|e| self.fault(e))?;
        Ok(hip)
    }

    /// Maps and page-locks memory without the runtime's allocator. Returns its host and device
    /// addresses.
    fn lock_ours(&self, hip: &Hip, bytes: usize) -> Try<(*mut u8, u64)> {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: maps new pages, which no other code uses.
        let at = unsafe { libc::mmap(null_mut(), bytes, prot, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(Fault {
                call: "mmap",
                code: 0,
                says: std::io::Error::last_os_error().to_string(),
                kind: FaultKind::OutOfMemory,
            });
        }
        let locked = flags::hipHostRegisterPortable | flags::hipHostRegisterMapped;
        let mut address = null_mut();
        // SAFETY: the pages stay mapped until they are unlocked; then writes one pointer.
        let known = unsafe {
            hip.hipHostRegister(at, bytes, locked).and_then(|()| {
                let answer = hip.hipHostGetDevicePointer(&mut address, at, 0);
                if answer.is_err() {
                    let _ = hip.hipHostUnregister(at);
                }
                answer
            })
        };
        if let Err(error) = known {
            // SAFETY: the address of these pages was not passed on.
            unsafe { libc::munmap(at, bytes) };
            return Err(self.fault(error));
        }
        self.ours.lock().unwrap_or_else(PoisonError::into_inner).insert(at as usize, bytes);
        Ok((at.cast(), address as u64))
    }

    /// Allocates page-locked memory for all devices, with additional flags. Returns its host
    /// address and its address on this device.
    fn host_pages(&self, bytes: u64, more: u32) -> Try<(*mut u8, u64)> {
        let hip = self.current()?;
        let flags = flags::hipHostMallocPortable | flags::hipHostMallocMapped | more;
        let mut at = null_mut();
        // SAFETY: writes one pointer.
        if let Err(error) = unsafe { hip.hipHostMalloc(&mut at, bytes as usize, flags) } {
            let refused = self.fault(error);
            // The runtime uses a pool for these, which the system may limit. Pages that we map are
            // not limited. Registered memory is coherent by default.
            return self.lock_ours(hip, bytes as usize).map_err(|_| refused);
        }
        let mut address = null_mut();
        // SAFETY: allocated above; writes one pointer.
        if let Err(error) = unsafe { hip.hipHostGetDevicePointer(&mut address, at, 0) } {
            // SAFETY: the address of this memory was not passed on.
            let _ = unsafe { hip.hipHostFree(at) };
            return Err(self.fault(error));
        }
        Ok((at.cast(), address as u64))
    }

    /// Converts the error of a call to a fault. Records it if the device is lost.
    fn fault(&self, error: hip_sys::Error) -> Fault {
        self.state.note(fault(error))
    }

    /// Whether the work is done. Other errors are returned.
    fn ready(&self, answer: Result<(), hip_sys::Error>) -> Try<bool> {
        match answer {
            Ok(()) => Ok(true),
            Err(error) if error.code() == Some(codes::hipErrorNotReady) => Ok(false),
            Err(error) => Err(self.fault(error)),
        }
    }
}

// SAFETY: for every block below: out-parameters are local variables of the type that the runtime
// writes; handles, addresses and ranges are valid by the contract of `RawDevice`; the device is
// current. Blocks that need more have their own comment.
#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the safety contract is stated once, above and on the trait"
)]
impl RawDevice for HipDevice {
    fn blas(&self) -> Option<Result<Box<dyn RawBlas>>> {
        let opened =
            self.current().map_err(|f| f.on(&format!("rocm:{}", self.ordinal))).and_then(|_| {
                let blas = RocblasHandle::open(Arc::clone(&self.runtime), self.ordinal)?;
                Ok(Box::new(blas) as Box<dyn RawBlas>)
            });
        Some(opened)
    }

    fn reach(&self, other: u32) -> Try<bool> {
        let other = c_int::try_from(other).unwrap_or(c_int::MAX);
        let hip = self.current()?;
        let mut can = 0;
        unsafe { hip.hipDeviceCanAccessPeer(&mut can, self.ordinal, other) }
            .map_err(|e| self.fault(e))?;
        if can == 0 {
            return Ok(false);
        }
        match unsafe { hip.hipDeviceEnablePeerAccess(other, 0) } {
            // The runtime may refuse although the hardware supports it.
            Err(error) if error.code() == Some(PEER_UNSUPPORTED) => Ok(false),
            Err(error) if error.code() != Some(codes::hipErrorPeerAccessAlreadyEnabled) => {
                Err(self.fault(error))
            }
            _ => Ok(true),
        }
    }

    fn make_current(&self) -> Try<()> {
        self.current().map(drop)
    }

    fn leave(&self) {
        self.state.leave();
    }

    fn memory(&self) -> Try<(u64, u64)> {
        let (mut free, mut total) = (0usize, 0usize);
        call!(self.hipMemGetInfo(&mut free, &mut total))?;
        Ok((free as u64, total as u64))
    }

    fn wait_all(&self) -> Try<()> {
        call!(self.hipDeviceSynchronize())
    }

    fn alloc(&self, bytes: u64) -> Try<u64> {
        let mut address = null_mut();
        call!(self.hipMalloc(&mut address, bytes as usize))?;
        Ok(Raw::of("hipMalloc", address)?.0 as u64)
    }

    fn alloc_shared(&self, bytes: u64) -> Try<u64> {
        let mut address = null_mut();
        // Without this flag, writes of another device are visible only at the end of a kernel.
        call!(self.hipExtMallocWithFlags(
            &mut address,
            bytes as usize,
            flags::hipDeviceMallocFinegrained
        ))?;
        Ok(Raw::of("hipExtMallocWithFlags", address)?.0 as u64)
    }

    unsafe fn free(&self, address: u64) -> Try<()> {
        call!(self.hipFree(address as *mut c_void))
    }

    fn alloc_host(&self, bytes: u64, write_combined: bool) -> Try<(*mut u8, u64)> {
        self.host_pages(bytes, if write_combined { flags::hipHostMallocWriteCombined } else { 0 })
    }

    fn alloc_host_shared(&self, bytes: u64) -> Try<*mut u8> {
        // Without this flag a setting of the runtime (HIP_HOST_COHERENT) decides whether a running
        // kernel sees writes of another device.
        Ok(self.host_pages(bytes, flags::hipHostMallocCoherent)?.0)
    }

    unsafe fn host_address(&self, at: *mut u8) -> Try<u64> {
        let mut address = null_mut();
        call!(self.hipHostGetDevicePointer(&mut address, at.cast(), 0))?;
        Ok(Raw::of("hipHostGetDevicePointer", address)?.0 as u64)
    }

    unsafe fn free_host(&self, at: *mut u8) -> Try<()> {
        let Some(bytes) =
            self.ours.lock().unwrap_or_else(PoisonError::into_inner).remove(&(at as usize))
        else {
            return call!(self.hipHostFree(at.cast()));
        };
        let unlocked = call!(self.hipHostUnregister(at.cast()));
        // If unlocking fails, the device may still write the pages, so they stay mapped.
        if unlocked.is_ok() {
            unsafe { libc::munmap(at.cast(), bytes) };
        }
        unlocked
    }

    unsafe fn register_host(&self, at: *const u8, bytes: usize) -> Try<()> {
        let flags = flags::hipHostRegisterPortable | flags::hipHostRegisterMapped;
        call!(self.hipHostRegister(at.cast_mut().cast(), bytes, flags))
    }

    unsafe fn unregister_host(&self, at: *const u8) -> Try<()> {
        call!(self.hipHostUnregister(at.cast_mut().cast()))
    }

    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize, stream: Raw) -> Try<()> {
        // Up to ROCm 6 the runtime's headers declare the source as mutable, but it is only read.
        let from = from.cast_mut().cast();
        call!(self.hipMemcpyHtoDAsync(to as *mut c_void, from, bytes, h!(stream)))
    }

    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize, stream: Raw) -> Try<()> {
        call!(self.hipMemcpyDtoHAsync(to.cast(), from as *mut c_void, bytes, h!(stream)))
    }

    unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize, stream: Raw) -> Try<()> {
        let (to, from) = (to as *mut c_void, from as *mut c_void);
        call!(self.hipMemcpyDtoDAsync(to, from, bytes, h!(stream)))
    }

    unsafe fn copy_peer(
        &self,
        to: u64,
        from: u64,
        from_device: u32,
        bytes: usize,
        stream: Raw,
    ) -> Try<()> {
        let (to, from) = (to as *mut c_void, from as *const c_void);
        let from_device = c_int::try_from(from_device).unwrap_or(c_int::MAX);
        call!(self.hipMemcpyPeerAsync(to, self.ordinal, from, from_device, bytes, h!(stream)))
    }

    unsafe fn fill(&self, to: u64, byte: u8, bytes: usize, stream: Raw) -> Try<()> {
        let to = to as *mut c_void;
        call!(self.hipMemsetAsync(to, c_int::from(byte), bytes, h!(stream)))
    }

    fn stream(&self, urgency: u32) -> Try<Raw> {
        let priority = if urgency > 0 { self.priorities.1 } else { self.priorities.0 };
        let flags = flags::hipStreamNonBlocking;
        made!(self.hipStreamCreateWithPriority(flags, priority))
    }

    unsafe fn stream_destroy(&self, stream: Raw) -> Try<()> {
        call!(self.hipStreamDestroy(h!(stream)))
    }

    unsafe fn stream_wait_host(&self, stream: Raw) -> Try<()> {
        call!(self.hipStreamSynchronize(h!(stream)))
    }

    unsafe fn stream_idle(&self, stream: Raw) -> Try<bool> {
        self.ready(unsafe { self.current()?.hipStreamQuery(h!(stream)) })
    }

    unsafe fn stream_wait_event(&self, stream: Raw, event: Raw) -> Try<()> {
        call!(self.hipStreamWaitEvent(h!(stream), h!(event), 0))
    }

    fn event(&self, timed: bool) -> Try<Raw> {
        let flags = if timed { flags::hipEventDefault } else { flags::hipEventDisableTiming };
        made!(self.hipEventCreateWithFlags(flags))
    }

    unsafe fn event_destroy(&self, event: Raw) -> Try<()> {
        call!(self.hipEventDestroy(h!(event)))
    }

    unsafe fn event_record(&self, event: Raw, stream: Raw) -> Try<()> {
        call!(self.hipEventRecord(h!(event), h!(stream)))
    }

    unsafe fn event_done(&self, event: Raw) -> Try<bool> {
        self.ready(unsafe { self.current()?.hipEventQuery(h!(event)) })
    }

    unsafe fn event_wait_host(&self, event: Raw) -> Try<()> {
        call!(self.hipEventSynchronize(h!(event)))
    }

    unsafe fn event_elapsed(&self, from: Raw, to: Raw) -> Try<f32> {
        let mut milliseconds = 0.0;
        call!(self.hipEventElapsedTime(&mut milliseconds, h!(from), h!(to)))?;
        Ok(milliseconds)
    }

    unsafe fn module(&self, image: &[u8]) -> Try<Raw> {
        // SAFETY: the runtime reads the image's length from its headers, which `code_object` has
        // checked.
        made!(self.hipModuleLoadData(image.as_ptr().cast()))
    }

    unsafe fn module_unload(&self, module: Raw) -> Try<()> {
        call!(self.hipModuleUnload(h!(module)))
    }

    unsafe fn function(&self, module: Raw, name: &CStr) -> Try<Raw> {
        made!(self.hipModuleGetFunction(h!(module), name.as_ptr()))
    }

    unsafe fn function_shared(&self, _function: Raw, _bytes: u32) -> Try<()> {
        Ok(()) // AMD devices need no opt-in to use a block's whole LDS
    }

    unsafe fn function_blocks(&self, function: Raw, threads: u32, shared: u32) -> Try<u32> {
        let mut blocks = 0;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        let hip = self.current()?;
        unsafe {
            hip.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                h!(function),
                threads,
                shared as usize,
            )
        }
        .map_err(|e| self.fault(e))?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    unsafe fn launch(
        &self,
        function: Raw,
        shape: &Geometry,
        args: &mut [*mut c_void],
        stream: Raw,
    ) -> Try<()> {
        let hip = self.current()?;
        let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
        let (f, s, params) = (h!(function), h!(stream), args.as_mut_ptr());
        // SAFETY: `args` has one pointer for each argument of the code object; the runtime copies
        // the values (to the queue or the captured graph) before it returns.
        unsafe {
            if shape.cooperative {
                hip.hipModuleLaunchCooperativeKernel(
                    f,
                    gx,
                    gy,
                    gz,
                    bx,
                    by,
                    bz,
                    shape.shared,
                    s,
                    params,
                )
            } else {
                hip.hipModuleLaunchKernel(
                    f,
                    gx,
                    gy,
                    gz,
                    bx,
                    by,
                    bz,
                    shape.shared,
                    s,
                    params,
                    null_mut(),
                )
            }
        }
        // If a block is larger than compiled for, HIP returns the code of a failed kernel, but the
        // device is not lost. Later calls show a real loss.
        .map_err(fault)
    }

    unsafe fn capture_begin(&self, stream: Raw) -> Try<()> {
        // Thread-local mode: meanwhile other threads may allocate and compile.
        let mode = capture::hipStreamCaptureModeThreadLocal;
        call!(self.hipStreamBeginCapture(h!(stream), mode))
    }

    unsafe fn capture_end(&self, stream: Raw) -> Try<Raw> {
        let mut graph = null_mut();
        call!(self.hipStreamEndCapture(h!(stream), &mut graph))?;
        Raw::of("hipStreamEndCapture", graph)
    }

    unsafe fn graph_nodes(&self, graph: Raw) -> Try<usize> {
        let mut count = 0;
        call!(self.hipGraphGetNodes(h!(graph), null_mut(), &mut count))?;
        Ok(count)
    }

    unsafe fn graph_destroy(&self, graph: Raw) -> Try<()> {
        call!(self.hipGraphDestroy(h!(graph)))
    }

    unsafe fn graph_instantiate(&self, graph: Raw) -> Try<Raw> {
        let mut exec = null_mut();
        let hip = self.current()?;
        unsafe { hip.hipGraphInstantiate(&mut exec, h!(graph), null_mut(), null_mut(), 0) }
            .map_err(|e| self.fault(e))?;
        Raw::of("hipGraphInstantiate", exec)
    }

    unsafe fn graph_upload(&self, exec: Raw, stream: Raw) -> Try<()> {
        match unsafe { self.current()?.hipGraphUpload(h!(exec), h!(stream)) } {
            // ROCm 5 has no such call: its first replay uploads the graph.
            Err(hip_sys::Error::Missing { .. }) => Ok(()),
            answer => answer.map_err(|e| self.fault(e)),
        }
    }

    unsafe fn graph_launch(&self, exec: Raw, stream: Raw) -> Try<()> {
        call!(self.hipGraphLaunch(h!(exec), h!(stream)))
    }

    unsafe fn graph_update(&self, exec: Raw, graph: Raw) -> Try<bool> {
        let (mut node, mut result) = (null_mut(), 0);
        match unsafe {
            self.current()?.hipGraphExecUpdate(h!(exec), h!(graph), &mut node, &mut result)
        } {
            Ok(()) => Ok(true),
            Err(error) if error.code() == Some(codes::hipErrorGraphExecUpdateFailure) => Ok(false),
            Err(error) => Err(self.fault(error)),
        }
    }

    unsafe fn graph_exec_destroy(&self, exec: Raw) -> Try<()> {
        call!(self.hipGraphExecDestroy(h!(exec)))
    }
}
