//! The operations of the main namespace, by name. The package's Python files have their signatures.

use crate::class::Tensor;
use crate::convert::{DType, axes, beside, dtype, number, raise, run, sizes, tensor};
use kjit_ops::{BinOp, UnOp};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

type PyArg<'a, 'py> = &'a Bound<'py, PyAny>;

pub(crate) fn made(out: kjit_ops::Result<kjit_ops::Tensor>) -> PyResult<Tensor> {
    out.map(Tensor::of).map_err(raise)
}

fn un_op(name: &str) -> PyResult<UnOp> {
    let found = UnOp::ALL.iter().copied().find(|op| op.name() == name);
    found.ok_or_else(|| PyValueError::new_err(format!("no function {name}")))
}

fn bin_op(name: &str) -> PyResult<BinOp> {
    let found = BinOp::ALL.iter().copied().find(|op| op.name() == name);
    found.ok_or_else(|| PyValueError::new_err(format!("no function {name}")))
}

#[pyfunction]
fn unary(name: &str, x: PyArg<'_, '_>) -> PyResult<Tensor> {
    let (op, x) = (un_op(name)?, tensor(x)?);
    run_in(|| x.unary(op))
}

fn run_in(work: impl FnOnce() -> kjit_ops::Result<kjit_ops::Tensor> + Send) -> PyResult<Tensor> {
    Python::attach(|py| run(py, work)).map(Tensor::of)
}

/// Two operands, one of which may be a number.
fn pair(
    op: &'static str,
    a: PyArg<'_, '_>,
    b: PyArg<'_, '_>,
) -> PyResult<(kjit_ops::Tensor, kjit_ops::Tensor)> {
    let fail = |x: PyArg<'_, '_>| {
        let name = crate::convert::type_name(x);
        PyTypeError::new_err(format!("{op} takes tensors and numbers, got {name}"))
    };
    if let Ok(x) = a.cast::<Tensor>() {
        let x = x.get().now();
        let y = beside(op, b, &x)?.ok_or_else(|| fail(b))?;
        return Ok((x, y));
    }
    let y = tensor(b).map_err(|_| fail(if b.cast::<Tensor>().is_ok() { a } else { b }))?;
    Ok((beside(op, a, &y)?.ok_or_else(|| fail(a))?, y))
}

#[pyfunction]
fn binary(name: &str, a: PyArg<'_, '_>, b: PyArg<'_, '_>) -> PyResult<Tensor> {
    let op = bin_op(name)?;
    let (a, b) = pair(op.name(), a, b)?;
    run_in(|| a.binary(op, &b))
}

#[pyfunction]
fn where_(c: PyArg<'_, '_>, a: PyArg<'_, '_>, b: PyArg<'_, '_>) -> PyResult<Tensor> {
    let c = tensor(c)?;
    let (a, b) = match (a.cast::<Tensor>(), b.cast::<Tensor>()) {
        (Err(_), Err(_)) => {
            // Two numbers: the result has the higher kind of the two.
            let (x, y) = (number(a)?, number(b)?);
            let (dx, dy) = (x.default_dtype(), y.default_dtype());
            let dtype = kjit_ops::promote("where", dx, dy).map_err(raise)?;
            let full = |v| kjit_ops::Tensor::full(&[], v, dtype, c.device()).map_err(raise);
            (full(x)?, full(y)?)
        }
        _ => pair("where", a, b)?,
    };
    run_in(|| c.select(&a, &b))
}

#[pyfunction]
#[pyo3(signature = (x, low, high))]
fn clip(
    x: PyArg<'_, '_>,
    low: Option<PyArg<'_, '_>>,
    high: Option<PyArg<'_, '_>>,
) -> PyResult<Tensor> {
    let x = tensor(x)?;
    let bound = |b: Option<PyArg<'_, '_>>| match b {
        Some(b) => match beside("clip", b, &x)? {
            Some(b) => Ok(Some(b)),
            None => Err(PyTypeError::new_err("clip takes tensors and numbers as bounds")),
        },
        None => Ok(None),
    };
    let (low, high) = (bound(low)?, bound(high)?);
    made(x.clip(low.as_ref(), high.as_ref()))
}

