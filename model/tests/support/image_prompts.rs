//! Prompts with rows of images on a device, compared with the CPU. For any device. Tests of other
//! crates use this module as well.

use super::near::off;
use super::side_by_side::gap;
use super::solo_session::SoloSession;
use super::submitted_request::ask;
use kjit_model::exec::{ImageRows, ImageTable};
use kjit_model::gguf::Gguf;
use kjit_model::graph::{Graph, Op, op::By};
use kjit_model::sample::SampleOptions;
use kjit_model::serve::{Scheduler, SchedulerOptions};
use kjit_model::session::{DecodeControl, SequenceId, Session, StepOutput, Want, Work};
use std::sync::Arc;

/// The embeddings of tokens, as the model reads them. `None` if the model takes no images.
pub fn embeddings(gguf: &Gguf, graph: &Graph, tokens: &[u32]) -> Option<Vec<f32>> {
    let embed = graph.ops.iter().find_map(|op| match op {
        Op::Embed(e) if e.by == By::Token => Some(e),
        _ => None,
    })?;
    let (w, width) = (graph.weight(embed.table), graph.image_width()?);
    let data = gguf.tensor(&w.tensor).unwrap().data;
    let each = data.len() / w.rows;
    let mut all = vec![];
    for token in tokens {
        let mut row = vec![f32::NAN; width];
        w.format.decode(&data[*token as usize * each..][..each], &mut row).unwrap();
        all.extend(row.iter().map(|x| x * embed.scale));
    }
    Some(all)
}

/// Random numbers; a failure prints the seed.
pub struct Draws(pub u64);

impl Draws {
    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % n
    }

    /// Ids of tokens.
    pub fn text(&mut self, len: usize, vocab: usize) -> Vec<u32> {
        (0..len).map(|_| self.below(vocab) as u32).collect()
    }

    /// An image of `len` rows: sums of two random embeddings.
    fn image(&mut self, with: &Setting<'_>, len: usize) -> Arc<ImageRows> {
        let (a, b) = (self.text(len, with.vocab), self.text(len, with.vocab));
        let [a, b] = [a, b].map(|ids| embeddings(with.gguf, with.graph, &ids).unwrap());
        let rows = a.iter().zip(&b).map(|(a, b)| a + 0.5 * b).collect();
        let key = std::array::from_fn(|_| self.below(256) as u8);
        with.table.add(key, rows).unwrap()
    }
}

struct Setting<'a> {
    gguf: &'a Gguf,
    graph: &'a Graph,
    table: Arc<ImageTable>,
    vocab: usize,
}

fn last_rows(session: &mut Session, work: &[(SequenceId, &[u32])]) -> Vec<Vec<f32>> {
    let one = |&(sequence, tokens): &(SequenceId, _)| Work { sequence, tokens, want: Want::Last };
    let work: Vec<Work<'_>> = work.iter().map(one).collect();
    let given = session.step(&work).unwrap().into_iter();
    given.map(|g| if let StepOutput::Logits(row) = g { row } else { panic!("{g:?}") }).collect()
}

