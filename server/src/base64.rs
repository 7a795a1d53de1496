//! Base64 (RFC 4648, with padding), for embeddings and for hashes of the page.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes bytes as Base64.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let word = three
            .iter()
            .enumerate()
            .fold(0u32, |word, (i, &b)| word | u32::from(b) << (16 - 8 * i));
        for i in 0..4 {
            let letter =
                LETTERS.get((word >> (18 - 6 * i) & 63) as usize).map_or('=', |&b| char::from(b));
            text.push(if i <= three.len() { letter } else { '=' });
        }
    }
    text
}

/// Decodes Base64. Padding may be missing, and white space is skipped, as clients send it. `None`
/// if there is a different letter, bits are left over, or there is nothing.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches(|c: char| c.is_ascii_whitespace() || c == '=');
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut held) = (0u32, 0);
    for letter in text.bytes().filter(|b| !b.is_ascii_whitespace()) {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        (bits, held) = (bits << 6 | u32::from(value), held + 6);
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    (held < 6 && bits == 0 && !bytes.is_empty()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn base64_matches_rfc_4648_examples() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(super::encode(bytes.as_bytes()), text);
            assert_eq!(super::decode(text).unwrap_or_default(), bytes.as_bytes());
        }
        for wrong in ["", "=", "Z", "Zg=a", "Zm9v!", "Zh==", "é"] {
            assert_eq!(super::decode(wrong), None, "{wrong}");
        }
        assert_eq!(super::decode("Zm\n9v YmE"), Some(b"fooba".to_vec()));
    }
}
