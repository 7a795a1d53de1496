//! Tests with the installed compiler (Debian: libamdhip64-5 libhiprtc-builtins5 rocm-device-libs).

use hiprtc_sys::{Comgr, Hiprtc, SEARCH};

#[test]
fn hiprtc_opens_and_comgr_lists_architectures() {
    let hiprtc = match Hiprtc::open(Vec::new) {
        Ok(hiprtc) => hiprtc,
        Err(hip_sys::Error::NotFound { .. }) => {
            eprintln!("SKIPPED: no hiprtc here ({})", SEARCH.package);
            return;
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!(hiprtc.missing(), [""; 0]);
    let (mut major, mut minor) = (0, 0);
    // SAFETY: writes two ints.
    unsafe { hiprtc.hiprtcVersion(&mut major, &mut minor) }.unwrap();
    assert!(major > 0, "{major}.{minor}");
    let isas = Comgr::beside(hiprtc.opened()).unwrap().isas().unwrap();
    assert!(
        isas.iter().any(|i| i == "gfx90a") && isas.iter().all(|i| i.starts_with("gfx")),
        "{isas:?}"
    );
}
