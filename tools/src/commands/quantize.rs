//! `kjit quantize`: writes a GGUF file with different formats.

use crate::args::{self, Shared};
use crate::interrupt::Interrupt;
use crate::report::{INTERRUPTED, bytes, say};
use indicatif::{ProgressBar, ProgressStyle};
use kjit_model::gguf::Gguf;
use kjit_model::host::default_threads;
use kjit_quantize::{Imatrix, Options, Plan, QuantizeError};
use serde_json::json;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Instant;

pub fn quantize(args: &args::Quantize, shared: &Shared) -> anyhow::Result<ExitCode> {
    let gguf = Gguf::open(args.model.path(shared)?)?;
    let imatrix = args.imatrix.as_deref().map(Imatrix::read).transpose()?;
    let options = Options {
        imatrix,
        keep: args.keep.clone(),
        output: args.output_type,
        set: args.set.clone(),
        unset: args.unset.clone(),
        split: args.split_max_size.map(|size| size.0),
        ..Options::new(args.mixture)
    };
    let plan = Plan::of(&gguf, &options)?;
    if !shared.quiet {
        let notes = gguf.remarks().iter().chain(&plan.notes);
        notes.for_each(|line| say(format_args!("note: {line}")));
    }
    let started = Instant::now();
    if !args.dry_run {
        let watch = Interrupt::watch();
        let show = !shared.quiet && io::stderr().is_terminal();
        let bar = if show { ProgressBar::new(1) } else { ProgressBar::hidden() };
        let style = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {msg}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        let mut progress = |tensor: &str, done: u64, total: u64| {
            bar.set_length(total);
            bar.set_position(done);
            bar.set_message(tensor.to_owned());
            if watch.came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let threads = shared.threads.map_or_else(default_threads, usize::from);
        let imatrix = options.imatrix.as_ref();
        let written = plan.write(&gguf, imatrix, &args.out, args.force, threads, &mut progress);
        bar.finish_and_clear();
        match written {
            Err(QuantizeError::Interrupted) => {
                say("interrupted: no file was written");
                return Ok(ExitCode::from(INTERRUPTED));
            }
            written => written?,
        };
    }
    print(args, &gguf, &plan, started.elapsed().as_secs_f64())?;
    Ok(ExitCode::SUCCESS)
}

fn print(args: &args::Quantize, gguf: &Gguf, plan: &Plan, seconds: f64) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let paths = plan.paths(&args.out);
    if args.json {
        let tensor = |t: &kjit_quantize::PlannedTensor| json!({ "name": t.name, "dims": t.dims, "from": t.from.name, "to": t.to.name, "bytes": t.bytes });
        let tensors: Vec<_> = plan.tensors.iter().map(tensor).collect();
        let document = json!({
            "files": paths, "bytes": plan.bytes(), "bits_per_weight": plan.bits_per_weight(),
            "seconds": seconds, "written": !args.dry_run, "tensors": tensors,
        });
        writeln!(out, "{document}")?;
        return out.flush();
    }
    if args.dry_run {
        for t in &plan.tensors {
            let dims: Vec<String> = t.dims.iter().map(u64::to_string).collect();
            writeln!(out, "{:<40} {:>16} {:>6} → {}", t.name, dims.join(" × "), t.from, t.to)?;
        }
    }
    let name = match &paths[..] {
        [one] => one.display().to_string(),
        [first, ..] => format!("{} and {} more", first.display(), paths.len() - 1),
        [] => String::new(),
    };
    let (from, to) = (bytes(gguf.file_bytes()), bytes(plan.bytes()));
    let bits = plan.bits_per_weight();
    let how = if args.dry_run { "would be".to_owned() } else { format!("{seconds:.1} s,") };
    writeln!(out, "{name}: {how} {to} instead of {from}, {bits:.2} bits per weight")?;
    out.flush()
}
