//! Checks `kernel_src/src/issue.tsv` against the current kernels: the machine code of a few
//! products (all with `KJIT_TEST_ALL=emulate`) is compiled and counted again, and every row names a
//! code object of the compile matrix.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

const CLANG: &str = "/usr/bin/clang-19";

/// One product for each family of vector units, each with another format.
const FEW: &[(&str, &str)] = &[
    ("gfx1100", "matvec Q4_K norm"),
    ("gfx942", "matvec Q8_0 norm"),
    ("gfx900", "matvec F16 norm"),
];

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The lines of the file, by architecture and product.
fn rows() -> BTreeMap<(String, String), String> {
    let text = std::fs::read_to_string(repository().join("kernel_src/src/issue.tsv")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| (key(line), line.to_owned())).collect()
}

fn key(line: &str) -> (String, String) {
    let mut cells = line.split('\t');
    (cells.next().unwrap().to_owned(), cells.next().unwrap().to_owned())
}

#[test]
fn executed_instructions_match_stored_counts() {
    let rows = rows();
    let all = kjit_tests::all("emulate");
    if let Err(why) = gfxemu::llvm::available() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    if !Path::new(CLANG).exists() {
        eprintln!("SKIPPED: no {CLANG}, which the counts are of (Debian: clang-19 lld-19)");
        return;
    }
    if !all {
        let names: Vec<String> =
            FEW.iter().map(|(arch, name)| format!("{name} of {arch}")).collect();
        eprintln!(
            "SKIPPED: all {} counts but those of {} (KJIT_TEST_ALL=emulate)",
            rows.len(),
            names.join(", ")
        );
    }
    let archs: Vec<&str> = if all {
        let mut archs: Vec<&str> = rows.keys().map(|(arch, _)| arch.as_str()).collect();
        archs.dedup();
        archs
    } else {
        FEW.iter().map(|(arch, _)| *arch).collect()
    };
    let (mut counted, mut wrong) = (0, vec![]);
    for arch in archs {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kjit-bounds"));
        command.arg("count");
        if let Some((_, name)) = FEW.iter().find(|(few, _)| !all && *few == arch) {
            command.args(["--only", name]);
        }
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("issue-counts");
        let output = command
            .arg(arch)
            .env("KJIT_CLANG", CLANG)
            .env("KJIT_CACHE_DIR", cache)
            .output()
            .unwrap();
        assert!(output.status.success(), "{arch}: {}", String::from_utf8_lossy(&output.stderr));
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            counted += 1;
            match rows.get(&key(line)) {
                Some(row) if row == line => {}
                Some(row) => wrong.push(format!("{row}\n  became\n{line}")),
                None => wrong.push(format!("{line}\n  is not in the table")),
            }
        }
    }
    assert_eq!(counted, if all { rows.len() } else { FEW.len() });
    assert!(
        wrong.is_empty(),
        "if it is meant, run scripts/issue-bounds and commit what it changes:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn every_count_belongs_to_a_matrix_code_object() {
    let rows = rows();
    let mut stale = vec![];
    let mut files = BTreeMap::new();
    for ((arch, name), line) in &rows {
        let table: &BTreeMap<String, [String; 3]> =
            files.entry(arch.clone()).or_insert_with(|| matrix(arch));
        let counted: Vec<&str> = line.split('\t').skip(2).take(3).collect();
        match table.get(name) {
            Some(kernel) if kernel.iter().map(String::as_str).eq(counted.iter().copied()) => {}
            other => stale.push(format!(
                "{arch} {name}: bytes, bytes to move, wave {counted:?}, compiled {other:?}"
            )),
        }
    }
    assert!(rows.len() > 300, "{} rows", rows.len());
    assert!(stale.is_empty(), "run scripts/issue-bounds:\n{}", stale.join("\n"));
}

/// Bytes of the code object, bytes moved and wave width of an architecture's kernels, by name.
fn matrix(arch: &str) -> BTreeMap<String, [String; 3]> {
    let text = std::fs::read_to_string(repository().join(format!("tests/data/kernels/{arch}.csv")))
        .unwrap();
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = |wanted: &str| names.iter().position(|name| *name == wanted).unwrap();
    let (kernel, columns) =
        (column("kernel"), [column("bytes"), column("moves_bytes"), column("wave")]);
    let cells = lines.map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
    cells.map(|cells| (cells[kernel].clone(), columns.map(|c| cells[c].clone()))).collect()
}
