//! Tests broken files. Each is refused with one line that names the fault and its position. Memory
//! is limited by the size of the file.

use std::fs;

use crate::it::support::exercise::one_line;
use crate::it::support::peak::peak_of;
use crate::it::support::writer::{Ten, Val, Writer, nested, strings, text};
use kjit_gguf::{Gguf, TypeId};

/// Maximum memory that opening may take in addition to the map. Directory entries are about three
/// times as large in memory as in the file. While a list grows, its old and its new storage exist
/// simultaneously.
fn allowance(file: usize) -> usize {
    16 * 1024 + 12 * file
}

fn refusal(case: &str, bytes: &[u8]) -> String {
    let (result, peak) = peak_of(|| Gguf::from_bytes("model.gguf", bytes).err());
    let e = result.unwrap_or_else(|| panic!("{case}: was read as a good file"));
    one_line(&e);
    assert!(
        peak <= allowance(bytes.len()),
        "{case}: {peak} bytes allocated for a file of {}",
        bytes.len()
    );
    e.to_string()
}

/// Asserts that each file is refused. A case has a name, the bytes, and words of the error.
#[track_caller]
fn refused(cases: &[(&str, Vec<u8>, &[&str])]) {
    for (case, bytes, wants) in cases {
        let line = refusal(case, bytes);
        for want in *wants {
            assert!(line.contains(want), "{case}: no {want:?} in: {line}");
        }
    }
}

fn with_key(key: &str, value: Val) -> Vec<u8> {
    Writer::sample().key(key, value).bytes()
}

/// The sample with one more tensor (2 × 32 of F32) that `change` modifies.
fn with_tensor(change: impl FnOnce(&mut Ten)) -> Vec<u8> {
    Writer::sample().tensor("odd", &[32, 2], 0).but(change).bytes()
}

#[test]
fn unmodified_sample_is_valid() {
    let bytes = Writer::sample().bytes();
    let (gguf, peak) = peak_of(|| Gguf::from_bytes("model.gguf", &bytes).unwrap());
    assert!(peak <= allowance(bytes.len()), "{peak} bytes for a file of {}", bytes.len());
    assert_eq!(gguf.tensors().len(), 3);
    assert!(Gguf::from_bytes("model.gguf", &with_tensor(|_| {})).is_ok());
}

#[test]
fn non_gguf_file_is_identified_by_its_content() {
    let safetensors =
        [&40u64.to_le_bytes()[..], b"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_o\":1}}"]
            .concat();
    refused(&[
        ("empty", vec![], &["empty (0 bytes)", "download"]),
        (
            "text",
            b"Once upon a time\nthere was".to_vec(),
            &["not a GGUF file", "the text \"Once upon a time\""],
        ),
        ("short text", b"GG".to_vec(), &["not a GGUF file", "the text \"GG\""]),
        ("web page", b"\n<!DOCTYPE html><html>".to_vec(), &["web page", "download"]),
        (
            "lfs pointer",
            b"version https://git-lfs.github.com/spec/v1\n".to_vec(),
            &["Git LFS pointer"],
        ),
        ("zip", b"PK\x03\x04\0\0\0\0".to_vec(), &["zip archive"]),
        ("gzip", b"\x1f\x8b\x08\0\0\0".to_vec(), &["compressed"]),
        ("old ggml", b"tjgg\x03\0\0\0".to_vec(), &["format before GGUF"]),
        ("safetensors", safetensors, &["safetensors"]),
        ("noise", vec![0, 1, 2, 3, 250, 6], &["00 01 02 03"]),
        ("zeros", vec![0; 4096], &["00 00 00 00"]),
    ]);
}

#[test]
fn other_versions_and_byte_orders_are_named() {
    let version = |v| Writer { version: v, ..Writer::sample() }.bytes();
    refused(&[
        ("version 0", version(0), &["version 0", "byte 4"]),
        ("version 1", version(1), &["version 1", "convert"]),
        ("version 4", version(4), &["version 4", "versions 2 and 3"]),
        ("big-endian", version(3u32.swap_bytes()), &["big-endian"]),
        ("magic reversed", Writer { magic: *b"FUGG", ..Writer::sample() }.bytes(), &["big-endian"]),
    ]);
    assert_eq!(Gguf::from_bytes("v2.gguf", &version(2)).unwrap().version(), 2);
}

