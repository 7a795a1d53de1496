pub(crate) mod batch_gemm;
pub(crate) mod experts;
pub(crate) mod gemm;
pub(crate) mod matvec;
pub(crate) mod small_gemm;
