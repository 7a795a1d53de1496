//! Checks calls, codes and numbers against HIP's headers: the headers of Debian, or those in
//! KJIT_ROCM_HEADERS.

use super::check;
use hip_sys::{Hip, NEWER_CALLS, attribute, capture, codes, flags, prop};

/// Whether the headers are those of ROCm 6 or later.
fn newer(include: &std::path::Path) -> bool {
    let older = "#include <hip/hip_version.h>\n#if HIP_VERSION_MAJOR >= 6\n#error\n#endif\n";
    check::compile(include, older).is_err()
}

#[test]
fn hip_signatures_match_header() {
    let Some(include) = check::headers("hip/hip_runtime_api.h") else { return };
    let base = "#include <hip/hip_runtime_api.h>\n";
    // A header cannot check newer calls that it does not declare.
    let header = std::fs::read_to_string(include.join("hip/hip_runtime_api.h")).unwrap();
    let absent: Vec<&str> =
        NEWER_CALLS.iter().copied().filter(|n| !header.contains(&format!(" {n}("))).collect();
    if !absent.is_empty() {
        eprintln!("NOT CHECKED, newer than these headers: {}", absent.join(", "));
    }
    let text = check::assertions("hipError_t", Hip::SIGNATURES, &absent);
    // From ROCm 6 on this argument is const, which does not change the call.
    let copy = "check_hipMemcpyHtoDAsync)(hipDeviceptr_t, void*,";
    assert!(text.contains(copy));
    let newer = text.replace(copy, &copy.replace("void*", "void const*"));
    let compiles = |text: &str| check::compile(&include, &format!("{base}{text}"));
    compiles(&text).or_else(|_| compiles(&newer)).unwrap_or_else(|e| panic!("{e}"));
    // Tests that the check can fail: with an argument removed it does not compile.
    let wrong = text.replacen("(unsigned int)", "()", 1);
    assert_ne!(wrong, text);
    assert!(
        compiles(&wrong).is_err()
            && compiles(&wrong.replace(copy, &copy.replace("void*", "void const*"))).is_err()
    );
}

#[test]
fn hip_constants_match_header() {
    let Some(include) = check::headers("hip/hip_runtime_api.h") else { return };
    let mut text = String::from("#include <hip/hip_runtime_api.h>\n#include <cstddef>\n");
    let mut equal = |left: &str, right: u64| {
        text.push_str(&format!("static_assert((unsigned long long)({left}) == {right});\n"))
    };
    for row in codes::CODES {
        equal(row.name, u64::from(row.code));
    }
    macro_rules! constants {
        ($($module:ident: $($name:ident)*;)*) => { $($(equal(stringify!($name), u64::from($module::$name));)*)* };
    }
    constants! {
        attribute: hipDeviceAttributeClockRate hipDeviceAttributeCooperativeLaunch hipDeviceAttributeIntegrated
            hipDeviceAttributeL2CacheSize hipDeviceAttributeMultiprocessorCount hipDeviceAttributeWarpSize;
        capture: hipStreamCaptureModeThreadLocal;
        flags: hipStreamNonBlocking hipEventDefault hipEventDisableTiming hipDeviceMallocFinegrained hipHostMallocPortable hipHostMallocMapped hipHostMallocCoherent
            hipHostMallocWriteCombined hipHostRegisterPortable hipHostRegisterMapped;
    }
    equal("sizeof(hipUUID)", size_of::<hip_sys::hipUUID>() as u64);
    equal("sizeof(hipError_t)", 4);
    equal("sizeof(hipDeviceProp_t::gcnArchName)", prop::ARCH_NAME_LEN as u64);
    // From ROCm 6 on the newer layout has this name.
    let (size, offset) = if newer(&include) {
        (prop::SIZE_R0600, prop::ARCH_NAME_R0600)
    } else {
        (prop::SIZE_R0000, prop::ARCH_NAME_R0000)
    };
    equal("offsetof(hipDeviceProp_t, gcnArchName)", offset as u64);
    // The struct may grow at its end (ROCm 10: 1536 bytes). Our type must be large enough.
    let room = size_of::<hip_sys::hipDeviceProp_t>();
    text.push_str(&format!(
        "static_assert(sizeof(hipDeviceProp_t) >= {size} && sizeof(hipDeviceProp_t) <= {room});\n"
    ));
    check::compile(&include, &text).unwrap_or_else(|e| panic!("{e}"));
}
