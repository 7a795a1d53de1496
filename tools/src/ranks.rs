//! `--split ranks`: this process is one of several, and only rank 0 answers.

use crate::args::{Cli, Command, PlacementArgs};
use anyhow::{Context, bail};
use kjit_model::ranks::Ranks;
use kjit_model::session::Split;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether another rank answers.
static OTHER_RANK_ANSWERS: AtomicBool = AtomicBool::new(false);

/// NVIDIA's library reads it in its first call. Its purpose is described in `driver/collective.rs`
/// of the engine.
const MULTICAST: &str = "NCCL_NVLS_ENABLE";

/// Prepares the process for `--split ranks`: sets the variable, and makes all ranks except the
/// first silent, apart from errors.
pub fn prepare(cli: &mut Cli) -> anyhow::Result<()> {
    let asked = |placing: &PlacementArgs| Split::from(placing.split) == Split::Ranks;
    match &cli.command {
        Command::Run(a) if asked(&a.setup.placing) && a.trace.is_some() => {
            bail!("--split ranks: all ranks would write one trace: remove --trace")
        }
        Command::Bench(a) if asked(&a.setup.placing) && a.kernels => {
            bail!("--split ranks: --kernels is for one device")
        }
        Command::Run(a) if asked(&a.setup.placing) => {}
        Command::Bench(a) if asked(&a.setup.placing) => {}
        Command::Logits(a) if asked(&a.setup.placing) => {}
        Command::Perplexity(a) if asked(&a.placing) => {}
        Command::Serve(a) if asked(&a.setup.placing) => refused("serve")?,
        Command::Embed(a) if asked(&a.setup.placing) => refused("embed")?,
        Command::Warm(a) if asked(&a.setup.placing) => refused("warm")?,
        _ => return Ok(()),
    }
    let ranks = Ranks::from_env()?;
    if std::env::var_os(MULTICAST).is_none() {
        // The library reads the environment that the process got at its start. So this process
        // executes itself again with the variable, before any other work.
        let this =
            std::env::current_exe().context("--split ranks: cannot find this program's file")?;
        let error = std::process::Command::new(this)
            .args(std::env::args_os().skip(1))
            .env(MULTICAST, "0")
            .exec();
        return Err(error).context("--split ranks: cannot start this program again");
    }
    if ranks.rank > 0 {
        OTHER_RANK_ANSWERS.store(true, Ordering::Relaxed);
        (cli.shared.quiet, cli.shared.verbose) = (true, 0);
    }
    Ok(())
}

fn refused(command: &str) -> anyhow::Result<()> {
    bail!(
        "--split ranks is for run (with a prompt), bench, logits and perplexity, not for {command}"
    )
}

/// Whether this is a rank that does not answer.
pub fn silent() -> bool {
    OTHER_RANK_ANSWERS.load(Ordering::Relaxed)
}

/// The output for answers: stdout, or nothing in a silent rank.
pub fn answers() -> Box<dyn Write> {
    if silent() { Box::new(io::sink()) } else { Box::new(io::stdout().lock()) }
}