#[pyfunction]
fn part(name: &str, x: PyArg<'_, '_>) -> PyResult<Tensor> {
    let x = tensor(x)?;
    made(match name {
        "real" => x.real_part(),
        "imag" => x.imag_part(),
        "conj" => x.conj(),
        _ => x.truth(),
    })
}

#[pyfunction]
#[pyo3(signature = (name, x, axis, keepdims, dtype_=None))]
fn reduce(
    name: &str,
    x: PyArg<'_, '_>,
    axis: Option<PyArg<'_, '_>>,
    keepdims: bool,
    dtype_: Option<PyArg<'_, '_>>,
) -> PyResult<Tensor> {
    let (x, at) = (tensor(x)?, axes(axis)?);
    let at = at.as_deref();
    let dtype = dtype_.map(dtype).transpose()?;
    run_in(|| match name {
        "sum" => x.sum(at, keepdims, dtype),
        "prod" => x.prod(at, keepdims, dtype),
        "max" => x.max(at, keepdims),
        "min" => x.min(at, keepdims),
        "mean" => x.mean(at, keepdims),
        "any" => x.any(at, keepdims),
        "all" => x.all(at, keepdims),
        "count_nonzero" => x.count_nonzero(at, keepdims),
        _ => x.logsumexp(at, keepdims),
    })
}

#[pyfunction]
#[pyo3(signature = (x, axis, correction, keepdims, root))]
fn variance(
    x: PyArg<'_, '_>,
    axis: Option<PyArg<'_, '_>>,
    correction: f64,
    keepdims: bool,
    root: bool,
) -> PyResult<Tensor> {
    let (x, at) = (tensor(x)?, axes(axis)?);
    let at = at.as_deref();
    run_in(|| if root { x.std(at, correction, keepdims) } else { x.var(at, correction, keepdims) })
}

#[pyfunction]
#[pyo3(signature = (x, axis, keepdims, most))]
fn arg_extreme(
    x: PyArg<'_, '_>,
    axis: Option<i64>,
    keepdims: bool,
    most: bool,
) -> PyResult<Tensor> {
    let x = tensor(x)?;
    run_in(|| if most { x.argmax(axis, keepdims) } else { x.argmin(axis, keepdims) })
}

#[pyfunction]
#[pyo3(signature = (x, product, axis, dtype_, initial))]
fn cumulative(
    x: PyArg<'_, '_>,
    product: bool,
    axis: Option<i64>,
    dtype_: Option<PyArg<'_, '_>>,
    initial: bool,
) -> PyResult<Tensor> {
    let x = tensor(x)?;
    let axis = match (axis, x.rank()) {
        (Some(a), _) => a,
        (None, 0 | 1) => 0,
        (None, rank) => {
            return Err(PyValueError::new_err(format!("axis is required for {rank} dimensions")));
        }
    };
    let x = if x.rank() == 0 { x.expand_dims(&[0]).map_err(raise)? } else { x };
    let dtype = dtype_.map(dtype).transpose()?;
    run_in(|| x.cumulative(product, axis, dtype, initial))
}

#[pyfunction]
fn diff(x: PyArg<'_, '_>, axis: i64, times: usize) -> PyResult<Tensor> {
    let x = tensor(x)?;
    run_in(|| x.diff(axis, times))
}

#[pyfunction]
fn astype(x: PyArg<'_, '_>, to: PyArg<'_, '_>, copy: bool) -> PyResult<Tensor> {
    let _ = copy;
    made(tensor(x)?.astype(dtype(to)?))
}

#[pyfunction]
fn copy(x: PyArg<'_, '_>) -> PyResult<Tensor> {
    let x = tensor(x)?;
    run_in(|| x.copy())
}

#[pyfunction]
fn reshape(x: PyArg<'_, '_>, shape: Vec<i64>) -> PyResult<Tensor> {
    made(tensor(x)?.reshape(&shape))
}

#[pyfunction]
fn broadcast_to(x: PyArg<'_, '_>, shape: PyArg<'_, '_>) -> PyResult<Tensor> {
    made(tensor(x)?.broadcast_to(&sizes(shape)?))
}

