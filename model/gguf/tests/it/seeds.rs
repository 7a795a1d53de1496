//! The seeds of the fuzz target: valid files from the test writer. Each has a feature that the
//! others do not have.

use std::path::PathBuf;
use std::{env, fs};

use crate::it::support::exercise::exercise;
use crate::it::support::writer::{Val, Writer, nested, strings, text};

fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let aligned = Writer { alignment: 8, ..Writer::new() }.key("general.alignment", Val::U64(8));
    vec![
        ("sample", Writer::sample().bytes()),
        ("empty", Writer::new().bytes()),
        (
            "version2",
            Writer { version: 2, ..Writer::new() }.key("general.architecture", text("x")).bytes(),
        ),
        ("aligned", aligned.tensor("a", &[3], 0).tensor("b", &[2, 2, 2, 2], 1).bytes()),
        ("nested", Writer::new().key("n", nested(4)).key("s", strings(&[b"", b"abc"])).bytes()),
        ("unknown_type", Writer::new().tensor("t", &[8], 0).but(|t| t.ty = 77).bytes()),
        (
            "part",
            Writer::new().key("split.no", Val::U16(0)).key("split.count", Val::U16(1)).bytes(),
        ),
    ]
}

#[test]
fn stored_seeds_equal_writer_output() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/gguf");
    for (name, bytes) in seeds() {
        exercise(&bytes);
        let path = folder.join(name);
        if env::var_os("KJIT_TEST_OUT").is_some() {
            fs::write(&path, &bytes).unwrap();
        }
        let kept = fs::read(&path).unwrap_or_default();
        assert!(
            kept == bytes,
            "{} differs: run this test with KJIT_TEST_OUT=1 and commit",
            path.display()
        );
    }
}
