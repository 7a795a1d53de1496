//! LLVM's text of an instruction: a name, operands between commas, and modifiers after the last
//! operand.

/// A parsed instruction: `v_add_f32_e64 v1, |v2|, -s3 clamp`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Text {
    /// The mnemonic, with its encoding suffix.
    pub name: String,
    /// The operands, with their modifiers `-x` and `|x|`.
    pub operands: Vec<String>,
    /// Modifiers after the operands: `offset:16`, `glc`, `op_sel:[0,1]`.
    pub modifiers: Vec<String>,
}

/// Splits `text` at `separator`s outside brackets.
fn parts(text: &str, separator: char) -> Vec<&str> {
    let (mut depth, mut from, mut out) = (0, 0, Vec::new());
    for (i, c) in text.char_indices() {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth -= 1,
            _ if c == separator && depth == 0 => {
                out.push(text[from..i].trim());
                from = i + 1;
            }
            _ => {}
        }
    }
    out.push(text[from..].trim());
    out.retain(|part| !part.is_empty());
    out
}

impl Text {
    /// Parses a line of LLVM's disassembly.
    pub fn parse(line: &str) -> Text {
        let (name, rest) = line.trim().split_once(char::is_whitespace).unwrap_or((line.trim(), ""));
        let mut text = Text { name: name.to_string(), ..Text::default() };
        for part in parts(rest, ',') {
            let mut words = parts(part, ' ').into_iter().map(String::from);
            text.operands.extend(words.next());
            text.modifiers.extend(words);
        }
        text
    }

    /// Whether `word` is a modifier.
    pub fn has(&self, word: &str) -> bool {
        self.modifiers.iter().any(|m| m == word)
    }

    /// The value of the modifier `key:`.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.modifiers.iter().find_map(|m| m.strip_prefix(key)?.strip_prefix(':'))
    }

    /// The number after the modifier `key:`, or 0 without it.
    pub fn number(&self, key: &str) -> Result<i64, String> {
        self.value(key).map_or(Ok(0), |text| {
            integer(text).ok_or_else(|| format!("{key}:{text} is not a number"))
        })
    }

    /// The list after the modifier `key:[…]`.
    pub fn list(&self, key: &str) -> Option<Vec<u32>> {
        let inside = self.value(key)?.strip_prefix('[')?.strip_suffix(']')?;
        inside.split(',').map(|n| n.trim().parse().ok()).collect()
    }

    /// Operand `i`. The error names a missing operand.
    pub fn operand(&self, i: usize) -> Result<&str, String> {
        self.operands.get(i).map(String::as_str).ok_or_else(|| format!("operand {i} is missing"))
    }
}

/// Parses `17`, `-3` or `0x1f`.
pub fn integer(text: &str) -> Option<i64> {
    match (text.strip_prefix("0x"), text.strip_prefix("-0x")) {
        (Some(hex), _) => u64::from_str_radix(hex, 16).ok().map(|n| n as i64),
        (_, Some(hex)) => i64::from_str_radix(hex, 16).ok().map(|n| -n),
        _ => text.parse().ok(),
    }
}
