//! NCCL and RCCL are optional: without them there is one clear error.

use nccl_sys::{NCCL, Nccl, RCCL};

#[test]
fn missing_nccl_error_names_library_places_and_package() {
    for (search, name) in [(NCCL, "libnccl.so.2"), (RCCL, "librccl.so.1")] {
        match Nccl::open(&search, Vec::new) {
            Ok(nccl) => assert_eq!(nccl.missing(), [""; 0]),
            Err(error) => {
                let text = error.to_string();
                for part in [name, "/opt/rocm/lib", search.package] {
                    assert!(text.contains(part), "{text}");
                }
            }
        }
    }
}
