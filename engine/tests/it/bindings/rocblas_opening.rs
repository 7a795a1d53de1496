//! rocBLAS is optional: without it there is one clear error.

use rocblas_sys::{Rocblas, SEARCH};

#[test]
fn missing_rocblas_error_names_library_places_and_package() {
    match Rocblas::open(Vec::new) {
        Ok(rocblas) => assert_eq!(rocblas.missing(), [""; 0]),
        Err(error) => {
            let text = error.to_string();
            for part in ["librocblas.so", "/opt/rocm/lib", SEARCH.package] {
                assert!(text.contains(part), "{text}");
            }
        }
    }
}
