//! The class `kjit.Tensor`: a handle with operators. Values never change; `x[i] = v` makes the
//! handle refer to another tensor.

use crate::convert::{DType, axes, beside, index, raise, run, tensor};
use kjit_ops::{BinOp, Scalar, UnOp};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyComplex, PyFloat, PyList, PyString, PyTuple};
use std::sync::{Mutex, PoisonError};

/// An n-dimensional array on a device: `cpu`, `cuda:0`, `rocm:1`.
#[pyclass(module = "kjit", frozen, weakref)]
pub(crate) struct Tensor(Mutex<kjit_ops::Tensor>);

impl Tensor {
    pub(crate) fn of(t: kjit_ops::Tensor) -> Tensor {
        Tensor(Mutex::new(t))
    }

    /// The tensor that the handle refers to now.
    pub(crate) fn now(&self) -> kjit_ops::Tensor {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, t: kjit_ops::Tensor) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = t;
    }

    /// An operator's result; `NotImplemented` if the other operand is neither a number nor a
    /// tensor.
    fn operator(&self, op: BinOp, other: &Bound<'_, PyAny>, turned: bool) -> PyResult<Py<PyAny>> {
        let py = other.py();
        let own = self.now();
        let Some(other) = beside(op.name(), other, &own)? else {
            return Ok(py.NotImplemented());
        };
        // Integer division gives the default float, in the operator as in the function.
        let out = run(py, || if turned { other.binary(op, &own) } else { own.binary(op, &other) })?;
        Ok(Tensor::of(out).into_pyobject(py)?.into_any().unbind())
    }

    fn one(&self, py: Python<'_>) -> PyResult<Scalar> {
        let t = self.now();
        if t.numel() != 1 {
            return Err(PyTypeError::new_err(format!(
                "only a tensor with one element can become a number, but this tensor has {}",
                t.numel()
            )));
        }
        run(py, || t.item())
    }
}

pub(crate) fn python(py: Python<'_>, value: Scalar) -> PyResult<Py<PyAny>> {
    Ok(match value {
        Scalar::Bool(v) => v.into_pyobject(py)?.to_owned().into_any().unbind(),
        Scalar::Int(v) => v.into_pyobject(py)?.into_any().unbind(),
        Scalar::Float(v) => PyFloat::new(py, v).into_any().unbind(),
        Scalar::Complex(re, im) => PyComplex::from_doubles(py, re, im).into_any().unbind(),
    })
}

/// Nested lists of row-major values.
fn nest(py: Python<'_>, values: &[Scalar], shape: &[usize]) -> PyResult<Py<PyAny>> {
    let Some((n, rest)) = shape.split_first() else {
        return python(py, values.first().copied().unwrap_or(Scalar::Int(0)));
    };
    let each = rest.iter().product::<usize>();
    let items = (0..*n)
        .map(|i| nest(py, values.get(i * each..(i + 1) * each).unwrap_or_default(), rest))
        .collect::<PyResult<Vec<_>>>()?;
    Ok(PyList::new(py, items)?.into_any().unbind())
}

#[pymethods]
impl Tensor {
    /// dtype of its elements.
    #[getter]
    fn dtype(&self) -> DType {
        DType(self.now().dtype())
    }

