// Functions and types of CUDA and HIP that run-time compilers have built in, for a bare clang
// without vendor headers and device libraries. docs/embed.md lists them. Errors of functions are in
// units in the last place (ULP), without fast math. Tests of the engine compare the functions with
// f64.
#pragma once
#if defined(__CUDACC_RTC__)
// nvrtc has all of them built in except these, which it takes from its library. f16 is in its
// cuda_fp16.h.
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#elif defined(__AMDGCN__) && !defined(__HIPCC_RTC__)
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(threads, ...) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define KJ_WORD static inline __attribute__((device, always_inline))

// ------------------------------------------------------------------------------------------ types
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
typedef __SIZE_TYPE__ size_t;
#define KJ_VECTORS(type, name, two, four)                                                \
    struct alignas(two) name##2 { type x, y; };                                          \
    struct name##3 { type x, y, z; };                                                    \
    struct alignas(four) name##4 { type x, y, z, w; };                                   \
    KJ_WORD name##2 make_##name##2(type x, type y) { return name##2 {x, y}; }            \
    KJ_WORD name##3 make_##name##3(type x, type y, type z) { return name##3 {x, y, z}; } \
    KJ_WORD name##4 make_##name##4(type x, type y, type z, type w) { return name##4 {x, y, z, w}; }
KJ_VECTORS(signed char, char, 2, 4)
KJ_VECTORS(unsigned char, uchar, 2, 4)
KJ_VECTORS(short, short, 4, 8)
KJ_VECTORS(unsigned short, ushort, 4, 8)
KJ_VECTORS(int, int, 8, 16)
KJ_VECTORS(unsigned, uint, 8, 16)
KJ_VECTORS(float, float, 8, 16)
KJ_VECTORS(double, double, 16, 16)
#undef KJ_VECTORS
struct dim3 {
    unsigned x, y, z;
    constexpr __attribute__((device, host)) dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1)
        : x(x), y(y), z(z) {}
};

// ----------------------------------------------------------------------------- where a thread is
// The host writes the grid and the block size in front of the hidden arguments, as in code objects
// of version 5. kjit compiles to that version.
KJ_WORD unsigned kj_blocks(unsigned axis) {
    return ((const
             __attribute__((address_space(4))) unsigned*)__builtin_amdgcn_implicitarg_ptr())[axis];
}
KJ_WORD unsigned kj_threads(unsigned axis) {
    return ((const __attribute__((
        address_space(4))) unsigned short*)__builtin_amdgcn_implicitarg_ptr())[6 + axis];
}
#define KJ_PLACE(type, name, of_x, of_y, of_z)                                    \
    struct type {                                                                 \
        __declspec(property(get = get_x)) unsigned x;                             \
        __declspec(property(get = get_y)) unsigned y;                             \
        __declspec(property(get = get_z)) unsigned z;                             \
        static __forceinline__ __device__ unsigned get_x() { return of_x; }       \
        static __forceinline__ __device__ unsigned get_y() { return of_y; }       \
        static __forceinline__ __device__ unsigned get_z() { return of_z; }       \
        __forceinline__ __device__ operator dim3() const { return {of_x, of_y, of_z}; } \
    };                                                                            \
    /* Never read: the properties above are computed. */                          \
    extern const __device__ __attribute__((weak)) type name;
KJ_PLACE(KjThreadIdx, threadIdx, __builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(),
         __builtin_amdgcn_workitem_id_z())
KJ_PLACE(KjBlockIdx, blockIdx, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(),
         __builtin_amdgcn_workgroup_id_z())
KJ_PLACE(KjBlockDim, blockDim, kj_threads(0), kj_threads(1), kj_threads(2))
KJ_PLACE(KjGridDim, gridDim, kj_blocks(0), kj_blocks(1), kj_blocks(2))
#undef KJ_PLACE
constexpr int warpSize = KJ_WAVE;
KJ_WORD unsigned kj_lane() {
    return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
}

// ----------------------------------------------------------------------------- barriers and fences
KJ_WORD void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
KJ_WORD void __syncwarp(unsigned long long = ~0ull) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
KJ_WORD void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
KJ_WORD void __threadfence_block() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup"); }
KJ_WORD void __threadfence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }

