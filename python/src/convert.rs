//! Conversions from and to Python: errors, dtypes, scalars, operands, indices.

use crate::class::Tensor;
use kjit_ops::{DTYPES, Device, Error, Index, Scalar};
use pyo3::exceptions::{
    PyIndexError, PyMemoryError, PyNotImplementedError, PyRuntimeError, PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyEllipsis, PyFloat, PyInt, PyList, PySlice, PyTuple};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The Python exception for an error.
pub(crate) fn raise(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        e if e.is_out_of_memory() => PyMemoryError::new_err(text),
        Error::DType { .. } => PyTypeError::new_err(text),
        Error::Index { .. } | Error::Axis { .. } => PyIndexError::new_err(text),
        Error::Shape { .. } | Error::Value { .. } | Error::Devices { .. } => {
            PyValueError::new_err(text)
        }
        Error::Absent { .. } => PyNotImplementedError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}

/// Runs a possible computation without the interpreter's lock.
pub(crate) fn run<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> kjit_ops::Result<T> + Send,
) -> PyResult<T> {
    py.detach(work).map_err(raise)
}

/// A dtype as Python sees it.
#[pyclass(module = "kjit", frozen, name = "dtype")]
#[derive(Clone, Copy)]
pub(crate) struct DType(pub kjit_ops::DType);

#[pymethods]
impl DType {
    #[new]
    fn new(name: &Bound<'_, PyAny>) -> PyResult<DType> {
        dtype(name).map(DType)
    }

    /// Its name in the array API: `float32`.
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Bytes of an element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.0.size()
    }

    /// `bool`, `signed integer`, `unsigned integer`, `real floating` or `complex floating`.
    #[getter]
    fn kind(&self) -> &'static str {
        match self.0.kind() {
            kjit_ops::Kind::Bool => "bool",
            kjit_ops::Kind::Signed => "signed integer",
            kjit_ops::Kind::Unsigned => "unsigned integer",
            kjit_ops::Kind::Float => "real floating",
            kjit_ops::Kind::Complex => "complex floating",
        }
    }

    fn __repr__(&self) -> String {
        format!("kjit.{}", self.0.name())
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<DType>().is_ok_and(|o| o.get().0 == self.0)
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        hasher.finish()
    }

    fn __reduce__(&self, py: Python<'_>) -> PyResult<(Py<PyAny>, (&'static str,))> {
        Ok((py.get_type::<DType>().into_any().unbind(), (self.0.name(),)))
    }
}

/// A dtype given as a kjit dtype, by name, or as a Python type.
pub(crate) fn dtype(given: &Bound<'_, PyAny>) -> PyResult<kjit_ops::DType> {
    if let Ok(d) = given.cast::<DType>() {
        return Ok(d.get().0);
    }
    if let Ok(name) = given.extract::<String>() {
        return kjit_ops::DType::parse(&name).map_err(raise);
    }
    let name = given.getattr("__name__").and_then(|n| n.extract::<String>()).unwrap_or_default();
    match name.as_str() {
        "int" => return Ok(kjit_ops::DType::I64),
        "float" => return Ok(kjit_ops::DType::F32),
        "complex" => return Ok(kjit_ops::DType::C64),
        _ => {}
    }
    DTYPES
        .into_iter()
        .find(|d| d.name() == name)
        .ok_or_else(|| PyTypeError::new_err(format!("{given} is not a dtype of kjit")))
}

/// A device by its name; the default device without one.
pub(crate) fn device(py: Python<'_>, name: Option<&str>) -> PyResult<Device> {
    match name {
        Some(name) => run(py, || Device::open(name)),
        None => Ok(Device::default_one()),
    }
}

/// The value of a Python number; `None` for other objects.
pub(crate) fn scalar(given: &Bound<'_, PyAny>) -> PyResult<Option<Scalar>> {
    if let Ok(v) = given.cast::<PyBool>() {
        return Ok(Some(Scalar::Bool(v.is_true())));
    }
    if given.is_instance_of::<PyInt>() {
        let v = given.extract::<i128>().map_err(|_| {
            pyo3::exceptions::PyOverflowError::new_err(format!(
                "{given} is out of range for every integer dtype"
            ))
        })?;
        return Ok(Some(Scalar::Int(v)));
    }
    if given.is_instance_of::<PyFloat>() {
        return Ok(Some(Scalar::Float(given.extract::<f64>()?)));
    }
    if given.is_instance_of::<PyComplex>() {
        let real = given.getattr("real")?.extract::<f64>()?;
        return Ok(Some(Scalar::Complex(real, given.getattr("imag")?.extract::<f64>()?)));
    }
    // NumPy scalars state their dtype.
    if given.hasattr("__index__")? && !given.hasattr("__dlpack__")? {
        return Ok(Some(Scalar::Int(given.call_method0("__index__")?.extract::<i128>()?)));
    }
    Ok(None)
}

