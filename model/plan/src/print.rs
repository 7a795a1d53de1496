//! Prints a plan: its kernels, buffers and launches.

use super::{Bind, BufferId, Dim, Plan, Program};
use std::fmt::{self, Display, Formatter};

impl Display for Dim {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Dim::Is(n) => write!(f, "{n}"),
            Dim::Tokens { per: 1, each: 1 } => f.write_str("T"),
            Dim::Tokens { per, each: 1 } => write!(f, "T/{per}"),
            Dim::Tokens { per, each } => write!(f, "T/{per}·{each}"),
            Dim::Fill { per_unit, most } => write!(f, "min({per_unit}·units, {most})"),
            Dim::Gemm { product, part, each: 1 } => write!(f, "gemm{product}.{part:?}"),
            Dim::Gemm { product, part, each } => write!(f, "gemm{product}.{part:?}·{each}"),
            Dim::Spread { per_unit, over, most } => {
                write!(f, "min({per_unit}·units/{over}, {most})")
            }
        }
    }
}

fn bind(b: &Bind, program: &Program) -> String {
    match b {
        Bind::HostParts => "the CPU's rows".to_owned(),
        Bind::Buffer(id) => program.buffers.get(id.0 as usize).map_or("?", |b| &b.name).to_string(),
        Bind::Matrix(w) => format!("W{}", w.0),
        Bind::Vector(w) => format!("v{}", w.0),
        Bind::Rope(r) => format!("rope{}", r.0),
        Bind::Keys(c) => format!("keys{}", c.0),
        Bind::Values(c) => format!("values{}", c.0),
        Bind::Control(c) => format!("{c:?}").to_lowercase(),
        Bind::Null => "-".to_string(),
        Bind::Dim(d) => d.to_string(),
        Bind::U32(n) => n.to_string(),
        Bind::U64(n) => n.to_string(),
        Bind::Elements(n) => format!("T·{n}"),
        Bind::Chosen(c) => format!("{c:?}").to_lowercase(),
        Bind::F32(x) => x.to_string(),
        Bind::Meeting(m) => format!("{m:?}").to_lowercase(),
    }
}

fn program(f: &mut Formatter<'_>, name: &str, plan: &Plan, p: &Program) -> fmt::Result {
    writeln!(
        f,
        "{name}: up to {} tokens, {} launches, arena {} bytes",
        p.tokens,
        p.launches.len(),
        p.arena
    )?;
    for b in &p.buffers {
        writeln!(
            f,
            "  buffer {}: {} bytes at {}{}",
            b.name,
            b.bytes,
            b.offset,
            if b.zeroed { ", counters" } else { "" }
        )?;
    }
    for pause in &p.pauses {
        let names = |ids: &[BufferId]| {
            let name = |id: &BufferId| p.buffers.get(id.0 as usize).map_or("?", |b| &b.name);
            ids.iter().map(name).collect::<Vec<_>>().join(", ")
        };
        let (makes, reads) = (names(pause.what.makes()), names(pause.what.reads()));
        let makes = if makes.is_empty() { "its inputs".to_owned() } else { makes };
        writeln!(f, "  before launch {}: the CPU computes {makes} from {reads}", pause.at)?;
    }
    for l in &p.launches {
        let [x, y, z] = l.grid;
        let entry = plan.jobs.get(l.job.0 as usize).map_or("?", |j| j.entry);
        let args: Vec<String> = l.args.iter().map(|a| bind(a, p)).collect();
        writeln!(
            f,
            "  {}: {entry}#{} <{x}, {y}, {z}> x {} +{} ({})",
            l.name,
            l.job.0,
            l.block,
            l.shared,
            args.join(", ")
        )?;
    }
    Ok(())
}

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "plan for {}: {} kernels", self.target, self.jobs.len())?;
        for (i, j) in self.jobs.iter().enumerate() {
            writeln!(
                f,
                "kernel {i}: {} wave {} {}",
                j.job.source.name(),
                j.job.options.wave,
                j.job.constants
            )?;
        }
        program(f, "decode", self, &self.decode)?;
        if let Some(why) = &self.no_prompts {
            writeln!(f, "prompts run token by token: {why}")?;
        }
        self.prompts.iter().try_for_each(|p| program(f, "prompt", self, p))?;
        self.copying()
            .into_iter()
            .try_for_each(|p| program(f, "prompt with its experts copied", self, p))?;
        self.image.iter().try_for_each(|p| program(f, "an image", self, p))?;
        self.batches
            .iter()
            .try_for_each(|b| program(f, "concurrent sequences", self, &b.program))?;
        self.drafts.iter().try_for_each(|b| program(f, "drafted tokens", self, &b.program))
    }
}