// ------------------------------------------------------------------------------- from lane to lane
// The value of the lane 32 above or below. RDNA's ds_bpermute stays within each half of 32 lanes.
#if KJ_WAVE == 64 && !defined(__GFX9__) && !defined(__GFX8__)
KJ_WORD int kj_other_half(int v) {
#if defined(__GFX10__)  // no instruction: lane by lane
    int other = v;
    for (int i = 0; i < 32; i++) {
        int low = __builtin_amdgcn_readlane(v, i), high = __builtin_amdgcn_readlane(v, i + 32);
        other = kj_lane() == i ? high : kj_lane() == i + 32 ? low : other;
    }
    return other;
#else
    int other = (int)__builtin_amdgcn_permlane64((unsigned)v);
    asm("" : "+v"(other));  // convergent: LLVM 19 sinks the instruction into branches
    return other;
#endif
}
KJ_WORD int kj_get(int v, int lane) {
    int near = __builtin_amdgcn_ds_bpermute(lane << 2, v),
        far = __builtin_amdgcn_ds_bpermute(lane << 2, kj_other_half(v));
    return ((kj_lane() ^ (unsigned)lane) & 32) ? far : near;
}
#else
KJ_WORD int kj_get(int v, int lane) { return __builtin_amdgcn_ds_bpermute(lane << 2, v); }
#endif
// A value of one, two, four or eight bytes, or of several 32-bit words.
template <class T> KJ_WORD T kj_lane_value(T v, int lane) {
    constexpr unsigned WORDS = (sizeof(T) + 3) / 4;
    int words[WORDS] = {};
    __builtin_memcpy(words, &v, sizeof(T));
    for (unsigned i = 0; i < WORDS; i++) words[i] = kj_get(words[i], lane);
    __builtin_memcpy(&v, words, sizeof(T));
    return v;
}
template <class T> KJ_WORD T __shfl(T v, int from, int width = warpSize) {
    int self = (int)kj_lane();
    return kj_lane_value(v, (self & ~(width - 1)) | (from & (width - 1)));
}
template <class T> KJ_WORD T __shfl_up(T v, unsigned by, int width = warpSize) {
    int self = (int)kj_lane(), from = self - (int)by;
    return kj_lane_value(v, from < (self & ~(width - 1)) ? self : from);
}
template <class T> KJ_WORD T __shfl_down(T v, unsigned by, int width = warpSize) {
    int self = (int)kj_lane(), from = self + (int)by;
    return kj_lane_value(v, from > (self | (width - 1)) ? self : from);
}
template <class T> KJ_WORD T __shfl_xor(T v, int mask, int width = warpSize) {
    int self = (int)kj_lane(), from = self ^ mask;
    return kj_lane_value(v, from > (self | (width - 1)) ? self : from);
}
KJ_WORD unsigned long long __ballot(int p) {
#if KJ_WAVE == 64
    return __builtin_amdgcn_ballot_w64(p != 0);
#else
    return __builtin_amdgcn_ballot_w32(p != 0);
#endif
}
KJ_WORD unsigned long long __activemask() { return __ballot(1); }
KJ_WORD int __any(int p) { return __ballot(p) != 0; }
KJ_WORD int __all(int p) { return __ballot(p) == __activemask(); }
// The newer name of the functions. Lanes of a wave run in lockstep, so the mask has no effect.
template <class T> KJ_WORD T __shfl_sync(unsigned long long, T v, int from, int width = warpSize) {
    return __shfl(v, from, width);
}
template <class T>
KJ_WORD T __shfl_up_sync(unsigned long long, T v, unsigned by, int width = warpSize) {
    return __shfl_up(v, by, width);
}
template <class T>
KJ_WORD T __shfl_down_sync(unsigned long long, T v, unsigned by, int width = warpSize) {
    return __shfl_down(v, by, width);
}
template <class T>
KJ_WORD T __shfl_xor_sync(unsigned long long, T v, int mask, int width = warpSize) {
    return __shfl_xor(v, mask, width);
}
KJ_WORD unsigned long long __ballot_sync(unsigned long long mask, int p) {
    return __ballot(p) & mask;
}
KJ_WORD int __any_sync(unsigned long long mask, int p) { return (__ballot(p) & mask) != 0; }
KJ_WORD int __all_sync(unsigned long long mask, int p) {
    return (__ballot(p) & mask) == (__activemask() & mask);
}

