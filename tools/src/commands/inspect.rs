//! `kjit inspect`: what is in a model file.

use crate::args::{self, Shared};
use crate::report::bytes;
use kjit_model::gguf::{Gguf, Summary};
use kjit_model::graph::Graph;
use kjit_model::session::{KvType, OpenOptions};
use serde_json::json;
use std::io::{self, Write};
use std::process::ExitCode;

pub fn inspect(args: &args::Inspect, shared: &Shared) -> anyhow::Result<ExitCode> {
    let gguf = Gguf::open(args.model.path(shared)?)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.graph {
        write!(out, "{}", kjit_model::arch::build(&gguf)?)?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    let summary = gguf.summary();
    // A file whose architecture kjit cannot run (or a vocabulary alone) is inspected all the same.
    let memory = kjit_model::arch::build(&gguf).map(|graph| Memory::of(&graph, args));
    if args.json {
        let mut doc = document(&summary);
        if let Some(map) = doc.as_object_mut() {
            map.insert(
                "memory".into(),
                match &memory {
                    Ok(m) => json!({ "weights": m.weights, "kv": m.kv, "context": m.context }),
                    Err(e) => json!({ "not_runnable": e.to_string() }),
                },
            );
        }
        serde_json::to_writer(&mut out, &doc)?;
        writeln!(out)?;
    } else {
        write!(out, "{summary}")?;
        match memory {
            Ok(m) => writeln!(
                out,
                "memory: weights {} + KV {} at {} tokens of context",
                bytes(m.weights),
                bytes(m.kv),
                m.context
            )?,
            Err(e) => writeln!(out, "cannot be run: {e}")?,
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// What running the model takes.
struct Memory {
    weights: u64,
    kv: u64,
    context: usize,
}

impl Memory {
    fn of(graph: &Graph, args: &args::Inspect) -> Memory {
        let context = OpenOptions { context: args.context, ..OpenOptions::default() }.context_of(graph);
        let weights = graph.weights.iter().map(|w| w.bytes() as u64).sum();
        Memory {
            weights,
            kv: KvType::from(args.kv_type).bytes(graph.kv_elems_per_token()).saturating_mul(context as u64),
            context,
        }
    }
}

fn document(s: &Summary) -> serde_json::Value {
    let metadata: Vec<_> = s.metadata.iter().map(|k| json!({ "key": k.key, "type": k.ty, "value": k.value })).collect();
    let tensors: Vec<_> = s
        .tensors
        .iter()
        .map(|t| json!({ "name": t.name(), "type": t.ty().to_string(), "shape": t.dims(), "bytes": t.bytes(), "offset": t.data_offset() }))
        .collect();
    let mix: Vec<_> = s
        .mix
        .iter()
        .map(|m| json!({ "type": m.ty.to_string(), "tensors": m.tensors, "elements": m.elements, "bytes": m.bytes }))
        .collect();
    json!({
        "files": s.files, "version": s.version, "bytes": s.file_bytes, "alignment": s.alignment, "data_start": s.data_start,
        "parameters": s.elements, "tensor_bytes": s.tensor_bytes, "metadata": metadata, "mix": mix, "tensors": tensors,
    })
}
