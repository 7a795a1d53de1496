//! Checks calls, codes and numbers against rocBLAS's headers, if installed (Debian 12 has none).

use super::check;
use rocblas_sys::{CODES, Rocblas, datatype, operation, rocblas_gemm_algo_standard};

#[test]
fn rocblas_bindings_match_header() {
    let Some(include) = check::headers("rocblas/rocblas.h") else { return };
    let mut text = String::from("#include <rocblas/rocblas.h>\n");
    text.push_str(&check::assertions("rocblas_status", Rocblas::SIGNATURES, &[]));
    let mut equal =
        |name: &str, value: u32| text.push_str(&format!("static_assert({name} == {value});\n"));
    for row in CODES {
        equal(row.name, row.code);
    }
    equal("rocblas_operation_none", operation::rocblas_operation_none);
    equal("rocblas_operation_transpose", operation::rocblas_operation_transpose);
    equal("rocblas_datatype_f16_r", datatype::rocblas_datatype_f16_r);
    equal("rocblas_datatype_f32_r", datatype::rocblas_datatype_f32_r);
    equal("rocblas_gemm_algo_standard", rocblas_gemm_algo_standard);
    check::compile(&include, &text).unwrap_or_else(|e| panic!("{e}"));
    assert!(
        check::compile(&include, &text.replacen("== 111", "== 112", 1)).is_err(),
        "the check cannot fail"
    );
}
