//! README.md says which test shows what; this holds it to that: every test that the table names is
//! there, under that name, in that file, and runs.

use std::collections::BTreeSet;
use std::path::Path;

/// The numbered faults, and the lettered ones beside them.
const ROWS: &[&str] = &[
    "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17",
    "18", "19", "20", "a", "b", "c", "d", "e", "f",
];

/// `[`name`](file)` in a line, wherever it stands.
fn named(line: &str) -> Vec<(String, String)> {
    let links = line.split("[`").skip(1);
    links
        .filter_map(|link| {
            let (name, rest) = link.split_once("`](")?;
            Some((name.to_owned(), rest.split_once(')')?.0.to_owned()))
        })
        .collect()
}

/// Whether the file has a test of that name that is run: a function after `#[test]`, or a name
/// given to a macro that makes one.
fn is_there(text: &str, name: &str) -> bool {
    let function = format!("fn {name}(");
    text.match_indices(&function).any(|(at, _)| {
        let before = text.get(..at).unwrap_or_default();
        let attributes = before.rfind("#[test]").and_then(|from| before.get(from..)).unwrap_or("}");
        // Between the attribute and the function there is no end of another one, and nothing that
        // leaves it out.
        !attributes.contains('}') && !attributes.contains("#[ignore")
    })
}

#[test]
fn every_fault_of_the_readmes_table_names_a_test_that_is_there() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(here.join("README.md")).unwrap();
    let mut rows = BTreeSet::new();
    for line in readme.lines().filter(|line| line.starts_with("| ")) {
        let number = line.split('|').nth(1).unwrap_or_default().trim();
        if !ROWS.contains(&number) {
            continue;
        }
        assert!(rows.insert(number.to_owned()), "{number} is there twice");
        let tests = named(line);
        assert!(!tests.is_empty(), "{number} names no test");
        for (name, file) in tests {
            let text = std::fs::read_to_string(here.join(&file))
                .unwrap_or_else(|e| panic!("{number}: {file}: {e}"));
            assert!(is_there(&text, &name), "{number}: {file} has no test {name}");
        }
    }
    let missing: Vec<_> = ROWS.iter().filter(|row| !rows.contains(**row)).collect();
    assert!(missing.is_empty(), "no rows for {missing:?}");
}

#[test]
fn a_name_that_is_no_test_is_not_taken_for_one() {
    let text = "#[test]\nfn real() {}\n\nfn helper() {}\n\n#[test]\n#[ignore = \"\"]\nfn \
        left_out() {}\n// fn gone(";
    assert!(is_there(text, "real"));
    for name in ["helper", "left_out", "gone", "rea", "missing"] {
        assert!(!is_there(text, name), "{name}");
    }
    assert_eq!(
        named("| 1 | x | [`a`](b.rs), [`c`](d/e.rs) |"),
        [("a", "b.rs"), ("c", "d/e.rs")].map(|(a, b)| (a.into(), b.into()))
    );
}