/// An argument that must be a number.
pub(crate) fn number(given: &Bound<'_, PyAny>) -> PyResult<Scalar> {
    if let Ok(t) = given.cast::<Tensor>() {
        let t = t.get().now();
        return run(given.py(), || t.item());
    }
    scalar(given)?
        .ok_or_else(|| PyTypeError::new_err(format!("expected a number, got {}", type_name(given))))
}

pub(crate) fn type_name(given: &Bound<'_, PyAny>) -> String {
    given.get_type().name().map_or_else(|_| "?".to_owned(), |n| n.to_string())
}

/// The tensor of a kjit tensor.
pub(crate) fn tensor(given: &Bound<'_, PyAny>) -> PyResult<kjit_ops::Tensor> {
    match given.cast::<Tensor>() {
        Ok(t) => Ok(t.get().now()),
        Err(_) => Err(PyTypeError::new_err(format!(
            "expected a kjit.Tensor, got {} (use kjit.asarray)",
            type_name(given)
        ))),
    }
}

/// A tensor, or a number as a tensor that fits the other operand.
pub(crate) fn beside(
    op: &'static str,
    given: &Bound<'_, PyAny>,
    other: &kjit_ops::Tensor,
) -> PyResult<Option<kjit_ops::Tensor>> {
    if let Ok(t) = given.cast::<Tensor>() {
        return Ok(Some(t.get().now()));
    }
    match scalar(given)? {
        Some(value) => other.beside(op, value).map(Some).map_err(raise),
        None => Ok(None),
    }
}

/// One index, or a tuple of them.
pub(crate) fn index(given: &Bound<'_, PyAny>) -> PyResult<Vec<Index>> {
    match given.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter().map(|i| one_index(&i)).collect(),
        Err(_) => Ok(vec![one_index(given)?]),
    }
}

fn one_index(given: &Bound<'_, PyAny>) -> PyResult<Index> {
    if given.is_none() {
        return Ok(Index::New);
    }
    if given.is_instance_of::<PyEllipsis>() {
        return Ok(Index::Ellipsis);
    }
    if let Ok(slice) = given.cast::<PySlice>() {
        let part = |name: &str| -> PyResult<Option<i64>> {
            let v = slice.getattr(name)?;
            if v.is_none() {
                return Ok(None);
            }
            whole(&v).map(Some)
        };
        return Ok(Index::Slice(part("start")?, part("stop")?, part("step")?));
    }
    if let Ok(t) = given.cast::<Tensor>() {
        let t = t.get().now();
        // A 0-d integer tensor is an integer index.
        if t.rank() == 0 && t.dtype().is_int() {
            return Ok(Index::At(run(given.py(), || t.item())?.int() as i64));
        }
        return Ok(Index::Tensor(t));
    }
    if let Ok(b) = given.cast::<PyBool>() {
        let value = Scalar::Bool(b.is_true());
        let mask =
            kjit_ops::Tensor::full(&[], value, kjit_ops::DType::Bool, &Device::default_one());
        return mask.map(Index::Tensor).map_err(raise);
    }
    if given.is_instance_of::<PyList>() || given.hasattr("__dlpack__")? {
        let list = given.py().import("kjit")?.call_method1("asarray", (given,))?;
        return Ok(Index::Tensor(tensor(&list)?));
    }
    whole(given).map(Index::At)
}

/// An integer, clamped to 64 bits.
fn whole(given: &Bound<'_, PyAny>) -> PyResult<i64> {
    let v = given
        .call_method0("__index__")
        .map_err(|_| PyIndexError::new_err(format!("{} is not an index", type_name(given))))?;
    v.extract::<i64>()
        .or_else(|_| v.lt(0).map(|negative| if negative { i64::MIN / 2 } else { i64::MAX / 2 }))
}

/// A shape: one size or several.
pub(crate) fn sizes(given: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    let fail = || PyValueError::new_err("a size is negative or not an integer");
    match given.extract::<i64>() {
        Ok(n) => Ok(vec![usize::try_from(n).map_err(|_| fail())?]),
        Err(_) => given
            .extract::<Vec<i64>>()?
            .into_iter()
            .map(|n| usize::try_from(n).map_err(|_| fail()))
            .collect(),
    }
}

/// One axis or several; `None` stays `None`.
pub(crate) fn axes(given: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Vec<i64>>> {
    match given {
        None => Ok(None),
        Some(a) => match a.extract::<i64>() {
            Ok(one) => Ok(Some(vec![one])),
            Err(_) => a.extract::<Vec<i64>>().map(Some),
        },
    }
}
