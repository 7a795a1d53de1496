//! Memory pools of devices; `kjit/_memory.py` has the signatures.

use crate::convert::{device, run};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// hits, misses, live, in_use, peak and held of the device's pool; for page-locked memory hits,
/// misses and held.
#[pyfunction]
#[pyo3(signature = (name, pinned))]
fn pool_statistics<'py>(
    py: Python<'py>,
    name: Option<&str>,
    pinned: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let device = device(py, name)?;
    let dict = PyDict::new(py);
    if pinned {
        let stats = run(py, || device.pinned_statistics())?;
        dict.set_item("hits", stats.hits)?;
        dict.set_item("misses", stats.misses)?;
        dict.set_item("held", stats.held)?;
        return Ok(dict);
    }
    let stats = run(py, || device.pool_statistics())?;
    dict.set_item("hits", stats.hits)?;
    dict.set_item("misses", stats.misses)?;
    dict.set_item("live", stats.live)?;
    dict.set_item("in_use", stats.in_use)?;
    dict.set_item("peak", stats.peak)?;
    dict.set_item("held", stats.held)?;
    Ok(dict)
}

#[pyfunction]
#[pyo3(signature = (name, pinned, sizes))]
fn warm_up(py: Python<'_>, name: Option<&str>, pinned: bool, sizes: Vec<usize>) -> PyResult<()> {
    let device = device(py, name)?;
    run(py, || if pinned { device.warm_up_pinned(&sizes) } else { device.warm_up(&sizes) })
}

#[pyfunction]
#[pyo3(signature = (name, pinned))]
fn clear_pool(py: Python<'_>, name: Option<&str>, pinned: bool) -> PyResult<u64> {
    let device = device(py, name)?;
    run(py, || if pinned { device.clear_pinned().map(|n| n as u64) } else { device.clear_pool() })
}

#[pyfunction]
fn empty_cache(py: Python<'_>) -> u64 {
    py.detach(kjit_ops::pool::empty_cache)
}

pub(crate) fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! all {
        ($($f:ident),* $(,)?) => {{ $(m.add_function(wrap_pyfunction!($f, m)?)?;)* }};
    }
    all!(pool_statistics, warm_up, clear_pool, empty_cache);
    Ok(())
}
