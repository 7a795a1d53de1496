//! Compares whole files with the files that llama-quantize (llama.cpp 0c1e570) writes from the same
//! source.

use kjit_gguf::Gguf;
use kjit_quantize::{MIXTURES, Mixture, Options, Plan};
use sha2::{Digest, Sha256};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// SHA-256 of the file that `llama-quantize --allow-requantize` writes from SmolLM2's Q4_1 file.
const FILES: [(&str, &str); 14] = [
    ("F32", "6532799f494167f79cf75f7de685ad44fe6a1fe1a9cd41d7a2cd9603e64d4b9b"),
    ("F16", "a269e3181fcbb25046f99f64ba8d3c159165b211c2ff4ffca7ba1bb219d2ccd0"),
    ("BF16", "994c74505f109ce900a91772a38324b6635a16c1499111f1df4fb031233033d7"),
    ("Q8_0", "7b46609d11703c058397e5cfe4cc6e4b2508cb1eb4c80ddc472a5d421fbdb508"),
    ("Q4_0", "aa4256f3b46eb4add75ece1c0eeac1c6e4f1ec0c93e6fbe64fe1770f4ad09ae8"),
    ("Q5_0", "2f90a7511cf340144dda963a9fd73f708601517f0f8038d31c9069654526be44"),
    ("Q5_1", "d0fe3cbb20771ac9dab0f4dd5aaa259785158177f6503d4dca32f4495dcffaea"),
    ("Q2_K", "1733ab14bc423774519aa464e0d74e190617e877c9d0aa07a698b500d1788895"),
    ("Q3_K_M", "01045a8fee6c962e4f7b0f80dccf937503738f61f987c305378fd3f527eac9d4"),
    ("Q4_K_M", "dc0f3a02e821146247a0af6895adf9872124f368682cb110cb9ed09ff2a9f9f1"),
    ("Q5_K_M", "8170c7ef444692b3b2fe63459c326def0358807ef9be6e3cb020efb86a71015e"),
    ("Q6_K", "a969ae2086dd4945a7c61594bf72b2bcc3b7df8571c92aed8f213918673a7f80"),
    ("IQ4_NL", "b4d1842a26d8952bd7b609eb2062f7352aeb609c1ac5017542be18f83bc1776e"),
    ("IQ4_XS", "5a4caecc8f966f75ff79b8f1522f76aedd2381d0722df17254e212f01526c7ba"),
];

fn smollm2() -> Gguf {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.models");
    Gguf::open(models.join("SmolLM2-135M-Instruct.Q4_1.gguf"))
        .expect("scripts/fetch-test-models fetches the test models")
}

fn write(gguf: &Gguf, options: &Options, out: &Path) -> Vec<PathBuf> {
    let plan = Plan::of(gguf, options).unwrap();
    let imatrix = options.imatrix.as_ref();
    let mut progress = |_: &str, done: u64, all: u64| {
        assert!(done <= all);
        ControlFlow::Continue(())
    };
    plan.write(gguf, imatrix, out, false, 2, &mut progress).unwrap()
}

fn sha256(path: &Path) -> String {
    Sha256::digest(std::fs::read(path).unwrap()).iter().map(|b| format!("{b:02x}")).collect()
}

/// Whole files of the given mixtures.
fn equal(mixtures: &[&str]) {
    let (gguf, dir) = (smollm2(), tempfile::tempdir().unwrap());
    let mut wrong = vec![];
    for (name, want) in FILES.iter().filter(|(name, _)| mixtures.contains(name)) {
        let out = dir.path().join("out.gguf");
        let start = std::time::Instant::now();
        write(&gguf, &Options::new(Mixture::by_name(name).unwrap()), &out);
        eprintln!("{name}: {:.2} s", start.elapsed().as_secs_f64());
        if sha256(&out) != *want {
            wrong.push(*name);
        }
        std::fs::remove_file(out).unwrap();
    }
    assert!(wrong.is_empty(), "differs from llama-quantize: {wrong:?}");
}

/// This mixture has Q4_K, Q5_0 (the fallback), Q6_K and Q8_0.
#[test]
fn q4_k_m_file_equals_llama_quantize() {
    equal(&["Q4_K_M"]);
}

#[test]
#[ignore = "a minute of two cores; the rows of all formats are tested in bits.rs"]
fn all_mixture_files_equal_llama_quantize() {
    equal(&FILES.map(|(name, _)| name));
}

#[test]
fn planned_size_matches_file_for_every_mixture() {
    let gguf = smollm2();
    let mut sizes: Vec<(u64, &str)> = vec![];
    for mixture in MIXTURES.iter().filter(|m| m.name != "Q2_K_S") {
        let plan = Plan::of(&gguf, &Options::new(mixture)).unwrap();
        assert_eq!(plan.tensors.len(), gguf.tensors().len());
        sizes.push((plan.bytes(), mixture.name));
    }
    let size = |name| sizes.iter().find(|(_, n)| *n == name).unwrap().0;
    for (name, bytes) in [("F32", 539_845_696), ("Q4_K_M", 105_454_144), ("IQ4_XS", 91_312_192)] {
        assert_eq!(size(name), bytes, "{name}");
    }
    let error = Plan::of(&gguf, &Options::new(Mixture::by_name("q2_k_s").unwrap())).unwrap_err();
    assert!(error.to_string().contains("--imatrix"), "{error}");
}
