//! The operations of each launch, for `kjit.explain`.

use crate::class::Tensor;
use crate::convert::run;
use kjit_ops::Role;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// An operation: name, dtype, shape, positions of its inputs, role, and the positions of its group.
type Row = (String, &'static str, Py<PyTuple>, Vec<usize>, &'static str, Vec<usize>);

/// Computes a tensor; returns its operations, the number of launches, and the device.
#[pyfunction]
fn explained(py: Python<'_>, x: &Bound<'_, Tensor>) -> PyResult<(Vec<Row>, u64, String)> {
    let t = x.get().now();
    let explanation = run(py, || t.explain())?;
    let rows = explanation.parts.iter().enumerate().map(|(at, part)| {
        let role = match part.role {
            Role::Given => "given",
            Role::Stored => "stored",
            Role::View => "view",
            Role::Fused => "fused",
        };
        let shape = PyTuple::new(py, &part.shape)?.unbind();
        let inputs = part.inputs.clone();
        Ok((part.operation.clone(), part.dtype.name(), shape, inputs, role, explanation.group(at)))
    });
    Ok((rows.collect::<PyResult<Vec<_>>>()?, explanation.launches, explanation.device))
}

pub(crate) fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(explained, m)?)
}
