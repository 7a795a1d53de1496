//! `kjit serve`: serves models over HTTP.

use crate::args::{self, Shared};
use crate::engine::config;
use crate::interrupt::Interrupt;
use crate::model::{ModelName, Wanted};
use crate::report::{INTERRUPTED, say};
use anyhow::{Context, bail};
use kjit_kernels::kv::PAGE;
use kjit_model::gguf::Gguf;
use kjit_model::gpu::plan::copies_beside;
use kjit_model::session::{AdapterFile, OpenOptions, Split};
use kjit_model::{DeviceChoice, arch};
use kjit_server::{
    End, Keys, Limits, Options, Origins, Served, Tls, TraceExport, Worker, serve as run,
};
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Default number of concurrent sequences, each with a full context.
const USUAL_SEQUENCES: usize = 4;
/// Maximum number of concurrent sequences, if --kv-memory is given and --max-sequences is not.
const MAX_SEQUENCES: usize = 64;
/// Maximum number of copies of recurrent states for a sequence without pages.
const COPIES: usize = 8;

pub fn serve(args: &args::Serve, shared: &Shared) -> anyhow::Result<ExitCode> {
    let models: Vec<&ModelName> = args.models.iter().chain(&args.model_file).collect();
    if models.len() > 1 {
        alone(args, models.len())?;
    }
    let wanted = match args.mmproj.is_some() || args.no_mmproj {
        true => Wanted::No,
        false => Wanted::IfThere,
    };
    let path = |model: &ModelName| {
        let (path, encoder) = model.with_encoder(shared, wanted)?;
        anyhow::Ok((path.into_owned(), encoder))
    };
    let paths = models.into_iter().map(path).collect::<anyhow::Result<Vec<_>>>()?;
    let (paths, encoders): (Vec<PathBuf>, Vec<Option<PathBuf>>) = paths.into_iter().unzip();
    // From here on the server handles Ctrl-C. A second Ctrl-C ends it immediately.
    let _interrupt = Interrupt::watch();
    let keys = match &args.api_key_file {
        None => Keys::default(),
        Some(file) => {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            let keys =
                Keys::parse(&text).map_err(|why| anyhow::anyhow!("{}: {why}", file.display()))?;
            if keys.is_empty() {
                bail!(
                    "{} has no key: write one per line; lines that begin with # are comments",
                    file.display()
                );
            }
            keys
        }
    };
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            Some(Tls::read(certificate, key).map_err(anyhow::Error::msg)?)
        }
        _ => None,
    };
    let host = address(&args.host)?;
    let (limits, idle) = (Limits::default(), Duration::from_secs(args.idle_timeout));
    let open = OpenOptions {
        device: device(args, shared)?,
        threads: shared.threads.map_or_else(kjit_model::host::default_threads, usize::from),
        drafts: args.lookup.is_some_and(args::Switch::is_on),
        adapters: vec![],
        ..args.setup.options()
    };
    let options = Options {
        idle_unload: args.idle_unload(),
        // With --idle-unload 0 models stay loaded, whatever clients request.
        keep_alive: args.idle_unload != Some(0),
        engine: config(shared),
        template: args.template.clone(),
        host,
        port: args.port,
        tls,
        keys,
        share_prefixes: args.share_prefixes,
        literal_user_text: args.literal_user_text,
        allow_fetch: args.allow_fetch,
        strict_fields: args.strict_fields,
        origins: Origins { named: args.cors.clone(), loopback: host.is_loopback() },
        allow_anyone: args.allow_anyone,
        max_queue: args.max_queue,
        token_budget: args.token_budget,
        latency_target: Duration::from_millis(args.latency_target as u64),
        lookup: args.lookup.map(args::Switch::is_on),
        limits: Limits {
            connections: args.max_connections,
            body: args.max_body(),
            bodies: limits.bodies.max(args.max_body().saturating_mul(2)),
            headers: limits.headers.min(idle),
            idle,
            stop: Duration::from_secs(args.stop_timeout),
            drain: Duration::from_secs(args.drain_delay),
            ..limits
        },
        worker: worker(args),
        sockets: super::ps::folders(),
        saved_pages: args.saved_pages(),
        kv_events: args.kv_events(),
        traces: traces(args)?,
        reasoning_budget: args.reasoning_budget,
        say: if shared.quiet { |_| () } else { |line| say(line) },
        ..Options::new(served(args, (&paths, &encoders), &open)?)
    };
    Ok(match run(options)? {
        End::Terminated => ExitCode::SUCCESS,
        End::Interrupted => ExitCode::from(INTERRUPTED),
    })
}

