//! Rows of images in prompts, on the CPU: they compute as tokens with the same embeddings do, and
//! cached prefixes never match other images.

use crate::it::support::files::{tiny_model, tiny_models};
use crate::it::support::image_prompts::embeddings;
use crate::it::support::near::off;
use crate::it::support::submitted_request::{SubmittedRequest, ask};
use kjit_model::exec::{FIRST_IMAGE_ID, ImageRows, ImageTable};
use kjit_model::gguf::Gguf;
use kjit_model::graph::Graph;
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

/// The oracle is the graph with the masks of an encoder, of which a step is one row or one image.
#[test]
fn rows_of_an_image_see_each_other_and_nothing_else_later() {
    let Some(path) = tiny_model("tiny-gemma3-q8_0.gguf") else { return };
    let (_, graph, mut session) = open(&path, 2, 64);
    let gguf = Arc::new(Gguf::open(&path).unwrap());
    let masked = graph.with_rows_that_see_each_other(9).unwrap();
    let options = OpenOptions { threads: 2, precise: true, ..OpenOptions::new(64) };
    let mut oracle = Session::on_cpu(gguf, masked, &options).unwrap();
    let width = graph.image_width().unwrap();
    let table = Arc::new(ImageTable::new(width, 1 << 20).bidirectional(true));
    session.set_images(&table).unwrap();
    // The oracle's masks are in its graph, which takes no images: the rows are those of tokens.
    let tokens: Vec<u32> = (0..9).map(|i| 40 + i * 13).collect();
    let (gguf, ..) = open(&path, 1, 24);
    let rows = embeddings(&gguf, &graph, &tokens).unwrap();
    let [a, b] = [1, 2].map(|key| table.add([key; 32], rows.clone()).unwrap());
    let ids = |image: &ImageRows| image.ids().collect::<Vec<u32>>();
    // Passes have six tokens, so each image is longer than a pass.
    let prompt = [&[1, 4, 7][..], &ids(&a), &[9, 3], &ids(&b), &[8, 2]].concat();
    let got = logits(&mut session, &prompt);
    let id = oracle.add(SampleOptions::default()).unwrap();
    let mut want = vec![];
    for step in [&[1][..], &[4], &[7], &tokens, &[9], &[3], &tokens, &[8], &[2]] {
        want.extend(oracle.feed(id, step, Want::All).unwrap());
    }
    assert!(off(&got, &want) < 1e-5, "{}", off(&got, &want));
    // A causal mask gives other logits.
    let causal = Arc::new(ImageTable::new(width, 1 << 20));
    let image = causal.add([1; 32], rows).unwrap();
    let (_, _, mut other) = open(&path, 1, 64);
    other.set_images(&causal).unwrap();
    let other = logits(&mut other, &[&[1, 4, 7][..], &ids(&image), &[9, 3]].concat());
    assert!(off(&other, &want[..other.len()]) > 1e-2);
    // A prefix that ends within an image is continued.
    let id = session.add(SampleOptions::default()).unwrap();
    session.feed(id, &prompt, Want::Last).unwrap();
    session.truncate(id, 7).unwrap();
    let again = session.feed(id, &prompt[7..], Want::Last).unwrap();
    assert!(off(&again, &want[want.len() - again.len()..]) < 1e-5);
    let cut = session.feed(id, &ids(&a)[..3], Want::Last).unwrap_err();
    assert!(matches!(cut, SessionError::Images(_)), "{cut}");
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
