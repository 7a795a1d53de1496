//! A CUDA device: its primary context and its driver calls.
//!
//! Every call first makes the context current in the calling thread (the driver stores it per
//! thread, which takes tens of nanoseconds). So a device can be used from any thread.

use super::super::api::{Raw, RawDevice, Try};
use super::super::lost::Context;
use super::runtime::{Cuda, NOT_READY, PEER_ALREADY, PEER_UNSUPPORTED, TOO_MANY_PEERS};
use crate::driver::Matrices;
use crate::geometry::Geometry;
use cudarc::driver::sys::*;
use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Arc;

pub(super) struct CudaDevice {
    cuda: Arc<Cuda>,
    device: CUdevice,
    context: CUcontext,
    /// Whether the context is still valid.
    state: Context,
    /// The range `(lowest, highest)` of stream priorities.
    priorities: (i32, i32),
}

// SAFETY: a CUDA context may be made current in, and used from, any thread; the driver locks
// internally.
unsafe impl Send for CudaDevice {}
// SAFETY: several threads may use a CUDA context concurrently; the driver locks internally.
unsafe impl Sync for CudaDevice {}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // SAFETY: the primary context was retained once in `open`, and everything in it holds this
        // device by Arc. At process exit the driver may be gone and return an error code, which has
        // no effect.
        let _ = unsafe { (self.cuda.symbols.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}

/// Converts a `Raw` to the driver's handle.
macro_rules! h {
    ($raw:expr) => {
        $raw.0 as *mut _
    };
}

/// A call with this device's context current. An error becomes a fault with the documented name of
/// the call.
macro_rules! call {
    ($self:ident.$name:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: out-parameters are locals; the rest is valid by the contract of `RawDevice`.
        let code = unsafe { ($self.current()?.$name)($($arg),*) };
        $self.check(stringify!($name).trim_end_matches("_v2"), code)
    }};
}

/// A call whose first parameter receives a new handle.
macro_rules! made {
    ($self:ident.$name:ident($($arg:expr),* $(,)?)) => {{
        let mut handle = null_mut();
        call!($self.$name(&mut handle, $($arg),*))?;
        Raw::of(stringify!($name), handle)
    }};
}

impl CudaDevice {
    pub fn open(cuda: Arc<Cuda>, ordinal: u32) -> Try<CudaDevice> {
        let device = cuda.device(ordinal)?;
        // The last release has already destroyed a lost primary context, so nothing must be
        // recreated.
        let state = cuda.contexts.join(ordinal, || Ok(()))?;
        let mut context = null_mut();
        // SAFETY: writes one handle, which Drop releases.
        let code = unsafe { (cuda.symbols.cuDevicePrimaryCtxRetain)(&mut context, device) };
        cuda.check("cuDevicePrimaryCtxRetain", code)?;
        let mut opened = CudaDevice { cuda, device, context, state, priorities: (0, 0) };
        let (mut low, mut high) = (0, 0);
        let symbols = opened.current()?;
        // SAFETY: writes two ints.
        let code = unsafe { (symbols.cuCtxGetStreamPriorityRange)(&mut low, &mut high) };
        opened.check("cuCtxGetStreamPriorityRange", code)?;
        opened.priorities = (low, high);
        Ok(opened)
    }

    fn check(&self, call: &'static str, code: u32) -> Try<()> {
        self.cuda.check(call, code).map_err(|fault| self.state.note(fault))
    }

    /// The symbols, after this device's context was made current in this thread.
    fn current(&self) -> Try<&super::symbols::Symbols> {
        self.state.check()?;
        // SAFETY: the context is retained for the life of self.
        self.check("cuCtxSetCurrent", unsafe {
            (self.cuda.symbols.cuCtxSetCurrent)(self.context)
        })?;
        Ok(&self.cuda.symbols)
    }

    /// Calls `f` with the primary context of another device.
    fn with_peer<T>(&self, other: u32, f: impl FnOnce(CUdevice, CUcontext) -> Try<T>) -> Try<T> {
        let device = self.cuda.device(other)?;
        let mut context = null_mut();
        // SAFETY: writes one handle, which is released below.
        let code = unsafe { (self.cuda.symbols.cuDevicePrimaryCtxRetain)(&mut context, device) };
        self.check("cuDevicePrimaryCtxRetain", code)?;
        let done = f(device, context);
        // SAFETY: the context was retained above.
        let code = unsafe { (self.cuda.symbols.cuDevicePrimaryCtxRelease_v2)(device) };
        let released = self.check("cuDevicePrimaryCtxRelease", code);
        done.and_then(|done| released.map(|()| done))
    }

