//! Checks calls, codes and numbers against the headers of NCCL and RCCL, if installed (Debian 12
//! has neither).

use super::check;
use nccl_sys::{CODES, Nccl, ncclFloat32, ncclInProgress};
use std::path::Path;

/// The assertions after an included header, with its stream type. Old versions lack the last codes.
fn text(include: &str, stream: &str) -> String {
    let mut text = format!("{include}\ntypedef {stream} stream_t;\n");
    text.push_str(&check::assertions("ncclResult_t", Nccl::SIGNATURES, &[]));
    let mut equal =
        |name: &str, value: u32| text.push_str(&format!("static_assert({name} == {value});\n"));
    for row in CODES.iter().take(5) {
        equal(row.name, row.code);
    }
    equal("ncclFloat32", ncclFloat32);
    text.push_str("static_assert(sizeof(ncclUniqueId) == 128 && sizeof(ncclResult_t) == 4);\n");
    text.push_str("#if NCCL_VERSION_CODE >= 21400\n");
    text.push_str(&format!(
        "static_assert(ncclRemoteError == 6 && ncclInProgress == {ncclInProgress});\n#endif\n"
    ));
    text
}

fn check_against(folder: &Path, include: &str, stream: &str) {
    let text = text(include, stream);
    let check = |text: &str| check::compile(folder, text);
    check(&text).unwrap_or_else(|e| panic!("{e}"));
    assert!(check(&text.replacen("== 7)", "== 8)", 1)).is_err(), "the check cannot fail");
    assert!(check(&text.replacen("size_t", "int", 1)).is_err(), "the check of types cannot fail");
}

#[test]
fn rccl_bindings_match_header() {
    let Some(folder) = check::headers("rccl/rccl.h") else { return };
    check_against(&folder, "#include <rccl/rccl.h>", "hipStream_t");
}

#[test]
fn nccl_bindings_match_header() {
    let Some(folder) = check::headers("nccl.h") else { return };
    // The header includes a header of CUDA, from which it needs one type.
    let header = std::fs::read_to_string(folder.join("nccl.h")).unwrap();
    let lines: Vec<&str> = header.lines().filter(|l| !l.starts_with("#include <cuda")).collect();
    let alone = tempfile::tempdir().unwrap();
    std::fs::write(alone.path().join("nccl.h"), lines.join("\n")).unwrap();
    let cuda = "#include <cstddef>\nstruct CUstream_st;\ntypedef CUstream_st* cudaStream_t;\n";
    check_against(alone.path(), &format!("{cuda}#include <nccl.h>"), "cudaStream_t");
}
