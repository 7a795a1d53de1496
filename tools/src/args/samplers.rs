//! Options of samplers that the CPU applies, with llama.cpp's names, defaults and meanings.

use clap::{Args, ValueEnum};
use kjit_model::SampleOptions;
use kjit_model::sample::{Dry, DynamicTemperature, Mirostat, MirostatVersion, Xtc};
use kjit_model::tokenizer::Tokenizer;
use std::ops::RangeInclusive;

/// Options of samplers that the CPU applies.
#[derive(Debug, Clone, Args)]
pub struct MoreSamplers {
    /// Locally typical sampling: keeps the tokens whose surprise is nearest to the entropy, up to
    /// this sum of probabilities; 1 keeps all. With this or one of the next samplers, the CPU
    /// chooses the tokens
    #[arg(long, alias = "typical-p", default_value_t = 1.0, value_parser = range(0.0..=1.0), value_name = "P", allow_negative_numbers = true)]
    pub typical: f32,
    /// Top-nσ: keeps tokens whose score is at most N standard deviations below the largest; 0 or
    /// less keeps all
    #[arg(long, alias = "top-n-sigma", default_value_t = -1.0, value_parser = range(-1.0..=100.0), value_name = "N", allow_negative_numbers = true)]
    pub top_nsigma: f32,
    /// XTC: probability that all likely tokens but the least likely of them are removed
    #[arg(long, default_value_t = 0.0, value_parser = range(0.0..=1.0), value_name = "P", allow_negative_numbers = true)]
    pub xtc_probability: f32,
    /// XTC: probability from which a token is a likely one; above 0.5 nothing is removed
    #[arg(long, default_value_t = 0.1, value_parser = range(0.0..=1.0), value_name = "P", allow_negative_numbers = true)]
    pub xtc_threshold: f32,
    /// DRY: factor of the penalty on tokens that continue a repetition; 0 means off. The penalty is
    /// factor · base ^ (length − allowed length)
    #[arg(long, default_value_t = 0.0, value_parser = range(0.0..=100.0), value_name = "X", allow_negative_numbers = true)]
    pub dry_multiplier: f32,
    /// DRY: base of the penalty
    #[arg(long, default_value_t = 1.75, value_parser = range(1.0..=10.0), value_name = "X", allow_negative_numbers = true)]
    pub dry_base: f32,
    /// DRY: longest repetition without a penalty, in tokens
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=1024), value_name = "N", allow_negative_numbers = true)]
    pub dry_allowed_length: u32,
    /// DRY: number of last tokens that are searched; 0 means off, -1 the whole context
    #[arg(long, default_value_t = -1, value_parser = clap::value_parser!(i32).range(-1..=1 << 20), value_name = "N", allow_negative_numbers = true)]
    pub dry_penalty_last_n: i32,
    /// DRY: text at which a repetition ends; \\n, \\t, \\r and \\\\ are read as such
    /// characters. May be given several times, and replaces the default: newline, colon, quote,
    /// star. none: no text
    #[arg(long, value_name = "TEXT", value_parser = breaker, allow_hyphen_values = true)]
    pub dry_sequence_breaker: Vec<String>,
    /// Dynamic temperature: the temperature is within this range around --temp and follows the
    /// entropy; 0 means off
    #[arg(long, default_value_t = 0.0, value_parser = range(0.0..=2.0), value_name = "X", allow_negative_numbers = true)]
    pub dynatemp_range: f32,
    /// Dynamic temperature: exponent of the entropy
    #[arg(long, default_value_t = 1.0, value_parser = range(0.01..=10.0), value_name = "X", allow_negative_numbers = true)]
    pub dynatemp_exp: f32,
    /// Mirostat: keeps the surprise of the answer near a target, in place of all other cuts. 1 or 2
    /// is its version, 0 means off
    #[arg(long, value_enum, default_value_t = MirostatArg::Off, value_name = "N")]
    pub mirostat: MirostatArg,
    /// Mirostat: learning rate (eta)
    #[arg(long, default_value_t = 0.1, value_parser = range(0.0..=1.0), value_name = "X", allow_negative_numbers = true)]
    pub mirostat_lr: f32,
    /// Mirostat: target of the surprise in bits (tau)
    #[arg(long, default_value_t = 5.0, value_parser = range(0.0..=20.0), value_name = "X", allow_negative_numbers = true)]
    pub mirostat_ent: f32,
}