    /// Allocates page-locked memory for all devices, with additional flags.
    fn host_pages(&self, bytes: u64, more: u32) -> Try<*mut u8> {
        let mut at = null_mut();
        let flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | more;
        call!(self.cuMemHostAlloc(&mut at, bytes as usize, flags))?;
        Ok(at.cast())
    }

    /// Whether the work is done, by the code of a query. Other codes are errors.
    fn ready(&self, call: &'static str, code: u32) -> Try<bool> {
        if code == NOT_READY { Ok(false) } else { self.check(call, code).map(|()| true) }
    }
}

// SAFETY: for every block below: out-parameters are local variables of the type that the driver
// writes; handles, addresses and ranges are valid by the contract of `RawDevice`; the context is
// current. Blocks that need more have their own comment.
#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the safety contract is stated once, above and on the trait"
)]
impl RawDevice for CudaDevice {
    fn reach(&self, other: u32) -> Try<bool> {
        self.with_peer(other, |device, context| {
            let mut can = 0;
            call!(self.cuDeviceCanAccessPeer(&mut can, self.device, device))?;
            if can == 0 {
                return Ok(false);
            }
            match unsafe { (self.current()?.cuCtxEnablePeerAccess)(context, 0) } {
                PEER_ALREADY => Ok(true),
                // The driver may still refuse: a device supports a limited number of peers.
                PEER_UNSUPPORTED | TOO_MANY_PEERS => Ok(false),
                code => self.check("cuCtxEnablePeerAccess", code).map(|()| true),
            }
        })
    }

    fn make_current(&self) -> Try<()> {
        self.current().map(drop)
    }

    fn leave(&self) {
        self.state.leave();
    }

