//! Opens a model with the options of the command line.

use crate::args::{Setup, Shared};
use crate::engine::config;
use crate::loading::Loading;
use crate::report::{bytes, say};
use kjit_engine::{Target, Trace};
use kjit_model::gpu::VerifyStatistics;
use kjit_model::session::{OpenOptions, Output, Persistence, Probe, SequenceId, StageRunner};
use kjit_model::{DeviceChoice, Model, SampleOptions};
use std::path::Path;

/// Options for opening the model of a command.
#[derive(Default)]
pub struct LoadOptions<'a> {
    /// The trace to write, if any.
    pub trace: Option<&'a Trace>,
    /// Whether opening ends when the kernels for single tokens are compiled, before the others.
    pub early: bool,
    /// Whether the same tokens and scores are promised each time. Then measured rates must not
    /// decide which layers the CPU computes: without a flag, layers that do not fit are copied.
    pub steady: bool,
    /// Whether drafts are used.
    pub drafts: bool,
    /// Number of sequences; 0 means one.
    pub sequences: usize,
    /// The requested output.
    pub output: Output,
    /// Rows of an image that attend to each other; 0: none.
    pub image_rows: usize,
    /// Whether to record a timeline of the kernel of a whole token.
    pub probe: Probe,
}

impl Setup {
    /// The options for opening a model with these flags.
    pub fn options(&self) -> OpenOptions {
        OpenOptions {
            context: self.context,
            kv: self.kv_type.into(),
            precise: self.precise,
            reproducible: self.reproducible,
            prefill_chunk: self.prefill_chunk,
            persistent: self.persistent.into(),
            memory: self.room.memory.map(|size| size.0),
            stream: self.room.stream,
            split: self.placing.split.into(),
            host_layers: self.placing.host_layers,
            host_experts: self.placing.host_experts.unwrap_or(0),
            host_ffn: self.placing.host_ffn,
            hot_experts: self.placing.hot_experts.map(|size| size.0),
            host_prompts: self.placing.host_prompts.into(),
            adapters: self.lora.iter().map(|one| one.0.clone()).collect(),
            ..OpenOptions::default()
        }
    }
}

