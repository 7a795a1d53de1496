//! Images with `kjit run` and `kjit serve`: SmolLM2 with an encoder of random weights, on the CPU.

use crate::support::served::Served;
use crate::support::{error_line, kjit, smollm2, stdout};
use kjit_model::gguf::{self, Gguf, PlannedTensor};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// Elements of a hidden state of SmolLM2.
const WIDTH: usize = 576;
/// Rows of an image of the encoder.
const ROWS: u64 = 16;

pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/vision").join(name)
}

/// The encoder of the tests of `kjit-vision`, with a last product of SmolLM2's width.
pub fn encoder(folder: &Path) -> String {
    let tiny = Gguf::open(data("llava.gguf")).unwrap();
    let value = |i: usize| ((i * 7919 % 1013) as f32 / 1013.0 - 0.5) * 0.05;
    let floats = |n: usize| (0..n).flat_map(|i| value(i).to_le_bytes()).collect::<Vec<u8>>();
    let last = |name: &str| match name {
        "mm.2.weight" => Some((vec![40, WIDTH as u64], floats(40 * WIDTH))),
        "mm.2.bias" => Some((vec![WIDTH as u64], floats(WIDTH))),
        _ => None,
    };
    let all: Vec<PlannedTensor> = tiny
        .tensors()
        .iter()
        .map(|info| {
            let tensor = tiny.tensor(info.name()).unwrap();
            let (name, ty) = (tensor.name.to_owned(), tensor.ty.id);
            match last(tensor.name) {
                Some((dims, data)) => PlannedTensor { name, dims, ty: 0, bytes: data.len() as u64 },
                None => PlannedTensor {
                    name,
                    dims: tensor.dims.to_vec(),
                    ty,
                    bytes: tensor.data.len() as u64,
                },
            }
        })
        .collect();
    let path = folder.join("mmproj.gguf");
    let mut file = std::fs::File::create(&path).unwrap();
    gguf::write(&mut file, &tiny, &[], &all, |tensor| {
        Ok(match last(&tensor.name) {
            Some((_, data)) => Cow::Owned(data),
            None => Cow::Borrowed(tiny.tensor(&tensor.name).unwrap().data),
        })
    })
    .unwrap();
    path.display().to_string()
}

fn base64(name: &str) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes = std::fs::read(data(name)).unwrap();
    let three = |three: &[u8]| {
        let word = (0..3).fold(0, |word, i| word << 8 | u32::from(*three.get(i).unwrap_or(&0)));
        let letter = |i: usize| match i <= three.len() {
            true => char::from(LETTERS[(word >> (18 - 6 * i) & 63) as usize]),
            false => '=',
        };
        (0..4).map(letter).collect::<String>()
    };
    bytes.chunks(3).map(three).collect()
}

fn chat(url: &Value) -> Value {
    json!({ "max_tokens": 6, "temperature": 0, "messages": [{ "role": "user", "content": [
        { "type": "image_url", "image_url": url },
        { "type": "text", "text": "What is in this picture?" }
    ] }] })
}