    fn memory(&self) -> Try<(u64, u64)> {
        let (mut free, mut total) = (0usize, 0usize);
        call!(self.cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok((free as u64, total as u64))
    }

    fn wait_all(&self) -> Try<()> {
        call!(self.cuCtxSynchronize())
    }

    fn alloc(&self, bytes: u64) -> Try<u64> {
        let mut address = 0;
        call!(self.cuMemAlloc_v2(&mut address, bytes as usize))?;
        Ok(address)
    }

    unsafe fn free(&self, address: u64) -> Try<()> {
        call!(self.cuMemFree_v2(address))
    }

    fn alloc_host(&self, bytes: u64, write_combined: bool) -> Try<(*mut u8, u64)> {
        let at =
            self.host_pages(bytes, if write_combined { CU_MEMHOSTALLOC_WRITECOMBINED } else { 0 })?;
        match unsafe { self.host_address(at) } {
            Ok(address) => Ok((at, address)),
            Err(fault) => {
                let _ = unsafe { self.free_host(at) };
                Err(fault)
            }
        }
    }

    fn alloc_host_shared(&self, bytes: u64) -> Try<*mut u8> {
        // Page-locked memory is always coherent on NVIDIA.
        self.host_pages(bytes, 0)
    }

    unsafe fn host_address(&self, at: *mut u8) -> Try<u64> {
        let mut address = 0;
        call!(self.cuMemHostGetDevicePointer_v2(&mut address, at.cast(), 0))?;
        Ok(address)
    }

    unsafe fn free_host(&self, at: *mut u8) -> Try<()> {
        call!(self.cuMemFreeHost(at.cast()))
    }

    unsafe fn register_host(&self, at: *const u8, bytes: usize) -> Try<()> {
        // Read-only, because the mapping is the model file, which the device must not write.
        let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_READ_ONLY;
        call!(self.cuMemHostRegister_v2(at.cast_mut().cast(), bytes, flags))
    }

    unsafe fn unregister_host(&self, at: *const u8) -> Try<()> {
        call!(self.cuMemHostUnregister(at.cast_mut().cast()))
    }

    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize, stream: Raw) -> Try<()> {
        call!(self.cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, h!(stream)))
    }

    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize, stream: Raw) -> Try<()> {
        call!(self.cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, h!(stream)))
    }

    unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize, stream: Raw) -> Try<()> {
        call!(self.cuMemcpyDtoDAsync_v2(to, from, bytes, h!(stream)))
    }

    unsafe fn copy_peer(
        &self,
        to: u64,
        from: u64,
        from_device: u32,
        bytes: usize,
        stream: Raw,
    ) -> Try<()> {
        // The other device is open while its memory exists, so its primary context is the one
        // retained here.
        self.with_peer(from_device, |_, context| {
            call!(self.cuMemcpyPeerAsync(to, self.context, from, context, bytes, h!(stream)))
        })
    }

    unsafe fn fill(&self, to: u64, byte: u8, bytes: usize, stream: Raw) -> Try<()> {
        call!(self.cuMemsetD8Async(to, byte, bytes, h!(stream)))
    }

    fn stream(&self, urgency: u32) -> Try<Raw> {
        let priority = if urgency > 0 { self.priorities.1 } else { self.priorities.0 };
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        made!(self.cuStreamCreateWithPriority(flags, priority))
    }

    unsafe fn stream_destroy(&self, stream: Raw) -> Try<()> {
        call!(self.cuStreamDestroy_v2(h!(stream)))
    }

    unsafe fn stream_wait_host(&self, stream: Raw) -> Try<()> {
        call!(self.cuStreamSynchronize(h!(stream)))
    }

    unsafe fn stream_idle(&self, stream: Raw) -> Try<bool> {
        let code = unsafe { (self.current()?.cuStreamQuery)(h!(stream)) };
        self.ready("cuStreamQuery", code)
    }

    unsafe fn stream_wait_event(&self, stream: Raw, event: Raw) -> Try<()> {
        call!(self.cuStreamWaitEvent(h!(stream), h!(event), 0))
    }

    fn event(&self, timed: bool) -> Try<Raw> {
        let flags = if timed {
            CUevent_flags::CU_EVENT_DEFAULT
        } else {
            CUevent_flags::CU_EVENT_DISABLE_TIMING
        };
        made!(self.cuEventCreate(flags as u32))
    }

    unsafe fn event_destroy(&self, event: Raw) -> Try<()> {
        call!(self.cuEventDestroy_v2(h!(event)))
    }

    unsafe fn event_record(&self, event: Raw, stream: Raw) -> Try<()> {
        call!(self.cuEventRecord(h!(event), h!(stream)))
    }

    unsafe fn event_done(&self, event: Raw) -> Try<bool> {
        let code = unsafe { (self.current()?.cuEventQuery)(h!(event)) };
        self.ready("cuEventQuery", code)
    }

    fn tensor_map(&self, address: u64, of: &Matrices) -> Option<Try<[u64; 16]>> {
        use CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT16 as HALVES;
        use CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE as ZEROS;
        use CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE as PLAIN;
        use CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B as LINES;
        use CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B as SWIZZLE;
        let mut map = CUtensorMap { opaque: [0; 16] };
        let (size, steps) = ([of.width, of.rows, of.count], [of.row_bytes, of.matrix_bytes]);
        let (tile, one) = ([64, of.tile, 1], [1u32; 3]);
        let encoded = (|| {
            call!(self.cuTensorMapEncodeTiled(
                &mut map,
                HALVES as u32,
                3,
                address as *mut c_void,
                size.as_ptr(),
                steps.as_ptr(),
                tile.as_ptr(),
                one.as_ptr(),
                PLAIN as u32,
                SWIZZLE as u32,
                LINES as u32,
                ZEROS as u32
            ))
        })();
        Some(encoded.map(|()| map.opaque))
    }

    unsafe fn event_wait_host(&self, event: Raw) -> Try<()> {
        call!(self.cuEventSynchronize(h!(event)))
    }

    unsafe fn event_elapsed(&self, from: Raw, to: Raw) -> Try<f32> {
        let mut milliseconds = 0.0;
        call!(self.cuEventElapsedTime(&mut milliseconds, h!(from), h!(to)))?;
        Ok(milliseconds)
    }

    unsafe fn module(&self, image: &[u8]) -> Try<Raw> {
        // SAFETY: the driver reads the image's length from its headers, which `code_object` has
        // checked.
        made!(self.cuModuleLoadDataEx(image.as_ptr().cast(), 0, null_mut(), null_mut()))
    }

    unsafe fn module_unload(&self, module: Raw) -> Try<()> {
        call!(self.cuModuleUnload(h!(module)))
    }

    unsafe fn function(&self, module: Raw, name: &CStr) -> Try<Raw> {
        made!(self.cuModuleGetFunction(h!(module), name.as_ptr()))
    }

    unsafe fn function_shared(&self, function: Raw, bytes: u32) -> Try<()> {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        call!(self.cuFuncSetAttribute(h!(function), attribute, bytes))
    }

    unsafe fn function_blocks(&self, function: Raw, threads: u32, shared: u32) -> Try<u32> {
        let mut blocks = 0;
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        call!(self.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            &mut blocks,
            h!(function),
            threads,
            shared as usize
        ))?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    unsafe fn launch(
        &self,
        function: Raw,
        shape: &Geometry,
        args: &mut [*mut c_void],
        stream: Raw,
    ) -> Try<()> {
        let attribute = |id, value| CUlaunchAttribute { id, pad: [0; 4], value };
        let mut attributes = [const { MaybeUninit::<CUlaunchAttribute>::uninit() }; 2];
        let mut count = 0;
        let mut add = |id, value| {
            if let Some(slot) = attributes.get_mut(count) {
                slot.write(attribute(id, value));
                count += 1;
            }
        };
        if shape.cooperative {
            let value = CUlaunchAttributeValue { cooperative: 1 };
            add(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, value);
        }
        if shape.dependent {
            let value = CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
            add(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, value);
        }
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (shape.grid, shape.block);
        let config = CUlaunchConfig {
            gridDimX: grid_x,
            gridDimY: grid_y,
            gridDimZ: grid_z,
            blockDimX: block_x,
            blockDimY: block_y,
            blockDimZ: block_z,
            sharedMemBytes: shape.shared,
            hStream: h!(stream),
            attrs: attributes.as_mut_ptr().cast(),
            numAttrs: count as u32,
        };
        // SAFETY: `count` attributes are initialised; `args` has one pointer for each argument of
        // the code object.
        call!(self.cuLaunchKernelEx(&config, h!(function), args.as_mut_ptr(), null_mut()))
    }

    unsafe fn capture_begin(&self, stream: Raw) -> Try<()> {
        // Thread-local mode: meanwhile other threads may allocate and compile.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        call!(self.cuStreamBeginCapture_v2(h!(stream), mode))
    }

    unsafe fn capture_end(&self, stream: Raw) -> Try<Raw> {
        let mut graph = null_mut();
        call!(self.cuStreamEndCapture(h!(stream), &mut graph))?;
        Raw::of("cuStreamEndCapture", graph)
    }

    unsafe fn graph_nodes(&self, graph: Raw) -> Try<usize> {
        let mut count = 0;
        call!(self.cuGraphGetNodes(h!(graph), null_mut(), &mut count))?;
        Ok(count)
    }

    unsafe fn graph_destroy(&self, graph: Raw) -> Try<()> {
        call!(self.cuGraphDestroy(h!(graph)))
    }

    unsafe fn graph_instantiate(&self, graph: Raw) -> Try<Raw> {
        made!(self.cuGraphInstantiateWithFlags(h!(graph), 0))
    }

    unsafe fn graph_upload(&self, exec: Raw, stream: Raw) -> Try<()> {
        call!(self.cuGraphUpload(h!(exec), h!(stream)))
    }

    unsafe fn graph_launch(&self, exec: Raw, stream: Raw) -> Try<()> {
        call!(self.cuGraphLaunch(h!(exec), h!(stream)))
    }

    unsafe fn graph_update(&self, exec: Raw, graph: Raw) -> Try<bool> {
        const GRAPH_EXEC_UPDATE_FAILURE: u32 = 910;
        // It is never read: its enum may contain a reason newer than our bindings.
        let mut info = MaybeUninit::uninit();
        let code =
            unsafe { (self.current()?.cuGraphExecUpdate_v2)(h!(exec), h!(graph), &mut info) };
        if code == GRAPH_EXEC_UPDATE_FAILURE {
            return Ok(false);
        }
        self.check("cuGraphExecUpdate", code).map(|()| true)
    }

    unsafe fn graph_exec_destroy(&self, exec: Raw) -> Try<()> {
        call!(self.cuGraphExecDestroy(h!(exec)))
    }
}
