//! Writes rows as Markdown, CSV or JSON. CSV and JSON use the same names.

use crate::args::BenchOutput;
use serde_json::{Map, Value};
use std::io::{self, Write};

/// A value of a row.
pub struct Cell {
    /// Name in CSV and JSON.
    name: &'static str,
    /// Title in Markdown. `None`: not in Markdown.
    title: Option<&'static str>,
    /// Value in JSON.
    value: Value,
    /// Text in Markdown and CSV.
    text: String,
    /// Whether the value is omitted in CSV.
    page_only: bool,
}

/// A value that is not in Markdown.
pub fn cell(name: &'static str, value: impl Into<Value>) -> Cell {
    let value = value.into();
    let text = match &value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Cell { name, title: None, value, text, page_only: false }
}

impl Cell {
    /// Adds the value to Markdown with this title.
    pub fn titled(mut self, title: &'static str) -> Cell {
        self.title = Some(title);
        self
    }

    /// Omits the value in CSV, because CSV files are stored and compared.
    pub fn not_in_csv(mut self) -> Cell {
        self.page_only = true;
        self
    }

    /// Sets the number of decimals in Markdown and CSV.
    pub fn digits(mut self, digits: usize) -> Cell {
        if let Some(number) = self.value.as_f64() {
            self.text = format!("{number:.digits$}");
        }
        self
    }

    /// Sets the text for an unknown value.
    pub fn unknown(mut self, text: &str) -> Cell {
        if self.value.is_null() {
            self.text = text.to_string();
        }
        self
    }
}

/// The rows as JSON.
pub fn values(rows: &[Vec<Cell>]) -> Value {
    let object = |row: &Vec<Cell>| {
        row.iter().map(|c| (c.name.to_string(), c.value.clone())).collect::<Map<_, _>>()
    };
    rows.iter().map(object).map(Value::Object).collect()
}

/// Writes the rows as Markdown or CSV. For JSON use [`values`].
pub fn write(rows: &[Vec<Cell>], output: BenchOutput, out: &mut impl Write) -> io::Result<()> {
    let Some(first) = rows.first() else { return Ok(()) };
    match output {
        BenchOutput::Md => {
            let shown = |row: &[Cell], what: fn(&Cell) -> &str| -> String {
                row.iter()
                    .filter(|c| c.title.is_some())
                    .map(|c| format!(" {} |", what(c)))
                    .collect()
            };
            writeln!(out, "|{}", shown(first, |c| c.title.unwrap_or_default()))?;
            writeln!(
                out,
                "|{}",
                "---|".repeat(first.iter().filter(|c| c.title.is_some()).count())
            )?;
            rows.iter().try_for_each(|row| writeln!(out, "|{}", shown(row, |c| &c.text)))
        }
        BenchOutput::Csv => {
            let line = |row: &[Cell], what: fn(&Cell) -> String| {
                row.iter().filter(|c| !c.page_only).map(what).collect::<Vec<_>>().join(",")
            };
            writeln!(out, "{}", line(first, |c| c.name.to_string()))?;
            rows.iter().try_for_each(|row| writeln!(out, "{}", line(row, |c| quoted(&c.text))))
        }
        BenchOutput::Json => writeln!(out, "{}", values(rows)),
    }
}

/// A field of CSV, quoted if necessary.
fn quoted(text: &str) -> String {
    match text.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{cell, quoted, values, write};
    use crate::args::BenchOutput;

    #[test]
    fn csv_column_names_equal_json_keys() {
        let row = vec![
            cell("kernel", "a, \"b\"").titled("kernel"),
            cell("us", 1.25).titled("µs").digits(1),
            cell("error", None::<&str>),
        ];
        let rows = [row];
        let text = |output| {
            let mut out = vec![];
            write(&rows, output, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(BenchOutput::Csv), "kernel,us,error\n\"a, \"\"b\"\"\",1.2,\n");
        assert_eq!(text(BenchOutput::Md), "| kernel | µs |\n|---|---|\n| a, \"b\" | 1.2 |\n");
        assert_eq!(values(&rows).to_string(), r#"[{"kernel":"a, \"b\"","us":1.25,"error":null}]"#);
        assert_eq!(quoted("plain"), "plain");
    }
}