    /// Sizes of its axes.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.now().shape())
    }

    /// Number of axes.
    #[getter]
    fn ndim(&self) -> usize {
        self.now().rank()
    }

    /// Number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.now().numel()
    }

    /// Bytes of an element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.now().dtype().size()
    }

    /// Bytes of all elements.
    #[getter]
    fn nbytes(&self) -> usize {
        let t = self.now();
        t.numel() * t.dtype().size()
    }

    /// Its device: `cpu`, `cuda:0`.
    #[getter]
    fn device(&self) -> String {
        self.now().device().label().to_owned()
    }

    /// The transpose of a matrix.
    #[getter(T)]
    fn transposed(&self) -> PyResult<Tensor> {
        let t = self.now();
        if t.rank() != 2 {
            return Err(PyValueError::new_err(format!(
                "T needs two axes, but this tensor has {}: use mT or permute_dims",
                t.rank()
            )));
        }
        t.matrix_transpose().map(Tensor::of).map_err(raise)
    }

    /// The last two axes swapped.
    #[getter(mT)]
    fn matrix_transposed(&self) -> PyResult<Tensor> {
        self.now().matrix_transpose().map(Tensor::of).map_err(raise)
    }

    /// The real part of each element.
    #[getter]
    fn real(&self) -> PyResult<Tensor> {
        self.now().real_part().map(Tensor::of).map_err(raise)
    }

    /// The imaginary part of each element.
    #[getter]
    fn imag(&self) -> PyResult<Tensor> {
        self.now().imag_part().map(Tensor::of).map_err(raise)
    }

    #[pyo3(signature = (*, api_version=None))]
    fn __array_namespace__<'py>(
        &self,
        py: Python<'py>,
        api_version: Option<&str>,
    ) -> PyResult<Bound<'py, PyModule>> {
        match api_version {
            None | Some("2021.12" | "2022.12" | "2023.12" | "2024.12" | "2025.12") => {
                py.import("kjit")
            }
            Some(other) => Err(PyValueError::new_err(format!(
                "array API {other} is not supported; use 2025.12"
            ))),
        }
    }

    /// Copies the tensor to a device. Returns the tensor itself if it is already on that device.
    #[pyo3(signature = (device, /, *, stream=None))]
    fn to_device(
        &self,
        py: Python<'_>,
        device: &str,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Tensor> {
        if stream.is_some() {
            return Err(PyValueError::new_err("to_device: the argument stream is not supported"));
        }
        let (device, t) = (crate::convert::device(py, Some(device))?, self.now());
        run(py, || t.to_device(&device)).map(Tensor::of)
    }

    /// The one element as a Python number.
    fn item(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        python(py, self.one(py)?)
    }

    /// Its elements as nested lists of Python numbers.
    fn tolist(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let t = self.now();
        let values = run(py, || t.to_scalars())?;
        nest(py, &values, t.shape())
    }

    /// Row-major bytes of its elements.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyBytes>> {
        let t = self.now();
        let bytes = run(py, || t.to_bytes())?;
        Ok(pyo3::types::PyBytes::new(py, &bytes))
    }

    /// A copy of its elements as a NumPy array.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("kjit._interchange")?.call_method1("to_numpy", (slf,))
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let made = Tensor::numpy(slf)?;
        if copy == Some(false) {
            return Err(PyValueError::new_err(
                "a NumPy array without a copy is not possible: use np.asarray(x)",
            ));
        }
        match dtype {
            Some(dtype) => made.call_method1("astype", (dtype,)),
            None => Ok(made),
        }
    }

    /// Computes the tensor and everything that it depends on; returns it.
    fn eval<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let t = slf.get().now();
        run(slf.py(), || t.eval())?;
        Ok(slf.clone())
    }

    /// The elements in another shape with an equal number of elements.
    #[pyo3(signature = (*shape))]
    fn reshape(&self, shape: &Bound<'_, PyTuple>) -> PyResult<Tensor> {
        let sizes = match shape.get_item(0).and_then(|s| s.extract::<Vec<i64>>()) {
            Ok(list) if shape.len() == 1 => list,
            _ => shape.extract::<Vec<i64>>()?,
        };
        self.now().reshape(&sizes).map(Tensor::of).map_err(raise)
    }

    /// The same values in another dtype.
    fn astype(&self, dtype: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        self.now().astype(crate::convert::dtype(dtype)?).map(Tensor::of).map_err(raise)
    }

    fn __getitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let (t, keys) = (self.now(), index(key)?);
        run(key.py(), || t.index(&keys)).map(Tensor::of)
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let own = self.now();
        let keys = index(key)?;
        let value = match beside("assignment", value, &own)? {
            Some(value) => value,
            None => tensor(&value.py().import("kjit")?.call_method1("asarray", (value,))?)?,
        };
        let new = run(key.py(), || own.with(&keys, &value))?;
        self.set(new);
        Ok(())
    }

    fn __len__(&self) -> PyResult<usize> {
        let t = self.now();
        let n = t.shape().first().copied();
        n.ok_or_else(|| PyTypeError::new_err("len() needs a tensor with at least one axis"))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let t = self.now();
        if t.rank() == 0 {
            return Err(PyTypeError::new_err("cannot iterate over a tensor without axes"));
        }
        let parts = run(py, || t.unstack(0))?;
        PyList::new(py, parts.into_iter().map(Tensor::of))?.call_method0("__iter__")
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.one(py)?.truth())
    }

    fn __float__(&self, py: Python<'_>) -> PyResult<f64> {
        match self.one(py)? {
            Scalar::Complex(..) => Err(PyTypeError::new_err("a complex number is not a float")),
            value => Ok(value.float()),
        }
    }

    fn __complex__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (re, im) = self.one(py)?.parts();
        Ok(PyComplex::from_doubles(py, re.float(), im.float()).into_any().unbind())
    }

    fn __int__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.one(py)? {
            Scalar::Complex(..) => Err(PyTypeError::new_err("a complex number is not an int")),
            // Python raises the exception for an infinity or NaN.
            Scalar::Float(v) => Ok(PyFloat::new(py, v).call_method0("__int__")?.unbind()),
            value => python(py, Scalar::Int(value.int())),
        }
    }

    fn __index__(&self, py: Python<'_>) -> PyResult<i128> {
        match self.one(py)? {
            Scalar::Int(v) => Ok(v),
            _ => Err(PyTypeError::new_err("only a tensor of an integer dtype can be an index")),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let t = self.now();
        let (shape, dtype) = (self.shape(py)?.repr()?, t.dtype());
        let place = match t.device().label() {
            "cpu" => String::new(),
            label => format!(", device='{label}'"),
        };
        if t.numel() > 1000 {
            return Ok(format!("Tensor(shape={shape}, dtype={dtype}{place})"));
        }
        let values: Bound<'_, PyString> = self.tolist(py)?.bind(py).repr()?;
        Ok(format!("Tensor({values}, dtype={dtype}{place})"))
    }

    fn __pos__(&self) -> Tensor {
        Tensor::of(self.now())
    }
    fn __neg__(&self) -> PyResult<Tensor> {
        self.now().unary(UnOp::Neg).map(Tensor::of).map_err(raise)
    }
    fn __abs__(&self) -> PyResult<Tensor> {
        self.now().unary(UnOp::Abs).map(Tensor::of).map_err(raise)
    }
    fn __invert__(&self) -> PyResult<Tensor> {
        self.now().unary(UnOp::Not).map(Tensor::of).map_err(raise)
    }

    fn __add__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Add, o, false)
    }
    fn __radd__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Add, o, true)
    }
    fn __sub__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Sub, o, false)
    }
    fn __rsub__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Sub, o, true)
    }
    fn __mul__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Mul, o, false)
    }
    fn __rmul__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Mul, o, true)
    }
    fn __truediv__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Div, o, false)
    }
    fn __rtruediv__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Div, o, true)
    }
    fn __floordiv__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::FloorDiv, o, false)
    }
    fn __rfloordiv__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::FloorDiv, o, true)
    }
    fn __mod__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Rem, o, false)
    }
    fn __rmod__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Rem, o, true)
    }
    fn __pow__(
        &self,
        o: &Bound<'_, PyAny>,
        _modulo: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Pow, o, false)
    }
    fn __rpow__(
        &self,
        o: &Bound<'_, PyAny>,
        _modulo: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Pow, o, true)
    }
    fn __and__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::And, o, false)
    }
    fn __rand__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::And, o, true)
    }
    fn __or__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Or, o, false)
    }
    fn __ror__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Or, o, true)
    }
    fn __xor__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Xor, o, false)
    }
    fn __rxor__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Xor, o, true)
    }
    fn __lshift__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Shl, o, false)
    }
    fn __rlshift__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Shl, o, true)
    }
    fn __rshift__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Shr, o, false)
    }
    fn __rrshift__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Shr, o, true)
    }
    fn __eq__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Eq, o, false)
    }
    fn __ne__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Ne, o, false)
    }
    fn __lt__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Lt, o, false)
    }
    fn __le__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Le, o, false)
    }
    fn __gt__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Gt, o, false)
    }
    fn __ge__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.operator(BinOp::Ge, o, false)
    }
    fn __matmul__(&self, o: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = o.py();
        let Ok(other) = o.cast::<Tensor>() else { return Ok(py.NotImplemented()) };
        let (a, b) = (self.now(), other.get().now());
        let out = run(py, || a.matmul(&b))?;
        Ok(Tensor::of(out).into_pyobject(py)?.into_any().unbind())
    }

    /// Sum over axes, or over all without `axis`.
    #[pyo3(signature = (axis=None, *, keepdims=false))]
    fn sum(&self, axis: Option<&Bound<'_, PyAny>>, keepdims: bool) -> PyResult<Tensor> {
        self.now().sum(axes(axis)?.as_deref(), keepdims, None).map(Tensor::of).map_err(raise)
    }

    /// Mean over axes, or over all without `axis`.
    #[pyo3(signature = (axis=None, *, keepdims=false))]
    fn mean(&self, axis: Option<&Bound<'_, PyAny>>, keepdims: bool) -> PyResult<Tensor> {
        self.now().mean(axes(axis)?.as_deref(), keepdims).map(Tensor::of).map_err(raise)
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        slf: &Bound<'_, Self>,
        stream: Option<&Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        if let Some(stream) = stream
            && slf.get().now().device().label() == "cpu"
        {
            return Err(PyValueError::new_err(format!(
                "the CPU has no streams, but stream is {stream}"
            )));
        }
        let own = slf.get().now();
        // A copy to the CPU leaves this tensor as it is.
        let handle = (own.device().label() == "cpu").then_some(slf);
        crate::dlpack::export(slf.py(), handle, own, max_version, dl_device, copy)
    }

    /// The place of a computed tensor on an NVIDIA GPU, read-only, for libraries without DLPack.
    #[getter]
    fn __cuda_array_interface__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, pyo3::types::PyDict>> {
        crate::dlpack::cuda_array(py, &self.now())
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        kjit_ops::dlpack::device_of(self.now().device())
    }

    #[allow(unsafe_code, reason = "the interpreter's buffer protocol is pointers")]
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut pyo3::ffi::Py_buffer,
        flags: std::ffi::c_int,
    ) -> PyResult<()> {
        // SAFETY: the interpreter passes a view to fill in.
        unsafe { crate::buffer::fill(slf, view, flags) }
    }

    #[allow(unsafe_code, reason = "the interpreter's buffer protocol is pointers")]
    unsafe fn __releasebuffer__(&self, view: *mut pyo3::ffi::Py_buffer) {
        // SAFETY: `fill` has filled in the view.
        unsafe { crate::buffer::release(view) }
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("kjit._interchange")?.call_method1("reduce", (slf,))
    }
}