/// The export of traces, with OpenTelemetry's variables.
fn traces(args: &args::Serve) -> anyhow::Result<Option<TraceExport>> {
    let Some(mut export) = args.otlp_traces_endpoint.clone() else { return Ok(None) };
    let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    if let Some(name) = variable("OTEL_SERVICE_NAME") {
        export = export.named(name);
    }
    if let Some(headers) = variable("OTEL_EXPORTER_OTLP_HEADERS") {
        let added = export.with_headers(&headers).map_err(anyhow::Error::msg);
        export = added.context("OTEL_EXPORTER_OTLP_HEADERS")?;
    }
    Ok(Some(export))
}

/// Parses an address, or resolves a name.
fn address(host: &str) -> anyhow::Result<IpAddr> {
    if let Ok(address) = host.trim_matches(['[', ']']).parse() {
        return Ok(address);
    }
    let found = (host, 0).to_socket_addrs().with_context(|| format!("--host {host}"))?.next();
    found
        .map(|address| address.ip())
        .with_context(|| format!("--host {host}: this name has no address"))
}

/// The device: `--device`, `--rocm-device` or `--cuda-device`.
fn device(args: &args::Serve, shared: &Shared) -> anyhow::Result<DeviceChoice> {
    let label = match (args.rocm_device, args.cuda_device) {
        (Some(n), _) => format!("rocm:{n}"),
        (None, Some(n)) => format!("cuda:{n}"),
        (None, None) => return Ok(shared.device.clone()),
    };
    if shared.device != DeviceChoice::Auto {
        bail!("--device {} with --rocm-device or --cuda-device: give one of them", shared.device);
    }
    label.parse().map_err(anyhow::Error::msg)
}

/// Refuses options that only work with a single model, if there are several.
fn alone(args: &args::Serve, models: usize) -> anyhow::Result<()> {
    if args.worker_id.is_some() {
        bail!("a worker of a fleet has one model: give one model, or remove --worker-id");
    }
    if Split::from(args.setup.placing.split) == Split::Tensor {
        // Two models that both need all blocks of all devices would wait for each other forever,
        // each with one device.
        bail!(
            "--split tensor is for one model: \
             {models} are given, which would wait for each other's devices"
        );
    }
    if args.mmproj.is_some() {
        bail!("--mmproj is for one model: {models} are given");
    }
    if !args.setup.lora.is_empty() || args.max_loras.is_some() {
        bail!("--lora and --max-loras are for one model: {models} are given");
    }
    if args.kv_events.is_some() {
        bail!("--kv-events is for one model: {models} are given");
    }
    if args.template.is_some() {
        bail!("--template is for one model: {models} are given, each with its own");
    }
    let names = args.alias.len();
    if names != 0 && names != models {
        bail!("--alias: {names} given for {models} models: give one for each, in their order");
    }
    Ok(())
}

