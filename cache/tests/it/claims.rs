//! `claims.txt` names the tests for each fault. Each named test must exist in its file and must not
//! be ignored.

use std::collections::BTreeSet;
use std::path::Path;

/// The numbers and letters of the faults.
const ROWS: &[&str] = &[
    "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17",
    "18", "19", "20", "a", "b", "c", "d", "e", "f",
];

/// A fault: its number, and the file and name of each test.
type Claim<'t> = (&'t str, Vec<(&'t str, &'t str)>);

fn claims(text: &str) -> Vec<Claim<'_>> {
    let mut claims: Vec<Claim<'_>> = vec![];
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        match (line.strip_prefix("  "), claims.last_mut()) {
            (Some(test), Some((_, tests))) => tests.extend(test.split_once(' ')),
            _ => claims.push((line.split(' ').next().unwrap_or_default(), vec![])),
        }
    }
    claims
}

/// Whether the file has a test of this name that runs: a function after `#[test]`, or a name given
/// to a macro that makes tests.
fn is_there(text: &str, name: &str) -> bool {
    let function = format!("fn {name}(");
    text.match_indices(&function).any(|(at, _)| {
        let before = text.get(..at).unwrap_or_default();
        let attributes = before.rfind("#[test]").and_then(|from| before.get(from..)).unwrap_or("}");
        // No other function ends between the attribute and this function, and no attribute ignores
        // it.
        !attributes.contains('}') && !attributes.contains("#[ignore")
    })
}

#[test]
fn every_fault_names_existing_tests() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(here.join("tests/claims.txt")).unwrap();
    let mut rows = BTreeSet::new();
    for (number, tests) in claims(&text) {
        assert!(ROWS.contains(&number) && rows.insert(number.to_owned()), "{number}");
        assert!(!tests.is_empty(), "{number} names no test");
        for (file, name) in tests {
            let text = std::fs::read_to_string(here.join(file))
                .unwrap_or_else(|e| panic!("{number}: {file}: {e}"));
            assert!(is_there(&text, name), "{number}: {file} has no test {name}");
        }
    }
    let missing: Vec<_> = ROWS.iter().filter(|row| !rows.contains(**row)).collect();
    assert!(missing.is_empty(), "no rows for {missing:?}");
}

#[test]
fn name_of_other_function_is_not_a_test() {
    let text = "#[test]\nfn real() {}\n\nfn helper() {}\n\n#[test]\n#[ignore = \"\"]\nfn \
        left_out() {}\n// fn gone(";
    assert!(is_there(text, "real"));
    for name in ["helper", "left_out", "gone", "rea", "missing"] {
        assert!(!is_there(text, name), "{name}");
    }
    let one = vec![("b.rs", "a"), ("d/e.rs", "c")];
    assert_eq!(claims("# x\n1 x\n  b.rs a\n  d/e.rs c\n"), [("1", one)]);
}
