//! The entry points of the CUDA driver, looked up one by one. Types are those of cudarc's `sys`.
//! cudarc's own lookup is not used for two reasons. It panics if the library or a symbol is
//! missing. It also declares results as a Rust enum, so a code newer than the crate is undefined
//! behaviour. Here a result is a number.

use cudarc::driver::sys::*;
use libloading::Library;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;

macro_rules! symbols {
    ($($name:ident($($t:ty),*);)*) => {
        /// The function pointers. All exist; otherwise opening fails and names the missing ones.
        #[allow(non_snake_case, reason = "the vendor's names")]
        pub(super) struct Symbols {
            $(pub $name: unsafe extern "C" fn($($t),*) -> u32,)*
        }

        impl Symbols {
            /// Looks up all functions.
            ///
            /// # Errors
            /// The names of the missing functions.
            #[allow(non_snake_case, reason = "the vendor's names")]
            pub fn load(library: &'static Library) -> Result<Symbols, Vec<&'static str>> {
                let mut missing = Vec::new();
                $(
                    // SAFETY: the symbol has this signature in every driver from 12.0 on (cudarc's
                    // bindings of cuda.h; results and attribute numbers are 32-bit enums), and the
                    // library is never closed.
                    let $name = unsafe {
                        library
                            .get::<unsafe extern "C" fn($($t),*) -> u32>(concat!(stringify!($name), "\0").as_bytes())
                            .map(|s| *s)
                    };
                    if $name.is_err() {
                        missing.push(stringify!($name));
                    }
                )*
                // A tuple pattern over fifty results exceeds the compiler's tuple traits, so each
                // is checked separately.
                Ok(Symbols { $($name: match $name { Ok(f) => f, Err(_) => return Err(missing) },)* })
            }
        }
    };
}

symbols! {
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuGetErrorString(u32, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
    cuDeviceTotalMem_v2(*mut usize, CUdevice);
    cuDeviceGetAttribute(*mut c_int, u32, CUdevice);
    cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxRelease_v2(CUdevice);
    cuCtxSetCurrent(CUcontext);
    cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
    cuCtxSynchronize();
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut CUdeviceptr, usize);
    cuMemFree_v2(CUdeviceptr);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);
    cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    cuMemHostUnregister(*mut c_void);
    cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
    cuMemcpyPeerAsync(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream);
    cuDeviceCanAccessPeer(*mut c_int, CUdevice, CUdevice);
    cuCtxEnablePeerAccess(CUcontext, c_uint);
    cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);
    cuStreamCreateWithPriority(*mut CUstream, c_uint, c_int);
    cuStreamDestroy_v2(CUstream);
    cuStreamSynchronize(CUstream);
    cuStreamQuery(CUstream);
    cuStreamWaitEvent(CUstream, CUevent, c_uint);
    cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
    cuStreamEndCapture(CUstream, *mut CUgraph);
    cuEventCreate(*mut CUevent, c_uint);
    cuEventDestroy_v2(CUevent);
    cuEventRecord(CUevent, CUstream);
    cuEventQuery(CUevent);
    cuEventSynchronize(CUevent);
    cuEventElapsedTime(*mut f32, CUevent, CUevent);
    cuModuleLoadDataEx(*mut CUmodule, *const c_void, c_uint, *mut CUjit_option, *mut *mut c_void);
    cuModuleUnload(CUmodule);
    cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    cuFuncSetAttribute(CUfunction, CUfunction_attribute, c_int);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut c_int, CUfunction, c_int, usize);
    cuTensorMapEncodeTiled(
        *mut CUtensorMap, u32, c_uint, *mut c_void, *const u64, *const u64, *const u32,
        *const u32, u32, u32, u32, u32
    );
    cuLaunchKernelEx(*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void);
    cuGraphGetNodes(CUgraph, *mut CUgraphNode, *mut usize);
    cuGraphDestroy(CUgraph);
    cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, u64);
    cuGraphUpload(CUgraphExec, CUstream);
    cuGraphLaunch(CUgraphExec, CUstream);
    cuGraphExecUpdate_v2(CUgraphExec, CUgraph, *mut MaybeUninit<CUgraphExecUpdateResultInfo>);
    cuGraphExecDestroy(CUgraphExec);
}
