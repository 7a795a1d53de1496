//! Calls every accessor of a file. None may panic, regardless of the bytes. The property tests and
//! the fuzz target use it.

use kjit_gguf::{Error, Gguf, Value};

/// Opens `bytes`. If that succeeds, calls every accessor for everything in the file. An error must
/// be one line.
pub fn exercise(bytes: &[u8]) {
    let gguf = match Gguf::from_bytes("fuzz.gguf", bytes) {
        Ok(gguf) => gguf,
        Err(e) => return one_line(&e),
    };
    let keys: Vec<String> = gguf.keys().map(str::to_owned).collect();
    for key in keys.iter().map(String::as_str).chain(["", "no.such.key"]) {
        check(gguf.opt_u32(key));
        check(gguf.opt_u64(key));
        check(gguf.opt_i32(key));
        check(gguf.opt_f32(key));
        check(gguf.opt_bool(key));
        check(gguf.opt_str(key));
        check(gguf.opt_strs(key));
        check(gguf.opt_f32s(key));
        check(gguf.opt_i32s(key));
        check(gguf.opt_u32s(key));
        check(gguf.opt_bools(key));
        check(gguf.opt_per_layer_u32(key, 3));
        check(gguf.require_u32(key));
        match gguf.opt_strings(key) {
            Ok(Some(strings)) => {
                let len = strings.len();
                assert_eq!(strings.count(), len, "the iterator returns every counted string");
            }
            Ok(None) => {}
            Err(e) => one_line(&e),
        }
        match gguf.value(key) {
            Some(v) => walk(&v),
            None => assert!(!gguf.contains(key), "a key of an unchanged file has a value"),
        }
    }
    for info in gguf.tensors() {
        assert!(!info.dims().is_empty() && info.elements() > 0);
        match gguf.tensor(info.name()) {
            Ok(t) => {
                let rows: u64 = t.dims.iter().skip(1).product();
                assert_eq!(Some(t.data.len() as u64), t.ty.row_bytes(t.dims[0]).map(|b| b * rows));
                // Reading the first and the last byte shows that they are inside the map.
                assert!(std::hint::black_box(t.data.first().zip(t.data.last())).is_some());
            }
            Err(e) => one_line(&e),
        }
    }
    check(gguf.tensor("no such tensor").map(|_| ()));
    check(gguf.require_types(|t| t.ggml().is_some()));
    assert!(!gguf.summary().to_string().is_empty());
}

fn walk(value: &Value<'_>) {
    if let Value::Array(array) = value {
        let mut n = 0;
        for v in array.iter() {
            n += 1;
            if let Some(v) = v {
                walk(&v);
            }
        }
        assert_eq!(n, array.len(), "the iterator returns every counted element");
    }
}

fn check<T>(result: Result<T, Error>) {
    if let Err(e) = result {
        one_line(&e);
    }
}

/// Asserts that an error is one short line that names the file.
pub fn one_line(e: &Error) {
    let line = e.to_string();
    assert!(!line.chars().any(char::is_control), "control characters in {line:?}");
    assert!(line.chars().count() < 600, "{} characters in {line:?}", line.chars().count());
    assert!(line.contains(".gguf"), "no file in {line:?}");
}
