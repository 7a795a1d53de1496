//! The results of `kjit doctor --run MODEL` as a table, as JSON and as JUnit XML.

use super::judge::{Check, Verdict};
use crate::report::one_line;
use serde_json::{Value, json};
use std::fmt::Write;

/// The results of a model on a device.
#[derive(Debug)]
pub struct Row {
    /// The model's name.
    pub model: String,
    /// The device's label.
    pub device: String,
    /// The device's product name, if the model was opened there.
    pub product: String,
    /// The form of a GPU's tokens.
    pub form: Option<String>,
    /// The tests in order.
    pub checks: Vec<Check>,
    /// Notes about the device and its kernels.
    pub notes: Vec<String>,
    /// Seconds of opening, seconds to the first token, tokens per second.
    pub speeds: [Option<f64>; 3],
    /// Seconds of all tests.
    pub seconds: f64,
}

/// The tests in the order of the table; opening has no column.
const TESTS: [&str; 7] = ["kernels", "fp16", "tokens", "perplexity", "state", "vectors", "memory"];

impl Row {
    /// The worst verdict.
    pub fn verdict(&self) -> Verdict {
        self.checks.iter().map(|c| c.verdict).max().unwrap_or(Verdict::Refused)
    }

    fn json(&self) -> Value {
        let checks: Vec<Value> = self
            .checks
            .iter()
            .map(|c| json!({ "check": c.name, "verdict": c.verdict.to_string(), "said": c.said }))
            .collect();
        let [load_s, first_token_s, decode_tok_s] = self.speeds;
        json!({
            "model": self.model, "device": self.device, "product": self.product, "form": self.form,
            "verdict": self.verdict().to_string(), "checks": checks, "notes": self.notes,
            "load_s": load_s, "first_token_s": first_token_s, "decode_tok_s": decode_tok_s,
            "seconds": self.seconds,
        })
    }
}

/// Whether nothing is wrong, and each model ran on at least one device.
pub fn good(rows: &[Row]) -> bool {
    let ran = |model: &str| rows.iter().any(|r| r.model == model && r.verdict() <= Verdict::Near);
    rows.iter().all(|r| r.verdict() != Verdict::Wrong && ran(&r.model)) && !rows.is_empty()
}

/// The results as a JSON document.
pub fn json(rows: &[Row], notes: &[String]) -> Value {
    let all: Vec<Value> = rows.iter().map(Row::json).collect();
    json!({ "ok": good(rows), "notes": notes, "models": all })
}

/// The results as a table, and below it a line for each test that is not right.
pub fn table(rows: &[Row], notes: &[String]) -> String {
    let mut out = format!("| model | device | {} |", TESTS.join(" | "));
    out += " load s | first token s | tok/s | verdict |\n";
    out += &format!("|{}\n", "---|".repeat(TESTS.len() + 6));
    for row in rows {
        let of = |name: &&str| {
            let check = row.checks.iter().find(|c| c.name == *name);
            check.map_or("–".to_owned(), |c| c.verdict.to_string())
        };
        let tests: Vec<String> = TESTS.iter().map(of).collect();
        let speed = |n: &Option<f64>| n.map_or("–".to_owned(), |n| format!("{n:.3}"));
        let speeds: Vec<String> = row.speeds.iter().map(speed).collect();
        let (tests, speeds, verdict) = (tests.join(" | "), speeds.join(" | "), row.verdict());
        let _ = writeln!(
            out,
            "| {} | {} | {tests} | {speeds} | {verdict} |",
            one_line(&row.model),
            row.device
        );
    }
    for row in rows {
        for check in row.checks.iter().filter(|c| c.verdict != Verdict::Right) {
            let _ = writeln!(
                out,
                "{}: {} on {}: {}: {}",
                check.verdict,
                one_line(&row.model),
                row.device,
                check.name,
                one_line(&check.said)
            );
        }
        for note in &row.notes {
            let _ = writeln!(
                out,
                "note: {} on {}: {}",
                one_line(&row.model),
                row.device,
                one_line(note)
            );
        }
    }
    for note in notes {
        let _ = writeln!(out, "note: {}", one_line(note));
    }
    out
}

/// The results as JUnit XML: a suite for each model and device, a case for each test. Wrong is a
/// failure, refused is skipped.
pub fn junit(rows: &[Row]) -> String {
    let count =
        |of: Verdict| rows.iter().flat_map(|r| &r.checks).filter(|c| c.verdict == of).count();
    let all: usize = rows.iter().map(|r| r.checks.len()).sum();
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let (failures, skipped) = (count(Verdict::Wrong), count(Verdict::Refused));
    let _ = writeln!(
        out,
        "<testsuites name=\"kjit \
         doctor\" tests=\"{all}\" failures=\"{failures}\" errors=\"0\" skipped=\"{skipped}\">"
    );
    for row in rows {
        let count = |of: Verdict| row.checks.iter().filter(|c| c.verdict == of).count();
        let suite = escape(&format!("{} on {}", row.model, row.device));
        let _ = writeln!(
            out,
            "  <testsuite name=\"{suite}\" tests=\"{}\" failures=\"{}\" errors=\"0\" \
             skipped=\"{}\" time=\"{:.3}\">",
            row.checks.len(),
            count(Verdict::Wrong),
            count(Verdict::Refused),
            row.seconds
        );
        for check in &row.checks {
            let said = escape(&check.said);
            let inside = match check.verdict {
                Verdict::Wrong => format!("<failure message=\"{said}\"/>"),
                Verdict::Refused => format!("<skipped message=\"{said}\"/>"),
                verdict => format!("<system-out>{verdict}: {said}</system-out>"),
            };
            let _ = writeln!(
                out,
                "    <testcase classname=\"{suite}\" name=\"{}\">{inside}</testcase>",
                check.name
            );
        }
        out += "  </testsuite>\n";
    }
    out + "</testsuites>\n"
}

/// A text in XML. Characters that XML does not allow are replaced.
fn escape(text: &str) -> String {
    let one = |c: char| match c {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        '\'' => "&apos;".to_owned(),
        '\n' | '\r' | '\t' => " ".to_owned(),
        c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => "\u{fffd}".to_owned(),
        c => c.to_string(),
    };
    text.chars().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(model: &str, verdict: Verdict) -> Row {
        let check = Check::new("tokens", verdict, "a < b & \"c\"\u{1}");
        Row {
            model: model.to_owned(),
            device: "cpu".to_owned(),
            product: String::new(),
            form: None,
            checks: vec![check],
            notes: vec![],
            speeds: [None, Some(0.5), None],
            seconds: 1.0,
        }
    }

    #[test]
    fn a_wrong_model_and_a_model_that_ran_nowhere_fail() {
        assert!(good(&[row("a", Verdict::Right), row("a", Verdict::Refused)]));
        assert!(good(&[row("a", Verdict::Near)]));
        assert!(!good(&[row("a", Verdict::Right), row("a", Verdict::Wrong)]));
        assert!(!good(&[row("a", Verdict::Right), row("b", Verdict::Refused)]));
        assert!(!good(&[]));
    }

    #[test]
    fn xml_counts_and_escapes() {
        let text = junit(&[row("a<", Verdict::Wrong), row("b", Verdict::Refused)]);
        assert!(text.contains("tests=\"2\" failures=\"1\" errors=\"0\" skipped=\"1\""), "{text}");
        assert!(text.contains("name=\"a&lt; on cpu\""), "{text}");
        assert!(text.contains("message=\"a &lt; b &amp; &quot;c&quot;\u{fffd}\""), "{text}");
    }
}
