//! `kjit completions`, `kjit man` and `kjit notices`: files for a package, made by the program.

use crate::args::{self, Cli};
use anyhow::Context;
use clap::CommandFactory;
use std::io::{self, Write};
use std::process::ExitCode;

pub fn completions(args: &args::Completions) -> anyhow::Result<ExitCode> {
    // Written into memory first: the generator panics if its writer fails, as on a closed pipe.
    let mut script = vec![];
    clap_complete::generate(args.shell, &mut Cli::command(), "kjit", &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

pub fn notices() -> anyhow::Result<ExitCode> {
    io::stdout().lock().write_all(include_bytes!("../../THIRD-PARTY"))?;
    Ok(ExitCode::SUCCESS)
}

pub fn man(args: &args::Man) -> anyhow::Result<ExitCode> {
    let mut all = Cli::command();
    // Only building adds the shared flags to each command and names it `kjit-run`.
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