#[test]
fn truncated_file_is_refused_and_position_is_named() {
    let w = Writer::sample();
    let (bytes, header) = (w.bytes(), w.header().len());
    for n in 0..bytes.len() {
        let line = refusal(&format!("cut to {n} bytes"), &bytes[..n]);
        if n >= 24 {
            assert!(line.contains("truncated"), "cut to {n}: {line}");
        }
        if n >= header {
            assert!(
                line.contains("tensor 'f16'")
                    || line.contains("tensor 'q4_0'")
                    || line.contains("tensor 'norm'"),
                "{line}"
            );
        }
    }
}

#[test]
fn absurd_counts_are_refused_before_allocation() {
    let huge = [u64::MAX, u64::MAX / 8 + 1, 1 << 62, 1 << 40, u64::from(u32::MAX), 100_000];
    for n in huge {
        let raw_string = Val::Raw(8, n.to_le_bytes().to_vec());
        let count = n.to_string();
        refused(&[
            (
                "tensors",
                Writer { n_tensors: Some(n), ..Writer::sample() }.bytes(),
                &["number of tensors", "byte 8", &count],
            ),
            (
                "keys",
                Writer { n_keys: Some(n), ..Writer::sample() }.bytes(),
                &["number of metadata keys", "byte 16", &count],
            ),
            ("string", with_key("s", raw_string), &["metadata key 's'", &count]),
            ("array of u8", with_key("a", Val::Array(0, n, vec![])), &["metadata key 'a'", &count]),
            (
                "array of u64",
                with_key("a", Val::Array(10, n, vec![])),
                &["metadata key 'a'", &count],
            ),
            (
                "array of strings",
                with_key("a", Val::Array(8, n, vec![])),
                &["metadata key 'a'", &count],
            ),
            (
                "array of arrays",
                with_key("a", Val::Array(9, n, vec![])),
                &["metadata key 'a'", &count],
            ),
            (
                "string in array",
                with_key("a", Val::Array(8, 1, n.to_le_bytes().into())),
                &["string 0", "'a'"],
            ),
        ]);
        let mut w = Writer { n_keys: Some(1), ..Writer::new() }.bytes();
        w.truncate(24);
        w.extend(n.to_le_bytes());
        w.extend([b'k'; 40]);
        refused(&[("key length", w, &["metadata key number 0", "byte 32", &count])]);
    }
    // This count is larger than the number of entries, but not larger than the bytes could hold.
    let one_more = |w: &Writer| (Some(w.keys.len() as u64 + 1), Some(w.tensors.len() as u64 + 1));
    let w = Writer::sample();
    let (n_keys, n_tensors) = one_more(&w);
    refusal("one key too many", &Writer { n_keys, ..w.clone() }.bytes());
    refusal("one tensor too many", &Writer { n_tensors, ..w }.bytes());
}

#[test]
fn bad_metadata_names_key_and_byte() {
    let twice = Writer::sample().key("a.u8", Val::U8(1)).bytes();
    let mut bad_utf8 = Writer::new().key("x", Val::U8(1));
    bad_utf8.keys[0].0 = b"ab\xffcd".to_vec();
    let long = "k".repeat(70_000);
    refused(&[
        (
            "type 13",
            with_key("k", Val::Raw(13, vec![0; 8])),
            &["metadata key 'k'", "value type 13", "byte"],
        ),
        ("type 2^32-1", with_key("k", Val::Raw(u32::MAX, vec![0; 8])), &["'k'", "4294967295"]),
        (
            "element type 99",
            with_key("k", Val::Array(99, 1, vec![0; 8])),
            &["'k'", "value type 99"],
        ),
        ("bool 2", with_key("k", Val::Bool(2)), &["'k'", "is 2", "0 or 1"]),
        ("twice", twice, &["'a.u8'", "twice", "byte"]),
        ("empty key", with_key("", Val::U8(1)), &["metadata key number 19", "empty", "byte"]),
        ("long key", with_key(&long, Val::U8(1)), &["metadata key number 19", "70000"]),
        (
            "key not UTF-8",
            bad_utf8.bytes(),
            &["metadata key number 0", "byte 24", "invalid UTF-8 at its byte 2"],
        ),
        (
            "arrays 5 deep",
            with_key("deep", nested(5)),
            &["'deep'", "nested more than 4 deep", "byte"],
        ),
        (
            "arrays 5000 deep",
            with_key("deep", nested(5000)),
            &["'deep'", "nested more than 4 deep"],
        ),
        (
            "a key of control characters",
            with_key(&"\x11".repeat(1000), Val::Bool(7)),
            &["u{11}…'", "is 7"],
        ),
        ("newlines in the key", with_key("a\nb\x1b[2J", Val::Bool(7)), &["'a\\nb\\u{1b}[2J'"]),
    ]);
    assert!(Gguf::from_bytes("x.gguf", &with_key("deep", nested(4))).is_ok());
}

