// rocblas.cpp: the part of rocBLAS that the engine calls: one matrix product, submitted to a
// stream.
#include "sim.h"
#include <cmath>

using namespace hipsim;

namespace {

enum : int { BLAS_OK = 0, BLAS_INVALID_HANDLE = 1, BLAS_NOT_IMPLEMENTED = 2, BLAS_INVALID_POINTER = 3, BLAS_INVALID_SIZE = 4, BLAS_INTERNAL = 6 };
enum : unsigned { AS_IS = 111, TRANSPOSED = 112, F16 = 150, F32 = 151 };

struct Handle {
    int device;
    void* stream = nullptr;
};
std::set<Handle*>& handles() {
    static auto& all = *new std::set<Handle*>();
    return all;
}

float half(const void* p, size_t i) {
    uint16_t bits;
    memcpy(&bits, (const char*)p + 2 * i, 2);
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float v = exponent == 31 ? (fraction ? NAN : INFINITY) : exponent ? ldexpf(1024 + fraction, exponent - 25) : ldexpf(fraction, -24);
    return bits >> 15 ? -v : v;
}

}  // namespace

API rocblas_create_handle(void** to) {
    ENTER(DEVICE);
    if (!to) return BLAS_INVALID_POINTER;
    auto* handle = new Handle{current_device};
    handles().insert(handle);
    return *to = handle, BLAS_OK;
}
API rocblas_destroy_handle(Handle* handle) {
    ENTER(INIT);
    if (!handles().erase(handle)) return BLAS_INVALID_HANDLE;
    return delete handle, BLAS_OK;
}
API rocblas_set_stream(Handle* handle, void* stream) {
    ENTER(DEVICE);
    std::shared_ptr<Stream> found = stream_of(s, stream);
    if (!handles().count(handle) || !found || found->device != handle->device) return BLAS_INVALID_HANDLE;
    return handle->stream = stream, BLAS_OK;
}
// D (m × n, column-major) = alpha · op(A) · op(B) + beta · C.
API rocblas_gemm_ex(Handle* handle, unsigned op_a, unsigned op_b, int m, int n, int k, const float* alpha, const void* a, unsigned a_type, int lda,
                    const void* b, unsigned b_type, int ldb, const float* beta, const void* c, unsigned c_type, int ldc, void* d, unsigned d_type, int ldd,
                    unsigned compute_type, unsigned algo, int, unsigned) {
    ENTER(DEVICE);
    if (!handles().count(handle) || current_device != handle->device) return BLAS_INVALID_HANDLE;
    if (!alpha || !beta || !a || !b || !c || !d) return BLAS_INVALID_POINTER;
    if (a_type != F16 || b_type != F16 || c_type != F32 || d_type != F32 || compute_type != F32 || algo) return BLAS_NOT_IMPLEMENTED;
    if ((op_a != AS_IS && op_a != TRANSPOSED) || (op_b != AS_IS && op_b != TRANSPOSED)) return BLAS_NOT_IMPLEMENTED;
    if (m <= 0 || n <= 0 || k <= 0 || lda < (op_a == AS_IS ? m : k) || ldb < (op_b == AS_IS ? k : n) || ldc < m || ldd < m) return BLAS_INVALID_SIZE;
    // The last column may be shorter than the leading dimension.
    auto bytes = [](int ld, int rows, int cols, size_t each) { return ((size_t)ld * (cols - 1) + rows) * each; };
    Allocation* places[] = {find(s, a, op_a == AS_IS ? bytes(lda, m, k, 2) : bytes(lda, k, m, 2)),
                            find(s, b, op_b == AS_IS ? bytes(ldb, k, n, 2) : bytes(ldb, n, k, 2)), find(s, c, bytes(ldc, m, n, 4)),
                            find(s, d, bytes(ldd, m, n, 4))};
    for (Allocation* place : places)
        if (!place || place->device != handle->device) return BLAS_INVALID_POINTER;
    Work w;
    w.kind = Work::CALL;
    float al = *alpha, be = *beta;  // read at the call: host pointers
    w.call = [=] {
        for (int j = 0; j < n; j++)
            for (int i = 0; i < m; i++) {
                double sum = 0;
                for (int l = 0; l < k; l++) {
                    size_t at = op_a == AS_IS ? (size_t)l * lda + i : (size_t)i * lda + l, bt = op_b == AS_IS ? (size_t)j * ldb + l : (size_t)l * ldb + j;
                    sum += (double)half(a, at) * half(b, bt);
                }
                float old = be != 0 ? ((const float*)c)[(size_t)j * ldc + i] : 0.0f;
                ((float*)d)[(size_t)j * ldd + i] = al * (float)sum + be * old;
            }
    };
    return submit(call.hold, handle->stream, std::move(w)) ? BLAS_INTERNAL : BLAS_OK;
}