// ----------------------------------------------------------------------------------------- atomics
// Atomics in device scope with relaxed order, as in CUDA. They return the old value.
#define KJ_SCOPE __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT
template <class T> KJ_WORD T kj_exchange_if(T* p, T compare, T v) {
    __hip_atomic_compare_exchange_strong(p, &compare, v, __ATOMIC_RELAXED, KJ_SCOPE);
    return compare;
}
#define KJ_ATOMICS(type)                                                                       \
    KJ_WORD type atomicAdd(type* p, type v) { return __hip_atomic_fetch_add(p, v, KJ_SCOPE); } \
    KJ_WORD type atomicSub(type* p, type v) {                                                  \
        return __hip_atomic_fetch_add(p, (type)(0 - v), KJ_SCOPE);                             \
    }                                                                                          \
    KJ_WORD type atomicExch(type* p, type v) { return __hip_atomic_exchange(p, v, KJ_SCOPE); } \
    KJ_WORD type atomicMin(type* p, type v) { return __hip_atomic_fetch_min(p, v, KJ_SCOPE); } \
    KJ_WORD type atomicMax(type* p, type v) { return __hip_atomic_fetch_max(p, v, KJ_SCOPE); } \
    KJ_WORD type atomicAnd(type* p, type v) { return __hip_atomic_fetch_and(p, v, KJ_SCOPE); } \
    KJ_WORD type atomicOr(type* p, type v) { return __hip_atomic_fetch_or(p, v, KJ_SCOPE); }   \
    KJ_WORD type atomicXor(type* p, type v) { return __hip_atomic_fetch_xor(p, v, KJ_SCOPE); } \
    KJ_WORD type atomicCAS(type* p, type compare, type v) { return kj_exchange_if(p, compare, v); }
KJ_ATOMICS(int)
KJ_ATOMICS(unsigned)
KJ_ATOMICS(unsigned long long)
#undef KJ_ATOMICS
// Replaces a value by change(value), in a compare-and-swap loop. Returns the old value.
template <class Word, class F> KJ_WORD Word kj_change(Word* p, F change) {
    for (Word old = __hip_atomic_load(p, KJ_SCOPE);;) {
        Word found = kj_exchange_if(p, old, (Word)change(old));
        if (found == old) return old;
        old = found;
    }
}
KJ_WORD float atomicAdd(float* p, float v) {
    auto sum = [=](unsigned old) {
        return __builtin_bit_cast(unsigned, __builtin_bit_cast(float, old) + v);
    };
    return __builtin_bit_cast(float, kj_change((unsigned*)p, sum));
}
KJ_WORD double atomicAdd(double* p, double v) {
    auto sum = [=](unsigned long long old) {
        return __builtin_bit_cast(unsigned long long, __builtin_bit_cast(double, old) + v);
    };
    return __builtin_bit_cast(double, kj_change((unsigned long long*)p, sum));
}
KJ_WORD float atomicExch(float* p, float v) { return __hip_atomic_exchange(p, v, KJ_SCOPE); }
KJ_WORD unsigned atomicInc(unsigned* p, unsigned most) {
    return kj_change(p, [=](unsigned old) { return old >= most ? 0 : old + 1; });
}
KJ_WORD unsigned atomicDec(unsigned* p, unsigned most) {
    return kj_change(p, [=](unsigned old) { return old == 0 || old > most ? most : old - 1; });
}
#undef KJ_SCOPE

// ---------------------------------------------------------------------------------------- integers
#define KJ_CHOICES(type)                                             \
    KJ_WORD type min(type a, type b) { return a < b ? a : b; }       \
    KJ_WORD type max(type a, type b) { return a > b ? a : b; }
