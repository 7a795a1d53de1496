//! `host_speed MODEL [THREADS [REPEATS [ISA]]]`: tokens per second on the CPU, as llama-bench counts them: a prompt of 512 tokens in one batch
//! into an empty context, and 64 tokens one at a time from an empty context; the best and the mean of some repeats.

use kjit_model::exec::{ExecOptions, Executor, KvType, Want};
use kjit_model::gguf::Gguf;
use kjit_model::host::{HostExecutor, Isa};
use std::sync::Arc;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let path = args.get(1).ok_or("which model?")?;
    let number = |i: usize, or: usize| args.get(i).map_or(Ok(or), |a| a.parse());
    let (threads, repeats) = (number(2, 2)?, number(3, 3)?);
    let isa = match args.get(4) {
        None => Isa::best(),
        Some(name) => *Isa::available().iter().find(|i| i.name() == name).ok_or("no such instruction set here")?,
    };
    let file = Arc::new(Gguf::open(path)?);
    let graph = kjit_model::arch::build(&file)?;
    let precise = std::env::var_os("PRECISE").is_some();
    let options = ExecOptions { context: 1024, kv: KvType::F16, precise, threads, batch: 512 };
    let mut exec = HostExecutor::with_isa(file, graph, options, isa)?;
    let n_vocab = exec.n_vocab() as u32;
    let mut random = 1u32;
    let mut ids = |n: usize| -> Vec<u32> {
        let mut next = || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 8) % n_vocab
        };
        (0..n).map(|_| next()).collect()
    };
    exec.feed(&ids(64), Want::Last)?;
    // With one thread, also per second of this thread's own time: what other programs take does not show in it.
    let own = || -> f64 {
        let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
        stat.split(' ').next().and_then(|ns| ns.parse().ok()).map_or(f64::NAN, |ns: f64| ns / 1e9)
    };
    let (mut prompt, mut decode) = (vec![], vec![]);
    let (mut prompt_own, mut decode_own) = (vec![], vec![]);
    for _ in 0..repeats {
        exec.truncate(0);
        let tokens = ids(512);
        let (start, busy) = (Instant::now(), own());
        exec.feed(&tokens, Want::Last)?;
        prompt.push(512.0 / start.elapsed().as_secs_f64());
        prompt_own.push(512.0 / (own() - busy));
        exec.truncate(0);
        let tokens = ids(64);
        let (start, busy) = (Instant::now(), own());
        for t in tokens {
            exec.feed(&[t], Want::Last)?;
        }
        decode.push(64.0 / start.elapsed().as_secs_f64());
        decode_own.push(64.0 / (own() - busy));
    }
    let show = |v: &[f64]| {
        let best = v.iter().copied().fold(0.0, f64::max);
        format!("best {best:.1} mean {:.1} tok/s", v.iter().sum::<f64>() / v.len() as f64)
    };
    eprintln!("{path} {} threads {threads}: tg64 {}   pp512 {}", exec.isa().name(), show(&decode), show(&prompt));
    if threads == 1 {
        eprintln!("  of own time: tg64 {}   pp512 {}", show(&decode_own), show(&prompt_own));
    }
    Ok(())
}