/// The models, with their options and names.
fn served(
    args: &args::Serve,
    (paths, encoders): (&[PathBuf], &[Option<PathBuf>]),
    open: &OpenOptions,
) -> anyhow::Result<Vec<Served>> {
    let one = |(i, path): (usize, &PathBuf)| {
        let aliases =
            if paths.len() > 1 { args.alias.get(i..=i).unwrap_or_default() } else { &args.alias };
        let (sequences, paged) = sequences(args, path, open)?;
        // No number was given: use as many as memory allows.
        let fewer = args.kv_memory().is_some() && args.max_sequences.is_none();
        let open = OpenOptions { sequences, fewer, paged, ..open.clone() };
        let must_page = args.kv_pages.is_some_and(args::Switch::is_on);
        let shared_memory =
            args.kv_memory().map(|bytes| (bytes, args.max_sequences.unwrap_or(MAX_SEQUENCES)));
        let mut names = names(args, aliases, path);
        // If there are aliases, a file name that two models share is not used as a name.
        if !aliases.is_empty()
            && paths.iter().filter(|other| short(other) == short(path)).count() > 1
        {
            names.truncate(aliases.len());
        }
        let files: Vec<AdapterFile> = args.setup.lora.iter().map(|one| one.0.clone()).collect();
        let found = encoders.get(i).cloned().flatten();
        let mmproj_is_optional = args.mmproj.is_none();
        let mmproj = args.mmproj.clone().or(found);
        let served = Served {
            open,
            shared_memory,
            mmproj,
            mmproj_is_optional,
            must_page,
            ..Served::new(path.clone(), names)
        };
        match args.max_loras {
            None => Ok(served.with_adapters(&files)),
            Some(slots) => {
                let counts = (slots, args.max_lora_rank, args.max_cpu_loras);
                served.with_adapter_store(counts, &files).map_err(anyhow::Error::msg)
            }
        }
    };
    paths.iter().enumerate().map(one).collect()
}

/// Names of a model for clients: its aliases, the fleet's name, and the file's name.
fn names(args: &args::Serve, aliases: &[String], model: &Path) -> Vec<String> {
    aliases.iter().chain(&args.model_ref).cloned().chain(short(model)).collect()
}

/// Name of a file without its extension. For a folder: its name, such as `Qwen3-0.6B` (also if the
/// path is `.`), or the name of the repository if the folder is in the hub's cache.
fn short(model: &Path) -> Option<String> {
    match model.is_dir() {
        true => Some(kjit_model::folder::name(model)).filter(|name| !name.is_empty()),
        false => model.file_stem().map(|name| name.to_string_lossy().into_owned()),
    }
}

fn worker(args: &args::Serve) -> Option<Worker> {
    let id = args.worker_id.clone()?;
    let model_ref = args.model_ref.clone().unwrap_or_default();
    Some(Worker { id, model_ref, hive: args.hive_url.clone() })
}

/// Number of sequences: the given number, or the number that fits into the given memory. Also the
/// number of tokens of all sequences together, if keys and values are paged.
fn sequences(
    args: &args::Serve,
    model: &Path,
    open: &OpenOptions,
) -> anyhow::Result<(usize, Option<usize>)> {
    let (memory, asked) = (args.kv_memory(), args.kv_pages.map(args::Switch::is_on));
    let usual = args.max_sequences.unwrap_or(USUAL_SEQUENCES);
    let build = |gguf: Gguf| arch::build(&gguf).with_context(|| model.display().to_string());
    let graph = match Gguf::open(model).map_err(anyhow::Error::from).and_then(build) {
        Ok(graph) => graph,
        // Faults of the model file are reported when it is opened.
        Err(_) if memory.is_none() && asked != Some(true) => return Ok((usual, None)),
        Err(error) => return Err(error),
    };
    let paged = match (asked, open.may_page(&graph)) {
        (Some(true), Err(why)) => {
            bail!(
                "--kv-pages on: {}: {why}; without --kv-pages each sequence has its own memory",
                model.display()
            )
        }
        (asked, may) => may.is_ok() && asked.unwrap_or(true),
    };
    let context = open.context_of(&graph);
    let token = open.kv_stored().bytes(graph.kv_elems_per_token());
    // Bytes of states of constant size, and of copies of them.
    let state = 4 * graph.recurrent_elems() as u64;
    let copies = if paged { copies_beside(1) } else { COPIES };
    let each = token
        .saturating_mul(context as u64)
        .saturating_add(state.saturating_mul(1 + copies as u64))
        .max(1);
    let Some(bytes) = memory else {
        return Ok((usual, paged.then(|| usual.saturating_mul(context.next_multiple_of(PAGE)))));
    };
    let fit = usize::try_from(bytes / each).unwrap_or(usize::MAX);
    if fit == 0 {
        bail!(
            "--kv-memory: a sequence of {context} tokens takes {}: give more, or a smaller -c",
            crate::report::bytes(each)
        );
    }
    let most = args.max_sequences.unwrap_or(MAX_SEQUENCES);
    if !paged {
        return Ok((fit.min(most), None));
    }
    let (n, left) = beside_states(
        bytes,
        state,
        token.saturating_mul(context as u64),
        most,
        args.max_sequences.is_some(),
    );
    // A model that has only states of constant size needs no memory per token. Pages are counted
    // nevertheless.
    let tokens =
        left.checked_div(token).map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX));
    Ok((n, Some(tokens.unwrap_or_else(|| 4 * n * context.next_multiple_of(PAGE)))))
}

