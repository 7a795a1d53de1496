//! Checks calls and codes against Debian's hiprtc and comgr headers.

use super::check;
use hiprtc_sys::{CODES, Comgr, Hiprtc};

#[test]
fn hiprtc_signatures_and_codes_match_header() {
    let Some(include) = check::headers("hip/hiprtc.h") else { return };
    let mut text = String::from("#include <hip/hiprtc.h>\n#include <cstddef>\n");
    text.push_str(&check::assertions("hiprtcResult", Hiprtc::SIGNATURES, &[]));
    for row in CODES {
        text.push_str(&format!("static_assert({} == {});\n", row.name, row.code));
    }
    // In ROCm 10 these string lists are const, which does not change the call.
    let newer = text.replace("char const**", "char const* const*");
    let compiles = |text: &str| check::compile(&include, text);
    compiles(&text).or_else(|_| compiles(&newer)).unwrap_or_else(|e| panic!("{e}"));
    let wrong = |text: &str| text.replacen("== 11", "== 12", 1);
    assert!(
        compiles(&wrong(&text)).is_err() && compiles(&wrong(&newer)).is_err(),
        "the check cannot fail"
    );
}

#[test]
fn comgr_signatures_match_header() {
    let Some((include, header)) =
        ["amd_comgr.h", "amd_comgr/amd_comgr.h"].iter().find_map(|h| Some((check::headers(h)?, h)))
    else {
        return;
    };
    let text = check::assertions("amd_comgr_status_t", Comgr::SIGNATURES, &[]);
    check::compile(&include, &format!("#include <{header}>\n{text}"))
        .unwrap_or_else(|e| panic!("{e}"));
}
