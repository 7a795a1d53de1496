//! Operations.

use crate::KjitTensor;
use crate::fault::{Fail, KjitStatus, device, give, list, maybe, tensor, text, value};
use kjit_ops::{BinOp, DType, Tensor, UnOp, Windows};
use std::ffi::c_char;

/// A function of each element by its name in the array API (`exp`, `sqrt`, `negative`, …), or an
/// activation: `relu`, `sigmoid`, `silu`, `gelu`, `gelu_tanh`.
///
/// # Safety
/// `name` is a NUL-terminated string, `x` a tensor, `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_unary(
    name: *const c_char,
    x: *const KjitTensor,
    out: *mut *mut KjitTensor,
) -> KjitStatus {
    // SAFETY: this function's caller guarantees the pointers.
    unsafe {
        give(out, || {
            let (name, x) = (text(name, "the name")?, tensor(x)?);
            Ok(match name {
                "relu" => x.relu(),
                "sigmoid" => x.sigmoid(),
                "silu" => x.silu(),
                "gelu" => x.gelu(false),
                "gelu_tanh" => x.gelu(true),
                _ => match UnOp::ALL.iter().find(|op| op.name() == name) {
                    Some(op) => x.unary(*op),
                    None => return Err(value(format!("'{name}' is not a function of one tensor"))),
                },
            }?)
        })
    }
}

/// A function of two tensors, which broadcast, by its name in the array API: `add`, `subtract`,
/// `multiply`, `divide`, `pow`, `maximum`, `less`, `equal`, ….
///
/// # Safety
/// `name` is a NUL-terminated string, `a` and `b` are tensors, `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_binary(
    name: *const c_char,
    a: *const KjitTensor,
    b: *const KjitTensor,
    out: *mut *mut KjitTensor,
) -> KjitStatus {
    // SAFETY: this function's caller guarantees the pointers.
    unsafe {
        give(out, || {
            let name = text(name, "the name")?;
            match BinOp::ALL.iter().find(|op| op.name() == name) {
                Some(op) => Ok(tensor(a)?.binary(*op, tensor(b)?)?),
                None => Err(value(format!("'{name}' is not a function of two tensors"))),
            }
        })
    }
}

/// `condition ? a : b` for each element; the three broadcast.
///
/// # Safety
/// All are tensors, `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_where(
    condition: *const KjitTensor,
    a: *const KjitTensor,
    b: *const KjitTensor,
    out: *mut *mut KjitTensor,
) -> KjitStatus {
    // SAFETY: this function's caller guarantees the pointers.
    unsafe { give(out, || Ok(tensor(condition)?.select(tensor(a)?, tensor(b)?)?)) }
}

/// Reduces axes (`n_axes` 0: all) by `sum`, `mean`, `max`, `min`, `prod`, `any`, `all`,
/// `logsumexp`.
///
/// # Safety
/// `name` is a NUL-terminated string, `x` a tensor, `axes` has `n_axes` values, `out` is
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_reduce(
    name: *const c_char,
    x: *const KjitTensor,
    axes: *const i64,
    n_axes: usize,
    keepdims: bool,
    out: *mut *mut KjitTensor,
) -> KjitStatus {
    // SAFETY: this function's caller guarantees the pointers.
    unsafe {
        give(out, || {
            let (x, axes) = (tensor(x)?, list(axes, n_axes, "the list of axes")?);
            let axes = (!axes.is_empty()).then_some(axes.as_slice());
            Ok(match text(name, "the name")? {
                "sum" => x.sum(axes, keepdims, None),
                "mean" => x.mean(axes, keepdims),
                "max" => x.max(axes, keepdims),
                "min" => x.min(axes, keepdims),
                "prod" => x.prod(axes, keepdims, None),
                "any" => x.any(axes, keepdims),
                "all" => x.all(axes, keepdims),
                "logsumexp" => x.logsumexp(axes, keepdims),
                other => return Err(value(format!("'{other}' is not a reduction"))),
            }?)
        })
    }
}

/// Products of matrices (…, m, k) and (…, k, n); batches broadcast.
///
/// # Safety
/// `a` and `b` are tensors, `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_matmul(
    a: *const KjitTensor,
    b: *const KjitTensor,
    out: *mut *mut KjitTensor,
) -> KjitStatus {
    // SAFETY: this function's caller guarantees the pointers.
    unsafe { give(out, || Ok(tensor(a)?.matmul(tensor(b)?)?)) }
}

/// (…, in) with a weight (out, in) and a bias (out), which may be null → (…, out).
///
/// # Safety
/// `x` and `weight` are tensors, `bias` is a tensor or null, `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_linear(
    x: *const KjitTensor,
    weight: *const KjitTensor,
    bias: *const KjitTensor,
    out: *mut *mut KjitTensor,
) -> KjitStatus {
    // SAFETY: this function's caller guarantees the pointers.
    unsafe { give(out, || Ok(tensor(x)?.linear(tensor(weight)?, maybe(bias))?)) }
}

