// kjit.h: the functions and macros of all kernels, for nvrtc, hiprtc, plain clang and the simulated
// device. Only this file depends on the compiler. It includes no vendor header and no device
// library.
//
// Macros of a compilation:
//   KJ_WAVE         lanes in a wave: 32 or 64
//   KJ_BLOCK        threads in a block, a multiple of KJ_WAVE
//   KJ_MIN_BLOCKS   optional: blocks that must fit in a compute unit together; limits the registers
//   KJ_BESIDE       optional, NVIDIA: extra threads of a block, which its barriers do not count
//   KJ_F32          optional, AMD: no instruction with f16 inputs or results
// The grid is a launch argument; a kernel that needs its size gets it as an argument.
//
// Macros of the sources:
//   STEP type name(args) { … }     a device function, always inlined
//   KERNEL name(args) { … }        an entry point: blocks of KJ_BLOCK threads in x
//   LDS_ARRAY(type, name, count)   shared memory (16-byte aligned, not initialised), in a function
//   LDS_DYNAMIC(name)              u8* to dynamic shared memory (one per kernel)
//   UNROLL                         before a loop whose count is a constant
//
// The code of a family is a *step*: `template <class S> struct Family` with `step(args, share,
// lds…)`. S is a struct of constants that kernel_src/src/vocabulary/shape.rs generates. A kernel of
// one step includes it from shape.h as `Shape`. All names of a step are inside the template, so
// steps of any shapes can be in one translation unit and in one kernel. The caller provides shared
// memory of the step's type `Shared`. Successive steps may use the same memory, with a barrier
// between them. Arguments are passed by value: by reference, clang 19 used up to eleven more
// registers (repack). A kernel is a few lines that compute the share of a block and call a step.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i8 = signed char;
using i16 = short;
using i32 = int;

struct f16 { u16 bits; };   // storage only: arithmetic uses f32 or mma.h
struct bf16 { u16 bits; };  // the upper half of an f32
struct alignas(8) u32x2 { u32 x, y; };
struct alignas(16) u32x4 { u32 x, y, z, w; };

#if defined(__CUDACC_RTC__) || defined(__CUDACC__)
// ------------------------------------------------------------------------------------------ NVIDIA
#define KJ_NVIDIA 1
#ifdef KJ_BESIDE
#define KERNEL extern "C" __global__ void __launch_bounds__(KJ_BLOCK + KJ_BESIDE, KJ_MIN_BLOCKS)
#elif defined(KJ_MIN_BLOCKS)
#define KERNEL extern "C" __global__ void __launch_bounds__(KJ_BLOCK, KJ_MIN_BLOCKS)
#else
#define KERNEL extern "C" __global__ void __launch_bounds__(KJ_BLOCK)
#endif
#define STEP static __device__ __forceinline__
#define LDS_ARRAY(type, name, count) __shared__ alignas(16) type name[count]
#define LDS_DYNAMIC(name) extern __shared__ u32x4 kj_dynamic_lds[]; u8* name = (u8*)kj_dynamic_lds
#define TABLE static __device__ const
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")

