//! Arguments of several commands, small commands, and parsers of values.

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use kjit_model::session::AdapterFile;
use std::ffi::OsString;
use std::path::Path;
use std::str::FromStr;

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

impl Switch {
    /// Whether it is on.
    pub fn is_on(self) -> bool {
        self == Switch::On
    }
}

/// `--json` alone.
#[derive(Debug, Args)]
pub struct Json {
    /// Print one JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// `kjit completions`.
#[derive(Debug, Args)]
pub struct Completions {
    /// Shell
    pub shell: clap_complete::Shell,
}

/// `kjit man`.
#[derive(Debug, Args)]
pub struct Man {
    /// Command of the manual page (default: kjit itself)
    pub command: Option<String>,
}

fn number(s: &str, good: impl Fn(f32) -> bool, want: &str) -> Result<f32, String> {
    s.parse().ok().filter(|v: &f32| v.is_finite() && good(*v)).ok_or_else(|| format!("give {want}"))
}

pub fn not_negative(s: &str) -> Result<f32, String> {
    number(s, |v| v >= 0.0, "a number of at least 0")
}

pub fn above_zero(s: &str) -> Result<f32, String> {
    number(s, |v| v > 0.0, "a number above 0")
}

pub fn finite(s: &str) -> Result<f32, String> {
    number(s, |_| true, "a number")
}

pub fn unit(s: &str) -> Result<f32, String> {
    number(s, |v| (0.0..=1.0).contains(&v), "a number from 0 to 1")
}

pub fn whole(s: &str) -> Result<usize, String> {
    s.parse().map_err(|_| "give a whole number of at least 0".to_string())
}

pub fn id(s: &str) -> Result<u32, String> {
    s.trim()
        .parse()
        .map_err(|_| "give token ids, whole numbers with commas between them".to_string())
}

pub fn seed(s: &str) -> Result<u64, String> {
    s.parse().map_err(|_| "give a whole number of at least 0".to_string())
}

pub fn sequences(s: &str) -> Result<usize, String> {
    s.parse()
        .ok()
        .filter(|n| (1..=256).contains(n))
        .ok_or_else(|| "give whole numbers from 1 to 256".to_string())
}

pub fn positive(s: &str) -> Result<usize, String> {
    s.parse().ok().filter(|&n| n > 0).ok_or_else(|| "give a whole number above 0".to_string())
}

/// `--lora FILE[=SCALE]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Lora(pub AdapterFile);

impl Lora {
    /// The parser for clap. The string after the last `=` is the scale, unless a file with the
    /// whole name exists.
    pub fn parser() -> impl TypedValueParser<Value = Lora> {
        OsStringValueParser::new().try_map(|value: OsString| -> Result<Lora, String> {
            let whole = |scale| AdapterFile { path: value.clone().into(), name: None, scale };
            let parts = value.to_str().and_then(|text| text.rsplit_once('='));
            match parts.filter(|_| !Path::new(&value).exists()) {
                None => Ok(Lora(whole(1.0))),
                Some((path, scale)) => {
                    let scale = finite(scale)
                        .map_err(|_| format!("'{scale}' is not a scale: give FILE=NUMBER"))?;
                    Ok(Lora(AdapterFile { path: path.into(), ..whole(scale) }))
                }
            }
        })
    }
}

/// A number of bytes: a number and an optional unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let wrong = || {
            format!(
                "'{text}' is not a size: \
                 give bytes, or a number and a unit, as in 500kB, 10MB or 1GiB"
            )
        };
        let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
        let bytes = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1.0,
            "k" | "kb" => 1e3,
            "m" | "mb" => 1e6,
            "g" | "gb" => 1e9,
            "t" | "tb" => 1e12,
            "kib" => 1024.0,
            "mib" => 1024.0 * 1024.0,
            "gib" => 1024.0 * 1024.0 * 1024.0,
            "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
            _ => return Err(wrong()),
        };
        whole_number(number * bytes).map(Size).ok_or_else(wrong)
    }
}

/// Reads digits with at most one decimal point, and the text after them.
pub fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end)?;
    let digits_at_both_ends =
        number.starts_with(|c: char| c.is_ascii_digit()) && !number.ends_with('.');
    let number = number.parse().ok().filter(|_| digits_at_both_ends)?;
    Some((number, unit.trim_start()))
}

pub fn whole_number(value: f64) -> Option<u64> {
    // Every integer up to here is exact in f64. No age or size is larger.
    const LARGEST: f64 = (1u64 << 53) as f64;
    (0.0..=LARGEST).contains(&value).then_some(value as u64)
}