#[pyfunction]
fn broadcast_shapes<'py>(
    py: Python<'py>,
    shapes: Vec<Vec<usize>>,
) -> PyResult<Bound<'py, PyTuple>> {
    let all = shapes
        .iter()
        .try_fold(Vec::new(), |a, b| kjit_ops::broadcast("broadcast_shapes", &a, b))
        .map_err(raise)?;
    PyTuple::new(py, all)
}

#[pyfunction]
fn permute(x: PyArg<'_, '_>, order: Vec<i64>) -> PyResult<Tensor> {
    made(tensor(x)?.permute(&order))
}

#[pyfunction]
fn matrix_transpose(x: PyArg<'_, '_>) -> PyResult<Tensor> {
    made(tensor(x)?.matrix_transpose())
}

#[pyfunction]
fn moveaxis(x: PyArg<'_, '_>, from: PyArg<'_, '_>, to: PyArg<'_, '_>) -> PyResult<Tensor> {
    let (from, to) = (axes(Some(from))?, axes(Some(to))?);
    made(tensor(x)?.move_axes(&from.unwrap_or_default(), &to.unwrap_or_default()))
}

#[pyfunction]
fn expand_dims(x: PyArg<'_, '_>, axis: PyArg<'_, '_>) -> PyResult<Tensor> {
    made(tensor(x)?.expand_dims(&axes(Some(axis))?.unwrap_or_default()))
}

#[pyfunction]
fn squeeze(x: PyArg<'_, '_>, axis: PyArg<'_, '_>) -> PyResult<Tensor> {
    made(tensor(x)?.squeeze(&axes(Some(axis))?.unwrap_or_default()))
}

#[pyfunction]
#[pyo3(signature = (x, axis))]
fn flip(x: PyArg<'_, '_>, axis: Option<PyArg<'_, '_>>) -> PyResult<Tensor> {
    made(tensor(x)?.flip(axes(axis)?.as_deref()))
}

#[pyfunction]
fn roll(x: PyArg<'_, '_>, shift: i64, axis: i64) -> PyResult<Tensor> {
    made(tensor(x)?.roll(shift, axis))
}

#[pyfunction]
fn tile(x: PyArg<'_, '_>, times: Vec<usize>) -> PyResult<Tensor> {
    made(tensor(x)?.tile(&times))
}

#[pyfunction]
fn repeat(x: PyArg<'_, '_>, times: Vec<i64>, axis: i64) -> PyResult<Tensor> {
    let x = tensor(x)?;
    run_in(|| x.repeat(&times, axis))
}

#[pyfunction]
fn concat(list: Vec<Bound<'_, PyAny>>, axis: i64, new: bool) -> PyResult<Tensor> {
    let all: Vec<_> = list.iter().map(tensor).collect::<PyResult<_>>()?;
    made(if new {
        kjit_ops::Tensor::stack(&all, axis)
    } else {
        kjit_ops::Tensor::concat(&all, axis)
    })
}

#[pyfunction]
fn unstack(py: Python<'_>, x: PyArg<'_, '_>, axis: i64) -> PyResult<Py<PyTuple>> {
    let parts = tensor(x)?.unstack(axis).map_err(raise)?;
    Ok(PyTuple::new(py, parts.into_iter().map(Tensor::of))?.unbind())
}

#[pyfunction]
fn pad(x: PyArg<'_, '_>, pairs: Vec<(usize, usize)>, value: PyArg<'_, '_>) -> PyResult<Tensor> {
    made(tensor(x)?.pad(&pairs, number(value)?))
}

#[pyfunction]
#[pyo3(signature = (x, axis, descending, indices))]
fn sort(x: PyArg<'_, '_>, axis: i64, descending: bool, indices: bool) -> PyResult<Tensor> {
    let x = tensor(x)?;
    if x.rank() == 0 {
        return Err(PyValueError::new_err("sort: a tensor without axes has no order"));
    }
    run_in(|| if indices { x.argsort(axis, descending) } else { x.sort(axis, descending) })
}

