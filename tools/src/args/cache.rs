//! The command line of `kjit cache`.

use super::values::{Size, number_and_unit, whole_number};
use super::{Json, Kv, positive};
use crate::model::ModelName;
use clap::{Args, Subcommand, ValueHint};
use kjit_cache::PublicKey;
use kjit_hub::registry::Artefact;
use std::path::PathBuf;
use std::str::FromStr;

/// `kjit cache`.
#[derive(Debug, Subcommand)]
pub enum Cache {
    /// Show the cache's folder and size. With filters, how much they select
    #[command(
        after_help = "Examples:\n  kjit cache stat --json\n  kjit cache stat --model model.gguf \
            --arch gfx1100"
    )]
    Stat {
        #[command(flatten)]
        filter: CacheFilter,
        #[command(flatten)]
        json: Json,
    },
    /// List entries: key, architecture, kernel, size, age, compiler
    #[command(
        after_help = "Examples:\n  kjit cache list --arch sm_90 --json\n  kjit cache list --older \
            30d --larger 100kB"
    )]
    List {
        #[command(flatten)]
        filter: CacheFilter,
        #[command(flatten)]
        json: Json,
    },
    /// Check every byte of the cache: set corrupt entries aside, move misplaced entries back. Exits
    /// 1 if there was a fault
    ///
    /// With filters, only selected entries are counted. With --model, a missing kernel is a fault.
    /// Corrupt entries are always reported, because filters cannot trust their content.
    #[command(
        after_help = "Examples:\n  kjit cache verify\n  kjit cache verify --model model.gguf \
            --arch gfx1100,sm_90"
    )]
    Verify {
        #[command(flatten)]
        filter: CacheFilter,
        #[command(flatten)]
        json: Json,
    },
    /// Remove all entries, or the entries that the filters select
    #[command(
        after_help = "Examples:\n  kjit cache clear\n  kjit cache clear --older 30d\n  kjit cache \
            clear --arch gfx906 --dry-run"
    )]
    Clear {
        #[command(flatten)]
        filter: CacheFilter,
        /// Print the number of entries that would be removed, and remove none
        #[arg(long)]
        dry_run: bool,
        /// Also remove records: tuning results, digests, versions of compilers
        #[arg(long, conflicts_with_all = ["arch", "model", "kernel", "older", "larger"])]
        records: bool,
        #[command(flatten)]
        json: Json,
    },
    /// Write entries to a pack: one file that other machines can use
    ///
    /// A machine uses a pack in place if it is in $KJIT_PACK_PATH (a list of packs and folders) or
    /// in /usr/share/kjit/packs. `kjit cache import` copies its entries instead. With --model, all
    /// of the model's kernels must be in the cache. A machine with the pack then compiles no kernel
    /// of the model.
    #[command(after_help = "Examples:\n  kjit cache export --arch gfx1100 -o gfx1100.kjitpack\n  \
                      kjit cache export --model model.gguf --arch gfx1100 -o model.kjitpack\n  \
                      head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \\n' > key; chmod 600 \
                      key\n  \
                      kjit cache export --arch gfx1100 --sign key -o signed.kjitpack")]
    Export {
        #[command(flatten)]
        filter: CacheFilter,
        /// Pack to write. An existing file is replaced
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        /// A pack for each kernel, named by its key, in the folder of -o: the files of a server for
        /// --cache-remote
        #[arg(long, requires = "sign")]
        each: bool,
        /// File with the 32-byte secret key (64 hex digits) that signs the pack. Prints its public
        /// key
        #[arg(long, value_name = "FILE")]
        sign: Option<PathBuf>,
        #[command(flatten)]
        json: Json,
    },
    /// Verify a pack's entries and copy them into the cache
    #[command(after_help = "Examples:\n  kjit cache import gfx1100.kjitpack\n  kjit cache import \
            signed.kjitpack --signer KEY")]
    Import {
        /// Pack to import
        pack: PathBuf,
        /// Trusted public key (64 hex digits). The pack must be signed by it. May be given several
        /// times: one of the keys must have signed
        #[arg(long, value_name = "KEY", value_parser = public_key)]
        signer: Vec<PublicKey>,
        #[command(flatten)]
        json: Json,
    },
    /// Send entries to a registry, as a signed pack
    ///
    /// Requests use HTTPS, or HTTP if the registry is on this machine. $KJIT_REGISTRY_USER and
    /// $KJIT_REGISTRY_PASSWORD are its login.
    #[command(after_help = "Example:\n  kjit cache push oci://registry.example/kernels:gfx1100 \
                            --arch gfx1100 --sign key")]
    Push {
        /// Destination: oci://HOST/REPOSITORY:TAG (without :TAG: latest)
        #[arg(value_name = "ARTEFACT")]
        to: Artefact,
        #[command(flatten)]
        filter: CacheFilter,
        /// File with the 32-byte secret key (64 hex digits) that signs the pack. Prints its public
        /// key
        #[arg(long, value_name = "FILE")]
        sign: PathBuf,
        #[command(flatten)]
        json: Json,
    },
    /// Copy the entries of a signed pack in a registry into the cache, each verified
    #[command(after_help = "Example:\n  kjit cache pull oci://registry.example/kernels:gfx1100 \
                            --signer KEY")]
    Pull {
        /// Source: oci://HOST/REPOSITORY:TAG (without :TAG: latest)
        #[arg(value_name = "ARTEFACT")]
        from: Artefact,
        /// Public key (64 hex digits) that must have signed the pack. May be given several times:
        /// any of them
        #[arg(long, value_name = "KEY", value_parser = public_key, required = true)]
        signer: Vec<PublicKey>,
        #[command(flatten)]
        json: Json,
    },
}

