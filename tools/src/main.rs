//! The command `kjit`. The answer goes to stdout and nothing else does.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::indexing_slicing)
)]

mod args;
mod commands;
mod engine;
mod input;
mod interrupt;
mod load;
mod render;
mod report;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    // This program is its own compiler process: it returns from here only as the command.
    kjit_engine::child_main();
    interrupt::listen();
    kjit_model::gguf::end_on_a_file_cut_short();
    let cli = Cli::parse(); // exits 2 on wrong usage
    let shared = &cli.shared;
    let done = match &cli.command {
        Command::Run(a) => commands::run::run(a, shared),
        Command::Inspect(a) => commands::inspect::inspect(a),
        Command::Devices(a) => commands::devices::devices(a, shared),
        Command::Tokenize(a) => commands::text::tokenize(a),
        Command::Detokenize(a) => commands::text::detokenize(a),
        Command::Template(a) => commands::text::template(a),
        Command::Logits(a) => commands::logits::logits(a, shared),
        Command::Perplexity(a) => commands::perplexity::perplexity(a, shared),
        Command::Dequant(a) => commands::dequant::dequant(a),
        Command::Doctor(a) => commands::doctor::doctor(a, shared),
        Command::Warm(a) => commands::warm::warm(a, shared),
        Command::Cache(a) => commands::cache::cache(a, shared),
        Command::Bench(a) if a.kernels => commands::kernels::kernels(a, shared),
        Command::Bench(a) => commands::bench::bench(a, shared),
    };
    match done {
        Ok(code) => code,
        Err(e) => report::failed(&e),
    }
}
