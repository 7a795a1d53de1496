// The words that CUDA's and HIP's run-time compilers know by themselves, for a bare clang, which knows none. blockDim and gridDim are not
// among them: block sizes are constants, grids are arguments (where these words read them differs between code-object versions).
#pragma once
#if defined(__AMDGCN__) && !defined(__HIPCC_RTC__)
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define __syncthreads()                                        \
    do {                                                       \
        __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"); \
        __builtin_amdgcn_s_barrier();                          \
        __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup"); \
    } while (0)
struct KjThreadIdx {
    __declspec(property(get = get_x)) unsigned x;
    __declspec(property(get = get_y)) unsigned y;
    __declspec(property(get = get_z)) unsigned z;
    static __forceinline__ __device__ unsigned get_x() { return __builtin_amdgcn_workitem_id_x(); }
    static __forceinline__ __device__ unsigned get_y() { return __builtin_amdgcn_workitem_id_y(); }
    static __forceinline__ __device__ unsigned get_z() { return __builtin_amdgcn_workitem_id_z(); }
};
struct KjBlockIdx {
    __declspec(property(get = get_x)) unsigned x;
    __declspec(property(get = get_y)) unsigned y;
    __declspec(property(get = get_z)) unsigned z;
    static __forceinline__ __device__ unsigned get_x() { return __builtin_amdgcn_workgroup_id_x(); }
    static __forceinline__ __device__ unsigned get_y() { return __builtin_amdgcn_workgroup_id_y(); }
    static __forceinline__ __device__ unsigned get_z() { return __builtin_amdgcn_workgroup_id_z(); }
};
// Never read: the properties above are computed.
extern const __device__ __attribute__((weak)) KjThreadIdx threadIdx;
extern const __device__ __attribute__((weak)) KjBlockIdx blockIdx;
#endif
