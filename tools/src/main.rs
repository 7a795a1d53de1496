//! The command `kjit`. Only the answer goes to stdout.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing
    )
)]

mod advice;
mod args;
mod columns;
mod commands;
mod engine;
mod grammar;
mod help;
mod images;
mod input;
mod interrupt;
mod load;
mod loading;
mod model;
mod ranks;
mod report;
mod spelling;
mod table;
mod template;

use args::{Cli, Command};
use clap::Parser;
use kjit_model::DeviceChoice;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    // This program is also its own compiler process. In that case the call does not return.
    kjit_engine::child_main();
    interrupt::listen();
    kjit_model::gguf::exit_on_truncated_file();
    let (arguments, note) = spelling::translate(std::env::args_os().collect());
    let mut cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(e) => return wrong_usage(&e),
    };
    if let Some(note) = note.filter(|_| !cli.shared.quiet) {
        report::say(note);
    }
    if let Err(e) = one_device(&cli).and_then(|()| ranks::prepare(&mut cli)) {
        return report::failed(&e);
    }
    let shared = &cli.shared;
    let done = match &cli.command {
        Command::Run(a) => commands::run::run(a, shared),
        Command::Pull(a) => commands::hub::pull(a, shared),
        Command::List(a) => commands::hub::list(a, shared),
        Command::Rm(a) => commands::hub::rm(a, shared),
        Command::Inspect(a) => commands::inspect::inspect(a, shared),
        Command::Devices(a) => commands::devices::devices(a, shared),
        Command::Tokenize(a) => commands::text::tokenize(a, shared),
        Command::Detokenize(a) => commands::text::detokenize(a, shared),
        Command::Template(a) => commands::text::template(a, shared),
        Command::Embed(a) => commands::embed::embed(a, shared),
        Command::Logits(a) => commands::logits::logits(a, shared),
        Command::Perplexity(a) => commands::perplexity::perplexity(a, shared),
        Command::Merge(a) => commands::merge::merge(a, shared),
        Command::Imatrix(a) => commands::imatrix::imatrix(a, shared),
        Command::Quantize(a) => commands::quantize::quantize(a, shared),
        Command::Dequant(a) => commands::dequant::dequant(a),
        Command::Doctor(a) => commands::doctor::doctor(a, shared),
        Command::Probe(a) => commands::probe::probe(a, shared),
        Command::Warm(a) => commands::warm::warm(a, shared),
        Command::Cache(a) => commands::cache::cache(a, shared),
        Command::Serve(a) => commands::serve::serve(a, shared),
        Command::Ps(a) => commands::ps::ps(a, shared),
        Command::Completions(a) => commands::packaging::completions(a),
        Command::Notices => commands::packaging::notices(),
        Command::Man(a) => commands::packaging::man(a),
        Command::Bench(a) if a.kernels => commands::kernels::kernels(a, shared),
        Command::Bench(a) => commands::bench::bench(a, shared),
    };
    let code = match done {
        Ok(code) => code,
        Err(e) => report::failed(&e),
    };
    let number = [ExitCode::SUCCESS, ExitCode::from(report::INTERRUPTED)]
        .iter()
        .position(|known| *known == code);
    let _ = std::io::stdout().flush();
    kjit_engine::exit_if_abandoned(match number {
        Some(0) => 0,
        Some(_) => report::INTERRUPTED,
        None => 1,
    });
    code
}

/// Refuses several devices for commands that do not run a model.
fn one_device(cli: &Cli) -> anyhow::Result<()> {
    let DeviceChoice::Several(_) = &cli.shared.device else { return Ok(()) };
    match &cli.command {
        Command::Run(_)
        | Command::Serve(_)
        | Command::Bench(_)
        | Command::Logits(_)
        | Command::Perplexity(_) => Ok(()),
        _ => anyhow::bail!("--device {}: this command takes one device", cli.shared.device),
    }
}

/// Prints clap's error, or advice about a word of another program. The exit code is 2, or 0 if help
/// was requested.
fn wrong_usage(error: &clap::Error) -> ExitCode {
    // `-hf` begins with `-h`, which clap takes for help. If there is also an exact `-h` or
    // `--help`, help is requested.
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let asked = !error.use_stderr()
        && arguments.iter().any(|a| a == "-h" || a == "--help" || a == "-V" || a == "--version");
    if !asked && let Some(advice) = advice::advice(&arguments) {
        report::say(format_args!("error: {advice}"));
        return ExitCode::from(2);
    }
    // If stdout or stderr is closed, an error cannot be reported.
    let _ = match error.kind() {
        clap::error::ErrorKind::DisplayHelp => help::print(&error.render()),
        _ => error.print(),
    };
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}
