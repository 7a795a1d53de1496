//! Identifies the pre-tokenizer of a `tokenizer.json`. Regular expressions are compared as text. An
//! unknown one is an error; it is not approximated.

use super::json::short;
use serde_json::Value;

/// GPT-2's expression, the default of `ByteLevel`.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Matches single digits.
const DIGITS: &str = r"\p{N}";
/// Expression of Llama 3.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Expression of Qwen 2 and 3.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Expression of Mistral NeMo.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The expressions in order, whether whole pieces take precedence over merges, and the name in
/// `tokenizer.ggml.pre`.
const KNOWN: &[(&[&str], bool, &str)] = &[
    (&[GPT2], false, "gpt-2"),
    (&[DIGITS, GPT2], false, "smollm"),
    (&[LLAMA3], true, "llama-bpe"),
    (&[LLAMA3], false, "dbrx"),
    (&[QWEN2], false, "qwen2"),
    (&[TEKKEN], true, "tekken"),
];

/// The name of a byte-level pre-tokenizer; the error describes an unknown one.
pub fn byte_level(pre: Option<&Value>, ignore_merges: bool) -> Result<&'static str, String> {
    let whole = || pre.map_or_else(|| "nothing".to_owned(), short);
    let mut expressions = vec![];
    let bytes = pre.map(|pre| read(pre, &mut expressions)).transpose()?.unwrap_or(false);
    let known = KNOWN
        .iter()
        .find(|(list, whole, _)| bytes && *list == expressions && *whole == ignore_merges);
    match (known, &expressions[..]) {
        (Some((_, _, name)), _) => Ok(name),
        // The error names only the expression, which identifies the pre-tokenizer; the rest of the
        // entry is long.
        (None, [one]) if bytes => Err(format!("{one} (ignore_merges: {ignore_merges})")),
        (None, _) => Err(whole()),
    }
}

/// Collects the expressions of a pre-tokenizer. Returns whether it converts bytes to letters.
fn read<'a>(pre: &'a Value, expressions: &mut Vec<&'a str>) -> Result<bool, String> {
    let flag = |key: &str, default: bool| pre.get(key).map_or(Some(default), Value::as_bool);
    match pre.get("type").and_then(Value::as_str) {
        Some("Sequence") => {
            let list =
                pre.get("pretokenizers").and_then(Value::as_array).ok_or_else(|| short(pre))?;
            let mut bytes = false;
            for one in list {
                // After that conversion, expressions would match the converted letters instead of
                // the text.
                if bytes {
                    return Err(short(pre));
                }
                bytes = read(one, expressions)?;
            }
            Ok(bytes)
        }
        Some("ByteLevel") if flag("add_prefix_space", true) == Some(false) => {
            if flag("use_regex", true) == Some(true) {
                expressions.push(GPT2);
            }
            Ok(true)
        }
        Some("Digits") if flag("individual_digits", false) == Some(true) => {
            expressions.push(DIGITS);
            Ok(false)
        }
        Some("Split") => {
            let how = (pre.get("behavior").and_then(Value::as_str), flag("invert", false));
            // Matches become pieces. These expressions match every character, so no text is lost
            // between matches.
            let alone =
                matches!(how, (Some("Isolated"), Some(false)) | (Some("Removed"), Some(true)));
            let text =
                pre.get("pattern").and_then(|pattern| pattern.get("Regex")).and_then(Value::as_str);
            expressions.push(text.filter(|_| alone).ok_or_else(|| short(pre))?);
            Ok(false)
        }
        _ => Err(short(pre)),
    }
}

/// How a SentencePiece-like vocabulary treats spaces: whether a space is added before a text.
/// Spaces become U+2581 in the normalizer or the pre-tokenizer. The error describes an unsupported
/// part.
pub fn spaces(
    normalizer: Option<&Value>,
    pre: Option<&Value>,
) -> Result<bool, (&'static str, String)> {
    let mark = Some("\u{2581}");
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let kind = |value: &Value| text(value, "type");
    let (mut front, mut replaced) = (false, false);
    let one;
    let steps: &[Value] = match normalizer {
        None => &[],
        Some(n) if kind(n).as_deref() == Some("Sequence") => {
            n.get("normalizers").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
        }
        Some(n) => {
            one = [n.clone()];
            &one
        }
    };
    for step in steps {
        let from = step.get("pattern").and_then(|p| text(p, "String"));
        match kind(step).as_deref() {
            Some("Prepend") if text(step, "prepend").as_deref() == mark => front = true,
            Some("Replace")
                if from.as_deref() == Some(" ") && text(step, "content").as_deref() == mark =>
            {
                replaced = true;
            }
            _ => return Err(("the normalizer", short(step))),
        }
    }
    let unknown = |pre: &Value| Err(("the pre_tokenizer", short(pre)));
    match pre {
        None => {}
        Some(pre) => match kind(pre).as_deref() {
            Some("Metaspace") if text(pre, "replacement").as_deref() == mark => {
                // Words must not be split at spaces, because SentencePiece does not split them
                // either.
                if pre.get("split").and_then(Value::as_bool) != Some(false) {
                    return unknown(pre);
                }
                let old = || pre.get("add_prefix_space").and_then(Value::as_bool).unwrap_or(true);
                front |= match text(pre, "prepend_scheme").as_deref() {
                    Some("always" | "first") => true,
                    Some("never") => false,
                    Some(_) => return unknown(pre),
                    None => old(),
                };
                replaced = true;
            }
            // Gemma's pre-tokenizer matches nothing, because the spaces are already replaced.
            Some("Split")
                if pre.get("pattern").and_then(|p| text(p, "String")).as_deref() == Some(" ")
                    && replaced => {}
            _ => return unknown(pre),
        },
    }
    match replaced {
        true => Ok(front),
        false => Err(("the normalizer", normalizer.map_or_else(|| "none".to_owned(), short))),
    }
}