#[pyfunction]
fn take(x: PyArg<'_, '_>, index: PyArg<'_, '_>, axis: i64, along: bool) -> PyResult<Tensor> {
    let (x, index) = (tensor(x)?, tensor(index)?);
    run_in(|| if along { x.take_along_axis(&index, axis) } else { x.take(&index, axis) })
}

#[pyfunction]
fn scatter(
    x: PyArg<'_, '_>,
    axis: i64,
    index: PyArg<'_, '_>,
    values: PyArg<'_, '_>,
    add: bool,
) -> PyResult<Tensor> {
    let (x, index, values) = (tensor(x)?, tensor(index)?, tensor(values)?);
    run_in(|| x.scatter(axis, &index, &values, add))
}

#[pyfunction]
fn nonzero(py: Python<'_>, x: PyArg<'_, '_>) -> PyResult<Py<PyTuple>> {
    let x = tensor(x)?;
    let found = run(py, || x.nonzero())?;
    Ok(PyTuple::new(py, found.into_iter().map(Tensor::of))?.unbind())
}

#[pyfunction]
#[pyo3(signature = (list, values, right, sorter))]
fn searchsorted(
    list: PyArg<'_, '_>,
    values: PyArg<'_, '_>,
    right: bool,
    sorter: Option<PyArg<'_, '_>>,
) -> PyResult<Tensor> {
    let list = tensor(list)?;
    let values = beside("searchsorted", values, &list)?
        .ok_or_else(|| PyTypeError::new_err("searchsorted takes tensors and numbers"))?;
    let sorter = sorter.map(tensor).transpose()?;
    run_in(|| list.searchsorted(&values, right, sorter.as_ref()))
}

#[pyfunction]
fn unique(py: Python<'_>, x: PyArg<'_, '_>) -> PyResult<(Tensor, Tensor, Tensor, Tensor)> {
    let x = tensor(x)?;
    let u = run(py, || x.unique())?;
    let of = Tensor::of;
    Ok((of(u.values), of(u.indices), of(u.inverse), of(u.counts)))
}

#[pyfunction]
fn isin(x: PyArg<'_, '_>, set: PyArg<'_, '_>, invert: bool) -> PyResult<Tensor> {
    let (x, set) = pair("isin", x, set)?;
    run_in(|| x.isin(&set, invert))
}

#[pyfunction]
fn product(name: &str, a: PyArg<'_, '_>, b: PyArg<'_, '_>, axis: i64) -> PyResult<Tensor> {
    let (a, b) = (tensor(a)?, tensor(b)?);
    run_in(|| if name == "matmul" { a.matmul(&b) } else { a.vecdot(&b, axis) })
}

#[pyfunction]
fn tensordot(
    a: PyArg<'_, '_>,
    b: PyArg<'_, '_>,
    of_a: Vec<i64>,
    of_b: Vec<i64>,
) -> PyResult<Tensor> {
    let (a, b) = (tensor(a)?, tensor(b)?);
    run_in(|| a.tensordot(&b, &of_a, &of_b))
}

#[pyfunction]
fn triangle(x: PyArg<'_, '_>, upper: bool, k: i64) -> PyResult<Tensor> {
    made(tensor(x)?.triangle(upper, k))
}

#[pyfunction]
fn promote(a: PyArg<'_, '_>, b: PyArg<'_, '_>) -> PyResult<DType> {
    kjit_ops::promote("result_type", dtype(a)?, dtype(b)?).map(DType).map_err(raise)
}

pub(crate) fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! all {
        ($($f:ident),* $(,)?) => {{ $(m.add_function(wrap_pyfunction!($f, m)?)?;)* }};
    }
    all!(
        unary,
        binary,
        where_,
        clip,
        part,
        reduce,
        variance,
        arg_extreme,
        cumulative,
        diff,
        astype,
        copy,
        reshape,
        broadcast_to,
        broadcast_shapes,
        permute,
        matrix_transpose,
        moveaxis,
        expand_dims,
        squeeze,
        flip,
        roll,
        tile,
        repeat,
        concat,
        unstack,
        pad,
        sort,
        take,
        scatter,
        nonzero,
        searchsorted,
        unique,
        isin,
        product,
        tensordot,
        triangle,
        promote
    );
    Ok(())
}
