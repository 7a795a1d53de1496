//! The operations of `kjit.nn.functional`, by name; the package has their signatures.

use crate::class::Tensor;
use crate::convert::{run, tensor};
use kjit_ops::{Reduction, Windows};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

type PyArg<'a, 'py> = &'a Bound<'py, PyAny>;

fn done(
    py: Python<'_>,
    work: impl FnOnce() -> kjit_ops::Result<kjit_ops::Tensor> + Send,
) -> PyResult<Tensor> {
    run(py, work).map(Tensor::of)
}

fn maybe(given: Option<PyArg<'_, '_>>) -> PyResult<Option<kjit_ops::Tensor>> {
    given.map(tensor).transpose()
}

fn reduction(word: &str) -> PyResult<Reduction> {
    match word {
        "none" => Ok(Reduction::None),
        "mean" => Ok(Reduction::Mean),
        "sum" => Ok(Reduction::Sum),
        other => Err(PyValueError::new_err(format!(
            "reduction '{other}' is not valid; use none, mean or sum"
        ))),
    }
}

#[pyfunction]
fn activation(py: Python<'_>, name: &str, x: PyArg<'_, '_>) -> PyResult<Tensor> {
    let x = tensor(x)?;
    done(py, || match name {
        "relu" => x.relu(),
        "sigmoid" => x.sigmoid(),
        "silu" => x.silu(),
        "gelu_tanh" => x.gelu(true),
        _ => x.gelu(false),
    })
}

#[pyfunction]
fn softmax(py: Python<'_>, x: PyArg<'_, '_>, axis: i64, log: bool) -> PyResult<Tensor> {
    let x = tensor(x)?;
    done(py, || if log { x.log_softmax(axis) } else { x.softmax(axis) })
}

#[pyfunction]
#[pyo3(signature = (x, shape, weight, bias, eps, root))]
fn norm(
    py: Python<'_>,
    x: PyArg<'_, '_>,
    shape: Vec<usize>,
    weight: Option<PyArg<'_, '_>>,
    bias: Option<PyArg<'_, '_>>,
    eps: f64,
    root: bool,
) -> PyResult<Tensor> {
    let (x, w, b) = (tensor(x)?, maybe(weight)?, maybe(bias)?);
    done(py, || match root {
        true => x.rms_norm(&shape, w.as_ref(), eps),
        false => x.layer_norm(&shape, w.as_ref(), b.as_ref(), eps),
    })
}

#[pyfunction]
#[pyo3(signature = (x, groups, weight, bias, eps))]
fn group_norm(
    py: Python<'_>,
    x: PyArg<'_, '_>,
    groups: usize,
    weight: Option<PyArg<'_, '_>>,
    bias: Option<PyArg<'_, '_>>,
    eps: f64,
) -> PyResult<Tensor> {
    let (x, w, b) = (tensor(x)?, maybe(weight)?, maybe(bias)?);
    done(py, || x.group_norm(groups, w.as_ref(), b.as_ref(), eps))
}

#[pyfunction]
#[pyo3(signature = (x, mean, var, weight, bias, eps))]
fn batch_norm(
    py: Python<'_>,
    x: PyArg<'_, '_>,
    mean: PyArg<'_, '_>,
    var: PyArg<'_, '_>,
    weight: Option<PyArg<'_, '_>>,
    bias: Option<PyArg<'_, '_>>,
    eps: f64,
) -> PyResult<Tensor> {
    let (x, m, v) = (tensor(x)?, tensor(mean)?, tensor(var)?);
    let (w, b) = (maybe(weight)?, maybe(bias)?);
    done(py, || x.batch_norm(&m, &v, w.as_ref(), b.as_ref(), eps))
}

#[pyfunction]
#[pyo3(signature = (x, weight, bias))]
fn linear(
    py: Python<'_>,
    x: PyArg<'_, '_>,
    weight: PyArg<'_, '_>,
    bias: Option<PyArg<'_, '_>>,
) -> PyResult<Tensor> {
    let (x, w, b) = (tensor(x)?, tensor(weight)?, maybe(bias)?);
    done(py, || x.linear(&w, b.as_ref()))
}

#[pyfunction]
fn embedding(py: Python<'_>, index: PyArg<'_, '_>, table: PyArg<'_, '_>) -> PyResult<Tensor> {
    let (index, table) = (tensor(index)?, tensor(table)?);
    done(py, || table.embedding(&index))
}

/// Stride, padding, dilation.
type Lists = (Vec<usize>, Vec<usize>, Vec<usize>);