#[test]
fn alignment_must_be_a_power_of_two_from_eight() {
    let with = |v: Val| Writer::new().key("general.alignment", v).bytes();
    for v in [0u32, 1, 4, 7, 12, 24, 48, u32::MAX] {
        refused(&[(
            "alignment",
            with(Val::U32(v)),
            &["'general.alignment'", &format!("is {v}"), "power of two"],
        )]);
    }
    refused(&[
        ("negative", with(Val::I32(-32)), &["'general.alignment'", "is -32"]),
        ("a string", with(text("32")), &["'general.alignment'", "a string", "an integer"]),
        ("a float", with(Val::F32(32.0)), &["'general.alignment'", "an f32"]),
        ("huge", with(Val::U64(1 << 63)), &["'general.alignment'", "9223372036854775808"]),
    ]);
    for v in [8u64, 64, 4096] {
        let w = Writer { alignment: v, ..Writer::new() }.key("general.alignment", Val::U64(v));
        let bytes = w.tensor("a", &[3], 0).tensor("b", &[3], 0).bytes();
        let gguf = Gguf::from_bytes("x.gguf", &bytes).unwrap();
        assert_eq!(gguf.alignment(), v);
        assert_eq!(gguf.tensor("b").unwrap().data.as_ptr().addr() % 8, 0);
        // Tensor a has 12 bytes; each byte of data is its offset plus one.
        assert_eq!(
            gguf.tensor("b").unwrap().data[0],
            (12u64.next_multiple_of(v) as u8).wrapping_add(1)
        );
    }
}

#[test]
fn bad_tensor_names_byte_of_its_entry() {
    let entry = |bytes: &[u8]| bytes.windows(3).position(|w| w == b"odd").expect("the entry") - 8;
    let at = format!("byte {}", entry(&with_tensor(|_| {})));
    let at = at.as_str();
    refused(&[
        ("no dimensions", with_tensor(|t| t.n_dims = Some(0)), &["'odd'", "0 dimensions", "byte"]),
        ("five dimensions", with_tensor(|t| t.n_dims = Some(5)), &["'odd'", "5 dimensions"]),
        (
            "2^32 dimensions",
            with_tensor(|t| t.n_dims = Some(u32::MAX)),
            &["'odd'", "4294967295 dimensions"],
        ),
        ("row of zero", with_tensor(|t| t.dims = vec![0, 2]), &["'odd'", at, "[0, 2]", "zero"]),
        ("no rows", with_tensor(|t| t.dims = vec![32, 0]), &["'odd'", at, "[32, 0]", "zero"]),
        ("2^128 elements", with_tensor(|t| t.dims = vec![1 << 32; 4]), &["'odd'", at, "too large"]),
        ("2^64 bytes", with_tensor(|t| t.dims = vec![1 << 62, 1]), &["'odd'", at, "too large"]),
        ("2^63 bytes", with_tensor(|t| t.dims = vec![1 << 61]), &["'odd'", at, "end past"]),
        (
            "half a block",
            with_tensor(|t| (t.ty, t.dims) = (2, vec![48, 2])),
            &["'odd'", at, "rows of 48", "Q4_0 blocks of 32"],
        ),
        (
            "misaligned",
            with_tensor(|t| t.offset += 1),
            &["'odd'", at, "multiple of the alignment 32"],
        ),
        ("behind the end", with_tensor(|t| t.offset += 32), &["'odd'", at, "end past", "download"]),
        ("far behind", with_tensor(|t| t.offset = u64::MAX - 31), &["'odd'", at, "end past"]),
        ("over another", with_tensor(|t| t.offset = 0), &["'norm' and 'odd' overlap", "byte"]),
        ("at the end of another", with_tensor(|t| t.offset -= 32), &["'f16' and 'odd' overlap"]),
        ("named twice", with_tensor(|t| t.name = b"norm".to_vec()), &["tensor 'norm'", "twice"]),
        ("no name", with_tensor(|t| t.name.clear()), &["tensor number 3", at, "empty"]),
        (
            "name not UTF-8",
            with_tensor(|t| t.name = vec![b'a', 0x80]),
            &["tensor number 3", at, "invalid UTF-8"],
        ),
    ]);
}

