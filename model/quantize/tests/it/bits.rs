//! Compares rows with hashes of ggml's results (`scripts/quantize-goldens`).

use kjit_formats::format::{ALL, Format};
use kjit_quantize::{RowError, is_writable, quantize_rows};
use sha2::{Digest, Sha256};

const GOLDENS: &str = include_str!("../goldens.txt");
const KINDS: [&str; 9] =
    ["normal", "heavy", "outliers", "positive", "constant", "zeros", "sparse", "tiny", "digits"];

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / 16_777_216.0
    }

    pub fn normal(&mut self) -> f32 {
        (0..12).fold(-6.0, |sum, _| sum + self.unit())
    }
}

fn weight(kind: &str, i: usize, r: &mut Random) -> f32 {
    let (n, u) = (r.normal(), r.unit());
    match kind {
        "normal" => n * 0.02,
        "heavy" => n / (u + 0.01),
        "outliers" if u < 1.0 / 64.0 => n * 50.0,
        "outliers" => n,
        "positive" => n.abs(),
        "constant" => 0.375,
        "zeros" => 0.0,
        "sparse" if u < 0.125 && i / 32 % 3 != 1 => n,
        "sparse" => 0.0,
        "tiny" => n * 1e-15,
        _ => 0.7 * ((r.bits() >> 33) as i64 % 3 - 1) as f32,
    }
}

fn rows(kind: usize, count: usize, cols: usize, seed: u64) -> Vec<f32> {
    let mut r = Random(seed + kind as u64);
    (0..count * cols).map(|i| weight(KINDS[kind], i % cols, &mut r)).collect()
}

fn importance(cols: usize, seed: u64) -> Vec<f32> {
    let mut r = Random(seed + 100);
    let of = |u: f32| if u < 0.03 { 0.0 } else { u * u * 10.0 };
    (0..cols).map(|_| of(r.unit())).collect()
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(12).map(|b| format!("{b:02x}")).collect()
}

fn le(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The rows as bytes of a format.
pub fn quantized(format: &Format, cols: usize, x: &[f32], w: Option<&[f32]>) -> Vec<u8> {
    let mut out = vec![0xa5; x.len() / cols * format.row_bytes(cols).unwrap()];
    quantize_rows(format, cols, x, w, &mut out).unwrap();
    out
}

/// A number of the first line.
fn given(goldens: &str, name: &str) -> usize {
    let start = goldens.find(name).unwrap() + name.len();
    goldens[start..].split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn every_format_matches_ggml_with_and_without_importance() {
    let goldens = GOLDENS;
    let (count, cols) = (given(goldens, "rows="), given(goldens, "columns="));
    let seed = given(goldens, "seed=") as u64;
    let (columns, mut wrong, mut compared) = (importance(cols, seed), vec![], 0);
    let all: Vec<Vec<f32>> = (0..KINDS.len()).map(|k| rows(k, count, cols, seed)).collect();
    for line in goldens.lines().filter(|l| !l.starts_with('#')) {
        let [name, kind, how, want] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let w = (how == "some").then_some(&columns[..]);
        let x = KINDS.iter().position(|k| *k == kind).map_or(&columns, |k| &all[k]);
        let bytes = match Format::by_name(name) {
            Some(format) => quantized(format, cols, x, w),
            None => le(x),
        };
        compared += 1;
        if digest(&bytes) != want {
            wrong.push(format!("{name} {kind} {how}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {compared} differ: {wrong:?}", wrong.len());
    let writable = ALL.iter().filter(|f| is_writable(f) && f.name != "F32");
    for f in writable {
        assert!(goldens.contains(&format!("\n{} normal ", f.name)), "no golden of {f}");
    }
}

#[test]
fn non_finite_weight_error_names_row_and_column() {
    for format in ALL.iter().filter(|f| is_writable(f)) {
        let (mut x, mut out) = (vec![0.25; 1024], vec![0; 2 * format.row_bytes(512).unwrap()]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            x[600] = bad;
            let error = quantize_rows(format, 512, &x, None, &mut out).unwrap_err();
            assert!(matches!(error, RowError::NotFinite { row: 1, column: 88, .. }), "{error}");
        }
        x[600] = 3e38;
        let wide = matches!(format.name, "F32" | "BF16" | "MXFP4");
        match quantize_rows(format, 512, &x, None, &mut out) {
            Ok(()) => assert!(wide, "{format}"),
            Err(e) => assert!(matches!(e, RowError::TooLarge { row: 1, .. }) && !wide, "{e}"),
        }
    }
}

#[test]
fn mismatched_lengths_are_refused() {
    let q4 = Format::by_name("Q4_K").unwrap();
    let row = |cols, x: usize, out| {
        quantize_rows(q4, cols, &vec![0.0; x], None, &mut vec![0; out]).unwrap_err().to_string()
    };
    assert!(row(100, 100, 144).contains("not a whole number of Q4_K blocks of 256"));
    assert!(row(256, 256, 143).contains("143 bytes"));
    assert!(row(256, 300, 144).contains("300 weights"));
    assert!(row(0, 0, 0).contains("rows of 0"));
    let short = quantize_rows(q4, 256, &[0.0; 256], Some(&[1.0; 3]), &mut [0; 144]);
    assert!(short.unwrap_err().to_string().contains("3 numbers of importance"));
}
