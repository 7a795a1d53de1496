//! `keep_alive`: how long a model stays loaded after an answer.

use crate::fields::Fields;
use crate::models::KeepAlive;
use crate::refusal::Refusal;
use serde_json::Value;
use std::time::Duration;

/// Seconds that count as for ever.
const FOREVER_SECONDS: f64 = 1e9;

/// Reads seconds as a number, or a duration in Go's form (`5m`, `1h30m`, `-1s`). A negative value
/// means for ever.
pub fn keep_alive(f: &mut Fields) -> Result<Option<KeepAlive>, Refusal> {
    let seconds = match f.take("keep_alive") {
        None => return Ok(None),
        Some(Value::Number(n)) => n.as_f64(),
        Some(Value::String(text)) => seconds(text.trim()),
        Some(_) => None,
    };
    let seconds = seconds.filter(|s| s.is_finite());
    let seconds = seconds.ok_or_else(|| {
        f.wrong("keep_alive", "give seconds, or a duration like \"5m\" or \"-1s\"")
    })?;
    Ok(Some(match (0.0..=FOREVER_SECONDS).contains(&seconds) {
        true => KeepAlive::For(Duration::from_secs_f64(seconds)),
        false => KeepAlive::Always,
    }))
}

/// Reads a duration like Go's `time.ParseDuration`. A number without unit is in seconds.
fn seconds(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    let number = |text: &str| {
        let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
            && text.bytes().any(|b| b.is_ascii_digit());
        text.parse::<f64>().ok().filter(|_| plain)
    };
    if let Some(alone) = number(rest) {
        return Some(sign * alone);
    }
    if rest.is_empty() {
        return None;
    }
    let mut all = 0.0;
    while !rest.is_empty() {
        let (digits, behind) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let (unit, behind) = behind.split_at(
            behind.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(behind.len()),
        );
        let each = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        all += number(digits)? * each;
        rest = behind;
    }
    Some(sign * all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_follow_go_syntax() {
        let read = |json: &str| {
            let mut f = Fields::parse(format!("{{\"keep_alive\": {json}}}").as_bytes()).unwrap();
            keep_alive(&mut f)
        };
        let of = |ms: u64| Some(KeepAlive::For(Duration::from_millis(ms)));
        for (json, want) in [
            ("null", None),
            ("0", of(0)),
            ("\"0\"", of(0)),
            ("\"0s\"", of(0)),
            ("90", of(90_000)),
            ("1.5", of(1500)),
            ("\"5m\"", of(300_000)),
            ("\"1h30m\"", of(5_400_000)),
            ("\"1m0.5s\"", of(60_500)),
            ("\"300ms\"", of(300)),
            ("\"24h\"", of(86_400_000)),
            ("-1", Some(KeepAlive::Always)),
            ("\"-1\"", Some(KeepAlive::Always)),
            ("\"-1m\"", Some(KeepAlive::Always)),
            ("1e300", Some(KeepAlive::Always)),
        ] {
            assert_eq!(read(json).unwrap(), want, "{json}");
        }
        for json in [
            "\"\"",
            "\"-\"",
            "\"+\"",
            "\"5\u{e4}\"",
            "\"m\"",
            "\"5m3\"",
            "\"5 m\"",
            "\"1.2.3s\"",
            "\"nan\"",
            "true",
            "[1]",
            "{}",
        ] {
            let why = read(json).unwrap_err();
            assert_eq!(
                why.message(),
                "'keep_alive': give seconds, or a duration like \"5m\" or \"-1s\"",
                "{json}"
            );
        }
    }
}
