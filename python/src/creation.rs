//! New tensors, by name; `kjit/_creation.py` has their signatures.

use crate::class::Tensor;
use crate::convert::{device, dtype, number, raise, sizes};
use crate::functions::made;
use kjit_ops::Scalar;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

type PyArg<'a, 'py> = &'a Bound<'py, PyAny>;

#[pyfunction]
#[pyo3(signature = (shape, value, dtype_, device_))]
fn full(
    py: Python<'_>,
    shape: PyArg<'_, '_>,
    value: PyArg<'_, '_>,
    dtype_: Option<PyArg<'_, '_>>,
    device_: Option<&str>,
) -> PyResult<Tensor> {
    let value = number(value)?;
    let dtype = dtype_.map_or(Ok(value.default_dtype()), dtype)?;
    fits(value, dtype)?;
    made(kjit_ops::Tensor::full(&sizes(shape)?, value, dtype, &device(py, device_)?))
}

/// Refuses an integer outside the range of an integer dtype.
fn fits(value: Scalar, dtype: kjit_ops::DType) -> PyResult<()> {
    if let Scalar::Int(v) = value
        && dtype.is_int()
        && (v < dtype.range().0 || v > dtype.range().1)
    {
        return Err(pyo3::exceptions::PyOverflowError::new_err(format!(
            "{v} is out of range for {dtype}"
        )));
    }
    Ok(())
}

#[pyfunction]
#[pyo3(signature = (start, stop, step, dtype_, device_))]
fn arange(
    py: Python<'_>,
    start: PyArg<'_, '_>,
    stop: PyArg<'_, '_>,
    step: PyArg<'_, '_>,
    dtype_: Option<PyArg<'_, '_>>,
    device_: Option<&str>,
) -> PyResult<Tensor> {
    let (a, b, s) = (number(start)?, number(stop)?, number(step)?);
    let dtype = dtype_.map(dtype).transpose()?;
    made(kjit_ops::Tensor::arange(a, b, s, dtype, &device(py, device_)?))
}

#[pyfunction]
#[pyo3(signature = (start, stop, num, dtype_, device_, endpoint))]
fn linspace(
    py: Python<'_>,
    start: PyArg<'_, '_>,
    stop: PyArg<'_, '_>,
    num: usize,
    dtype_: Option<PyArg<'_, '_>>,
    device_: Option<&str>,
    endpoint: bool,
) -> PyResult<Tensor> {
    let (a, b) = (number(start)?, number(stop)?);
    let complex = matches!(a, Scalar::Complex(..)) || matches!(b, Scalar::Complex(..));
    let default = if complex { kjit_ops::DType::C64 } else { kjit_ops::DType::F32 };
    let dtype = dtype_.map_or(Ok(default), dtype)?;
    made(kjit_ops::Tensor::linspace(a, b, num, dtype, endpoint, &device(py, device_)?))
}

#[pyfunction]
#[pyo3(signature = (rows, columns, k, dtype_, device_))]
fn eye(
    py: Python<'_>,
    rows: usize,
    columns: usize,
    k: i64,
    dtype_: PyArg<'_, '_>,
    device_: Option<&str>,
) -> PyResult<Tensor> {
    made(kjit_ops::Tensor::eye(rows, columns, k, dtype(dtype_)?, &device(py, device_)?))
}

#[pyfunction]
#[pyo3(signature = (bytes, dtype_, shape, device_))]
fn from_bytes(
    py: Python<'_>,
    bytes: &[u8],
    dtype_: PyArg<'_, '_>,
    shape: Vec<usize>,
    device_: Option<&str>,
) -> PyResult<Tensor> {
    made(kjit_ops::Tensor::from_bytes(bytes, dtype(dtype_)?, &shape, &device(py, device_)?))
}

#[pyfunction]
#[pyo3(signature = (values, dtype_, device_))]
fn from_list(
    py: Python<'_>,
    values: PyArg<'_, '_>,
    dtype_: Option<PyArg<'_, '_>>,
    device_: Option<&str>,
) -> PyResult<Tensor> {
    let (mut flat, mut shape) = (Vec::new(), Vec::new());
    flatten(values, 0, &mut shape, &mut flat)?;
    let default = flat.iter().map(|s| s.default_dtype()).try_fold(None, |all, d| match all {
        None => Ok::<_, PyErr>(Some(d)),
        Some(a) => kjit_ops::promote("asarray", a, d).map(Some).map_err(raise),
    })?;
    let dtype = match dtype_ {
        Some(given) => dtype(given)?,
        None => default.unwrap_or(kjit_ops::DType::F32),
    };
    if !dtype.is_complex() && flat.iter().any(|v| matches!(v, Scalar::Complex(..))) {
        return Err(PyTypeError::new_err(format!(
            "a complex number cannot be converted to {dtype}"
        )));
    }
    let bytes: Vec<u8> = flat
        .iter()
        .map(|v| fits(*v, dtype).map(|()| v.to_bytes(dtype)))
        .collect::<PyResult<Vec<_>>>()?
        .concat();
    made(kjit_ops::Tensor::from_bytes(&bytes, dtype, &shape, &device(py, device_)?))
}

/// Flattens nested sequences. The first sequence of each level determines the shape.
fn flatten(
    given: PyArg<'_, '_>,
    level: usize,
    shape: &mut Vec<usize>,
    flat: &mut Vec<Scalar>,
) -> PyResult<()> {
    let ragged = || PyValueError::new_err("asarray: nested sequences of different lengths");
    if let Ok(list) = given
        .cast::<PyList>()
        .map(|l| l.iter().collect::<Vec<_>>())
        .or_else(|_| given.cast::<PyTuple>().map(|t| t.iter().collect::<Vec<_>>()))
    {
        if level > 63 {
            return Err(PyValueError::new_err("asarray: more than 64 levels of nested sequences"));
        }
        match shape.get(level) {
            None if flat.is_empty() => shape.push(list.len()),
            Some(n) if *n == list.len() => {}
            _ => return Err(ragged()),
        }
        return list.iter().try_for_each(|v| flatten(v, level + 1, shape, flat));
    }
    if level != shape.len() {
        return Err(ragged());
    }
    flat.push(number(given)?);
    Ok(())
}

#[pyfunction]
#[pyo3(signature = (kind, shape, dtype_, device_, low=0, high=1))]
fn random(
    py: Python<'_>,
    kind: &str,
    shape: PyArg<'_, '_>,
    dtype_: PyArg<'_, '_>,
    device_: Option<&str>,
    low: i64,
    high: i64,
) -> PyResult<Tensor> {
    let (shape, dtype, device) = (sizes(shape)?, dtype(dtype_)?, device(py, device_)?);
    made(match kind {
        "rand" => kjit_ops::Tensor::rand(&shape, dtype, &device),
        "randn" => kjit_ops::Tensor::randn(&shape, dtype, &device),
        _ => kjit_ops::Tensor::randint(low, high, &shape, dtype, &device),
    })
}

#[pyfunction]
fn manual_seed(seed: u64) {
    kjit_ops::manual_seed(seed);
}

pub(crate) fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! all {
        ($($f:ident),* $(,)?) => {{ $(m.add_function(wrap_pyfunction!($f, m)?)?;)* }};
    }
    all!(full, arange, linspace, eye, from_bytes, from_list, random, manual_seed);
    Ok(())
}