#[test]
fn unknown_tensor_type_leaves_vocabulary_readable() {
    for (id, wants) in
        [(77, ["id 77", "newer"]), (36, ["IQ4_NL_4_4", "removed"]), (4, ["Q4_2", "removed"])]
    {
        let gguf = Gguf::from_bytes("new.gguf", &with_tensor(|t| t.ty = id)).unwrap();
        assert_eq!(gguf.strings("tokenizer.ggml.tokens").unwrap().len(), 4);
        assert_eq!(gguf.tensor("norm").unwrap().data.len(), 33 * 4);
        assert!(gguf.summary().to_string().contains("size unknown"));
        for e in [gguf.tensor("odd").unwrap_err(), gguf.require_types(|_| true).unwrap_err()] {
            one_line(&e);
            let line = e.to_string();
            assert!(line.contains("'odd'") && wants.iter().all(|w| line.contains(w)), "{line}");
        }
    }
    // ggml knows the type and its size, but kjit cannot decode it. The tensor is listed. A reader
    // that needs to decode it names the type in its error.
    let gguf = Gguf::from_bytes("iq2.gguf", &with_tensor(|t| (t.ty, t.dims) = (16, vec![256, 3])))
        .unwrap();
    assert_eq!(gguf.tensor("odd").unwrap().data.len(), 3 * 66);
    let line = gguf.require_types(|t| t != TypeId(16)).unwrap_err().to_string();
    assert!(line.contains("'odd'") && line.contains("IQ2_XXS"), "{line}");
    assert!(gguf.require_types(|_| true).is_ok());
    let line = gguf.tensor("attn").unwrap_err().to_string();
    assert!(line.contains("tensor 'attn' is not in the file"), "{line}");
}

#[test]
fn unreadable_paths_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("folder.gguf");
    fs::create_dir(&folder).unwrap();
    let empty = dir.path().join("empty.gguf");
    fs::write(&empty, b"").unwrap();
    let newline = dir.path().join("a\nb.gguf");
    fs::write(&newline, b"text").unwrap();
    let cases = [
        (dir.path().join("none.gguf"), "cannot open: No such file"),
        (folder, "is a directory, not a model file: use the path of a .gguf file"),
        (empty, "is empty (0 bytes)"),
        (newline, "a\\nb.gguf"),
    ];
    for (path, want) in cases {
        let e = Gguf::open(&path).err().unwrap();
        one_line(&e);
        assert!(e.to_string().contains(want), "{e}");
    }
    let e = Gguf::open("/dev/null").err().unwrap().to_string();
    assert!(e.contains("/dev/null: is a pipe or device"), "{e}");
}

#[test]
fn large_directory_needs_proportional_memory() {
    let mut w = Writer::new();
    for i in 0..20_000 {
        w.keys.push((format!("k{i}").into_bytes(), Val::U8(1)));
        w = w.tensor(&format!("t{i}"), &[1], 0);
    }
    let tokens: Vec<Vec<u8>> = (0..100_000).map(|i| format!("{i}").into_bytes()).collect();
    let tokens: Vec<&[u8]> = tokens.iter().map(Vec::as_slice).collect();
    let small = w.header().len();
    let bytes = w.key("tokens", strings(&tokens)).bytes();
    let (gguf, peak) = peak_of(|| Gguf::from_bytes("x.gguf", &bytes).unwrap());
    // The vocabulary is not copied.
    assert!(peak <= allowance(small), "{peak} bytes for {small} bytes of names");
    assert_eq!(gguf.tensor("t19999").unwrap().data.len(), 4);
    assert_eq!(gguf.require_u32("k19999").unwrap(), 1);
    let (count, peak) = peak_of(|| gguf.strings("tokens").unwrap().map(<[u8]>::len).sum::<usize>());
    assert_eq!((count, peak), (488_890, 0), "iterating over a vocabulary copies nothing");
}
