//! `kjit devices`: what can compute here.

use crate::args::{self, Shared};
use kjit_model::host::Cpu;
use serde_json::json;
use std::io::{self, Write};
use std::process::ExitCode;

pub fn devices(args: &args::Json, _shared: &Shared) -> anyhow::Result<ExitCode> {
    let cpu = Cpu::here();
    let mut out = io::stdout().lock();
    if args.json {
        let cpu = json!({
            "device": "cpu", "kind": "cpu", "name": cpu.name, "arch": std::env::consts::ARCH, "cores": cpu.cores,
            "paths": cpu.paths, "path": cpu.path,
        });
        writeln!(
            out,
            "{}",
            json!({ "devices": [cpu], "gpus": "not looked for: this version of kjit has no GPU driver" })
        )?;
    } else {
        writeln!(
            out,
            "cpu: {}, {}, {} cores, computes with {}",
            cpu.name,
            std::env::consts::ARCH,
            cpu.cores,
            cpu.path
        )?;
        writeln!(out, "gpu: not looked for (this version of kjit has no GPU driver)")?;
    }
    Ok(ExitCode::SUCCESS)
}
