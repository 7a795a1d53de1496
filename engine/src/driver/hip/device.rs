//! One AMD device and the calls on it.
//!
//! Every call makes the device the calling thread's first (a thread-local store in the runtime), so that devices may be
//! used from any thread without ceremony.

use super::super::api::{Raw, RawBlas, RawDevice, Try};
use super::blas::RocblasHandle;
use super::{HipRuntime, fault};
use crate::error::Result;
use crate::geometry::Geometry;
use hip_sys::{Hip, capture, codes, flags};
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

pub(super) struct HipDevice {
    runtime: Arc<HipRuntime>,
    ordinal: c_int,
    /// `(lowest, highest)` stream priority.
    priorities: (c_int, c_int),
}

/// A handle of the runtime out of our number.
macro_rules! h {
    ($raw:expr) => {
        $raw.0 as *mut c_void
    };
}

impl HipDevice {
    pub fn open(runtime: Arc<HipRuntime>, ordinal: u32) -> Try<HipDevice> {
        let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        let mut opened = HipDevice { runtime, ordinal, priorities: (0, 0) };
        let (mut low, mut high) = (0, 0);
        // SAFETY: writes two ints.
        unsafe { opened.current()?.hipDeviceGetStreamPriorityRange(&mut low, &mut high) }.map_err(fault)?;
        opened.priorities = (low, high);
        Ok(opened)
    }

    /// The calls, with our device current in this thread.
    fn current(&self) -> Try<&Hip> {
        let hip = &self.runtime.hip;
        // SAFETY: takes a number.
        unsafe { hip.hipSetDevice(self.ordinal) }.map_err(fault)?;
        Ok(hip)
    }
}

/// Done, not yet, or failed.
fn ready(answer: Result<(), hip_sys::Error>) -> Try<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(error) if error.code() == Some(codes::hipErrorNotReady) => Ok(false),
        Err(error) => Err(fault(error)),
    }
}

// SAFETY (of every block below): out-parameters are local variables of the type that the runtime writes; handles,
// addresses and ranges are valid by the contract of `RawDevice`; the device is current. Blocks with more to say say it.
#[allow(clippy::undocumented_unsafe_blocks, reason = "the contract stands once, above and on the trait")]
impl RawDevice for HipDevice {
    fn blas(&self) -> Option<Result<Box<dyn RawBlas>>> {
        let opened = self.current().map_err(|f| f.on(&format!("rocm:{}", self.ordinal))).and_then(|_| {
            let blas = RocblasHandle::open(Arc::clone(&self.runtime), self.ordinal)?;
            Ok(Box::new(blas) as Box<dyn RawBlas>)
        });
        Some(opened)
    }

    fn reach(&self, other: u32) -> Try<bool> {
        let other = c_int::try_from(other).unwrap_or(c_int::MAX);
        let hip = self.current()?;
        let mut can = 0;
        unsafe { hip.hipDeviceCanAccessPeer(&mut can, self.ordinal, other) }.map_err(fault)?;
        if can == 0 {
            return Ok(false);
        }
        match unsafe { hip.hipDeviceEnablePeerAccess(other, 0) } {
            Err(error) if error.code() != Some(codes::hipErrorPeerAccessAlreadyEnabled) => Err(fault(error)),
            _ => Ok(true),
        }
    }

    fn memory(&self) -> Try<(u64, u64)> {
        let (mut free, mut total) = (0usize, 0usize);
        unsafe { self.current()?.hipMemGetInfo(&mut free, &mut total) }.map_err(fault)?;
        Ok((free as u64, total as u64))
    }

    fn wait_all(&self) -> Try<()> {
        unsafe { self.current()?.hipDeviceSynchronize() }.map_err(fault)
    }

    fn alloc(&self, bytes: u64) -> Try<u64> {
        let mut address = null_mut();
        unsafe { self.current()?.hipMalloc(&mut address, bytes as usize) }.map_err(fault)?;
        Ok(Raw::of("hipMalloc", address)?.0 as u64)
    }

    unsafe fn free(&self, address: u64) -> Try<()> {
        unsafe { self.current()?.hipFree(address as *mut c_void) }.map_err(fault)
    }

    fn alloc_host(&self, bytes: u64, write_combined: bool) -> Try<(*mut u8, u64)> {
        let hip = self.current()?;
        let flags = flags::hipHostMallocPortable
            | flags::hipHostMallocMapped
            | if write_combined { flags::hipHostMallocWriteCombined } else { 0 };
        let mut at = null_mut();
        unsafe { hip.hipHostMalloc(&mut at, bytes as usize, flags) }.map_err(fault)?;
        let mut address = null_mut();
        if let Err(error) = unsafe { hip.hipHostGetDevicePointer(&mut address, at, 0) } {
            let _ = unsafe { hip.hipHostFree(at) };
            return Err(fault(error));
        }
        Ok((at.cast(), address as u64))
    }

