//! Compares the dequantiser with values of an independent implementation, bit for bit.

use kjit_formats::format::{ALL, Format};
use serde_json::Value;

fn unhex(s: &str) -> Vec<u8> {
    s.as_bytes()
        .chunks(2)
        .map(|p| u8::from_str_radix(std::str::from_utf8(p).unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn formats_decode_to_oracle_bits() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/oracle/dequant.json");
    let oracle: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let types = oracle["types"].as_object().unwrap();
    let mut compared = 0;
    for format in ALL {
        let case = types.get(format.name).unwrap_or_else(|| panic!("the oracle has no {format}"));
        assert_eq!(case["type_id"], format.ggml_id, "{format}");
        assert_eq!(case["block_elems"], format.block_elems(), "{format}");
        assert_eq!(case["block_bytes"], format.block_bytes(), "{format}");
        for block in case["blocks"].as_array().unwrap() {
            let bytes = unhex(block["bytes"].as_str().unwrap());
            let want: Vec<u32> = unhex(block["f32_hex"].as_str().unwrap())
                .chunks(4)
                .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
                .collect();
            let mut got = vec![f32::NAN; want.len()];
            format.decode(&bytes, &mut got).unwrap();
            let got: Vec<u32> = got.iter().map(|v| v.to_bits()).collect();
            assert_eq!(got, want, "{format}");
            compared += want.len();
        }
    }
    assert!(compared > 3000, "only {compared} values compared");
}

#[test]
fn unknown_format_is_not_found() {
    assert_eq!(Format::by_name("Q8_K"), None);
    assert_eq!(Format::by_id(9999), None);
}
