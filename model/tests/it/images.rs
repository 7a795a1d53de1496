//! Rows of images in prompts, on the CPU: they compute as tokens with the same embeddings do, and
//! cached prefixes never match other images.

use crate::it::support::files::{tiny_model, tiny_models};
use crate::it::support::submitted_request::{SubmittedRequest, ask};
use kjit_model::exec::{FIRST_IMAGE_ID, ImageRows, ImageTable};
use kjit_model::gguf::Gguf;
use kjit_model::graph::{Graph, Op, op::By};
use kjit_model::sample::SampleOptions;
use kjit_model::serve::{Refused, Scheduler, SchedulerOptions};
use kjit_model::session::{OpenOptions, Session, SessionError, Want};
use std::path::Path;
use std::sync::Arc;

fn open(path: &Path, sequences: usize, context: usize) -> (Arc<Gguf>, Graph, Session) {
    let gguf = Arc::new(Gguf::open(path).unwrap());
    let graph = kjit_model::arch::build(&gguf).unwrap();
    let options = OpenOptions {
        threads: 2,
        precise: true,
        sequences,
        prefill_chunk: Some(6),
        ..OpenOptions::new(context)
    };
    let session = Session::on_cpu(Arc::clone(&gguf), graph.clone(), &options).unwrap();
    (gguf, graph, session)
}

/// The embeddings of tokens, as the model reads them.
fn embeddings(gguf: &Gguf, graph: &Graph, tokens: &[u32]) -> Option<Vec<f32>> {
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

fn logits(session: &mut Session, tokens: &[u32]) -> Vec<f32> {
    let id = session.add(SampleOptions::default()).unwrap();
    let made = session.feed(id, tokens, Want::All).unwrap();
    session.remove(id).unwrap();
    made
}

#[test]
fn image_rows_compute_as_tokens_of_equal_embeddings() {
    let mut models = 0;
    for path in tiny_models() {
        let (gguf, graph, mut session) = open(&path, 1, 24);
        let Some(rows) = embeddings(&gguf, &graph, &[5, 9, 7, 11, 2]) else { continue };
        let table = Arc::new(ImageTable::new(graph.image_width().unwrap(), 1 << 20));
        session.set_images(&table).unwrap();
        let image = table.add([1; 32], rows).unwrap();
        let ids: Vec<u32> = image.ids().collect();
        // The rows cross the border of two passes of six tokens.
        let plain = logits(&mut session, &[1, 4, 5, 9, 7, 11, 2, 8, 3]);
        let shown = logits(&mut session, &[&[1, 4], &ids[..], &[8, 3]].concat());
        assert!(plain.iter().all(|x| x.is_finite()) && plain.len() == 9 * session.n_vocab());
        assert_eq!(plain, shown, "{}", path.display());
        let other = logits(&mut session, &[&[1, 4], &ids[1..], &[2, 8, 3]].concat());
        assert_ne!(plain, other);
        models += 1;
    }
    assert!(models > 0 || tiny_models().is_empty());
}

#[test]
fn unknown_rows_and_other_widths_are_refused() {
    let Some(path) = tiny_model("tiny-llama-q8_0.gguf") else { return };
    let (_, graph, mut session) = open(&path, 1, 24);
    let width = graph.image_width().unwrap();
    let wrong = session.set_images(&Arc::new(ImageTable::new(width + 1, 64))).unwrap_err();
    assert!(wrong.to_string().contains("belongs to this model"), "{wrong}");
    let table = Arc::new(ImageTable::new(width, 0));
    session.set_images(&table).unwrap();
    let id = session.add(SampleOptions::default()).unwrap();
    let forgotten = table.add([1; 32], vec![0.5; width]).unwrap().ids().start;
    for row in [forgotten, FIRST_IMAGE_ID + 99, u32::MAX] {
        let refused = session.feed(id, &[1, row], Want::Last).unwrap_err();
        assert!(matches!(refused, SessionError::Token { id, .. } if id == row), "{refused}");
    }
    assert_eq!(session.len(id).unwrap(), 0);
}

#[test]
fn cached_prefixes_match_the_same_image_only() {
    let Some(path) = tiny_model("tiny-llama-q8_0.gguf") else { return };
    let (_, graph, mut session) = open(&path, 2, 256);
    let width = graph.image_width().unwrap();
    let table = Arc::new(ImageTable::new(width, 1 << 20));
    session.set_images(&table).unwrap();
    let image = |key: u8| -> Arc<ImageRows> {
        let value = |i: usize| ((i * 37 + key as usize * 101) % 97) as f32 / 97.0 - 0.5;
        table.add([key; 32], (0..40 * width).map(value).collect()).unwrap()
    };
    let scheduler = Scheduler::start(session, SchedulerOptions::default()).unwrap();
    let answer = |image: &Arc<ImageRows>| {
        let prompt: Vec<u32> = [1, 2, 3].into_iter().chain(image.ids()).chain(4..14).collect();
        let images = vec![Arc::clone(image)];
        let asked: SubmittedRequest = ask(&scheduler, &prompt, 4, |r| r.images = images);
        let got = asked.got();
        (got.cached(), got.ids)
    };
    let (a, b) = (image(1), image(2));
    let first = answer(&a);
    assert_eq!(first.0, 0);
    let second = answer(&a);
    assert!(second.0 >= 40, "{} tokens were cached", second.0);
    assert_eq!(first.1, second.1);
    assert!(answer(&b).0 <= 3, "another image is another prefix");
    // Ids of an image that is not given with the request.
    let sink = Box::new(|_| std::ops::ControlFlow::Continue(()));
    let request = kjit_model::serve::Request::new(a.ids().collect(), sink);
    let refused = scheduler.submit(request).map(drop).unwrap_err();
    assert!(matches!(refused, Refused::Token { .. }), "{refused}");
}
