//! Devices by name; `kjit/_device.py` has the signatures.

use crate::convert::{device, run};
use kjit_ops::Device;
use pyo3::prelude::*;
use pyo3::types::PyDict;

#[pyfunction]
fn set_device(py: Python<'_>, name: &str) -> PyResult<()> {
    device(py, Some(name))?.set_default();
    Ok(())
}

/// Sets the path of `kjit-cc`. Has an effect only before the first device is opened.
#[pyfunction]
fn use_worker(path: &str) -> bool {
    kjit_ops::device::use_worker(std::path::Path::new(path))
}

#[pyfunction]
fn get_device() -> String {
    Device::default_one().label().to_owned()
}

#[pyfunction]
#[pyo3(signature = (name=None))]
fn synchronize(py: Python<'_>, name: Option<&str>) -> PyResult<()> {
    let device = device(py, name)?;
    run(py, || device.synchronize())
}

#[pyfunction]
#[pyo3(signature = (name=None))]
fn launches(py: Python<'_>, name: Option<&str>) -> PyResult<u64> {
    Ok(device(py, name)?.launches())
}

#[pyfunction]
fn device_count(py: Python<'_>, word: &str) -> usize {
    py.detach(|| kjit_ops::device::device_count(word))
}

fn described<'py>(py: Python<'py>, info: &kjit_ops::Info) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("device", &info.device)?;
    dict.set_item("name", &info.name)?;
    dict.set_item("architecture", &info.architecture)?;
    dict.set_item("total_memory", info.total_memory)?;
    dict.set_item("compute_units", info.compute_units)?;
    Ok(dict)
}

#[pyfunction]
#[pyo3(signature = (name=None))]
fn device_info<'py>(py: Python<'py>, name: Option<&str>) -> PyResult<Bound<'py, PyDict>> {
    described(py, &device(py, name)?.info())
}

#[pyfunction]
fn devices(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    py.detach(kjit_ops::device::devices).iter().map(|info| described(py, info)).collect()
}

pub(crate) fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! all {
        ($($f:ident),* $(,)?) => {{ $(m.add_function(wrap_pyfunction!($f, m)?)?;)* }};
    }
    all!(
        set_device,
        use_worker,
        get_device,
        synchronize,
        launches,
        device_count,
        device_info,
        devices
    );
    Ok(())
}
