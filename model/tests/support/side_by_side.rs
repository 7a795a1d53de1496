//! Sequences decoded side by side, held against the host executor: for any device.

use super::near::off;
use kjit_model::exec::{Executor, Want};
use kjit_model::gpu::{After, GpuBatch, Slot, Start};
use kjit_model::host::HostExecutor;
use kjit_model::sample::{SampleOptions, Sampler};

/// Tokens of the sequence of this number: lengths from one to seven, no two alike.
fn sequence(number: usize, vocab: usize) -> Vec<u32> {
    (0..1 + number * 3 % 7).map(|i| ((number * 131 + i * 37 + 5) % vocab) as u32).collect()
}

/// So many sequences in slots that are not in order, some of them used before.
fn occupy(batch: &mut GpuBatch, n: usize) -> Vec<Slot> {
    let mut slots: Vec<Slot> = std::iter::from_fn(|| batch.add().ok()).collect();
    assert_eq!(slots.len(), batch.slots(), "every slot was free");
    for &slot in slots.iter().take(3) {
        batch.feed(slot, &[3, 1, 4]).unwrap();
    }
    slots.iter().for_each(|&slot| batch.remove(slot).unwrap());
    slots.iter().for_each(|_| assert!(batch.add().is_ok()));
    slots.reverse();
    let rest = slots.split_off(n);
    rest.into_iter().for_each(|slot| batch.remove(slot).unwrap());
    slots
}

fn release(batch: &mut GpuBatch, slots: &[Slot]) {
    slots.iter().for_each(|&slot| batch.remove(slot).unwrap());
    assert!(batch.is_empty());
}

/// Logits of so many sequences of different lengths, fed side by side, twice: distances from the host's.
pub fn scores(batch: &mut GpuBatch, host: &mut HostExecutor, n: usize) -> Vec<f64> {
    let vocab = host.n_vocab();
    let slots = occupy(batch, n);
    let all: Vec<Vec<u32>> = (0..n).map(|i| sequence(i, vocab)).collect();
    let mut offs = vec![];
    let first: Vec<(Slot, &[u32])> = slots.iter().zip(&all).map(|(&slot, ids)| (slot, ids.as_slice())).collect();
    let rows = batch.score(&first).unwrap();
    let second: Vec<(Slot, &[u32])> = slots.iter().map(|&slot| (slot, &[9][..])).collect();
    let more = batch.score(&second).unwrap();
    for (i, ids) in all.iter().enumerate() {
        host.truncate(0);
        let want = host.feed(ids, Want::Last).unwrap();
        offs.push(off(&rows[i * vocab..][..vocab], &want));
        let want = host.feed(&[9], Want::Last).unwrap();
        offs.push(off(&more[i * vocab..][..vocab], &want));
        assert_eq!(batch.len(slots[i]).unwrap(), ids.len() + 1);
    }
    release(batch, &slots);
    offs
}

/// Greedy answers of so many sequences side by side: the first ends after a token, the second after two, all pause in between and go on.
/// How much less likely than the host's choice each token was at most, along the device's own answer.
pub fn answers(batch: &mut GpuBatch, host: &mut HostExecutor, n: usize, tokens: usize) -> f32 {
    let vocab = host.n_vocab();
    let slots = occupy(batch, n);
    let mut ids: Vec<Vec<u32>> = (0..n).map(|i| sequence(i, vocab)).collect();
    let prompts: Vec<usize> = ids.iter().map(Vec::len).collect();
    // The device runs ahead; how long each answer is to be is the sink's affair.
    let wanted = |i: usize| if i < 2 && n > 2 { i + 1 } else { tokens };
    let mut paused = false;
    loop {
        let going: Vec<usize> = (0..n).filter(|&i| ids[i].len() < prompts[i] + wanted(i)).collect();
        if going.is_empty() {
            break;
        }
        let fed: Vec<Vec<u32>> = going.iter().map(|&i| ids[i][batch.len(slots[i]).unwrap()..].to_vec()).collect();
        let mut samplers = vec![Sampler::new(SampleOptions::default()); going.len()];
        let mut starts: Vec<Start> = going
            .iter()
            .zip(&fed)
            .zip(&mut samplers)
            .map(|((&i, tokens), sampler)| Start { slot: slots[i], tokens, sampler })
            .collect();
        let mut seen = 0;
        let stop = if paused { usize::MAX } else { n + n.div_ceil(2) };
        batch
            .decode(&mut starts, &mut |slot, token| {
                let i = slots.iter().position(|&s| s == slot).unwrap();
                ids[i].push(token);
                seen += 1;
                match ids[i].len() == prompts[i] + wanted(i) {
                    true => After::End,
                    false if seen == stop => After::Pause,
                    false => After::Go,
                }
            })
            .unwrap();
        paused = true;
    }
    let mut worst = 0f32;
    for (i, all) in ids.iter().enumerate() {
        assert_eq!(all.len(), prompts[i] + wanted(i), "the answer of sequence {i}");
        assert_eq!(batch.len(slots[i]).unwrap(), all.len() - 1, "the last token is not fed");
        host.truncate(0);
        let mut logits = host.feed(&all[..prompts[i]], Want::Last).unwrap();
        for &id in &all[prompts[i]..] {
            let best = logits.iter().copied().fold(f32::MIN, f32::max);
            worst = worst.max(best - logits[id as usize]);
            logits = host.feed(&[id], Want::Last).unwrap();
        }
    }
    release(batch, &slots);
    worst
}

