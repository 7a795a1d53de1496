// A small model of a ring that one warp fills and the others read, for compute-sanitizer's
// racecheck. All forms are correct by PTX's memory model.
//
//   nvcc -arch=sm_90 -lineinfo -o racecheck racecheck.cu
//   compute-sanitizer --tool racecheck ./racecheck FORM
//
// 0: no ring. 1: ordered by mbarriers. 2: ordered by named barriers. 3: as 1, and the warp reads
// the others' choices of each round after a barrier of all threads. 4: as 3, with such a barrier
// also before each choice.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

constexpr uint32_t WAVES = 8, SLOTS = 4, ROUNDS = 300;

__device__ uint32_t place(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ void wait(const uint64_t* barrier, uint32_t parity) {
    for (uint32_t done = 0; !done;)
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; "
            "selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(place(barrier)), "r"(parity)
            : "memory");
}
__device__ void arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(place(barrier)) : "memory");
}
__device__ void named_wait(uint32_t n) {
    asm volatile("barrier.sync %0, 288;" ::"r"(2 + n) : "memory");
}
__device__ void named_arrive(uint32_t n) {
    asm volatile("bar.arrive %0, 288;" ::"r"(2 + n) : "memory");
}

template <int FORM> __global__ void ring(const uint32_t* in, uint32_t* out) {
    __shared__ uint32_t slot[SLOTS][64], own[32 * WAVES], chosen[WAVES];
    __shared__ uint64_t full[SLOTS], empty[SLOTS];
    const uint32_t t = threadIdx.x, lane = t % 32;
    if (t == 32 * WAVES) {
        for (uint32_t i = 0; i < SLOTS; i++) {
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(place(full + i)));
            asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(place(empty + i)), "r"(WAVES));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    uint32_t sum = 0;
    for (uint32_t r = 0; r < ROUNDS; r++) {
        const uint32_t n = r % SLOTS, lap = r / SLOTS;
        if (FORM == 4) __syncthreads();
        if (FORM >= 3) {
            if (lane == 0 && t < 32 * WAVES) chosen[t / 32] = r;
            __syncthreads();
        }
        if (t >= 32 * WAVES) {  // fills
            if (FORM >= 3) sum = chosen[lane % WAVES];
            if ((FORM == 1 || FORM >= 3) && lap > 0) wait(empty + n, (lap - 1) & 1);
            if (FORM == 2 && lap > 0) named_wait(SLOTS + n);
            if (FORM > 0) slot[n][lane] = in[lane] + r, slot[n][lane + 32] = in[lane] + sum;
            __syncwarp();
            if ((FORM == 1 || FORM >= 3) && lane == 0) arrive(full + n);
            if (FORM == 2) named_arrive(n);
        } else {  // read
            own[t] = sum;
            asm volatile("bar.sync 1, 256;" ::: "memory");
            sum += own[(t + 33) % (32 * WAVES)];
            asm volatile("bar.sync 1, 256;" ::: "memory");
            if ((FORM == 1 || FORM >= 3)) wait(full + n, lap & 1);
            if (FORM == 2) named_wait(n);
            if (FORM > 0) sum += slot[n][t % 64];
            __syncwarp();
            if ((FORM == 1 || FORM >= 3) && lane == 0) arrive(empty + n);
            if (FORM == 2) named_arrive(SLOTS + n);
        }
    }
    if (t < 32 * WAVES) out[t] = sum;
}

int main(int argc, char** argv) {
    const int form = argc > 1 ? atoi(argv[1]) : 1;
    uint32_t *in, *out;
    cudaMalloc(&in, 4 * 32), cudaMalloc(&out, 4 * 32 * WAVES), cudaMemset(in, 1, 4 * 32);
    if (form == 0) ring<0><<<1, 32 * WAVES + 32>>>(in, out);
    if (form == 1) ring<1><<<1, 32 * WAVES + 32>>>(in, out);
    if (form == 2) ring<2><<<1, 32 * WAVES + 32>>>(in, out);
    if (form == 3) ring<3><<<1, 32 * WAVES + 32>>>(in, out);
    if (form == 4) ring<4><<<1, 32 * WAVES + 32>>>(in, out);
    puts(cudaGetErrorString(cudaDeviceSynchronize()));
}