KJ_CHOICES(int)
KJ_CHOICES(unsigned)
KJ_CHOICES(long)
KJ_CHOICES(unsigned long)
KJ_CHOICES(long long)
KJ_CHOICES(unsigned long long)
#undef KJ_CHOICES
KJ_WORD unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
KJ_WORD unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
KJ_WORD unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
KJ_WORD unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
KJ_WORD int abs(int v) { return v < 0 ? -v : v; }
KJ_WORD long abs(long v) { return v < 0 ? -v : v; }
KJ_WORD long long abs(long long v) { return v < 0 ? -v : v; }
KJ_WORD int __popc(unsigned v) { return __builtin_popcount(v); }
KJ_WORD int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
KJ_WORD int __clz(int v) { return v == 0 ? 32 : __builtin_clz((unsigned)v); }
KJ_WORD int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll((unsigned long long)v); }
KJ_WORD int __ffs(int v) { return v == 0 ? 0 : __builtin_ctz((unsigned)v) + 1; }
KJ_WORD int __ffsll(long long v) { return v == 0 ? 0 : __builtin_ctzll((unsigned long long)v) + 1; }
KJ_WORD unsigned __brev(unsigned v) { return __builtin_bitreverse32(v); }
KJ_WORD unsigned long long __brevll(unsigned long long v) { return __builtin_bitreverse64(v); }
KJ_WORD int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
KJ_WORD unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((unsigned long long)a * b >> 32);
}
KJ_WORD int __mul24(int a, int b) {
    return (int)((unsigned)((int)((unsigned)a << 8) >> 8) *
                 (unsigned)((int)((unsigned)b << 8) >> 8));
}
KJ_WORD unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
KJ_WORD int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8) c += (int)(signed char)(a >> i) * (int)(signed char)(b >> i);
    return c;
}
KJ_WORD unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 32; i += 8) c += (a >> i & 255u) * (b >> i & 255u);
    return c;
}
template <class T> KJ_WORD T __ldg(const T* p) { return *p; }

// ------------------------------------------------------------------------------------------ floats
KJ_WORD int __float_as_int(float v) { return __builtin_bit_cast(int, v); }
KJ_WORD unsigned __float_as_uint(float v) { return __builtin_bit_cast(unsigned, v); }
KJ_WORD float __int_as_float(int v) { return __builtin_bit_cast(float, v); }
KJ_WORD float __uint_as_float(unsigned v) { return __builtin_bit_cast(float, v); }
KJ_WORD long long __double_as_longlong(double v) { return __builtin_bit_cast(long long, v); }
KJ_WORD double __longlong_as_double(long long v) { return __builtin_bit_cast(double, v); }
KJ_WORD int __float2int_rn(float v) { return (int)__builtin_elementwise_rint(v); }
KJ_WORD int __float2int_rz(float v) { return (int)v; }
KJ_WORD int __float2int_rd(float v) { return (int)__builtin_elementwise_floor(v); }
KJ_WORD int __float2int_ru(float v) { return (int)__builtin_elementwise_ceil(v); }
KJ_WORD float __int2float_rn(int v) { return (float)v; }
KJ_WORD float __uint2float_rn(unsigned v) { return (float)v; }
// Correctly rounded in f32 and f64. In a tie, `round` rounds away from 0 and `rint` to even.
#define KJ_EXACT(type, f)                                                                      \
    KJ_WORD type fabs##f(type x) { return __builtin_elementwise_abs(x); }                      \
    KJ_WORD type floor##f(type x) { return __builtin_elementwise_floor(x); }                   \
    KJ_WORD type ceil##f(type x) { return __builtin_elementwise_ceil(x); }                     \
    KJ_WORD type trunc##f(type x) { return __builtin_elementwise_trunc(x); }                   \
    KJ_WORD type round##f(type x) { return __builtin_elementwise_round(x); }                   \
    KJ_WORD type rint##f(type x) { return __builtin_elementwise_rint(x); }                     \
    KJ_WORD type nearbyint##f(type x) { return __builtin_elementwise_rint(x); }                \
    KJ_WORD type sqrt##f(type x) { return __builtin_elementwise_sqrt(x); }                     \
    KJ_WORD type fma##f(type a, type b, type c) { return __builtin_elementwise_fma(a, b, c); } \
    KJ_WORD type copysign##f(type a, type b) { return __builtin_elementwise_copysign(a, b); }  \
    KJ_WORD type fmax##f(type a, type b) { return a != a ? b : b != b ? a : a > b ? a : b; }   \
    KJ_WORD type fmin##f(type a, type b) { return a != a ? b : b != b ? a : a < b ? a : b; }   \
    KJ_WORD type fdim##f(type a, type b) { return a != a || b != b ? a + b : a > b ? a - b : 0; }
