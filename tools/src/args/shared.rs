//! Arguments of every command.

use super::cache::public_key;
use super::values::Size;
use clap::Args;
use kjit_cache::PublicKey;
use kjit_hub::remote::Address;
use kjit_model::DeviceChoice;
use std::path::PathBuf;

/// Flags of every command. Their heading keeps them after the command's own flags.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Shared {
    /// Device: auto, cpu, cuda:N or rocm:N. Several devices (cuda:0,cuda:1) share a model's layers.
    /// auto uses the first NVIDIA GPU, else the first AMD GPU, else the CPU
    #[arg(long, global = true, default_value = "auto", value_name = "DEVICE")]
    pub device: DeviceChoice,
    /// CPU threads (default: all cores)
    #[arg(short, long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), allow_negative_numbers = true)]
    pub threads: Option<u16>,
    /// Folder of compiled kernels (default: $KJIT_CACHE_DIR, else the user's cache folder)
    #[arg(long, global = true, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Store compiled kernels in memory only, and do not use the cache folder
    #[arg(long, global = true, conflicts_with = "cache_dir")]
    pub no_cache: bool,
    /// Server of compiled kernels: its address (https://HOST/FOLDER). A kernel that is not in the
    /// cache is requested there, then compiled
    #[arg(long, global = true, value_name = "URL")]
    pub cache_remote: Option<Address>,
    /// Public key (64 hex digits) that must have signed the kernels of --cache-remote. May be given
    /// several times: any of them
    #[arg(long, global = true, value_name = "KEY", value_parser = public_key)]
    pub cache_signer: Vec<PublicKey>,
    /// Run-time compiler: the file of an nvrtc or hiprtc library, or of a clang. No other compiler
    /// is used then
    #[arg(long, global = true, value_name = "FILE")]
    pub compiler_path: Option<PathBuf>,
    /// Minimum download rate per second. If a host is slower for a minute, the download from it
    /// stops. 0 sets no limit
    #[arg(long, global = true, value_name = "SIZE", default_value = "1kB")]
    pub min_rate: Size,
    /// Print more messages on stderr; -vv prints even more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Print only errors on stderr
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
}