/// `--mirostat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MirostatArg {
    /// Off.
    #[value(name = "0")]
    Off,
    /// Version 1.
    #[value(name = "1")]
    One,
    /// Version 2.
    #[value(name = "2")]
    Two,
}

impl MoreSamplers {
    /// Sets these options. Reads the whole vocabulary if DRY is on.
    pub fn set(&self, options: &mut SampleOptions, tokenizer: &Tokenizer) {
        options.typical_p = self.typical;
        options.top_n_sigma = self.top_nsigma.max(0.0);
        options.xtc = Xtc { probability: self.xtc_probability, threshold: self.xtc_threshold };
        options.dynamic_temperature =
            DynamicTemperature { range: self.dynatemp_range, exponent: self.dynatemp_exp };
        let version = match self.mirostat {
            MirostatArg::Off => None,
            MirostatArg::One => Some(MirostatVersion::One),
            MirostatArg::Two => Some(MirostatVersion::Two),
        };
        let (tau, eta) = (self.mirostat_ent, self.mirostat_lr);
        options.mirostat = version.map(|version| Mirostat { version, tau, eta });
        options.dry = Dry {
            multiplier: if self.dry_penalty_last_n == 0 { 0.0 } else { self.dry_multiplier },
            base: self.dry_base,
            allowed_length: self.dry_allowed_length as usize,
            window: usize::try_from(self.dry_penalty_last_n).unwrap_or(Dry::default().window),
            breakers: vec![],
        };
        if options.dry.penalises() {
            options.dry.breakers = tokenizer.ids_with_any(&self.breakers());
        }
    }

    /// The texts at which a repetition ends.
    fn breakers(&self) -> Vec<String> {
        match self.dry_sequence_breaker.as_slice() {
            [] => Dry::BREAKERS.map(str::to_owned).to_vec(),
            [none] if none == "none" => vec![],
            given => given.to_vec(),
        }
    }
}

/// A parser of numbers in this range.
fn range(range: RangeInclusive<f32>) -> impl Fn(&str) -> Result<f32, String> + Clone {
    move |text| {
        let (low, high) = (range.start(), range.end());
        let want = || format!("give a number from {low} to {high}");
        text.parse().ok().filter(|x| range.contains(x)).ok_or_else(want)
    }
}

/// A parser of DRY's breakers.
fn breaker(text: &str) -> Result<String, String> {
    let (mut read, mut chars) = (String::new(), text.chars());
    while let Some(c) = chars.next() {
        if c != '\\' {
            read.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => read.push('\n'),
            Some('t') => read.push('\t'),
            Some('r') => read.push('\r'),
            Some('\\') | None => read.push('\\'),
            Some(other) => read.extend(['\\', other]),
        }
    }
    match read.len() {
        1..=64 => Ok(read),
        _ => Err("give a text of 1 to 64 bytes".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        more: MoreSamplers,
    }

    fn read(flags: &[&str]) -> Result<MoreSamplers, String> {
        let line = Line::try_parse_from([&["kjit"], flags].concat());
        line.map(|line| line.more).map_err(|e| e.to_string())
    }

    #[test]
    fn breakers_are_unescaped_and_replace_the_default() {
        let breakers = |flags: &[&str]| read(flags).unwrap().breakers();
        assert_eq!(breakers(&[]), ["\n", ":", "\"", "*"]);
        assert!(breakers(&["--dry-sequence-breaker", "none"]).is_empty());
        let two = ["--dry-sequence-breaker", "\\n\\t", "--dry-sequence-breaker", "-\\\\x\\d\\"];
        assert_eq!(breakers(&two), ["\n\t", "-\\x\\d\\"]);
    }

    #[test]
    fn values_out_of_range_are_refused_with_the_range() {
        for (flags, why) in [
            (["--typical", "1.01"], "from 0 to 1"),
            (["--xtc-probability", "-0.1"], "from 0 to 1"),
            (["--xtc-threshold", "NaN"], "from 0 to 1"),
            (["--dry-base", "0.9"], "from 1 to 10"),
            (["--dynatemp-exp", "0"], "from 0.01 to 10"),
            (["--mirostat-ent", "inf"], "from 0 to 20"),
            (["--mirostat", "3"], "possible values: 0, 1, 2"),
            (["--dry-penalty-last-n", "-2"], "-1..=1048576"),
            (["--dry-sequence-breaker", ""], "1 to 64 bytes"),
        ] {
            let said = read(&flags).unwrap_err();
            assert!(said.contains(why), "{flags:?}: {said}");
        }
    }
}