/// Filters of entries. An entry must match all of them.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Filters")]
pub struct CacheFilter {
    /// Only entries for these architectures, separated by commas: sm_90, gfx1100, …
    #[arg(long, value_name = "ARCH", value_delimiter = ',')]
    pub arch: Vec<String>,
    /// Only kernels that `kjit run` uses with this model
    #[arg(long, value_name = "MODEL", value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: Option<ModelName>,
    /// Context size for --model (default: as in `kjit run`)
    #[arg(short = 'c', long, value_name = "N", value_parser = positive, requires = "model")]
    pub context: Option<usize>,
    /// Type of stored keys and values for --model
    #[arg(long, value_name = "TYPE", default_value = "f16", requires = "model")]
    pub kv_type: Kv,
    /// Value of --prefill-chunk for --model (default: as in `kjit run`)
    #[arg(long, value_name = "N", value_parser = positive, requires = "model", allow_negative_numbers = true)]
    pub prefill_chunk: Option<usize>,
    /// For --model: the kernels of `kjit run --precise`
    #[arg(long, requires = "model")]
    pub precise: bool,
    /// For --model: the kernels of `kjit run --reproducible`
    #[arg(long, requires = "model")]
    pub reproducible: bool,
    /// Only kernels whose name contains TEXT
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub kernel: Option<String>,
    /// Only entries that were not used for this time: 90s, 30m, 12h, 7d, 2w
    #[arg(long, value_name = "AGE", alias = "older-than")]
    pub older: Option<Age>,
    /// Only entries of at least this size: 4096, 500kB, 10MB, 1GiB
    #[arg(long, value_name = "SIZE", alias = "larger-than")]
    pub larger: Option<Size>,
}

pub fn public_key(text: &str) -> Result<PublicKey, String> {
    text.parse().map_err(|_| "a public key is 64 lower-case hexadecimal digits".to_owned())
}

/// A time in seconds: a number and a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Age(pub u64);

impl FromStr for Age {
    type Err = String;

    fn from_str(text: &str) -> Result<Age, String> {
        let wrong = || {
            format!(
                "'{text}' is not an age: give a number and a unit, as in 90s, 30m, 12h, 7d or 2w"
            )
        };
        let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
        let seconds = match unit {
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            "w" => 604_800.0,
            "" => {
                return Err(format!(
                    "'{text}' has no unit: give {text}s, {text}m, {text}h, {text}d or {text}w"
                ));
            }
            _ => return Err(wrong()),
        };
        whole_number(number * seconds).map(Age).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::{Age, Size};

    #[test]
    fn ages_and_sizes_are_parsed_with_units() {
        let ages = [
            ("0s", 0),
            ("90s", 90),
            ("30m", 1800),
            ("1.5h", 5400),
            ("30d", 2_592_000),
            ("2 w", 1_209_600),
        ];
        for (text, seconds) in ages {
            assert_eq!(text.parse(), Ok(Age(seconds)), "{text}");
        }
        let sizes = [
            ("0", 0),
            ("4096", 4096),
            ("12b", 12),
            ("500kB", 500_000),
            ("10MB", 10_000_000),
            ("1.5 GiB", 1_610_612_736),
            ("2T", 2_000_000_000_000),
        ];
        for (text, bytes) in sizes {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn invalid_age_or_size_error_shows_valid_forms() {
        for text in [
            "",
            "d",
            "banana",
            "-1d",
            "1e3d",
            "5 parsecs",
            "1..5h",
            ".5h",
            "5.h",
            "99999999999999999999d",
            "NaNd",
            "30",
        ] {
            let error = text.parse::<Age>().unwrap_err();
            assert!(error.contains("d") && error.contains(text), "{text}: {error}");
        }
        assert!("30".parse::<Age>().unwrap_err().contains("30d"));
        for text in [
            "",
            "MB",
            "lots",
            "-5",
            "1e9",
            "5 bananas",
            "1.MB",
            "99999999999999999999",
            "0x10",
            "infkB",
        ] {
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.contains("10MB") && error.contains(text), "{text}: {error}");
        }
    }
}
