//! Command lines of commands that write model files.

use super::values::{Size, positive};
use crate::model::ModelName;
use clap::{Args, ValueHint};
use kjit_kernels::format::Format;
use kjit_quantize::{Keep, MIXTURES, Mixture};
use std::path::PathBuf;

/// `kjit quantize`.
#[derive(Debug, Args)]
pub struct Quantize {
    /// Source: a GGUF file (the first file of a split model), a folder of safetensors, or a name on
    /// the hub
    #[arg(value_name = "IN", value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: ModelName,
    /// GGUF file to write
    #[arg(value_name = "OUT", value_hint = ValueHint::FilePath)]
    pub out: PathBuf,
    /// Mixture of formats, named as in llama.cpp: Q4_K_M, Q8_0, F16, …
    #[arg(long = "type", value_name = "TYPE", value_parser = mixture)]
    pub mixture: &'static Mixture,
    /// Importance matrix of `kjit imatrix` or llama.cpp. It weights the errors
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub imatrix: Option<PathBuf>,
    /// Format of all matrices whose name matches a regular expression, such as ffn_down=Q6_K. The
    /// first match is used
    #[arg(long, value_name = "PATTERN=TYPE", value_parser = keep)]
    pub keep: Vec<Keep>,
    /// Format of the output matrix
    #[arg(long, value_name = "TYPE", value_parser = format)]
    pub output_type: Option<&'static Format>,
    /// Maximum size of a file; a larger model is split (OUT-00001-of-00003.gguf, …)
    #[arg(long, value_name = "SIZE")]
    pub split_max_size: Option<Size>,
    /// Set a metadata key
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,
    /// Remove a metadata key
    #[arg(long, value_name = "KEY")]
    pub unset: Vec<String>,
    /// Print the format of each tensor and the size of the result. Nothing is written
    #[arg(long)]
    pub dry_run: bool,
    /// Replace an existing file
    #[arg(long)]
    pub force: bool,
    /// Print one JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

fn mixture(text: &str) -> Result<&'static Mixture, String> {
    Mixture::by_name(text).ok_or_else(|| {
        let names: Vec<&str> = MIXTURES.iter().map(|m| m.name).collect();
        let reads = Format::by_name(text.trim_end_matches("_M").trim_end_matches("_S"));
        match reads {
            Some(format) => format!("kjit reads {format} but does not write it"),
            None => format!("give one of {}", names.join(", ")),
        }
    })
}

fn format(text: &str) -> Result<&'static Format, String> {
    match Format::by_name(text) {
        Some(format) if kjit_quantize::is_writable(format) => Ok(format),
        Some(format) => Err(format!("kjit reads {format} but does not write it")),
        None => Err(format!("'{text}' is not a format: give one such as Q6_K or F16")),
    }
}

fn keep(text: &str) -> Result<Keep, String> {
    let (pattern, name) = text.rsplit_once('=').ok_or("give PATTERN=TYPE, as in ffn_down=Q6_K")?;
    let pattern = regex_lite::Regex::new(pattern)
        .map_err(|e| format!("'{pattern}' is not a regular expression: {e}"))?;
    Ok(Keep { pattern, format: format(name)? })
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("give KEY=VALUE, as in general.name=Mine")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// `kjit imatrix`.
#[derive(Debug, Args)]
pub struct Imatrix {
    /// Model: a GGUF file, a folder of safetensors, or a name on the hub (hf:ORG/REPO:QUANT)
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: ModelName,
    /// Text file that resembles the model's later inputs, at least one window long
    #[arg(short = 'f', long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// File to write
    #[arg(short = 'o', long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Tokens per window
    #[arg(short = 'c', long = "context", value_name = "N", default_value = "512", value_parser = positive, allow_negative_numbers = true)]
    pub context: usize,
    /// Maximum number of windows
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub chunks: Option<usize>,
    /// Replace an existing file
    #[arg(long)]
    pub force: bool,
}
