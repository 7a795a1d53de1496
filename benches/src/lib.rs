//! Benches of kjit without a harness. Each is a function that takes [`Options`] and prints a line
//! for each measurement. `benches/README.md` lists the flags.

#![forbid(unsafe_code)]

pub mod cache;
pub mod host;
pub mod kernels;
pub mod load;
pub mod serve;

use regex_lite::Regex;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Result of a bench.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The options of the command line.
#[derive(Debug, Clone)]
pub struct Options {
    /// Architectures to compile for, without running anything.
    pub arch: Vec<String>,
    /// The device to run on.
    pub device: String,
    /// Runs only names that match.
    pub filter: Option<Regex>,
    /// Number of measurements.
    pub iterations: usize,
    /// Number of measurements before those, which are not counted.
    pub warmup: usize,
    /// Number of entries of the full cache.
    pub entries: usize,
    /// The model of the `host` and `serve` benches.
    pub model: Option<PathBuf>,
    /// Number of CPU threads.
    pub threads: usize,
    /// Number of tokens in pages that all sequences of the server's engine share. `None`: a context
    /// for each sequence.
    pub pages: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            arch: vec![],
            device: "auto".to_owned(),
            filter: None,
            iterations: 5,
            warmup: 1,
            entries: 100_000,
            model: None,
            threads: kjit_model::host::default_threads(),
            pages: None,
        }
    }
}

impl Options {
    /// Parses the arguments.
    ///
    /// # Errors
    /// An unknown flag or an invalid value, in one sentence.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Options> {
        let mut options = Options::default();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let (flag, given) = match argument.split_once('=') {
                Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
                None => (argument, None),
            };
            // An argument that cargo passes to every bench.
            if flag == "--bench" {
                continue;
            }
            let known = [
                "--arch",
                "--device",
                "--filter",
                "--iterations",
                "--warmup",
                "--entries",
                "--model",
                "--threads",
                "--pages",
            ];
            if !known.contains(&flag.as_str()) {
                return Err(format!("unknown flag {flag}: use one of {}", known.join(", ")).into());
            }
            let value = given
                .or_else(|| arguments.next())
                .ok_or_else(|| format!("{flag} needs a value"))?;
            let number = || {
                value.parse::<usize>().map_err(|_| format!("{flag} {value} is not a whole number"))
            };
            match flag.as_str() {
                "--arch" => options.arch.extend(value.split(',').map(str::to_owned)),
                "--device" => options.device = value,
                "--filter" => {
                    options.filter =
                        Some(Regex::new(&value).map_err(|e| format!("--filter {value}: {e}"))?)
                }
                "--iterations" => options.iterations = number()?.max(1),
                "--warmup" => options.warmup = number()?,
                "--entries" => options.entries = number()?,
                "--model" => options.model = Some(PathBuf::from(value)),
                "--pages" => options.pages = Some(number()?),
                _ => options.threads = number()?.max(1),
            }
        }
        Ok(options)
    }

    /// Whether the filter selects this name.
    pub fn wants(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|f| f.is_match(name))
    }

    /// Times a call: `warmup` calls that are not counted, then `iterations` calls.
    ///
    /// # Errors
    /// The call's error.
    pub fn time<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<Times> {
        let mut times = vec![];
        for run in 0..self.warmup + self.iterations {
            let start = Instant::now();
            let done = call()?;
            let took = start.elapsed();
            drop(done);
            if run >= self.warmup {
                times.push(took.as_secs_f64());
            }
        }
        Ok(Times::of(times))
    }
}

/// Seconds of several measurements of the same code.
#[derive(Debug, Clone, PartialEq)]
pub struct Times(
    /// In ascending order.
    pub Vec<f64>,
);

impl Times {
    /// Sorts the measurements.
    #[must_use]
    pub fn of(mut seconds: Vec<f64>) -> Times {
        seconds.sort_by(f64::total_cmp);
        Times(seconds)
    }

    /// The median; of an even number, the larger of the two middle values.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.0.get(self.0.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// The shortest: other work on the machine can only add time.
    #[must_use]
    pub fn least(&self) -> f64 {
        self.0.first().copied().unwrap_or(f64::NAN)
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |seconds: Option<&f64>| {
            format!("{:.2?}", Duration::from_secs_f64(seconds.copied().unwrap_or(0.0)))
        };
        let median = text(Some(&self.median()));
        write!(
            f,
            "{median:>10} ({} to {} of {})",
            text(self.0.first()),
            text(self.0.last()),
            self.0.len()
        )
    }
}

/// The main function of a bench. The exit status is 2 for wrong flags and 1 for a failure.
pub fn main(run: fn(&Options, &mut dyn Write) -> Result<()>) -> ExitCode {
    kjit_engine::child_main();
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::from(2);
        }
    };
    match run(&options, &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}