/// A convolution of (n, c, …) with a weight (out, c / groups, …) and a bias (out), which may be
/// null. `stride`, `padding` and `dilation` have a value for each of the `n_axes` axes.
///
/// # Safety
/// `x` and `weight` are tensors, `bias` is a tensor or null, the lists have `n_axes`
/// values, `out` is writable.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "those of a convolution")]
pub unsafe extern "C" fn kjit_conv(
    x: *const KjitTensor,
    weight: *const KjitTensor,
    bias: *const KjitTensor,
    stride: *const usize,
    padding: *const usize,
    dilation: *const usize,
    n_axes: usize,
    groups: usize,
    out: *mut *mut KjitTensor,
) -> KjitStatus {
    // SAFETY: this function's caller guarantees the pointers.
    unsafe {
        give(out, || {
            let stride = list(stride, n_axes, "stride")?;
            let padding = list(padding, n_axes, "padding")?;
            let dilation = list(dilation, n_axes, "dilation")?;
            let windows = Windows { stride: &stride, padding: &padding, dilation: &dilation };
            Ok(tensor(x)?.conv(tensor(weight)?, maybe(bias), &windows, groups)?)
        })
    }
}

/// exp(x) / sum(exp(x)) over an axis; with `log` its logarithm.
///
/// # Safety
/// `x` is a tensor, `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_softmax(
    x: *const KjitTensor,
    axis: i64,
    log: bool,
    out: *mut *mut KjitTensor,
) -> KjitStatus {
    // SAFETY: this function's caller guarantees the pointers.
    unsafe {
        give(out, || {
            let x = tensor(x)?;
            Ok(if log { x.log_softmax(axis) } else { x.softmax(axis) }?)
        })
    }
}

/// Normalises the last axes, of sizes `shape`, to mean 0 and variance 1. Weight and bias may be
/// null.
///
/// # Safety
/// `x` is a tensor, `weight` and `bias` are tensors or null, `shape` has `rank` sizes,
/// `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_layer_norm(
    x: *const KjitTensor,
    shape: *const usize,
    rank: usize,
    weight: *const KjitTensor,
    bias: *const KjitTensor,
    eps: f64,
    out: *mut *mut KjitTensor,
) -> KjitStatus {
    // SAFETY: this function's caller guarantees the pointers.
    unsafe {
        give(out, || {
            let shape = list(shape, rank, "the shape")?;
            Ok(tensor(x)?.layer_norm(&shape, maybe(weight), maybe(bias), eps)?)
        })
    }
}

/// The elements with a different shape of equal size. One size may be -1.
///
/// # Safety
/// `x` is a tensor, `shape` has `rank` sizes, `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_reshape(
    x: *const KjitTensor,
    shape: *const i64,
    rank: usize,
    out: *mut *mut KjitTensor,
) -> KjitStatus {
    // SAFETY: this function's caller guarantees the pointers.
    unsafe { give(out, || Ok(tensor(x)?.reshape(&list(shape, rank, "the shape")?)?)) }
}

/// The tensor with its axes permuted. A view.
///
/// # Safety
/// `x` is a tensor, `order` has `rank` axes, `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_permute(
    x: *const KjitTensor,
    order: *const i64,
    rank: usize,
    out: *mut *mut KjitTensor,
) -> KjitStatus {
    // SAFETY: this function's caller guarantees the pointers.
    unsafe { give(out, || Ok(tensor(x)?.permute(&list(order, rank, "the order")?)?)) }
}

/// Concatenates tensors along an axis.
///
/// # Safety
/// `list_` has `n` tensors, `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_concat(
    list_: *const *const KjitTensor,
    n: usize,
    axis: i64,
    out: *mut *mut KjitTensor,
) -> KjitStatus {
    // SAFETY: this function's caller guarantees the pointers.
    unsafe {
        give(out, || {
            let all = list(list_, n, "the list of tensors")?;
            let all = all.into_iter().map(|t| tensor(t).cloned());
            Ok(Tensor::concat(&all.collect::<Result<Vec<_>, Fail>>()?, axis)?)
        })
    }
}

/// The values converted to `dtype`. Floats become integers toward zero.
///
/// # Safety
/// `x` is a tensor, `dtype` a NUL-terminated string, `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_astype(
    x: *const KjitTensor,
    dtype: *const c_char,
    out: *mut *mut KjitTensor,
) -> KjitStatus {
    // SAFETY: this function's caller guarantees the pointers.
    unsafe { give(out, || Ok(tensor(x)?.astype(DType::parse(text(dtype, "the dtype")?)?)?)) }
}

/// Copies the elements to a device (null: the default device).
///
/// # Safety
/// `x` is a tensor, `name` null or a NUL-terminated string, `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_to_device(
    x: *const KjitTensor,
    name: *const c_char,
    out: *mut *mut KjitTensor,
) -> KjitStatus {
    // SAFETY: this function's caller guarantees the pointers.
    unsafe { give(out, || Ok(tensor(x)?.to_device(&device(name)?)?)) }
}