fn windows(lists: &Lists) -> Windows<'_> {
    Windows { stride: &lists.0, padding: &lists.1, dilation: &lists.2 }
}

#[pyfunction]
#[pyo3(signature = (x, weight, bias, lists, groups))]
fn conv(
    py: Python<'_>,
    x: PyArg<'_, '_>,
    weight: PyArg<'_, '_>,
    bias: Option<PyArg<'_, '_>>,
    lists: Lists,
    groups: usize,
) -> PyResult<Tensor> {
    let (x, w, b) = (tensor(x)?, tensor(weight)?, maybe(bias)?);
    done(py, || x.conv(&w, b.as_ref(), &windows(&lists), groups))
}

#[pyfunction]
#[pyo3(signature = (x, weight, bias, lists, output_padding, groups))]
fn conv_transpose(
    py: Python<'_>,
    x: PyArg<'_, '_>,
    weight: PyArg<'_, '_>,
    bias: Option<PyArg<'_, '_>>,
    lists: Lists,
    output_padding: Vec<usize>,
    groups: usize,
) -> PyResult<Tensor> {
    let (x, w, b) = (tensor(x)?, tensor(weight)?, maybe(bias)?);
    done(py, || x.conv_transpose(&w, b.as_ref(), &windows(&lists), &output_padding, groups))
}

#[pyfunction]
fn max_pool(
    py: Python<'_>,
    x: PyArg<'_, '_>,
    kernel: Vec<usize>,
    lists: Lists,
) -> PyResult<Tensor> {
    let x = tensor(x)?;
    done(py, || x.max_pool(&kernel, &windows(&lists)))
}

#[pyfunction]
fn avg_pool(
    py: Python<'_>,
    x: PyArg<'_, '_>,
    kernel: Vec<usize>,
    lists: Lists,
    count_padding: bool,
) -> PyResult<Tensor> {
    let x = tensor(x)?;
    done(py, || x.avg_pool(&kernel, &windows(&lists), count_padding))
}

#[pyfunction]
fn adaptive_avg_pool(py: Python<'_>, x: PyArg<'_, '_>, sizes: Vec<usize>) -> PyResult<Tensor> {
    let x = tensor(x)?;
    done(py, || x.adaptive_avg_pool(&sizes))
}

#[pyfunction]
#[pyo3(signature = (q, k, v, mask, window, scale))]
fn attention(
    py: Python<'_>,
    q: PyArg<'_, '_>,
    k: PyArg<'_, '_>,
    v: PyArg<'_, '_>,
    mask: Option<PyArg<'_, '_>>,
    window: (Option<u32>, Option<u32>),
    scale: Option<f64>,
) -> PyResult<Tensor> {
    let (q, k, v, mask) = (tensor(q)?, tensor(k)?, tensor(v)?, maybe(mask)?);
    done(py, || q.windowed_attention(&k, &v, mask.as_ref(), window, scale))
}

#[pyfunction]
fn pair_loss(
    py: Python<'_>,
    name: &str,
    x: PyArg<'_, '_>,
    target: PyArg<'_, '_>,
    by: &str,
) -> PyResult<Tensor> {
    let (x, target, by) = (tensor(x)?, tensor(target)?, reduction(by)?);
    done(py, || if name == "mse" { x.mse_loss(&target, by) } else { x.bce_loss(&target, by) })
}

#[pyfunction]
#[pyo3(signature = (scores, x, target, weight, ignore, by))]
fn class_loss(
    py: Python<'_>,
    scores: bool,
    x: PyArg<'_, '_>,
    target: PyArg<'_, '_>,
    weight: Option<PyArg<'_, '_>>,
    ignore: i64,
    by: &str,
) -> PyResult<Tensor> {
    let (x, target, weight, by) = (tensor(x)?, tensor(target)?, maybe(weight)?, reduction(by)?);
    done(py, || match scores {
        true => x.cross_entropy(&target, weight.as_ref(), ignore, by),
        false => x.nll_loss(&target, weight.as_ref(), ignore, by),
    })
}

pub(crate) fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! all {
        ($($f:ident),* $(,)?) => {{ $(m.add_function(wrap_pyfunction!($f, m)?)?;)* }};
    }
    all!(
        activation,
        softmax,
        norm,
        group_norm,
        batch_norm,
        linear,
        embedding,
        conv,
        conv_transpose,
        max_pool,
        avg_pool,
        adaptive_avg_pool,
        attention,
        pair_loss,
        class_loss
    );
    Ok(())
}
