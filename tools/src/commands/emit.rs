//! `kjit warm --emit DIR`: writes code objects, and everything that another program needs to launch
//! them.
//!
//! `manifest.json` is an array with an object for each code object. It has the fields of `warm
//! --json`, and these: `file`, `sha256`, `source` (the main file; included files are in the same
//! folder, and the header with the same name describes the arguments), `constants` (macros to
//! define), `shape` (the content of `shape.h` in the same folder), `block` (threads of a block;
//! kernels do not read it from the launch), and `kernels`. Each kernel has `entry`, its arguments
//! by offset and size in bytes, its static LDS, and the bytes of the argument block if the code
//! object contains them. With a model, `plan-ARCH.txt` has every launch for a token and for a
//! prompt: grid, dynamic LDS, arguments.

use anyhow::Context;
use kjit_cache::Digest;
use kjit_engine::{ArgKind, CodeObject, Job, KernelInfo, Value as Constant};
use kjit_model::gpu::plan::Plan;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Writes all compiled code objects, and the plans that use them.
pub fn emit(
    dir: &Path,
    jobs: &[Job],
    results: &[kjit_engine::Result<CodeObject>],
    plans: &[Plan],
) -> anyhow::Result<()> {
    let put = |name: &str, bytes: &[u8]| {
        let file = dir.join(name);
        let made = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.and_then(|()| std::fs::write(&file, bytes))
            .with_context(|| format!("cannot write {}", file.display()))
    };
    let mut manifest = vec![];
    for (job, code) in jobs.iter().zip(results).filter_map(|(j, r)| Some((j, r.as_ref().ok()?))) {
        let digest = Digest::of(code.bytes()).hex();
        let arch = code.compile_id().replace(':', "_");
        let stem = format!("{}-{arch}-{}", job.source.name(), digest.get(..12).unwrap_or(&digest));
        let file = format!("{stem}.co");
        put(&file, code.bytes())?;
        // Each source has its own folder, because files of different formats have the same name.
        for (name, text) in std::iter::once((job.source.main_file(), job.source.main_text()))
            .chain(job.source.reached()?)
        {
            put(&format!("source/{stem}/{name}"), text.as_bytes())?;
        }
        let mut entry = describe(job, code);
        if let Some(map) = entry.as_object_mut() {
            let wanted = |k: &&KernelInfo| job.source.entries().any(|e| e == k.name);
            let more = json!({
                "file": file, "sha256": digest, "source": format!("source/{stem}/{}", job.source.main_file()),
                "constants": job.constants.iter().map(|(n, v)| (n.to_owned(), constant(v))).collect::<Map<_, _>>(),
                "shape": job.constants.told().map(|(n, v)| (n.to_owned(), constant(v))).collect::<Map<_, _>>(),
                "block": job.constants.get("KJ_BLOCK").map(constant),
                "kernels": code.kernels().iter().filter(wanted).map(kernel).collect::<Vec<_>>(),
            });
            map.extend(more.as_object().cloned().unwrap_or_default());
        }
        manifest.push(entry);
    }
    for plan in plans {
        put(
            &format!("plan-{}.txt", plan.target.id().replace(':', "_")),
            plan.to_string().as_bytes(),
        )?;
    }
    put("manifest.json", (serde_json::to_string_pretty(&manifest)? + "\n").as_bytes())
}

fn constant(value: &Constant) -> Value {
    match value {
        Constant::Int(n) => json!(n),
        other => json!(other.to_string()),
    }
}

fn kernel(k: &KernelInfo) -> Value {
    let arguments = k.args.iter().map(|a| {
        let kind = a.kind.map(|kind| match kind {
            ArgKind::Buffer => "buffer",
            ArgKind::Value => "value",
        });
        json!({ "offset": a.offset, "size": a.size, "kind": kind })
    });
    json!({
        "entry": k.name, "arguments": arguments.collect::<Vec<_>>(), "argument_bytes": k.arg_bytes, "static_lds": k.shared,
        "max_threads": k.max_threads,
    })
}

/// A kernel as JSON. If a code object has several kernels, the largest values count.
pub(super) fn describe(job: &Job, code: &CodeObject) -> Value {
    let most =
        |f: fn(&kjit_engine::KernelInfo) -> u32| code.kernels().iter().map(f).max().unwrap_or(0);
    let (registers, lds) = (most(kjit_engine::KernelInfo::all_registers), most(|k| k.shared));
    let threads = match job.constants.get("KJ_BLOCK") {
        Some(kjit_engine::Value::Int(n)) => u32::try_from(*n).unwrap_or(0),
        _ => 0,
    };
    let occupancy = job.target.occupancy(threads, registers, lds, job.options.wave).fraction();
    json!({
        "name": job.source.name(), "arch": code.compile_id(), "wave": job.options.wave, "compiler": code.compiler(),
        "seconds": (code.compile_time().as_secs_f64() * 1000.0).round() / 1000.0, "bytes": code.bytes().len(), "registers": registers,
        "spills": code.kernels().iter().filter_map(|k| k.spills).max(), "lds": lds,
        "occupancy": (occupancy * 100.0).round() / 100.0,
    })
}
