//! The native half of the Python package `kjit`: the tensor class, and the operations by name. The
//! package's Python files have the signatures, the docstrings and the defaults.

mod buffer;
mod class;
mod convert;
mod creation;
mod devices;
mod dlpack;
mod explain;
mod functions;
mod kernels;
mod memory;
mod model;
mod networks;
mod stream;
mod streams;
mod tuning;
mod wait;

use pyo3::prelude::*;

#[pymodule]
fn _kjit(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<class::Tensor>()?;
    module.add_class::<convert::DType>()?;
    for dtype in kjit_ops::DTYPES {
        module.add(dtype.name(), convert::DType(dtype))?;
    }
    creation::add(module)?;
    devices::add(module)?;
    functions::add(module)?;
    kernels::add(module)?;
    networks::add(module)?;
    explain::add(module)?;
    memory::add(module)?;
    streams::add(module)?;
    tuning::add(module)?;
    model::add(module)?;
    dlpack::add(module)
}