KJ_EXACT(float, f)
KJ_EXACT(double, )
#undef KJ_EXACT
KJ_WORD bool isnan(float x) { return x != x; }
KJ_WORD bool isnan(double x) { return x != x; }
KJ_WORD bool isinf(float x) { return __builtin_elementwise_abs(x) == __builtin_huge_valf(); }
KJ_WORD bool isinf(double x) { return __builtin_elementwise_abs(x) == __builtin_huge_val(); }
KJ_WORD bool isfinite(float x) { return __builtin_elementwise_abs(x) < __builtin_huge_valf(); }
KJ_WORD bool isfinite(double x) { return __builtin_elementwise_abs(x) < __builtin_huge_val(); }
KJ_WORD float min(float a, float b) { return fminf(a, b); }
KJ_WORD float max(float a, float b) { return fmaxf(a, b); }
KJ_WORD double min(double a, double b) { return fmin(a, b); }
KJ_WORD double max(double a, double b) { return fmax(a, b); }
KJ_WORD float abs(float v) { return fabsf(v); }
KJ_WORD double abs(double v) { return fabs(v); }
KJ_WORD float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
KJ_WORD float __fadd_rn(float a, float b) {
#pragma clang fp contract(off)
    return a + b;
}
KJ_WORD float __fsub_rn(float a, float b) {
#pragma clang fp contract(off)
    return a - b;
}
KJ_WORD float __fmul_rn(float a, float b) {
#pragma clang fp contract(off)
    return a * b;
}
KJ_WORD float __fdiv_rn(float a, float b) { return a / b; }
KJ_WORD float __fsqrt_rn(float x) { return sqrtf(x); }
KJ_WORD float __frcp_rn(float x) { return 1.0f / x; }
KJ_WORD float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
// Hardware instructions: an error of some ULP, and small numbers may be flushed to 0.
KJ_WORD float __fdividef(float a, float b) { return a * __builtin_amdgcn_rcpf(b); }
KJ_WORD float __expf(float x) { return __builtin_amdgcn_exp2f(x * 1.44269504f); }
KJ_WORD float __exp10f(float x) { return __builtin_amdgcn_exp2f(x * 3.32192809f); }
KJ_WORD float __log2f(float x) { return __builtin_amdgcn_logf(x); }
KJ_WORD float __logf(float x) { return __builtin_amdgcn_logf(x) * 0.693147181f; }
KJ_WORD float __log10f(float x) { return __builtin_amdgcn_logf(x) * 0.301029996f; }
KJ_WORD float __powf(float x, float y) {
    return __builtin_amdgcn_exp2f(y * __builtin_amdgcn_logf(x));
}
KJ_WORD float __sinf(float x) {
    return __builtin_amdgcn_sinf(__builtin_amdgcn_fractf(x * 0.159154943f));
}
KJ_WORD float __cosf(float x) {
    return __builtin_amdgcn_cosf(__builtin_amdgcn_fractf(x * 0.159154943f));
}

