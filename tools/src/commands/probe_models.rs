//! Speeds of models with random weights, in each form of launching a token: launches, graph, one
//! launch.

use kjit_engine::{Device, Engine};
use kjit_model::catalogue::{COMMON, Common, TINY};
use kjit_model::gpu::Form;
use kjit_model::gpu::card::Figure;
use kjit_model::sample::SampleOptions;
use kjit_model::session::{
    DecodeControl, OpenOptions, Persistence, SequenceId, Session, SessionError,
};
use std::sync::Arc;
use std::time::Instant;

/// The models by name, with their layers.
const REAL: [(&str, u32); 3] =
    [("SmolLM2 135M Q4_1", 30), ("Llama 3.2 1B Q4_K_M", 16), ("Llama 3.1 8B Q4_K_M", 32)];
/// Numbers of layers of the tiny model that slow devices measure instead.
const MORE_LAYERS: [u32; 3] = [1, 2, 4];
/// Maximum time of reading a model's weights once. A slower model is not measured.
const MAX_READ_SECONDS: f64 = 0.25;
/// A quick report measures fewer layers of a large model.
const QUICK_LAYERS: u32 = 8;
/// Tokens of a context.
const CONTEXT: usize = 256;
/// Number of tokens that must be equal in all forms.
const EQUAL_TOKENS: usize = 6;

/// The speeds of three models in three forms. `read`: bytes that the card reads a second.
pub fn measure(engine: &Engine, device: &Device, read: f64, quick: bool) -> Vec<Figure> {
    let (free, _) = device.memory().unwrap_or((0, 0));
    let real = REAL.into_iter().map(|(name, layers)| {
        let model = COMMON.iter().find(|model| model.name == name)?;
        let layers = if quick { layers.min(QUICK_LAYERS) } else { layers };
        let (bytes, room) = (model.bytes(layers), free.min(available()) / 2);
        let fits = (2..=layers).rev().find(|n| model.bytes(*n) <= room)?;
        ((bytes as f64) < MAX_READ_SECONDS * read).then_some((model, fits, layers))
    });
    let chosen: Option<Vec<_>> = real.collect();
    let chosen = chosen.unwrap_or_else(|| MORE_LAYERS.map(|n| (&TINY, n, n)).into());
    chosen.into_iter().flat_map(|(model, n, _)| one(engine, device, (model, n), quick)).collect()
}

/// Bytes of system memory that are free.
fn available() -> u64 {
    let said = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = said.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

fn one(
    engine: &Engine,
    device: &Device,
    (model, layers): (&Common, u32),
    quick: bool,
) -> Vec<Figure> {
    let name = |form: Form| {
        let form = form.name().replace('_', " ");
        format!("{}, {layers} layers: {form}", model.name)
    };
    let mut opened = match open(engine, device, model, layers) {
        Ok(opened) => opened,
        Err(why) => {
            return Form::ALL.map(|form| Figure::none(name(form), "tok/s", why.clone())).into();
        }
    };
    let mut first: Option<Vec<u32>> = None;
    let mut figure = |form: Form| match opened.speed(form, quick) {
        Ok(Ok((rate, tokens))) => {
            let mut figure = Figure::new(name(form), rate, "tok/s");
            if form == Form::Launches {
                figure = figure.note(format!("{} launches", opened.launches));
            }
            let before = first.get_or_insert_with(|| tokens.clone());
            if *before == tokens { figure } else { figure.note("tokens differ from launches") }
        }
        Ok(Err(why)) => Figure::none(name(form), "tok/s", why),
        Err(error) => Figure::none(name(form), "tok/s", error.to_string()),
    };
    Form::ALL.map(&mut figure).into()
}

struct Opened {
    session: Session,
    sequence: SequenceId,
    launches: usize,
}

fn open(engine: &Engine, device: &Device, model: &Common, layers: u32) -> Result<Opened, String> {
    let (gguf, graph) = model.made_up(layers).map_err(|e| e.to_string())?;
    let options = OpenOptions {
        persistent: Persistence::On,
        prefill_chunk: Some(8),
        host_ffn: Some(0),
        ..OpenOptions::new(CONTEXT)
    };
    let session = Session::on_gpu(engine, device, &Arc::new(gguf), graph, &options);
    let mut session = session.map_err(|e| e.to_string())?;
    let sequence = session.add(SampleOptions::default()).map_err(|e| e.to_string())?;
    let launches = session.gpu().map_or(0, |gpu| gpu.plan().decode.launches.len() + 1);
    Ok(Opened { session, sequence, launches })
}

type Speed = Result<(f64, Vec<u32>), String>;

impl Opened {
    /// Tokens a second in a form, and its first tokens; or the reason why there is no such form.
    fn speed(&mut self, form: Form, quick: bool) -> Result<Speed, SessionError> {
        let Some(gpu) = self.session.gpu_mut() else { return Ok(Err("no GPU".to_owned())) };
        if !gpu.set_form(form)? {
            let why = match form {
                Form::OneLaunch => gpu.plan().no_persistent.clone(),
                _ => None,
            };
            return Ok(Err(why.unwrap_or_else(|| "refused by the runtime".to_owned())));
        }
        let tokens = self.decode(EQUAL_TOKENS)?;
        let began = Instant::now();
        self.decode(EQUAL_TOKENS)?;
        let each = began.elapsed().as_secs_f64() / EQUAL_TOKENS as f64;
        let n = ((if quick { 0.3 } else { 1.0 }) / 3.0 / each.max(1e-6)) as usize;
        let n = n.clamp(EQUAL_TOKENS, CONTEXT - 2);
        let mut rates = vec![];
        for _ in 0..3 {
            let began = Instant::now();
            self.decode(n)?;
            rates.push(n as f64 / began.elapsed().as_secs_f64());
        }
        rates.sort_by(f64::total_cmp);
        Ok(Ok((rates.get(1).copied().unwrap_or(0.0), tokens)))
    }

    /// Greedily decodes `n` tokens of an empty sequence.
    fn decode(&mut self, n: usize) -> Result<Vec<u32>, SessionError> {
        self.session.truncate(self.sequence, 0)?;
        let mut tokens = vec![];
        self.session.decode_past_ends(&[(self.sequence, &[1])], &mut |_, token| {
            tokens.push(token);
            if tokens.len() >= n { DecodeControl::End } else { DecodeControl::Go }
        })?;
        Ok(tokens)
    }
}
