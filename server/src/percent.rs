//! Percent encoding.

/// Decodes `%XX`, and `+` if it is form data.
pub fn decoded(value: &str, form: bool) -> Vec<u8> {
    let mut bytes = vec![];
    let mut rest = value.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code =
            after.get(..2).filter(|_| first == b'%').and_then(|two| std::str::from_utf8(two).ok());
        let (byte, used) = match code.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) => (byte, 2),
            None => (if form && first == b'+' { b' ' } else { first }, 0),
        };
        bytes.push(byte);
        rest = after.get(used..).unwrap_or_default();
    }
    bytes
}
