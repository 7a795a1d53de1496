//! Kernels of the user, by CuPy's names.

use crate::class::Tensor;
use crate::convert::{axes, raise, run, scalar, tensor, type_name};
use crate::functions::made;
use kjit_ops::KernelArg;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

type PyArg<'a, 'py> = &'a Bound<'py, PyAny>;

/// A kernel of the user: `RawKernel(code, name)(grid, block, args)`. The text has an
/// `extern "C" __global__ void name(...)` in CUDA, for both vendors. After the call a tensor whose
/// parameter is a pointer without `const` refers to the values that the kernel has written.
#[pyclass(module = "kjit", frozen)]
pub(crate) struct RawKernel(kjit_ops::RawKernel);

fn three(given: PyArg<'_, '_>) -> PyResult<[u32; 3]> {
    let list = match given.extract::<u32>() {
        Ok(one) => vec![one],
        Err(_) => given.extract::<Vec<u32>>()?,
    };
    let at = |i: usize| list.get(i).copied().unwrap_or(1);
    if list.is_empty() || list.len() > 3 {
        return Err(PyTypeError::new_err("a grid or block has one to three sizes"));
    }
    Ok([at(0), at(1), at(2)])
}

#[pymethods]
impl RawKernel {
    #[new]
    fn new(code: &str, name: &str) -> PyResult<RawKernel> {
        kjit_ops::RawKernel::new(code, name).map(RawKernel).map_err(raise)
    }

    /// Runs it on the device of its tensors: `grid` blocks of `block` threads, up to three sizes
    /// each; `shared_mem` bytes of dynamic shared memory.
    #[pyo3(signature = (grid, block, args, *, shared_mem=0))]
    #[allow(unsafe_code, reason = "a kernel may write anywhere")]
    fn __call__(
        &self,
        py: Python<'_>,
        grid: PyArg<'_, '_>,
        block: PyArg<'_, '_>,
        args: &Bound<'_, PyTuple>,
        shared_mem: u32,
    ) -> PyResult<()> {
        let (grid, block) = (three(grid)?, three(block)?);
        let mut list = Vec::new();
        let mut handles = Vec::new();
        for arg in args.iter() {
            if let Ok(t) = arg.cast::<Tensor>() {
                list.push(KernelArg::Tensor(t.get().now()));
                handles.push(t.clone());
            } else if let Some(v) = scalar(&arg)? {
                list.push(KernelArg::Scalar(v));
            } else {
                let name = type_name(&arg);
                return Err(PyTypeError::new_err(format!("a kernel has no argument '{name}'")));
            }
        }
        // SAFETY: the author of a kernel is responsible for it; the engine checks the sizes of its
        // arguments.
        let out = run(py, || unsafe { self.0.launch(grid, block, shared_mem, &list) })?;
        handles.iter().zip(out).for_each(|(h, t)| h.get().set(t));
        Ok(())
    }
}

/// A kernel that computes an expression for each element:
/// `ElementwiseKernel("T x, T y", "T z", "z = x * y", "name")`.
#[pyclass(module = "kjit", frozen)]
pub(crate) struct ElementwiseKernel(kjit_ops::ElementwiseKernel);

#[pymethods]
impl ElementwiseKernel {
    #[new]
    #[pyo3(signature = (in_params, out_params, operation, name="kernel"))]
    fn new(
        in_params: &str,
        out_params: &str,
        operation: &str,
        name: &str,
    ) -> PyResult<ElementwiseKernel> {
        let made = kjit_ops::ElementwiseKernel::new(in_params, out_params, operation, name);
        made.map(ElementwiseKernel).map_err(raise)
    }

    /// The outputs: a tensor, or a tuple of tensors. Inputs broadcast.
    #[pyo3(signature = (*args))]
    fn __call__(&self, py: Python<'_>, args: &Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> {
        let list: Vec<_> = args.iter().map(|a| tensor(&a)).collect::<PyResult<_>>()?;
        let mut out = run(py, || self.0.call(&list))?;
        if out.len() == 1
            && let Some(one) = out.pop()
        {
            return Ok(Tensor::of(one).into_pyobject(py)?.into_any().unbind());
        }
        Ok(PyTuple::new(py, out.into_iter().map(Tensor::of))?.into_any().unbind())
    }
}

/// A kernel that reduces an expression of each element over axes:
/// `ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "l2norm")`.
#[pyclass(module = "kjit", frozen)]
pub(crate) struct ReductionKernel(kjit_ops::ReductionKernel);

#[pymethods]
impl ReductionKernel {
    #[new]
    #[pyo3(signature = (in_params, out_params, map_expr, reduce_expr, post_map_expr, identity, name="kernel"))]
    fn new(
        in_params: &str,
        out_params: &str,
        map_expr: &str,
        reduce_expr: &str,
        post_map_expr: &str,
        identity: &str,
        name: &str,
    ) -> PyResult<ReductionKernel> {
        let made = kjit_ops::ReductionKernel::new(
            in_params,
            out_params,
            map_expr,
            reduce_expr,
            post_map_expr,
            identity,
            name,
        );
        made.map(ReductionKernel).map_err(raise)
    }

    /// Reduces over axes, or over all without `axis`.
    #[pyo3(signature = (x, axis=None, *, keepdims=false))]
    fn __call__(
        &self,
        x: PyArg<'_, '_>,
        axis: Option<PyArg<'_, '_>>,
        keepdims: bool,
    ) -> PyResult<Tensor> {
        let (x, at) = (tensor(x)?, axes(axis)?);
        made(self.0.call(&x, at.as_deref(), keepdims))
    }
}

pub(crate) fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<RawKernel>()?;
    m.add_class::<ElementwiseKernel>()?;
    m.add_class::<ReductionKernel>()
}
