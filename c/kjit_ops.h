/* Tensors and operations on NVIDIA and AMD GPUs and on the CPU. Made by cbindgen from c/src.
 *
 * Functions return KJIT_OK or an error; kjit_last_error() has its text, one line. A tensor belongs
 * to the caller, who frees it with kjit_free(). Tensors are immutable and lazy: an operation is
 * computed when elements are read, or by kjit_eval(). Any thread may use any tensor. */

#ifndef KJIT_OPS_H
#define KJIT_OPS_H

#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#ifndef DLPACK_VERSION
#ifndef DLPACK_MAJOR_VERSION
/* The structs of dlpack.h 1.0, unless it is included before. */
typedef struct { int32_t device_type; int32_t device_id; } DLDevice;
typedef struct { uint8_t code; uint8_t bits; uint16_t lanes; } DLDataType;
typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides;
  uint64_t byte_offset;
} DLTensor;
typedef struct { uint32_t major; uint32_t minor; } DLPackVersion;
typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;
#endif
#endif

// The result of a call.
typedef enum {
  // Done.
  KJIT_OK = 0,
  // Shapes do not match each other or the operation.
  KJIT_SHAPE = 1,
  // Dtypes do not match each other or the operation.
  KJIT_DTYPE = 2,
  // An argument has a value that is not accepted, or is null.
  KJIT_VALUE = 3,
  // An axis or an index is out of range.
  KJIT_INDEX = 4,
  // The device does not exist, failed, or lacks a compiler; or operands are on two devices.
  KJIT_DEVICE = 5,
  // Out of memory.
  KJIT_MEMORY = 6,
  // The operation is not implemented on this device.
  KJIT_ABSENT = 7,
  // An error inside kjit; please report it.
  KJIT_INSIDE = 8,
} KjitStatus;

// A tensor: immutable, on a device, computed when its elements are read.
typedef struct KjitTensor KjitTensor;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The message of this thread's last error, one line; empty before the first error. The pointer is
// valid until the thread's next error.
const char *kjit_last_error(void);

// Sets the default device of new tensors: `cpu`, `cuda:0`, `rocm:1`, `auto`.
//
// # Safety
// `name` is a NUL-terminated string.
KjitStatus kjit_set_device(const char *name);

// Number of devices of a kind that this process sees: `cuda`, `rocm`, `cpu`. 0 for other kinds.
//
// # Safety
// `kind` is a NUL-terminated string.
size_t kjit_device_count(const char *kind);

// Waits for all work on a device (null: the default one).
//
// # Safety
// `name` is null or a NUL-terminated string.
KjitStatus kjit_synchronize(const char *name);

// A tensor with one value in every element, on a device (null: the default one). `dtype`:
// `float32`, `int64`, ….
//
// # Safety
// `shape` has `rank` sizes, `dtype` is a NUL-terminated string, the device is null or
// such a string, `out` is writable.
KjitStatus kjit_full(const size_t *shape,
                     size_t rank,
                     double fill,
                     const char *dtype,
                     const char *device_name,
                     KjitTensor **out);

// A copy of a DLPack tensor of the CPU, CUDA or ROCm, on its own device.
//
// # Safety
// `given` is filled in as DLPack demands, and the work that fills its memory has ended. `out` is
// writable.
KjitStatus kjit_from_dltensor(const DLTensor *given, KjitTensor **out);

// A tensor over a managed DLPack tensor's memory, without a copy. Unless `out` is null it belongs
// to kjit afterwards, also after an error: its deleter is called after the last use.
//
// # Safety
// `given` is filled in as DLPack demands, the work that fills its memory has ended, and
// nothing writes to it until its deleter is called. Any thread may call the deleter. `out` is
// writable.
KjitStatus kjit_from_dlpack(DLManagedTensorVersioned *given, KjitTensor **out);

// A second handle of a tensor. Nothing is copied.
//
// # Safety
// `x` is a tensor, `out` is writable.
KjitStatus kjit_clone(const KjitTensor *x, KjitTensor **out);

// Frees a tensor. Null does nothing.
//
// # Safety
// `x` is null or a tensor that was not freed before.
void kjit_free(KjitTensor *x);

// A function of each element by its name in the array API (`exp`, `sqrt`, `negative`, …), or an
// activation: `relu`, `sigmoid`, `silu`, `gelu`, `gelu_tanh`.
//
// # Safety
// `name` is a NUL-terminated string, `x` a tensor, `out` is writable.
KjitStatus kjit_unary(const char *name, const KjitTensor *x, KjitTensor **out);

// A function of two tensors, which broadcast, by its name in the array API: `add`, `subtract`,
// `multiply`, `divide`, `pow`, `maximum`, `less`, `equal`, ….
//
// # Safety
// `name` is a NUL-terminated string, `a` and `b` are tensors, `out` is writable.
KjitStatus kjit_binary(const char *name,
                       const KjitTensor *a,
                       const KjitTensor *b,
                       KjitTensor **out);

// `condition ? a : b` for each element; the three broadcast.
//
// # Safety
// All are tensors, `out` is writable.
KjitStatus kjit_where(const KjitTensor *condition,
                      const KjitTensor *a,
                      const KjitTensor *b,
                      KjitTensor **out);