    unsafe fn free_host(&self, at: *mut u8) -> Try<()> {
        unsafe { self.current()?.hipHostFree(at.cast()) }.map_err(fault)
    }

    unsafe fn register_host(&self, at: *const u8, bytes: usize) -> Try<()> {
        let flags = flags::hipHostRegisterPortable | flags::hipHostRegisterMapped;
        unsafe { self.current()?.hipHostRegister(at.cast_mut().cast(), bytes, flags) }.map_err(fault)
    }

    unsafe fn unregister_host(&self, at: *const u8) -> Try<()> {
        unsafe { self.current()?.hipHostUnregister(at.cast_mut().cast()) }.map_err(fault)
    }

    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize, stream: Raw) -> Try<()> {
        // The runtime's own headers take the source as mutable up to ROCm 6; it is read only.
        let from = from.cast_mut().cast();
        unsafe { self.current()?.hipMemcpyHtoDAsync(to as *mut c_void, from, bytes, h!(stream)) }.map_err(fault)
    }

    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize, stream: Raw) -> Try<()> {
        unsafe { self.current()?.hipMemcpyDtoHAsync(to.cast(), from as *mut c_void, bytes, h!(stream)) }.map_err(fault)
    }

    unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize, stream: Raw) -> Try<()> {
        let (to, from) = (to as *mut c_void, from as *mut c_void);
        unsafe { self.current()?.hipMemcpyDtoDAsync(to, from, bytes, h!(stream)) }.map_err(fault)
    }

    unsafe fn copy_peer(&self, to: u64, from: u64, from_device: u32, bytes: usize, stream: Raw) -> Try<()> {
        let (to, from) = (to as *mut c_void, from as *const c_void);
        let from_device = c_int::try_from(from_device).unwrap_or(c_int::MAX);
        unsafe { self.current()?.hipMemcpyPeerAsync(to, self.ordinal, from, from_device, bytes, h!(stream)) }
            .map_err(fault)
    }

    unsafe fn fill(&self, to: u64, byte: u8, bytes: usize, stream: Raw) -> Try<()> {
        let to = to as *mut c_void;
        unsafe { self.current()?.hipMemsetAsync(to, c_int::from(byte), bytes, h!(stream)) }.map_err(fault)
    }

    fn stream(&self, urgency: u32) -> Try<Raw> {
        let mut stream = null_mut();
        let priority = if urgency > 0 { self.priorities.1 } else { self.priorities.0 };
        let flags = flags::hipStreamNonBlocking;
        unsafe { self.current()?.hipStreamCreateWithPriority(&mut stream, flags, priority) }.map_err(fault)?;
        Raw::of("hipStreamCreateWithPriority", stream)
    }

    unsafe fn stream_destroy(&self, stream: Raw) -> Try<()> {
        unsafe { self.current()?.hipStreamDestroy(h!(stream)) }.map_err(fault)
    }

    unsafe fn stream_wait_host(&self, stream: Raw) -> Try<()> {
        unsafe { self.current()?.hipStreamSynchronize(h!(stream)) }.map_err(fault)
    }

    unsafe fn stream_idle(&self, stream: Raw) -> Try<bool> {
        ready(unsafe { self.current()?.hipStreamQuery(h!(stream)) })
    }

    unsafe fn stream_wait_event(&self, stream: Raw, event: Raw) -> Try<()> {
        unsafe { self.current()?.hipStreamWaitEvent(h!(stream), h!(event), 0) }.map_err(fault)
    }

    fn event(&self, timed: bool) -> Try<Raw> {
        let mut event = null_mut();
        let flags = if timed { flags::hipEventDefault } else { flags::hipEventDisableTiming };
        unsafe { self.current()?.hipEventCreateWithFlags(&mut event, flags) }.map_err(fault)?;
        Raw::of("hipEventCreateWithFlags", event)
    }

    unsafe fn event_destroy(&self, event: Raw) -> Try<()> {
        unsafe { self.current()?.hipEventDestroy(h!(event)) }.map_err(fault)
    }

    unsafe fn event_record(&self, event: Raw, stream: Raw) -> Try<()> {
        unsafe { self.current()?.hipEventRecord(h!(event), h!(stream)) }.map_err(fault)
    }

    unsafe fn event_done(&self, event: Raw) -> Try<bool> {
        ready(unsafe { self.current()?.hipEventQuery(h!(event)) })
    }

    unsafe fn event_wait_host(&self, event: Raw) -> Try<()> {
        unsafe { self.current()?.hipEventSynchronize(h!(event)) }.map_err(fault)
    }

    unsafe fn event_elapsed(&self, from: Raw, to: Raw) -> Try<f32> {
        let mut milliseconds = 0.0;
        unsafe { self.current()?.hipEventElapsedTime(&mut milliseconds, h!(from), h!(to)) }.map_err(fault)?;
        Ok(milliseconds)
    }

    unsafe fn module(&self, image: &[u8]) -> Try<Raw> {
        let mut module = null_mut();
        // SAFETY: the runtime reads the image's length from its own headers: `code_object` has walked them.
        unsafe { self.current()?.hipModuleLoadData(&mut module, image.as_ptr().cast()) }.map_err(fault)?;
        Raw::of("hipModuleLoadData", module)
    }

    unsafe fn module_unload(&self, module: Raw) -> Try<()> {
        unsafe { self.current()?.hipModuleUnload(h!(module)) }.map_err(fault)
    }

    unsafe fn function(&self, module: Raw, name: &CStr) -> Try<Raw> {
        let mut function = null_mut();
        unsafe { self.current()?.hipModuleGetFunction(&mut function, h!(module), name.as_ptr()) }.map_err(fault)?;
        Raw::of("hipModuleGetFunction", function)
    }

    unsafe fn function_shared(&self, _function: Raw, _bytes: u32) -> Try<()> {
        Ok(()) // AMD's devices give a block all of its LDS without being asked
    }

    unsafe fn function_blocks(&self, function: Raw, threads: u32, shared: u32) -> Try<u32> {
        let mut blocks = 0;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        let hip = self.current()?;
        unsafe {
            hip.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, h!(function), threads, shared as usize)
        }
        .map_err(fault)?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    unsafe fn launch(&self, function: Raw, shape: &Geometry, args: &mut [*mut c_void], stream: Raw) -> Try<()> {
        let hip = self.current()?;
        let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
        let (f, s, params) = (h!(function), h!(stream), args.as_mut_ptr());
        // SAFETY: `args` has one pointer for each argument that the code object states; the runtime copies the values
        // (into the queue, or into the graph under capture) before it returns.
        unsafe {
            if shape.cooperative {
                hip.hipModuleLaunchCooperativeKernel(f, gx, gy, gz, bx, by, bz, shape.shared, s, params)
            } else {
                hip.hipModuleLaunchKernel(f, gx, gy, gz, bx, by, bz, shape.shared, s, params, null_mut())
            }
        }
        .map_err(fault)
    }

    unsafe fn capture_begin(&self, stream: Raw) -> Try<()> {
        // Thread-local: other threads may go on allocating and compiling meanwhile.
        let mode = capture::hipStreamCaptureModeThreadLocal;
        unsafe { self.current()?.hipStreamBeginCapture(h!(stream), mode) }.map_err(fault)
    }

    unsafe fn capture_end(&self, stream: Raw) -> Try<Raw> {
        let mut graph = null_mut();
        unsafe { self.current()?.hipStreamEndCapture(h!(stream), &mut graph) }.map_err(fault)?;
        Raw::of("hipStreamEndCapture", graph)
    }

    unsafe fn graph_nodes(&self, graph: Raw) -> Try<usize> {
        let mut count = 0;
        unsafe { self.current()?.hipGraphGetNodes(h!(graph), null_mut(), &mut count) }.map_err(fault)?;
        Ok(count)
    }

    unsafe fn graph_destroy(&self, graph: Raw) -> Try<()> {
        unsafe { self.current()?.hipGraphDestroy(h!(graph)) }.map_err(fault)
    }

    unsafe fn graph_instantiate(&self, graph: Raw) -> Try<Raw> {
        let mut exec = null_mut();
        let hip = self.current()?;
        unsafe { hip.hipGraphInstantiate(&mut exec, h!(graph), null_mut(), null_mut(), 0) }.map_err(fault)?;
        Raw::of("hipGraphInstantiate", exec)
    }

    unsafe fn graph_upload(&self, exec: Raw, stream: Raw) -> Try<()> {
        match unsafe { self.current()?.hipGraphUpload(h!(exec), h!(stream)) } {
            // ROCm 5 has no such call: the first replay uploads.
            Err(hip_sys::Error::Missing { .. }) => Ok(()),
            answer => answer.map_err(fault),
        }
    }

    unsafe fn graph_launch(&self, exec: Raw, stream: Raw) -> Try<()> {
        unsafe { self.current()?.hipGraphLaunch(h!(exec), h!(stream)) }.map_err(fault)
    }

    unsafe fn graph_update(&self, exec: Raw, graph: Raw) -> Try<bool> {
        let (mut node, mut result) = (null_mut(), 0);
        match unsafe { self.current()?.hipGraphExecUpdate(h!(exec), h!(graph), &mut node, &mut result) } {
            Ok(()) => Ok(true),
            Err(error) if error.code() == Some(codes::hipErrorGraphExecUpdateFailure) => Ok(false),
            Err(error) => Err(fault(error)),
        }
    }

    unsafe fn graph_exec_destroy(&self, exec: Raw) -> Try<()> {
        unsafe { self.current()?.hipGraphExecDestroy(h!(exec)) }.map_err(fault)
    }
}
