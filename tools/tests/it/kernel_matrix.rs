//! The compile matrix: `kjit bench --kernels` against `tests/data/kernels/ARCH.csv`, which has the
//! registers, LDS, occupancy and machine code of each kernel on each AMD architecture, as compiled
//! by clang. If a change increases any of these values, the test fails until
//! `scripts/kernel-matrix` has updated the files. The difference is then visible in review.
//!
//! A part of the matrix is compiled; with `KJIT_TEST_ALL=compile` all of it (with `cargo test`,
//! because nextest ends a test after its time limit).

use kjit_engine::arch::ARCHS;
use kjit_engine::{Target, Vendor};
use kjit_kernel_cases::matrix::representative;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// One kernel of each family, at the sizes with register counts nearest to the limits.
const PART: &str = "^(repack Q6_K|embed Q4_K|matvec (Q4_K|Q8_0|F16) (norm|gated)|matvec \
    Q4_K Q4_K Q6_K|matvec Q6_K × 8|experts Q4_K|quantize Quantised.*Norm|attend (32/8 × 128|8/4 \
    × 256|16/4)|latent_flash 128|indexer_scores|top_keys|rope_kv 32/8|flash (32/8 × 128|8/4 \
    × 256|16/4)|norm_rows Rms|softmax|combine Silu|map|rows|route|expert_sum|argmax|draw|gemm \
    (Q4_K|F16) (·|gated)|gemm Q4_K Q4_K|gemm Q8_0 experts|tiles 4096 Norm|moe)";

type Row = BTreeMap<String, String>;

fn table(text: &str) -> BTreeMap<String, Row> {
    let mut lines = text.lines().map(|l| l.split(',').map(str::to_owned));
    let names: Vec<String> = lines.next().map(Iterator::collect).unwrap_or_default();
    let rows = lines.map(|cells| names.iter().cloned().zip(cells).collect::<Row>());
    rows.map(|row| (row["kernel"].clone(), row)).collect()
}

fn golden(arch: &str) -> BTreeMap<String, Row> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/data/kernels/{arch}.csv"));
    table(&std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

fn amd() -> impl Iterator<Item = &'static str> {
    ARCHS.iter().filter(|a| a.vendor == Vendor::Amd).map(|a| a.id)
}

#[test]
fn matrix_has_every_kernel_without_spills_or_scratch() {
    for arch in amd() {
        let golden = golden(arch);
        let mut wrong = vec![];
        let samples = representative(&Target::parse(arch).unwrap()).unwrap();
        for sample in &samples {
            let Some(row) = golden.get(&sample.name) else {
                wrong.push(format!(
                    "{}: not in the file (scripts/kernel-matrix writes it)",
                    sample.name
                ));
                continue;
            };
            let number = |name: &str| row[name].parse::<u64>().unwrap();
            let wave = u64::from(sample.kernel.options.wave);
            if number("spills") + number("scratch") > 0
                || number("occupancy_percent") == 0
                || number("wave") != wave
            {
                wrong.push(format!("{row:?}"));
            }
        }
        assert!(wrong.is_empty(), "{arch}:\n{}", wrong.join("\n"));
        assert_eq!(
            golden.len(),
            samples.len(),
            "{arch}: kernels in the file that are no more (scripts/kernel-matrix)"
        );
    }
}

/// Compiles the part that the environment selects and compares it with the files.
fn hold(archs: &[&str]) {
    let all = kjit_tests::all("compile");
    // The cache is kept between runs, so that only changed kernels are compiled.
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernel-matrix");
    for arch in archs {
        let mut kjit = Command::new(env!("CARGO_BIN_EXE_kjit"));
        kjit.args(["bench", "--kernels", "--arch", arch, "--compiler", "clang", "-o", "csv"]);
        if !all {
            kjit.args(["--filter", PART]);
        }
        let output = kjit.env("KJIT_CACHE_DIR", &cache).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let measured = table(&String::from_utf8(output.stdout).unwrap());
        if measured.is_empty() && (said.contains("no compiler") || said.contains("does not know")) {
            let why = said.lines().next().unwrap_or_default();
            eprintln!(
                "SKIPPED: nothing was compiled for {arch}: \
                 {why} (scripts/fetch-clang fetches one that knows all; KJIT_CLANG names it)"
            );
            continue;
        }
        assert!(output.status.success(), "{arch}: {said}");
        assert!(measured.len() >= 35, "{arch}: only {} kernels", measured.len());
        let golden = golden(arch);
        let (mut wrong, mut by_another) = (vec![], None);
        for (name, row) in &measured {
            if row["spills"] != "0" || row["scratch"] != "0" {
                wrong.push(format!(
                    "{name}: {} registers spilled, {} bytes of scratch",
                    row["spills"], row["scratch"]
                ));
            }
            let Some(want) = golden.get(name) else {
                panic!("{arch}: {name} is not in the file (scripts/kernel-matrix)")
            };
            if want["compiler"] != row["compiler"] {
                by_another = Some((&row["compiler"], &want["compiler"]));
                continue;
            }
            for (column, want) in want.iter().filter(|(column, _)| *column != "seconds") {
                if row[column] != *want {
                    wrong.push(format!("{name}: {column} {} became {}", want, row[column]));
                }
            }
        }
        match by_another {
            Some((here, there)) => {
                eprintln!(
                    "NOT COMPARED: {arch} was compiled by {here}, the file is of {there}; \
                     spills were looked for"
                )
            }
            None => eprintln!("{} kernels for {arch} as the file has them", measured.len()),
        }
        assert!(
            wrong.is_empty(),
            "{arch}: if it is meant, run scripts/kernel-matrix and commit what it changes:\n{}",
            wrong.join("\n")
        );
    }
}

#[test]
fn mi300_and_rx_7900_kernels_match_the_matrix() {
    hold(&["gfx942", "gfx1100"]);
}

#[test]
fn rx_9070_kernels_match_the_matrix() {
    hold(&["gfx1201"]);
}

#[test]
#[ignore = "20 minutes: \
    KJIT_TEST_ALL=compile cargo test -p kjit --test it kernel_matrix -- --include-ignored"]
fn all_architectures_match_the_matrix() {
    assert!(kjit_tests::all("compile"), "set KJIT_TEST_ALL=compile");
    hold(&amd().collect::<Vec<_>>());
}
