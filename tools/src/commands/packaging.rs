//! `kjit completions`, `kjit man` and `kjit notices`: what a package has beside the program, out of
//! the program itself.

use crate::args::{self, Cli};
use anyhow::Context;
use clap::CommandFactory;
use std::io::{self, Write};
use std::process::ExitCode;

pub fn completions(args: &args::Completions) -> anyhow::Result<ExitCode> {
    // Into memory first: the generator panics where its writer fails, as a closed pipe does.
    let mut script = vec![];
    clap_complete::generate(args.shell, &mut Cli::command(), "kjit", &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

pub fn notices() -> anyhow::Result<ExitCode> {
    io::stdout().lock().write_all(include_bytes!("../../../THIRD-PARTY"))?;
    Ok(ExitCode::SUCCESS)
}

pub fn man(args: &args::Man) -> anyhow::Result<ExitCode> {
    let mut all = Cli::command();
    // Shared flags belong to every command, and a command is called kjit-run, only once all is
    // built.
    all.build();
    let page = match &args.command {
        None => all,
        Some(name) => {
            let found = all.find_subcommand(name);
            let found =
                found.with_context(|| format!("no command '{name}': `kjit --help` lists them"))?;
            found.clone()
        }
    };
    let mut text = vec![];
    clap_mangen::Man::new(page).render(&mut text)?;
    io::stdout().lock().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}
