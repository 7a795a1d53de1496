//! Tensors and operations on NVIDIA and AMD GPUs and on the CPU. Inference only: no gradients.
//!
//! A [`Tensor`] is immutable and lazy. An operation creates a node of a graph, and a tensor is
//! computed when it is read; chains of element-wise operations run in one pass. docs/operations.md
//! lists the operations, and features that are missing.
//!
//! ```
//! use kjit_ops::{DType, Device, Tensor};
//! let x = Tensor::arange(0.into(), 6.into(), 1.into(), Some(DType::F32), &Device::Cpu)?;
//! let y = x.reshape(&[2, 3])?.sum(Some(&[1]), false, None)?;
//! assert_eq!(y.to_scalars()?.iter().map(|v| v.float()).collect::<Vec<_>>(), [3.0, 12.0]);
//! # Ok::<(), kjit_ops::Error>(())
//! ```
//!
//! Modules:
//! | module | contents |
//! |---|---|
//! | `dtype`, `scalar`, `shape`, `error` | types of elements, promotion; values; shapes; errors |
//! | `element` | the element-wise primitives by name |
//! | `node`, `view` | the graph of primitives, hash-consed; views as affine index functions |
//! | `expr`, `complex` | arithmetic over nodes; complex numbers as pairs |
//! | `lower`, `program`, `fuse` | grouping, and the bytecode of a group; fusion with products and folds |
//! | `recipe` | the structure of a group, as a cache key |
//! | `contract` | products over several axes, by strides |
//! | `eval` | computes a node, each at most once |
//! | `cpu` | the bytecode over tiles of 1,024 elements; folds, products, sorting |
//! | `gpu` | the bytecode rendered as a kernel; launches |
//! | `dlpack` | tensors from and to the structs of DLPack |
//! | `foreign` | memory of a GPU that other libraries share |
//! | `pool` | memory pools, page-locked memory |
//! | `stream` | streams and events |
//! | `tuning` | measured tiles of products |
//! | `explain` | the operations of each launch |
//! | `arith`, `moves`, `index`, `reduce`, `search`, `create`, `linalg`, `nn`, `conv`, `losses` | the operations |

#![cfg_attr(not(test), deny(unsafe_code))]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing
    )
)]

mod arith;
mod complex;
mod contract;
mod conv;
mod cpu;
mod create;
pub mod device;
pub mod dlpack;
mod dtype;
mod element;
mod error;
mod eval;
mod explain;
mod expr;
mod expressions;
mod foreign;
mod fuse;
mod gpu;
mod hash;
mod index;
mod kernels;
mod linalg;
mod losses;
mod lower;
mod memory;
mod moves;
mod nn;
mod node;
pub mod pool;
mod program;
mod promotion;
mod random;
mod recipe;
mod reduce;
mod scalar;
mod search;
mod shape;
mod stream;
mod tensor;
pub mod tuning;
mod view;

pub use conv::Windows;
pub use create::manual_seed;
pub use device::{Device, Info};
pub use dtype::{DTYPES, DType, Kind};
pub use element::{BinOp, FoldOp, UnOp};
pub use error::{Error, Result};
pub use explain::{Explanation, Part, Role};
pub use expressions::{ElementwiseKernel, ReductionKernel};
pub use foreign::GpuView;
pub use gpu::{Gpu, order_jobs};
pub use index::Index;
pub use kernels::{KernelArg, RawKernel};
pub use losses::Reduction;
pub use memory::Keep;
pub use promotion::promote;
pub use scalar::Scalar;
pub use search::Unique;
pub use shape::{axes, axis, broadcast};
pub use stream::{Event, Stream};
pub use tensor::{HostView, Tensor};

// Unit and integration tests are one program. The latter see the crate as its users do.
#[cfg(test)]
extern crate self as kjit_ops;
#[cfg(test)]
#[path = "../tests/it/main.rs"]
mod it;
