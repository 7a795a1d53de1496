//! What several commands take, the commands with next to nothing to take, and readers of values.

use clap::{Args, ValueEnum};

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
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// `kjit completions`.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `kjit man`.
#[derive(Debug, Args)]
pub struct Man {
    /// The command whose page is wanted
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
    s.trim().parse().map_err(|_| "give token ids, whole numbers with commas between them".to_string())
}

pub fn seed(s: &str) -> Result<u64, String> {
    s.parse().map_err(|_| "give a whole number of at least 0".to_string())
}

pub fn sequences(s: &str) -> Result<usize, String> {
    s.parse().ok().filter(|n| (1..=64).contains(n)).ok_or_else(|| "give whole numbers from 1 to 64".to_string())
}

pub fn positive(s: &str) -> Result<usize, String> {
    s.parse().ok().filter(|&n| n > 0).ok_or_else(|| "give a whole number above 0".to_string())
}