/// Opens a model and prints notes about it.
pub fn open(
    path: &Path,
    setup: &Setup,
    shared: &Shared,
    how: &LoadOptions,
) -> anyhow::Result<Model> {
    let mut setup_of_engine = config(shared);
    if let Some(trace) = how.trace {
        setup_of_engine = setup_of_engine.trace(trace.clone());
    }
    let options = OpenOptions {
        device: shared.device.clone(),
        threads: shared.threads.map_or_else(kjit_model::host::default_threads, usize::from),
        early: how.early,
        drafts: how.drafts,
        sequences: how.sequences.max(1),
        output: how.output,
        probe: how.probe,
        image_rows: how.image_rows,
        host_ffn: setup.placing.host_ffn.or(how.steady.then_some(0)),
        ..setup.options()
    };
    let span = how.trace.map(|t| t.span("host", "open the model"));
    let bar = Loading::begin(path, shared);
    let model = Model::open_with(path, &options, setup_of_engine);
    drop((bar, span));
    let model = model?;
    if shared.quiet {
        return Ok(model);
    }
    model.gguf.remarks().iter().for_each(|line| say(format_args!("note: {line}")));
    model.tokenizer.remarks().iter().for_each(|line| say(format_args!("warning: {line}")));
    let cores = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
    if options.threads > cores.saturating_mul(2) && model.session.cpu().is_some() {
        let threads = options.threads;
        say(format_args!(
            "warning: {threads} threads wait for each other on {cores} cores: \
             give --threads {cores}"
        ));
    }
    let (context, trained) = (model.session.context(), model.session.graph().context);
    if context > trained {
        say(format_args!(
            "note: \
             a context of {context} is more than the {trained} tokens the model was trained on"
        ));
    }
    let here = model.session.gpu().is_some_and(|gpu| gpu.early().is_some())
        || model.kernels().compiled > 0;
    let target = Target::parse(&model.device().arch).ok().filter(|_| here);
    if let Some(why) =
        target.zip(model.engine()).and_then(|(target, engine)| engine.packs_lack(&target))
    {
        say(format_args!("note: kernels are compiled here: {why}"));
    }
    say(format_args!("device: {}", model.device()));
    if let Some(gpu) = model.session.gpu() {
        let streamed = gpu.statistics().streamed;
        if let Some(streamed) = streamed {
            say(streamed);
            if how.steady && setup.placing.host_ffn.is_none() && !options.stream {
                say("this command gives the same tokens each time, \
                 so all streamed weights are copied to the GPU; \
                 --host-ffn N computes N layers' feed-forward part on the CPU");
            }
        }
        let cannot = streamed.is_some() || !gpu.plan().decode.pauses.is_empty();
        if let (true, Persistence::On, Some(why)) =
            (cannot, options.persistent, &gpu.plan().no_persistent)
        {
            say(format_args!("--persistent on has no effect: {why}"));
        }
    }
    if shared.verbose > 0 && model.device().stages.len() > 1 {
        for (runner, stage) in model.session.stages().into_iter().zip(&model.device().stages) {
            let said = match runner {
                StageRunner::Cpu(_) => "on the CPU, from the mapped file".to_owned(),
                StageRunner::Gpu(gpu) => {
                    let s = gpu.statistics();
                    format!("{} of weights, {} of keys and values", bytes(s.weights), bytes(s.kv))
                }
            };
            let link = match runner {
                StageRunner::Gpu(gpu) => {
                    gpu.link().map_or(String::new(), |link| format!("; rows arrive {link}"))
                }
                StageRunner::Cpu(_) => String::new(),
            };
            let sums = match runner {
                StageRunner::Gpu(gpu) => {
                    gpu.sums_go().map_or(String::new(), |way| format!("; sums go {way}"))
                }
                StageRunner::Cpu(_) => String::new(),
            };
            say(format_args!("{stage}: {said}{link}{sums}"));
        }
    }
    if let Some(gpu) = model.session.gpu().filter(|_| shared.verbose > 0) {
        let VerifyStatistics { run, known, seconds, parts, runs, longest } =
            gpu.statistics().proven;
        if run + known > 0 {
            let [cases, copies, all_runs] = parts.map(|seconds| seconds * 1e3);
            let parts =
                format_args!("cases {cases:.0} ms, copies {copies:.0} ms, runs {all_runs:.0} ms");
            let ms = seconds * 1e3;
            say(format_args!(
                "tested {run} kernels in {ms:.0} ms ({parts}); {known} had passed before"
            ));
            if shared.verbose > 1 {
                let [placing, kernels, reading, comparing] = runs.map(|seconds| seconds * 1e3);
                let marks = all_runs - (placing + kernels + reading + comparing);
                say(format_args!(
                    "of the runs: {placing:.1} ms placing inputs, {kernels:.1} ms kernels, \
                     {reading:.1} ms reading back, {comparing:.1} ms comparing, \
                     {marks:.1} ms marks and other work; the longest {:.1} ms",
                    longest * 1e3
                ));
            }
        }
        say(format_args!("tokens run as: {}", gpu.form().name().replace('_', " ")));
        let asked = options.persistent == Persistence::On;
        match (gpu.persistent(), &gpu.plan().no_persistent) {
            (Some((steps, most)), _) => {
                let least = gpu.plan().persistent.first().map_or(1, |one| one.rows);
                match most {
                    1 => say(format_args!("a token is one launch of {steps} steps")),
                    n if n == least => say(format_args!(
                        "a token of each of {n} sequences is one launch of {steps} steps"
                    )),
                    n => say(format_args!(
                        "a token of each of up to {n} sequences is one launch of {steps} steps"
                    )),
                }
                if let Some(why) =
                    gpu.plan().persistent.first().and_then(|one| one.one_chooses.as_ref())
                {
                    say(format_args!(
                        "one block chooses the experts for all others, which is slower: {why}"
                    ));
                }
            }
            (None, Some(why)) if asked => say(format_args!(
                "--persistent on has no effect (each token needs many launches): {why}"
            )),
            (None, None) if gpu.early().is_some_and(|early| early.status().one_launch_late) => {
                say("a token is many launches until the kernel for the whole token is compiled");
            }
            (None, None) if asked && !gpu.plan().persistent.is_empty() => {
                say("--persistent on has no effect: \
                    this device does not support cooperative launches");
            }
            (None, _) => {}
        }
    }
    Ok(model)
}

/// Opens a model with one sequence, as most commands need.
pub fn open_one(
    path: &Path,
    setup: &Setup,
    shared: &Shared,
    how: &LoadOptions,
) -> anyhow::Result<(Model, SequenceId)> {
    let mut model = open(path, setup, shared, how)?;
    let sequence = model.session.add(SampleOptions::default())?;
    Ok((model, sequence))
}

/// Bytes of all weights, and bytes of the weights that a decoded token reads.
pub fn weights(model: &Model) -> (u64, u64) {
    let graph = model.session.graph();
    (graph.weights.iter().map(|w| w.bytes() as u64).sum(), graph.bytes_per_token())
}

/// The GPU that `--device` names. `None` for `auto`.
pub fn named_gpu(shared: &Shared) -> Option<String> {
    matches!(shared.device, DeviceChoice::Gpu { .. }).then(|| shared.device.to_string())
}