#[test]
fn images_are_read_in_all_dialects_alike() {
    let folder = tempfile::tempdir().unwrap();
    let encoder = encoder(folder.path());
    let server = Served::start(&["--precise", "--mmproj", &encoder]);
    let (image, other) = (base64("61x37.png"), base64("37x61.png"));
    let url = |image: &str| format!("data:image/png;base64,{image}");
    let cached = |answer: &Value| {
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
    };
    let text = json!({ "max_tokens": 6, "temperature": 0, "messages": [
        { "role": "user", "content": "What is in this picture?" }
    ] });
    let plain = server.good("/v1/chat/completions", &text).json();
    let first = server.good("/v1/chat/completions", &chat(&json!({ "url": url(&image) }))).json();
    let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    // The text is cut at the image, which may change a token or two beside it.
    let (with, without) = (tokens(&first), tokens(&plain));
    assert!((without + ROWS..=without + ROWS + 2).contains(&with), "{with} {without}");
    let said = first["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert_ne!(said, plain["choices"][0]["message"]["content"].as_str().unwrap());
    // An image that is sent again is a cached prefix; a different image is not.
    let again = server.good("/v1/chat/completions", &chat(&json!(url(&image)))).json();
    assert_eq!(again["choices"][0]["message"]["content"], said.as_str());
    assert!(cached(&again) >= ROWS, "{again}");
    let another = server.good("/v1/chat/completions", &chat(&json!(url(&other)))).json();
    assert!(cached(&another) < with - ROWS, "{another}");
    let question = "What is in this picture?";
    let message = server.good("/v1/messages", &json!({
        "model": "SmolLM2-135M-Instruct.Q4_1", "max_tokens": 6, "temperature": 0,
        "messages": [{ "role": "user", "content": [
            { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": image } },
            { "type": "text", "text": question }
        ] }]
    })).json();
    // Anthropic's blocks are joined by new lines.
    assert_eq!(message["usage"]["output_tokens"], 6, "{message}");
    let response = server
        .good(
            "/v1/responses",
            &json!({
                "max_output_tokens": 6, "temperature": 0, "input": [{ "role": "user", "content": [
                    { "type": "input_image", "image_url": url(&image), "detail": "auto" },
                    { "type": "input_text", "text": question }
                ] }]
            }),
        )
        .json();
    assert_eq!(response["output"][0]["content"][0]["text"], said.as_str(), "{response}");
    let ollama = server
        .good(
            "/api/chat",
            &json!({
                "model": "SmolLM2-135M-Instruct.Q4_1", "stream": false,
                "options": { "num_predict": 6, "temperature": 0 },
                "messages": [{ "role": "user", "content": question, "images": [image] }]
            }),
        )
        .json();
    assert_eq!(ollama["message"]["content"], said.as_str(), "{ollama}");
    let generated = server
        .good(
            "/api/generate",
            &json!({
                "model": "SmolLM2-135M-Instruct.Q4_1", "stream": false, "prompt": question,
                "options": { "num_predict": 6, "temperature": 0 }, "images": [image]
            }),
        )
        .json();
    assert_eq!(generated["response"], said.as_str(), "{generated}");
    for (url, why) in [
        ("data:image/png;base64,R0lGODlh", "the image is no PNG, JPEG or WebP file"),
        ("data:image/png;base64,iVBORw0KGgo=", "the image is damaged"),
        ("http://127.0.0.1:1/a.png", "start kjit serve with --allow-fetch"),
        ("ftp://example.org/a.png", "give a data URL, or one with http or https"),
    ] {
        let refused = server.post("/v1/chat/completions", &chat(&json!({ "url": url })));
        assert_eq!(refused.status, 400, "{refused:?}");
        let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
        let field = "'messages[0].content[0].image_url.url': ";
        assert!(message.starts_with(field) && message.contains(why), "{message}");
    }
    // An equal prompt on the command line.
    let picture = data("61x37.png").display().to_string();
    let mut run = kjit();
    run.arg("run").arg(smollm2()).args(["--device", "cpu", "--precise", "--temp", "0", "-n", "6"]);
    run.args([
        "-c", "1024", "--json", "-q", "--mmproj", &encoder, "--image", &picture, "-p", question,
    ]);
    let run: Value = serde_json::from_str(&stdout(&mut run)).unwrap();
    assert_eq!((run["text"].as_str(), run["prompt_tokens"].as_u64()), (Some(&*said), Some(with)));
}

#[test]
fn images_without_encoder_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let server = Served::start(&["--allow-fetch"]);
    let refused =
        server.post("/v1/chat/completions", &chat(&json!({ "url": "http://127.0.0.1/a" })));
    assert_eq!(refused.status, 400, "{refused:?}");
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("this model reads text only") && message.contains("--mmproj"),
        "{message}"
    );
    drop(server);
    let encoder = encoder(folder.path());
    let server = Served::start(&["--allow-fetch", "--mmproj", &encoder]);
    let refused =
        server.post("/v1/chat/completions", &chat(&json!({ "url": "http://127.0.0.1/a" })));
    assert_eq!(refused.status, 400, "{refused:?}");
    assert!(refused.body.contains("its address is not public"), "{refused:?}");
    let tiny = data("llava.gguf").display().to_string();
    let picture = data("61x37.png").display().to_string();
    let error = |flags: &[&str]| {
        let mut run = kjit();
        run.arg("run").arg(smollm2()).args(["--device", "cpu", "-n", "1", "-p", "a"]).args(flags);
        error_line(&mut run, 1)
    };
    let wrong = error(&["--mmproj", &tiny, "--image", &picture]);
    assert!(wrong.contains("rows of 24") && wrong.contains("576"), "{wrong}");
    let text = smollm2().display().to_string();
    assert!(error(&["--mmproj", &text]).contains("is no encoder of images"));
    let missing = error(&["--mmproj", &encoder, "--image", "no-such.png"]);
    assert!(missing.contains("--image no-such.png"), "{missing}");
    assert!(error(&["--mmproj", &encoder, "--image", &encoder]).contains("no PNG, JPEG or WebP"));
}