// Reduces axes (`n_axes` 0: all) by `sum`, `mean`, `max`, `min`, `prod`, `any`, `all`,
// `logsumexp`.
//
// # Safety
// `name` is a NUL-terminated string, `x` a tensor, `axes` has `n_axes` values, `out` is
// writable.
KjitStatus kjit_reduce(const char *name,
                       const KjitTensor *x,
                       const int64_t *axes,
                       size_t n_axes,
                       bool keepdims,
                       KjitTensor **out);

// Products of matrices (…, m, k) and (…, k, n); batches broadcast.
//
// # Safety
// `a` and `b` are tensors, `out` is writable.
KjitStatus kjit_matmul(const KjitTensor *a, const KjitTensor *b, KjitTensor **out);

// (…, in) with a weight (out, in) and a bias (out), which may be null → (…, out).
//
// # Safety
// `x` and `weight` are tensors, `bias` is a tensor or null, `out` is writable.
KjitStatus kjit_linear(const KjitTensor *x,
                       const KjitTensor *weight,
                       const KjitTensor *bias,
                       KjitTensor **out);

// A convolution of (n, c, …) with a weight (out, c / groups, …) and a bias (out), which may be
// null. `stride`, `padding` and `dilation` have a value for each of the `n_axes` axes.
//
// # Safety
// `x` and `weight` are tensors, `bias` is a tensor or null, the lists have `n_axes`
// values, `out` is writable.
KjitStatus kjit_conv(const KjitTensor *x,
                     const KjitTensor *weight,
                     const KjitTensor *bias,
                     const size_t *stride,
                     const size_t *padding,
                     const size_t *dilation,
                     size_t n_axes,
                     size_t groups,
                     KjitTensor **out);

// exp(x) / sum(exp(x)) over an axis; with `log` its logarithm.
//
// # Safety
// `x` is a tensor, `out` is writable.
KjitStatus kjit_softmax(const KjitTensor *x, int64_t axis, bool log, KjitTensor **out);

// Normalises the last axes, of sizes `shape`, to mean 0 and variance 1. Weight and bias may be
// null.
//
// # Safety
// `x` is a tensor, `weight` and `bias` are tensors or null, `shape` has `rank` sizes,
// `out` is writable.
KjitStatus kjit_layer_norm(const KjitTensor *x,
                           const size_t *shape,
                           size_t rank,
                           const KjitTensor *weight,
                           const KjitTensor *bias,
                           double eps,
                           KjitTensor **out);

// The elements with a different shape of equal size. One size may be -1.
//
// # Safety
// `x` is a tensor, `shape` has `rank` sizes, `out` is writable.
KjitStatus kjit_reshape(const KjitTensor *x, const int64_t *shape, size_t rank, KjitTensor **out);

// The tensor with its axes permuted. A view.
//
// # Safety
// `x` is a tensor, `order` has `rank` axes, `out` is writable.
KjitStatus kjit_permute(const KjitTensor *x, const int64_t *order, size_t rank, KjitTensor **out);

// Concatenates tensors along an axis.
//
// # Safety
// `list_` has `n` tensors, `out` is writable.
KjitStatus kjit_concat(const KjitTensor *const *list_, size_t n, int64_t axis, KjitTensor **out);

// The values converted to `dtype`. Floats become integers toward zero.
//
// # Safety
// `x` is a tensor, `dtype` a NUL-terminated string, `out` is writable.
KjitStatus kjit_astype(const KjitTensor *x, const char *dtype, KjitTensor **out);

// Copies the elements to a device (null: the default device).
//
// # Safety
// `x` is a tensor, `name` null or a NUL-terminated string, `out` is writable.
KjitStatus kjit_to_device(const KjitTensor *x, const char *name, KjitTensor **out);

// Number of axes; 0 for null.
//
// # Safety
// `x` is null or a tensor.
size_t kjit_rank(const KjitTensor *x);

// The size of an axis; 0 for an axis that does not exist, and for null.
//
// # Safety
// `x` is null or a tensor.
size_t kjit_size(const KjitTensor *x, size_t axis);

// Bytes of all elements; 0 for null.
//
// # Safety
// `x` is null or a tensor.
size_t kjit_bytes(const KjitTensor *x);

// Computes a tensor and everything that it depends on. A second call does nothing.
//
// # Safety
// `x` is a tensor.
KjitStatus kjit_eval(const KjitTensor *x);

// Copies all elements in row-major order to `to`, which has exactly `kjit_bytes(x)` bytes.
//
// # Safety
// `x` is a tensor, `to` has `bytes` writable bytes.
KjitStatus kjit_read(const KjitTensor *x, void *to, size_t bytes);

// The memory of a tensor as DLPack, without a copy and read-only. The tensor is computed, and its
// kernels have finished. The caller must call the struct's deleter.
//
// # Safety
// `x` is a tensor, `out` is writable.
KjitStatus kjit_to_dlpack(const KjitTensor *x, DLManagedTensorVersioned **out);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KJIT_OPS_H */