STEP u32 thread_id() { return threadIdx.x; }
STEP u32 block_id() { return blockIdx.x; }
STEP u32 block_id_y() { return blockIdx.y; }
STEP u32 block_id_z() { return blockIdx.z; }
#ifdef KJ_BESIDE
STEP void block_sync() { asm volatile("bar.sync 1, %0;" ::"n"(KJ_BLOCK) : "memory"); }
#else
STEP void block_sync() { __syncthreads(); }
#endif
STEP void wave_sync() { __syncwarp(); }
STEP u32 as_u32(float f) { return __float_as_uint(f); }
STEP float as_f32(u32 u) { return __uint_as_float(u); }
STEP float load(f16 h) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.bits)); return f; }
STEP f16 round_f16(float f) {
    f16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(f));
    return h;
}
STEP float rsqrt_f32(float x) { return rsqrtf(x); }
STEP float sqrt_f32(float x) { return __fsqrt_rn(x); }
STEP float fma_f32(float a, float b, float c) { return __fmaf_rn(a, b, c); }
STEP float max_f32(float a, float b) { return fmaxf(a, b); }
STEP float min_f32(float a, float b) { return fminf(a, b); }
STEP i32 round_int(float x) { return __float2int_rn(x); }
STEP float exp2_hw(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
STEP float rcp_hw(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
STEP u32 kj_xor(u32 v, u32 mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
STEP u32 kj_get(u32 v, u32 lane) { return __shfl_sync(0xffffffffu, v, lane); }
STEP u64 wave_ballot(bool p) { return __ballot_sync(0xffffffffu, p); }
STEP i32 dot4(u32 a, u32 b, i32 c) { return __dp4a((i32)a, (i32)b, c); }
STEP u32 count_bits(u64 v) { return __popcll(v); }

// A load that bypasses L1, for data that is read once. It is volatile, so it stays before
// wait_for_producer().
STEP u32x4 load16_once(const void* p) {
    u32x4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
STEP u32x2 load8_once(const void* p) {
    u32x2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(p));
    return v;
}
STEP u32 load4_once(const void* p) {
    u32 v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
STEP void store16_once(void* p, u32x4 v) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

// Dependent launch: launch_dependents lets the next kernel of the stream start now;
// wait_for_producer waits until the previous kernels have written all their results.
STEP void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
STEP void wait_for_producer() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

STEP void device_fence() { __threadfence(); }
STEP u32 atomic_add(u32* p, u32 v) {
    u32 old;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(p), "r"(v)
                 : "memory");
    return old;
}
STEP void atomic_store(u32* p, u32 v) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
STEP u32 atomic_load(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
// Adds to shared memory atomically. Integers are exact in any order.
STEP void lds_add(u32* p, u32 v) { atomicAdd(p, v); }
STEP u32 lds_take(u32* p) { return atomicAdd(p, 1); }  // returns the previous value
STEP void lds_add(u64* p, u64 v) { atomicAdd(p, v); }
// Adds to device memory atomically, for all blocks of a launch.
STEP void global_add(u32* p, u32 v) { atomicAdd(p, v); }
STEP void global_add(u64* p, u64 v) { atomicAdd(p, v); }

// Byte i of the result is byte n of the eight bytes (a low, b high); n (0–7) is nibble i of the low
// 16 bits of `nibbles`.
STEP u32 kj_prmt(u32 a, u32 b, u32 nibbles) {
    u32 r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(nibbles));
    return r;
}

// Looks up eight 4-bit codes of a word (low nibbles of its bytes, then high nibbles) in a table of
// sixteen bytes.
STEP void lookup16(u32 codes, u32x4 table, u32& low, u32& high) {
    u32 three = codes & 0x77777777u;  // bit 3 of a prmt selector repeats the sign
    // Selects byte i from the result of the first or of the second half.
    u32 top = ((codes & 0x88888888u) >> 1) | 0x32103210u;
    u32 a = kj_prmt(kj_prmt(table.x, table.y, three), kj_prmt(table.z, table.w, three), top);
    u32 b =
        kj_prmt(kj_prmt(table.x, table.y, three >> 16), kj_prmt(table.z, table.w, three >> 16),
                top >> 16);
    low = kj_prmt(a, b, 0x6420);
    high = kj_prmt(a, b, 0x7531);
}

#elif defined(__HIP__) && !defined(KJ_SIMULATED)
// --------------------------------------------------------------------------------------------- AMD
#define KJ_AMD 1
#if defined(__GFX8__) || defined(__GFX9__)
#define KJ_GCN 1  // GCN and CDNA: waves of 64
#endif
#ifdef KJ_MIN_BLOCKS  // waves that must fit in each of the 4 (GCN, CDNA, gfx1250) or 2 (RDNA) SIMDs
#if defined(KJ_GCN) || defined(__gfx1250__)
#define KJ_SIMDS 4
#else
#define KJ_SIMDS 2
#endif
#define KERNEL \
    extern "C" __attribute__((global)) void \
    __attribute__((amdgpu_flat_work_group_size(KJ_BLOCK, KJ_BLOCK), \
                   amdgpu_waves_per_eu( \
                       (KJ_MIN_BLOCKS * KJ_BLOCK / KJ_WAVE + KJ_SIMDS - 1) / KJ_SIMDS)))
#else
#define KERNEL \
    extern "C" __attribute__((global)) void \
    __attribute__((amdgpu_flat_work_group_size(KJ_BLOCK, KJ_BLOCK)))
#endif
#define STEP static inline __attribute__((device, always_inline))
#define LDS_ARRAY(type, name, count) alignas(16) static __attribute__((shared)) type name[count]
#define LDS_DYNAMIC(name)                                  \
    extern __attribute__((shared)) u32x4 kj_dynamic_lds[]; \
    u8* name = (u8*)kj_dynamic_lds
#define TABLE static __attribute__((device)) const
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("nounroll")

typedef u32 kj_vec4 __attribute__((ext_vector_type(4)));
typedef u32 kj_vec2 __attribute__((ext_vector_type(2)));

STEP u32 thread_id() { return __builtin_amdgcn_workitem_id_x(); }
STEP u32 block_id() { return __builtin_amdgcn_workgroup_id_x(); }
STEP u32 block_id_y() { return __builtin_amdgcn_workgroup_id_y(); }
STEP u32 block_id_z() { return __builtin_amdgcn_workgroup_id_z(); }
STEP void block_sync() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
// Lanes of a wave run in lockstep, so only memory accesses need a fence.
STEP void wave_sync() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
STEP u32 as_u32(float f) { return __builtin_bit_cast(u32, f); }
STEP float as_f32(u32 u) { return __builtin_bit_cast(float, u); }
#ifndef KJ_F32
STEP float load(f16 h) { return (float)__builtin_bit_cast(_Float16, h.bits); }
STEP f16 round_f16(float f) { return f16{__builtin_bit_cast(u16, (_Float16)f)}; }
#endif
STEP float rsqrt_f32(float x) { return __builtin_amdgcn_rsqf(x); }
STEP float sqrt_f32(float x) { return __builtin_amdgcn_sqrtf(x); }
STEP float fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
STEP float max_f32(float a, float b) { return __builtin_fmaxf(a, b); }
STEP float min_f32(float a, float b) { return __builtin_fminf(a, b); }
STEP i32 round_int(float x) { return (i32)__builtin_rintf(x); }
#if __has_builtin(__builtin_amdgcn_exp2f)
STEP float exp2_hw(float x) { return __builtin_amdgcn_exp2f(x); }
#else  // compilers before LLVM 17 (ROCm 5)
STEP float exp2_hw(float x) { return __builtin_exp2f(x); }
#endif
STEP float rcp_hw(float x) { return __builtin_amdgcn_rcpf(x); }
STEP u32 count_bits(u64 v) { return (u32)__builtin_popcountll(v); }
STEP u64 wave_ballot(bool p) {
// Compilers before LLVM 16 (ROCm 5) have no ballot: "compare, not equal".
#if !__has_builtin(__builtin_amdgcn_ballot_w32)
    return __builtin_amdgcn_uicmp(p, 0, 33);
#elif KJ_WAVE == 64
    return __builtin_amdgcn_ballot_w64(p);
#else
    return __builtin_amdgcn_ballot_w32(p);
#endif
}

// Uses LDS, because gfx10 has no instruction that exchanges the two halves of a 64-wide wave.
STEP u32 kj_get_by_lds(u32 v, u32 lane) {
    static __attribute__((shared)) u32 slot[KJ_BLOCK];
    u32 t = thread_id();
    slot[t] = v;
    wave_sync();
    u32 r = slot[t / KJ_WAVE * KJ_WAVE + lane];
    wave_sync();
    return r;
}
STEP u32 kj_get(u32 v, u32 lane) {
#if KJ_WAVE == 64 && !defined(KJ_GCN)  // RDNA: a bpermute stays in each half of 32 lanes
    return kj_get_by_lds(v, lane);
#else
    return (u32)__builtin_amdgcn_ds_bpermute((i32)(lane << 2), (i32)v);
#endif
}
// Masks are constants after unrolling. DPP needs no LDS cycle; families without DPP use a swizzle.
STEP u32 kj_xor(u32 v, u32 mask) {
    i32 s = (i32)v;
    switch (mask) {
        case 1: return (u32)__builtin_amdgcn_mov_dpp(s, 0xB1, 0xf, 0xf, true);  // quad_perm 1 0 3 2
        case 2: return (u32)__builtin_amdgcn_mov_dpp(s, 0x4E, 0xf, 0xf, true);  // quad_perm 2 3 0 1
#if defined(KJ_GCN)
        case 4: return (u32)__builtin_amdgcn_ds_swizzle(s, 0x101F);
        // row_ror 8: within 16 lanes this is xor 8.
        case 8: return (u32)__builtin_amdgcn_mov_dpp(s, 0x128, 0xf, 0xf, true);
#else
        case 4: return (u32)__builtin_amdgcn_mov_dpp(s, 0x164, 0xf, 0xf, true);  // row_xmask 4
        case 8: return (u32)__builtin_amdgcn_mov_dpp(s, 0x168, 0xf, 0xf, true);
#endif
        case 16: return (u32)__builtin_amdgcn_ds_swizzle(s, 0x401F);
#if defined(__GFX11__) || defined(__GFX12__)
        case 32: {
            // LLVM before its pull request 182162 (2026) moves the instruction and the computation
            // of `v` into a branch that only some lanes take, so the values of the other lanes are
            // missing. The emulator of machine code found this. An asm statement is convergent and
            // prevents it.
            u32 other = __builtin_amdgcn_permlane64(v);
            asm("" : "+v"(other));
            return other;
        }
#endif
        default: return kj_get(v, (thread_id() % KJ_WAVE) ^ mask);
    }
}
// KJ_DOT4: the byte dot product of the target (engine/src/arch/table.rs). 1: v_dot4_i32_i8, 2:
// v_dot4_i32_iu8, 0: none.
#ifdef KJ_DOT4
STEP i32 dot4(u32 a, u32 b, i32 c) {
#if KJ_DOT4 == 2
    return __builtin_amdgcn_sudot4(true, (i32)a, true, (i32)b, c, false);
#elif KJ_DOT4 == 1
    return __builtin_amdgcn_sdot4((i32)a, (i32)b, c, false);
#else
    for (u32 i = 0; i < 32; i += 8) c += (i32)(i8)(a >> i) * (i32)(i8)(b >> i);
    return c;
#endif
}
#endif

STEP u32x4 load16_once(const void* p) {
    kj_vec4 v = __builtin_nontemporal_load((const kj_vec4*)p);
    return u32x4{v.x, v.y, v.z, v.w};
}
STEP u32x2 load8_once(const void* p) {
    kj_vec2 v = __builtin_nontemporal_load((const kj_vec2*)p);
    return u32x2{v.x, v.y};
}
STEP u32 load4_once(const void* p) { return __builtin_nontemporal_load((const u32*)p); }
STEP void store16_once(void* p, u32x4 v) {
    __builtin_nontemporal_store(kj_vec4{v.x, v.y, v.z, v.w}, (kj_vec4*)p);
}

STEP void launch_dependents() {}
STEP void wait_for_producer() {}

STEP void device_fence() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "agent"); }
STEP u32 atomic_add(u32* p, u32 v) {
    return __hip_atomic_fetch_add(p, v, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
}
STEP void atomic_store(u32* p, u32 v) {
    __hip_atomic_store(p, v, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
}
STEP u32 atomic_load(const u32* p) {
    return __hip_atomic_load(p, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT);
}
STEP u32 lds_take(u32* p) {
    return __hip_atomic_fetch_add(p, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}
STEP void lds_add(u32* p, u32 v) {
    __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}
STEP void lds_add(u64* p, u64 v) {
    __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}
STEP void global_add(u32* p, u32 v) {
    __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
STEP void global_add(u64* p, u64 v) {
    __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

STEP u32 kj_lookup4(u32 codes, u32x4 table) {  // four codes below 16, one per byte
    u32 seven = codes & 0x07070707u;
    // Selector 0–3: bytes of the second operand, 4–7: of the first.
    u32 a = __builtin_amdgcn_perm(table.y, table.x, seven);
    u32 b = __builtin_amdgcn_perm(table.w, table.z, seven);
    u32 second = ((codes >> 3) & 0x01010101u) * 255u;
    return (b & second) | (a & ~second);
}
STEP void lookup16(u32 codes, u32x4 table, u32& low, u32& high) {
    low = kj_lookup4(codes & 0x0f0f0f0fu, table);
    high = kj_lookup4((codes >> 4) & 0x0f0f0f0fu, table);
}

#else
// ---------------------------------------------------- the simulated device (tests/hipsim/kernel.h)
#define KERNEL extern "C" void
#define STEP static inline
#define LDS_ARRAY(type, name, count) KJSIM_LDS(type, name, count)
#define LDS_DYNAMIC(name) u8* name = kjsim::dynamic_lds()
#define TABLE static const
#define UNROLL
#define NO_UNROLL

STEP u32 thread_id() { return kjsim::thread_id(); }
STEP u32 block_id() { return kjsim::block_id(0); }
STEP u32 block_id_y() { return kjsim::block_id(1); }
STEP u32 block_id_z() { return kjsim::block_id(2); }
STEP void block_sync() { kjsim::block_sync(); }
STEP void wave_sync() { kjsim::wave_sync(); }
STEP u32 as_u32(float f) { return __builtin_bit_cast(u32, f); }
STEP float as_f32(u32 u) { return __builtin_bit_cast(float, u); }
#ifndef KJ_F32
STEP float load(f16 h) {
    float f = (float)__builtin_bit_cast(_Float16, h.bits);
#ifdef KJSIM_WRONG_widen
    f = kjsim::wrong(f);
#endif
    return f;
}
STEP f16 round_f16(float f) {
    u16 bits = __builtin_bit_cast(u16, (_Float16)f);
#ifdef KJSIM_WRONG_narrow
    bits = (u16)kjsim::wrong_half(bits);
#endif
    return f16{bits};
}
#endif
STEP float rsqrt_f32(float x) { return 1.0f / __builtin_sqrtf(x); }
STEP float sqrt_f32(float x) { return __builtin_sqrtf(x); }
STEP float fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
STEP float max_f32(float a, float b) { return __builtin_fmaxf(a, b); }
STEP float min_f32(float a, float b) { return __builtin_fminf(a, b); }
STEP i32 round_int(float x) { return (i32)__builtin_rintf(x); }
STEP float exp2_hw(float x) { return __builtin_exp2f(x); }
STEP float rcp_hw(float x) { return 1.0f / x; }
STEP u32 count_bits(u64 v) { return (u32)__builtin_popcountll(v); }
STEP u32 kj_xor(u32 v, u32 mask) { return kjsim::shuffle(v, (thread_id() % KJ_WAVE) ^ mask); }
STEP u32 kj_get(u32 v, u32 lane) { return kjsim::shuffle(v, lane); }
STEP u64 wave_ballot(bool p) { return kjsim::ballot(p); }
STEP i32 dot4(u32 a, u32 b, i32 c) {
    for (u32 i = 0; i < 32; i += 8) c += (i32)(i8)(a >> i) * (i32)(i8)(b >> i);
#if defined(KJSIM_WRONG_dot4) && KJ_DOT4 > 0
    c = kjsim::wrong(c);
#endif
    return c;
}
STEP u32x4 load16_once(const void* p) { return *(const u32x4*)kjsim::aligned(p, 16); }
STEP u32x2 load8_once(const void* p) { return *(const u32x2*)kjsim::aligned(p, 8); }
STEP u32 load4_once(const void* p) { return *(const u32*)kjsim::aligned(p, 4); }
STEP void store16_once(void* p, u32x4 v) { *(u32x4*)kjsim::aligned(p, 16) = v; }
STEP void launch_dependents() {}
STEP void wait_for_producer() {}
STEP void device_fence() {}
STEP u32 atomic_add(u32* p, u32 v) { return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }
STEP void atomic_store(u32* p, u32 v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
STEP u32 atomic_load(const u32* p) { kjsim::yield(); return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
STEP void lds_add(u32* p, u32 v) { *p += v; }
STEP u32 lds_take(u32* p) { return (*p)++; }
STEP void lds_add(u64* p, u64 v) { *p += v; }
STEP void global_add(u32* p, u32 v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
STEP void global_add(u64* p, u64 v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
STEP void lookup16(u32 codes, u32x4 table, u32& low, u32& high) {
    const u32 words[4] = {table.x, table.y, table.z, table.w};
    low = high = 0;
    for (u32 i = 0; i < 4; i++) {
        u32 a = (codes >> (8 * i)) & 15, b = (codes >> (8 * i + 4)) & 15;
        low |= ((words[a / 4] >> (8 * (a % 4))) & 255u) << (8 * i);
        high |= ((words[b / 4] >> (8 * (b % 4))) & 255u) << (8 * i);
    }
}
#endif

// ------------------------------------------------------------------- shared by all of the above

// Only for memory that no kernel of the stream writes: weights, biases, tables. NVIDIA reads a
// const RESTRICT pointer through a non-coherent cache. A dependent launch overlaps the previous
// kernel, so cached lines may be older than that kernel's writes. (With RESTRICT on activations, an
// H200 gave different logits in every run.)
#define RESTRICT __restrict__
#define CEIL_DIV(a, b) (((a) + (b)-1) / (b))  // a macro, for use in constants of a struct

constexpr u32 kj_waves = KJ_BLOCK / KJ_WAVE;
static_assert(KJ_BLOCK % KJ_WAVE == 0, "a block is a whole number of waves");

// The position of this block in the step's grid. In a kernel with one step, that is the launch's
// grid.
struct Share { u32 x, y, z; };
STEP Share launched_share() { return Share{block_id(), block_id_y(), block_id_z()}; }

// The interface of steps that prefetch before all their inputs are written. `release` allows the
// next launch to start; `wait` returns when all inputs are written. This struct is for a kernel
// with one step, whose inputs come from the previous launch.
struct LaunchBefore {
    STEP void release() { launch_dependents(); }
    STEP void wait() { wait_for_producer(); }
    // Inputs of attention in plain memory (in packets.h they may be packets).
    STEP u32 slot(const u32* at) { return *at; }
    STEP u32 position(const u32* at) { return *at; }
    template <u32 N> STEP const float* head(float*, const float* x, u32) { return x; }
    STEP void made(float* out, u32 at, bool inside, float v) {
        if (inside) out[at] = v;
    }
};

STEP u32 lane_id() { return thread_id() % KJ_WAVE; }
STEP u32 wave_id() { return thread_id() / KJ_WAVE; }
STEP u32 min_u32(u32 a, u32 b) { return a < b ? a : b; }
STEP u32 max_u32(u32 a, u32 b) { return a > b ? a : b; }
STEP float abs_f32(float x) { return as_f32(as_u32(x) & 0x7fffffffu); }

#ifdef KJ_F32
// Conversions between f16 and f32 by integer operations. Results equal those of the instructions,
// except for the bits of a NaN, and do not depend on the hardware's treatment of subnormals.
STEP float load(f16 h) {
    u32 size = h.bits & 0x7fffu, sign = (u32)(h.bits & 0x8000u) << 16;
    // The bias of the exponent is 15 in f16 and 127 in f32. Infinity and NaN have the largest
    // exponent.
    u32 bits = (size << 13) + ((size >= 0x7c00u ? 224u : 112u) << 23);
    // Subnormal: a multiple of 2^-24
    if (size < 0x400u) bits = as_u32((float)size * 5.9604645e-8f);
    return as_f32(bits | sign);
}
STEP f16 round_f16(float f) {
    u32 size = as_u32(f) & 0x7fffffffu, sign = as_u32(f) >> 16 & 0x8000u;
    // Rounds to nearest, ties to even.
    u32 bits = ((size + 0xfffu + (size >> 13 & 1)) >> 13) - (112u << 10);
    // Below 2^-14, f16 is a multiple of 2^-24.
    if (size < 0x38800000u) bits = (u32)round_int(as_f32(size) * 16777216.0f);
    // Rounds to 2^16, which is infinite in f16.
    if (size >= 0x477ff000u) bits = 0x7c00u;
    if (size > 0x7f800000u) bits = 0x7e00u;
    return f16{(u16)(bits | sign)};
}
#endif
STEP float load(float x) { return x; }
STEP float load(bf16 h) { return as_f32((u32)h.bits << 16); }
STEP bf16 round_bf16(float f) {  // to nearest, ties to even; NaN stays NaN
    u32 u = as_u32(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return bf16{(u16)((u >> 16) | 64)};
    return bf16{(u16)((u + 0x7fffu + ((u >> 16) & 1)) >> 16)};
}
STEP float half_low(u32 pair) { return load(f16{(u16)pair}); }  // the two f16 of a word
STEP float half_high(u32 pair) { return load(f16{(u16)(pair >> 16)}); }
STEP u32 half_pair(float low, float high) {
    return (u32)round_f16(low).bits | (u32)round_f16(high).bits << 16;
}

STEP u32x4 load16(const void* p) { return *(const u32x4*)p; }  // p is a multiple of 16
STEP u32x2 load8(const void* p) { return *(const u32x2*)p; }

// The value of lane `lane_id() ^ mask`. All lanes of the wave must call it. `mask` is a power of
// two below KJ_WAVE.
STEP u32 wave_xor(u32 v, u32 mask) { return kj_xor(v, mask); }
STEP i32 wave_xor(i32 v, u32 mask) { return (i32)kj_xor((u32)v, mask); }
STEP float wave_xor(float v, u32 mask) { return as_f32(kj_xor(as_u32(v), mask)); }
STEP u32 wave_get(u32 v, u32 lane) { return kj_get(v, lane); }
STEP u64 wave_xor(u64 v, u32 mask) {
    return (u64)kj_xor((u32)(v >> 32), mask) << 32 | kj_xor((u32)v, mask);
}
STEP float wave_get(float v, u32 lane) { return as_f32(kj_get(as_u32(v), lane)); }

// Sum over aligned groups of `lanes` (a power of two up to KJ_WAVE); all lanes of a group get it.
STEP float group_sum(float v, u32 lanes) {
    UNROLL for (u32 m = KJ_WAVE / 2; m > 0; m /= 2) if (m < lanes) v += wave_xor(v, m);
    return v;
}
STEP i32 group_sum(i32 v, u32 lanes) {
    UNROLL for (u32 m = KJ_WAVE / 2; m > 0; m /= 2) if (m < lanes) v += wave_xor(v, m);
    return v;
}
STEP float group_max(float v, u32 lanes) {
    UNROLL for (u32 m = KJ_WAVE / 2; m > 0; m /= 2) if (m < lanes) v = max_f32(v, wave_xor(v, m));
    return v;
}
STEP u64 wave_largest(u64 v) {
// Two instructions for a wave instead of ten exchanges between lanes.
#if defined(KJ_NVIDIA) && __CUDA_ARCH__ >= 800
    const u32 high = __reduce_max_sync(0xffffffffu, (u32)(v >> 32));
    return (u64)high << 32 | __reduce_max_sync(0xffffffffu, (u32)(v >> 32) == high ? (u32)v : 0u);
#else
    UNROLL for (u32 m = KJ_WAVE / 2; m > 0; m /= 2) {
        u64 other = wave_xor(v, m);
        v = other > v ? other : v;
    }
    return v;
#endif
}
STEP float wave_sum(float v) { return group_sum(v, KJ_WAVE); }
STEP float wave_max(float v) { return group_max(v, KJ_WAVE); }

// Sum over the block; every thread gets it. Two barriers; one float of LDS per wave.
STEP float block_sum(float v) {
    LDS_ARRAY(float, part, kj_waves);
    v = wave_sum(v);
    if (kj_waves == 1) return v;
    if (lane_id() == 0) part[wave_id()] = v;
    block_sync();
    float sum = 0.0f;
    UNROLL for (u32 w = 0; w < kj_waves; w++) sum += part[w];
    block_sync();  // all threads have read `part`
    return sum;
}
STEP float block_max(float v) {
    LDS_ARRAY(float, part, kj_waves);
    v = wave_max(v);
    if (kj_waves == 1) return v;
    if (lane_id() == 0) part[wave_id()] = v;
    block_sync();
    float most = part[0];
    UNROLL for (u32 w = 1; w < kj_waves; w++) most = max_f32(most, part[w]);
    block_sync();
    return most;
}

STEP u64 block_largest(u64 v) {
    LDS_ARRAY(u64, part, kj_waves);
    v = wave_largest(v);
    if (kj_waves == 1) return v;
    if (lane_id() == 0) part[wave_id()] = v;
    block_sync();
    UNROLL for (u32 w = 0; w < kj_waves; w++) v = part[w] > v ? part[w] : v;
    block_sync();
    return v;
}

// True in all threads of the block that calls it last, of `blocks` blocks. That block sees the
// earlier writes of all others. The counter starts at 0 and returns to 0.
STEP bool last_block(u32* counter, u32 blocks) {
    LDS_ARRAY(u32, is_last, 1);
    device_fence();
    block_sync();
    if (thread_id() == 0) {
        is_last[0] = atomic_add(counter, 1) == blocks - 1;
        if (is_last[0]) atomic_store(counter, 0);
    }
    block_sync();
    bool last = is_last[0];
    block_sync();
    device_fence();
    return last;
}

// e^x within 2 ulp: Cody and Waite's reduction to |r| ≤ ln2/2, a polynomial of degree 6, and a
// power of two made from exponent bits.
STEP float exp_f32(float x) {
    // Below -104.5 the result is 0. Comparisons keep a NaN; min and max would not.
    x = x < -104.5f ? -104.5f : x;
    x = x > 88.73f ? 88.73f : x;    // above it the result is infinite
    i32 whole = round_int(x * 1.44269504f);
    // ln2 = 0.693359375 − 2.12194440e-4; the first product with n is exact.
    float r = fma_f32((float)whole, -0.693359375f, x);
    r = fma_f32((float)whole, 2.12194440e-4f, r);
    float p = 1.3888889e-3f;  // 1/720, 1/120 …
    p = fma_f32(p, r, 8.3333333e-3f);
    p = fma_f32(p, r, 4.1666667e-2f);
    p = fma_f32(p, r, 1.6666667e-1f);
    p = fma_f32(p, r, 0.5f);
    p = fma_f32(p * r, r, r) + 1.0f;
    i32 half = whole / 2;  // two factors, each a normal number
    return p * as_f32((u32)(half + 127) << 23) * as_f32((u32)(whole - half + 127) << 23);
}
STEP float sigmoid(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

// tanh within 3 ulp: 1 − 2/(e^2x + 1), and near zero, where this would cancel, the Taylor
// polynomial.
STEP float tanh_f32(float x) {
    float a = abs_f32(x);
    // 1 − s/3 + 2s²/15 − 17s³/315 + 62s⁴/2835 …: error 9e-9 at ½
    float s = x * x, p = -1.4558344e-3f;
    p = fma_f32(p, s, 3.5921280e-3f);
    p = fma_f32(p, s, -8.8632355e-3f);
    p = fma_f32(p, s, 2.1869489e-2f);
    p = fma_f32(p, s, -5.3968254e-2f);
    p = fma_f32(p, s, 1.3333333e-1f);
    p = fma_f32(p, s, -3.3333333e-1f);
    float t = 1.0f - 2.0f / (exp_f32(2.0f * a) + 1.0f);
    return a < 0.5f ? fma_f32(x * s, p, x) : x < 0.0f ? -t : t;
}