/// Compares logits and answers after prompts with images, for one sequence and for several in one
/// step. `most` bounds the rows of an image, at least 13. `tolerance` bounds the distance of
/// logits. With `whole` the rows of an image attend to each other: then a step has
/// whole images, and text follows them.
pub fn assert_matches_host(
    mut device: Session,
    host: &mut SoloSession,
    (gguf, graph): (&Gguf, &Graph),
    (most, tolerance): (usize, f64),
    whole: bool,
    seed: u64,
) {
    let table = ImageTable::new(graph.image_width().unwrap(), 64 << 20);
    let table = Arc::new(table.bidirectional(whole));
    device.set_images(&table).unwrap();
    host.session.set_images(&table).unwrap();
    let with = Setting { gguf, graph, table, vocab: host.n_vocab() };
    let (mut draws, vocab) = (Draws(seed), with.vocab);
    let mut check = |name: &str, got: &[f32], ids: &[u32]| {
        host.truncate(0);
        let off = off(got, &host.feed(ids, Want::Last).unwrap());
        eprintln!("{name}, seed {seed}: {off:.2e}");
        assert!(off < tolerance, "{name}, seed {seed}: logits are off by {off:.2e}");
    };
    // A prompt with two images that crosses the ends of chunks, then single tokens and rows.
    let images: Vec<_> = (0..5)
        .map(|_| {
            // Prefixes of fewer than 16 tokens are not kept.
            let len = 13 + draws.below(most - 12);
            draws.image(&with, len)
        })
        .collect();
    let rows = |i: usize| -> Vec<u32> { images[i].ids().collect() };
    let len = 1 + draws.below(9);
    let tail = |next: u32| if whole { vec![next] } else { vec![] };
    let last = |images: Vec<u32>| [images, tail(3)].concat();
    let prompt = [draws.text(len, vocab), rows(0), draws.text(3, vocab), last(rows(1))].concat();
    let alone = device.add(SampleOptions::default()).unwrap();
    let got = last_rows(&mut device, &[(alone, &prompt)]).remove(0);
    check("a prompt that ends with an image", &got, &prompt);
    let mut ids = prompt.clone();
    for next in if whole { [6, 5, 7] } else { [rows(2)[0], 5, rows(2)[1]] } {
        ids.push(next);
        let got = last_rows(&mut device, &[(alone, &[next])]).remove(0);
        check("a single row", &got, &ids);
    }
    // Another image is another prompt.
    let other = [&prompt[..len], &rows(3), &[8, 9], &last(rows(1))].concat();
    let kept = device.truncate(alone, len).unwrap();
    let changed = last_rows(&mut device, &[(alone, &other[kept..])]).remove(0);
    check("another image after the same text", &changed, &other);
    device.remove(alone).unwrap();
    // Three sequences in one step: their chunks share passes where the plan allows it.
    let texts: Vec<Vec<u32>> = (0..3)
        .map(|i| {
            let (before, after) = (1 + draws.below(5), draws.below(4));
            let end = if whole { i as u32 } else { rows(4)[i % 2] };
            [draws.text(before, vocab), rows(i), draws.text(after, vocab), vec![end]].concat()
        })
        .collect();
    let all: Vec<SequenceId> =
        texts.iter().map(|_| device.add(SampleOptions::default()).unwrap()).collect();
    let work: Vec<_> = all.iter().zip(&texts).map(|(id, text)| (*id, text.as_slice())).collect();
    for (got, text) in last_rows(&mut device, &work).iter().zip(&texts) {
        check("one of three", got, text);
    }
    // Answers that the device chooses ahead of the host, after prompts that end with an image.
    let next = [last(rows(1)), last(rows(2)), vec![7]];
    let starts: Vec<_> = all.iter().zip(&next).map(|(id, text)| (*id, text.as_slice())).collect();
    let mut answers = vec![vec![]; 3];
    device
        .decode(&starts, &mut |id, token| {
            let i = all.iter().position(|one| *one == id).unwrap();
            answers[i].push(token);
            if answers[i].len() == 3 { DecodeControl::End } else { DecodeControl::Go }
        })
        .unwrap();
    for ((text, next), answer) in texts.iter().zip(&next).zip(&answers) {
        let start = [&text[..], next].concat();
        let gap = gap(host, &[&start[..], answer].concat(), start.len());
        assert!(gap < 0.05, "seed {seed}: a token is {gap} below the host's choice");
    }
    all.iter().for_each(|&id| device.remove(id).unwrap());
    served(device, host, &with, &images, &mut draws);
}

/// Requests side by side, whose steps are launched ahead where the device can. The same image is a
/// cached prefix, another one is none.
fn served(
    device: Session,
    host: &mut SoloSession,
    with: &Setting<'_>,
    images: &[Arc<ImageRows>],
    draws: &mut Draws,
) {
    let scheduler = Scheduler::start(device, SchedulerOptions::default()).unwrap();
    let before = draws.text(3, with.vocab);
    let prompt =
        |image: &ImageRows| [&before[..], &image.ids().collect::<Vec<_>>(), &[4, 5, 6, 7]].concat();
    let submit = |image: &Arc<ImageRows>| {
        let shown = vec![Arc::clone(image)];
        ask(&scheduler, &prompt(image), 5, |r| r.images = shown)
    };
    let first = submit(&images[0]).got();
    let asked: Vec<_> = [&images[0], &images[1], &images[0]].map(submit).into_iter().collect();
    let got: Vec<_> = asked.into_iter().map(|asked| asked.got()).collect();
    let most = 3 + images[0].len();
    assert!(got[0].cached() >= most && got[2].cached() >= most, "{}", got[0].cached());
    assert!(got[1].cached() <= 3, "{} tokens of another image", got[1].cached());
    for (got, image) in [&first].into_iter().chain(&got).zip([0, 0, 1, 0]) {
        let start = prompt(&images[image]);
        let gap = gap(host, &[&start[..], &got.ids].concat(), start.len());
        assert!(gap < 0.05, "seed {}: a token is {gap} below the host's choice", draws.0);
    }
}