// Functions of f32 that compute in f64. The relative error in f64 is 1e-9, so the result is within
// 1 ULP. 2^x is a series in ln 2 times the fraction of x.
// up to 2^51
KJ_WORD double kj_rint(double x) { return (x + 6755399441055744.0) - 6755399441055744.0; }
KJ_WORD double kj_rcp(double x) {
    double r = __builtin_amdgcn_rcpf((float)x);
    return r * __builtin_elementwise_fma(-x, r, 2.0);
}
KJ_WORD double kj_exp2(double x) {
    // f64 represents all exponents of an f32. Beyond this range the result is 0 or infinite in f32
    // as well.
    float rough = (float)x;
    x = rough < -1000.0f ? -1000.0 : rough > 1000.0f ? 1000.0 : x;
    double n = kj_rint(x), f = (x - n) * 0.693147180559945309;
    double p = 1.0 / 3628800;
    p = __builtin_elementwise_fma(p, f, 1.0 / 362880);
    p = __builtin_elementwise_fma(p, f, 1.0 / 40320);
    p = __builtin_elementwise_fma(p, f, 1.0 / 5040);
    p = __builtin_elementwise_fma(p, f, 1.0 / 720);
    p = __builtin_elementwise_fma(p, f, 1.0 / 120);
    p = __builtin_elementwise_fma(p, f, 1.0 / 24);
    p = __builtin_elementwise_fma(p, f, 1.0 / 6);
    p = __builtin_elementwise_fma(p, f, 0.5);
    p = __builtin_elementwise_fma(p, f, 1.0);
    p = __builtin_elementwise_fma(p, f, 1.0);
    // NaN stays NaN
    return p * __builtin_bit_cast(double, (long long)((int)n + 1023) << 52);
}
// log2 of a positive float: its exponent plus a series of (m − 1) / (m + 1).
KJ_WORD double kj_log2(float x) {
    double v = x;
    // mantissas of √½ and above use their own exponent
    long long bits = __builtin_bit_cast(long long, v) - 0x3fe6a09e667f3bcdll;
    double m = __builtin_bit_cast(double, (bits & 0x000fffffffffffffll) + 0x3fe6a09e667f3bcdll);
    double s = (m - 1.0) * kj_rcp(m + 1.0), z = s * s, p = 1.0 / 15;
    p = __builtin_elementwise_fma(p, z, 1.0 / 13);
    p = __builtin_elementwise_fma(p, z, 1.0 / 11);
    p = __builtin_elementwise_fma(p, z, 1.0 / 9);
    p = __builtin_elementwise_fma(p, z, 1.0 / 7);
    p = __builtin_elementwise_fma(p, z, 1.0 / 5);
    p = __builtin_elementwise_fma(p, z, 1.0 / 3);
    p = __builtin_elementwise_fma(p, z, 1.0);
    return (double)(bits >> 52) + p * s * 2.88539008177792681;
}
KJ_WORD float kj_log(float x, double scale) {
    if (x == 0.0f) return -__builtin_huge_valf();
    if (!(x > 0.0f)) return __builtin_nanf("");
    return x == __builtin_huge_valf() ? x : (float)(kj_log2(x) * scale);
}
KJ_WORD float exp2f(float x) { return (float)kj_exp2(x); }
KJ_WORD float expf(float x) { return (float)kj_exp2(x * 1.44269504088896341); }
KJ_WORD float exp10f(float x) { return (float)kj_exp2(x * 3.32192809488736235); }
KJ_WORD float log2f(float x) { return kj_log(x, 1.0); }
KJ_WORD float logf(float x) { return kj_log(x, 0.693147180559945309); }
KJ_WORD float log10f(float x) { return kj_log(x, 0.301029995663981195); }
KJ_WORD float rsqrtf(float x) {
    bool small = x < 1e-30f;
    double v = small ? x * 1.2676506e30f : x, r = __builtin_amdgcn_rsqf((float)v);  // 2^100
    double better = r * __builtin_elementwise_fma(-0.5 * v * r, r, 1.5);
    bool plain = x == 0.0f || x == __builtin_huge_valf();
    return (float)((plain ? r : better) * (small ? 1125899906842624.0 : 1.0));  // 2^50
}
KJ_WORD float tanhf(float x) {
    double v = x, z = v * v;
    if (fabsf(x) < 0.05f)
        return (float)__builtin_elementwise_fma(v * z, -1.0 / 3 + z * (2.0 / 15 - z * (17.0 / 315)),
                                                v);
    return (float)(1.0 - 2.0 * kj_rcp(kj_exp2(v * 2.88539008177792681) + 1.0));
}
KJ_WORD float powf(float x, float y) {
    if (y == 0.0f || x == 1.0f) return 1.0f;
    if (x != x || y != y) return x + y;
    bool whole = truncf(y) == y, odd = whole && fabsf(y) < 16777216.0f && ((int)y & 1);
    float sign = odd ? copysignf(1.0f, x) : 1.0f, a = fabsf(x), inf = __builtin_huge_valf();
    if (fabsf(y) == inf) return a == 1.0f ? 1.0f : (a < 1.0f) == (y < 0.0f) ? inf : 0.0f;
    if (a == 0.0f || a == inf) return sign * ((a == 0.0f) == (y < 0.0f) ? inf : 0.0f);
    if (x < 0.0f && !whole) return __builtin_nanf("");
    return sign * (float)kj_exp2(kj_log2(a) * y);
}
// x minus the nearest multiple of π/2, for |x| up to 2^30; `which` is the factor of π/2.
KJ_WORD float kj_quarter(float x, int& which) {
    double n = kj_rint(x * 0.636619772367581343);
    which = (int)n;
    return (float)__builtin_elementwise_fma(
        -n, 6.123233995736766e-17, __builtin_elementwise_fma(-n, 1.5707963267948966, (double)x));
}
KJ_WORD float kj_sine(float x, int turn) {
    int which;
    float r = kj_quarter(x, which), z = r * r, v;
    which += turn;
    if (which & 1) {
        v = fmaf(fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f);
        v = fmaf(z * z, v, fmaf(z, -0.5f, 1.0f));
    } else {
        v = fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f);
        v = fmaf(r * z, v, r);
    }
    return which & 2 ? -v : v;
}
// 2 ULP for |x| up to 2^30; near 0 the absolute error is at most 2^-24.
KJ_WORD float sinf(float x) { return kj_sine(x, 0); }
KJ_WORD float cosf(float x) { return kj_sine(x, 1); }
// Exact: division by shifts and subtractions.
KJ_WORD float fmodf(float x, float y) {
    if (x != x || y != y || y == 0.0f || fabsf(x) == __builtin_huge_valf()) return __builtin_nanf("");
    unsigned a = __float_as_uint(fabsf(x)), b = __float_as_uint(fabsf(y));
    if (a < b) return x;
    // Mantissas with the leading bit at position 23, and exponents (below 1 for subnormal numbers).
    int ea = (int)(a >> 23), eb = (int)(b >> 23);
    if (ea == 0) ea = 9 - __clz((int)a), a <<= 1 - ea;
    else a = (a & 0x7fffffu) | 0x800000u;
    if (eb == 0) eb = 9 - __clz((int)b), b <<= 1 - eb;
    else b = (b & 0x7fffffu) | 0x800000u;
    for (; ea > eb; ea--) a = (a >= b ? a - b : a) << 1;
    if (a >= b) a -= b;
    if (a == 0) return copysignf(0.0f, x);
    int up = __clz((int)a) - 8;
    a <<= up, ea -= up;
    a = ea > 0 ? (a & 0x7fffffu) | (unsigned)ea << 23 : a >> (1 - ea);
    return copysignf(__uint_as_float(a), x);
}