/// Draws of three sequences, one of them greedy, side by side: their ids. The same seeds must give the same.
pub fn draws(batch: &mut GpuBatch, seeds: [u64; 2], tokens: usize) -> Vec<Vec<u32>> {
    let slots = occupy(batch, 3);
    let warm = |seed| SampleOptions { temperature: 1.0, top_k: 40, top_p: 0.95, seed, ..SampleOptions::default() };
    let options = [warm(seeds[0]), SampleOptions::default(), warm(seeds[1])];
    let mut samplers: Vec<Sampler> = options.into_iter().map(Sampler::new).collect();
    let mut ids = vec![vec![]; 3];
    let prompt = [7u32, 8];
    let mut starts: Vec<Start> =
        slots.iter().zip(&mut samplers).map(|(&slot, sampler)| Start { slot, tokens: &prompt, sampler }).collect();
    batch
        .decode(&mut starts, &mut |slot, token| {
            let i = slots.iter().position(|&s| s == slot).unwrap();
            ids[i].push(token);
            if ids[i].len() == tokens { After::End } else { After::Go }
        })
        .unwrap();
    release(batch, &slots);
    ids
}

/// Sequences that reach the end of their context at different times, and requests that cannot be met.
pub fn limits(batch: &mut GpuBatch) {
    use kjit_model::exec::ExecError;
    let (slots, context) = (occupy(batch, 2), batch.context());
    let long: Vec<u32> = (0..context as u32 - 2).map(|i| i % 50).collect();
    let mut samplers = vec![Sampler::new(SampleOptions::default()); 2];
    let mut seen = [0usize; 2];
    let [a, b] = samplers.get_disjoint_mut([0, 1]).unwrap();
    let mut starts =
        [Start { slot: slots[0], tokens: &long, sampler: a }, Start { slot: slots[1], tokens: &[1], sampler: b }];
    batch
        .decode(&mut starts, &mut |slot, _| {
            seen[usize::from(slot == slots[1])] += 1;
            if seen[1] == 6 { After::End } else { After::Go }
        })
        .unwrap();
    // Two fit, and the one that is chosen after the last is handed out too.
    assert_eq!(seen, [3, 6]);
    assert_eq!((batch.len(slots[0]).unwrap(), batch.len(slots[1]).unwrap()), (context, 6));
    let full = batch.feed(slots[0], &[1]).unwrap_err();
    assert!(matches!(full, ExecError::Context { .. }), "{full}");
    let none = batch.score(&[(slots[1], &[u32::MAX][..])]).unwrap_err();
    assert!(matches!(none, ExecError::Token { .. }), "{none}");
    let twice = batch.score(&[(slots[1], &[1][..]), (slots[1], &[1][..])]).unwrap_err().to_string();
    assert!(twice.contains("twice"), "{twice}");
    let mut penalised = Sampler::new(SampleOptions { repeat_penalty: 1.1, ..SampleOptions::default() });
    let mut start = [Start { slot: slots[1], tokens: &[1], sampler: &mut penalised }];
    let refused = batch.decode(&mut start, &mut |_, _| After::End).unwrap_err().to_string();
    assert!(refused.contains("penalties"), "{refused}");
    release(batch, &slots);
    let gone = batch.feed(slots[0], &[1]).unwrap_err().to_string();
    assert!(gone.contains("no sequence"), "{gone}");
}