/// Number of sequences with constant states, and bytes left for pages: at least one whole context.
/// If no number was given, states get at most half of the memory: with very few pages, sequences
/// would wait for each other.
fn beside_states(bytes: u64, state: u64, context: u64, most: usize, asked: bool) -> (usize, u64) {
    let left = |n: usize| bytes.checked_sub(state.saturating_mul((n + copies_beside(n)) as u64));
    let half = if asked || context == 0 { 0 } else { bytes / 2 };
    let fits = |least: u64, n: usize| {
        left(n).filter(|left| *left >= least.max(context)).map(|left| (n, left))
    };
    let found = (1..=most).rev().find_map(|n| fits(half, n));
    // If this is impossible even for one sequence: a few sequences, and the rest for pages.
    found
        .or_else(|| (1..=most.min(USUAL_SEQUENCES)).rev().find_map(|n| fits(0, n)))
        .unwrap_or((1, bytes))
}

#[cfg(test)]
mod tests {
    use super::{beside_states, short};
    use std::path::Path;

    #[test]
    fn served_model_name_is_independent_of_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        for (folder, name) in [
            ("models--org--Small-0.6B/snapshots/0123abcd", "Small-0.6B"),
            ("Mine-0.6B", "Mine-0.6B"),
        ] {
            let folder = dir.path().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            assert_eq!(short(&folder).as_deref(), Some(name));
        }
        assert_eq!(
            short(Path::new("/models/small-0.6b.Q8_0.gguf")).as_deref(),
            Some("small-0.6b.Q8_0")
        );
        assert_eq!(short(Path::new("/")), None);
    }

    #[test]
    fn large_states_leave_half_of_memory_for_pages() {
        const GB: u64 = 1 << 30;
        let (state, context) = (100 << 20, 32 << 20);
        // 64 sequences with this number of copies need more than all memory, and 50 sequences leave
        // only one context.
        assert_eq!(beside_states(10 * GB, state, context, 64, false), (25, 10 * GB - 50 * state));
        // A given number is used if one context is left.
        assert_eq!(beside_states(10 * GB, state, context, 40, true), (40, 10 * GB - 80 * state));
        assert_eq!(beside_states(10 * GB, state, context, 64, true).0, 51);
        // States of constant size only, small states, and memory for a few sequences.
        assert_eq!(beside_states(10 * GB, state, 0, 64, false), (51, 10 * GB - 102 * state));
        assert_eq!(
            beside_states(10 * GB, 1 << 20, context, 64, false),
            (64, 10 * GB - (128 << 20))
        );
        assert_eq!(beside_states(GB + context, state, context, 64, false).0, 2);
    }
}