// ------------------------------------------------------------------------------------------ halves
typedef _Float16 __half;
typedef __half half;
typedef __half __half2 __attribute__((ext_vector_type(2)));
typedef __half2 half2;
KJ_WORD half __float2half(float v) { return (half)v; }
KJ_WORD half __float2half_rn(float v) { return (half)v; }
KJ_WORD float __half2float(half v) { return (float)v; }
KJ_WORD half __int2half_rn(int v) { return (half)v; }
KJ_WORD unsigned short __half_as_ushort(half v) { return __builtin_bit_cast(unsigned short, v); }
KJ_WORD half __ushort_as_half(unsigned short v) { return __builtin_bit_cast(half, v); }
KJ_WORD half __hadd(half a, half b) { return a + b; }
KJ_WORD half __hsub(half a, half b) { return a - b; }
KJ_WORD half __hmul(half a, half b) { return a * b; }
KJ_WORD half __hdiv(half a, half b) { return a / b; }
KJ_WORD half __hneg(half a) { return -a; }
KJ_WORD half __hfma(half a, half b, half c) { return __builtin_elementwise_fma(a, b, c); }
KJ_WORD bool __heq(half a, half b) { return a == b; }
KJ_WORD bool __hlt(half a, half b) { return a < b; }
KJ_WORD bool __hle(half a, half b) { return a <= b; }
KJ_WORD bool __hgt(half a, half b) { return a > b; }
KJ_WORD bool __hge(half a, half b) { return a >= b; }
KJ_WORD half2 __halves2half2(half a, half b) { return half2{a, b}; }
KJ_WORD half2 __half2half2(half a) { return half2{a, a}; }
KJ_WORD half2 __float2half2_rn(float v) { return half2{(half)v, (half)v}; }
KJ_WORD half2 __floats2half2_rn(float a, float b) { return half2{(half)a, (half)b}; }
KJ_WORD half2 __float22half2_rn(float2 v) { return half2{(half)v.x, (half)v.y}; }
KJ_WORD float2 __half22float2(half2 v) { return float2{(float)v.x, (float)v.y}; }
KJ_WORD half __low2half(half2 v) { return v.x; }
KJ_WORD half __high2half(half2 v) { return v.y; }
KJ_WORD float __low2float(half2 v) { return (float)v.x; }
KJ_WORD float __high2float(half2 v) { return (float)v.y; }
KJ_WORD half2 __hadd2(half2 a, half2 b) { return a + b; }
KJ_WORD half2 __hsub2(half2 a, half2 b) { return a - b; }
KJ_WORD half2 __hmul2(half2 a, half2 b) { return a * b; }
KJ_WORD half2 __hfma2(half2 a, half2 b, half2 c) { return __builtin_elementwise_fma(a, b, c); }

// ----------------------------------------------------------------------------------------- refused
template <class... A>
__attribute__((unavailable("a bare clang has no printf on the device: write values to a buffer, and read that"))) __device__ int
printf(const char*, A...);
#endif
