//! Tuning of tensor kernels; `kjit/tuning.py` has the signatures.

use crate::convert::run;
use kjit_ops::tuning::{self, Measured};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;

#[pyfunction]
fn tuning_exhaustive(on: bool) {
    tuning::exhaustive(on);
}

#[pyfunction]
fn tuning_is_exhaustive() -> bool {
    tuning::is_exhaustive()
}

#[pyfunction]
#[pyo3(signature = (path))]
fn tuning_file(py: Python<'_>, path: Option<PathBuf>) -> PyResult<usize> {
    run(py, || tuning::set_file(path.as_deref()))
}

/// device, subject, choice, microseconds (by candidate) and refused (reasons by candidate) of each.
#[pyfunction]
fn tuning_verdicts(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let all = py.detach(tuning::verdicts);
    let list = all.iter().map(|verdict| {
        let (took, refused) = (PyDict::new(py), PyDict::new(py));
        for (name, measured) in &verdict.measured {
            match measured {
                Measured::Microseconds(t) => took.set_item(name, t)?,
                Measured::Refused(why) => refused.set_item(name, why)?,
            }
        }
        let dict = PyDict::new(py);
        dict.set_item("device", &verdict.device)?;
        dict.set_item("subject", &verdict.subject)?;
        dict.set_item("choice", &verdict.choice)?;
        dict.set_item("microseconds", took)?;
        dict.set_item("refused", refused)?;
        Ok(dict)
    });
    list.collect()
}

pub(crate) fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! all {
        ($($f:ident),* $(,)?) => {{ $(m.add_function(wrap_pyfunction!($f, m)?)?;)* }};
    }
    all!(tuning_exhaustive, tuning_is_exhaustive, tuning_file, tuning_verdicts);
    Ok(())
}
